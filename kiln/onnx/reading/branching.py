"""Branches and loops of a model. Where values can be read they are Python's; in a program that is being made
they are its nodes `cond`, `while_loop` and `scan`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kiln import _core, ops
from kiln import graph as flow
from kiln.onnx.reading.known import Known, number
from kiln.onnx.reading.models import Graph
from kiln.onnx.reading.operators import as_array, as_items
from kiln.onnx.reading.refusal import LoadError, UnsupportedError

MOST_STEPS = 1 << 24  # of a loop that Python runs


def read(run: Any, value: Any) -> Any:
    """The one number of a value; None of a tensor that is being followed."""
    if run.module.followed and not isinstance(value, Known):
        return None
    (found,) = as_items(value)
    return found


def arrays(value: Any) -> Any:
    """A value as a tensor, or as a list of them."""
    if isinstance(value, (list, tuple)):
        return [arrays(x) for x in value]
    return value if value is None else as_array(value)


def branch(run: Any, scope: dict[str, Any], given: Sequence[Any], outputs: int, *, then_branch: Graph,
           else_branch: Graph) -> Any:  # fmt: skip
    """If."""
    (condition,) = given
    chosen = read(run, condition)
    if chosen is not None:
        return tuple(run.graph(then_branch if chosen else else_branch, scope))

    def taken(graph: Graph) -> Callable[[], Any]:
        return lambda: tuple([arrays(x) for x in run.graph(graph, scope)])

    return flow.cond(as_array(condition), taken(then_branch), taken(else_branch), ())


def loop(run: Any, scope: dict[str, Any], given: Sequence[Any], outputs: int, *, body: Graph) -> Any:
    """Loop: at most so many steps, while a condition holds, with a state and what each step gives stacked."""
    most, condition, *state = [*given, None, None][: max(len(given), 2)]
    names, count = [x.name for x in body.inputs], len(state)
    if len(names) != count + 2 or len(body.outputs) <= count:
        raise LoadError(f"a body of {len(names)} inputs and {len(body.outputs)} outputs for {count} values")

    def step(k: Any, goes_on: Any, values: Sequence[Any]) -> list[Any]:
        found: list[Any] = run.graph(body, {**scope, **dict(zip(names, (k, goes_on, *values)))})
        return found

    steps = read(run, most) if most is not None else MOST_STEPS
    holds = True if condition is None else read(run, condition)
    is_list = any(isinstance(x, list) for x in state)
    if is_list and (steps is None or holds is None):
        raise UnsupportedError("a loop over sequences that ends by a value is not followed")
    if is_list or not run.module.followed:
        return _python_loop(step, steps, holds, state, len(body.outputs) - 1 - count)
    if len(body.outputs) > count + 1:
        return _scanned(step, most, holds, state)
    return _while(step, most, condition, state)


def _python_loop(step: Any, steps: int, holds: Any, state: list[Any], more: int) -> tuple[Any, ...]:
    stacked: list[list[Any]] = [[] for _ in range(more)]
    k = 0
    while k < steps and holds:
        goes_on, *results = step(number(k), number(holds, "bool"), state)
        state, holds, k = results[: len(state)], as_items(goes_on)[0], k + 1
        for own, x in zip(stacked, results[len(state) :]):
            own.append(as_array(x))
    if more and not k:
        raise UnsupportedError("a loop without a step stacks nothing, of no known shape")
    return (*state, *[ops.stack(own) for own in stacked])


def _scanned(step: Any, most: Any, holds: Any, state: Sequence[Any]) -> tuple[Any, ...]:
    """A loop of a known number of steps that nothing ends before."""
    if not isinstance(most, Known) or holds is not True:
        raise UnsupportedError("a loop that stacks results and ends by a value is not followed")

    def body(carry: Any, k: Any) -> Any:
        goes_on, *results = step(k, number(True, "bool"), carry)
        if not isinstance(goes_on, Known) or goes_on.items != [True]:
            raise UnsupportedError("a loop that stacks results and ends by a value is not followed")
        arrays = [as_array(x) for x in results]
        return tuple(arrays[: len(state)]), tuple(arrays[len(state) :])

    first = tuple([as_array(x) for x in state])
    last, stacked = flow.scan(body, first, ops.arange(most.items[0], dtype=_core.int64))
    return (*last, *stacked)


def _while(step: Any, most: Any, condition: Any, state: Sequence[Any]) -> tuple[Any, ...]:
    """A loop that ends by a value."""
    limit = None if most is None else as_array(most).reshape(())
    begins = ops.ones((), dtype=_core.bool) if condition is None else as_array(condition).reshape(())

    def goes(k: Any, goes_on: Any, *values: Any) -> Any:
        return goes_on if limit is None else ops.logical_and(goes_on, k < limit)

    def body(k: Any, goes_on: Any, *values: Any) -> Any:
        after, *results = [as_array(x) for x in step(k, goes_on, values)]
        return (k + 1, after.reshape(()), *results)

    first = (ops.zeros((), dtype=_core.int64), begins, *[as_array(x) for x in state])
    return tuple(flow.while_loop(goes, body, first))[2:]


def scan(run: Any, scope: dict[str, Any], given: Sequence[Any], outputs: int, *, body: Graph,
         num_scan_inputs: int, **settings: Any) -> Any:  # fmt: skip
    """Scan: a state, and parts of arrays along a dim each."""
    known = {"scan_input_axes", "scan_input_directions", "scan_output_axes", "scan_output_directions"}
    if set(settings) - known or any(x is None for x in given):
        raise UnsupportedError("kiln knows Scan as it is since opset 9")
    count = len(given) - num_scan_inputs
    names, more = [x.name for x in body.inputs], len(body.outputs) - count
    if count < 0 or num_scan_inputs < 1 or len(names) != len(given) or more < 0:
        raise LoadError(
            f"a body of {len(names)} inputs and {len(body.outputs)} outputs for {len(given)} inputs"
        )
    axes, ways = (settings.get(f"scan_input_{x}") or [0] * num_scan_inputs for x in ("axes", "directions"))
    out_axes, out_ways = (settings.get(f"scan_output_{x}") or [0] * more for x in ("axes", "directions"))
    if (len(axes), len(ways), len(out_axes), len(out_ways)) != (num_scan_inputs,) * 2 + (more,) * 2:
        raise LoadError("axes and directions are not as many as what they are of")
    parts = [as_array(x).movedim(axis, 0) for x, axis in zip(given[count:], axes)]
    parts = [x.flip(0) if way else x for x, way in zip(parts, ways)]

    def step(carry: Any, each: Any) -> Any:
        results = run.graph(body, {**scope, **dict(zip(names, (*carry, *each)))})
        arrays = [as_array(x) for x in results]
        return tuple(arrays[:count]), tuple(arrays[count:])

    last, stacked = flow.scan(step, tuple([as_array(x) for x in given[:count]]), tuple(parts))
    made = [x.flip(0) if way else x for x, way in zip(stacked, out_ways)]
    return (*last, *[x.movedim(0, axis) for x, axis in zip(made, out_axes)])


def mapped(run: Any, scope: dict[str, Any], given: Sequence[Any], outputs: int, *, body: Graph) -> Any:
    """SequenceMap: a graph of the elements of sequences."""
    first, *others = given
    names = [x.name for x in body.inputs]
    rows = []
    for k, item in enumerate(first):
        each = [item, *[x[k] if isinstance(x, list) else x for x in others]]
        rows.append(run.graph(body, {**scope, **dict(zip(names, each))}))
    return tuple([list(x) for x in zip(*rows)])


CONTROL: dict[str, Callable[..., Any]] = {"If": branch, "Loop": loop, "Scan": scan, "SequenceMap": mapped}
