"""The memory behind tensors, and tensors that are given other memory in place."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from kiln import _core
from kiln.absent import leave_out
from kiln.device import CPU, device
from kiln.errors import describe, message
from kiln.ops.creation.constants import empty, settle, sizes_given
from kiln.table.arguments import dtype_name, numel, recorder_here
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
        if not isinstance(owner, _core.Tensor):
            raise NotImplementedError(
                message(
                    type(self).__name__, "a tensor whose memory it is", describe(owner),
                    "kiln.empty(n, dtype=kiln.uint8).untyped_storage() makes n bytes",
                )
            )  # fmt: skip
        self._owner: Any = owner.detach()

    @classmethod
    def from_file(cls, filename: str | os.PathLike[str], shared: bool = False, nbytes: int = 0) -> Any:
        """The first bytes of a file as memory, read from there when they are looked at.

        What is written to it stays in this process; with `shared` it goes to the file, which is made, or
        grows, to that many bytes. RuntimeError for a file that cannot be opened, or that is smaller.
        """
        return cls(_mapped(os.fspath(filename), shared, nbytes))

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

    def untyped(self) -> UntypedStorage:
        """The same memory, byte by byte."""
        return self

    def cpu(self) -> Any:
        """The memory in main memory, where it is."""
        return self

    def __len__(self) -> int:
        return self.size()

    def __getitem__(self, index: int | slice) -> Any:
        """An element as a Python number; of untyped memory a stretch too, which shares it."""
        if not isinstance(index, slice):
            if not -len(self) <= index < len(self):
                raise IndexError(f"index {index} out of range for storage of size {len(self)}")
            return self._elements()[index].item()
        start, stop, step = index.indices(len(self))
        if step != 1:
            raise RuntimeError(f"Trying to slice with a step of {step}, but only a step of 1 is supported")
        return self._stretch(start, max(start, stop))

    def _stretch(self, start: int, stop: int) -> Any:
        return _Stretch(self._elements()[start:stop])

    def __setitem__(self, index: int | slice, value: Any) -> None:
        """Write a number to an element, or to each of a stretch."""
        if not isinstance(index, slice) and not -len(self) <= index < len(self):
            raise IndexError(f"index {index} out of range for storage of size {len(self)}")
        self._elements()[index] = value

    def fill_(self, value: Any) -> Any:
        """Write a number to every element; the storage itself."""
        self._elements().fill_(value)
        return self

    def copy_(self, source: UntypedStorage, non_blocking: bool | None = None) -> Any:
        """Write the elements of another storage of as many; the storage itself. RuntimeError for others."""
        if len(source) != len(self):
            raise RuntimeError(f"copy_: expected a storage of {len(self)} elements, got {len(source)}")
        self._elements().copy_(source._elements())
        return self

    def get_device(self) -> int | None:
        """The number of the device; the CPU has none."""
        return self.device.index

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def __repr__(self) -> str:
        return f"kiln.UntypedStorage(device={CPU}) of size {len(self)}"


class _Stretch(UntypedStorage):
    """Some bytes of memory that goes on before or after them."""

    __slots__ = ()

    def data_ptr(self) -> int:
        """The address of the first byte."""
        address: int = self._owner.data_ptr()
        return address

    def nbytes(self) -> int:
        """How many bytes it has."""
        count: int = self._owner.numel()
        return count

    def elements(self, dtype: Any) -> Any:
        """Its bytes as whole elements of `dtype`, from the first one on."""
        return self._owner[: self.nbytes() // dtype.itemsize * dtype.itemsize].view(dtype)


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

    def _stretch(self, start: int, stop: int) -> Any:
        raise RuntimeError("slices are only supported in UntypedStorage.__getitem__")

    def __repr__(self) -> str:
        return f"kiln.TypedStorage(dtype={self.dtype}, device={CPU}) of size {len(self)}"


_CASTS = (
    "bfloat16 bool byte char complex_double complex_float double float float8_e4m3fn float8_e4m3fnuz "
    "float8_e5m2 float8_e5m2fnuz half int long short to type"
)
_ELSEWHERE = "cuda hpu is_cuda is_hpu is_pinned mps pin_memory"
for _kind in UntypedStorage, TypedStorage:
    leave_out(_kind, _CASTS, "tensors have it, and their memory is of the new dtype")
    leave_out(_kind, _ELSEWHERE, "kiln's memory is the CPU's")
    leave_out(_kind, "is_shared resizable resize_ share_memory_", "tensors have these of their memory")
    leave_out(_kind, "is_sparse is_sparse_csr", "kiln has no sparse tensors")
    leave_out(_kind, "byteswap filename from_buffer new pickle_storage_type", "PyTorch has it, kiln has not")


def _mapped(filename: str, shared: bool, nbytes: int) -> Any:
    """The first bytes of a file as a tensor."""
    import mmap

    mode = (os.O_RDWR | os.O_CREAT) if shared else os.O_RDONLY
    try:  # what is no file is not waited for
        opened = os.open(filename, mode | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0), 0o600)
    except OSError as error:
        how = "read-write" if shared else "read-only"
        said = f"unable to open file <{filename}> in {how} mode: {error.strerror} ({error.errno})"
        raise RuntimeError(said) from None
    try:
        held = os.fstat(opened).st_size
        if held < nbytes and not shared:
            raise RuntimeError(
                f"file <{filename}> size <{held}> is smaller than the required mapping size <{nbytes}>"
            )
        if held < nbytes:
            os.truncate(opened, nbytes)
        if not nbytes:
            return empty(0, dtype=_core.uint8)
        how_to = mmap.ACCESS_WRITE if shared else mmap.ACCESS_COPY
        return _core.frombuffer(mmap.mmap(opened, nbytes, access=how_to), "uint8", nbytes, 0)
    finally:
        os.close(opened)


@public("from_file", method=False, dtypes="", differentiable=False)
def from_file(
    filename: str, shared: bool | None = None, size: int | None = 0, *, dtype: Any = None, **options: Any
) -> Any:
    """The first `size` elements of a file, in the order of this machine's bytes, where they are in the file.

    What is written to the tensor stays in this process; with `shared` it goes to the file, which is made, or
    grows. RuntimeError for a file that cannot be opened, or that is smaller.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "numbers")
    >>> kiln.from_file(path, shared=True, size=3).copy_(kiln.arange(3.0))
    tensor([0., 1., 2.])
    >>> kiln.from_file(path, size=2)
    tensor([0., 1.])
    """
    kind = _core.get_default_dtype() if dtype is None else dtype
    made = _mapped(os.fspath(filename), bool(shared), (size or 0) * kind.itemsize).view(kind)
    where, requires_grad = options.pop("device", None), options.pop("requires_grad", False)
    return settle(made, requires_grad, where, "from_file", options)


def untyped_storage(self: Any) -> UntypedStorage:
    """The memory the tensor looks at."""
    _tell(self, sys._getframe(1))
    return UntypedStorage(self)


def _tell(x: Any, frame: Any) -> None:
    """Who follows the program of that frame is told that it asks for memory."""
    recorder = recorder_here()
    if recorder is not None:
        recorder.asked(getattr(x, "whole", x), "untyped_storage", frame)


def storage(self: Any) -> TypedStorage:
    """The memory the tensor looks at, as elements of its dtype.

    >>> kiln.tensor([1.0, 2.0])[:1].storage().tolist()
    [1.0, 2.0]
    """
    _tell(self, sys._getframe(1))
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


def as_subclass(self: Any, cls: Any) -> Any:
    """The tensor as one of a class of the program's own: the same memory and history; `cls` is not called.

    What is computed with it is plain tensors again.

    >>> class Named(kiln.Tensor):
    ...     name = "a"
    >>> x = kiln.ones(2, requires_grad=True).as_subclass(Named)
    >>> x.name, x.is_leaf, type(x + 1) is kiln.Tensor
    ('a', False, True)
    """
    if not isinstance(cls, type) or not issubclass(cls, _core.Tensor):
        raise TypeError(message("as_subclass", "a class of tensors", describe(cls)))
    made = _core.Tensor._make_subclass(cls, self.detach())
    if not (self.requires_grad and _core.grad_enabled()):
        return made
    return becoming(made, "as_subclass", lambda _: self.view(self.shape))


def to_dense(self: Any, dtype: Any = None, *, masked_grad: bool | None = None) -> Any:
    """The tensor, which has all its elements in memory already; of another dtype where one is given.

    >>> x = kiln.ones(2)
    >>> x.to_dense() is x
    True
    """
    return self if dtype is None else self.to(dtype)


methods({
    "as_subclass": as_subclass,
    "to_dense": to_dense,
    "untyped_storage": untyped_storage,
    "storage": storage,
    "is_set_to": is_set_to,
    "set_": set_,
    "resize_": resize_,
    "resize_as_": resize_as_,
})  # fmt: skip
