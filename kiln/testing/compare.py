"""Comparing results: the same bits, or close enough for two implementations that round differently.

A NaN counts as a NaN: its sign and payload are not compared. -0.0 and denormals are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# (relative, absolute) for two right implementations of one op
TOLERANCE = {
    "float64": (1e-10, 1e-12),
    "float32": (2e-5, 2e-6),
    "float16": (4e-3, 2e-3),
    "bfloat16": (3e-2, 2e-2),
}


def dtype_name(dtype: Any) -> str:
    """`float32` for kiln.float32, torch.float32, numpy.float32 and "float32"."""
    if isinstance(dtype, str):
        return dtype.rsplit(".", 1)[-1]
    if isinstance(dtype, (np.dtype, type)):
        return np.dtype(dtype).name
    return str(dtype).rsplit(".", 1)[-1]


def is_tensor(value: Any) -> bool:
    """Whether `value` is a tensor of kiln or of its stand-in."""
    return hasattr(value, "requires_grad") and hasattr(value, "detach")


def to_array(tensor: Any) -> Array:
    """A copy of a tensor's values; bfloat16 comes as the float32 of equal value."""
    plain = tensor.detach()
    if dtype_name(plain.dtype) == "bfloat16":
        plain = plain.float()
    return np.array(plain.numpy())


def bits(x: Array) -> Array:
    """`x` as unsigned integers of its width, every NaN as the one positive quiet NaN."""
    if x.dtype.kind == "f":
        x = np.where(np.isnan(x), np.array(np.nan, x.dtype), x)
    return np.ascontiguousarray(x).reshape(x.shape).view(f"u{x.dtype.itemsize}")


def same_bits(x: Array, y: Array) -> bool:
    """Whether dtype, shape and every bit agree, NaN where NaN."""
    return x.dtype == y.dtype and x.shape == y.shape and bool(np.array_equal(bits(x), bits(y)))


def difference(x: Array, y: Array) -> str:
    """Where and by how much two arrays of one kind differ, in a line."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return f"{x.dtype}{list(x.shape)} against {y.dtype}{list(y.shape)}"
    where = np.argwhere(bits(x) != bits(y))
    if not len(where):
        return "equal bits"
    first = tuple(int(i) for i in where[0])
    return (
        f"{len(where)} of {x.size} elements differ, first at {list(first)}: {x[first]!r} against {y[first]!r}"
    )


def close(x: Array, y: Array, dtype: str, factor: float = 1.0) -> bool:
    """Whether two results of `dtype` agree within its tolerance (times `factor`), infinities and NaN in
    place.
    """
    if x.shape != y.shape:
        return False
    if dtype not in TOLERANCE:
        return bool(np.array_equal(x, y))
    relative, absolute = TOLERANCE[dtype]
    with np.errstate(all="ignore"):
        wide, other = x.astype(np.float64), y.astype(np.float64)
        # relative to the largest finite magnitude: cancellation inside a reduction is not an error of the op
        finite = np.abs(other[np.isfinite(other)])
        scale = float(finite.max()) if finite.size else 0.0
        near = np.abs(wide - other) <= factor * (absolute + relative * np.maximum(np.abs(other), 0.1 * scale))
        same = (wide == other) | (np.isnan(wide) & np.isnan(other))
    return bool(np.all(near | same))


def freeze(value: Any) -> Any:
    """A value without ties to memory: tensors and arrays become (dtype, requires_grad, array), containers
    recurse.
    """
    if is_tensor(value):
        return ("tensor", dtype_name(value.dtype), bool(value.requires_grad), to_array(value))
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.name, False, value.copy())
    if isinstance(value, (list, tuple)):
        return [freeze(v) for v in value]
    if isinstance(value, dict):
        return {k: freeze(v) for k, v in value.items()}
    if isinstance(value, Exception):
        return {"raised": type(value).__name__}
    return value


def first_difference(x: Any, y: Any, exact: bool, path: str = "result", factor: float = 1.0) -> str | None:
    """Where two frozen values first differ, or None; `exact` asks for bits, else the dtype's tolerance times
    `factor`.
    """
    if isinstance(x, tuple) and isinstance(y, tuple) and len(x) == 4 and len(y) == 4:
        if x[:3] != y[:3]:
            kinds = [f"{k} of {dtype}, requires_grad={grad}" for k, dtype, grad, _ in (x, y)]
            return f"{path}: {kinds[0]} against {kinds[1]}"
        same = same_bits(x[3], y[3]) if exact else close(x[3], y[3], x[1], factor)
        return None if same else f"{path}: {difference(x[3], y[3])}"
    if type(x) is not type(y):
        return f"{path}: {x!r} against {y!r}"
    if isinstance(x, list):
        if len(x) != len(y):
            return f"{path}: {len(x)} items against {len(y)}"
        pairs = [(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(x, y))]
    elif isinstance(x, dict):
        if x.keys() != y.keys():
            return f"{path}: keys {sorted(x)} against {sorted(y)}"
        pairs = [(x[k], y[k], f"{path}[{k!r}]") for k in x]
    elif isinstance(x, float):
        wrapped = [("array", "float32", False, np.asarray(v)) for v in (x, y)]
        return first_difference(wrapped[0], wrapped[1], exact, path, factor)
    else:
        return None if x == y else f"{path}: {x!r} against {y!r}"
    return next((d for a, b, p in pairs if (d := first_difference(a, b, exact, p, factor))), None)
