"""How elements lie in memory, as PyTorch's functions are told it: by strides, in order."""

from __future__ import annotations


class layout:
    """A kind of storage; there is one, `strided`.

    >>> kiln.zeros(2).layout
    kiln.strided
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"kiln.{self._name}"


class memory_format(layout):
    """An order of dims in memory: `contiguous_format`, or `preserve_format`, which gives the same: what kiln
    makes is contiguous.

    >>> kiln.zeros(2, 3, memory_format=kiln.contiguous_format).is_contiguous()
    True
    """

    __slots__ = ()


strided = layout("strided")
contiguous_format = memory_format("contiguous_format")
preserve_format = memory_format("preserve_format")
