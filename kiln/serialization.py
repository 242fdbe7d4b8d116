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
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from operator import itemgetter
from typing import IO, Any, NamedTuple, Union

from kiln import _core, ops
from kiln._core import Tensor
from kiln.errors import describe, message
from kiln.files import not_regular, write_atomically, write_to

Path = Union[str, "os.PathLike[str]"]

TREE = "kiln.tree"  # the metadata entry that holds the document of a nested object
MAX_HEADER = 100_000_000  # bytes, as the safetensors format has it
MAX_DEPTH = 100  # of nested containers, in a tree and in a header
MAX_SIZE = 2**63 - 1  # of a tensor in bytes
MAX_ALIKE = 32  # keys of a dict that have the same hash
LARGE = 1 << 20  # bytes of a tensor from which a copy of them would cost more than reading them in place

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
_FEW_ALIKE = f"dicts of at most {MAX_ALIKE} keys of one hash"
_KEYS = {"dtype", "shape", "data_offsets"}


class Entry(NamedTuple):
    """Where one tensor lies: bytes [begin, end) of the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


_BY_PLACE = itemgetter(3, 4)

# -- saving -------------------------------------------------------------------------------------------


@_core.Function
def save(obj: Any, f: Union[Path, IO[bytes]]) -> None:
    """Write tensors, numbers, strings, None and lists, tuples and dicts of these to a path or binary file.

    A tensor that occurs twice is written once, and is one tensor again when loaded. Values are saved, not
    history or `requires_grad`. Raises TypeError for anything else, ValueError for a structure that
    contains itself. A path is replaced in one move once its content is on disk; on failure it is untouched.
    A file object has part of a file after an error, which says so in a note.

    >>> import kiln, io
    >>> file = io.BytesIO()
    >>> kiln.save({"w": kiln.ones(2), "epoch": 3}, file)
    >>> _ = file.seek(0)
    >>> kiln.load(file)
    {'w': tensor([1., 1.]), 'epoch': 3}
    """
    path = os.fspath(f) if isinstance(f, (str, os.PathLike)) else None
    if path is None and (isinstance(f, io.TextIOBase) or not hasattr(f, "write")):
        raise TypeError(message("save", "a path or a binary file", describe(f)))
    chunks = _file_chunks(*_packed(obj))
    write_to(f, chunks) if path is None else write_atomically(path, chunks)


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
            if _crowded(value):
                raise ValueError(message("save", _FEW_ALIKE, f"more at {'.'.join(path) or 'the top'}"))
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
    return chain([_header_bytes(header)], (_memory(tensors[name]) for name in order if tensors[name].numel()))


def _header_bytes(header: dict[str, Any]) -> bytes:
    """Size and header."""
    try:
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise ValueError(message("save", "names and strings that are valid Unicode", str(error))) from None
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise ValueError(
            message("save", f"at most {MAX_HEADER} bytes of names and plain data", str(len(text)))
        )
    return len(text).to_bytes(8, "little") + text


def _memory(tensor: Tensor) -> memoryview:
    """The bytes of a tensor's elements, in order."""
    if tensor.dtype is _core.bfloat16:  # buffers have no name for it
        tensor = tensor.view(_core.int16)
    return memoryview(tensor.contiguous()).cast("B")


# -- loading ------------------------------------------------------------------------------------------


@_core.Function
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
        raise not_regular("load", path, mode)
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


def _need(holds: bool, expected: str, *came: Any) -> None:
    """Refuse the file unless `holds`; what came is put into the sentence only then, cut where it is long."""
    if not holds:
        raise _Damaged("expected " + expected.format(*(f"{value!s:.100}" for value in came)))


def _read_header(file: Any, size: int) -> tuple[list[Entry], dict[str, str], int]:
    """The entries in order of the header, the metadata, and where the data starts; all checked."""
    _need(size >= 8, "at least 8 bytes, got {}", size)
    prefix = _exactly(file, 8)
    hint = " (a zip archive: PyTorch's format, not this one)" if prefix[:2] == b"PK" else ""
    length = int.from_bytes(prefix, "little")
    _need(length <= size - 8, "a header within the file's {} bytes, got one of {}{}", size, length, hint)
    _need(2 <= length <= MAX_HEADER, "a header of 2 to {} bytes, got one of {}", MAX_HEADER, length)
    raw = _exactly(file, length)
    _need(raw[:1] == b"{", "a JSON object as header, got {}", bytes(raw[:8]))
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _Damaged(f"expected a header in UTF-8, got a wrong byte at {error.start}") from None
    header = _parse_json(text, "the header")
    _need(isinstance(header, dict), "a JSON object as header")
    metadata = header.pop("__metadata__", {})
    strings = isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values())
    _need(strings, "__metadata__ that maps strings to strings")
    entries = [_entry(name, header.pop(name)) for name in list(header)]
    at = 0
    for e in sorted(entries, key=_BY_PLACE):
        _need(e.begin == at, "bytes of {} from {} on, got {} (a hole or an overlap)", e.name, at, e.begin)
        at = e.end
    _need(at == size - 8 - length, "{} bytes of data described, got {}", size - 8 - length, at)
    return entries, metadata, 8 + length


def _entry(name: str, described: Any) -> Entry:
    """One tensor's entry; its bytes are as many as its dtype and shape say."""
    keys = type(described) is dict and described.keys() == _KEYS
    _need(keys, "dtype, shape and data_offsets of {}", name)
    dtype, shape, offsets = described["dtype"], described["shape"], described["data_offsets"]
    known = type(dtype) is str and dtype in DTYPES
    _need(known, "a known dtype of {}, got {}", name, dtype)
    few = type(shape) is list and len(shape) <= 64
    sizes = few and all(type(d) is int and 0 <= d <= MAX_SIZE for d in shape)
    _need(sizes, "a shape of {} of at most 64 sizes, none negative", name)
    ends = type(offsets) is list and len(offsets) == 2 and all(type(o) is int for o in offsets)
    _need(ends and 0 <= offsets[0] <= offsets[1] <= MAX_SIZE, "offsets of {} in ascending order", name)
    nbytes, came = math.prod(shape) * _WIDTH[dtype], offsets[1] - offsets[0]
    # what strides are made of must fit too, also beside a 0
    strides = nbytes or math.prod(d or 1 for d in shape) * _WIDTH[dtype]
    _need(strides <= MAX_SIZE, "a shape of {} whose bytes can be counted, got {}", name, shape)
    _need(nbytes == came, "{} bytes for {} ({} {}), got {}", nbytes, name, dtype, shape, came)
    return Entry(name, dtype, tuple(shape), offsets[0], offsets[1])


def _read_tensors(file: Any, entries: list[Entry], start: int) -> dict[str, Tensor]:
    """Every tensor by name, read in the order of the bytes into memory of its own."""
    tensors: dict[str, Any] = dict.fromkeys(e.name for e in entries)
    file.seek(start)
    for entry in sorted(entries, key=_BY_PLACE):
        read = _read_large if entry.end - entry.begin >= LARGE and entry.dtype != "BOOL" else _read_small
        tensors[entry.name] = read(file, entry)
    return tensors


def _read_small(file: Any, entry: Entry) -> Any:
    """A tensor from bytes that are looked at first."""
    dtype, nbytes = DTYPES[entry.dtype], entry.end - entry.begin
    if not nbytes:
        return ops.empty(entry.shape, dtype=dtype)
    raw = _exactly(file, nbytes)
    if entry.dtype == "BOOL":
        _need(not raw.translate(None, b"\0\1"), "only 0 and 1 in the bools of {}", entry.name)
    flat = _core.frombuffer(raw, dtype.name, nbytes // _WIDTH[entry.dtype], 0)
    return (flat if len(entry.shape) == 1 else flat.reshape(entry.shape)).clone()


def _read_large(file: Any, entry: Entry) -> Any:
    """A tensor whose memory the file is read into."""
    tensor = ops.empty(entry.shape, dtype=DTYPES[entry.dtype])
    _fill(file, _memory(tensor))
    return tensor


def _exactly(file: Any, size: int) -> bytearray:
    """The next `size` bytes."""
    raw = bytearray(size)
    _fill(file, memoryview(raw))
    return raw


def _fill(file: Any, view: memoryview) -> None:
    """Read as many bytes as there is room; a file cut short since it was measured is refused."""
    at, size = 0, len(view)
    while at < size:
        count = file.readinto(view[at:] if at else view)
        _need(bool(count), "{} more bytes, got {} (the file changed while it was read)", size, at)
        at += count


def _parse_json(text: str, what: str) -> Any:
    """Strict JSON: no duplicate keys, no NaN, no float, bounded depth, keys in Unicode."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        _need(len(found) == len(pairs), "every name once")
        if escapes:
            "".join(found).encode("utf-8")  # a ValueError for half of a surrogate pair
        return found

    escapes = "\\u" in text
    try:
        return json.loads(
            text, object_pairs_hook=unique, parse_constant=_no_constant, parse_float=_no_constant
        )
    except RecursionError:
        raise _Damaged(f"expected {what} in fewer nested levels") from None
    except ValueError as error:
        raise _Damaged(f"expected {what} in JSON, got {str(error)[:200]}") from None


def _no_constant(text: str) -> Any:
    raise _Damaged(f"expected integers as numbers, got {text[:40]}")


def _unpacked(tree: Any, tensors: dict[str, Tensor], depth: int) -> Any:
    """The object a tree describes; see the module's grammar."""
    _need(depth <= MAX_DEPTH, "at most {} nested containers", MAX_DEPTH)
    if tree is None or isinstance(tree, (bool, int, str)):
        return tree
    _need(isinstance(tree, dict) and len(tree) == 1, "a document made of tagged values")
    ((tag, value),) = tree.items()
    if tag == "f":
        return _number(value)
    if tag == "t":
        _need(isinstance(value, str) and value in tensors, "a tensor of the file, got {}", value)
        return tensors[value]
    _need(tag in ("l", "u", "d") and isinstance(value, list), "a known tag, got {}", tag)
    if tag != "d":
        items = [_unpacked(v, tensors, depth + 1) for v in value]
        return tuple(items) if tag == "u" else items
    _need(all(isinstance(pair, list) and len(pair) == 2 for pair in value), "a dict as pairs")
    keys = [_unpacked(key, tensors, depth + 1) for key, _ in value]
    _need(all(k is None or isinstance(k, (bool, int, float, str)) for k in keys), "plain keys in dicts")
    _need(not _crowded(keys), _FEW_ALIKE)
    _need(len(set(keys)) == len(keys), "every key of a dict once")
    return {key: _unpacked(v, tensors, depth + 1) for key, (_, v) in zip(keys, value, strict=True)}


def _crowded(keys: Collection[Any]) -> bool:
    """Whether too many keys have one hash; numbers can be chosen so, and a dict takes that squared."""
    return len(keys) > MAX_ALIKE and max(Counter(map(hash, keys)).values()) > MAX_ALIKE


def _number(value: Any) -> float:
    """A float from its text."""
    _need(isinstance(value, str) and len(value) <= 40, "a float as text")
    try:
        return float(value)
    except ValueError:
        raise _Damaged(f"expected a float, got {value!r}") from None
