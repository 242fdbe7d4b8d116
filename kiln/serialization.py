"""`kiln.save` and `kiln.load`: tensors and plain data in a safetensors file.

    8 bytes      header size, little-endian
    header       JSON {"__metadata__": {...}, name: {"dtype", "shape", "data_offsets"}, ...}, spaces
    data         the tensors' bytes, little-endian, row-major, one after the other without holes

A flat dict of tensors is exactly that file, which any safetensors reader opens. Anything nested (an
optimizer's state_dict) keeps its tensors under the path at which they stand, and its shape as a JSON
document under "kiln.tree" in `__metadata__`:

    tree := null | true | false | integer | string | {"f": "1.5"} | {"t": tensor name}
          | {"l": [tree...]} | {"u": [tree...]} (a tuple) | {"d": [[key tree, tree]...]}

A file holds data only: nothing in it names code. Reading checks everything before it allocates; writing
is atomic: beside, synced, renamed, so the old file survives any failure.
"""

from __future__ import annotations

import io
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from typing import IO, Any, NamedTuple, Union

from kiln import _core, ops
from kiln._core import Tensor
from kiln.errors import describe, message

Path = Union[str, "os.PathLike[str]"]

TREE = "kiln.tree"  # the metadata entry that holds the document of a nested object
MAX_HEADER = 100_000_000  # bytes, as the safetensors format has it
MAX_DEPTH = 100  # of nested containers, in a tree and in a header
MAX_SIZE = 2**63 - 1  # of a tensor in bytes

DTYPES: dict[str, Any] = {
    "BOOL": _core.bool,
    "U8": _core.uint8,
    "I8": _core.int8,
    "I16": _core.int16,
    "I32": _core.int32,
    "I64": _core.int64,
    "F16": _core.float16,
    "BF16": _core.bfloat16,
    "F32": _core.float32,
    "F64": _core.float64,
}
_WIDTH = {"BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "I32": 4, "I64": 8, "F16": 2, "BF16": 2, "F32": 4, "F64": 8}


class Entry(NamedTuple):
    """Where one tensor lies: bytes [begin, end) of the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


# -- saving -------------------------------------------------------------------------------------------


def save(obj: Any, f: Union[Path, IO[bytes]]) -> None:
    """Write tensors, numbers, strings, None and lists, tuples and dicts of these to a path or binary file.

    A tensor that occurs twice is written once, and is one tensor again when loaded. Values are saved, not
    history or `requires_grad`. Raises TypeError for anything else, ValueError for a structure that
    contains itself. A path is replaced in one move once its content is on disk; on failure it is untouched.

    >>> import kiln, io
    >>> file = io.BytesIO()
    >>> kiln.save({"w": kiln.ones(2), "epoch": 3}, file)
    >>> _ = file.seek(0)
    >>> kiln.load(file)
    {'w': tensor([1., 1.]), 'epoch': 3}
    """
    tensors, metadata = _packed(obj)
    chunks = _file_chunks(tensors, metadata)
    if isinstance(f, (str, os.PathLike)):
        write_atomically(os.fspath(f), chunks)
    elif hasattr(f, "write"):
        for chunk in chunks:
            f.write(chunk)
    else:
        raise TypeError(message("save", "a path or a binary file", describe(f)))


def _packed(obj: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of `obj` by name, and the metadata that says how they hang together."""
    if isinstance(obj, Mapping) and obj and _is_flat(obj):
        return {name: tensor.detach() for name, tensor in obj.items()}, {"format": "pt"}
    packer = _Packer()
    tree = packer.pack(obj, ())
    return packer.tensors, {"format": "pt", TREE: json.dumps(tree, ensure_ascii=False)}


def _is_flat(obj: Mapping[Any, Any]) -> bool:
    """Whether a dict maps names to tensors, all different: what a safetensors file says by itself."""
    named = all(isinstance(k, str) and k != "__metadata__" for k in obj)
    return (
        named
        and all(isinstance(v, Tensor) for v in obj.values())
        and len(set(map(id, obj.values()))) == len(obj)
    )


class _Packer:
    """Turns an object into a tree, collecting its tensors under their paths."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}  # id of a tensor met -> its name
        self._met: list[Tensor] = []  # keeps those ids valid

    def pack(self, value: Any, path: tuple[str, ...]) -> Any:
        """The tree of `value`, which stands at `path`."""
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int):
            if type(value) is not int:
                value = int(value)
            return value if abs(value) < 2**1024 else self._refuse(value, path)
        if isinstance(value, float):
            return {"f": repr(float(value))}
        if isinstance(value, Tensor):
            return {"t": self._name(value, path)}
        if len(path) >= MAX_DEPTH:
            came = f"more at {'.'.join(path[:4])}..."
            raise ValueError(
                message("save", f"at most {MAX_DEPTH} nested containers", came, "look for a cycle")
            )
        if isinstance(value, Mapping):
            pairs = [[self._key(k, path), self.pack(v, (*path, str(k)))] for k, v in value.items()]
            return {"d": pairs}
        if isinstance(value, (list, tuple)):
            items = [self.pack(v, (*path, str(k))) for k, v in enumerate(value)]
            return {"u" if isinstance(value, tuple) else "l": items}
        return self._refuse(value, path)

    def _key(self, key: Any, path: tuple[str, ...]) -> Any:
        if key is None or isinstance(key, (bool, int, float, str)):
            return self.pack(key, path)
        return self._refuse(key, path)

    def _refuse(self, value: Any, path: tuple[str, ...]) -> Any:
        where = ".".join(path) or "the top"
        expected = "tensors, numbers, strings, None, lists, tuples and dicts"
        hint = "save its state_dict()" if hasattr(value, "state_dict") else "save the data it is made of"
        raise TypeError(message("save", expected, f"{describe(value)} at {where}", hint))

    def _name(self, tensor: Tensor, path: tuple[str, ...]) -> str:
        """The tensor's name: its path, made unique; the name it already has if it was met before."""
        if id(tensor) not in self._names:
            name = wanted = ".".join(path) or "tensor"
            number = 1
            while name in self.tensors or name == "__metadata__":
                number += 1
                name = f"{wanted}#{number}"
            self._names[id(tensor)] = name
            self._met.append(tensor)
            self.tensors[name] = tensor.detach()
        return self._names[id(tensor)]


def _file_chunks(tensors: dict[str, Tensor], metadata: dict[str, str]) -> Iterator[Any]:
    """The file, piece by piece: size, header, every tensor (wide elements first: all stay aligned)."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    kinds: dict[str, str] = {}
    for name, tensor in tensors.items():
        if tensor.dtype not in names:
            raise TypeError(message("save", f"a dtype among {list(DTYPES)}", f"{describe(tensor)} at {name}"))
        kinds[name] = names[tensor.dtype]
    order = sorted(tensors, key=lambda name: (-_WIDTH[kinds[name]], name))
    header: dict[str, Any] = {"__metadata__": metadata, **dict.fromkeys(tensors)}
    begin = 0
    for name in order:
        shape = list(tensors[name].shape)
        end = begin + math.prod(shape) * _WIDTH[kinds[name]]
        header[name] = {"dtype": kinds[name], "shape": shape, "data_offsets": [begin, end]}
        begin = end
    try:
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise ValueError(message("save", "names and strings that are valid Unicode", str(error))) from None
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise ValueError(
            message("save", f"at most {MAX_HEADER} bytes of names and plain data", str(len(text)))
        )
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        if tensors[name].numel():
            yield memoryview(tensors[name].contiguous().reshape(-1).view(_core.uint8))


def write_atomically(path: str, chunks: Iterator[Any]) -> None:
    """Write beside `path`, sync, rename over it, sync the folder; a symlink's target is what is replaced."""
    path = os.path.realpath(path)
    mode = _replaceable(path)
    folder, name = os.path.split(path)
    beside = os.path.join(folder, f".{name[:100]}.{os.getpid()}.{os.urandom(6).hex()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(beside, flags, 0o666)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            if mode is not None:
                os.fchmod(descriptor, mode)
            for chunk in chunks:
                _write_all(file, chunk)
            os.fsync(descriptor)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise
    folder_descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder_descriptor)
    finally:
        os.close(folder_descriptor)


def _replaceable(path: str) -> int | None:
    """The permissions of the regular file at `path`, None if nothing is there; raises for anything else."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        kind = "a directory" if stat.S_ISDIR(found.st_mode) else "a device, fifo or socket"
        raise _not_regular("save", path, kind)
    return stat.S_IMODE(found.st_mode)


def _write_all(file: io.FileIO, chunk: Any) -> None:
    """Write every byte: one call may take only some of them."""
    rest = memoryview(chunk)
    while len(rest):
        rest = rest[file.write(rest) :]


def _not_regular(op: str, path: str, kind: str) -> OSError:
    error = IsADirectoryError if kind == "a directory" else OSError
    return error(message(op, "a regular file", f"{kind} at {path!r}"))


# -- loading ------------------------------------------------------------------------------------------


def load(
    f: Union[Path, IO[bytes]],
    map_location: Any = None,
    *,
    weights_only: bool = True,
    mmap: bool | None = None,
) -> Any:
    """What `save` wrote, or the dict of tensors of any safetensors file.

    Raises ValueError naming what is wrong with a damaged or foreign file, and OSError for one that
    cannot be read. Nothing in a file is ever executed, so `weights_only=False` has no meaning here and
    raises NotImplementedError, as do `mmap=True` and a `map_location` other than the CPU.
    """
    if not weights_only:
        raise NotImplementedError("load: files hold data only; leave weights_only at True")
    if mmap:
        raise NotImplementedError("load: mmap=True is not supported; tensors are read into memory")
    if map_location is not None and str(map_location) != "cpu":
        raise NotImplementedError(f"load: expected map_location None or 'cpu', got {map_location!r}")
    if isinstance(f, (str, os.PathLike)):
        path = os.fspath(f)
        with _open_regular(path) as file:
            return _read(file, os.fstat(file.fileno()).st_size, repr(path))
    if not hasattr(f, "read"):
        raise TypeError(message("load", "a path or a binary file", describe(f)))
    content = f.read()
    if not isinstance(content, (bytes, bytearray)):
        raise TypeError(
            message("load", "a file opened in binary mode", f"one that reads {describe(content)}")
        )
    return _read(io.BytesIO(content), len(content), "the file")


def _open_regular(path: str) -> IO[bytes]:
    """`path` opened for reading; a fifo or device is refused without waiting for it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _not_regular("load", path, "a directory" if stat.S_ISDIR(mode) else "a device, fifo or socket")
    return open(descriptor, "rb")


def _read(file: Any, size: int, where: str) -> Any:
    """The object in a file of `size` bytes."""
    try:
        entries, metadata, start = _read_header(file, size)
        tensors = _read_tensors(file, entries, start)
        if TREE not in metadata:
            return tensors
        return _unpacked(_parse_json(metadata[TREE], "the document of the object"), tensors, 0)
    except _Damaged as damage:
        raise ValueError(f"load: {where} is not a whole safetensors file: {damage}") from None


class _Damaged(Exception):
    """What is wrong with a file, in words."""


def _need(holds: bool, expected: str) -> None:
    """Refuse the file unless `holds`."""
    if not holds:
        raise _Damaged(f"expected {expected}")


def _read_header(file: Any, size: int) -> tuple[list[Entry], dict[str, str], int]:
    """The entries in order of the header, the metadata, and where the data starts; all checked."""
    _need(size >= 8, f"at least 8 bytes, got {size}")
    prefix = _exactly(file, 8)
    hint = " (a zip archive: PyTorch's format, not this one)" if prefix[:2] == b"PK" else ""
    length = int.from_bytes(prefix, "little")
    _need(length <= size - 8, f"a header within the file's {size} bytes, got one of {length}{hint}")
    _need(2 <= length <= MAX_HEADER, f"a header of 2 to {MAX_HEADER} bytes, got one of {length}")
    raw = _exactly(file, length)
    _need(raw[:1] == b"{", f"a JSON object as header, got {bytes(raw[:8])!r}")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _Damaged(f"expected a header in UTF-8, got a wrong byte at {error.start}") from None
    header = _parse_json(text, "the header")
    _need(isinstance(header, dict), "a JSON object as header")
    metadata = header.pop("__metadata__", {})
    strings = isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values())
    _need(strings, "__metadata__ that maps strings to strings")
    entries = [_entry(name, described) for name, described in header.items()]
    at = 0
    for entry in _by_place(entries):
        _need(
            entry.begin == at,
            f"bytes of {entry.name!r} from {at} on, got {entry.begin} (a hole or an overlap)",
        )
        at = entry.end
    _need(at == size - 8 - length, f"{size - 8 - length} bytes of data described, got {at}")
    return entries, metadata, 8 + length


def _by_place(entries: list[Entry]) -> list[Entry]:
    """The entries in the order of their bytes."""
    return sorted(entries, key=lambda e: (e.begin, e.end))


def _entry(name: str, described: Any) -> Entry:
    """One tensor's entry; its bytes are as many as its dtype and shape say."""
    keys = isinstance(described, dict) and set(described) == {"dtype", "shape", "data_offsets"}
    _need(keys, f"dtype, shape and data_offsets of {name!r}")
    dtype, shape, offsets = described["dtype"], described["shape"], described["data_offsets"]
    _need(
        isinstance(dtype, str) and dtype in DTYPES,
        f"a dtype of {name!r} among {list(DTYPES)}, got {dtype!r:.80}",
    )
    sizes = isinstance(shape, list) and all(type(d) is int and 0 <= d <= MAX_SIZE for d in shape)
    _need(sizes and len(shape) <= 64, f"a shape of {name!r} of at most 64 sizes, none negative")
    ends = isinstance(offsets, list) and len(offsets) == 2 and all(type(o) is int for o in offsets)
    _need(ends and 0 <= offsets[0] <= offsets[1] <= MAX_SIZE, f"offsets of {name!r} in ascending order")
    strides = math.prod(max(d, 1) for d in shape)  # what strides are made of must fit too, also beside a 0
    _need(strides * _WIDTH[dtype] <= MAX_SIZE, f"a shape of {name!r} whose bytes can be counted, got {shape}")
    nbytes, came = math.prod(shape) * _WIDTH[dtype], offsets[1] - offsets[0]
    _need(nbytes == came, f"{nbytes} bytes for {name!r} ({dtype} {shape}), got {came}")
    return Entry(name, dtype, tuple(shape), offsets[0], offsets[1])


def _read_tensors(file: Any, entries: list[Entry], start: int) -> dict[str, Tensor]:
    """Every tensor by name, read in the order of the bytes into memory of its own."""
    tensors: dict[str, Any] = dict.fromkeys(e.name for e in entries)
    file.seek(start)
    for entry in _by_place(entries):
        dtype, count = DTYPES[entry.dtype], math.prod(entry.shape)
        if not count:
            tensors[entry.name] = ops.empty(entry.shape, dtype=dtype)
            continue
        raw = _exactly(file, entry.end - entry.begin)
        if entry.dtype == "BOOL":
            _need(not raw.translate(None, b"\0\1"), f"only 0 and 1 in the bools of {entry.name!r}")
        flat = ops.frombuffer(raw, dtype=dtype, count=count, offset=0)
        tensors[entry.name] = flat.reshape(entry.shape).clone()
    return tensors


def _exactly(file: Any, size: int) -> bytearray:
    """The next `size` bytes; a file cut short since it was measured is refused."""
    raw = bytearray(size)
    view, at = memoryview(raw), 0
    while at < size:
        count = file.readinto(view[at:])
        _need(bool(count), f"{size} more bytes, got {at} (the file changed while it was read)")
        at += count
    return raw


def _parse_json(text: str, what: str) -> Any:
    """Strict JSON: no duplicate keys, no NaN, no float, bounded depth, keys in Unicode."""
    try:
        return json.loads(
            text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_no_constant
        )
    except RecursionError:
        raise _Damaged(f"expected {what} in fewer nested levels") from None
    except ValueError as error:
        raise _Damaged(f"expected {what} in JSON, got {str(error)[:200]}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys are all different."""
    found = dict(pairs)
    _need(len(found) == len(pairs), "every name once")
    "".join(found).encode("utf-8")  # a ValueError for half of a surrogate pair, which JSON can escape
    return found


def _no_constant(text: str) -> Any:
    raise _Damaged(f"expected integers as numbers, got {text[:40]}")


def _unpacked(tree: Any, tensors: dict[str, Tensor], depth: int) -> Any:
    """The object a tree describes; see the module's grammar."""
    _need(depth <= MAX_DEPTH, f"at most {MAX_DEPTH} nested containers")
    if tree is None or isinstance(tree, (bool, int, str)):
        return tree
    _need(isinstance(tree, dict) and len(tree) == 1, "a document made of tagged values")
    ((tag, value),) = tree.items()
    if tag == "f":
        return _number(value)
    if tag == "t":
        _need(isinstance(value, str) and value in tensors, f"a tensor of the file, got {str(value)[:80]!r}")
        return tensors[value]
    _need(tag in ("l", "u", "d") and isinstance(value, list), f"a known tag, got {tag[:80]!r}")
    if tag != "d":
        items = [_unpacked(v, tensors, depth + 1) for v in value]
        return tuple(items) if tag == "u" else items
    _need(all(isinstance(pair, list) and len(pair) == 2 for pair in value), "a dict as pairs")
    keys = [_unpacked(key, tensors, depth + 1) for key, _ in value]
    _need(all(k is None or isinstance(k, (bool, int, float, str)) for k in keys), "plain keys in dicts")
    _need(len(set(keys)) == len(keys), "every key of a dict once")
    return {key: _unpacked(v, tensors, depth + 1) for key, (_, v) in zip(keys, value, strict=True)}


def _number(value: Any) -> float:
    """A float from its text."""
    _need(isinstance(value, str) and len(value) <= 40, "a float as text")
    try:
        return float(value)
    except ValueError:
        raise _Damaged(f"expected a float, got {value!r}") from None
