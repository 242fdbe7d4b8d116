"""`Number`: an int, float or bool that depends on the value of a tensor.

    Number(kind, tensor)      tensor: of no dims, int64, float64 or bool

Arithmetic is Python's: ints stay ints, `/` gives floats, a division by 0 raises. Beside a tensor it is what a
number of Python's would be there: it does not promote within a kind. What would read it (`range` of a size, a
key, a text) is refused, with the line.
"""

from __future__ import annotations

from typing import Any

from kiln import _core
from kiln.graph.size import Size
from kiln.scripting.context import running
from kiln.table.record import find

Tensor = _core.Tensor
KINDS: dict[type, str] = {bool: "bool", int: "int64", float: "float64"}
TYPES = {"bool": bool, "int64": int, "float64": float}
HALVES = ("float16", "bfloat16")


def dtype_of(tensor: Any) -> str:
    """The name of a tensor's dtype."""
    return str(tensor.dtype).rpartition(".")[2]


def own(tensor: Any) -> Any:
    """A tensor as the recorder has it, which is another where its sizes vary."""
    return getattr(tensor, "whole", tensor)


def shape_of(tensor: Any) -> tuple[Any, ...]:
    """The sizes of a tensor, those that vary as graphs have them."""
    whole = own(tensor)
    return tuple(whole.shape) if whole is tensor else tuple(tensor.recorder.shape_of(whole))


def cast(tensor: Any, dtype: str) -> Any:
    """A tensor in another dtype."""
    return tensor if dtype_of(tensor) == dtype else find("convert").handle(tensor, dtype)


def filled(shape: tuple[int, ...], x: Any, dtype: str) -> Any:
    """A tensor of one value."""
    return find("full").handle(x, shape, dtype)


class Number:
    """See the module's text."""

    __slots__ = ("kind", "tensor")

    def __init__(self, kind: type, tensor: Any) -> None:
        self.kind, self.tensor = kind, own(tensor)

    # -- what would read it -----------------------------------------------------------------------------

    def read(self, what: str) -> Any:
        """Refuses that something reads it."""
        return running().refuse(f"{what} a number that depends on the value of a tensor")

    def __bool__(self) -> Any:
        return self.read("branches, in code that is not rewritten, on")

    def __int__(self) -> Any:
        return self.read("reads")

    __float__ = __complex__ = __int__

    def __hash__(self) -> Any:
        return self.read("takes as a key")

    def __repr__(self) -> str:
        if running().lenient:
            return "?"
        return str(self.read("makes a text of"))

    def __format__(self, how: str) -> str:
        return repr(self)

    def __iter__(self) -> Any:
        raise TypeError(f"'{self.kind.__name__}' object is not iterable")

    # -- conversions ------------------------------------------------------------------------------------

    def as_kind(self, kind: type) -> Number:
        """The same number as an int, float or bool, as these types make it."""
        if kind is self.kind:
            return self
        if kind is bool:
            return Number(bool, self.tensor != 0)
        return Number(kind, cast(self.tensor, KINDS[kind]))

    def beside(self, tensor: Any) -> Any:
        """A tensor of no dims that is to another one what a number is."""
        return cast(self.tensor, beside(self.kind, dtype_of(tensor)))

    def item(self) -> Number:
        """Itself, as of NumPy's numbers."""
        return self

    def __pos__(self) -> Any:
        return self if self.kind is not bool else self.as_kind(int)

    def __neg__(self) -> Any:
        x = self if self.kind is not bool else self.as_kind(int)
        return Number(x.kind, -x.tensor)

    def __abs__(self) -> Any:
        x = self if self.kind is not bool else self.as_kind(int)
        return Number(x.kind, x.tensor.abs())

    def __invert__(self) -> Any:
        x = self.as_kind(int)
        return Number(int, -x.tensor - 1)

    def __round__(self, digits: Any = None) -> Any:
        if self.kind is float:
            if digits is not None:
                return self.read("rounds to digits")
            return Number(float, self.tensor.round()).as_kind(int)
        return self

    def __trunc__(self) -> Any:
        return self.as_kind(int)

    def __floor__(self) -> Any:
        return Number(float, self.tensor.floor()).as_kind(int) if self.kind is float else self.as_kind(int)

    def __ceil__(self) -> Any:
        return Number(float, self.tensor.ceil()).as_kind(int) if self.kind is float else self.as_kind(int)

    def __divmod__(self, other: Any) -> Any:
        own: Any = self
        return own // other, own % other

    def is_integer(self) -> Any:
        """Whether it has no fraction."""
        return Number(bool, self.tensor.floor() == self.tensor) if self.kind is float else True

    @property
    def real(self) -> Any:
        """Itself."""
        return self


def beside(kind: type, dtype: str) -> str:
    """The dtype of a tensor of no dims that is beside a tensor what a number is."""
    if dtype in HALVES:
        return "float32"  # in which halves are computed
    is_float = dtype.startswith("float")
    if kind is float and not is_float:
        return str(_core.default_dtype_name())
    if kind is int and dtype == "bool":
        return "int64"
    return dtype


def number(x: Any) -> Number:
    """A Python number as a Number."""
    if isinstance(x, Number):
        return x
    if isinstance(x, Size):
        return Number(int, filled((), x, KINDS[int]))
    kind = bool if isinstance(x, bool) else int if isinstance(x, int) else float
    return Number(kind, filled((), kind(x), KINDS[kind]))


def kind_of(x: Any) -> Any:
    """int, float or bool for a number, also one that depends on values or sizes; else the type."""
    return x.kind if isinstance(x, Number) else int if isinstance(x, Size) else type(x)


def of_item(tensor: Any) -> Any:
    """The one element of a tensor as a number, without history."""
    if tensor.numel() != 1:
        raise RuntimeError(f"a Tensor with {tensor.numel()} elements cannot be converted to Scalar")
    context = running()
    if context.pinned:
        context.pin()
        return tensor.item()
    dtype = dtype_of(tensor)
    kind: type = bool if dtype == "bool" else float if "float" in dtype else int
    return Number(kind, cast(tensor.detach().reshape(()), KINDS[kind]))
