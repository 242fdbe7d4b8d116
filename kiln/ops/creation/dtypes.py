"""What dtypes hold: `finfo`, `iinfo`, `result_type`, and questions about a tensor's dtype and value."""

from __future__ import annotations

from typing import Any

from kiln import _core
from kiln.table.arguments import INTEGERS
from kiln.table.callables import name_constructor
from kiln.table.kinds import FLOATS
from kiln.table.public import public
from kiln.table.record import Tensor
from kiln.table.registry import forms

# bits of the significand, of the exponent's field; decimal digits that survive
_FORMATS = {"float16": (10, 5, 3), "bfloat16": (7, 8, 2), "float32": (23, 8, 6), "float64": (52, 11, 15)}


class _Info:
    """The limits of a dtype, equal to another's of the same dtype."""

    __slots__ = ("bits", "dtype", "max", "min")
    __hash__ = None  # type: ignore[assignment]

    bits: int
    dtype: str
    max: Any
    min: Any

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.dtype == other.dtype


class finfo(_Info):
    """The limits of a float dtype (None: the default one): bits, eps, max, min, tiny, smallest_normal,
    resolution, dtype. TypeError for another dtype.

    >>> kiln.finfo(kiln.float32).eps
    1.1920928955078125e-07
    """

    __slots__ = ("eps", "resolution", "smallest_normal", "tiny")

    def __init__(self, type: Any = None) -> None:
        dtype = _named(type if type is not None else _core.get_default_dtype(), "finfo")
        if dtype not in FLOATS:
            raise TypeError(f"finfo: expected a float dtype, got {dtype}; use kiln.iinfo for integers")
        stored, field, digits = _FORMATS[dtype]
        top = 2 ** (field - 1)
        self.dtype, self.bits = dtype, 1 + field + stored
        self.eps = 2.0**-stored
        self.max = (2 - self.eps) * 2.0 ** (top - 1)
        self.min = -self.max
        self.tiny = self.smallest_normal = 2.0 ** (2 - top)
        self.resolution = float(f"1e-{digits}")

    def __repr__(self) -> str:
        return (
            f"finfo(resolution={self.resolution:g}, min={self.min:g}, max={self.max:g}, eps={self.eps:g}, "
            f"smallest_normal={self.smallest_normal:g}, tiny={self.tiny:g}, dtype={self.dtype})"
        )


class iinfo(_Info):
    """The limits of an integer dtype: bits, max, min, dtype. TypeError for another dtype.

    >>> kiln.iinfo(kiln.int8)
    iinfo(min=-128, max=127, dtype=int8)
    """

    __slots__ = ()

    def __init__(self, type: Any) -> None:
        dtype = _named(type, "iinfo")
        if dtype not in INTEGERS:
            raise TypeError(f"iinfo: expected an integer dtype, got {dtype}; use kiln.finfo for floats")
        self.dtype, self.bits = dtype, 8 * type.itemsize
        signed = dtype != "uint8"
        self.max = 2 ** (self.bits - signed) - 1
        self.min = -self.max - 1 if signed else 0

    def __repr__(self) -> str:
        return f"iinfo(min={self.min:g}, max={self.max:g}, dtype={self.dtype})"


def _named(dtype: Any, what: str) -> str:
    """The name of a dtype object; TypeError for anything else."""
    if not isinstance(dtype, _core.dtype):
        raise TypeError(f"{what}: expected a kiln.dtype, got {type(dtype).__name__}")
    return dtype.name


forms("result_type", "(tensor1: Operand, tensor2: Operand) -> dtype")


@public("result_type", method=False, raw=True, dtypes="", differentiable=False)
def result_type(tensor1: Any, tensor2: Any) -> Any:
    """The dtype that an operation on two tensors or numbers gives: tensors count more than 0-d ones, and
    those more than numbers.

    >>> kiln.result_type(kiln.ones(2, dtype=kiln.int32), 1.5)
    kiln.float32
    """
    looks = [_look(x) for x in (tensor1, tensor2)]
    return getattr(_core, _core.result_type(looks))


def _look(x: Tensor) -> tuple[str, int]:
    """(dtype, how little it counts) of a tensor or a number."""
    if isinstance(x, (bool, int, float)):
        number = "bool" if isinstance(x, bool) else "int64" if isinstance(x, int) else ""
        return number or _core.default_dtype_name(), 2
    if not isinstance(x, _core.Tensor):
        raise TypeError(f"result_type(): expected a Tensor or a number, got {type(x).__name__}")
    return x.dtype.name, 0 if x.ndim else 1


def _asked(input: Tensor, what: str) -> Any:
    """The dtype of a tensor; TypeError for anything else."""
    if not isinstance(input, _core.Tensor):
        raise TypeError(f"{what}(): argument 'input' must be Tensor, not {type(input).__name__}")
    return input.dtype


@public("is_floating_point", dtypes="all", differentiable=False)
def is_floating_point(input: Any) -> bool:
    """Whether a tensor holds floats. TypeError for anything but a tensor.

    >>> kiln.is_floating_point(kiln.ones(1))
    True
    """
    return bool(_asked(input, "is_floating_point").is_floating_point)


@public("is_complex", dtypes="all", differentiable=False)
def is_complex(input: Any) -> bool:
    """Whether a tensor holds complex numbers: never. TypeError for anything but a tensor.

    >>> kiln.is_complex(kiln.ones(1))
    False
    """
    return bool(_asked(input, "is_complex").is_complex)


@public("is_signed", dtypes="all", differentiable=False)
def is_signed(input: Any) -> bool:
    """Whether a tensor's dtype holds negative numbers. TypeError for anything but a tensor.

    >>> kiln.is_signed(kiln.ones(1, dtype=kiln.uint8))
    False
    """
    return bool(_asked(input, "is_signed").is_signed)


@public("is_nonzero", dtypes="all", differentiable=False)
def is_nonzero(input: Any) -> bool:
    """Whether the one element of a tensor is not zero. RuntimeError unless it has one.

    >>> kiln.is_nonzero(kiln.tensor([0.0]))
    False
    """
    _asked(input, "is_nonzero")
    return bool(input)


name_constructor(finfo)
name_constructor(iinfo)
