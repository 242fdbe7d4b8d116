"""Tensors whose memory other processes see: a file descriptor's, which has no name in any file system."""

from __future__ import annotations

import os
from typing import Any

from kiln.table.public import methods


class Segment:
    """The descriptor of memory that processes share, closed when nobody in this process has the memory any
    more.

    Who maps it keeps it; a process that ends, however it ends, gives its part back to the system.
    """

    __slots__ = ("__weakref__", "descriptor")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self, close: Any = os.close) -> None:
        close(self.descriptor)


def new_descriptor(nbytes: int) -> int:
    """A descriptor of so many zero bytes, in memory alone. OSError where there is not as much."""
    descriptor = os.memfd_create("kiln", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def shared_segment(x: Any) -> Segment:
    """The segment that the tensor's memory is, which is put there if need be."""
    found = x._shared
    if not isinstance(found, Segment):
        found = Segment(new_descriptor(x._memory))
        x._share(found.descriptor, found)
    return found


def share_memory_(self: Any) -> Any:
    """The tensor, whose memory is shared with processes from now on: those that are started by fork, and
    those it is sent to by `kiln.multiprocessing`, see what any of them writes.

    All tensors that look at the memory share it. Nothing happens where it is shared already, and to no
    elements.

    >>> x = kiln.zeros(2).share_memory_()
    >>> x.is_shared(), kiln.zeros(2).is_shared()
    (True, False)
    """
    if self._memory:
        shared_segment(self)
    return self


def is_shared(self: Any) -> bool:
    """Whether the tensor's memory can be that of other processes too.

    >>> kiln.ones(2).is_shared()
    False
    """
    return self._shared is not False


methods({"share_memory_": share_memory_, "is_shared": is_shared})
