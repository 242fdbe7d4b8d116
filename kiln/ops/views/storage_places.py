"""Which element a storage is asked for."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from kiln.errors import describe


def element(storage: Any, index: Any) -> Any:
    """The number of an element, which may count from the end. IndexError where there is none; for what is no
    number what PyTorch raises of such a storage.
    """
    if not isinstance(index, Integral) or isinstance(index, bool):
        name = type(storage).__name__
        wrong = RuntimeError if name == "TypedStorage" else TypeError
        raise wrong(f"can't index a kiln.{name} with {describe(index)}")
    if not -len(storage) <= int(index) < len(storage):
        raise IndexError(f"index {index} out of range for storage of size {len(storage)}")
    return index
