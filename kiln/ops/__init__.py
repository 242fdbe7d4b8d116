"""The op table's public face: every public function of kiln under PyTorch's name.

A name is the handle of its op where a call needs nothing but the op, so that it stays in C++; else a plain
function over ops. Values of a graph get their operators here, and methods in the same way as tensors.

What most operators of tensors, and values coming in and going out, need is imported here; every other family
when one of its names is first asked for (`registry`), or here too where no index knows its names (`index`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln import _core
from kiln.graph.graph import Value
from kiln.graph.size import Size
from kiln.late import later
from kiln.ops.creation import data, interop  # noqa: F401
from kiln.ops.elementwise import comparison
from kiln.ops.products import matrix_products  # noqa: F401
from kiln.ops.views import splits  # noqa: F401
from kiln.scalars.scalar import Scalar
from kiln.table import registry
from kiln.table.record import Op as Op
from kiln.table.record import find as find
from kiln.table.record import table as table

if not registry.is_indexed():
    registry.everything()

if TYPE_CHECKING:
    from kiln._typed.functions import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        if not registry.has_function(name):
            raise AttributeError(f"kiln has no function '{name}'")
        globals()[name] = registry.function(name)
        return globals()[name]


_core.set_symbolic_types((Value, Scalar, Size))
_core.set_error_describer(later("kiln.table.mistakes", "describe_error"))


def _asked(name: str) -> Any:
    """A public function whose family is imported at its first call."""
    return lambda *args, **kwargs: registry.function(name)(*args, **kwargs)


# operators that few programs use -> the public function whose family is imported at the first call
ASKED = {
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift", "pos": "positive", "pow": "pow",
}  # fmt: skip
# operator of Value and of Tensor -> the function it calls
OPERATORS: dict[str, Any] = {
    **{name: find(name).handle for name in ("add", "sub", "mul", "matmul", "neg", "abs")},
    **{name: find(name).handle for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: find(f"bitwise_{name}").handle for name in ("and", "or", "xor")},
    "truediv": find("div").handle,
    "floordiv": find("floor_divide").handle,
    "mod": find("remainder").handle,
    **{operator: _asked(name) for operator, name in ASKED.items()},
    "invert": comparison.bitwise_not.handle,
    "getitem": later("kiln.ops.indexing.getitem", "getitem"),
}
REFLECTED = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor",
             "lshift", "rshift")  # fmt: skip


def functions() -> dict[str, Any]:
    """Every public function by its name below kiln ("sort", "linalg.solve"); all families are imported."""
    registry.everything()
    return registry.FUNCTIONS


def _reflected(function: Any) -> Any:
    return lambda self, other: function(other, self)


def _method(function: Any) -> Any:
    return lambda self, *args, **kwargs: function(self, *args, **kwargs)


def _is_of_values(name: str) -> bool:
    return registry.has_function(name) and not name.endswith("_") and not hasattr(Value, name)


def _attach_operators() -> None:
    """Operators and methods of graph values: what the bodies of composites and derivatives are written
    with.
    """
    for name, function in OPERATORS.items():
        setattr(Value, f"__{name}__", _method(function))
        if name in REFLECTED:
            setattr(Value, f"__r{name}__", _reflected(function))
    Value.__hash__ = object.__hash__  # type: ignore[method-assign]
    registry.attach(Value, _method, _is_of_values)


_attach_operators()
# functions as attributes, but where a family's module has the name
globals().update({name: f for name, f in registry.imported().items() if name not in globals()})
