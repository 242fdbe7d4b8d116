"""Answers that nobody kept: captured, planned and put into bytes. Imported at the first of them.

classify   := class outputs check (dim of the positions it gives, or -128)
check      := 0 | 1 index source dim negative ignore message is_index_error
pointwise  := [kernel] [dtype] [dtype before it is cast to that of `out=`]
program    := see native/program/answer.h
saves      := hidden [inputs] [outputs] [hiddens] [has a gradient]      a mask per operand
derivative := class [(source, index)] [operand of each result] [what of it] [input it is or -1]
              [(operand, [(operand, dim)] whose sizes' product is the rows of a product in its gradient)]
              [operand whose gradient is scattered] whether it writes at places of its first input
recipe     := see recipes.py
region     := program [storage of each output]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln import _core
from kiln.capture import programs, recipes, regions
from kiln.capture.answers import packed
from kiln.capture.function import Derivative, Forward, Function, Operands, classify
from kiln.capture.handle import Handle
from kiln.capture.log import log
from kiln.capture.pure.function import CellFunction
from kiln.graph.graph import Graph
from kiln.passes.gradient import Asked

HIDDEN, UPDATE = 1, 2  # what a program is asked for; in native/call/op.h too
SOURCES = ("grad", "input", "output", "hidden", "shape", "number", "sum")  # in the order of native/call/op.h


def make(request: str, arguments: tuple[Any, ...]) -> bytes:
    """The answer to one of the requests that are kept."""
    handle, *rest = arguments
    if request == "derivative":
        made = derivative(derivative_function(handle, *rest), len(rest[0]))
    else:
        made = _ANSWERS[request](function_of(handle), *rest)
    return packed(made)


def region(
    ops: Any, storages: Any, slots: int, checkpoint: Callable[[], None] = lambda: None
) -> bytes | None:
    """The program of a region, its kernels' code ready; None (logged) if there is none."""
    try:
        made = regions.region(with_functions(ops), storages, slots, checkpoint)
        for key in made[0][0]:
            checkpoint()
            if not _core.kernel_known(key):
                _core.give_kernel(key, programs.kernel_object(key))
        return packed(made)
    except Exception as error:  # op by op works whatever went wrong here
        # as text: a kept error would keep the frames of the recorded function, and all they hold
        log(True, f"a recorded region of {len(ops)} ops runs op by op: {type(error).__name__}: {error}")
        return None


def with_functions(ops: Any) -> list[tuple[Any, ...]]:
    """Recorded ops with functions in the place of their handles."""
    return [(name, function_of(f), *rest) for name, f, *rest in ops]


kernel_object = programs.kernel_object
knows = programs.knows


def function_of(handle: Handle) -> Function:
    """The function of a handle."""
    if handle.function is None:
        first, *rest = handle.what
        if isinstance(first, Handle):
            handle.function = derivative_function(first, *rest)
        else:
            handle.function = getattr(first, "make_function", lambda s: Forward(first, s))(*rest)
    function: Function = handle.function
    return function


def derivative_function(
    handle: Handle,
    operands: Operands,
    needed: int,
    defined: int,
    redo: int,
    factored: int,
    onto: int,
    shared: int,
) -> Derivative:
    """The derivative a request means: the core's `Asked`, a bit for each operand or result."""
    forward = function_of(handle)
    assert isinstance(forward, Forward)
    outputs = len(forward.primal(operands).outputs)
    wanted = tuple(i for i in range(len(operands)) if needed >> i & 1)
    given = tuple(bool(defined >> k & 1) for k in range(outputs))
    products = tuple(i for i in range(len(operands)) if factored >> i & 1)
    return forward.derivative(operands, Asked(wanted, given, bool(redo), products, onto, shared))


def derivative(made: Derivative, operands: int) -> tuple[Any, ...]:
    """Where a derivative's inputs come from, what its results are, which of them are inputs, and of how many
    products an operand's gradient is made; of a launch's, which hidden outputs have its rows.
    """
    sources = [(SOURCES.index(kind), k) for kind, k in made.sources]
    of, roles = ([target[k] for target in made.targets] for k in (0, 1))
    known = {i: [rows for rows in several if rows is not None] for i, several in made.products.items()}
    products = [(i, *r) for i, rows in known.items() if len(rows) == len(made.products[i]) for r in rows]
    writes = int(recipes.writes_at_places(made.contiguous))
    rows = (0,) if made.hidden_rows is None else (1, made.hidden_rows)
    places = made.passes, products, sorted(made.scattered), writes, rows
    return _class_of(made), sources, of, roles, *places


def _class_of(made: Derivative) -> str:
    """The class of what a derivative computes; a cell's is a program, as it holds for these ranks alone."""
    if not made.contiguous.outputs:
        return "replay"
    return "program" if isinstance(made.forward, CellFunction) else classify(made.contiguous)


def _classify(function: Function, operands: Operands) -> tuple[Any, ...]:
    graph = function.graph(operands)
    checks = recipes.position_check(function) if isinstance(function, Forward) else None
    found = (0,) if checks is None else (1, *checks)
    along = recipes.positions_along(function) if isinstance(function, Forward) else recipes.NO_DIM
    kind = classify(graph)
    if kind == "pointwise" and isinstance(function, Forward) and not function.is_pointwise(operands):
        kind = "program"  # of operands of another rank it is not
    return kind, len(graph.outputs), *found, along, int(recipes.writes_at_places(graph))


def _program(function: Function, operands: Operands, what: int) -> tuple[Any, ...]:
    graph = function.graph(operands, what == HIDDEN)
    return programs.program(graph, update=what == UPDATE and recipes.writes_at_places(graph))


def _saves(function: Function, operands: Operands) -> tuple[Any, ...]:
    assert isinstance(function, Forward)
    return function.saves(operands)


def _recipe(function: Function, operands: Operands) -> tuple[Any, ...]:
    if isinstance(function, Derivative):
        return recipes.recipe(function.calls(operands), whole=True)
    return recipes.recipe(function.graph(operands))


def explain(handle: Handle, operands: tuple[Any, ...]) -> None:
    """Runs the shape rules on the actual sizes: they raise on the one that does not fit."""
    function = function_of(handle)
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


_ANSWERS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "classify": _classify,
    "pointwise": programs.pointwise,
    "program": _program,
    "saves": _saves,
    "recipe": _recipe,
}
