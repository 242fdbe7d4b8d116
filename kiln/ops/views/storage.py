"""The memory behind tensors, and tensors that are given other memory in place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kiln import _core
from kiln.device import CPU, device
from kiln.errors import describe, message
from kiln.ops.creation.constants import empty, sizes_given
from kiln.table.arguments import dtype_name, numel
from kiln.table.public import methods, public
from kiln.table.record import Tensor, find


class UntypedStorage:
    """The memory a tensor looks at, byte by byte.

    >>> x = kiln.arange(4)
    >>> x[1:].untyped_storage().data_ptr() == x.data_ptr(), x[1:].untyped_storage().nbytes()
    (True, 32)
    """

    __slots__ = ("__weakref__", "_owner")

    def __init__(self, owner: Any) -> None:
        self._owner = owner.detach()

    def data_ptr(self) -> int:
        """The address of the memory's first byte; 0 if it has none."""
        owner = self._owner
        address: int = owner.data_ptr()
        return address and address - owner.storage_offset() * owner.element_size()

    def nbytes(self) -> int:
        """How many bytes it has."""
        size: int = self._owner._memory
        return size

    def size(self) -> int:
        """How many elements it has."""
        return self.nbytes() // self.element_size()

    def element_size(self) -> int:
        """The bytes of an element."""
        return int(self._dtype.itemsize)

    @property
    def _dtype(self) -> Any:
        return _core.uint8

    @property
    def device(self) -> device:
        """Where the memory is."""
        return CPU

    def _elements(self) -> Any:
        """All of the memory as a tensor of one dim."""
        return self.elements(self._dtype)

    def elements(self, dtype: Any) -> Any:
        """All of the memory as a tensor of one dim: whole elements of `dtype`, from its first byte on."""
        own = self._owner
        flat = _looking(own, (own._memory // own.element_size(),), (1,), 0)
        if own.dtype is dtype:
            return flat
        # what is not a whole element is left out; a view of another dtype may be of more, or fewer, of them
        flat = flat if dtype.itemsize <= own.element_size() else flat.view(_core.uint8)
        return flat[: flat.numel() * flat.element_size() // dtype.itemsize * dtype.itemsize].view(dtype)

    def tolist(self) -> list[Any]:
        """The elements as Python numbers."""
        found: list[Any] = self._elements().tolist()
        return found

    def clone(self) -> Any:
        """A copy in memory of its own."""
        return type(self)(self._elements().clone())

    def cpu(self) -> Any:
        """The memory in main memory, where it is."""
        return self

    def __len__(self) -> int:
        return self.size()

    def __getitem__(self, index: int) -> Any:
        return self._elements()[index].item()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def __repr__(self) -> str:
        return f"kiln.{type(self).__name__}(device={CPU}) of size {len(self)}"


class TypedStorage(UntypedStorage):
    """The memory a tensor looks at, as elements of the tensor's dtype.

    >>> kiln.arange(4)[1:].storage().size()
    4
    """

    __slots__ = ()

    @property
    def _dtype(self) -> Any:
        return self._owner.dtype

    @property
    def dtype(self) -> Any:
        """The elements' dtype."""
        return self._owner.dtype

    def untyped(self) -> UntypedStorage:
        """The same memory, byte by byte."""
        return UntypedStorage(self._owner)

    def __repr__(self) -> str:
        return f"kiln.TypedStorage(dtype={self.dtype}, device={CPU}) of size {len(self)}"


def untyped_storage(self: Any) -> UntypedStorage:
    """The memory the tensor looks at."""
    return UntypedStorage(self)


def storage(self: Any) -> TypedStorage:
    """The memory the tensor looks at, as elements of its dtype.

    >>> kiln.tensor([1.0, 2.0])[:1].storage().tolist()
    [1.0, 2.0]
    """
    return TypedStorage(self)


@public("is_storage", method=False, dtypes="", differentiable=False)
def is_storage(obj: Any) -> bool:
    """Whether obj is the memory of a tensor.

    >>> kiln.is_storage(kiln.ones(1).untyped_storage())
    True
    """
    return isinstance(obj, UntypedStorage)


def is_set_to(self: Any, tensor: Tensor) -> bool:
    """Whether both look at the same memory in the same way.

    >>> x = kiln.zeros(2)
    >>> x.is_set_to(x.view(2)), x.is_set_to(x.clone())
    (True, False)
    """
    if not isinstance(tensor, _core.Tensor):
        raise TypeError(f"is_set_to(): argument 'tensor' must be Tensor, not {type(tensor).__name__}")
    return (
        (self.shape, self.stride(), self.storage_offset())
        == (tensor.shape, tensor.stride(), tensor.storage_offset())
        and UntypedStorage(self).data_ptr() == UntypedStorage(tensor).data_ptr()
        and self.data_ptr() == tensor.data_ptr()
    )


# Other memory for a tensor


def _in_order(sizes: Any) -> tuple[int, ...]:
    """The strides of elements in order in memory."""
    strides = [1]
    for size in reversed(sizes[1:]):
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides))[: len(sizes)] if sizes else ()


def _looking(x: Tensor, sizes: Any, strides: Any, offset: int) -> Any:
    """A tensor of x's memory, sizes and strides given."""
    return find("as_strided").handle(x, tuple(sizes), tuple(strides), (offset,))


def becoming(self: Any, name: str, view: Any) -> Any:
    """The tensor, which looks where `view` of it does from now on, and has that view's history."""
    return self._become(name, view(self))


def _source(self: Any, source: Tensor) -> Any:
    """What set_ is given, as a tensor of self's dtype."""
    if isinstance(source, TypedStorage) and source.dtype is not self.dtype:
        raise RuntimeError(
            f"Expected a Storage of type {dtype_name(self.dtype)} or an UntypedStorage, but got type "
            f"{dtype_name(source.dtype)} for argument 1 'storage'"
        )
    if isinstance(source, UntypedStorage):
        elements = source._elements()
        return elements if elements.dtype is self.dtype else elements.view(self.dtype)
    if not isinstance(source, _core.Tensor):
        raise TypeError(message("set_", "a tensor or its storage", describe(source)))
    if source.dtype is not self.dtype:
        raise RuntimeError(
            f"Could not set tensor of type {dtype_name(source.dtype)} to a tensor of type "
            f"{dtype_name(self.dtype)}"
        )
    return source


def set_(
    self: Any, source: Tensor | None = None, storage_offset: int = 0, size: Any = None, stride: Any = None
) -> Any:
    """The tensor looks at other memory from now on: that of a tensor or storage, all of it or
    `size` elements.

    Without a source it is empty. RuntimeError for another dtype, for places outside the memory (which does
    not grow), and for a leaf that requires gradients. Its history is the source's from now on.

    >>> kiln.zeros(1).set_(kiln.arange(4.0), 1, (2,))
    tensor([1., 2.])
    """

    def view(_: Any) -> Any:
        if source is None:
            return empty(0, dtype=self.dtype)
        found = _source(self, source)
        if size is None and not storage_offset:
            return found
        sizes = found.shape if size is None else sizes_given((size,), "set_")
        strides = _in_order(sizes) if stride is None else tuple(stride)
        _within(found, sizes, strides, storage_offset)
        return _looking(found, sizes, strides, storage_offset)

    return becoming(self, "set_", view)


def _within(found: Any, sizes: Any, strides: Any, offset: int) -> None:
    """RuntimeError for places outside a tensor's memory."""
    reach = offset + 1 + sum((n - 1) * s for n, s in zip(sizes, strides)) if numel(sizes) else 0
    width = found.element_size()
    if offset < 0 or min(strides, default=0) < 0 or reach * width > found._memory:
        raise RuntimeError(
            f"setStorage: sizes {list(sizes)}, strides {list(strides)}, storage offset {offset}, and "
            f"itemsize {width} requiring a storage size of {reach * width} are out of "
            f"bounds for storage of size {found._memory}"
        )


def resize_(self: Any, *sizes: Any, memory_format: Any = None) -> Any:
    """The tensor in another shape, its elements in order in memory from its first one on; it may grow.

    What is behind its memory's end is 0. RuntimeError if it requires gradients, and if memory would grow that
    others look at too.

    >>> kiln.arange(6).resize_(2, 2)
    tensor([[0, 1],
            [2, 3]])
    """
    wanted = sizes_given(sizes, "resize_")
    if self.requires_grad:
        raise RuntimeError("cannot resize variables that require grad")
    if wanted == tuple(self.shape):
        return self
    offset, width = self.storage_offset(), self.element_size()
    held, needed = self._memory // width, offset + numel(wanted)
    memory = self
    if needed > held:
        if not self._alone:
            raise RuntimeError(
                "Trying to resize storage that is not resizable: other tensors, or another library, look at "
                "it; resize a clone()"
            )
        memory = empty(needed, dtype=self.dtype)
        memory[:held].copy_(_looking(self, (held,), (1,), 0))
    if self.is_inference() and not _core.modes()[1]:
        raise RuntimeError(
            "Inplace update to inference tensor outside InferenceMode is not allowed: resize a clone()"
        )
    version = 0 if self.is_inference() else self._version + 1
    _core.increment_version(self)  # what was saved of it for backward is not what it will be
    self.data = _looking(memory, wanted, _in_order(wanted), offset)
    if not self.is_inference():
        _core.set_version(self, version)
    return self


@public("resize_as_", method=False, dtypes="all", differentiable=False)
def resize_as_(input: Any, the_template: Any, *, memory_format: Any = None) -> Any:
    """`input` in the shape of another tensor, as by `resize_`.

    >>> kiln.resize_as_(kiln.arange(6), kiln.ones(2))
    tensor([0, 1])
    """
    return resize_(input, tuple(the_template.shape))


methods({
    "untyped_storage": untyped_storage,
    "storage": storage,
    "is_set_to": is_set_to,
    "set_": set_,
    "resize_": resize_,
    "resize_as_": resize_as_,
})  # fmt: skip
