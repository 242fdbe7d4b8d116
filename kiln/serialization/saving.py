"""`save` and `load`: the format that a path or a file's first bytes say."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import ModuleType
from typing import IO, Any

from kiln import _core
from kiln.device import device
from kiln.errors import describe, message, warn
from kiln.files import write_atomically, write_to
from kiln.ops.views.storage import UntypedStorage
from kiln.serialization.endianness import (
    LoadEndianness,
    get_default_load_endianness,
    set_default_load_endianness,
)
from kiln.serialization.listing import get_unsafe_globals_in_checkpoint
from kiln.serialization.location import default_restore_location, location_tag
from kiln.serialization.safe import add_safe_globals, clear_safe_globals, get_safe_globals, safe_globals
from kiln.serialization.source import Damaged, DamagedArchive, Path, Source, gathered, opened
from kiln.serialization.tensor_file import read_tensors, tensor_chunks
from kiln.serialization.torch_file import How, read_archive, read_row
from kiln.serialization.words import Missing
from kiln.serialization.writer import archive_chunks, check_protocol, row_chunks

__all__ = [
    "LoadEndianness",
    "add_safe_globals",
    "clear_safe_globals",
    "default_restore_location",
    "get_default_load_endianness",
    "get_safe_globals",
    "get_unsafe_globals_in_checkpoint",
    "load",
    "location_tag",
    "safe_globals",
    "save",
    "set_default_load_endianness",
]

Place = Callable[[UntypedStorage, str], UntypedStorage | None] | Any

# names that libraries annotate with, and the protocol of pickles
DEFAULT_PROTOCOL = 2
FileLike = Path | IO[bytes]
MAP_LOCATION = Callable[[UntypedStorage, str], UntypedStorage] | device | str | dict[str, str] | None


@_core.Function
def save(
    obj: Any,
    f: Path | IO[bytes],
    pickle_module: ModuleType | None = None,
    pickle_protocol: int = 2,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
) -> None:
    """Write any object to a path or binary file, in PyTorch's format; to `name.safetensors` in that format.

    What is tensors, numbers, texts, bytes, None, and lists, tuples, dicts and sets of these can be read by
    `load`, and by torch.load, without running anything. Other objects are pickled as Python does it
    (`pickle_module`: by another module, as dill), and read with `weights_only=False` or `add_safe_globals`.
    Tensors that share memory share it again when loaded; history and gradients are not saved. safetensors
    holds tensors by name, and plain data: TypeError for the rest.

    A path is replaced in one move once its content is on disk; on failure it is untouched. RuntimeError
    where there is no such folder. A file object has
    part of a file after an error, which says so in a note.

    >>> import kiln, io
    >>> file = io.BytesIO()
    >>> kiln.save({"w": kiln.ones(2), "epoch": 3}, file)
    >>> _ = file.seek(0)
    >>> kiln.load(file)
    {'w': tensor([1., 1.]), 'epoch': 3}
    """
    path = os.fspath(f) if isinstance(f, (str, os.PathLike)) else None
    if path is None and not hasattr(f, "write"):
        raise AttributeError(
            f"expected 'f' to be string, path, or a file-like object with a 'write' attribute: save got "
            f"{describe(f)}"
        )
    if path is None and hasattr(f, "encoding"):
        raise TypeError(message("save", "a path or a binary file", describe(f)))
    protocol = check_protocol(pickle_protocol)
    if path is not None and os.fsdecode(path).endswith(".safetensors"):
        chunks: Iterator[Any] = tensor_chunks(obj)
    elif _use_new_zipfile_serialization:
        if path is not None and not os.path.isdir(folder := os.path.dirname(path) or os.curdir):
            raise RuntimeError(f"Parent directory {os.fsdecode(folder)} does not exist.")
        chunks = archive_chunks(obj, pickle_module, protocol, not _disable_byteorder_record)
    else:
        chunks = row_chunks(obj, pickle_module, protocol)
    chunks = gathered(chunks)
    write_to(f, chunks) if path is None else write_atomically(path, chunks)


@_core.Function
def load(
    f: Path | IO[bytes],
    map_location: Place = None,
    pickle_module: ModuleType | None = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    **pickle_load_args: Any,
) -> Any:
    """The object in a file of `save` or torch.save, or the dict of tensors of a safetensors file.

    Nothing in the file is run unless `weights_only=False` says so: then it may run anything, so do it with
    files whose author you trust. `map_location` says where storages of other devices go: a device, its name,
    a dict of names, or a function of a storage and a name. With `mmap` (a path, not of the older format)
    memory is the file's, read when it is used; what is written there stays in this process. The file must not
    be made shorter meanwhile, as with all mapped memory; `save` puts another one in its place.

    pickle.UnpicklingError for an object that is more than data, or a damaged pickle; RuntimeError for a
    damaged archive, and for a device that is not there; ValueError for a damaged safetensors file; EOFError
    for an empty file; OSError for one that cannot be read; NotImplementedError for what kiln has not, such as
    complex numbers.
    """
    safe = weights_only is None or weights_only
    if safe and pickle_module is not None:
        raise RuntimeError("Can not safely load weights when explicit pickle_module is specified")
    if mmap and not isinstance(f, (str, os.PathLike)):
        raise ValueError("f must be a file path in order to use the mmap argument")
    if safe and pickle_load_args:
        warn("pickle_load_args only works if `weights_only=False`.")
    options = {"encoding": "utf-8", **pickle_load_args}
    how = How(map_location, None if safe else pickle_module or pickle, options, bool(mmap))
    with ExitStack() as stack:
        source = opened(f)
        if isinstance(f, (str, os.PathLike)):
            stack.callback(source.file.close)
        return _read(source, how)


def _read(source: Source, how: How) -> Any:
    """The object in a file, whose first bytes say what it is."""
    if not source.size:
        raise EOFError(f"Ran out of input: load: {source.where} is empty")
    kind = ""
    try:
        kind = _kind(bytes(source.part(0, min(9, source.size))))
        if kind == "archive":
            return read_archive(source, how)
        return read_row(source, how) if kind == "row" else read_tensors(source, how.mapped)
    except DamagedArchive as damage:
        raise RuntimeError(f"PytorchStreamReader {damage} (load: {source.where} is not whole)") from None
    except Damaged as damage:
        if kind not in ("archive", "row"):
            raise ValueError(f"load: {source.where} is not a whole safetensors file: {damage}") from None
        raise pickle.UnpicklingError(_words(str(damage), source.where, how)) from None
    except Missing as missing:
        raise NotImplementedError(f"load: {source.where}: {missing}") from None


def _kind(first: bytes) -> str:
    """Which format a file begins as."""
    if first[8:] == b"{":  # after any 8 bytes, which are a length
        return "tensors"
    return "archive" if first[:4] == b"PK\3\4" else "row" if first[:1] == b"\x80" else "tensors"


def _words(damage: str, where: str, how: How) -> str:
    """What is said of a pickle that is not read."""
    text = f"load: {where}: {damage}" if how.pickles else f"Weights only load failed: load: {where}: {damage}"
    if "Unsupported global" in damage:
        text += ". If you trust whoever made the file, weights_only=False loads it, which runs what it holds"
    return text
