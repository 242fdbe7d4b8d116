"""A scan of all public functions: eager and compiled calls give the same results and errors.

    python -m kiln.testing.mode_scan [--part 0/4] [--dtypes float32,int64] [add scatter_ linalg.inv ...]

Every call (mode_cases.py) runs eagerly, then under `kiln.compile`: at first op by op, then by its program,
which the check mode makes at once and compares with its ops. The call stands in a `try` inside the compiled
function, so that an error that comes later than on its line is not caught there. Compared are the exception's
type and words, or the results' dtypes, shapes, strides and bits, and what they share with the arguments; of
every tensor given and the memory it views: values, strides and version. A call that raises must have written
nothing.

Each difference is a line; exit status 1 if there is any. A second run with the same KILN_CACHE_DIR takes the
programs from disk.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import kiln
from kiln import _core
from kiln.testing.compare import bits, is_tensor, to_array
from kiln.testing.mode_cases import DTYPES, Arguments, Call, calls, names

STATE = ("dtype", "shape", "strides", "offset", "version", "requires_grad", "is_leaf", "bits")
RUNS = 3  # of the compiled function: op by op, compiled, by the program


class Outcome(NamedTuple):
    """What is compared."""

    raised: str
    results: tuple[Any, ...]
    before: tuple[Any, ...]
    after: tuple[Any, ...]

    @property
    def wrote(self) -> bool:
        """Whether a call that raised changed a tensor."""
        return bool(self.raised) and self.before != self.after


def _step(function: Any, args: Any, kwargs: Any) -> Any:
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        return error
    return result


def _state(x: Any) -> tuple[Any, ...]:
    """Everything of a tensor that a program can see."""
    copied = x.detach().clone()  # writes to what NumPy saw would not be recorded
    version = None if x.is_inference() else x._version
    return (str(x.dtype), tuple(x.shape), x.stride(), x.storage_offset(), version, x.requires_grad, x.is_leaf,
            bits(to_array(copied)).tobytes())  # fmt: skip


def _leaves(result: Any) -> Iterator[Any]:
    if isinstance(result, (list, tuple)):
        for part in result:
            yield from _leaves(part)
    elif isinstance(result, dict):
        yield from _leaves(list(result.items()))
    else:
        yield result


def _described(result: Any, given: list[Any]) -> tuple[Any, ...]:
    """A result's parts: arguments by their place, other tensors by their state, the rest by their text."""
    places = {id(x): k for k, x in enumerate(given)}
    return tuple(
        places[id(y)] if id(y) in places else _state(y) if is_tensor(y) else repr(y) for y in _leaves(result)
    )


def _watched(arguments: Arguments) -> list[Any]:
    return [*{id(x): x for x in (*arguments.tensors(), *arguments.more)}.values()]


def outcome(call: Call, step: Any) -> Outcome:
    """One run of a call on arguments of its own."""
    kiln.manual_seed(0)
    arguments = call.make()
    given = _watched(arguments)
    before = tuple(map(_state, given))
    kiln.manual_seed(0)
    try:
        result = step(call.function, arguments.args, arguments.kwargs)
    except Exception as error:
        result, escaped = error, "not on its line: "
    else:
        escaped = ""
    raised = f"{escaped}{type(result).__name__}: {result}" if isinstance(result, Exception) else ""
    return Outcome(
        raised,
        () if raised else _described(result, given),
        before,
        tuple(map(_state, given)),
    )


def differences(call: Call, runs: int = RUNS) -> Iterator[str]:
    """What is wrong with a call: what it left when it raised, and where compiled runs differ."""
    try:
        eager = outcome(call, _step)
    except Exception:  # the arguments themselves cannot be made: nothing to call
        return
    if eager.raised and call.right and not eager.raised.startswith("ImportError"):  # an extra is not there
        yield f"{call.label}: raised {eager.raised}"
    if eager.wrote:
        yield f"{call.label}: raised {eager.raised!r} and wrote: {_first(eager.before, eager.after)}"
    compiled = kiln.compile(_step)
    for run in range(runs):
        found = outcome(call, compiled)
        if found != eager:
            yield f"{call.label}: compiled, run {run}: {_apart(eager, found)}"
            return


def _apart(eager: Outcome, found: Outcome) -> str:
    if eager.raised != found.raised:
        return f"raised {found.raised or 'nothing'!r}, eagerly {eager.raised or 'nothing'!r}"
    if eager.results != found.results:
        return f"result: {_first(eager.results, found.results)}"
    return f"arguments afterwards: {_first(eager.after, found.after)}"


def _first(a: tuple[Any, ...], b: tuple[Any, ...]) -> str:
    for k, (x, y) in enumerate(zip(a, b)):
        if x != y and isinstance(x, tuple) and isinstance(y, tuple):
            return f"tensor {k}: " + ", ".join(
                name if name == "bits" else f"{name} {old} and {new}"
                for name, old, new in zip(STATE, x, y)
                if old != new
            )
        if x != y:
            return f"{k}: {x!r} and {y!r}"[:300]
    return f"{len(a)} and {len(b)} parts"


def scan(wanted: list[str], dtypes: tuple[str, ...], every: int = 1, runs: int = RUNS) -> list[str]:
    """The differences of all calls of some names; `every`: of so many calls one."""
    before = _core.set_check(True)
    found: list[str] = []
    count = 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in wanted:
                for dtype in dtypes:
                    for call in calls(name, dtype):
                        count += 1
                        if count % every == 0:
                            found += differences(call, runs)
    finally:
        _core.set_check(before)
    return found


def main() -> None:
    """The scan from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--part", default="0/1", help="k/n: the k-th of n parts of the names")
    parser.add_argument("--every", type=int, default=1, help="of so many calls one")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    wrong = 0
    for name in options.names or names()[part::parts]:
        print(name, end="\r", file=sys.stderr, flush=True)
        for line in scan([name], tuple(options.dtypes.split(",")), options.every):
            wrong += 1
            print(line, flush=True)
    print(f"{wrong} differences")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
