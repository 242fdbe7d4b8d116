"""The order of bytes in files that do not say theirs, as those of PyTorch before 2.1."""

from __future__ import annotations

import sys
from enum import Enum

from kiln.errors import describe
from kiln.table.callables import name_helpers as _name_helpers


class LoadEndianness(Enum):
    """An order of bytes."""

    NATIVE = 1
    LITTLE = 2
    BIG = 3


_default: LoadEndianness | None = None


def get_default_load_endianness() -> LoadEndianness | None:
    """The order that was set; None: little-endian.

    >>> kiln.serialization.get_default_load_endianness()
    """
    return _default


def set_default_load_endianness(endianness: LoadEndianness | None) -> None:
    """Sets the order in which `kiln.load` reads files that do not say it; None: little-endian."""
    global _default
    if endianness is not None and not isinstance(endianness, LoadEndianness):
        raise TypeError(
            "Invalid argument type in function set_default_load_endianness: expected a LoadEndianness or "
            f"None, got {describe(endianness)}"
        )
    _default = endianness


def default_order() -> bytes:
    """The order as files say it."""
    if _default is LoadEndianness.NATIVE:
        return sys.byteorder.encode()
    return b"big" if _default is LoadEndianness.BIG else b"little"


_name_helpers(globals(), __name__)
