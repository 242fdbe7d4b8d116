"""The version of PyTorch whose names kiln has, as `torch.version` and `torch.torch_version`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any


class TorchVersion(str):
    """A version's text that compares as versions do, with texts, tuples and `packaging.version.Version`.

    >>> TorchVersion("2.13.0+kiln") > "2.9", TorchVersion("2.13.0") >= (2, 13)
    (True, True)
    """

    __slots__ = ()

    def _compare(self, other: Any, told: Callable[[Any, Any], bool]) -> bool:
        theirs = _release(other)
        return NotImplemented if theirs is None else told(_release(self), theirs)

    def __lt__(self, other: Any) -> bool:
        return self._compare(other, lambda a, b: a < b)

    def __le__(self, other: Any) -> bool:
        return self._compare(other, lambda a, b: a <= b)

    def __gt__(self, other: Any) -> bool:
        return self._compare(other, lambda a, b: a > b)

    def __ge__(self, other: Any) -> bool:
        return self._compare(other, lambda a, b: a >= b)

    def __eq__(self, other: Any) -> bool:
        return (
            str.__eq__(self, other) if isinstance(other, str) else self._compare(other, lambda a, b: a == b)
        )

    def __ne__(self, other: Any) -> bool:
        return not self == other

    __hash__ = str.__hash__


def _release(version: Any) -> tuple[int, ...] | None:
    """The numbers of a version, without zeros at the end; None for what is none."""
    if isinstance(version, str):
        found = re.match(r"v?(\d+(?:\.\d+)*)", version)
        if found is None:
            return None
        numbers = [int(n) for n in found[1].split(".")]
    else:
        numbers = list(getattr(version, "release", version if isinstance(version, (tuple, list)) else ()))
        if not numbers or not all(isinstance(n, int) for n in numbers):
            return _release(".".join(map(str, numbers))) if numbers else None
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


__version__ = TorchVersion("2.13.0+kiln")
debug = False
cuda = hip = rocm = xpu = None
git_version = "Unknown"
