"""Writing PyTorch's files: Python's pickler, which says what is made of tensors in PyTorch's words.

    a tensor      torch._utils _rebuild_tensor_v2 ((storage), offset, sizes, strides, requires_grad, hooks)
    a storage     outside of the pickle: ("storage", torch FloatStorage, key, "cpu", length)

Tensors of one storage name the same one, so its bytes are written once. A tensor that reads a storage as
another dtype is written by _rebuild_tensor_v3, which says the dtype itself.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from copyreg import dispatch_table
from itertools import chain
from typing import Any, NamedTuple

from kiln import _core
from kiln._core import Tensor
from kiln.device import device
from kiln.errors import describe, message
from kiln.late import SHOWN
from kiln.layout import layout
from kiln.nn.parameter import Buffer, Parameter, is_lazy
from kiln.ops.creation.data import attributes
from kiln.ops.views.pickling import of_memory
from kiln.ops.views.storage import TypedStorage, UntypedStorage
from kiln.serialization.archive import Written, zipped
from kiln.serialization.source import pieces
from kiln.serialization.torch_file import MAGIC, PROTOCOL
from kiln.serialization.words import STORAGE_OF, StorageType


class Named:
    """A name of PyTorch's, which a file says and this process may not have."""

    def __init__(self, module: str, name: str) -> None:
        self.text = f"c{module}\n{name}\n".encode()


class Outside(NamedTuple):
    """A storage as a file names it."""

    key: str
    kind: Named
    length: int
    storage: UntypedStorage
    dtype: Any


_TENSOR = Named("torch._utils", "_rebuild_tensor_v2")
_TENSOR_OF_DTYPE = Named("torch._utils", "_rebuild_tensor_v3")
_PARAMETER = Named("torch._utils", "_rebuild_parameter")
_PARAMETER_WITH_STATE = Named("torch._utils", "_rebuild_parameter_with_state")
_OF_TYPE = Named("torch._tensor", "_rebuild_from_type_v2")
_CLASS, _SIZE, _DEVICE = Named("torch", "Tensor"), Named("torch", "Size"), Named("torch", "device")
_LAYOUT = Named("torch.serialization", "_get_layout")
_DTYPES = {dtype: Named("torch", dtype.name) for dtype in STORAGE_OF}
_UNTYPED = Named("torch", "UntypedStorage")
_KINDS = {dtype: Named("torch", name) for dtype, name in STORAGE_OF.items()}


class Storages:
    """The storages that a pickle names, numbered as they are met."""

    def __init__(self) -> None:
        self.found: dict[int, Outside] = {}  # by the id of the storage, which lives as long as this does
        self.legacy = False

    def outside(self, storage: UntypedStorage, dtype: Any) -> Outside:
        """How the file names a storage; its dtype is that of the first tensor."""
        found = self.found.get(id(storage))
        if found is None:
            kind, key = _KINDS[dtype], str(len(self.found))
            found = Outside(key, kind, storage.nbytes() // dtype.itemsize, storage, dtype)
            self.found[id(storage)] = found
        return found

    def meet(self, x: Tensor) -> None:
        """Gives a tensor's storage its dtype, before the tensor's reduction names the storage alone."""
        if not is_lazy(x):
            self.outside(of_memory(x), x.dtype)

    def name(self, found: Outside, untyped: bool = False) -> tuple[Any, ...]:
        """What the pickle says in a storage's place."""
        length = found.length * found.dtype.itemsize if untyped else found.length
        named = ("storage", _UNTYPED if untyped else found.kind, found.key, "cpu", length)
        return (*named, None) if self.legacy else named

    def elements(self, found: Outside) -> Tensor:
        """A storage's elements."""
        elements: Tensor = found.storage.elements(found.dtype)
        return elements


_InPython: Any = pickle._Pickler  # the one that says what it writes by methods


class Pickler(_InPython):  # type: ignore[misc]
    """Python's pickler, and how it writes what is of tensors."""

    dispatch: dict[type, Any] = dict(_InPython.dispatch)

    def __init__(self, file: Any, protocol: int, storages: Storages) -> None:
        super().__init__(file, protocol)
        if SHOWN:  # under PyTorch's name classes are named as PyTorch has them, which `load` knows
            self.dispatch_table = {kind: how for kind, how in dispatch_table.items() if kind not in SHOWN}
        self.storages = storages

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, Outside):
            return self.storages.name(obj)
        if isinstance(obj, UntypedStorage):
            return self.storages.name(*_outside(self.storages, obj))
        if isinstance(obj, Tensor) and type(obj) not in self.dispatch:
            self.storages.meet(obj)
        return None

    def save_named(self, obj: Named) -> None:
        self.write(obj.text)
        self.memoize(obj)

    def save_tensor(self, obj: Tensor) -> None:
        state = attributes(obj)
        if state is None:
            self._save_rebuilding(obj, pickle.REDUCE)
            self.memoize(obj)
        else:
            self._save_of_type(obj, state)

    def _save_of_type(self, obj: Tensor, state: Any) -> None:
        self.save(_OF_TYPE)
        self.write(pickle.MARK)
        self._save_rebuilding(obj, b"", _CLASS)
        self.save(state)
        if id(obj) in self.memo:  # the file says attributes before there is a tensor
            raise ValueError(message("save", "attributes of a tensor that do not hold it", describe(obj)))
        self.write(pickle.TUPLE + pickle.REDUCE)
        self.memoize(obj)

    def _save_rebuilding(self, x: Tensor, then: bytes, kind: Named | None = None) -> None:
        """What makes a tensor again, and of what: written out, as there are many of them."""
        found = self.storages.outside(of_memory(x), x.dtype)
        same = found.dtype is x.dtype
        self.save(_TENSOR if same else _TENSOR_OF_DTYPE)
        if kind is not None:
            self.save(kind)
        self.write(b"((" + _text("storage"))
        self.save(found.kind)
        outside = _text(found.key) + _text("cpu") + _number(found.length)
        place = _number(x.storage_offset()) + _numbers(x.shape) + _numbers(x.stride())
        flag = pickle.NEWTRUE if x.requires_grad else pickle.NEWFALSE
        self.write(outside + (b"NtQ" if self.storages.legacy else b"tQ") + place + flag)
        self.save(OrderedDict)
        self.write(b")R")
        if not same:
            self.save(x.dtype)
        self.write(pickle.TUPLE + then)

    def save_parameter(self, obj: Any) -> None:
        state = attributes(obj)
        args: tuple[Any, ...] = (obj.data, obj.requires_grad, OrderedDict())
        if state is None:
            self.save_reduce(_PARAMETER, args, obj=obj)
        else:
            self.save_reduce(_PARAMETER_WITH_STATE, (*args, state), obj=obj)

    def save_buffer(self, obj: Any) -> None:
        self._save_of_type(obj, {**obj.__dict__, "_is_buffer": True})  # how PyTorch tells one

    def save_size(self, obj: Any) -> None:
        self.save_reduce(_SIZE, (tuple(obj),), obj=obj)

    def save_device(self, obj: Any) -> None:
        args = (obj.type,) if obj.index is None else (obj.type, obj.index)
        self.save_reduce(_DEVICE, args, obj=obj)

    def save_layout(self, obj: Any) -> None:
        self.save_reduce(_LAYOUT, (f"torch.{obj._name}",), obj=obj)

    def save_dtype(self, obj: Any) -> None:
        self.save(_DTYPES[obj])

    def save_reduce(self, func: Any, args: Any, *rest: Any, obj: Any = None, **named: Any) -> None:
        if not isinstance(func, Named):
            super().save_reduce(func, args, *rest, obj=obj, **named)
            return
        self.save(func)
        self.save(args)
        self.write(pickle.REDUCE)
        if obj is not None:
            self.memoize(obj)

    dispatch.update({
        Named: save_named, Tensor: save_tensor, Parameter: save_parameter, Buffer: save_buffer,
        _core.Size: save_size, device: save_device, layout: save_layout, type(_core.float32): save_dtype,
    })  # fmt: skip


def _outside(storages: Storages, storage: UntypedStorage) -> tuple[Outside, bool]:
    """How the file names a storage, and whether as bytes: not one that stands in a tensor's reduction."""
    memory = of_memory(storage._owner)
    known = storages.found.get(id(memory))
    typed = isinstance(storage, TypedStorage)
    dtype = storage._owner.dtype if typed else _core.uint8
    return known or storages.outside(memory, dtype), not typed and memory is not storage


def _text(value: str) -> bytes:
    """A text in a pickle."""
    raw = value.encode()
    return b"X" + len(raw).to_bytes(4, "little") + raw


def _number(value: int) -> bytes:
    """An integer in a pickle."""
    if 0 <= value < 256:
        return b"K" + value.to_bytes(1, "little")
    if value < 2**31:
        return b"J" + value.to_bytes(4, "little")
    return b"\x8a\x08" + value.to_bytes(8, "little")


def _numbers(values: Any) -> bytes:
    """A tuple of integers in a pickle."""
    return b"(" + b"".join(map(_number, values)) + b"t"


def pickled(obj: Any, pickles: Any, protocol: int, storages: Storages) -> bytes:
    """The pickle of an object, whose storages are elsewhere."""
    file = io.BytesIO()
    if pickles is None or pickles is pickle:
        try:
            Pickler(file, protocol, storages).dump(obj)
        except pickle.PicklingError as error:
            raise pickle.PicklingError(str(error)) from None  # without the frames of Python's pickler
        return file.getvalue()

    class Foreign(pickles.Pickler):  # type: ignore[misc]
        """Another module's: it says kiln's names, and files of it are read with that module alone."""

        def persistent_id(self, obj: Any) -> Any:
            if isinstance(obj, Tensor):
                storages.meet(obj)
            if not isinstance(obj, UntypedStorage):
                return None
            found, untyped = _outside(storages, obj)
            if untyped:
                kind = StorageType("UntypedStorage", None)
                return "storage", kind, found.key, "cpu", found.length * found.dtype.itemsize
            kind = StorageType(STORAGE_OF[found.dtype], found.dtype)
            return "storage", kind, found.key, "cpu", found.length

    Foreign(file, protocol).dump(obj)
    return file.getvalue()


def archive_chunks(obj: Any, pickles: Any, protocol: int, byteorder: bool) -> Iterator[Any]:
    """The zip archive of an object, piece by piece."""
    storages = Storages()
    content = pickled(obj, pickles, protocol, storages)
    records = [Written("data.pkl", len(content), [content])]
    if byteorder:
        records.append(Written("byteorder", 6, [b"little"]))
    for found in storages.found.values():
        elements = storages.elements(found)
        size = elements.numel() * elements.element_size()
        records.append(Written(f"data/{found.key}", size, pieces(elements)))
    return zipped([*records, Written("version", 2, [b"3\n"])])


def row_chunks(obj: Any, pickles: Any, protocol: int) -> Iterator[Any]:
    """The older file of an object, piece by piece."""
    storages = Storages()
    storages.legacy = True
    sizes = {"short": 2, "int": 4, "long": 4}
    system = {"protocol_version": PROTOCOL, "little_endian": True, "type_sizes": sizes}
    head = [pickle.dumps(part, protocol) for part in (MAGIC, PROTOCOL, system)]
    content = pickled(obj, pickles, protocol, storages)
    keys = pickle.dumps([found.key for found in storages.found.values()], protocol)
    return chain(head, [content, keys], *(_counted(storages, found) for found in storages.found.values()))


def _counted(storages: Storages, found: Outside) -> Iterable[Any]:
    """A storage in the older file."""
    elements = storages.elements(found)
    yield elements.numel().to_bytes(8, "little")
    yield from pieces(elements)


def check_protocol(protocol: Any) -> int:
    """The protocol of a pickle. ValueError for one that Python has not."""
    if not isinstance(protocol, int) or isinstance(protocol, bool):
        raise TypeError(message("save", "pickle_protocol as an int", describe(protocol)))
    if not 2 <= protocol <= pickle.HIGHEST_PROTOCOL:
        raise ValueError(message("save", f"pickle_protocol 2 to {pickle.HIGHEST_PROTOCOL}", str(protocol)))
    return protocol
