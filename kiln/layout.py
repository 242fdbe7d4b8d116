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

    def __reduce__(self) -> str:
        return self._name  # copies and pickles are the one of that name here


class memory_format(layout):
    """An order of dims in memory: `contiguous_format`; `channels_last` of images (n, c, h, w) and
    `channels_last_3d`, whose channels are neighbours; `preserve_format`, what kiln makes anyway.

    >>> kiln.zeros(2, 3, memory_format=kiln.contiguous_format).is_contiguous()
    True
    """

    __slots__ = ("order",)

    def __init__(self, name: str, order: tuple[int, ...] | None = None) -> None:
        super().__init__(name)
        self.order = order


strided = layout("strided")
contiguous_format = memory_format("contiguous_format")
preserve_format = memory_format("preserve_format")
channels_last = memory_format("channels_last", (0, 2, 3, 1))
channels_last_3d = memory_format("channels_last_3d", (0, 2, 3, 4, 1))
