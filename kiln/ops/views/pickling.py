"""Tensors and storages as Python pickles them: copies for other processes, other sessions, other objects.

A tensor is a storage, and where in it the tensor's elements are. In one pickle a storage is one object, so
tensors that share memory share it again when they are read: of the tensors alive, `of_memory` gives those of
one storage the same UntypedStorage.

    tensor     rebuild_tensor(kind, storage, dtype, offset, sizes, strides, requires_grad), its attributes
    storage    rebuild_storage(kind, dtype, bytes), from protocol 5 on without a copy of them

Gradients and histories are not kept. Files of `kiln.save` say the same in PyTorch's words.
"""

from __future__ import annotations

from pickle import PickleBuffer
from typing import Any
from weakref import WeakValueDictionary

from kiln import _core
from kiln.late import by_name, itself
from kiln.ops.creation.constants import empty
from kiln.ops.creation.data import attributes
from kiln.ops.creation.interop import lent
from kiln.ops.elementwise.arithmetic import clone
from kiln.ops.views.storage import UntypedStorage
from kiln.table.public import methods
from kiln.table.record import find

_ALIVE: WeakValueDictionary[tuple[int, int], UntypedStorage] = WeakValueDictionary()


def of_memory(x: Any) -> UntypedStorage:
    """The storage of a tensor: the same object for all tensors of a storage, as long as somebody has it."""
    key = (x._place, x._memory)
    found = _ALIVE.get(key) if x._memory else None
    if found is None or (found._owner._place, found.nbytes()) != key:
        _ALIVE[key] = found = UntypedStorage(x)
    return found


def reduce_ex(self: Any, protocol: Any) -> Any:
    """How a tensor is pickled: as a leaf, of the same type and requires_grad, with its attributes."""
    place = (self.dtype, self.storage_offset(), tuple(self.shape), self.stride(), self.requires_grad)
    return rebuild_tensor, (by_name(type(self)), of_memory(self), *place), attributes(self)


def rebuild_tensor(
    kind: type, storage: Any, dtype: Any, offset: int, sizes: Any, strides: Any, requires_grad: bool
) -> Any:
    """The tensor of a pickle. RuntimeError for places outside the storage."""
    kind, made = itself(kind), looking(storage.elements(dtype), sizes, strides, offset)
    if kind is not _core.Tensor:
        return _core.Tensor._make_subclass(kind, made, requires_grad)
    return made.requires_grad_() if requires_grad else made


def looking(flat: Any, sizes: Any, strides: Any, offset: int) -> Any:
    """A tensor of flat's memory that is no view to autograd."""
    return find("as_strided").handle(flat, tuple(sizes), tuple(strides), (offset,)).detach()


def _reduce_storage(self: Any, protocol: Any) -> Any:
    # of a copy: memory that was lent once is not written by recorded programs any more
    content = lent(clone(self.elements(self._owner.dtype)))
    kept = (by_name(type(self)), self._owner.dtype)
    return rebuild_storage, (*kept, PickleBuffer(content) if protocol >= 5 else bytes(content))


def rebuild_storage(kind: Any, dtype: Any, content: Any) -> Any:
    """The storage of a pickle, in memory of its own."""
    kind, count = itself(kind), memoryview(content).nbytes // dtype.itemsize
    if not count:
        return kind(empty(0, dtype=dtype))
    try:
        flat = _core.frombuffer(content, dtype.name, count, 0)
    except ValueError:  # bytes that came apart from the pickle may lie anywhere
        flat = _core.frombuffer(bytearray(content), dtype.name, count, 0)
    return kind(clone(flat))


def _copy_storage(self: Any, memo: dict[int, Any]) -> Any:
    if id(self) not in memo:
        memo[id(self)] = self.clone()
    return memo[id(self)]


methods({"__reduce_ex__": reduce_ex})
UntypedStorage.__reduce_ex__ = _reduce_storage  # type: ignore[method-assign]
UntypedStorage.__deepcopy__ = _copy_storage  # type: ignore[attr-defined]
