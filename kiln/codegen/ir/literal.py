"""Numbers as LLVM writes them; floats by their bits."""

from __future__ import annotations

import struct
from functools import lru_cache

from kiln.codegen.ir.value import Value
from kiln.scalars.scalar import WIDTH, Scalar


def literal(x: Scalar) -> Value:
    """A constant scalar as an LLVM literal; floats by their bits, so -0.0 and NaN are exact."""
    if x.type == "f64":
        return Value(f"0x{x.data:016X}", "f64", 1, True)
    if x.type == "f32":
        return Value(float_literal(x.data), "f32", 1, True)
    if x.type == "i1":
        return Value("true" if x.data else "false", "i1", 1, True)
    return Value(str(wrapped(int(x.data), x.type)), x.type, 1, True)


@lru_cache(maxsize=1024)
def float_literal(data: int) -> str:
    """The f32 of bits `data` as LLVM writes it: the bits of the equal f64."""
    if data & 0x7F800000 == 0x7F800000:
        wide = (data >> 31) << 63 | 0x7FF << 52 | (data & 0x7FFFFF) << 29
    else:
        wide = struct.unpack("<Q", struct.pack("<d", struct.unpack("<f", struct.pack("<I", data))[0]))[0]
    return f"0x{wide:016X}"


def number(value: float, type: str) -> Value:
    """A Python number as a literal of `type`."""
    if type == "f32":
        return Value(float_literal(struct.unpack("<I", struct.pack("<f", value))[0]), type, 1, True)
    if type == "f64":
        return Value(f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}", type, 1, True)
    if type == "i1":
        return Value("true" if value else "false", type, 1, True)
    return Value(str(wrapped(int(value), type)), type, 1, True)


def wrapped(value: int, type: str) -> int:
    """`value` modulo the type's width, as the signed integer LLVM prints."""
    bits = WIDTH[type]
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
