"""Orders of dims in memory that are asked for by name: in order, or channels last."""

from __future__ import annotations

from typing import Any

from kiln import _core
from kiln.layout import memory_format, preserve_format
from kiln.ops.elementwise.arithmetic import clone
from kiln.ops.views.core_views import permute
from kiln.table.arguments import recorder_here
from kiln.table.record import Tensor

_in_order = _core.Tensor.is_contiguous


def is_contiguous(self: Any, memory_format: Any = None) -> bool:
    """Whether elements lie in memory in order; in a `memory_format`, in the order of that.

    >>> x = kiln.zeros(2, 3, 4, 5, memory_format=kiln.channels_last)
    >>> x.is_contiguous(), x.is_contiguous(memory_format=kiln.channels_last), x.stride()
    (False, True, (60, 1, 15, 3))
    """
    order = None if memory_format is None else _order("is_contiguous", memory_format)
    if order is None:
        return _in_order(self)
    return self.ndim == len(order) and _in_order(permute(self, order))


def in_format(op: str, x: Tensor, memory_format: Any) -> Any:
    """x itself if it lies in that format, else a copy that does; RuntimeError for another number of dims."""
    return (
        x
        if memory_format is preserve_format or x.is_contiguous(memory_format)
        else copied(op, x, memory_format)
    )


def copied(op: str, x: Tensor, memory_format: Any) -> Any:
    """A copy of x in a format."""
    order = _order(op, memory_format)
    if order is None:
        return clone(x)
    if x.ndim != len(order):
        name = str(memory_format).rpartition(".")[2]
        raise RuntimeError(f"{op}: required rank {len(order)} tensor to use {name} format, got {x.ndim} dims")
    places = sorted(range(x.ndim), key=lambda dim: order[dim])
    return permute(clone(permute(x, order)), tuple(places))


def _order(op: str, given: Any) -> tuple[int, ...] | None:
    """The dims of a format from the outermost in memory, None for those of the shape."""
    if given is None:
        return None
    if not isinstance(given, memory_format):
        raise TypeError(f"{op}(): argument 'memory_format' must be kiln.memory_format, not {given!r}")
    return given.order


def contiguous(self: Any, memory_format: Any = None) -> Any:
    """The tensor with its elements in order in memory, or in a format's: itself if they are, else a copy.

    RuntimeError for another number of dims than the format's.

    >>> kiln.zeros(2, 3).t().contiguous().is_contiguous()
    True
    """
    if self.is_contiguous(memory_format):
        recorder = recorder_here()
        return self if recorder is None else recorder.itself(self)
    if memory_format is preserve_format:
        raise RuntimeError("preserve memory format is unsupported by the contiguous operator")
    return copied("contiguous", self, memory_format)
