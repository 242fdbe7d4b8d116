"""Numbers that are known while a model is followed: constants, and sizes, which may vary.

    Shape(x) -> Gather -> Mul -> Concat -> Reshape        is arithmetic on sizes, not on tensors

An array of at most one dim whose elements are Python's numbers, or sizes of a traced program; operators of
these give more of them (`HOST`), so that a shape that is computed is followed as a shape.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kiln import _core, ops
from kiln.onnx.protobuf import TYPES
from kiln.table.kinds import FLOATS

NAMES = {number: name for name, number in TYPES.items()}
LONGEST = 1024  # elements of what is known
INTEGERS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-(1 << 15), (1 << 15) - 1),
            "int32": (-(1 << 31), (1 << 31) - 1), "int64": (-(1 << 63), (1 << 63) - 1)}  # fmt: skip


class Known:
    """Elements in their order, the dtype they have as an array, and whether they are an array of one dim or
    one number; `tensor`: of a weight, which is that.
    """

    def __init__(self, dtype: str, items: Iterable[Any], is_list: bool, tensor: Any = None) -> None:
        self.dtype, self.items, self.is_list, self.tensor = dtype, list(items), is_list, tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """() or (n,)."""
        return (len(self.items),) if self.is_list else ()

    def array(self) -> Any:
        """The numbers as a tensor."""
        if self.tensor is not None:
            return self.tensor
        dtype = getattr(_core, self.dtype)
        return ops.tensor(self.items if self.is_list else self.items[0], dtype=dtype)


def number(value: Any, dtype: str = "int64") -> Known:
    """One number."""
    return Known(dtype, [value], False)


def numbers(values: Iterable[Any], dtype: str = "int64") -> Known:
    """An array of one dim."""
    return Known(dtype, values, True)


def fitted(value: Any, dtype: str) -> Any:
    """A number as an element of a dtype: rounded, or None where an integer is beyond it."""
    if dtype == "float64":
        return float(value)
    if dtype == "float32":
        try:
            return struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            return math.copysign(math.inf, value)
    if dtype == "bool" or not isinstance(value, int):  # (a size that varies is within its range)
        return value
    least, most = INTEGERS[dtype]
    return value if least <= value <= most else None


def _all_fitted(values: Iterable[Any], dtype: str, is_list: bool) -> Known | None:
    items = [fitted(x, dtype) for x in values]
    return None if any(x is None for x in items) else Known(dtype, items, is_list)


def _spread(arrays: Sequence[Known]) -> tuple[list[tuple[Any, ...]], bool] | None:
    """Elements that meet each other when arrays are broadcast; None where these do not."""
    is_list = any(x.is_list for x in arrays)
    lengths = {len(x.items) for x in arrays} - {1}
    if len(lengths) > 1:
        return None
    count = lengths.pop() if lengths else 1
    return list(zip(*[x.items * count if len(x.items) == 1 else x.items for x in arrays])), is_list


# -- elements ---------------------------------------------------------------------------------------

COMPUTED = ("int64", "int32", "float32", "float64", "bool")


def quotient(a: Any, b: Any) -> Any:
    """A quotient rounded towards zero."""
    if isinstance(b, int) and b == 0:
        return None
    if isinstance(a, int) and isinstance(b, int):
        found = abs(a) // abs(b)
        return found if (a < 0) == (b < 0) else -found
    return a // b if a >= 0 and b > 0 else None


def _divided(a: Any, b: Any) -> Any:
    if isinstance(a, float):
        return a / b if b else None
    return quotient(a, b)


def _remainder(a: Any, b: Any) -> Any:
    return a % b if not isinstance(b, int) or b else None


ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Div": _divided,
    "Neg": operator.neg, "Abs": abs, "Max": lambda *x: _most(x, operator.gt),
    "Min": lambda *x: _most(x, operator.lt), "Where": lambda c, x, y: x if c else y,
}  # fmt: skip
OF_FLOATS: dict[str, Callable[..., Any]] = {"Floor": math.floor, "Ceil": math.ceil}
COMPARED: dict[str, Callable[..., Any]] = {
    "Equal": operator.eq, "Less": operator.lt, "Greater": operator.gt, "LessOrEqual": operator.le,
    "GreaterOrEqual": operator.ge, "And": lambda a, b: a and b, "Or": lambda a, b: a or b,
    "Not": operator.not_,
}  # fmt: skip


def _most(values: Sequence[Any], better: Callable[[Any, Any], Any]) -> Any:
    found = values[0]
    for value in values[1:]:
        found = value if better(value, found) else found
    return found


def elementwise(kind: str, arrays: Sequence[Known]) -> Known | None:
    """An operator of elements; None where it is one for tensors."""
    dtype = arrays[-1].dtype
    spread = _spread(arrays)
    if spread is None or any(x.dtype not in COMPUTED for x in arrays):
        return None
    rows, is_list = spread
    if kind in COMPARED:
        return Known("bool", [bool(COMPARED[kind](*row)) for row in rows], is_list)
    if dtype == "bool" and kind != "Where" or kind in OF_FLOATS and dtype not in FLOATS:
        return None
    if any(isinstance(x, float) and not math.isfinite(x) for row in rows for x in row):
        return None
    function = ELEMENTWISE.get(kind) or OF_FLOATS[kind]
    made = [function(*row) for row in rows]
    return None if any(x is None for x in made) else _all_fitted(made, dtype, is_list)


def modulo(a: Known, b: Known, *, fmod: int = 0) -> Known | None:
    """Of integers, with the sign of the divisor."""
    spread = _spread([a, b])
    if fmod or a.dtype in FLOATS or spread is None:
        return None
    made = [_remainder(*row) for row in spread[0]]
    return None if any(x is None for x in made) else _all_fitted(made, a.dtype, spread[1])


def cast(x: Known, *, to: int = 0, saturate: int = 1, round_mode: str = "up") -> Known | None:
    """In another dtype."""
    dtype = NAMES.get(to, "")
    if dtype not in COMPUTED:
        return None
    if dtype == "bool":
        return Known(dtype, [bool(v != 0) for v in x.items], x.is_list)
    if dtype in FLOATS:
        if not all(isinstance(v, (bool, int, float)) for v in x.items):
            return None
        return _all_fitted(x.items, dtype, x.is_list)
    if any(isinstance(v, float) and not math.isfinite(v) for v in x.items):
        return None
    return _all_fitted([int(v) if isinstance(v, (bool, float)) else v for v in x.items], dtype, x.is_list)


# -- arrangement ------------------------------------------------------------------------------------


def gather(x: Known, at: Known, *, axis: int = 0) -> Known | None:
    """Elements by their positions."""
    count = len(x.items)
    if not x.is_list or axis not in (0, -1) or not all(isinstance(k, int) for k in at.items):
        return None
    if not all(-count <= k < count for k in at.items):
        return None
    return Known(x.dtype, [x.items[k] for k in at.items], at.is_list)


def concat(*arrays: Known, axis: int) -> Known | None:
    """Lists one after the other."""
    if not all(x.is_list for x in arrays) or axis not in (0, -1) or len({x.dtype for x in arrays}) > 1:
        return None
    return Known(arrays[0].dtype, [v for x in arrays for v in x.items], True)


def slices(
    x: Known, starts: Known, ends: Known, axes: Known | None = None, steps: Known | None = None
) -> Any:
    """A part of a list."""
    given = [starts, ends, *([steps] if steps else [])]
    bounds = [v for part in given for v in part.items]
    if not x.is_list or len(bounds) != len(given) or not all(isinstance(v, int) for v in bounds):
        return None
    start, end, step = (*bounds, 1)[:3]
    if step == 0 or axes is not None and axes.items not in ([0], [-1]):
        return None
    if step < 0 and end < -len(x.items):
        return Known(x.dtype, x.items[start::step], True)
    return Known(x.dtype, x.items[start:end:step], True)


def unsqueeze(x: Known, given: Known | None = None, *, axes: Sequence[int] | None = None) -> Known | None:
    """A number as a list of it."""
    dims = given.items if given is not None else list(axes or ())
    return Known(x.dtype, x.items, True) if not x.is_list and dims in ([0], [-1]) else None


def squeeze(x: Known, given: Known | None = None, *, axes: Sequence[int] | None = None) -> Known | None:
    """A list of one number as that."""
    dims = given.items if given is not None else list(axes or [0])
    if not x.is_list:
        return x if not dims or axes is None and given is None else None
    return Known(x.dtype, x.items, False) if len(x.items) == 1 and dims in ([0], [-1]) else None


def reshape(x: Known, shape: Known, *, allowzero: int = 0) -> Known | None:
    """As a list, or as a number."""
    if not all(isinstance(n, int) for n in shape.items) or len(shape.items) > 1:
        return None
    if not shape.items:
        return Known(x.dtype, x.items, False) if len(x.items) == 1 else None
    return Known(x.dtype, x.items, True) if shape.items[0] in (-1, len(x.items)) else None


def expand(x: Known, shape: Known) -> Known | None:
    """One number so many times."""
    count = shape.items[0] if len(shape.items) == 1 else None
    if not isinstance(count, int) or not 0 <= count <= LONGEST or len(x.items) not in (1, count):
        return None
    return Known(x.dtype, x.items * count if len(x.items) == 1 else x.items, True)


def constant_of_shape(shape: Known, *, value: Any = None) -> Known | None:
    """A list of one number."""
    if not shape.items and shape.is_list:
        return Known("float32", [0.0], False) if value is None else Known(value.dtype, value.items, False)
    fill = Known("float32", [0.0], True) if value is None else value
    return expand(fill, shape) if isinstance(fill, Known) else None


def counted(start: Known, limit: Known, delta: Known) -> Known | None:
    """Integers from one to another."""
    bounds = [start.items[0], limit.items[0], delta.items[0]]
    if not all(type(n) is int for n in bounds) or bounds[2] == 0:
        return None
    found = range(*bounds)
    return Known(start.dtype, found, True) if len(found) <= LONGEST else None


def product(x: Known, axes: Known | None = None, *, keepdims: int = 1, **more: Any) -> Known | None:
    """Of all elements of a list of integers."""
    if x.dtype != "int64" or not x.is_list or more or axes is not None and axes.items not in ([0], [-1]):
        return None
    found: Any = 1
    for value in x.items:
        found = found * value
    return _all_fitted([found], x.dtype, bool(keepdims))


def split(x: Known, given: Known | None = None, *, axis: int = 0, outputs: int = 1, split: Any = None,
          num_outputs: int | None = None) -> Any:  # fmt: skip
    """A list in parts."""
    count = len(x.items)
    lengths = given.items if given is not None else split
    if lengths is None:
        each = -(-count // outputs)
        lengths = [min(each, count - k * each) for k in range(outputs)]
    if not x.is_list or not all(type(n) is int and n >= 0 for n in lengths) or sum(lengths) != count:
        return None
    parts, at = [], 0
    for n in lengths:
        parts.append(Known(x.dtype, x.items[at : at + n], True))
        at += n
    return tuple(parts)


HOST: dict[str, Callable[..., Any]] = {
    "Mod": modulo, "Cast": cast, "Gather": gather, "Concat": concat, "Slice": slices, "Unsqueeze": unsqueeze,
    "Squeeze": squeeze, "Reshape": reshape, "Expand": expand, "ConstantOfShape": constant_of_shape,
    "Range": counted, "ReduceProd": product, "Split": split, "Identity": lambda x: x,
    "Shape": lambda x: numbers(x.shape), "Size": lambda x: number(len(x.items)),
}  # fmt: skip


def on_numbers(kind: str, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
    """What an operator gives of numbers that are known; None where it is one for tensors."""
    present = [x for x in inputs if x is not None]
    if not present or not all(isinstance(x, Known) for x in present):
        return None
    if all(x.tensor is not None for x in present) and any(x.dtype in FLOATS for x in present):
        return None  # weights are to stay what they are
    if any(len(x.items) > LONGEST for x in present):
        return None
    if kind in ELEMENTWISE or kind in COMPARED or kind in OF_FLOATS:
        return elementwise(kind, present) if not attributes else None
    found = HOST.get(kind)
    if found is None:
        return None
    try:
        return found(*inputs, **attributes)
    except TypeError:  # an attribute of another version: the operator of tensors knows it
        return None
