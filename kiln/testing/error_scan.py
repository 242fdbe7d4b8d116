"""A scan of what wrong calls say: of every public function, method, layer and optimizer.

    python -m kiln.testing.error_scan [--seed 0] [--dtypes float32,int64] [add nn.Linear ...]

Two rules for each call (error_cases.py). What it raises is never of kiln's inside: its type is one that a
program expects, or was raised on purpose; its text names what was called, and its traceback holds no line of
kiln's. And where PyTorch is installed the same call of PyTorch does the same: both go on or both raise, an
exception that the same `except` catches, and warnings of the same categories; and the text of an error or
warning holds the first words of PyTorch's, those before its first value, since programs match them. What
differs on purpose stands in error_differences.py with its reason; one of those that is met no more is
reported too. Calls of equal differences are one line; exit status 1 if there is any.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

import kiln
from kiln.errors import entries, is_own
from kiln.table import registry
from kiln.testing.compare import dtype_name
from kiln.testing.error_cases import ErrorCall, calls, kiln_object, names
from kiln.testing.error_classes import Made
from kiln.testing.error_differences import KNOWN, UNNAMED, Differences
from kiln.testing.error_words import WORDS

# PyTorch writes or reads what is not its own there
CRASHES = re.compile(
    r".*(segment_reduce|as_strided_scatter|pool\dd.* out |: out (last )?(expanded|overlapping))"
)
DTYPES = "float32,int64,bool"
EXPECTED = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, MemoryError, ImportError,
            kiln.linalg.LinAlgError, OverflowError)  # fmt: skip
# types that PyTorch raises too, where it means them: what is told in a user's terms is
_PURPOSE = (AssertionError, AttributeError, KeyError)
# what Python says of a line of kiln's that was given something else than it was written for
_INSIDE = re.compile(
    r"object has no attribute|no attribute '|has no len|not subscriptable|object is not (iterable|callable)"
    r"|unsupported operand|not supported between|to unpack|invalid literal|bad operand|must be real number"
    r"|<locals>|kiln\.(ops|codegen|graph)|llvm|unhashable|can't multiply sequence"
    r"|cannot be interpreted as an integer|object cannot be converted|(Attribute|Key|Type)Error: "
    r"|ufunc|numpy\.dtype|NULL without"
    r"|requires a code object|format character|string index|not all arguments converted|\bassert\b"
)


class Outcome(NamedTuple):
    """What a call gave: an exception or none, and what it warned of, the beginnings of texts by category."""

    error: Exception | None
    warned: dict[str, str]


class Found(NamedTuple):
    """One thing that is not as it should be: of which call, of what kind, and what."""

    call: ErrorCall
    what: str

    @property
    def key(self) -> tuple[str, str]:
        """What makes it distinct: numbers in a text do not."""
        return self.call.path, re.sub(r"[(\[{'].*|-?\d[\d.e+-]*", "", self.what)


# ---- one call on a library ----


def run(library: Any, call: ErrorCall) -> Outcome | None:
    """The outcome of a call; None if the library has not what is called, or the arguments cannot be made."""
    try:
        function = kiln_object(call.path) if library is kiln else _at(library, call.path)
        convert = _itself if library is kiln else Converted(library)
        arguments = call.make()
        args, kwargs = convert(list(arguments.args)), convert(dict(arguments.kwargs))
        if call.first is not None:
            function = function(*convert(list(call.first.args)), **convert(dict(call.first.kwargs)))
    except Exception:
        return None
    library.manual_seed(0)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        error = _step(function, args, kwargs)
    warned = {w.category.__name__: str(w.message)[:160] for w in found if w.category is not ResourceWarning}
    return Outcome(error, warned)


def _step(function: Any, args: Any, kwargs: Any) -> Exception | None:
    try:
        function(*args, **kwargs)
    except Exception as error:
        return error
    return None


def _at(library: Any, path: str) -> Any:
    found = library
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _itself(value: Any) -> Any:
    """kiln's arguments are made of kiln's tensors already."""
    if isinstance(value, Made):
        return kiln_object(value.path)(*_itself(list(value.make())))
    if type(value) is list:
        return list(map(_itself, value))
    return {k: _itself(v) for k, v in value.items()} if type(value) is dict else value


class Converted:
    """Arguments with another library's tensors in place of kiln's, laid out alike in as many memories."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.flat: dict[tuple[int, str], Any] = {}

    def __call__(self, value: Any) -> Any:
        """A value of an argument, or a container of such."""
        if isinstance(value, Made):
            return _at(self.library, value.path)(*self(list(value.make())))
        if isinstance(value, kiln.Tensor):
            return self.tensor(value)
        if isinstance(value, kiln.Size):
            return self.library.Size(value)
        if type(value) in (list, tuple):
            return type(value)(map(self, value))
        if type(value) is dict:
            return {k: self(v) for k, v in value.items()}
        if isinstance(value, (kiln.dtype, kiln.layout, kiln.memory_format)):
            return getattr(self.library, str(value).rpartition(".")[2])
        if isinstance(value, kiln.Generator):
            return self.library.Generator().manual_seed(value.initial_seed())
        if isinstance(value, np.ndarray):
            return value.copy()
        return value

    def tensor(self, x: Any) -> Any:
        """The tensor's memory once, and a view of it: of a leaf, of what has history, or of neither."""
        if x.is_inference():
            with self.library.inference_mode():
                return self.of_numpy(x)
        if x.requires_grad and x._base is not None:
            base = self.of_numpy(x._base).requires_grad_()
            base = base if x._base.is_leaf else base * 1
            return base.as_strided(tuple(x.shape), x.stride(), x.storage_offset())
        memory = x.untyped_storage()
        key = memory.data_ptr(), str(x.dtype)
        if key not in self.flat or not memory.nbytes():
            size = memory.nbytes() // x.element_size()
            self.flat[key] = self.of_numpy(x.detach().as_strided((size,), (1,), 0))
        made = self.flat[key].as_strided(tuple(x.shape), x.stride(), x.storage_offset())
        return made.requires_grad_() if x.requires_grad else made

    def of_numpy(self, x: Any) -> Any:
        """A copy of the values."""
        if dtype_name(x.dtype) == "bfloat16":
            return self.library.tensor(x.detach().float().numpy()).bfloat16()
        return self.library.tensor(x.detach().numpy())


# ---- the two rules ----


def own_difference(call: ErrorCall, outcome: Outcome) -> str | None:
    """What an error of kiln's shows of its inside, or does not say."""
    error = outcome.error
    if error is None:
        return None
    text = f"{type(error).__name__}: {str(error)}"
    on_purpose = isinstance(error, _PURPOSE) and hasattr(error, "_without_name")
    if not (isinstance(error, EXPECTED) or on_purpose) or type(error) is RecursionError:
        return f"internal {text}"
    if _INSIDE.search(str(error)):
        return f"inside {text}"
    frames = entries(error.__traceback__)[1:]
    if any(is_own(entry.tb_frame) and "testing" not in entry.tb_frame.f_code.co_filename for entry in frames):
        return f"lines of kiln's in the traceback of {text}"
    if not (on_purpose or isinstance(error, ImportError)) and not _names(call, str(error)):
        return f"unnamed {text}"
    return None


def _names(call: ErrorCall, text: str) -> bool:
    """Whether a text says what was called: by the name that was used, the first of several names of one
    function, or, for a layer, its function's.
    """
    own = kiln_object(call.path)
    first = str(getattr(own, "__kiln_name__", None) or getattr(own, "__name__", "")).strip("_")
    functions = {name.rpartition(".")[2] for name in (*registry.FUNCTIONS, *registry.LAYERS)}
    if call.first is not None and any(len(name) > 2 and name in text for name in functions):
        return True  # a layer by the function that it calls
    first = first.rpartition(".")[2]
    return call.name.lower() in text.lower() or (first != "" and first.lower() in text.lower())


def peer_difference(mine: Outcome, theirs: Outcome) -> str | None:
    """How an outcome differs from PyTorch's; None where a caller that catches one catches the other."""
    a, b = mine.error, theirs.error
    if a is None and b is not None:
        return f"takes what PyTorch does not: {_shown(b)}"
    if a is not None and b is None:
        return f"refuses: {_shown(a)}"
    if a is not None and not (isinstance(a, _caught(b)) or isinstance(b, _caught(a))):
        return f"raises {_shown(a)}; PyTorch: {_shown(b)}"
    if a is None and mine.warned.keys() != theirs.warned.keys():
        return f"warns {mine.warned or 'not'}; PyTorch: {theirs.warned or 'not'}"
    return None


def words_difference(mine: Outcome, theirs: Outcome) -> str | None:
    """PyTorch's first words, where kiln's text of an error or of warnings does not hold them."""
    if mine.error is not None and theirs.error is not None:
        pairs = [(str(mine.error), str(theirs.error))]
    elif mine.error is None and theirs.error is None:
        pairs = [(mine.warned[kind], text) for kind, text in theirs.warned.items() if kind in mine.warned]
    else:
        return None
    for own, text in pairs:
        if (words := first_words(text)) not in own:
            return f"says {own.splitlines()[0][:160]!r}; PyTorch: {text[:160]!r} ({words!r})"
    return None


def first_words(text: str) -> str:
    """The words of a message before its first value: what a program that matches messages looks for.

    >>> first_words("softmax(): argument 'dim' must be int, not str")
    'argument'
    >>> first_words("torch.histogram(): bins must be > 0, but got -99 for dimension 0")
    'bins must be >'
    """
    line = (text.splitlines() or [""])[0].replace("`torch.", "`")
    line = re.sub(r"^(torch\.)?[\w.]+ ?(\(\):?|:) ", "", line)
    line = re.sub(r"^torch\.", "", line)
    return re.split(r"['\"\[({`]|-?\d|[.,:;](?=\s|[A-Z]|$)|\btorch\.", line)[0].strip()


def _caught(error: Any) -> Any:
    """The class that a program catches: a subclass that only one library has stands for the known one."""
    kinds = [c for c in type(error).__mro__ if c.__module__ == "builtins"]
    return kinds[0]


def _shown(error: Any) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"


# ---- the scan ----


class Scan:
    """The findings of many calls, and which of the known differences were met."""

    def __init__(self, seed: int, peer: bool) -> None:
        self.seed = seed
        self.torch = _torch() if peer else None
        self.count = self.compared = 0  # calls, and those that PyTorch was asked too
        self.met: Counter[tuple[str, str, str]] = Counter()

    def of(
        self, wanted: list[str], dtypes: list[str], every: int = 1, tell: Callable[[str], object] = str
    ) -> Iterator[Found]:
        """What is wrong with one of every so many calls of some names."""
        for name in wanted:
            tell(name)
            for dtype in dtypes:
                for call in calls(name, dtype, self.seed):
                    self.count += 1
                    if self.count % every == 0:
                        yield from self.one(call)

    def one(self, call: ErrorCall) -> Iterator[Found]:
        """What is wrong with one call."""
        mine = run(kiln, call)
        if mine is None:
            return
        what = own_difference(call, mine)
        if what is not None and not self._known(call, what, UNNAMED):
            yield Found(call, what)
        theirs = None if self.torch is None or CRASHES.match(call.label) else run(self.torch, call)
        if theirs is None:
            return
        self.compared += 1
        what = peer_difference(mine, theirs)
        if what is not None and not self._known(call, what, KNOWN):
            yield Found(call, what)
        what = words_difference(mine, theirs) if what is None else None
        if what is not None and not self._known(call, what, WORDS):
            yield Found(call, what)

    def _known(self, call: ErrorCall, what: str, listed: Differences) -> bool:
        for entry in listed:
            if re.match(entry[0], call.path) and re.search(entry[1], what, re.DOTALL):
                self.met[entry] += 1
                return True
        return False

    def unmet(self) -> list[str]:
        """The listed differences that no call showed."""
        listed = UNNAMED if self.torch is None else UNNAMED + KNOWN + WORDS
        return [f"{entry[0]}: {entry[1]}" for entry in listed if not self.met[entry]]


def _torch() -> Any:
    import importlib

    torch = importlib.import_module("torch")
    for part in ("nn.utils.prune", "utils.checkpoint", "optim.swa_utils"):  # which it does not import itself
        importlib.import_module(f"torch.{part}")
    torch.set_warn_always(True)
    torch.set_num_threads(1)
    return torch


def distinct(found: Iterator[Found], show: Callable[[str], None]) -> int:
    """Shows the first of equal findings; how many are distinct."""
    seen: Counter[tuple[str, str]] = Counter()
    for one in found:
        seen[one.key] += 1
        if seen[one.key] == 1:
            show(f"{one.call.label}: {one.what}")
    return len(seen)


def main() -> None:
    """The scan from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--dtypes", default=DTYPES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=1, help="of so many calls one")
    parser.add_argument("--part", default="0/1", help="k/n: the k-th of n parts of the names")
    parser.add_argument("--alone", action="store_true", help="without PyTorch")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    print(f"seed {options.seed}")
    scan = Scan(options.seed, not options.alone and find_spec("torch") is not None)
    wanted = options.names or names()[part::parts]
    found = scan.of(
        wanted, options.dtypes.split(","), options.every, lambda name: print(name, file=sys.stderr)
    )
    wrong = distinct(found, lambda line: print(line[:400], flush=True))
    if not options.names and parts == options.every == 1:
        unmet = scan.unmet()
        wrong += len(unmet)
        for line in unmet:
            print(f"no longer different: {line}")
    print(f"{scan.count} calls, {scan.compared} beside PyTorch, {wrong} findings")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
