"""Arrays of a model's file as tensors: elements in the file, or in one beside it."""

from __future__ import annotations

import math
import os
import struct
from typing import Any

from kiln import _core, ops
from kiln.onnx.protobuf import TYPES
from kiln.onnx.reading.known import LONGEST, Known
from kiln.onnx.reading.refusal import LoadError, UnsupportedError
from kiln.onnx.reading.wire import Message
from kiln.serialization.source import Damaged, opened, read_tensor

# The numbers of `TensorProto.DataType`: of what kiln has, and of what it has not.
DTYPES = {number: name for name, number in TYPES.items() if hasattr(_core, name)}
ABSENT = {
    4: "uint16", 8: "string", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128",
    17: "float8e4m3fn", 18: "float8e4m3fnuz", 19: "float8e5m2", 20: "float8e5m2fnuz", 21: "uint4",
    22: "int4", 23: "float4e2m1", 24: "float8e8m0", 25: "uint2", 26: "int2",
}  # fmt: skip
MOST_DIMS = 64
UNSIGNED = {"uint16": 16, "uint32": 32, "uint64": 64}  # which are kept in int64


class Unsigned:
    """An array of a dtype that kiln has not: its name, and its elements as int64; of 64 bits, their bits."""

    def __init__(self, dtype: str, array: Any) -> None:
        self.dtype, self.array = dtype, array


def dtype_name(number: int, what: str) -> str:
    """The name of a dtype; UnsupportedError for one that kiln has not."""
    if number in DTYPES:
        return DTYPES[number]
    if number in ABSENT:
        raise UnsupportedError(f"{what} is of dtype {ABSENT[number]}, which kiln has not")
    raise LoadError(f"{what} is of dtype number {number}, which ONNX has not")


def dtype_of(number: int, what: str) -> Any:
    """The dtype itself."""
    return getattr(_core, dtype_name(number, what))


class Weights:
    """Reads arrays; `folder`: of the model's file, None where files beside it are not known."""

    def __init__(self, folder: str | None) -> None:
        self.folder = folder

    def array(self, message: Message) -> Any:
        """A TensorProto as a tensor, or as what stands for one."""
        what = f"tensor {message['name']!r:.80}"
        name = ABSENT.get(message["dtype"], "")
        if name in UNSIGNED:
            kept = self.array({**message, "dtype": TYPES[name.removeprefix("u")]})
            array = kept.to(_core.int64)
            return Unsigned(name, array if name == "uint64" else array & ((1 << UNSIGNED[name]) - 1))
        dtype, dims = dtype_of(message["dtype"], what), message["dims"]
        if len(dims) > MOST_DIMS or any(n < 0 for n in dims):
            raise LoadError(f"{what} has the shape {str(dims):.80}")
        count = math.prod(dims)
        if count * dtype.itemsize >= 1 << 62:
            raise LoadError(f"{what} has the shape {str(dims):.80}, which no memory holds")
        if message["segment"]:
            raise UnsupportedError(f"{what} is stored in segments")
        if message["location"] == 1:
            flat = self._external(message, dtype, count, what)
        else:
            flat = _inside(message, dtype, count, what)
        return flat.reshape(tuple(dims))

    def value(self, message: Message) -> Any:
        """A tensor, or where it is short the numbers in it."""
        array = self.array(message)
        return array if isinstance(array, Unsigned) else known_of(array) or array

    def _external(self, message: Message, dtype: Any, count: int, what: str) -> Any:
        """Elements from a file beside the model's."""
        told = {entry["key"]: entry["value"] for entry in message["external"]}
        path = self._path(told.get("location", ""), what)
        places = []
        for key in ("offset", "length"):
            given = told.get(key, "")
            if given and not (given.isascii() and given.isdigit() and len(given) < 20):
                raise LoadError(f"{what}: its {key} in a file is {given!r:.40}, no number")
            places.append(int(given) if given else None)
        offset, length = places
        if length is not None and length != count * dtype.itemsize:
            raise LoadError(f"{what}: {length} bytes in a file are not {count} of {dtype.itemsize} bytes")
        try:
            with opened(path) as source:
                return read_tensor(source, offset or 0, dtype, count, what)
        except (OSError, Damaged) as error:
            raise LoadError(f"{what}: {told['location']!r:.80} cannot be read: {error}") from None

    def _path(self, location: str, what: str) -> str:
        """A file beside the model's; LoadError for one elsewhere."""
        if self.folder is None:
            raise LoadError(f"{what} is in a file of its own, {location!r:.80}: load the model by its path")
        parts = location.replace("\\", "/").split("/")
        if (
            not location
            or "\0" in location
            or location.startswith(("/", "\\"))
            or ".." in parts
            or ":" in parts[0]
        ):
            raise LoadError(f"{what} is in a file {location!r:.80}, which is not beside the model")
        folder = os.path.realpath(self.folder)
        path = os.path.realpath(os.path.join(folder, *parts))
        if os.path.commonpath([folder, path]) != folder or path == folder:
            raise LoadError(f"{what} is in a file {location!r:.80}, which leads out of the model's folder")
        return path


def _inside(message: Message, dtype: Any, count: int, what: str) -> Any:
    """Elements that are in the message, as bytes or as numbers."""
    raw = message["raw"] or _packed(message, dtype, count, what)
    if len(raw) != count * dtype.itemsize:
        raise LoadError(f"{what}: {len(raw)} bytes are not {count} elements of {dtype.itemsize}")
    if not count:
        return ops.empty(0, dtype=dtype)
    own = bytearray(raw)
    if dtype is _core.bool and own.translate(None, b"\0\1"):
        raise LoadError(f"{what}: a bool is neither 0 nor 1")
    return ops.clone(_core.frombuffer(own, dtype.name, count, 0))


def _packed(message: Message, dtype: Any, count: int, what: str) -> bytes:
    """Numbers as bytes."""
    kept = {"float32": ("float_data", "f"), "float64": ("double_data", "d"), "int64": ("int64_data", "q")}
    field, code = kept.get(dtype.name, ("int32_data", "i"))
    numbers = message[field] or message["uint64_data"]
    if len(numbers) != count:
        raise LoadError(f"{what}: {len(numbers)} numbers for {count} elements")
    if code == "i":
        code = {1: "B", 2: "H", 4: "I"}[dtype.itemsize]
        mask = (1 << 8 * dtype.itemsize) - 1
        numbers = [n & mask for n in numbers]
    try:
        return struct.pack(f"<{count}{code}", *numbers)
    except (struct.error, OverflowError):
        raise LoadError(f"{what}: a number is out of its dtype's range") from None


def known_of(array: Any) -> Known | None:
    """The numbers of a short array; None of another."""
    if array.ndim > 1 or array.numel() > LONGEST:
        return None
    items = array.tolist()
    return Known(array.dtype.name, items if array.ndim else [items], array.ndim == 1)
