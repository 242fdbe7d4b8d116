"""The messages of an ONNX file as they are read: fields by name, nothing believed.

    "graph": {1: ("nodes", "*node"), 2: ("name", "text") ..}     of each message: a field's number, its name
                                                                  and kind; "*": any number of it, "?": None
                                                                  where it is not there

Fields without a name here are passed over, as protobuf does. Lengths lie within the message that holds them,
messages within messages `DEPTH` deep at most, and what is read is as long as the file at most.
"""

from __future__ import annotations

import struct
from typing import Any, NoReturn

from kiln.onnx.reading.refusal import LoadError

DEPTH = 100
MESSAGES: dict[str, dict[int, tuple[str, str]]] = {
    "model": {
        1: ("ir_version", "int"), 7: ("graph", "graph"), 8: ("opsets", "*opset"),
        25: ("functions", "*function"),
    },
    "opset": {1: ("domain", "text"), 2: ("version", "int")},
    "graph": {
        1: ("nodes", "*node"), 2: ("name", "text"), 5: ("tensors", "*tensor"), 11: ("inputs", "*value"),
        12: ("outputs", "*value"), 15: ("sparse", "*bytes"),
    },
    "function": {
        1: ("name", "text"), 4: ("inputs", "*text"), 5: ("outputs", "*text"), 6: ("attributes", "*text"),
        7: ("nodes", "*node"), 9: ("opsets", "*opset"), 10: ("domain", "text"),
        11: ("defaults", "*attribute"),
        13: ("overload", "text"),
    },
    "node": {
        1: ("inputs", "*text"), 2: ("outputs", "*text"), 3: ("name", "text"), 4: ("kind", "text"),
        5: ("attributes", "*attribute"), 7: ("domain", "text"), 8: ("overload", "text"),
    },
    "attribute": {
        1: ("name", "text"), 2: ("float", "float"), 3: ("int", "int"), 4: ("string", "bytes"),
        5: ("tensor", "tensor"), 6: ("graph", "graph"), 7: ("floats", "*float"), 8: ("ints", "*int"),
        9: ("strings", "*bytes"), 20: ("type", "int"), 21: ("refers", "text"),
    },
    "tensor": {
        1: ("dims", "*int"), 2: ("dtype", "int"), 3: ("segment", "bytes"), 4: ("float_data", "*float"),
        5: ("int32_data", "*int"), 7: ("int64_data", "*int"), 8: ("name", "text"), 9: ("raw", "bytes"),
        10: ("double_data", "*double"), 11: ("uint64_data", "*int"), 13: ("external", "*entry"),
        14: ("location", "int"),
    },
    "entry": {1: ("key", "text"), 2: ("value", "text")},
    "value": {1: ("name", "text"), 2: ("type", "type")},
    "type": {
        1: ("tensor", "tensor_type"), 4: ("sequence", "bytes"), 5: ("map", "bytes"), 8: ("sparse", "bytes"),
        9: ("optional", "bytes"),
    },
    "tensor_type": {1: ("dtype", "int"), 2: ("shape", "shape")},
    "shape": {1: ("dims", "*dim")},
    "dim": {1: ("size", "?int"), 2: ("name", "text")},
}  # fmt: skip
# kind -> the wire type it has, and what stands where the field does not
PLAIN: dict[str, tuple[int, Any]] = {
    "int": (0, 0), "text": (2, ""), "bytes": (2, b""), "float": (5, 0.0), "double": (1, 0.0),
}  # fmt: skip
PACKED = {"float": "<f", "double": "<d"}

Message = dict[str, Any]


def parse(data: memoryview, what: str = "model", depth: int = 0) -> Message:
    """A message by the names of its fields. LoadError for bytes that are none."""
    if depth > DEPTH:
        _damaged(what, f"messages lie more than {DEPTH} deep")
    fields, found = MESSAGES[what], _empty(what)
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at, what)
        number, wire = key >> 3, key & 7
        raw, at = _raw(data, at, wire, what)
        if number not in fields:
            continue
        name, kind = fields[number]
        if kind.startswith("*"):
            _append(found[name], kind[1:], raw, wire, what, depth)
        else:
            found[name] = _single(kind.removeprefix("?"), raw, wire, what, depth)
    return found


def _empty(what: str) -> Message:
    """The message of no bytes."""
    return {
        name: [] if kind.startswith("*") else PLAIN[kind][1] if kind in PLAIN else None
        for name, kind in MESSAGES[what].values()
    }


def _varint(data: memoryview, at: int, what: str) -> tuple[int, int]:
    """An unsigned integer of at most 64 bits, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            _damaged(what, "an integer is cut short")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, at
    _damaged(what, "an integer has more than 64 bits")


def _raw(data: memoryview, at: int, wire: int, what: str) -> tuple[Any, int]:
    """What a field holds, an integer or bytes, and where it ends."""
    if wire == 0:
        return _varint(data, at, what)
    if wire == 2:
        length, at = _varint(data, at, what)
    elif wire in (1, 5):
        length = 8 if wire == 1 else 4
    else:
        _damaged(what, f"a field is of wire type {wire}, which ONNX has none of")
    if length > len(data) - at:
        _damaged(what, f"a field of {length} bytes is cut short after {len(data) - at}")
    return data[at : at + length], at + length


def _single(kind: str, raw: Any, wire: int, what: str, depth: int) -> Any:
    """One element of a field."""
    if wire != (PLAIN[kind][0] if kind in PLAIN else 2):
        _damaged(what, f"a field that is to hold {kind} is of wire type {wire}")
    if kind == "int":
        return raw - (1 << 64) if raw >> 63 else raw
    if kind == "bytes":
        return raw
    if kind == "text":
        return text(raw, what)
    if kind in PACKED:
        return struct.unpack(PACKED[kind], raw)[0]
    return parse(raw, kind, depth + 1)


def _append(items: list[Any], kind: str, raw: Any, wire: int, what: str, depth: int) -> None:
    """Puts into a list what a field holds: one element, or packed numbers."""
    if wire != 2 or kind not in ("int", "float", "double"):
        items.append(_single(kind, raw, wire, what, depth))
    elif kind == "int":
        at = 0
        while at < len(raw):
            value, at = _varint(raw, at, what)
            items.append(value - (1 << 64) if value >> 63 else value)
    else:
        width = struct.calcsize(PACKED[kind])
        if len(raw) % width:
            _damaged(what, f"{len(raw)} bytes are no whole number of {kind}s")
        items.extend(struct.unpack(f"<{len(raw) // width}{PACKED[kind][1]}", raw))


def text(raw: Any, what: str) -> str:
    """Bytes as text."""
    try:
        return bytes(raw).decode()
    except UnicodeDecodeError:
        _damaged(what, "a text is no UTF-8")


def _damaged(what: str, why: str) -> NoReturn:
    raise LoadError(f"the file is damaged: in a {what}, {why}")
