"""What every store does to its keys, and how a request is written as bytes.

A request is an operation, its keys and its values. `Table.perform` answers it, or raises NotYet with the key
that it waits for: who keeps the table asks again when that key has changed.

    message   magic, length of what follows, operation or status, number of keys, number of fields: HEADER
              length and bytes of each field, first the keys, then the values
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from enum import IntEnum

HEADER = struct.Struct("<4sIBII")
MAGIC = b"kst1"
LONGEST = 1 << 28  # bytes of one message
MOST = 1 << 20  # fields of one message
_LENGTH = struct.Struct("<I")
_SMALLEST, _LARGEST = -(1 << 63), (1 << 63) - 1


class Op(IntEnum):
    """What is asked of a store."""

    SET = 1  # keys, as many values
    GET = 2  # keys: their values, once all are there
    WAIT = 3  # keys: nothing, once all are there
    CHECK = 4  # keys: whether all are there
    ADD = 5  # key, a number: the sum
    REACH = 6  # key, a number: nothing, once the key's number is as large
    COMPARE_SET = 7  # key, expected, desired: what the key has then
    DELETE = 8  # key: whether it was there
    KEYS = 9  # all keys
    APPEND = 10  # key, what is to be put at its value's end
    PUSH = 11  # key of a queue, value
    POP = 12  # key of a queue: its oldest value, once there is one
    POP_NOW = 13  # the same, or nothing
    LENGTH = 14  # key of a queue: how many values it has


WRITES = frozenset(
    {Op.SET, Op.ADD, Op.COMPARE_SET, Op.DELETE, Op.APPEND, Op.PUSH, Op.POP, Op.POP_NOW},
)
# how many keys and values there must be; None: as many as there are
_ARITY: dict[Op, tuple[int | None, int | None]] = {
    Op.SET: (None, None),
    Op.GET: (None, 0),
    Op.WAIT: (None, 0),
    Op.CHECK: (None, 0),
    Op.ADD: (1, 1),
    Op.REACH: (1, 1),
    Op.COMPARE_SET: (1, 2),
    Op.DELETE: (1, 0),
    Op.KEYS: (0, 0),
    Op.APPEND: (1, 1),
    Op.PUSH: (1, 1),
    Op.POP: (1, 0),
    Op.POP_NOW: (1, 0),
    Op.LENGTH: (1, 0),
}


class NotYet(Exception):
    """A request waits for a key."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self.key = key


class Malformed(ValueError):
    """Bytes that are no message."""


class Table:
    """Keys with their values, and queues."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.queues: dict[bytes, deque[bytes]] = {}

    def perform(self, op: Op, keys: Sequence[bytes], values: Sequence[bytes]) -> list[bytes]:
        """What a request is answered. NotYet if it has to wait, ValueError if it asks what cannot be."""
        have = self.values
        match op:
            case Op.SET:
                have.update(zip(keys, values, strict=True))
            case Op.GET | Op.WAIT:
                missing = next((key for key in keys if key not in have), None)
                if missing is not None:
                    raise NotYet(missing)
                return [have[key] for key in keys] if op is Op.GET else []
            case Op.CHECK:
                return [b"1" if all(key in have for key in keys) else b""]
            case Op.ADD:
                have[keys[0]] = _number(self._count(keys[0]) + _parsed(values[0]))
                return [have[keys[0]]]
            case Op.REACH:
                if self._count(keys[0]) < _parsed(values[0]):
                    raise NotYet(keys[0])
            case Op.COMPARE_SET:
                return [self._compare_set(keys[0], values[0], values[1])]
            case Op.DELETE:
                return [b"1" if have.pop(keys[0], None) is not None else b""]
            case Op.KEYS:
                return list(have)
            case Op.APPEND:
                have[keys[0]] = have.get(keys[0], b"") + values[0]
            case Op.PUSH:
                self.queues.setdefault(keys[0], deque()).append(values[0])
            case Op.POP | Op.POP_NOW:
                return self._popped(keys[0], waits=op is Op.POP)
            case Op.LENGTH:
                return [_number(len(self.queues.get(keys[0], ())))]
        return []

    def _count(self, key: bytes) -> int:
        return _parsed(self.values.get(key, b"0"))

    def _compare_set(self, key: bytes, expected: bytes, desired: bytes) -> bytes:
        value = self.values.get(key)
        if value is None and expected:
            return expected
        if value is None or value == expected:
            self.values[key] = value = desired
        return value

    def _popped(self, key: bytes, waits: bool) -> list[bytes]:
        queue = self.queues.get(key)
        if queue is None:
            if waits:
                raise NotYet(key)
            return []
        value = queue.popleft()
        if not queue:
            del self.queues[key]
        return [value]


def _parsed(text: bytes) -> int:
    if len(text) <= 20:
        try:
            return int(text)
        except ValueError:
            pass
    raise ValueError(f"expected a key that has a number, but its value is {text[:40]!r}")


def _number(value: int) -> bytes:
    if not _SMALLEST <= value <= _LARGEST:
        raise ValueError(f"{value} is not a number of 64 bits")
    return b"%d" % value


def packed(kind: int, keys: Sequence[bytes], values: Sequence[bytes] = ()) -> bytes:
    """A message. ValueError if it is too long for one."""
    fields = [*keys, *values]
    size = sum(map(len, fields)) + _LENGTH.size * len(fields)
    if size > LONGEST or len(fields) > MOST:
        raise ValueError(
            f"a store takes {LONGEST} bytes and {MOST} keys and values at a time, but got {size} bytes in "
            f"{len(fields)}"
        )
    parts = [HEADER.pack(MAGIC, size, kind, len(keys), len(fields))]
    for field in fields:
        parts += (_LENGTH.pack(len(field)), field)
    return b"".join(parts)


def message_size(data: bytes | bytearray) -> int | None:
    """How long the message is that begins here; None if too little is there. Malformed if it is none."""
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise Malformed("no message of a store")
    if len(data) < HEADER.size:
        return None
    _, size, _, keys, fields = HEADER.unpack_from(data)
    if size > LONGEST or keys > fields or fields > MOST or fields * _LENGTH.size > size:
        raise Malformed("a message whose header cannot be")
    return HEADER.size + int(size)


def unpacked(data: bytes | bytearray) -> tuple[int, list[bytes], list[bytes]]:
    """The kind, keys and values of a message of the right size. Malformed if lengths do not add up."""
    _, _, kind, keys, count = HEADER.unpack_from(data)
    at, fields = HEADER.size, []
    for _ in range(count):
        if at + _LENGTH.size > len(data):
            raise Malformed("a message that is shorter than its fields")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length > len(data) - at:
            raise Malformed("a message that is shorter than its fields")
        fields.append(bytes(data[at : at + length]))
        at += length
    if at != len(data):
        raise Malformed("a message that is longer than its fields")
    return kind, fields[:keys], fields[keys:]


def asked(kind: int, keys: Sequence[bytes], values: Sequence[bytes]) -> Op:
    """The operation of a request. Malformed if there is none, or it has other keys and values."""
    if kind not in Op._value2member_map_:
        raise Malformed(f"no operation {kind}")
    op = Op(kind)
    for count, wanted in zip((len(keys), len(values)), _ARITY[op]):
        if wanted is not None and count != wanted:
            raise Malformed(f"{op.name} of {len(keys)} keys and {len(values)} values")
    if op is Op.SET and len(keys) != len(values):
        raise Malformed("as many values as keys are to be set")
    return op
