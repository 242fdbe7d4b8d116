"""safetensors files: tensors by name, and plain data.

    8 bytes      header size, little-endian
    header       JSON {"__metadata__": {...}, name: {"dtype", "shape", "data_offsets"}, ...}, spaces
    data         the tensors' bytes, little-endian, row-major, one after the other without holes

A flat dict of tensors is exactly that file, which any safetensors reader opens. Anything nested (an
optimizer's state_dict) keeps its tensors under the path at which they stand, and its shape as a JSON
document under "kiln.tree" in `__metadata__`:

    tree := null | true | false | integer | string | {"f": "1.5"} | {"t": tensor name}
          | {"l": [tree...]} | {"u": [tree...]} (a tuple) | {"d": [[key tree, tree]...]}

A file holds data only: nothing in it names code. Reading checks everything before it allocates.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator, Mapping
from itertools import chain
from operator import itemgetter
from typing import Any, NoReturn

from kiln import _core
from kiln._core import Tensor
from kiln.errors import describe, message
from kiln.serialization.source import (
    FEW_ALIKE,
    MAX_SIZE,
    Damaged,
    Source,
    crowded,
    mapped_tensor,
    pieces,
    read_tensor,
)
from kiln.tuples import NamedTuple

TREE = "kiln.tree"  # the metadata entry that holds the document of a nested object
MAX_HEADER = 100_000_000  # bytes, as the safetensors format has it
MAX_DEPTH = 100  # of nested containers, in a tree and in a header

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
_KEYS = {"dtype", "shape", "data_offsets"}


class Entry(NamedTuple):
    """Where one tensor lies: bytes [begin, end) of the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


_BY_PLACE = itemgetter(3, 4)

# -- writing ------------------------------------------------------------------------------------------


def tensor_chunks(obj: Any) -> Iterator[Any]:
    """The file of an object, piece by piece. TypeError for what is no plain data."""
    return _file_chunks(*_packed(obj))


def named_chunks(tensors: dict[str, Tensor], metadata: dict[str, str]) -> Iterator[Any]:
    """The file of tensors by name, with texts by name."""
    return _file_chunks(tensors, {"format": "pt", **metadata})


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
            if crowded(value):
                raise ValueError(
                    message("save", f"dicts of {FEW_ALIKE}", f"more at {'.'.join(path) or 'the top'}")
                )
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

    def _refuse(self, value: Any, path: tuple[str, ...]) -> NoReturn:
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
    return chain([_header_bytes(header)], *(pieces(tensors[name]) for name in order))


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


# -- reading ------------------------------------------------------------------------------------------


def read_tensors(source: Source, mapped: bool = False) -> Any:
    """What `tensor_chunks` wrote, or the dict of tensors of any safetensors file."""
    entries, metadata, start = read_header(source)
    tensors: dict[str, Any] = dict.fromkeys(e.name for e in entries)
    content = source.mapped() if mapped else None
    for entry in sorted(entries, key=_BY_PLACE):
        tensors[entry.name] = read_entry(source, start, entry, content)
    if TREE not in metadata:
        return tensors
    return _unpacked(_parse_json(metadata[TREE], "the document of the object"), tensors, 0)


def read_entry(source: Source, start: int, entry: Entry, content: mmap.mmap | None = None) -> Any:
    """One tensor, in memory of its own, or in that of the mapped file where it can be."""
    place = start + entry.begin, DTYPES[entry.dtype], math.prod(entry.shape)
    flat = None if content is None else mapped_tensor(content, *place)
    if flat is None:
        flat = read_tensor(source, *place, entry.name)
    return flat if len(entry.shape) == 1 else flat.reshape(entry.shape)


def _need(holds: bool, expected: str, *came: Any) -> None:
    """Refuse the file unless `holds`; what came is put into the sentence only then, cut where it is long."""
    if not holds:
        raise Damaged("expected " + expected.format(*(f"{value!s:.100}" for value in came)))


def read_header(source: Source) -> tuple[list[Entry], dict[str, str], int]:
    """The entries in order of the header, the metadata, and where the data starts; all checked."""
    size = source.size
    _need(size >= 8, "at least 8 bytes, got {}", size)
    length = int.from_bytes(source.part(0, 8), "little")
    _need(length <= size - 8, "a header within the file's {} bytes, got one of {}", size, length)
    _need(2 <= length <= MAX_HEADER, "a header of 2 to {} bytes, got one of {}", MAX_HEADER, length)
    raw = source.part(8, length)
    _need(raw[:1] == b"{", "a JSON object as header, got {}", bytes(raw[:8]))
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Damaged(f"expected a header in UTF-8, got a wrong byte at {error.start}") from None
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
        raise Damaged(f"expected {what} in fewer nested levels") from None
    except ValueError as error:
        raise Damaged(f"expected {what} in JSON, got {str(error)[:200]}") from None


def _no_constant(text: str) -> Any:
    raise Damaged(f"expected integers as numbers, got {text[:40]}")


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
    _need(not crowded(keys), f"dicts of {FEW_ALIKE}")
    _need(len(set(keys)) == len(keys), "every key of a dict once")
    return {key: _unpacked(v, tensors, depth + 1) for key, (_, v) in zip(keys, value, strict=True)}


def _number(value: Any) -> float:
    """A float from its text."""
    _need(isinstance(value, str) and len(value) <= 40, "a float as text")
    try:
        return float(value)
    except ValueError:
        raise Damaged(f"expected a float, got {value!r}") from None
