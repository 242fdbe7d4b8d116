"""PyTorch's old names of dtypes and constructors: FloatTensor(2, 3), Tensor([1, 2]), x.new(...).

A class such as FloatTensor makes tensors of its dtype and recognises them in `isinstance`; no tensor is an
instance of it otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln import _core
from kiln.device import device as Device
from kiln.errors import describe, message, warn
from kiln.ops.creation.constants import empty, sizes_given
from kiln.ops.creation.data import as_tensor
from kiln.ops.creation.data import tensor as make_tensor
from kiln.ops.creation.interop import to
from kiln.ops.views.storage import UntypedStorage, set_
from kiln.table.arguments import dtype_name, type_name
from kiln.table.callables import hide_frames_of_calls
from kiln.table.kinds import COMPUTE
from kiln.table.public import methods, public
from kiln.table.registry import forms

_NAMES = {type_name(name): name for name in COMPUTE}  # "Float" -> "float32"


def named_dtype(text: str) -> Any:
    """The dtype of "kiln.FloatTensor", which PyTorch calls "torch.FloatTensor". ValueError for others."""
    space, _, short = text.rpartition(".")
    if space not in ("kiln", "torch") or short.removesuffix("Tensor") not in _NAMES:
        raise ValueError(f"invalid type: {text!r}; expected a dtype such as kiln.float32")
    return getattr(_core, _NAMES[short.removesuffix("Tensor")])


def _is_size(x: Any) -> bool:
    return hasattr(type(x), "__index__") and not isinstance(x, bool) and not hasattr(x, "__len__")


def _of_one(data: Any, dtype: Any) -> Any:
    """A tensor of what the constructor was given alone."""
    if isinstance(data, _core.Tensor):
        if dtype is not None and data.dtype is not dtype:
            raise TypeError(message("new", f"a tensor of dtype {dtype}", describe(data), "use x.to(dtype)"))
        return data.view_as(data)
    kind = dtype or _core.get_default_dtype()
    if isinstance(data, UntypedStorage):
        return set_(empty(0, dtype=kind), data)
    if isinstance(data, str):
        raise TypeError(f"new(): invalid data type '{type(data).__name__}'")
    if isinstance(data, (dict, set)) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise TypeError(f"new(): data must be a sequence (got {type(data).__name__})")
    return as_tensor(data, dtype=kind)


def construct(dtype: Any, /, *args: Any, device: Any = None, **named: Any) -> Any:
    """What PyTorch's old constructors make: of sizes, of a sequence of numbers, of a tensor or its memory.

    Of a dtype, or of the default one where that is None.
    """
    if device is not None and (kind := Device(device).type) != "cpu":
        raise RuntimeError(f"legacy constructor expects device type: cpu but device type: {kind} was passed")
    if named and not args and len(named) == 1 and next(iter(named)) in ("size", "data"):
        (name, value), named = next(iter(named.items())), {}
        args = (_core.Size(value),) if name == "size" else (value,)
    if named:
        raise TypeError(f"new() received an unexpected keyword argument '{min(named)}'")
    if len(args) == 1 and not _is_size(args[0]) and not isinstance(args[0], _core.Size):
        return _of_one(args[0], dtype)
    if any(not _is_size(n) for n in args) and not isinstance(args[0], _core.Size):
        raise TypeError(message("new", "sizes, or one sequence", ", ".join(map(describe, args))))
    sizes = sizes_given(args, "new") if args else (0,)
    return empty(tuple(int(n) for n in sizes), dtype=dtype or _core.get_default_dtype())


class TensorType(type):
    """The type of FloatTensor and its like: calling one makes a tensor, and its instances are tensors."""

    dtype: Any

    def __new__(cls, name: str, bases: Any, space: dict[str, Any], dtype: str) -> Any:
        space["__module__"] = "kiln"
        return super().__new__(cls, name, bases, space)

    def __init__(cls, name: str, bases: Any, space: dict[str, Any], dtype: str) -> None:
        super().__init__(name, bases, space)
        cls.dtype = getattr(_core, dtype)

    def __call__(cls, *args: Any, **kwargs: Any) -> _core.Tensor:
        made: _core.Tensor = construct(cls.dtype, *args, **kwargs)
        return made

    def __getattr__(cls, name: str) -> Any:
        """A method of tensors, as of `kiln.Tensor`: `FloatTensor.add(x, y)`."""
        if name.startswith("__"):
            raise AttributeError(f"type object '{cls.__name__}' has no attribute '{name}'")
        return getattr(_core.Tensor, name)

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, _core.Tensor) and x.dtype is cls.dtype


hide_frames_of_calls(TensorType)


class FloatTensor(metaclass=TensorType, dtype="float32"):
    """Makes float32 tensors of sizes or of numbers.

    >>> kiln.FloatTensor([1, 2]), isinstance(kiln.ones(2), kiln.FloatTensor)
    (tensor([1., 2.]), True)
    """


class DoubleTensor(metaclass=TensorType, dtype="float64"):
    """Makes float64 tensors of sizes or of numbers."""


class HalfTensor(metaclass=TensorType, dtype="float16"):
    """Makes float16 tensors of sizes or of numbers."""


class BFloat16Tensor(metaclass=TensorType, dtype="bfloat16"):
    """Makes bfloat16 tensors of sizes or of numbers."""


class LongTensor(metaclass=TensorType, dtype="int64"):
    """Makes int64 tensors of sizes or of numbers."""


class IntTensor(metaclass=TensorType, dtype="int32"):
    """Makes int32 tensors of sizes or of numbers."""


class ShortTensor(metaclass=TensorType, dtype="int16"):
    """Makes int16 tensors of sizes or of numbers."""


class CharTensor(metaclass=TensorType, dtype="int8"):
    """Makes int8 tensors of sizes or of numbers."""


class ByteTensor(metaclass=TensorType, dtype="uint8"):
    """Makes uint8 tensors of sizes or of numbers."""


class BoolTensor(metaclass=TensorType, dtype="bool"):
    """Makes bool tensors of sizes or of numbers."""


def set_default_tensor_type(t: Any) -> None:
    """Sets the default dtype by its old name, "kiln.DoubleTensor", or class. TypeError for no float's.

    Deprecated, which a warning says.

    >>> kiln.set_default_tensor_type(kiln.FloatTensor)
    """
    warn(
        "torch.set_default_tensor_type() is deprecated as of PyTorch 2.1, please use "
        "torch.set_default_dtype() and torch.set_default_device() as alternatives."
    )
    _core.set_default_dtype(t.dtype if isinstance(t, TensorType) else named_dtype(t))


@public("get_device", dtypes="all", differentiable=False)
def get_device(input: Any) -> int:
    """-1: the CPU has no ordinal.

    >>> kiln.get_device(kiln.ones(1))
    -1
    """
    return -1


forms("typename", "-> str")


@public("typename", method=False, dtypes="", differentiable=False)
def typename(obj: Any, /) -> str:
    """The name of a tensor's dtype as a class, or of another object's type, with its module.

    >>> kiln.typename(kiln.ones(1)), kiln.typename(3)
    ('kiln.FloatTensor', 'int')
    """
    if isinstance(obj, _core.Tensor):
        library = str(obj.dtype).partition(".")[0]  # as dtypes are shown
        return f"{library}.{type_name(dtype_name(obj.dtype))}Tensor"
    if isinstance(obj, _core.Op):
        return f"kiln.{getattr(obj, '__name__', obj.record.name)}"
    named = obj if hasattr(obj, "__qualname__") else type(obj)
    module = getattr(named, "__module__", None)
    return named.__qualname__ if module in (None, "builtins") else f"{module}.{named.__qualname__}"


# ---- methods ----


def type_(self: Any, dtype: Any = None, non_blocking: bool = False, *, memory_format: Any = None) -> Any:
    """The tensor as a dtype, which "kiln.FloatTensor" (also "torch.") and that class name too; without one,
    that name of its own.

    ValueError for a string that names none.

    >>> kiln.ones(2).type(), kiln.ones(2).type(kiln.int8)
    ('kiln.FloatTensor', tensor([1, 1], dtype=kiln.int8))
    """
    if dtype is None:
        return typename(self)
    if isinstance(dtype, str):
        dtype = named_dtype(dtype)
    elif isinstance(dtype, TensorType):
        dtype = dtype.dtype
    elif dtype is _core.Tensor:
        dtype = _core.get_default_dtype()
    return to(self, dtype, memory_format=memory_format)


def new(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A tensor of this one's dtype, of sizes or of numbers.

    >>> kiln.arange(2).new([5])
    tensor([5])
    """
    return construct(self.dtype, *args, **kwargs)


def _mapped(self: Any, name: str, function: Callable[..., Any], *others: Any) -> Any:
    """Writes `function` of each element, and of those of other tensors, into the tensor, one by one."""
    if self.requires_grad:
        raise RuntimeError(
            f"Can't call {name}() on Variable that requires grad. Use var.detach().{name}() instead."
        )
    for other in others:
        if other.dtype is not self.dtype:
            raise TypeError(message(name, f"a tensor of dtype {self.dtype}", describe(other)))
    arrays = [x.expand(self.shape).reshape(-1).tolist() for x in (self, *others)]
    values = [function(*xs) for xs in zip(*arrays)]
    if (text := next((value for value in values if isinstance(value, str)), None)) is not None:
        raise TypeError(message(name, "a function that gives numbers", describe(text)))
    return self.copy_(make_tensor(values, dtype=self.dtype).view(self.shape))


def apply_(self: Any, callable: Callable[[Any], Any]) -> Any:
    """Replaces each element by what a Python function makes of it; slow.

    >>> kiln.arange(3).apply_(lambda v: v * v)
    tensor([0, 1, 4])
    """
    return _mapped(self, "apply_", callable)


def map_(self: Any, tensor: Any, callable: Callable[[Any, Any], Any]) -> Any:
    """Replaces each element by what a Python function makes of it and that of another tensor; slow.

    >>> kiln.arange(3).map_(kiln.tensor(2), max)
    tensor([2, 2, 2])
    """
    return _mapped(self, "map_", callable, tensor)


def map2_(self: Any, x: Any, y: Any, callable: Callable[[Any, Any, Any], Any]) -> Any:
    """Replaces each element by what a Python function makes of it and those of two tensors; slow.

    >>> kiln.arange(3).map2_(kiln.tensor(1), kiln.tensor(9), max)
    tensor([9, 9, 9])
    """
    return _mapped(self, "map2_", callable, x, y)


def tensor_new(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """`kiln.Tensor(...)`: of the default dtype, or of the tensor's; a subclass makes its own."""
    made = construct(None, *args, **kwargs or {})
    return made if cls is _core.Tensor else _core.Tensor._make_subclass(cls, made.detach())


forms("new", "(self, *sizes: int)", "(self, data)")
forms("type", "(self) -> str", "(self, dtype: DType | str, non_blocking: bool = False)")
methods({"new": new, "type": type_, "apply_": apply_, "map_": map_, "map2_": map2_})
CLASSES = (FloatTensor, DoubleTensor, HalfTensor, BFloat16Tensor, LongTensor, IntTensor, ShortTensor,
           CharTensor, ByteTensor, BoolTensor)  # fmt: skip
assert {c.dtype for c in CLASSES} == {getattr(_core, name) for name in COMPUTE}
