"""How tensors are sent to other processes by Python's multiprocessing: their memory is shared, not copied.

A tensor is pickled as its segment and how it looks at that; a segment as its descriptor, which goes along
with the arguments of a process that is started, or is fetched from the sending process, which must live until
then. A process has each segment's memory once, however often it is sent to it.
"""

from __future__ import annotations

import os
from multiprocessing import reduction
from multiprocessing.reduction import ForkingPickler
from typing import Any
from weakref import WeakValueDictionary

from kiln import _core, ops
from kiln._core import Tensor
from kiln.nn.parameter import Parameter
from kiln.ops.views.reinterpret import elements
from kiln.ops.views.shared import Segment, shared_segment
from kiln.ops.views.storage import TypedStorage, UntypedStorage

_segments: WeakValueDictionary[tuple[int, int], Segment] = (
    WeakValueDictionary()
)  # by what they are to the system


def _known(segment: Segment) -> Segment:
    """The segment of this process that has this memory already; itself otherwise."""
    found = os.fstat(segment.descriptor)
    return _segments.setdefault((found.st_dev, found.st_ino), segment)


def reduce_segment(segment: Segment) -> Any:
    """The segment for ForkingPickler: its descriptor."""
    _known(segment)
    return rebuild_segment, (reduction.DupFd(segment.descriptor),)


def rebuild_segment(descriptor: Any) -> Segment:
    """The segment of a descriptor that was sent."""
    return _known(Segment(descriptor.detach()))


def reduce_tensor(tensor: Any) -> Any:
    """The tensor for ForkingPickler. Its memory is put into a segment, if it is in none.

    RuntimeError for one that has a history, as gradients do not flow between processes.
    """
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not "
            "support "
            "crossing process boundaries; send x.detach()"
        )
    kind = Parameter if isinstance(tensor, Parameter) else Tensor
    place = tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.requires_grad
    nbytes = tensor._memory
    segment = shared_segment(tensor) if nbytes else None
    return rebuild_tensor, (kind, segment, nbytes, tensor.dtype.name, *place)


def rebuild_tensor(
    kind: type[Tensor],
    segment: Segment | None,
    nbytes: int,
    dtype: str,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    requires_grad: bool,
) -> Any:
    """A tensor that was sent, over the memory of its segment."""
    made: Any
    element = getattr(_core, dtype)
    if segment is None:
        made = ops.empty(sizes, dtype=element)
    else:
        memory = elements(_core.map_shared(segment.descriptor, nbytes, segment), element)
        made = memory.as_strided(sizes, strides, offset).detach()
    if kind is Parameter:
        return Parameter(made, requires_grad)
    return made.requires_grad_(requires_grad)


def reduce_storage(storage: Any) -> Any:
    """A storage for ForkingPickler: as that of a tensor."""
    return rebuild_storage, (storage._owner, hasattr(storage, "dtype"))


def rebuild_storage(owner: Any, typed: bool) -> Any:
    """A storage that was sent."""
    return owner.storage() if typed else owner.untyped_storage()


def init_reductions() -> None:
    """Tells ForkingPickler, and so queues, pipes, pools and arguments of processes."""
    ForkingPickler.register(Segment, reduce_segment)
    ForkingPickler.register(Tensor, reduce_tensor)
    ForkingPickler.register(Parameter, reduce_tensor)
    ForkingPickler.register(UntypedStorage, reduce_storage)
    ForkingPickler.register(TypedStorage, reduce_storage)


init_reductions()
