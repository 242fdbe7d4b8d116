"""Program files that were changed at random: each is refused by a sentence, or read and run without harm.

    python -m kiln.testing.program_fuzz --count 10000 --seed 1

A file is one of a few small programs, with bytes of it changed, or the texts of its metadata (the graph's
lines, the signature's entries) edited so that the file stays whole. What is read is run on inputs as the file
declares them. Anything but a result or one of `ERRORS` is a finding, and so is what takes seconds.
"""

from __future__ import annotations

import _thread
import argparse
import io
import json
import os
import random
import re
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import kiln
from kiln import nn
from kiln.export.files import load, save
from kiln.export.program import export
from kiln.graph.text import text
from kiln.testing.file_fuzz import changed
from kiln.tracing.dims import Dim

ERRORS = (ValueError, RuntimeError, TypeError, IndexError, NotImplementedError, OverflowError)
SECONDS = 5.0
_WORDS = (
    "%0 %1 %99 0 1 -1 2 s0 s1 s99 4611686018427387904 float32 int64 bool linear matmul add slice reshape "
    "embedding as_strided write input number none true ( ) [ ] , ; : = check update return nan detach "
    "cond while_loop scan counted called @0 @1 @9"
).split()


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.norm = nn.BatchNorm1d(4)
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Any, index: Any) -> Any:
        y = self.norm(x + self.embedding(index))
        values, where = y.max(1)
        part = kiln.zeros(3, 4)
        part[1:] = y[:2]
        return {"logits": self.linear(y).softmax(-1), "rest": (values, where)}, part


class ControlFlow(nn.Module):
    """cond, while_loop, scan and map over one weight, a cond inside a scan."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(kiln.rand(4))

    def forward(self, x: Any) -> Any:
        def step(total: Any, row: Any) -> Any:
            total = kiln.cond(row.sum() > 1, lambda t: t + row * self.weight, lambda t: t - row, (total,))
            return total, total.sum()

        count, y = kiln.while_loop(
            lambda k, y: k < 3, lambda k, y: (k + 1, y * self.weight), (kiln.zeros((), dtype=kiln.int64), x)
        )
        last, sums = kiln.graph.scan(step, kiln.zeros(4), y)
        return count, last, sums, kiln.graph.map(lambda row: row[1:] - row[:-1], x)


def seeds() -> list[bytes]:
    """Files of small programs: one with sizes that vary, one with state, drawn numbers and containers, two
    with control flow.
    """
    net = _Net()
    index = kiln.tensor([0, 4, 2])
    programs = [
        export(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), (kiln.rand(2, 4),)),
        export(lambda x, y: (x.reshape(-1) * 2).sum() + y.sum(0), (kiln.rand(3, 2), kiln.rand(7, 2)),
               dynamic_shapes=({0: Dim("n", min=2, max=64)}, {0: 2 * Dim("n") + 1})),
        export(net, (kiln.rand(3, 4), index)),
        export(ControlFlow(), (kiln.rand(3, 4),)),
        export(lambda x: kiln.cond(x.sum() > 0, lambda x: x * 2, lambda x: x.flip(0), (x,)),
               (kiln.rand(3, 2),), dynamic_shapes=({0: Dim("n", min=2, max=64)},)),
    ]  # fmt: skip
    files = []
    for program in programs:
        file = io.BytesIO()
        save(program, file)
        files.append(file.getvalue())
    return files


def edited(raw: bytes, rng: random.Random) -> bytes:
    """The file with a text of its metadata changed; sizes and offsets stay right."""
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    texts = header["__metadata__"]
    for _ in range(rng.choice((1, 1, 2, 4))):
        if rng.random() < 0.5:
            texts["kiln.graph"] = _edited_graph(texts["kiln.graph"], rng)
        else:
            held = json.loads(texts["kiln.signature"])
            texts["kiln.signature"] = json.dumps(_edited_tree(held, rng))
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + raw[8 + length :]


def _edited_graph(source: str, rng: random.Random) -> str:
    lines = source.split("\n")
    at = rng.randrange(len(lines))
    move = rng.random()
    if move < 0.15:
        del lines[at]
    elif move < 0.3:
        lines.insert(rng.randrange(len(lines) + 1), lines[at])
    else:
        tokens = re.findall(r"%?\w+|\S|\s", lines[at]) or [""]
        k = rng.randrange(len(tokens))
        others = re.findall(r"%?\w+", source)
        tokens[k] = rng.choice((*_WORDS, rng.choice(others), ""))
        lines[at] = "".join(tokens)
    return "\n".join(lines)


def _edited_tree(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.95:
        key = rng.choice(list(value))
        return {**value, key: _edited_tree(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        k = rng.randrange(len(value))
        return [*value[:k], _edited_tree(value[k], rng), *value[k + 1 :]]
    if isinstance(value, list) and rng.random() < 0.5:
        return [*value, *value[:1]]
    return rng.choice(
        (0, 1, -1, 2, 7, 1 << 61, None, True, False, "", "x", "t", "state", "input", [], {}, "s0")
    )


def run(program: Any) -> None:
    """Runs a program that was read, on inputs of the sizes it declares."""
    from kiln.export.verification import example_leaves

    found = program._captured
    sizes = {dim.name: dim.min for dim in found.dims.values()}
    if any(n > 64 for n in sizes.values()) or any(_large(x.shape) for x in found.inputs):
        return
    program.run(example_leaves(found, sizes))


def _large(shape: tuple[Any, ...]) -> bool:
    total = 1
    for n in shape:
        total *= max(n, 1) if isinstance(n, int) else 64
    return total > 1 << 20


class _Endless(Exception):
    """A loop that went on and on."""


@contextmanager
def _ending() -> Iterator[None]:
    """Stops what runs for long as Ctrl-C does."""
    over = threading.Event()
    stopped: list[bool] = []

    def stop() -> None:
        while not over.wait(SECONDS / 10):
            stopped.append(True)
            _thread.interrupt_main()

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    try:
        try:
            yield
        finally:
            over.set()
            thread.join()
    except KeyboardInterrupt:
        if not stopped:
            raise
        raise _Endless from None


def check(raw: bytes) -> str:
    """ "" if a file does no harm, else what it did."""
    began = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = load(io.BytesIO(raw))
            loops = "while_loop" in text(program.graph)
            with _ending() if loops else nullcontext():
                run(program)
    except _Endless:
        pass
    except ERRORS as error:
        if not str(error):
            return f"{type(error).__name__} without a word"
    except MemoryError:
        pass
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    took = time.monotonic() - began
    return f"took {took:.1f} s" if took > SECONDS else ""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ["KILN_CACHE_LIMIT"] = "0"  # nobody will look for these again
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
    files = seeds()
    found = 0
    for number in range(given.count):
        rng = random.Random(f"{given.seed}/{number}")
        raw = rng.choice(files)
        raw = edited(raw, rng) if rng.random() < 0.8 else changed(raw, rng)
        if problem := check(raw):
            found += 1
            print(f"--seed {given.seed}, number {number}: {problem}")
    print(f"{given.count} files, {found} findings (--seed {given.seed})")
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
