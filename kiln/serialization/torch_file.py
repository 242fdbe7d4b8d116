"""Reading PyTorch's files: a zip archive, or the older row of pickles with the storages' bytes after them.

0x1950a86a20f9469cfc6c      pickled: the magic number
1001                        pickled: the protocol's number
{"little_endian": ...}      pickled
the object                  pickled; its storages by key
[key, ...]                  pickled: the order of what follows
8 bytes of a count, then as many elements, for each storage
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

from kiln import ops
from kiln.ops.views.storage import TypedStorage, UntypedStorage
from kiln.serialization.archive import Archive
from kiln.serialization.endianness import default_order
from kiln.serialization.location import mapping
from kiln.serialization.machine import Machine, Window, storage_named
from kiln.serialization.safe import here
from kiln.serialization.source import Damaged, DamagedArchive, Source, mapped_tensor, read_tensor
from kiln.serialization.words import meaning, missing, need, storage_dtype

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001


class How(NamedTuple):
    """How a file is to be read."""

    map_location: Any = None
    pickles: Any = None  # the module whose Unpickler may run what the file holds; None: nothing is run
    options: dict[str, Any] = {}  # of the Unpickler
    mapped: bool = False


class Storages:
    """The storages of a file by key, each made when the pickle first names it."""

    def __init__(self, how: How, read: Callable[[str, Any, int], Any]) -> None:
        self.read = read
        self.place = mapping(how.map_location)
        self.found: dict[str, tuple[Any, int]] = {}

    def __call__(self, what: Any) -> Any:
        kind, key, location, length = storage_named(what)
        dtype = storage_dtype(kind)
        nbytes = length * dtype.itemsize
        if key not in self.found:
            storage = UntypedStorage(self.read(key, dtype, length))
            self.found[key] = self.place(storage, location), nbytes
        storage, known = self.found[key]
        need(nbytes == known, "storage {} of one length, got two", key)
        if kind.dtype is None:
            return UntypedStorage(storage._owner)
        return TypedStorage(storage._owner if storage._owner.dtype is dtype else storage.elements(dtype))


def read_archive(source: Source, how: How) -> Any:
    """The object of a zip archive."""
    archive = Archive(source)
    if "constants.pkl" in archive and not how.pickles:
        missing("a TorchScript program; save its state_dict()")
    order = archive.read("byteorder") if "byteorder" in archive else default_order()
    need(order in (b"little", b"big"), "byteorder little or big, got {}", order.decode("latin1"))
    content = source.mapped() if how.mapped else None

    def read(key: str, dtype: Any, length: int) -> Any:
        record = archive.find(f"data/{key}")
        if record.size != length * dtype.itemsize:
            expected = f"expected size ({length * dtype.itemsize} bytes = {length} elements)"
            raise DamagedArchive(f"failed: record size ({record.size} bytes) does not match {expected}")
        swapped = order == b"big"
        found = None if content is None or swapped else mapped_tensor(content, record.at, dtype, length)
        if found is None:
            found = read_tensor(source, record.at, dtype, length, f"storage {key:.40}", swapped)
        return found

    record = archive.find("data.pkl")
    window = Window(source, record.at, record.at + record.size)
    return _object(window, how, Storages(how, read))


def read_row(source: Source, how: How) -> Any:
    """The object of an older file."""
    if how.mapped:
        raise RuntimeError(
            "mmap can only be used with files saved with `torch.save(_use_new_zipfile_serialization=True), "
            f"please torch.save your checkpoint with this option in order to use mmap: load: {source.where}"
        )
    window = Window(source, 0, source.size)

    def plain() -> Any:
        return Machine(window, _none_outside).run()

    magic = plain()
    if magic != MAGIC or type(magic) is not int:
        raise Damaged("Invalid magic number; corrupt file?")
    if plain() != PROTOCOL:
        raise Damaged("Invalid protocol version")
    plain()  # the widths of integers, and an order of bytes that says nothing: the file's is always the same
    waiting: dict[str, Any] = {}
    room = source.size

    def make(key: str, dtype: Any, length: int) -> Any:
        nonlocal room
        room -= length * dtype.itemsize
        need(room >= 0, "storages within the file's {} bytes", source.size)
        waiting[key] = ops.empty(length, dtype=dtype)
        return waiting[key]

    found = _object(window, how, Storages(how, make))
    keys = plain()
    need(type(keys) is list and all(isinstance(key, str) for key in keys), "a list of keys, got {}", keys)
    need(sorted(keys) == sorted(waiting), "the keys of the storages that the object has")
    for key in keys:
        memory = waiting[key]
        count = int.from_bytes(window.take(8), "little")
        need(count == memory.numel(), "{} elements of storage {}, got {}", memory.numel(), key, count)
        memory.copy_(read_tensor(source, window.place, memory.dtype, count, f"storage {key:.40}"))
        window = Window(source, window.place + count * memory.element_size(), source.size)
    source.file.seek(source.start + window.place)
    return found


def _none_outside(what: Any) -> Any:
    raise Damaged("expected a pickle of plain data, got one with storages")


def _object(window: Window, how: How, storages: Storages) -> Any:
    """The object of a pickle, by the reader that was asked for."""
    if how.pickles is None:
        return Machine(window, storages, how.options.get("encoding", "utf-8")).run()

    class Unpickler(how.pickles.Unpickler):  # type: ignore[misc,name-defined]
        def find_class(self, module: str, name: str) -> Any:
            return _named(super().find_class, module, name)

        def persistent_load(self, what: Any) -> Any:
            # the older format names classes of modules beside their source
            return what[1] if isinstance(what, tuple) and what[:1] == ("module",) else storages(what)

    return Unpickler(window, **how.options).load()


def _named(find: Callable[[str, str], Any], module: str, name: str) -> Any:
    """What a pickle that may name anything means by a name: PyTorch's are kiln's."""
    known = meaning(f"{module}.{name}")
    if known is not None and module.partition(".")[0] == "torch":
        return known
    if module.partition(".")[0] == "torch":
        known = here(module, name, None)
        if known is None:
            raise pickle.UnpicklingError(f"load: the file names {module}.{name}, which kiln has not")
        return known
    return find(module, name)
