"""What the core calls up for: `compile(request, arguments)`.

function    a handle for an op at a structure
classify    how to run a function, and which operand holds positions to check
pointwise   the kernel of a pointwise function at dtypes and layout classes
program     the program of any other function
saves       what backward reads of a call
derivative  the function that computes given gradients
recipe      a function as calls of ops
kernel      machine code
explain     the error of a call whose sizes do not fit
region      the program of a recorded region
log         a line for the logger
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from kiln import _core
from kiln.capture import programs, recipes, regions
from kiln.capture.function import Derivative, Forward, Function, Operands, classify
from kiln.graph.graph import Graph
from kiln.ops.record import Op

log = logging.getLogger("kiln.compile")
_lock = threading.RLock()


def _before_fork() -> None:
    """Nothing is pending, in a kernel or half compiled: the child has nobody to go on with it."""
    _core.before_fork()
    _lock.acquire()


def _after_fork_in_parent() -> None:
    _lock.release()
    _core.after_fork(False)


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()
    _core.after_fork(True)


# Before any service there is nothing to run. Registered after the generator's own, so that it comes first.
os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)


def compile(request: str, arguments: tuple[Any, ...]) -> Any:
    """Answers one request of the core; see the module's list."""
    grad = _core.set_grad_enabled(False)
    try:
        with _lock:
            return _ANSWERS[request](*arguments)
    finally:
        _core.set_grad_enabled(grad)


def _function(op: Op, structure: tuple[Any, ...]) -> Forward:
    return Forward(op, structure)


def _classify(function: Function, operands: Operands) -> tuple[str, int, Any]:
    graph = function.graph(operands)
    checks = recipes.position_check(function) if isinstance(function, Forward) else None
    return classify(graph), len(graph.outputs), checks


def _program(function: Function, operands: Operands, hidden: int) -> tuple[Any, ...]:
    return programs.program(function.name, function.graph(operands, bool(hidden)))


def _saves(function: Forward, operands: Operands) -> Any:
    return function.saves(operands)


def _derivative(function: Forward, operands: Operands, needed: int, defined: int, redo: int) -> Any:
    outputs = len(function.primal(operands).outputs)
    wanted = tuple(i for i in range(len(operands)) if needed >> i & 1)
    given = tuple(bool(defined >> k & 1) for k in range(outputs))
    made = Derivative(function, operands, wanted, given, bool(redo))
    return made, classify(made.contiguous), made.sources, made.targets


def _recipe(function: Function, operands: Operands) -> Any:
    return recipes.recipe(function.graph(operands), whole=isinstance(function, Derivative))


def _explain(function: Function, operands: tuple[Any, ...]) -> None:
    """Runs the shape rules on the actual sizes: they raise on the one that does not fit."""
    assert isinstance(function, Forward)
    graph = Graph()
    values = []
    for operand in operands:
        if isinstance(operand, tuple):
            dtype, sizes = operand
            for _ in sizes:
                graph.new_symbol()
            values.append(graph.add_input(dtype, sizes))
        else:
            kind = "bool" if isinstance(operand, bool) else "int64" if isinstance(operand, int) else "float64"
            values.append(graph.add_number(kind))
    function.explain(graph, values)


def _log(warning: int, text: str) -> None:
    log.log(logging.WARNING if warning else logging.INFO, "%s", text)


_ANSWERS: dict[str, Callable[..., Any]] = {
    "function": _function,
    "classify": _classify,
    "pointwise": programs.pointwise,
    "program": _program,
    "saves": _saves,
    "derivative": _derivative,
    "recipe": _recipe,
    "kernel": programs.kernel_code,
    "explain": _explain,
    "region": regions.region,
    "log": _log,
}
