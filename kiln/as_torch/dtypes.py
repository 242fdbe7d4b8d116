"""PyTorch's dtypes and layouts that kiln has no tensors of: names, for tables and comparisons of libraries.

{torch.complex64: 8, torch.float32: 4}      a table that a library writes when it is imported
x.dtype == torch.complex64                  False of every tensor
torch.zeros(2, dtype=torch.complex64)       TypeError
"""

from __future__ import annotations

from typing import Any

import kiln


class Elsewhere:
    """A dtype or layout of PyTorch's, by its name alone. No tensor of kiln's has it."""

    __slots__ = ("is_complex", "is_floating_point", "is_signed", "itemsize", "name")

    def __init__(self, name: str, itemsize: int = 0) -> None:
        self.name = name
        self.itemsize = itemsize
        self.is_complex = name.startswith("complex")
        self.is_floating_point = name.startswith("float")
        self.is_signed = not name.startswith(("uint", "quint"))

    def __repr__(self) -> str:
        return f"torch.{self.name}"

    def __reduce__(self) -> str:
        return self.name


_SIZES = {
    "complex32": 4, "complex64": 8, "complex128": 16, "uint16": 2, "uint32": 4, "uint64": 8,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1, "qint8": 1, "quint8": 1, "qint32": 4, "quint4x2": 1, "quint2x4": 1,
}  # fmt: skip
_LAYOUTS = "sparse_coo sparse_csr sparse_csc sparse_bsr sparse_bsc jagged"

NAMES = {name: Elsewhere(name, size) for name, size in _SIZES.items()}
NAMES.update({name: Elsewhere(name) for name in _LAYOUTS.split()})
NAMES.update(chalf=NAMES["complex32"], cfloat=NAMES["complex64"], cdouble=NAMES["complex128"])


class finfo(kiln.finfo):
    """Limits of a float dtype, of the small ones that only have names too."""

    __module__ = "torch"

    __slots__ = ()

    def __init__(self, type: Any = None) -> None:
        if not isinstance(type, Elsewhere):
            super().__init__(type)
            return
        if type.name not in _SMALL:
            raise TypeError(f"torch.finfo() requires a floating point input type, got {type}")
        self.dtype, self.bits = type.name, 8
        self.max, self.min, self.eps, self.tiny = _SMALL[type.name]
        self.smallest_normal, self.resolution = self.tiny, 1.0


class iinfo(kiln.iinfo):
    """Limits of an integer dtype, of those that only have names too."""

    __module__ = "torch"

    __slots__ = ()

    def __init__(self, type: Any) -> None:
        if not isinstance(type, Elsewhere):
            super().__init__(type)
            return
        if not type.name.startswith("uint"):
            raise TypeError(f"torch.iinfo() requires an integer input type, got {type}")
        self.dtype, self.bits = type.name, 8 * type.itemsize
        self.max, self.min = 2**self.bits - 1, 0


# max, min, eps, the smallest normal number
_SMALL = {
    "float8_e4m3fn": (448.0, -448.0, 0.125, 2.0**-6),
    "float8_e5m2": (57344.0, -57344.0, 0.25, 2.0**-14),
    "float8_e4m3fnuz": (240.0, -240.0, 0.125, 2.0**-7),
    "float8_e5m2fnuz": (57344.0, -57344.0, 0.125, 2.0**-15),
    "float8_e8m0fnu": (2.0**127, 2.0**-127, 1.0, 2.0**-127),
}
