"""Plans beside the interpreter: the same bits after each pass, in NumPy and compiled; what they launch."""

from __future__ import annotations

from typing import Any

import numpy as np
from plan_runner import describe, run_plan, same_bits, trace

from kiln.graph.graph import Graph
from kiln.graph.interpret import interpret
from kiln.graph.verify import verify
from kiln.passes.pipeline import lower
from kiln.passes.plan import Launch, Plan
from kiln.passes.simplify import simplify


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    """Draws from the normal distribution; bfloat16 as bits."""
    x = np.random.default_rng([seed, *shape]).normal(size=shape)
    if dtype == "bfloat16":
        return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return x.astype(dtype)


def whole(high: int, *shape: int) -> Any:
    """Integers below `high`."""
    return np.random.default_rng([high, *shape]).integers(0, high, shape)


def check_plan(graph: Graph, arguments: list[Any], compiled: bool = True) -> Plan:
    """Simplify, lower and run: every bit as the interpreter's on the graph given. Returns the plan."""
    expected = interpret(verify(graph), arguments)
    simple = verify(simplify(graph))
    for x, y in zip(expected, interpret(simple, arguments), strict=True):
        assert same_bits(x, y), "simplify changed a bit"
    plan = lower(simple)
    for real in (False, True) if compiled else (False,):
        copies = [_copy(a) for a in arguments]
        for k, (x, y) in enumerate(zip(expected, run_plan(plan, simple, copies, real), strict=True)):
            assert same_bits(x, y), f"output {k}, compiled {real}: {x} {y}\n{plan.text()}"
    return plan


def _copy(argument: Any) -> Any:
    """A copy with the same strides."""
    if not isinstance(argument, np.ndarray):
        return argument
    if argument.flags.c_contiguous:
        return argument.copy()
    base = np.array(argument.base)
    offset = argument.ctypes.data - argument.base.ctypes.data
    return np.ndarray(argument.shape, argument.dtype, base, offset, argument.strides)


def check(function: Any, *arguments: Any, compiled: bool = True) -> Plan:
    """A function captured, and its plan checked."""
    return check_plan(trace(function, *map(describe, arguments)), list(arguments), compiled)


def check_updates(function: Any, updates: dict[int, int], *arguments: Any) -> Plan:
    """Outputs as interpreted, and inputs changed to the outputs that update them."""
    graph = trace(function, *map(describe, arguments))
    for j, i in updates.items():
        for a, b in zip(graph.outputs[j].shape, graph.inputs[i].shape, strict=True):
            graph.require_equal(a, b, "update")
    graph.finish(graph.outputs)
    expected = interpret(graph, arguments)
    simple = simplify(graph)
    simple.updates = dict(updates)
    plan = lower(simple)
    for real in (False, True):
        copies = [_copy(a) for a in arguments]
        got = run_plan(plan, simple, copies, real)
        assert all(map(same_bits, expected, got)), plan.text()
        for j, i in updates.items():
            assert same_bits(np.ascontiguousarray(copies[i]), expected[j]), plan.text()
        for i, (before, after) in enumerate(zip(arguments, copies, strict=True)):
            if i not in updates.values() and isinstance(before, np.ndarray):
                assert same_bits(before, after), f"input {i} was changed"
    return plan


def launches(plan: Plan) -> int:
    """How many kernels a plan launches."""
    return sum(isinstance(step, Launch) for step in plan.steps)


def temporaries(plan: Plan) -> int:
    """How many arrays a plan allocates that it does not return."""
    return sum(b.kind == "temp" for b in plan.buffers)
