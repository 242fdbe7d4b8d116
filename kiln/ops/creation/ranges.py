"""More arrays from nothing: ranges by powers, indices of triangles, given strides, windows of signals."""

from __future__ import annotations

import math
from typing import Any

from kiln import _core
from kiln.errors import warn
from kiln.ops.creation.constants import (
    chosen_dtype,
    empty,
    even_steps,
    expect_numbers,
    full_,
    number_of,
    progression,
    settle,
    sizes_given,
)
from kiln.ops.creation.data import as_tensor, from_numpy, frombuffer, tensor
from kiln.ops.elementwise.arithmetic import clone, convert
from kiln.ops.elementwise.public_arithmetic import pow
from kiln.ops.views.core_views import as_strided, permute
from kiln.ops.views.storage import UntypedStorage
from kiln.table.arguments import dtype_name, run
from kiln.table.kinds import FLOATS
from kiln.table.public import methods, public
from kiln.table.record import Tensor
from kiln.table.registry import forms


def _finished(result: Any, name: str, op: str, options: dict[str, Any]) -> Any:
    """A new array in its dtype, as the remaining keywords ask for it."""
    result = result if dtype_name(result.dtype) == name else convert(result, name)
    device, requires_grad = options.pop("device", None), options.pop("requires_grad", False)
    return settle(result, requires_grad, device, op, options)


@public("logspace", method=False, dtypes="all", differentiable=False)
def logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: Any = None, **options: Any
) -> Any:
    """`steps` numbers from base ** start to base ** end, their exponents evenly spaced. RuntimeError for a
    negative count.

    >>> kiln.logspace(0, 2, 3)
    tensor([  1.,  10., 100.])
    """
    if steps < 0:
        raise RuntimeError("number of steps must be non-negative")
    name = chosen_dtype(dtype, None, options)
    expect_numbers("logspace", start, end)
    exponents = run(even_steps, float(number_of(start)), float(number_of(end)), (steps,), "float64")
    return _finished(pow(float(base), exponents), name, "logspace", options)


@public("range", method=False, dtypes="all", differentiable=False)
def range_(start: Any = 0, end: Any = None, step: Any = 1, *, dtype: Any = None, **options: Any) -> Any:
    """start, start + step, ... up to `end`, which is included; floats unless a dtype is given. As `arange`
    otherwise, which is what to use: a warning says so.

    >>> kiln.range(0, 2)
    tensor([0., 1., 2.])
    """
    warn(
        "torch.range is deprecated and will be removed in a future release because its behavior is "
        "inconsistent with Python's range builtin: use arange, which gives the values of [start, end)"
    )
    start, end, step = number_of(start), number_of(end), number_of(step)
    if end is None:
        start, end = 0, start
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if not (math.isfinite(start) and math.isfinite(end)):
        raise RuntimeError(f"unsupported range: {start} -> {end}")
    if (end - start) * step < 0:
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    name = chosen_dtype(dtype, None, options)
    count = math.floor((end - start) / step) + 1
    if name not in FLOATS:
        start, step = int(start), int(step)
    return _finished(run(progression, start, step, (count,), name), name, "range", options)


@public("scalar_tensor", method=False, raw=True, dtypes="all", differentiable=False)
def scalar_tensor(s: Any, *, dtype: Any = None, **options: Any) -> Any:
    """A 0-d tensor of a number, of the default float dtype unless another is given.

    >>> kiln.scalar_tensor(3)
    tensor(3.)
    """
    return full_((), number_of(s), dtype=chosen_dtype(dtype), **options)


def _triangle_indices(name: str) -> Any:
    def function(row: int, col: int, offset: int = 0, *, dtype: Any = None, **options: Any) -> Any:
        import numpy as np

        for what, size in (("row", row), ("col", col)):
            if size < 0:
                raise RuntimeError(f"{what} must be non-negative, got{size}")
        chosen = chosen_dtype(dtype, "int64")
        if chosen not in ("int32", "int64"):
            raise NotImplementedError(f"{name}: expected dtype int32 or int64, got {chosen}")
        found = np.stack(getattr(np, name)(row, offset, col)).astype(np.int64)
        return _finished(from_numpy(found), chosen, name, options)

    side = "below" if name == "tril_indices" else "above"
    function.__doc__ = f"""Rows and columns [2, count] of the places of a row x col matrix on the `offset`-th
    diagonal and {side} it, row by row. RuntimeError for a negative size.

    >>> kiln.{name}(2, 2).shape
    kiln.Size([2, 3])
    """
    return public(name, method=False, dtypes="int32 int64", differentiable=False)(function)


tril_indices = _triangle_indices("tril_indices")
triu_indices = _triangle_indices("triu_indices")


@public("empty_strided", method=False, dtypes="all", differentiable=False)
def empty_strided(size: Any, stride: Any, *, dtype: Any = None, **options: Any) -> Any:
    """An array of given sizes and strides, in as much memory as they reach. RuntimeError if their numbers
    differ.

    >>> kiln.empty_strided((2, 3), (1, 2)).stride()
    (1, 2)
    """
    sizes, strides = sizes_given((size,), "empty_strided"), tuple(stride)
    if len(sizes) != len(strides):
        raise RuntimeError(
            f"dimensionality of sizes ({len(sizes)}) must match dimensionality of strides ({len(strides)})"
        )
    reach = 0 if 0 in sizes else 1 + sum((n - 1) * s for n, s in zip(sizes, strides))
    memory = empty(reach, dtype=dtype)
    return _finished(
        as_strided.handle(memory, sizes, strides, (0,)), dtype_name(memory.dtype), "empty_strided", options
    )


def new_empty_strided(input: Tensor, size: Any, stride: Any, *, dtype: Any = None, **options: Any) -> Any:
    """`empty_strided` of input's dtype, unless another is given."""
    return empty_strided(size, stride, dtype=chosen_dtype(dtype, input.dtype), **options)


def new_tensor(input: Tensor, data: Any, *, dtype: Any = None, **options: Any) -> Any:
    """`tensor(data)` of input's dtype, unless another is given."""
    return tensor(data, dtype=chosen_dtype(dtype, input.dtype), **options)


@public("empty_permuted", method=False, dtypes="all", differentiable=False)
def empty_permuted(size: Any, physical_layout: Any, *, dtype: Any = None, **options: Any) -> Any:
    """An array whose dims lie in memory in the order `physical_layout`. RuntimeError unless that names each
    once.

    >>> kiln.empty_permuted((2, 3), (1, 0)).stride()
    (1, 2)
    """
    sizes, order = sizes_given((size,), "empty_permuted"), tuple(physical_layout)
    if len(sizes) != len(order):
        raise RuntimeError(
            "Number of dimensions in size does not match the length of the physical_layout; i.e. len(size) = "
            f"{len(sizes)} is not equal to len(physical_layout) = {len(order)}"
        )
    for place, dim in enumerate(order):
        if not 0 <= dim < len(order):
            raise RuntimeError(
                f"Dimension out of range (expected to be between 0 and {len(order) - 1}, but got {dim} at "
                f"index {place})"
            )
    if len(set(order)) != len(order):
        raise RuntimeError("Duplicate dim not allowed")
    memory = empty([sizes[dim] for dim in order], dtype=dtype)
    result = permute.handle(memory, sorted(range(len(order)), key=order.__getitem__))
    return _finished(result, dtype_name(memory.dtype), "empty_permuted", options)


forms(
    "asarray",
    "(obj: Data | bytes | bytearray | memoryview, *, dtype=None, device=None, copy=None, "
    "requires_grad=False)",
)


@public("asarray", method=False, raw=True, dtypes="all", differentiable=False)
def asarray(
    obj: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None, requires_grad: bool = False
) -> Any:
    """`obj` (a tensor, an array, a storage, bytes, numbers, sequences) as a tensor, sharing its memory
    where there is one and the dtype stays; `copy` says that it must not (True) or must (False).

    ValueError where it cannot share memory and must.

    >>> kiln.asarray([1, 2])
    tensor([1, 2])
    """
    if isinstance(obj, (bytes, bytearray, memoryview)):
        obj = frombuffer(obj, dtype=chosen_dtype(dtype))
    if isinstance(obj, UntypedStorage):  # its bytes, as elements of the dtype
        obj = obj.elements(obj._dtype if dtype is None else getattr(_core, chosen_dtype(dtype)))
    result = as_tensor(obj, dtype, device)
    shares = isinstance(obj, _core.Tensor) or hasattr(obj, "__array_interface__")
    kept = shares and (
        dtype is None or dtype_name(dtype) == str(getattr(obj, "dtype", None)).rpartition(".")[2]
    )
    if copy is False and not kept:
        raise ValueError(
            "can't alias arbitrary sequence into a tensor."
            if not shares
            else "can't alias tensor with another dtype."
        )
    if copy and kept:
        result = clone(result)
    if requires_grad:
        result = result.detach().requires_grad_()
    return result


# Windows


def _cosine_terms(count: int, weights: tuple[float, ...]) -> Any:
    """weights[0] - weights[1] cos(t) + weights[2] cos(2 t) - ... for t from 0 to 2 pi."""
    import numpy as np

    t = 2 * np.pi * np.arange(count) / (count - 1)
    return sum((-1) ** k * w * np.cos(k * t) for k, w in enumerate(weights))


def _window(name: str, text: str, values: Any, **defaults: float) -> None:
    """Makes the window function `name`; values(np, count, *numbers) are those of a symmetric window."""

    def function(
        window_length: int, periodic: bool = True, *numbers: float, dtype: Any = None, **options: Any
    ) -> Any:
        import numpy as np

        if window_length < 0:
            raise RuntimeError(
                f"{name} requires non-negative window_length, got window_length={window_length}"
            )
        chosen = chosen_dtype(dtype)
        if chosen not in FLOATS:
            raise RuntimeError(f"{name} expects floating point dtypes, got: {chosen}")
        given = dict(zip(defaults, numbers)) | {k: options.pop(k) for k in list(options) if k in defaults}
        count = window_length + bool(periodic)
        if window_length < 2:
            made = np.ones(window_length)
        else:
            made = values(np, count, **{**defaults, **given})[:window_length]
        return _finished(from_numpy(np.ascontiguousarray(made, np.float64)), chosen, name, options)

    more = "".join(f", {k}={v}" for k, v in defaults.items())
    function.__doc__ = f"""{text} (window_length, periodic=True{more}); `periodic` leaves out the last of one
    more. RuntimeError for a negative length, or a dtype that is not a float one.

    >>> kiln.{name}(4).shape
    kiln.Size([4])
    """
    public(name, method=False, dtypes="float", differentiable=False)(function)


_window("hann_window", "Hann's window 0.5 - 0.5 cos", lambda np, n: _cosine_terms(n, (0.5, 0.5)))
_window(
    "hamming_window", "Hamming's window alpha - beta cos",
    lambda np, n, alpha, beta: _cosine_terms(n, (alpha, beta)), alpha=0.54, beta=0.46,
)  # fmt: skip
_window(
    "blackman_window", "Blackman's window 0.42 - 0.5 cos + 0.08 cos of the double",
    lambda np, n: _cosine_terms(n, (0.42, 0.5, 0.08)),
)  # fmt: skip
_window("bartlett_window", "Bartlett's triangle from 0 to 1 to 0", lambda np, n: np.bartlett(n))
_window("kaiser_window", "Kaiser's window of width beta", lambda np, n, beta: np.kaiser(n, beta), beta=12.0)

methods({"new_tensor": new_tensor, "new_empty_strided": new_empty_strided})
