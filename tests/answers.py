"""PyTorch's answers where they are constants: kept in tests/answers/, compared where it is missing too.

A test asks `answers(inputs, call)`. Where PyTorch is installed, `call` runs and its answer must be the kept
one; elsewhere the kept one is given. An answer is known by its test, its number there and a hash of the
inputs: a changed sample, or a new one, fails with the command that writes the answers anew (`make answers`).
`answers.both(run, *inputs)` asks so for `run(torch, *inputs)`, and gives it after `run(kiln, *inputs)`.

A file is an `.npz` of two arrays of bytes: JSON (test -> [hash, answer] of each call), and the values that it
names by their place.
"""

from __future__ import annotations

import builtins
import functools
import hashlib
import inspect
import itertools
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kiln.testing.compare import dtype_name, first_difference, is_tensor, to_array

FOLDER = Path(__file__).parent / "answers"
COMMAND = "with PyTorch installed, `make answers ARGS={file}` writes them"
NOWHERE: Any = object()


class Peer:
    """A tensor of PyTorch's answer: dtype, values, and whether it needs a gradient."""

    def __init__(self, dtype: str, requires_grad: bool, values: Any) -> None:
        self.dtype, self.requires_grad, self._values = dtype, requires_grad, values
        self.shape = tuple(values.shape)

    def detach(self) -> Peer:
        return self

    def float(self) -> Peer:
        return Peer("float32", self.requires_grad, self._values.astype(np.float32))

    def numpy(self) -> Any:
        return self._values

    def tolist(self) -> Any:
        return self._values.tolist()

    def __repr__(self) -> str:
        return f"{self.dtype}{list(self.shape)} {self._values}"


# -- what goes in: a hash of the inputs ---------------------------------------------------------------------


def told(value: Any) -> Any:
    """What the hash of inputs sees. Numbers in 12 bits: functions that make samples round as the CPU does."""
    if isinstance(value, (np.ndarray, np.generic)):
        x = np.ascontiguousarray(value)
        if x.dtype.kind == "f" and x.itemsize in (4, 8):
            low = {4: 11, 8: 40}[x.itemsize]
            bits = np.where(np.isnan(x), np.array(np.nan, x.dtype), x).view(f"u{x.itemsize}")
            seen = ((bits >> (low - 1)) + 1 >> 1).tobytes()
        else:
            seen = x.tobytes()
        return "array", x.dtype.name, np.shape(value), hashlib.blake2b(seen).hexdigest()
    if is_tensor(value):
        return "tensor", dtype_name(value.dtype), told(to_array(value))
    if isinstance(value, (list, tuple)):
        return [told(v) for v in value]
    if isinstance(value, dict):
        return [(k, told(v)) for k, v in value.items()]
    if inspect.isfunction(value):
        held = [c.cell_contents for c in value.__closure__ or ()]
        return "".join(inspect.getsource(value).split()), told(value.__defaults__), told(held)
    if value is None or isinstance(value, (bool, int, float, complex, str, slice, range)):
        return type(value).__name__, repr(value)
    return type(value).__name__, re.sub(" at 0x[0-9a-f]+", "", repr(value))


def hash_of(inputs: Any) -> str:
    """16 digits that change with the inputs."""
    return hashlib.blake2b(repr(told(inputs)).encode(), digest_size=8).hexdigest()


# -- what comes out: answers as JSON and bytes --------------------------------------------------------------


def period(flat: Any) -> int:
    """The number of elements after which a large array repeats itself; its size if it does not."""
    words = flat.view(f"u{flat.itemsize}")
    for n in range(1, 1024 if flat.size > 4096 else 1):
        if words[n] == words[0] and np.array_equal(words[n:], words[:-n]):
            return n
    return int(flat.size)


def packed(value: Any, blob: bytearray) -> Any:
    """An answer as JSON; the values of arrays go to `blob`."""
    if is_tensor(value) or isinstance(value, (np.ndarray, np.generic)):
        tensor = is_tensor(value)
        x = to_array(value.clone() if hasattr(value, "clone") else value) if tensor else np.asarray(value)
        kind = [dtype_name(value.dtype), bool(value.requires_grad)] if tensor else ["", False]
        flat = np.ascontiguousarray(x).reshape(-1)
        count = period(flat)
        place = len(blob)
        blob += flat[:count].tobytes()
        return {"array": [*kind, x.dtype.str, list(x.shape), place, count]}
    if isinstance(value, BaseException):
        return {"raised": [*type_names(type(value)), str(value)]}
    if isinstance(value, type):
        return {"type": type_names(value)}
    if isinstance(value, tuple):
        return {"tuple": [packed(v, blob) for v in value]}
    if isinstance(value, list):
        return [packed(v, blob) for v in value]
    if isinstance(value, dict):
        return {"dict": [[packed(k, blob), packed(v, blob)] for k, v in value.items()]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise AssertionError(f"an answer of type {type(value)} cannot be kept")


def type_names(kind: type) -> list[str]:
    """The names of a type, and of the nearest builtin one above it."""
    return [kind.__name__, next(t.__name__ for t in kind.__mro__ if t.__module__ == "builtins")]


@functools.cache
def type_of(name: str, base: str) -> type:
    """The builtin type of that name; one of that name in the place of PyTorch's own."""
    above: type = getattr(builtins, base)
    return above if name == base else type(name, (above,), {})


def unpacked(value: Any, blob: bytes) -> Any:
    """The answer again."""
    if isinstance(value, list):
        return [unpacked(v, blob) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, what),) = value.items()
    if kind == "array":
        dtype, grad, stored, shape, place, count = what
        flat = np.frombuffer(blob, stored, count, place)
        x = np.resize(flat, shape).copy() if count else np.empty(shape, stored)
        return Peer(dtype, grad, x) if dtype else x
    if kind == "raised":
        return type_of(*what[:2])(what[2])
    if kind == "type":
        return type_of(*what)
    if kind == "tuple":
        return tuple(unpacked(v, blob) for v in what)
    return {unpacked(k, blob): unpacked(v, blob) for k, v in what}


def as_kept(answer: Any) -> Any:
    """An answer in the form it has from a file."""
    blob = bytearray()
    try:
        return unpacked(packed(answer, blob), bytes(blob))
    except Exception as error:  # not one that a test may take for PyTorch's
        raise AssertionError(f"the answer cannot be kept: {error!r}") from error


def comparable(value: Any) -> Any:
    """An answer as `first_difference` takes it."""
    if isinstance(value, Peer):
        return "tensor", value.dtype, value.requires_grad, value.numpy()
    if isinstance(value, np.ndarray):
        return "array", value.dtype.name, False, value
    if isinstance(value, (list, tuple)):
        return [comparable(v) for v in value]
    if isinstance(value, dict):
        return {str(k): comparable(v) for k, v in value.items()}
    if isinstance(value, BaseException):
        return {"raised": type(value).__name__, "message": str(value)}
    return value.__name__ if isinstance(value, type) else value


def constant(file: str, test: str) -> Any:
    """The first kept answer of a test, for what is asked as tests are collected."""
    book = Book(file)
    return unpacked(book.kept[test][0][1], book.blob)


# -- files --------------------------------------------------------------------------------------------------


class Book:
    """The answers of one test file: those that were kept, and those that this run gave."""

    def __init__(self, name: str) -> None:
        self.path = FOLDER / f"{name}.npz"
        self.kept: dict[str, Any] = {}
        self.given: dict[str, Any] = {}
        self.blob, self.more = b"", bytearray()
        if self.path.exists():
            with np.load(self.path, allow_pickle=False) as file:
                self.kept, self.blob = json.loads(file["answers"].tobytes()), file["values"].tobytes()

    def write(self, keep: bool) -> None:
        """Puts what this run gave in the place of what was kept. `keep`: not all of the file's tests ran."""
        for test, answers in self.kept.items() if keep else ():
            again = [[digest, packed(unpacked(a, self.blob), self.more)] for digest, a in answers]
            self.given.setdefault(test, again)
        text = json.dumps(self.given, separators=(",", ":"), sort_keys=True).encode()
        FOLDER.mkdir(exist_ok=True)
        blob = bytes(self.more)
        np.savez_compressed(
            self.path, answers=np.frombuffer(text, np.uint8), values=np.frombuffer(blob, np.uint8)
        )


class Answers:
    """What a test asks. `live`: PyTorch is there; `write`: what it says is to be kept; `more`: inputs may be
    others than those kept (another seed, the long form of a sweep).
    """

    def __init__(self, book: Book, test: str, live: bool, write: bool, more: bool) -> None:
        self.book, self.test, self.live, self.write, self.more = book, test, live, write, more
        self.count = itertools.count()

    def __call__(self, inputs: Any, call: Callable[[], Any], factor: float = 4.0) -> Any:
        """What `call` gives, with tensors as `Peer`; what it raises is raised. `factor`: how many times the
        rounding of a dtype PyTorch's answers may differ between machines.
        """
        number, digest = next(self.count), hash_of(inputs)
        live = self.ask(call) if self.live else NOWHERE
        if self.write:
            self.book.given.setdefault(self.test, []).append([digest, packed(live, self.book.more)])
        kept = NOWHERE if self.write else self.look_up(number, digest)
        if live is not NOWHERE and kept is not NOWHERE:
            found = first_difference(comparable(kept), comparable(live), False, "answer", factor)
            assert found is None, f"PyTorch answers otherwise than kept: {found}; {self.command}"
        answer = kept if live is NOWHERE else live
        if isinstance(answer, dict) and list(answer) == ["raises"]:
            raise answer["raises"]
        return answer

    def both(self, run: Callable[..., Any], *inputs: Any, factor: float = 4.0) -> tuple[Any, Any]:
        """What `run(library, *inputs)` gives, of kiln and of PyTorch, both in the form answers have."""
        from backend import kiln, torch

        ours = as_kept(run(kiln, *inputs))
        return ours, self([run, *inputs], lambda: run(torch, *inputs), factor)

    @property
    def command(self) -> str:
        found = next(FOLDER.parent.rglob(f"{self.book.path.stem}.py"), None)
        where = found.relative_to(FOLDER.parent) if found else f"{self.book.path.stem}.py"
        return COMMAND.format(file=f"tests/{where}")

    def ask(self, call: Callable[[], Any]) -> Any:
        """What `call` gives or raises, in the form it has from a file. PyTorch's compiler turns off what its
        distributions ask of their parameters: here it is on, whatever ran before.
        """
        if distributions := sys.modules.get("torch.distributions"):
            distributions.Distribution.set_default_validate_args(True)
        try:
            answer = call()
        except Exception as error:
            answer = {"raises": error}
        return as_kept(answer)

    def look_up(self, number: int, digest: str) -> Any:
        """The kept answer. AssertionError if there is none for these inputs, unless they may be others."""
        import pytest

        of_test = self.book.kept.get(self.test, [])
        found = of_test[number] if number < len(of_test) else None
        if found is not None and found[0] == digest:
            return unpacked(found[1], self.book.blob)
        if self.more:
            return NOWHERE if self.live else pytest.skip("PyTorch, the tests' peer, is not installed")
        why = "is for other inputs" if found else "is missing"
        raise AssertionError(f"answer {number} of PyTorch in {self.test} {why}: {self.command}")
