"""`Traced`: a tensor some of whose sizes vary, while a function is traced; and its sizes.

    Traced(whole)    whole: a tensor without values of the example's sizes; what the sizes are in general is
                     known to the recorder

It says that it is a Tensor, but the core does not take it for one: a call of an op with one comes to
`interpret`, which tells the recorder the sizes as they were given and then does the call on `whole`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from kiln import _core, ops
from kiln.errors import is_own
from kiln.func import batched as samples
from kiln.graph.graph import Value
from kiln.graph.size import Dim, Size, product
from kiln.ops.creation import constants, interop
from kiln.ops.elementwise import arithmetic
from kiln.ops.indexing import concatenation, getitem
from kiln.scalars.scalar import Scalar
from kiln.table import registry
from kiln.table.record import INTERPRETERS, Op
from kiln.tracing.floats import AT_ONCE, TracedFloat, beside_numpy, float_of, operands
from kiln.tracing.recorder import Recorder


def plain(dim: Any) -> Any:
    """A size as graphs have it; what is no size as it is."""
    return Size._interned[dim.terms] if type(dim) is TracedSize else dim


class Shape(tuple):  # type: ignore[type-arg]
    """Sizes of which some vary."""

    __slots__ = ()

    def numel(self) -> Any:
        """The product of the sizes."""
        return product(tuple(self))


_SWAPPED = {"==": "eq", "!=": "ne", "<": "gt", "<=": "ge", ">": "lt", ">=": "le"}


class TracedSize(Size):
    """A size that varies, as the function sees it: arithmetic gives sizes, what reads it is told."""

    __slots__ = ("recorder",)
    recorder: Recorder

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        return beside_numpy(ufunc, method, args, kwargs)

    def _compared(self, other: Any, sign: str, holds: Callable[[int, int], bool]) -> Any:
        if isinstance(other, float) and not other.is_integer():
            raise self.recorder.size_read(plain(self), f"compared with {other}")
        if isinstance(other, _core.Tensor):
            return ops.OPERATORS[_SWAPPED[sign]](other, self)
        if not isinstance(other, (int, Size, float)):
            return NotImplemented
        other = int(other) if isinstance(other, float) else other
        return self.recorder.decide(plain(self), sign, plain(other), holds, _from_own())

    def __eq__(self, other: object) -> Any:
        return self._compared(other, "==", lambda a, b: a == b)

    def __ne__(self, other: object) -> Any:
        return self._compared(other, "!=", lambda a, b: a != b)

    def __lt__(self, other: object) -> Any:
        return self._compared(other, "<", lambda a, b: a < b)

    def __le__(self, other: object) -> Any:
        return self._compared(other, "<=", lambda a, b: a <= b)

    def __gt__(self, other: object) -> Any:
        return self._compared(other, ">", lambda a, b: a > b)

    def __ge__(self, other: object) -> Any:
        return self._compared(other, ">=", lambda a, b: a >= b)

    def __bool__(self) -> bool:  # type: ignore[override]
        return bool(self != 0)

    def __hash__(self) -> int:
        if not _from_own():
            self.recorder.fix(plain(self), "used as a key")
        return hash(plain(self))

    def plain(self) -> Any:
        """It as graphs have it."""
        return plain(self)

    def fixed(self, what: str) -> int:
        """Its number in the example, which it keeps because of what it is used as."""
        return self.recorder.fix(plain(self), what)

    def __int__(self) -> int:
        return self.recorder.fix(plain(self), "read as a number")

    __index__ = __int__

    def __getitem__(self, key: Any) -> Any:
        # (what has items the core takes for no number, and does not read)
        raise TypeError("'int' object is not subscriptable")

    def __float__(self) -> float:
        return float(self.recorder.fix(plain(self), "read as a float"))

    def __truediv__(self, other: Any) -> Any:
        if isinstance(other, _core.Tensor):
            return ops.OPERATORS["truediv"](self, other)
        return float_of(self) / other

    def __rtruediv__(self, other: Any) -> Any:
        if isinstance(other, _core.Tensor):
            return ops.OPERATORS["truediv"](other, self)
        return other / float_of(self)

    def __rpow__(self, other: Any) -> Any:
        if isinstance(other, _core.Tensor):
            return ops.OPERATORS["pow"](other, self)
        return other ** self.recorder.fix(plain(self), "read as a number")

    def __rmod__(self, other: Any) -> Any:
        if isinstance(other, _core.Tensor):
            return ops.OPERATORS["mod"](other, self)
        return other % self.recorder.fix(plain(self), "read as a number")

    def __mod__(self, other: Any) -> Any:
        if isinstance(other, _core.Tensor):
            return ops.OPERATORS["mod"](self, other)
        if not isinstance(other, (int, Size)):
            return NotImplemented
        return self - (self // other) * other

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __pow__(self, power: Any) -> Any:
        if isinstance(power, _core.Tensor):
            return ops.OPERATORS["pow"](self, power)
        if not isinstance(power, int) or power < 0:
            return float_of(self) ** power
        return self.recorder.size(product((plain(self),) * power))

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __repr__(self) -> str:
        return self.recorder.shown(plain(self), _from_own())

    __str__ = __repr__

    def __format__(self, how: str) -> str:
        return self.recorder.shown(plain(self), _from_own())


def _arithmetic(name: str) -> Callable[[TracedSize, Any], Any]:
    own = getattr(Size, name)

    swapped = name[2] == "r"
    function = ops.OPERATORS[name.strip("_").removeprefix("r")]

    def method(self: TracedSize, other: Any) -> Any:
        if isinstance(other, _core.Tensor):
            return function(other, self) if swapped else function(self, other)
        if not isinstance(other, (int, Size)):
            if isinstance(other, float):
                return getattr(float_of(self), name)(other)
            return NotImplemented
        if name == "__floordiv__" and not (self >= 0 and other > 0):
            return self.recorder.fix(plain(self), "read as a number") // int(other)
        if name == "__rfloordiv__" and not (other >= 0 and self > 0):
            return int(other) // self.recorder.fix(plain(self), "read as a number")
        return self.recorder.size(own(plain(self), plain(other)))

    return method


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "rfloordiv"):
    setattr(TracedSize, f"__{_name}__", _arithmetic(f"__{_name}__"))
setattr(TracedSize, "__neg__", lambda self: self.recorder.size(-plain(self)))  # noqa: B010


def made_size(recorder: Recorder, dim: Dim) -> Any:
    """A size as the function is to see it."""
    if isinstance(dim, int):
        return dim
    made = TracedSize()
    made.terms, made.recorder = dim.terms, recorder
    return made


def _from_own() -> bool:
    """Whether kiln's own code asks: the caller of the method that asks this."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and is_own(frame)


class Traced:
    """A tensor some of whose sizes vary."""

    __slots__ = ("__dict__", "__weakref__", "recorder", "whole")

    def __init__(self, whole: Any, recorder: Recorder) -> None:
        self.whole, self.recorder = whole, recorder

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return _core.Tensor

    @property
    def shape(self) -> Any:
        """The sizes."""
        return Shape([made_size(self.recorder, d) for d in self.recorder.shape_of(self.whole)])

    @property
    def ndim(self) -> int:
        """How many dims it has."""
        return int(self.whole.ndim)

    def dim(self) -> int:
        """How many dims it has."""
        return self.ndim

    ndimension = dim

    def size(self, dim: int | None = None) -> Any:
        """The sizes, or the size of one dim."""
        return self.shape if dim is None else self.shape[dim]

    def stride(self, dim: int | None = None) -> Any:
        """The strides, sizes that vary as such."""
        self.recorder.asked(self.whole, "stride", sys._getframe(1))
        place = self.recorder.place(self.whole)
        if place is None:
            raise self.recorder.size_read(0, "reads strides of a view whose sizes vary")
        strides = tuple([self.recorder.size(n) if isinstance(n, Size) else n for n in place.strides])
        return strides if dim is None else strides[dim]

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """Whether the elements lie in memory in order."""
        self.recorder.asked(self.whole, "is_contiguous", sys._getframe(1))
        return bool(self.whole.is_contiguous(memory_format))

    def numel(self) -> Any:
        """How many elements it has."""
        return self.shape.numel()

    nelement = numel

    def is_inference(self) -> bool:
        """Whether it was made in inference mode."""
        self.recorder.asked(self.whole, "is_inference", sys._getframe(1))
        return bool(self.whole.is_inference())

    def storage_offset(self) -> Any:
        """Where it begins in its storage."""
        self.recorder.asked(self.whole, "storage_offset", sys._getframe(1))
        place = self.recorder.place(self.whole)
        if place is None:
            raise self.recorder.size_read(0, "reads the offset of a view whose sizes vary")
        return self.recorder.size(place.offset) if isinstance(place.offset, Size) else place.offset

    def element_size(self) -> int:
        """Bytes per element."""
        return int(self.whole.element_size())

    def is_floating_point(self) -> bool:
        """Whether the dtype is a float one."""
        return bool(self.whole.dtype.is_floating_point)

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of a 0-d tensor")
        return self._count("read as a number by len()")

    def _count(self, what: str) -> int:
        size = self.shape[0]
        return self.recorder.fix(plain(size), what) if isinstance(size, Size) else size

    def __iter__(self) -> Any:
        if not self.ndim:
            raise TypeError("iteration over a 0-d tensor")
        return iter(
            [getitem.getitem(self, k) for k in range(self._count("read as a number to iterate over it"))]
        )

    def __repr__(self) -> str:
        return self.recorder.text_of(self.whole)

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are recorded."""
        self.recorder.asked(self.whole, "requires_grad", sys._getframe(1))
        return bool(self.whole.requires_grad)

    def requires_grad_(self, requires_grad: bool = True) -> Traced:
        """As of a tensor."""
        self.whole.requires_grad_(requires_grad)
        return self

    def detach(self) -> Traced:
        """The same memory without history."""
        return self._alias(self.whole.detach())

    @property
    def data(self) -> Traced:
        """The same memory without history."""
        return self._alias(self.whole.data)

    def _alias(self, made: Any) -> Traced:
        self.recorder.value(made)
        return Traced(made, self.recorder)

    @staticmethod
    def applied(cls: Any, args: tuple[Any, ...]) -> Any:
        """A call of an autograd.Function with such a tensor."""
        recorder: Any = _recorder_of(args)
        return recorder.during(lambda: recorder.applied(cls, args))

    def backward(self, *args: Any, **kwargs: Any) -> Any:
        """A trace takes no gradients."""
        return self.recorder.refuse("calls backward")

    def __setitem__(self, key: Any, value: Any) -> None:
        getitem.setitem(self, key, value)

    def __contains__(self, element: Any) -> bool:
        return bool((self == element).any())

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """The tensor in another dtype."""
        return interop.to(self, *args, **kwargs)

    def repeated(self, y: Any) -> Any:
        """An array as one of this."""
        return arithmetic.clone(y)

    def __deepcopy__(self, memo: Any) -> Any:
        return arithmetic.clone(self)


def _asked(name: str) -> property:
    """An attribute that the recorder is asked for."""

    def get(self: Traced) -> Any:
        self.recorder.asked(self.whole, name, sys._getframe(1))
        return getattr(self.whole, name)

    return property(get)


def _reading(name: str) -> Callable[..., Any]:
    """What reads values, which a trace has not."""

    def method(self: Traced, *args: Any, **kwargs: Any) -> Any:
        return self.recorder.ask(self.whole, name, *args, **kwargs)

    return method


_READ = "item tolist numpy data_ptr __bool__ __float__ __int__ __index__ __array__ __complex__".split()


def _attach() -> None:
    """Methods and operators as tensors have them."""
    for name in _READ:
        setattr(Traced, name, _reading(name))
    own = set(vars(Traced))
    tensor: Any = _core.Tensor
    for name in ("dtype", "device", "layout", "itemsize", *samples.KINDS):
        setattr(Traced, name, samples._of_whole(name))
    for name in "grad_fn is_leaf _version grad output_nr retains_grad _base".split():
        setattr(Traced, name, _asked(name))
    for name in ("T", "mT", "H", "mH", "real", "where", "type_as", "cpu", "__format__"):
        setattr(Traced, name, vars(tensor)[name])
    for name, dtype in samples._CASTS.items():
        setattr(Traced, name, samples._cast(dtype))
    casts = samples._CASTS.keys()
    registry.attach(Traced, lambda function: function, lambda name: name not in own | casts)
    for name, function in ops.OPERATORS.items():
        setattr(Traced, f"__{name}__", _operator(function))
        if name in ops.REFLECTED:
            setattr(Traced, f"__r{name}__", samples._reflected(function))
            setattr(Traced, f"__i{name}__", samples._in_place(function))
    Traced.__hash__ = object.__hash__  # type: ignore[method-assign]


def _operator(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Traced, *others: Any) -> Any:
        return NotImplemented if others and type(others[0]) in FIRST else function(self, *others)

    return method


FIRST: set[type] = set()  # whose own operators are asked beside a tensor: kiln/scripting


def nested(data: Any, dtype: str | None) -> Any:
    """A tensor of numbers in sequences, some of which are sizes that vary."""
    if dtype is None:
        dtype = _core.default_dtype_name() if _has_float(data) else "int64"
    if isinstance(data, (tuple, list)):
        return concatenation.stack([nested(x, dtype) for x in data])
    return data.as_tensor(dtype) if type(data) is TracedFloat else constants.full_((), data, dtype=dtype)


def _has_float(data: Any) -> bool:
    return any(map(_has_float, data)) if isinstance(data, (tuple, list)) else isinstance(data, float)


def _recorder_of(values: Any) -> Recorder | None:
    for x in values:
        if type(x) in (Traced, TracedSize, TracedFloat):
            recorder: Recorder = x.recorder
            return recorder
        if type(x) in (list, tuple, Shape):
            found = _recorder_of(x)
            if found is not None:
                return found
    return None


def _whole(x: Any) -> Any:
    return x.whole if type(x) is Traced else x


def interpret(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of an op with a Traced or a size that varies among its arguments."""
    recorder = _recorder_of((args, tuple(kwargs.values())))
    if recorder is None or any(isinstance(x, Value) for x in (*args, *kwargs.values())):
        return NotImplemented  # (a function that control flow runs meets it: kiln/func/subgraph.py)
    given = {name: value for name, value in kwargs.items() if name != "out"}
    out = kwargs.get("out")
    bound = op.bind(args, given)
    if bound and type(bound[0]) is TracedFloat:  # as what a new or an old tensor is filled with
        if op.name == "full" and bound[2] in AT_ONCE:
            return bound[0].as_tensor(bound[2]).expand(bound[1]).clone()
        if op.name == "clone" and out is not None and out.dtype.name in AT_ONCE:
            return out.copy_(bound[0].as_tensor(out.dtype.name))
    bound = operands(op, bound)
    symbols: list[Any] = []
    concrete: list[Any] = []

    def number(x: Any) -> Any:
        symbols.append(plain(x))
        return recorder.value_of(symbols[-1]) if isinstance(x, Size) else x

    for param, value in zip(op.params, bound):
        if param.kind == "Z":
            many = type(value) in (tuple, list, Shape) or isinstance(value, (tuple, list))
            sizes = [number(x) for x in (value if many else (value,))]
            concrete.append(tuple(sizes))
        elif param.kind == "L":
            symbols += value
            concrete.append([_whole(x) for x in value])
        elif param.kind == "S":
            concrete.append(recorder.fixed(value))
        elif value is None:
            concrete.append(None)
        elif isinstance(value, Size):
            # (an exponent is a part of the kernel)
            concrete.append(number(recorder.fix(value, "as an exponent") if op.name == "pow" else value))
        else:
            symbols.append(value)
            concrete.append(_whole(value))
    recorder.pending = (op, symbols)
    try:
        if out is not None:
            recorder.during(lambda: op.handle(*concrete, out=_whole(out)))
            return out
        result = recorder.during(lambda: _called(op, concrete))
    finally:
        recorder.pending = None
    return recorder.wrapped(result)


def _called(op: Op, bound: list[Any]) -> Any:
    """One call of the core, past the forms that a public name has."""
    structure: list[Any] = []
    operands: list[Any] = []
    for param, value in zip(op.params, bound):
        if param.kind == "Z":
            operands += value
            structure.append(len(value))
        elif param.kind == "L":
            operands += value
            structure.append(len(value))
        elif param.kind == "S":
            fixed = _core.plain(value)
            fixed = tuple(fixed) if isinstance(fixed, list) else fixed
            if op.native in ("permute", "slice") and not isinstance(fixed, tuple):
                fixed = (fixed,)
            structure.append(fixed)
        elif value is None:
            structure.append(None)
        else:
            operands.append(value)
            if op.kind != "pointwise":
                letter = "t" if isinstance(value, _core.Tensor) else _letter(value)
                structure.append(letter)
    results = _core.call_op(op.handle, tuple(structure), tuple(operands))
    return results if len(results) > 1 else results[0]


def _letter(x: Any) -> str:
    return "b" if isinstance(x, bool) else "i" if isinstance(x, int) else "f"


_attach()
_core.set_symbolic_types((Value, Scalar, Size, samples.Batched, Traced, TracedFloat))
INTERPRETERS.append(interpret)
