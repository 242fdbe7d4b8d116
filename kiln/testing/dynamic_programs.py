"""Random programs over trees, sequences and values that are read: every way of running gives the same bits.

    python -m kiln.testing.dynamic_programs --count 1000 --seed 0

A text of dynamic_writer is one function of an item, called for many. It runs eagerly, recorded, with pure
cells, under `batching`, as `kiln.compile(..., batch=True)`, and its items by `batching.map`, and in pairs of
these: results, logs, what is printed, exceptions and gradients are those of the eager run, bit for bit. Then
the same text runs on PyTorch, and agrees within rounding.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from kiln.testing.backend import Framework, load, peer
from kiln.testing.compare import first_difference, freeze
from kiln.testing.dynamic_writer import DynamicProgram, write_dynamic_program
from kiln.testing.random_programs import (
    Call,
    Failure,
    Seen,
    check_peer,
    compiled_text,
    compiler_warnings,
    is_refusal,
    shrink,
    tell,
)

# Of gradients of gradients the sums are those of derivatives, which a cell or launch has as one graph and the
# program without it call by call: within so many times the dtype's tolerance.
GRADIENT_FACTOR = 50.0

# sizes: items, C, D; the first two alike but for values and structure, then what a stale program gets wrong
CALLS = (
    Call(1, 0.75, 0.75, (4, 4, 3)),
    Call(2, 0.75, 0.5, (5, 4, 3)),
    Call(3, -0.5, 1.5, (3, 2, 3)),
)


class Way(NamedTuple):
    """How a text runs: what is pure, batched, mapped, and what `kiln.compile` makes of the whole."""

    name: str
    pure: bool = False
    block: bool = False
    each: bool = False
    limit: int | None = None
    whole: str = ""

    @property
    def batches(self) -> bool:
        """Whether calls run together."""
        return self.block or self.each or self.whole == "batch"


EAGER = Way("eager")
WAYS = (
    Way("pure", pure=True),
    Way("recorded", whole="recorded"),
    Way("recorded, pure", pure=True, whole="recorded"),
    Way("batched", block=True),
    Way("batched, pure", pure=True, block=True),
    Way("compiled with batch=True", whole="batch"),
    Way("mapped", each=True),
    Way("mapped two at a time, pure", pure=True, each=True, limit=2),
    Way("mapped in a block", block=True, each=True),
    Way("recorded, batched and mapped", block=True, each=True, whole="recorded"),
)


class Run:
    """The argument `run` of a text: what its cells, blocks and loops over items are."""

    def __init__(self, framework: Framework, way: Way, exact: bool) -> None:
        self.framework, self.way, self.exact = framework, way, exact
        self._kept: dict[str, Any] = {}

    def cell(self, fn: Callable[..., Any]) -> Any:
        """A function that is pure, of the tensors it finds."""
        return self.framework.compile(fn, pure=True) if self.way.pure else fn

    def kept(self, fn: Callable[..., Any]) -> Any:
        """The same, once for all calls of the program."""
        if fn.__name__ not in self._kept:
            self._kept[fn.__name__] = self.cell(fn)
        return self._kept[fn.__name__]

    def block(self) -> Any:
        """A block in which calls run together, or none."""
        return self.framework.batching() if self.way.block else contextlib.nullcontext()

    def each(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """A loop over items, or items that take turns."""
        if self.way.each:
            mapped: list[Any] = self.framework.batching.map(fn, items, limit=self.way.limit)
            return mapped
        return [fn(item) for item in items]

    def look(self) -> tuple[Any, ...]:
        """An item's log, what prints, its own gradients, and what keeps gradients."""
        log: list[Any] = []

        def say(value: Any) -> None:
            if self.exact:  # a launch's result has another node than its row alone
                log.append(str(value.detach()))
                print(value.detach())

        return log, say, [], []


def structure(rng: np.random.Generator, leaves: int) -> Any:
    """A tree of numbers below 7; a node has two or three children."""
    if leaves == 1:
        return int(rng.integers(7))
    cuts = sorted({int(x) for x in rng.integers(1, leaves, rng.integers(1, 3))})
    sizes = np.diff([0, *cuts, leaves])
    return [structure(rng, int(n)) for n in sizes]


def arguments(framework: Framework, call: Call, noise: int = 0) -> tuple[list[Any], list[Any]]:
    """The shared weights w, v, u, c, e and the items: (a, b, z, i, tree, n) each."""
    rng = np.random.default_rng(call.seed)
    moves = np.random.default_rng(noise)
    count, columns, depth = call.sizes

    def array(*shape: int) -> Any:
        x = np.asarray(rng.integers(-6, 7, shape) / 4, np.float32)
        if noise:
            x = np.asarray(x * (1 + 1e-6 * moves.choice([-1, 1], shape)), np.float32)
        return framework.from_numpy(x).clone()

    shared = [array(columns, depth), array(depth), array(columns, columns), array(columns), array(7, columns)]
    items = []
    for _ in range(count):
        rows = int(rng.integers(1, 4))
        i = framework.from_numpy(rng.integers(0, columns, rows)).clone()
        tree = structure(rng, int(rng.integers(1, 6)))
        items.append((array(rows, columns), array(rows, columns), array(), i, tree, int(rng.integers(7))))
    for leaf in (*shared, *(item[0] for item in items)):
        leaf.requires_grad_()
    return shared, items


def observe(
    way: Way,
    kept: dict[Framework, Any],
    fn: Callable[..., Any],
    framework: Framework,
    call: Call,
    exact: bool,
    noise: int = 0,
) -> Seen:
    """Runs a text in one way on fresh inputs, and freezes what its caller can see. `kept`: its run, by
    framework, with the cells and the compiled function that calls share.
    """
    if framework not in kept:
        options: dict[str, Any] = {"batch": True} if way.whole == "batch" else {}
        whole = framework.compile(fn, **options) if way.whole else fn
        kept[framework] = whole, Run(framework, way, exact)
    whole, run = kept[framework]
    shared, items = arguments(framework, call, noise)
    framework.manual_seed(call.seed)
    log: list[Any] = []
    grads: list[Any] = []
    message, printed = "", io.StringIO()
    results: Any
    total: Any = None
    try:
        with np.errstate(all="ignore"), contextlib.redirect_stdout(printed):
            results, total = whole(
                framework, framework.nn.functional, *shared, items, call.s, call.t, run, log, grads
            )
    except Exception as error:
        results, message = {"raised": type(error).__name__}, str(error)
    own: list[Any] = []
    if isinstance(results, list):
        own = [[r[2], [x.grad for x in r[3]]] for r in results]
        results = [r[:2] for r in results]
    said = [*own, *grads, message]
    values = {
        "result": freeze([results, total]),
        "printed": printed.getvalue(),
        "log": freeze(log),
        "inputs": freeze([shared, [item[:4] for item in items]]),
        "gradients": freeze([own, grads, [x.grad for x in shared], [item[0].grad for item in items]]),
    }
    refusals = [str(x) for x in said if isinstance(x, (str, Exception)) and is_refusal(str(x))]
    return Seen(values, message, refusals)


def differs(expected: Seen, got: Seen, batches: bool, exact: bool = True) -> str | None:
    """Where two runs of kiln's differ, or None. `exact`: gradients too have the same bits."""
    raised = not isinstance(expected.values["result"][0], list)
    for name, value in expected.values.items():
        if raised and name not in ("result", "inputs"):
            continue  # after an exception of one item, the others go on where they take turns
        if name == "gradients" and batches and got.refusals and not exact:
            continue  # a launch's derivative that is differentiated again reads the rows that nobody uses too
        other, bits = got.values[name], exact or name != "gradients"
        if not bits:
            value, other = without_zeros(value), without_zeros(other)
        found = first_difference(value, other, bits, name, 1.0 if bits else GRADIENT_FACTOR)
        if found is not None:
            return found
    return None


def without_zeros(value: Any) -> Any:
    """Frozen gradients, None where there is nothing but zeros: a launch's derivative, differentiated again,
    gives them to rows that nobody uses.
    """
    if isinstance(value, list):
        return [without_zeros(x) for x in value]
    return None if isinstance(value, tuple) and not value[3].any() else value


def check_ways(
    program: DynamicProgram,
    framework: Framework,
    ways: tuple[Way, ...] = WAYS,
    calls: tuple[Call, ...] = CALLS,
) -> Failure | None:
    """Every way against the eager run; where random numbers are drawn, items of `map` against those of one
    at a time, as their numbers are their own.
    """
    fn = compiled_text(program)
    one_by_one = Way("mapped one at a time", each=True, limit=1)
    expected: dict[Way, list[Seen]] = {}
    twice = "create_graph=True" in program.source
    for way in ways:
        base = one_by_one if program.draws and way.each else EAGER
        if base not in expected:
            kept: dict[Framework, Any] = {}
            expected[base] = [observe(base, kept, fn, framework, call, True) for call in calls]
        kept = {}
        for number, (call, want) in enumerate(zip(calls, expected[base], strict=True)):
            with compiler_warnings() as warnings:
                got = observe(way, kept, fn, framework, call, True)
            found = warnings[0] if warnings else differs(want, got, way.batches, not twice)
            if found is not None:
                said = "".join(f"\n  {m}" for m in (want.message, got.message) if m)
                return Failure(
                    way.name, program, f"call {number + 1} {call}: {found} ({base.name} first){said}"
                )
    return None


def check(program: DynamicProgram, framework: Framework, other: Framework | None) -> Failure | None:
    """The first promise that `program` breaks, or None."""
    failure = check_ways(program, framework)
    if failure is None and other is not None:
        failure = check_peer(program, framework, other, partial(observe, EAGER, {}), CALLS)
    return failure


def failures(
    count: int, seed: int, framework: Framework, other: Framework | None, statements: int | None = None
) -> Iterator[Failure | None]:
    """Check `count` programs from `seed` on, yielding a shrunk failure or None for each."""

    for number in range(seed, seed + count):
        failure = check(write_dynamic_program(number, statements), framework, other)
        yield failure and shrink(failure, framework, other, check=check)


def main(argv: list[str] | None = None) -> int:
    """The command line; the exit code is 1 if a program failed."""
    parser = argparse.ArgumentParser(prog="python -m kiln.testing.dynamic_programs", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first; the others follow")
    parser.add_argument("--statements", type=int, default=None, help="blocks of an item (default: 3 to 10)")
    parser.add_argument("--no-peer", action="store_true", help="do not compare with PyTorch")
    parser.add_argument("--show", action="store_true", help="print the programs instead of running them")
    options = parser.parse_args(argv)
    if options.show:
        for number in range(options.seed, options.seed + options.count):
            print(f"# seed {number}\n{write_dynamic_program(number, options.statements).source}")
        return 0
    other = None if options.no_peer else peer()
    runs = failures(options.count, options.seed, load("kiln"), other, options.statements)
    return tell(runs, options.seed, 20)


if __name__ == "__main__":
    sys.exit(main())
