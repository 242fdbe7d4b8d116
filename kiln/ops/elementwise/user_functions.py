"""`kiln.pointwise`: a user's scalar function over table ops as one op with a derivative.

The function is run once, at decoration, on stand-ins; what it did is the op. Afterwards its Python text plays
no part, so whatever could change under it is refused: free variables may only be modules, ops, and functions
that obey the same rule. Two functions that do the same are the same op.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from kiln import _core
from kiln.errors import describe, message, place
from kiln.graph import graph as g
from kiln.table import registry
from kiln.table.arguments import number
from kiln.table.record import REQUIRED, Op, Param

_captured: dict[str, Op] = {}


def pointwise(function: Callable[..., Any]) -> Any:
    """Makes one fused, differentiable op of a function of arrays and numbers made of pointwise ops.

    Parameters take arrays or numbers, which broadcast; defaults must be numbers. TypeError for a free
    variable that is not a module, an op or such a function, for a branch on a value, and for ops that are not
    pointwise.

    >>> @kiln.pointwise
    ... def leaky(x, slope=0.1):
    ...     return kiln.where(x > 0, x, slope * x)
    >>> leaky(kiln.tensor([-1.0, 2.0]))
    tensor([-0.1000,  2.0000])
    """
    if getattr(function, "__code__", None) is None:
        raise TypeError(message("pointwise", "a function written in Python", describe(function)))
    _check_free_variables(function, {id(function)})
    params = _parameters(function)
    graph = _trace(function, params)
    key = _content(params, graph)
    found = _captured.get(key)
    if found is None:
        found = _captured[key] = _make(function, params, graph)
        found.identity = f"pointwise {key}"
    return found.function


def _parameters(function: Any) -> tuple[Param, ...]:
    """The positional parameters of a user's function, its defaults fixed now."""
    code: CodeType = function.__code__
    if code.co_flags & 0x0C or code.co_kwonlyargcount:
        raise TypeError(
            f"pointwise: {function.__name__} may not take *args, **kwargs or keyword-only arguments"
        )
    names = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    given = dict(zip(names[len(names) - len(defaults) :], defaults))
    for name, value in given.items():
        if not isinstance(value, (int, float)):
            raise TypeError(
                f"pointwise: {function.__name__}: the default of '{name}' must be a number, got {value!r}"
            )
    if not names:
        raise TypeError(f"pointwise: {function.__name__} takes no arguments")
    return tuple(Param(n, "V", given.get(n, REQUIRED)) for n in names)


def _trace(function: Any, params: tuple[Param, ...]) -> g.Graph:
    """What the function does, on arrays of one unknown size."""
    graph = g.Graph()
    size = graph.new_symbol()
    with g.building(graph):
        result = function(*(graph.add_input("float32", (size,)) for _ in params))
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    for y in results:
        if not isinstance(y, g.Value):
            raise TypeError(f"pointwise: {function.__name__} must return arrays, got {type(y).__name__}")
    for node in graph.nodes:
        if node.op.kind not in ("pointwise", "constant"):
            raise TypeError(
                f"pointwise: {function.__name__} uses {node.op.name}, which is not a pointwise op"
            )
    return graph.finish(results)


def _content(params: tuple[Param, ...], graph: g.Graph) -> str:
    """The captured content as text: the identity of the op. A default is part of it by its type and exact
    value.
    """
    names = {id(v): f"%{k}" for k, v in enumerate(graph.inputs)}
    lines = [
        *(
            f"{p.name}={type(p.default).__name__} {p.default!r}" if p.default is not REQUIRED else p.name
            for p in params
        ),
    ]
    for node in graph.nodes:
        names[id(node.out)] = f"%{len(names)}"
        attrs = " ".join(f"{type(a).__name__} {a!r}" for a in node.attrs)
        lines.append(
            f"{names[id(node.out)]} = {node.op.name} {attrs} {' '.join(names[id(v)] for v in node.inputs)}"
        )
    return "\n".join([*lines, *(names[id(v)] for v in graph.outputs)])


def _make(function: Any, params: tuple[Param, ...], graph: g.Graph) -> Op:
    """A composite that replays the captured graph on its arguments."""

    def body(*args: Any) -> Any:
        known = {id(v): a for v, a in zip(graph.inputs, args)}
        for node in graph.nodes:
            op: Any = node.op
            if op.kind == "constant":
                known[id(node.out)] = number(args[0], node.attrs[0])
            else:
                known[id(node.out)] = args[0].graph.add(
                    op, tuple(known[id(v)] for v in node.inputs), node.attrs
                )
        results = tuple(known[id(v)] for v in graph.outputs)
        return results if len(results) > 1 else results[0]

    op = Op(function.__name__, "composite", params, body, listed=False)
    op.doc = function.__doc__ or ""
    op.public = False
    return op


def _check_free_variables(function: Any, seen: set[int]) -> None:
    """TypeError for a free variable whose value could change after the capture."""
    code: CodeType = function.__code__
    cells = dict(zip(code.co_freevars, function.__closure__ or ()))
    for name in (*code.co_freevars, *_globals_read(code)):
        if name in cells:
            try:
                value = cells[name].cell_contents
            except ValueError:
                continue  # the function's own name, not bound yet
        elif name in function.__globals__:
            value = function.__globals__[name]
        elif hasattr(builtins, name):
            continue
        else:
            raise NameError(f"pointwise: {function.__name__}: name '{name}' is not defined")
        _check_value(function, name, value, seen)


def _check_value(function: Any, name: str, value: Any, seen: set[int]) -> None:
    if id(value) in seen or isinstance(value, (ModuleType, Op, _core.Op, BuiltinFunctionType)):
        return
    if isinstance(value, FunctionType):
        seen.add(id(value))
        if value not in registry.FUNCTIONS.values():
            _check_free_variables(value, seen)
        return
    code: CodeType = function.__code__
    raise TypeError(
        f"pointwise: {function.__name__} ({place(code.co_filename, code.co_firstlineno)}) reads '{name}', a "
        f"{type(value).__name__} from outside: it is captured once, so a later change would be lost; pass it "
        "as an argument"
    )


def _globals_read(code: CodeType) -> list[str]:
    """The names a function's code (and the functions inside it) may look up outside: globals and attributes
    alike.

    An attribute's name that is also a global is checked too, which only refuses more.
    """
    nested = [
        name for const in code.co_consts if isinstance(const, CodeType) for name in _globals_read(const)
    ]
    return [*_loaded_globals(code), *nested]


def _loaded_globals(code: CodeType) -> list[str]:
    from dis import get_instructions

    return [i.argval for i in get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")]


registry.FUNCTIONS["pointwise"] = pointwise
