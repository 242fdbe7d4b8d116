"""The table of dynamic programs: kiln in each of its ways and PyTorch in turn, in one process.

    python bench/dynamic.py                     every row, on one thread and on two
    python bench/dynamic.py --list              names of the rows
    python bench/dynamic.py --only trees beam   rows whose name contains one of these
    python bench/dynamic.py --threads 1         on one thread only

A line is one way of running a row's program: its time per unit of work, and how many times as fast it is as
the lines it is measured by, as a ratio of medians and, in brackets, of minima. All lines of a row must reach
the same number. A way that this kiln has not says so. The exit code is 0: a benchmark never gates a test run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # PyTorch's threads spin on the core that kiln needs next
sys.path.append(str(Path(__file__).parent.parent))  # behind the installed packages, as in run.py

import numpy as np

from bench import structures
from bench.measure import Times, Work, interleaved, most_memory
from bench.structures import Program, missing
from bench.workloads import normal
from kiln.testing.backend import Framework, load, peer

Make = Callable[[Any], Program]


class Way(NamedTuple):
    """One way of running a row's program: in which framework, and what of kiln it needs."""

    name: str
    make: Make
    torch: bool = False
    needs: tuple[str, ...] = ()


class Row(NamedTuple):
    """Ways of one program, what its unit is, and by which ways the others are measured: `goals` are
    sentences.
    """

    name: str
    unit: str
    ways: tuple[Way, ...]
    against: tuple[str, ...]
    goal: str
    show: Callable[[Row, Frameworks], None] | None = None


class Frameworks(NamedTuple):
    """Both, and the seconds that a row's samples may take."""

    kiln: Framework
    torch: Framework | None
    seconds: float


def statement(text: str, **names: Callable[[Any], Any]) -> Make:
    """A statement of a few microseconds over names that are made for a framework: a step runs it a hundred
    times.
    """

    def make(framework: Any) -> Program:
        scope: dict[str, Any] = {name: value(framework) for name, value in names.items()}
        exec(f"def step():\n    for _ in range(100):\n        {text}\n    return 0.0", scope)
        return Program(scope["step"], 100)

    return make


def _matrix(*shape: int, grad: bool = True) -> Callable[[Any], Any]:
    return lambda framework: normal(framework, *shape, grad=grad)


def linear_rows(rows: int) -> Row:
    """Few rows times a weight as layers keep it, beside a product with the weight transposed in memory."""
    x = _matrix(rows, 300, grad=False)
    names = {"linear": lambda f: f.nn.functional.linear, "x": x, "w": _matrix(750, 300, grad=False)}
    linear = statement("linear(x, w)", **names)
    product = statement("x @ w", x=x, w=_matrix(300, 750, grad=False))
    ways = (
        Way("kiln linear", linear),
        Way("kiln transposed", product),
        Way("PyTorch linear", linear, torch=True),
        Way("PyTorch transposed", product, torch=True),
    )
    against = ("kiln transposed", "PyTorch linear")
    return Row(f"linear of {rows} rows 300 x 750", "call", ways, against, "1.0x of kiln transposed")


def both(make: Make) -> tuple[Way, Way]:
    """A program in kiln and in PyTorch."""
    return Way("kiln", make), Way("PyTorch", make, torch=True)


def show_growth(row: Row, frameworks: Frameworks) -> None:
    """How much longer eight times the steps take."""
    short, long = structures.over_slices(256), structures.over_slices(2048)
    for title, framework in (("kiln", frameworks.kiln), ("PyTorch", frameworks.torch)):
        if framework is None:
            continue
        works = [Work("step()", {"step": make(framework).step}) for make in (short, long)]
        few, many = interleaved(works, frameworks.seconds, 3)
        each = f"{duration(few.median / 256)} a step, {duration(many.median / 2048)} of 8 times as many"
        line(title, each, f"{many.median / few.median:.1f}x the time ({many.minimum / few.minimum:.1f}x)")


def show_memory(row: Row, frameworks: Frameworks) -> None:
    """The most that a training step's tensors take, beyond those before it."""
    taken: dict[str, int] = {}
    for way in row.ways:
        framework = frameworks.torch if way.torch else frameworks.kiln
        if framework is None:
            continue
        if lacking := missing(framework, *way.needs):
            line(way.name, lacking)
            continue
        step = way.make(framework).step
        step(), step()
        taken[way.name] = most_memory(framework, step)
        share = f"{taken[way.name] / taken['PyTorch']:.2f}x of PyTorch" if "PyTorch" in taken else ""
        line(way.name, f"{taken[way.name] / 1e6:.1f} MB", share)


def rows() -> list[Row]:
    """The table."""
    s = structures
    trees, hand = s.trees_recursive, s.trees_by_hand
    loop, letters = s.char_lstm("loop"), s.char_lstm
    table = [
        Row("trees, one at a time", "tree", (
            Way("kiln", trees(1)),
            Way("kiln, pure cells", trees(1, pure=True), needs=("pure",)),
            Way("kiln, batching", trees(1, batching=True), needs=("batching",)),
            Way("PyTorch", trees(1), torch=True),
        ), ("PyTorch",), "kiln 3.5x"),
        Row("trees, 25 together", "tree", (
            Way("kiln", trees(25)),
            Way("kiln, pure cells", trees(25, pure=True), needs=("pure",)),
            Way("kiln, batching", trees(25, batching=True), needs=("batching",)),
            Way("kiln, pure, batching", trees(25, True, True), needs=("pure", "batching")),
            Way("kiln by hand", hand(25)),
            Way("PyTorch", trees(25), torch=True),
            Way("PyTorch by hand", hand(25), torch=True),
        ), ("PyTorch", "PyTorch by hand"), "pure 5x; by hand: batching 0.9x, both 1.4x"),
        Row("character LSTM", "letter", (
            Way("kiln loop", loop),
            Way("kiln loop, pure cell", letters("pure"), needs=("pure",)),
            Way("kiln nn.LSTM", letters("layer")),
            Way("PyTorch loop", loop, torch=True),
            Way("PyTorch nn.LSTM", letters("layer"), torch=True),
        ), ("PyTorch loop", "PyTorch nn.LSTM"), "loop 3.3x of loop; pure 1.0x of nn.LSTM"),
        Row("a loop over x[t], 256 and 2048 steps", "step", (), (), "12x the time", show_growth),
        *(linear_rows(count) for count in (2, 4, 8)),
        Row("chunk(5) with gradient", "call", both(statement("x.chunk(5, 1)", x=_matrix(1, 750))),
            ("PyTorch",), "1 us"),
        Row("cat of two with gradient", "call", both(
            statement("cat((x, y), 1)", cat=lambda f: f.cat, x=_matrix(1, 150), y=_matrix(1, 150))
        ), ("PyTorch",), "1 us"),
    ]  # fmt: skip
    for title, make, goal in (
        ("REINFORCE of 16 environments, hidden 64", lambda mapped: s.reinforce(64, mapped), "map 1.5x"),
        ("REINFORCE of 16 environments, hidden 1024", lambda mapped: s.reinforce(1024, mapped), "map 4x"),
        ("beam search of 64 sentences", s.beam_search, "map 3x"),
        ("64 growing graphs", s.growing_graphs, "map 3x"),
    ):
        unit = "push" if "REINFORCE" in title else title.split()[-1].rstrip("s")
        ways = (
            Way("kiln", make(False)),
            Way("kiln, map", make(True), needs=("map",)),
            Way("PyTorch", make(False), torch=True),
        )
        table.append(Row(title, unit, ways, ("kiln", "PyTorch"), goal))
    ways = (Way("PyTorch", loop, torch=True), Way("kiln", loop))
    ways += (Way("kiln, pure cell", letters("pure"), needs=("pure",)),)
    table.append(Row("memory of the character LSTM's step", "", ways, (), "1.0x", show_memory))
    return table


def duration(seconds: float) -> str:
    """A time with three digits in the unit that suits it."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def line(way: str, *cells: str) -> None:
    """Prints a way's line at once, so that a long table can be watched."""
    print("    " + "  ".join(f"{cell:<24}" for cell in (way, *cells)).rstrip(), flush=True)


def show_times(row: Row, frameworks: Frameworks) -> None:
    """Runs all of a row's ways in turn, and prints what each took."""
    chosen: list[Way] = []
    programs: list[Program] = []
    first: list[float] = []
    for way in row.ways:
        framework = frameworks.torch if way.torch else frameworks.kiln
        if framework is None:
            continue
        if lacking := missing(framework, *way.needs):
            line(way.name, lacking)
            continue
        try:
            program = way.make(framework)
            first.append(program.step())
        except Exception as error:
            line(way.name, f"n/a: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
            continue
        chosen.append(way), programs.append(program)
    times = dict(
        zip(
            (way.name for way in chosen),
            interleaved([Work("step()", {"step": p.step}) for p in programs], frameworks.seconds, 5),
        )
    )
    for way, program, value in zip(chosen, programs, first):
        took = times[way.name]
        ratios = [_ratio(times, took, name) for name in row.against if name in times and name != way.name]
        wrong = [] if np.allclose(value, first[0], rtol=1e-3) else [f"WRONG: {value}, not {first[0]}"]
        each, rate = duration(took.median / program.units), program.units / took.median
        line(way.name, f"{each} a {row.unit}, {rate:,.0f}/s", *ratios, *wrong)


def _ratio(times: dict[str, Times], took: Times, name: str) -> str:
    other = times[name]
    return f"{other.median / took.median:.2f}x ({other.minimum / took.minimum:.2f}x) {name}"


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="the table of dynamic programs")
    parser.add_argument("--only", nargs="*", default=[], help="rows whose name contains one of these")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2], help="numbers of threads")
    parser.add_argument("--seconds", type=float, default=3.0, help="about what a row's samples take")
    parser.add_argument("--list", action="store_true", help="names of the rows")
    options = parser.parse_args(argv)
    chosen = [row for row in rows() if not options.only or any(part in row.name for part in options.only)]
    if options.list:
        print("\n".join(row.name for row in chosen))
        return 0
    with tempfile.TemporaryDirectory(prefix="kiln-bench-cache-") as cache:
        os.environ["KILN_CACHE_DIR"] = cache  # the user's own is left alone
        frameworks = Frameworks(load("kiln"), peer(), options.seconds)
        for row in chosen:
            for threads in options.threads:
                for framework in (frameworks.kiln, frameworks.torch):
                    if framework is not None:
                        framework.set_num_threads(threads)
                print(f"{row.name}, {threads} thread{'s' * (threads > 1)}; goal: {row.goal}", flush=True)
                (row.show or show_times)(row, frameworks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
