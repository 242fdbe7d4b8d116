"""Data in and out: tensors of Python numbers, NumPy arrays and bytes, and back."""

from __future__ import annotations

from typing import Any

from kiln import _core
from kiln.errors import describe, message, warn
from kiln.late import later
from kiln.ops.creation.constants import settle
from kiln.ops.elementwise.arithmetic import clone, convert
from kiln.table.arguments import dtype_name, recorder_here
from kiln.table.public import methods, public
from kiln.table.record import Tensor
from kiln.table.registry import forms

_deep_copy = later("copy", "deepcopy")


def _is_buffer(data: Any) -> bool:
    """Whether data is an array of another library (a NumPy array or scalar), told without importing it."""
    return hasattr(data, "__array_interface__")


def _from_array(data: Any) -> Any:
    """A copy of an array in memory of kiln's own."""
    if data.dtype.byteorder not in "=|<" or not data.dtype.isnative:
        data = data.astype(data.dtype.newbyteorder("="))
    if data.ndim and min(data.strides, default=0) < 0:
        data = data.copy()
    return clone(_core.from_buffer(data))


def _of_arrays(data: Any) -> bool:
    """Whether data is a sequence, or a sequence of sequences, of NumPy arrays."""
    for _ in range(64):  # no tensor has more dims, and a list may hold itself
        if not isinstance(data, (list, tuple)) or not data:
            break
        data = data[0]
    return bool(_is_buffer(data) and not isinstance(data, _core.Tensor) and data.ndim)


def _as_array(data: Any) -> Any:
    """Another library's array (JAX's, a column of pandas) as NumPy's, of the same memory if it can be; else
    `data`.
    """
    if isinstance(data, (_core.Tensor, list, tuple, int, float)) or _is_buffer(data):
        return data
    if not hasattr(data, "__array__"):
        return data
    import numpy

    return numpy.asarray(data)


def _is_plain(data: Any) -> bool:
    """Whether data is a list that begins with a Python number, or of lists and tuples that do."""
    if type(data) is not list or not data:
        return False
    first = data[0]
    if type(first) in _SEQUENCES and first:
        first = first[0]
    return type(first) in _NUMBERS


_SEQUENCES, _NUMBERS = (list, tuple), (int, float, bool)


@public("tensor", method=False, raw=True, dtypes="all")
def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False
) -> Any:
    """A new tensor with a copy of `data`: numbers, nested sequences of them, a NumPy array, a tensor.

    Python floats give the default dtype, ints int64, bools bool, unless `dtype` says otherwise. ValueError
    for ragged sequences and for texts in them, RuntimeError for what has no dtype, TypeError for what is no
    number of one that is given.

    >>> kiln.tensor([[1, 2], [3, 4]])
    tensor([[1, 2],
            [3, 4]])
    """
    if dtype is None and device is None and _is_plain(data):  # what loops over steps make at each of them
        plain = _from_nested(data, None)
        return plain.requires_grad_() if requires_grad else plain
    data = _as_array(data)
    if isinstance(data, _core.Tensor):
        warn(
            "To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() or "
            "sourceTensor.detach().clone().requires_grad_(True), rather than torch.tensor(sourceTensor)."
        )
        result = clone(data.detach())
    elif _is_buffer(data):
        result = _from_array(data)
    else:
        if not isinstance(data, (list, tuple, int, float, bool)) and _is_sequence(data):
            data = list(data)
        if _of_arrays(data):
            import numpy

            result = _from_array(numpy.array(data))
        else:
            result = _from_nested(data, None if dtype is None else dtype_name(dtype))
    if dtype is not None and dtype_name(dtype) != dtype_name(result.dtype):
        result = convert(result, dtype_name(dtype))
    return settle(result, requires_grad, device, "tensor")


def _from_nested(data: Any, dtype: str | None) -> Any:
    """A tensor of numbers in sequences; what is none is refused with PyTorch's types of errors."""
    try:
        return _core.from_nested(data, dtype)
    except TypeError as error:
        recorder = recorder_here()
        made = None if recorder is None else recorder.nested(data, dtype)
        if made is not None:
            return made
        text, first, depth = str(error), data, 0
        while isinstance(first, (list, tuple)) and first and depth < 64:
            first, depth = first[0], depth + 1
        if isinstance(first, str) and depth:
            raise ValueError(f"too many dimensions 'str': {text}") from None
        kind = text.rpartition(" ")[2]
        if dtype is None and "expected numbers" in text and kind not in ("str", "bytes"):
            raise RuntimeError(f"Could not infer dtype of {kind}: {text}") from None
        raise


def _is_sequence(data: Any) -> bool:
    """Whether it has elements in an order; texts, bytes and dicts are none of numbers."""
    indexed = hasattr(type(data), "__len__") and hasattr(type(data), "__getitem__")
    return indexed and not isinstance(data, (str, bytes, dict))


def beside(data: Any) -> Any:
    """A NumPy array that meets a tensor in an operator or key, as a tensor of its own; else None."""
    return tensor(data) if _is_buffer(data) and data.dtype.kind in "biuf" else None


@public("as_tensor", method=False, raw=True, dtypes="all")
def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Any:
    """`data` as a tensor, sharing memory with a tensor or NumPy array where the dtype stays.

    >>> kiln.as_tensor([1.0, 2.0])
    tensor([1., 2.])
    """
    data = _as_array(data)
    if _is_buffer(data) and not isinstance(data, _core.Tensor):
        data = _core.from_buffer(data)
    if isinstance(data, _core.Tensor):
        same = dtype is None or dtype_name(dtype) == dtype_name(data.dtype)
        return settle(data if same else convert(data, dtype_name(dtype)), False, device, "as_tensor")
    return tensor(data, dtype=dtype, device=device)


@public(
    "from_numpy",
    differs="no complex numbers, no uint16, uint32, uint64",
    method=False,
    dtypes="all",
    differentiable=False,
)
def from_numpy(ndarray: Any) -> Any:
    """The array's memory as a tensor: what is written to one is seen by the other.

    TypeError for anything but a NumPy array, or for elements no dtype holds (objects, strings).

    >>> import numpy
    >>> kiln.from_numpy(numpy.arange(3))
    tensor([0, 1, 2])
    """
    if not _is_buffer(ndarray) or not hasattr(ndarray, "strides"):
        raise TypeError(message("from_numpy", "a NumPy array", describe(ndarray)))
    if ndarray.dtype.hasobject or ndarray.dtype.kind not in "biuf":
        raise TypeError(
            message(
                "from_numpy",
                "an array of bool, integers or floats",
                f"dtype {ndarray.dtype}",
                "convert it first",
            )
        )
    return _core.from_buffer(ndarray)


@public("frombuffer", method=False, dtypes="all", differentiable=False)
def frombuffer(
    buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0, requires_grad: bool = False
) -> Any:
    """`count` elements (-1: all) of a bytes-like object from byte `offset` on, sharing its memory: shape
    [count].

    ValueError for what is no buffer, for no elements, and for more than there are.

    >>> kiln.frombuffer(bytearray(b"abc"), dtype=kiln.uint8)
    tensor([97, 98, 99], dtype=kiln.uint8)
    """
    try:
        length = memoryview(buffer).nbytes
    except TypeError:
        raise ValueError(message("frombuffer", "a bytes-like object", describe(buffer))) from None
    if not length or not count:
        raise ValueError(f"both buffer length ({length}) and count ({count}) must not be 0")
    if not 0 <= offset < length:
        raise ValueError(
            f"offset ({offset} bytes) must be non-negative and no greater than buffer length ({length} "
            "bytes) minus 1"
        )
    return settle(
        _core.frombuffer(buffer, dtype_name(dtype), count, offset), requires_grad, None, "frombuffer"
    )


@public("is_tensor", method=False, raw=True, dtypes="", differentiable=False)
def is_tensor(obj: Any) -> bool:
    """Whether obj is a tensor.

    >>> kiln.is_tensor(1)
    False
    """
    return isinstance(obj, _core.Tensor)


def numpy(self: Any, *, force: bool = False) -> Any:
    """The tensor's memory as a NumPy array. RuntimeError if it requires gradients
    where they are recorded, TypeError for bfloat16.

    With `force`, detached and copied if need be.
    """
    import numpy as np

    if self.dtype is _core.bfloat16:
        raise TypeError("numpy: NumPy has no bfloat16; use x.float().numpy()")
    if self.requires_grad and (force or _core.grad_enabled()):
        if not force:
            raise RuntimeError(
                "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
            )
        self = self.detach()
    return np.asarray(memoryview(self))


def array(self: Any, dtype: Any = None, copy: bool | None = None) -> Any:
    """What numpy.array(tensor) takes: the tensor's memory, or a copy where `dtype` or `copy` ask for one.

    ValueError where `dtype` needs a copy and `copy` forbids it; else as `x.numpy()`.
    """
    found = numpy(self)
    if dtype is not None and found.dtype != dtype:
        if copy is False:
            raise ValueError(message("__array__", "copy=None or True", f"copy=False with dtype {dtype}"))
        return found.astype(dtype)
    return found.copy() if copy else found


def deepcopy(self: Any, memo: dict[Any, Any]) -> Any:
    """A leaf of the same type, values, gradient and attributes; tensors of one storage, copied together,
    share one again.

    RuntimeError for a tensor with a history.
    """
    if not self.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
            "protocol at the moment; "
            "use x.detach().clone()"
        )
    if id(self) not in memo:
        made: Any = _same_place(self.detach(), memo)
        if type(self) is not _core.Tensor:
            made = _core.Tensor._make_subclass(type(self), made)
        memo[id(self)] = made.requires_grad_(self.requires_grad)
        grad = self.grad
        if grad is not None:
            made.grad = deepcopy(grad, memo)
            # alive as long as memo knows its id, as copy.deepcopy keeps what it copies
            memo.setdefault(id(memo), []).append(grad)
        set_attributes(made, _deep_copy(attributes(self), memo))
    return memo[id(self)]


def attributes(x: Any) -> Any:
    """What a program put on a tensor, as pickles keep it: a dict, (dict, values of slots), or None."""
    return x.__getstate__()


def set_attributes(x: Any, state: Any) -> None:
    """Gives a tensor what `attributes` found at another one."""
    if state is None:
        return
    if hasattr(x, "__setstate__"):
        x.__setstate__(state)
        return
    names, slots = state if isinstance(state, tuple) else (state, None)
    x.__dict__.update(names or {})
    for name, value in (slots or {}).items():
        setattr(x, name, value)


def _same_place(x: Tensor, memo: dict[Any, Any]) -> Any:
    """The tensor in a copy of its storage: one for all tensors that look at that storage."""
    count = x._memory // x.element_size()
    if not count or not x.numel():
        return clone(x)
    key = (x._place, x._memory)
    if key not in memo:
        memo[key] = clone(x.as_strided((count,), (1,), 0))
    found = memo[key] if memo[key].dtype is x.dtype else memo[key].view(x.dtype)
    return found.as_strided(x.shape, x.stride(), x.storage_offset()).detach()


def copy(self: Any) -> Any:
    """A leaf of the same memory, recording gradients if the tensor does."""
    return self.detach().requires_grad_(self.requires_grad)


forms("numpy", "(self, *, force=False) -> NDArray")
methods({"numpy": numpy, "__array__": array, "__copy__": copy, "__deepcopy__": deepcopy})
