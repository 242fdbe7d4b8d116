"""The memory behind tensors, and tensors that are given other memory in place."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from kiln import _core
from kiln.absent import leave_out
from kiln.device import CPU, check, device
from kiln.errors import describe, message
from kiln.ops.creation.constants import empty, settle, sizes_given
from kiln.ops.views.storage_places import element
from kiln.table.arguments import dtype_name, follower_here, numel, recorder_here, type_name
from kiln.table.public import methods, public
from kiln.table.record import Tensor, find


class UntypedStorage:
    """The memory a tensor looks at, byte by byte.

    >>> x = kiln.arange(4)
    >>> x[1:].untyped_storage().data_ptr() == x.data_ptr(), x[1:].untyped_storage().nbytes()
    (True, 32)
    """

    __slots__ = ("__weakref__", "_owner")

    @_core.Function
    def __init__(self, owner: Any = 0, device: Any = None) -> None:
        if not isinstance(owner, _core.Tensor):
            check("UntypedStorage", device)
            owner = _made_of(owner, _core.uint8)
        self._owner: Any = owner.detach()

    @classmethod
    def from_buffer(
        cls, buffer: Any, byte_order: str = "native", count: int = -1, offset: int = 0, dtype: Any = None
    ) -> Any:
        """A copy of memory of Python's: elements of a dtype, in the order "native", "little" or "big".

        ValueError for another order, and for more elements than there are.
        """
        kind = _core.uint8 if dtype is None else dtype
        if byte_order not in ("native", "little", "big"):
            raise ValueError(f"invalid byte_order '{byte_order}' (expected 'big', 'little' or 'native')")
        view = memoryview(buffer).cast("B")
        count = (len(view) - offset) // kind.itemsize if count < 0 else count
        end = offset + count * kind.itemsize
        if not 0 <= offset <= end <= len(view):
            raise ValueError(f"from_buffer: bytes {offset} to {end} of {len(view)}")
        own = bytearray(view[offset:end]) or bytearray(1)
        made = cls(_core.frombuffer(own, "uint8", end - offset, 0).view(kind).clone())
        if byte_order not in ("native", sys.byteorder):
            made.untyped().byteswap(kind)
        return made

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

    def byteswap(self, dtype: Any) -> None:
        """Turns the order of the bytes of every element of a dtype."""
        width = dtype.itemsize
        rows = self.elements(_core.uint8)[: self.nbytes() // width * width].view(-1, width)
        rows.copy_(rows.flip(1))

    def new(self) -> Any:
        """Another storage, of no bytes."""
        return UntypedStorage()

    def type(self, dtype: Any = None, non_blocking: bool = False) -> Any:
        """The name of its class; of a dtype, a copy as elements of it."""
        return "kiln.storage.UntypedStorage" if dtype is None else self._as(dtype)

    def to(self, *, device: Any, non_blocking: bool = False) -> Any:
        """The memory where it is: on the CPU."""
        check("to", device)
        return self

    def _as(self, dtype: Any) -> TypedStorage:
        """A copy: elements as another dtype."""
        return TypedStorage(self._elements().to(dtype, copy=True))

    def is_shared(self) -> bool:
        """Whether other processes look at the memory too."""
        found: bool = self._owner.is_shared()
        return found

    def share_memory_(self) -> Any:
        """Moves the memory to where other processes can look at it; the storage itself."""
        self._owner.share_memory_()
        return self

    def is_pinned(self, device: Any = None) -> bool:
        """False: memory is pinned for an accelerator."""
        return False

    @property
    def is_cuda(self) -> bool:
        """False: the memory is the CPU's."""
        return False

    is_hpu = is_sparse = is_sparse_csr = is_cuda

    @property
    def filename(self) -> str | None:
        """None: of memory that a file is mapped to kiln keeps no name."""
        return None

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
            return self._elements()[element(self, index)].item()
        start, stop, step = index.indices(len(self))
        if step != 1:
            raise RuntimeError(f"Trying to slice with a step of {step}, but only a step of 1 is supported")
        return self._stretch(start, max(start, stop))

    def _stretch(self, start: int, stop: int) -> Any:
        return _Stretch(self._elements()[start:stop])

    def __setitem__(self, index: int | slice, value: Any) -> None:
        """Write a number to an element, or to each of a stretch."""
        self._elements()[index if isinstance(index, slice) else element(self, index)] = value

    def fill_(self, value: Any) -> Any:
        """Write a number to every element; the storage itself."""
        self._elements().fill_(value)
        return self

    def copy_(self, source: UntypedStorage, non_blocking: bool | None = None) -> Any:
        """Write the elements of another storage of as many; the storage itself. RuntimeError for others."""
        if not isinstance(source, UntypedStorage):
            raise TypeError(f"copy_(): argument 'src' must be a storage, not {type(source).__name__}")
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
        return self._shown(f"UntypedStorage(device={CPU})")

    def _shown(self, what: str) -> str:
        library = str(self._dtype).partition(".")[0]  # as dtypes are shown
        return "\n".join([*(f" {x}" for x in self), f"[{library}.storage.{what} of size {len(self)}]"])


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

    @_core.Function
    def __init__(
        self,
        owner: Any = 0,
        *,
        wrap_storage: Any = None,
        dtype: Any = None,
        device: Any = None,
        _internal: bool = False,
    ) -> None:
        kind = _core.get_default_dtype() if dtype is None else dtype
        if wrap_storage is not None:
            if not isinstance(wrap_storage, UntypedStorage) or isinstance(wrap_storage, TypedStorage):
                raise TypeError(
                    f"Argument 'wrap_storage' must be UntypedStorage, got {describe(wrap_storage)}"
                )
            owner = wrap_storage.elements(kind)
        elif not isinstance(owner, _core.Tensor):
            check("TypedStorage", device)
            owner = _made_of(owner, kind)
        super().__init__(owner)

    @property
    def dtype(self) -> Any:
        """The elements' dtype."""
        return self._owner.dtype

    def pickle_storage_type(self) -> str:
        """The name of the class of storages of its dtype: "FloatStorage"."""
        return f"{type_name(dtype_name(self.dtype))}Storage"

    def type(self, dtype: Any = None, non_blocking: bool = False) -> Any:
        """The name of the class of storages of its dtype; of another dtype, a copy as elements of that."""
        library = str(self.dtype).partition(".")[0]  # as dtypes are shown
        return f"{library}.{self.pickle_storage_type()}" if dtype is None else self._as(dtype)

    def untyped(self) -> UntypedStorage:
        """The same memory, byte by byte."""
        return UntypedStorage(self._owner)

    def _stretch(self, start: int, stop: int) -> Any:
        raise RuntimeError("slices are only supported in UntypedStorage.__getitem__")

    def __repr__(self) -> str:
        return self._shown(f"TypedStorage(dtype={self.dtype}, device={CPU})")


def _made_of(given: Any, dtype: Any) -> Any:
    """The elements of a new storage: as many as a number says, or those of a sequence; else TypeError."""
    if isinstance(given, int):
        if given < 0:
            raise RuntimeError(message("storage", "a number of elements", str(given)))
        return empty(given, dtype=dtype).zero_()
    if isinstance(given, str):
        raise TypeError("new(): invalid data type 'str'")
    if isinstance(given, UntypedStorage) or not hasattr(given, "__len__"):
        said = "__new__ received an invalid combination of arguments"
        raise TypeError(f"{said}: expected a number of elements or a sequence, got {describe(given)}")
    return _core.from_nested(list(given), dtype.name).flatten()


_CASTS = {"byte": "uint8", "char": "int8", "double": "float64", "float": "float32", "half": "float16"}
_CASTS |= {"int": "int32", "long": "int64", "short": "int16", "bfloat16": "bfloat16", "bool": "bool"}
for _name, _dtype in _CASTS.items():
    setattr(UntypedStorage, _name, lambda self, _dtype=_dtype: self._as(getattr(_core, _dtype)))
leave_out(UntypedStorage, "complex_double complex_float", "kiln has no complex numbers")
leave_out(
    UntypedStorage,
    "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz",
    "kiln's floats are float16, bfloat16, float32 and float64",
)
leave_out(UntypedStorage, "cuda hpu mps pin_memory", "kiln's memory is the CPU's")
leave_out(UntypedStorage, "resizable resize_", "memory does not grow under its tensors; tensors have resize_")


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
    follower = recorder_here() or follower_here()
    if follower is not None:
        follower.asked(getattr(x, "whole", x), "untyped_storage", frame)


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
    if not isinstance(cls, type):
        raise TypeError(f"as_subclass: cls must be a type (got {type(cls).__name__})")
    if not issubclass(cls, _core.Tensor):
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
