"""The messages of an ONNX file as bytes: the few fields of protobuf that a model has.

A message is its fields, one after the other; a field is its number and wire type, then an integer of seven
bits a byte (0), bytes and their length (2), or four bytes (5).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Union

# The numbers of `TensorProto.DataType`.
TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9,
    "float16": 10, "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip

Length = Union[int, str, None]  # of a dim: a number, the name of one that varies, or nothing is said


def varint(n: int) -> bytes:
    """An integer, its lowest seven bits first; a negative one as 64 bits."""
    n &= (1 << 64) - 1
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def integer(number: int, value: int) -> bytes:
    """A field that holds an integer."""
    return varint(number << 3) + varint(value)


def data(number: int, value: Union[bytes, str]) -> bytes:
    """A field that holds bytes, text or a message."""
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def attribute(name: str, value: Any) -> bytes:
    """An `AttributeProto`: an int, float, text, graph (bytes), or a list of ints or of texts."""
    if isinstance(value, int):
        return data(1, name) + integer(3, int(value)) + integer(20, 2)
    if isinstance(value, float):
        return data(1, name) + varint(2 << 3 | 5) + struct.pack("<f", value) + integer(20, 1)
    if isinstance(value, str):
        return data(1, name) + data(4, value) + integer(20, 3)
    if isinstance(value, bytes):
        return data(1, name) + data(6, value) + integer(20, 5)
    if value and isinstance(value[0], str):
        return data(1, name) + b"".join(data(9, text) for text in value) + integer(20, 8)
    return data(1, name) + b"".join(integer(8, n) for n in value) + integer(20, 7)


def tensor(name: str, dtype: str, dims: Iterable[int], raw: bytes) -> bytes:
    """A `TensorProto` of little-endian elements."""
    sizes = b"".join(integer(1, n) for n in dims)
    return sizes + integer(2, TYPES[dtype]) + data(8, name) + data(9, raw)


def value_info(name: str, dtype: str, dims: Iterable[Length] | None) -> bytes:
    """A `ValueInfoProto` of an array; `dims` None says nothing of its shape."""
    kind = integer(1, TYPES[dtype])
    if dims is not None:
        kind += data(2, b"".join(data(1, _length(n)) for n in dims))
    return data(1, name) + data(2, data(1, kind))


def _length(n: Length) -> bytes:
    if n is None:
        return b""
    return data(2, n) if isinstance(n, str) else integer(1, n)


def node(
    kind: str, name: str, inputs: Iterable[str], outputs: Iterable[str], attributes: dict[str, Any]
) -> bytes:
    """A `NodeProto`; attributes that are None are left out."""
    return b"".join(
        [
            *(data(1, x) for x in inputs),
            *(data(2, x) for x in outputs),
            data(3, name),
            data(4, kind),
            *(data(5, attribute(k, v)) for k, v in attributes.items() if v is not None),
        ]
    )


def graph(name: str, nodes: Iterable[bytes], tensors: Iterable[bytes], inputs: Iterable[bytes],
          outputs: Iterable[bytes]) -> bytes:  # fmt: skip
    """A `GraphProto`."""
    parts = [(1, nodes), (5, tensors), (11, inputs), (12, outputs)]
    return data(2, name) + b"".join(data(number, x) for number, some in parts for x in some)


def model(graph: bytes, opset: int, producer: str, version: str) -> bytes:
    """A `ModelProto` of the default domain's operators."""
    begin = integer(1, ir_version(opset)) + data(2, producer) + data(3, version)
    return begin + data(7, graph) + data(8, data(1, "") + integer(2, opset))


def ir_version(opset: int) -> int:
    """The oldest version of the file format that comes with a version of the operators."""
    begins = ((8, 15), (9, 19), (10, 21), (11, 23), (12, 24), (13, 25))
    return max((version for version, first in begins if opset >= first), default=7)
