"""Random programs: eager and recorded must agree in every bit, and with a peer within rounding.

    python -m kiln.testing.random_programs --count 1000 --seed 0

A program text (see program_writer) runs eagerly and recorded on equal fresh inputs: three times, then with
other numbers, then with other sizes. Everything a caller could see is compared: the result or the exception,
the log, the arguments, their gradients. Then the same text runs on PyTorch. A failure prints its seed, what
differed, and the shortest program that still fails.
"""

from __future__ import annotations

import argparse
import linecache
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from kiln.testing.backend import Framework, load, peer
from kiln.testing.compare import first_difference, freeze
from kiln.testing.gradient_writer import write_gradient_program
from kiln.testing.peer_noise import computing_otherwise
from kiln.testing.program_writer import Program, write_program


class Call(NamedTuple):
    """The arguments of one call: seed of the values, numbers s and t, sizes B, C, D."""

    seed: int
    s: float
    t: float
    sizes: tuple[int, int, int]


# the same structure three times (first sight, compiled, reused), then what a stale program would get wrong
CALLS = (
    Call(1, 0.75, 0.75, (4, 3, 5)),
    Call(2, 0.75, 0.75, (4, 3, 5)),
    Call(3, 0.75, 0.75, (4, 3, 5)),
    Call(4, 1.25, -0.5, (4, 3, 5)),
    Call(5, 0.5, 2.0, (7, 3, 5)),
    Call(6, 1.5, 1.5, (1, 3, 5)),
    Call(7, 0.25, 0.5, (3, 3, 3)),
)


class Seen(NamedTuple):
    """What one call left behind: frozen values, the message of its exception if it raised, and what was said
    where backward was refused because of what its graph no longer holds.
    """

    values: dict[str, Any]
    message: str
    refusals: list[str]


class Failure(NamedTuple):
    """A program that broke a promise: `kind` is "recorded" or "peer"."""

    kind: str
    program: Program
    detail: str

    def report(self) -> str:
        """The text a person needs: seed, difference, program."""
        return f"seed {self.program.seed} ({self.kind}): {self.detail}\n{self.program.source}"


def compiled_text(program: Program) -> Callable[..., Any]:
    """The program as a function whose lines tracebacks and explain() can show."""
    name = f"<program {program.seed}, {len(program.blocks)} blocks>"
    source = program.source
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space: dict[str, Any] = {}
    exec(compile(source, name, "exec"), space)
    fn: Callable[..., Any] = space["program"]
    return fn


def arguments(framework: Framework, call: Call, noise: int = 0) -> tuple[Any, ...]:
    """Fresh inputs a, b, w, v, z, i, n of a call; `noise` moves every float by a few units in the last
    place.
    """
    rng = np.random.default_rng(call.seed)
    rows, columns, depth = call.sizes
    shapes = ((rows, columns), (rows, columns), (columns, depth), (depth,), (), (rows, columns))
    # quarters: equal values, zeros and exact sums happen
    floats = [np.asarray(rng.integers(-10, 11, shape) / 4, dtype=np.float32) for shape in shapes]
    if noise:
        moves = np.random.default_rng(noise)
        floats = [np.asarray(x * (1 + 1e-6 * moves.choice([-1, 1], x.shape)), np.float32) for x in floats]
    # memory of their own: NumPy's is read by copies, and never written by a program
    a, b, w, v, z = (framework.from_numpy(x).clone() for x in floats[:5])
    for leaf in (a, w, v):
        leaf.requires_grad_()
    return a, b, w, v, z, framework.from_numpy(rng.integers(0, columns, rows)).clone(), floats[5]


def observe(fn: Callable[..., Any], framework: Framework, call: Call, exact: bool, noise: int = 0) -> Seen:
    """Run `fn` on fresh inputs and freeze everything its caller could see."""
    log: list[Any] = []
    inputs = arguments(framework, call, noise)
    framework.manual_seed(call.seed)
    message, refusals = "", list[str]()

    def say(value: Any) -> None:
        # the printed text is compared bit for bit only with ourselves
        log.append({"printed": str(value)} if exact else {"printed": value is None})

    def refused(error: Exception) -> None:
        log.append("no gradient")
        if is_refusal(str(error)):
            refusals.append(str(error))

    try:
        with np.errstate(all="ignore"):
            result = fn(
                framework, framework.nn.functional, *inputs, call.s, call.t, log, say, refused, in_thread
            )
    except Exception as error:
        result, message = {"raised": type(error).__name__}, str(error)
        if is_refusal(message):
            refusals.append(message)
    values = {
        "result": freeze(result),
        "log": freeze(log),
        "inputs": freeze(inputs),
        "gradients": freeze([x.grad for x in inputs[:4]]),
    }
    return Seen(values, message, refusals)


def is_refusal(message: str) -> bool:
    """Whether an error says that a graph was freed, a value it had saved overwritten, or a view's history
    changed by a write that is not recorded.
    """
    return any(said in message for said in ("modified by an inplace", "been modified inplace", "second time"))


def in_thread(work: Callable[[], Any]) -> Any:
    """What `work` gives, or raises, in a thread of its own that has ended."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


class _Warnings(logging.Handler):
    """What is logged, as text."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def compiler_warnings() -> Iterator[list[str]]:
    """What the compiler warns of meanwhile: a region that could not be compiled, or whose program did not
    fit.
    """
    log, handler = logging.getLogger("kiln.compile"), _Warnings()
    log.addHandler(handler)
    try:
        yield handler.lines
    finally:
        log.removeHandler(handler)


def check_recorded(program: Program, framework: Framework, calls: tuple[Call, ...] = CALLS) -> Failure | None:
    """Eager against recorded, bit for bit, over all of `calls`; what was recorded must run as a program."""
    fn = compiled_text(program)
    compiled = framework.compile(fn)
    for number, call in enumerate(calls):
        expected = observe(fn, framework, call, True)
        with compiler_warnings() as warnings:
            got = observe(compiled, framework, call, True)
        if warnings:
            return Failure("recorded", program, f"call {number + 1} {call}: {warnings[0]}")
        found = first_difference(expected.values, got.values, exact=True)
        if found is not None:
            messages = "".join(f"\n  {m}" for m in (expected.message, got.message) if m)
            return Failure(
                "recorded", program, f"call {number + 1} {call}: {found} (eager against recorded){messages}"
            )
    return None


def check_peer(
    program: Program,
    framework: Framework,
    other: Framework,
    observe: Callable[..., Seen] = observe,
    calls: tuple[Call, ...] = (CALLS[0], CALLS[5]),
) -> Failure | None:
    """Eager against the peer within rounding; programs whose own result moves as much with its inputs'
    noise pass. `observe`: how a program runs on a framework.
    """
    if program.draws:
        return None
    fn = compiled_text(program)
    for call in calls:
        expected, got = observe(fn, other, call, False), observe(fn, framework, call, False)
        found = first_difference(expected.values, got.values, exact=False)
        if found is None or undecided(fn, other, call, expected, got, observe):
            continue
        messages = "".join(f"\n  {m}" for m in (expected.message, got.message) if m)
        return Failure("peer", program, f"{call}: {found} ({other.name} against {framework.name}){messages}")
    return None


def undecided(
    fn: Callable[..., Any],
    other: Framework,
    call: Call,
    expected: Seen,
    got: Seen,
    observe: Callable[..., Seen] = observe,
) -> bool:
    """Whether a difference from the peer proves nothing.

    The peer refused a backward because of what its graph no longer holds: what an op saves is its own choice,
    and so is what was accumulated before the refusal; but nothing is refused that the peer runs, except where
    the logits of a cross entropy were overwritten: PyTorch keeps their softmax. Or a write read and wrote the
    same places, which the peer refuses, or in an order the peer leaves open. Or the peer itself moves beyond
    the tolerance when its inputs, or the results of its ops, move by rounding errors (a branch near zero, a
    tie, a cancellation).
    """
    if expected.refusals or "written-to tensor refer to a single memory" in expected.message:
        return True
    if got.refusals:
        return all(" of cross_entropy" in said for said in got.refusals)
    with computing_otherwise(0):
        if first_difference(observe(fn, other, call, False).values, got.values, exact=False) is None:
            return True
    plain = {k: v for k, v in expected.values.items() if k != "inputs"}
    for noise in (1, 2, 3):
        moved = observe(fn, other, call, False, noise)
        with computing_otherwise(noise):
            rounded = observe(fn, other, call, False)
        for seen in (moved, rounded):
            if first_difference(plain, {k: seen.values[k] for k in plain}, exact=False) is not None:
                return True
    return False


def check(program: Program, framework: Framework, other: Framework | None) -> Failure | None:
    """The first promise that `program` breaks, or None."""
    failure = check_recorded(program, framework)
    if failure is None and other is not None:
        failure = check_peer(program, framework, other)
    return failure


def shrink(
    failure: Failure,
    framework: Framework,
    other: Framework | None,
    tries: int = 300,
    check: Callable[[Any, Framework, Framework | None], Failure | None] = check,
) -> Failure:
    """Drop outputs, then blocks (halves first, then one by one), while a failure of the same kind remains."""
    other = other if failure.kind == "peer" else None

    def still(shorter: Program) -> Failure | None:
        found = check(shorter, framework, other)
        return found if found is not None and found.kind == failure.kind else None

    for name in reversed(failure.program.outputs):
        failure = still(failure.program.without_output(name)) or failure
    width = max(1, len(failure.program.blocks) // 2)
    while tries > 0:
        position, dropped = 0, False
        while position < len(failure.program.blocks) and tries > 0:
            tries -= 1
            found = still(failure.program.without(position, width))
            if found is not None:
                failure, dropped = found, True
            else:
                position += width
        if width == 1 and not dropped:
            break
        width = max(1, width // 2)
    return failure


def failures(
    count: int,
    seed: int,
    framework: Framework,
    other: Framework | None,
    statements: int | None = None,
    write: Callable[[int, int | None], Program] = write_program,
) -> Iterator[Failure | None]:
    """Check `count` programs from `seed` on, yielding a shrunk failure or None for each."""
    for number in range(seed, seed + count):
        failure = check(write(number, statements), framework, other)
        yield failure and shrink(failure, framework, other)


def tell(runs: Iterable[Any], seed: int, every: int) -> int:
    """Prints what failed, as it comes, and now and then how far it is: 1 if anything has, else 0."""
    number, failed, started = 0, 0, time.monotonic()
    for number, failure in enumerate(runs, 1):
        if failure is not None:
            failed += 1
            print(failure.report(), flush=True)
        if number % every == 0:
            print(f"{number} programs, {failed} failed, {time.monotonic() - started:.0f} s", flush=True)
    print(f"{number} programs from seed {seed}: {failed} failed")
    return 1 if failed else 0


def main(argv: list[str] | None = None) -> int:
    """The command line; the exit code is 1 if a program failed."""
    parser = argparse.ArgumentParser(
        prog="python -m kiln.testing.random_programs", description="random programs"
    )
    parser.add_argument("--count", type=int, default=1000, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first; the others follow")
    parser.add_argument("--statements", type=int, default=None, help="blocks per program (default: 4 to 24)")
    parser.add_argument("--backend", default=None, help="kiln or torch (default: KILN_TEST_BACKEND or kiln)")
    parser.add_argument("--no-peer", action="store_true", help="do not compare with PyTorch")
    parser.add_argument("--gradients", action="store_true", help="programs made for their gradients")
    parser.add_argument("--show", action="store_true", help="print the programs instead of running them")
    options = parser.parse_args(argv)
    write = write_gradient_program if options.gradients else write_program
    if options.show:
        for number in range(options.seed, options.seed + options.count):
            print(f"# seed {number}\n{write(number, options.statements).source}")
        return 0
    other = None if options.no_peer else peer()
    runs = failures(options.count, options.seed, load(options.backend), other, options.statements, write)
    return tell(runs, options.seed, 100)


if __name__ == "__main__":
    sys.exit(main())
