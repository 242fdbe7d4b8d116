"""Tensors and other libraries' arrays: DLPack, NumPy's functions, and the call forms of `to`."""

from __future__ import annotations

from typing import Any

from kiln import _core
from kiln.device import check as check_device
from kiln.device import device
from kiln.errors import describe, message
from kiln.ops.creation import data
from kiln.ops.creation.constants import settle
from kiln.ops.elementwise.arithmetic import clone, convert
from kiln.ops.views.memory_formats import copied, in_format
from kiln.table import registry
from kiln.table.arguments import dtype_name
from kiln.table.public import methods, public
from kiln.table.record import Tensor
from kiln.table.registry import forms

_DL_CPU = (1, 0)  # DLPack's device type and number


def lent(x: Any) -> memoryview:
    """The bytes of a contiguous tensor, to read or to write."""
    if not x.numel():
        return memoryview(b"")
    return memoryview(x.view(_core.int16) if x.dtype is _core.bfloat16 else x).cast("B")


# ---- DLPack ----


def dlpack(
    self: Any, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
) -> Any:
    """The tensor's memory as a DLPack capsule, which is used once; of version 1 if `max_version` allows it.

    BufferError for a tensor that requires gradients, or another device.
    """
    if stream not in (None, -1):
        raise BufferError(message("__dlpack__", "stream None on the CPU", describe(stream)))
    if dl_device is not None and tuple(map(int, dl_device)) != _DL_CPU:
        raise BufferError(message("__dlpack__", f"dl_device None or {_DL_CPU}", str(dl_device)))
    if self.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    versioned = max_version is not None and max_version[0] >= 1
    return _core.to_capsule(clone(self) if copy else self, versioned, bool(copy))


def dlpack_device(self: Any) -> tuple[int, int]:
    """(device type, number) as DLPack counts them: the CPU is (1, 0)."""
    return _DL_CPU


forms("from_dlpack", "(ext_tensor: object, *, device=None, copy=None)")


@public("from_dlpack", method=False, dtypes="all", differentiable=False)
def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Any:
    """Another library's array (anything with `__dlpack__`, or a capsule) as a tensor that shares its memory.

    `copy=True` copies it. RuntimeError for a capsule used before, BufferError for memory or elements kiln has
    no use for, TypeError for anything else.

    >>> import numpy
    >>> kiln.from_dlpack(numpy.arange(3))
    tensor([0, 1, 2])
    """
    capsule = ext_tensor
    if hasattr(ext_tensor, "__dlpack__"):
        if int(ext_tensor.__dlpack_device__()[0]) != _DL_CPU[0]:
            raise BufferError(
                message("from_dlpack", "memory of the CPU", str(ext_tensor.__dlpack_device__()))
            )
        capsule = _capsule(ext_tensor, copy)
    elif type(ext_tensor).__name__ != "PyCapsule":
        raise TypeError(message("from_dlpack", "an array with __dlpack__ or a capsule", describe(ext_tensor)))
    result = _core.from_capsule(capsule)
    result = clone(result) if copy and capsule is ext_tensor else result
    return settle(result, False, device, "from_dlpack")


def _capsule(array: Any, copy: bool | None) -> Any:
    """The array's capsule: of version 1 where its library knows of versions."""
    options: dict[str, Any] = {} if copy is None else {"copy": copy}
    try:
        return array.__dlpack__(max_version=(1, 0), **options)
    except TypeError:  # from before versions
        capsule = array.__dlpack__()
    if copy:
        raise BufferError(
            message("from_dlpack", "an array that can copy itself", describe(array), "copy it first")
        )
    return capsule


forms("to_dlpack", "-> object")


@public("to_dlpack", method=False, dtypes="all", differentiable=False)
def to_dlpack(tensor: Any) -> Any:
    """The tensor's memory as a DLPack capsule, which is used once.

    >>> kiln.from_dlpack(kiln.to_dlpack(kiln.ones(2)))
    tensor([1., 1.])
    """
    return dlpack(tensor)


# ---- NumPy's functions ----


def array_ufunc(self: Any, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """NumPy's function on tensors: that of kiln with the same name; TypeError where there is none.

    `numpy.add(x, 1)`, `numpy.sin(x)` and `number * x` stay tensors, with their history.
    """
    name = _NUMPY_NAMES.get(ufunc.__name__, ufunc.__name__)
    if method != "__call__" or kwargs or not registry.has_function(name):
        shown = f"numpy.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
        raise TypeError(f"{shown}: not for tensors; use kiln's functions, or x.numpy() for an array")
    return registry.function(name)(*(_operand(x) for x in inputs))


# where NumPy's name is another
_NUMPY_NAMES = {
    "divide": "div", "equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt",
    "greater_equal": "ge", "invert": "bitwise_not", "power": "pow", "negative": "neg", "absolute": "abs",
    "subtract": "sub", "multiply": "mul", "left_shift": "bitwise_left_shift",
    "right_shift": "bitwise_right_shift", "degrees": "rad2deg", "radians": "deg2rad",
}  # fmt: skip


def _operand(x: Tensor) -> Any:
    """A ufunc's operand: an array as a tensor, NumPy's number as Python's: the tensor's dtype stays."""
    if not hasattr(x, "__array_interface__"):
        return x
    return data.tensor(x) if hasattr(x, "__setitem__") else x.item()


# ---- dtypes and devices ----


def _is_dtype(x: Tensor) -> bool:
    return isinstance(x, (_core.dtype, type)) and not isinstance(x, _core.Tensor)


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `to` by name, whichever of its three forms was used."""
    names: tuple[str, ...] = ("device", "dtype", "non_blocking", "copy")
    if args and isinstance(args[0], _core.Tensor):
        names, args = ("dtype", "non_blocking", "copy"), (args[0].dtype, *args[1:])
    elif args and _is_dtype(args[0]):
        names = names[1:]
    bound = dict(zip(names, args))
    unknown = kwargs.keys() - ({"device", "dtype", "non_blocking", "copy", "memory_format"} - bound.keys())
    if len(args) > len(names) or unknown:
        shown = min(unknown) if unknown else describe(args[-1])
        raise TypeError(f"to(): unexpected or repeated argument {shown}")
    return {**bound, **kwargs}


def to(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The tensor as another dtype, in another `memory_format`; itself if nothing changes, a copy if `copy`.
    Device is the CPU.

    `to(dtype, non_blocking=False, copy=False)`, `to(device=None, dtype=None, non_blocking=False, copy=False)`
    or `to(other, non_blocking=False, copy=False)` with a tensor whose dtype is taken. A device other than the
    CPU raises what PyTorch does without it (AssertionError for CUDA). TypeError for other arguments,
    RuntimeError for a format of other dims.

    >>> kiln.tensor([1, 2]).to(kiln.float32)
    tensor([1., 2.])
    """
    bound = _arguments(args, kwargs)
    dtype, place, form = bound.get("dtype"), bound.get("device"), bound.get("memory_format")
    if not (dtype is None or _is_dtype(dtype)) or _is_dtype(bound.get("non_blocking")):
        raise TypeError(message("to", "a dtype, a device or a tensor", describe(dtype)))
    if place is not None:
        if not isinstance(place, (str, int, device)):
            raise TypeError(message("to", "a dtype, a device or a tensor", describe(place)))
        check_device("to", place)
    if dtype is not None and dtype_name(dtype) != dtype_name(self.dtype):
        return in_format("to", convert(self, dtype_name(dtype)), form)
    if bound.get("copy"):
        return copied("to", self, form)
    return self if form is None else in_format("to", self, form)


methods({
    "__dlpack__": dlpack,
    "__dlpack_device__": dlpack_device,
    "__array_ufunc__": array_ufunc,
    "to": to,
})  # fmt: skip
