"""The op table's public face: every public function of kiln under PyTorch's name.

A name is the handle of its op where a call needs nothing but the op, so that it stays in C++; else a plain
function over ops. Values of a graph get their operators here, and methods in the same way as tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kiln import _core
from kiln.graph.graph import Value
from kiln.graph.size import Size
from kiln.ops import (  # noqa: F401
    activations,
    addends,
    arithmetic,
    bags,
    comparison,
    composites,
    contractions,
    counts,
    creation,
    data,
    declare,
    decompositions,
    differences,
    distances,
    distributions,
    dropout,
    dtypes,
    elementary,
    elementwise,
    extrema,
    factors,
    finite,
    gates,
    getitem,
    group_norms,
    index_along,
    indexing,
    interop,
    joining,
    margin_losses,
    matrices,
    matrix_norms,
    moves,
    names,
    norms,
    optimizers,
    order,
    padding,
    parts,
    places,
    placing,
    pointwise,
    polynomials,
    probabilities,
    products,
    random,
    ranges,
    ranks,
    reduce,
    reductions,
    sampling,
    scans,
    selecting,
    shapes,
    special,
    unary,
    user,
    value_losses,
    views,
)
from kiln.ops.declare import LAYERS as LAYERS
from kiln.ops.declare import RECORDS as RECORDS
from kiln.ops.record import Op as Op
from kiln.ops.record import find as find
from kiln.ops.record import table as table
from kiln.ops.scalar import Scalar

if TYPE_CHECKING:  # what is attached below by name is a function to type checkers
    __getattr__: Callable[[str], Any]
else:

    def __getattr__(name: str) -> Any:
        raise AttributeError(f"kiln has no function '{name}'")


_core.set_symbolic_types((Value, Scalar, Size))

# operator of Value and of Tensor -> the function it calls
OPERATORS: dict[str, Any] = {
    **{name: find(name).handle for name in ("add", "sub", "mul", "matmul", "neg", "abs")},
    **{name: find(name).handle for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: find(f"bitwise_{name}").handle for name in ("and", "or", "xor")},
    "truediv": find("div").handle,
    "floordiv": find("floor_divide").handle,
    "mod": find("remainder").handle,
    "lshift": elementwise.bitwise_left_shift.handle,
    "rshift": elementwise.bitwise_right_shift.handle,
    "pos": names.positive,
    "invert": comparison.bitwise_not.handle,
    "pow": arithmetic.pow,
    "getitem": getitem.getitem,
}
REFLECTED = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor",
             "lshift", "rshift")  # fmt: skip


# name -> its in-place form: the method `name_`, and for some a function
IN_PLACE: dict[str, Any] = {
    **{op.name: op.handle.form(None, True) for op in table() if op.inplace},
    **declare.INPLACE,
}
# in-place functions of PyTorch's namespace that need more than the tensor
_MORE_IN_PLACE = {"addmv", "clamp_max", "clamp_min", "gcd", "lcm", "ldexp", "threshold", "xlogy"}


def places_of(name: str, required: bool = False) -> int:
    """How many arguments a public function takes by place, or how many it must be given."""
    function = declare.FUNCTIONS.get(name) or find(name).handle
    function = getattr(function, "__wrapped__", function)  # of a form, of a function with aliases
    if isinstance(function, _core.Op):
        return len([p for p in function.record.params if p.default is _core.REQUIRED or not required])
    return function.__code__.co_argcount - (len(function.__defaults__ or ()) if required else 0)


def _is_function(name: str) -> bool:
    """Whether the in-place form `name_` is a function too, as it is where it needs the tensor alone."""
    return name in _MORE_IN_PLACE or places_of(name, required=True) == 1


def _functions() -> dict[str, Any]:
    """Every public name: handles of public ops, then plain functions, which may stand before an op of the
    same name.
    """
    named = {op.name: op.handle for op in table() if op.public}
    return {
        **named,
        **declare.FUNCTIONS,
        **{f"{name}_": form for name, form in IN_PLACE.items() if _is_function(name)},
        **{name: getitem.IN_PLACE[name] for name in ("fill_", "zero_", "index_put_")},
        "as_strided_": shapes.IN_PLACE["as_strided_"],
        "pointwise": user.pointwise,
        **{f"{k}_": _step(k, v) for k, v in _STEPS.items()},
    }


# The optimizers' steps and the arguments their results are written over.
_STEPS = {"sgd_step": (0,), "sgd_momentum_step": (0, 2), "adam_step": (0, 2, 3), "amsgrad_step": (0, 2, 3, 4)}


def _step(name: str, written: Any) -> Any:
    """The step that writes its results over the tensors it read: `written` are their positions among the
    arguments.
    """
    handle = find(name).handle

    def step(*args: Any, **kwargs: Any) -> Any:
        return handle(*args, **kwargs, out=tuple([args[k] for k in written]))

    step.__name__ = step.__qualname__ = f"{name}_"
    step.__doc__ = f"`{name}` with its results written over the parameter and its moments."
    return step


def _reflected(function: Any) -> Any:
    return lambda self, other: function(other, self)


def _attach_operators() -> None:
    """Operators and methods of graph values: what the bodies of composites and derivatives are written
    with.
    """
    for name, function in OPERATORS.items():
        setattr(Value, f"__{name}__", _method(function))
        if name in REFLECTED:
            setattr(Value, f"__r{name}__", _reflected(function))
    Value.__hash__ = object.__hash__  # type: ignore[method-assign]
    for name in sorted({op.name for op in table() if op.public and op.method} | declare.METHODS):
        if not hasattr(Value, name):
            setattr(Value, name, _method(FUNCTIONS[name]))


def _method(function: Any) -> Any:
    return lambda self, *args, **kwargs: function(self, *args, **kwargs)


FUNCTIONS: dict[str, Any] = _functions()
_attach_operators()
interop.FUNCTIONS.update(FUNCTIONS)
# `pointwise` is a module here; kiln's own namespace has the decorator under that name
globals().update({name: f for name, f in FUNCTIONS.items() if name != "pointwise"})
