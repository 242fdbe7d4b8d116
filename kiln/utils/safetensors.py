"""Files of safetensors under the names of its library: `from kiln.utils.safetensors import load_file`.

The library's Rust reads the same bytes; `kiln.load` and `kiln.save` of `name.safetensors` do too. What is
here is what programs call: the functions of safetensors.torch, and `safe_open`.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kiln._core import Tensor
from kiln.errors import describe, message
from kiln.files import write_atomically
from kiln.serialization.source import Damaged, Path, Source, opened
from kiln.serialization.tensor_file import DTYPES, Entry, named_chunks, read_entry, read_header

if TYPE_CHECKING:
    from kiln.nn import Module


def save_file(tensors: dict[str, Tensor], filename: Path, metadata: dict[str, str] | None = None) -> None:
    """Write tensors by name, with texts by name as metadata.

    Values alone: tensors that share memory are RuntimeErrors, as the file would hold their bytes twice
    (`save_model` keeps one of each).

    >>> import kiln, os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "x.safetensors")
    >>> save_file({"w": kiln.ones(2)}, path, {"made by": "hand"})
    >>> load_file(path)
    {'w': tensor([1., 1.])}
    """
    write_atomically(os.fspath(filename), named_chunks(_apart(tensors), _texts(metadata)))


def save(tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """The file of tensors by name, as bytes."""
    return b"".join(map(bytes, named_chunks(_apart(tensors), _texts(metadata))))


def load_file(filename: Path, device: Any = "cpu") -> dict[str, Tensor]:
    """The tensors of a file by name. ValueError for a damaged file."""
    with safe_open(filename, "pt", device) as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def load(data: bytes) -> dict[str, Tensor]:
    """The tensors by name of a file given as bytes."""
    source = Source(io.BytesIO(data), "the file")
    entries, _, start = _header(source)
    return {entry.name: _tensor(source, start, entry) for entry in entries}


def save_model(
    model: Module, filename: str, metadata: dict[str, str] | None = None, force_contiguous: bool = True
) -> None:
    """Write a module's state; of tied weights the first, and the others' names as metadata."""
    first: dict[tuple[Any, ...], str] = {}
    kept, texts = {}, dict(metadata or {})
    for name, tensor in model.state_dict().items():
        place = (tensor._place, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        if place in first and tensor.numel():
            texts[name] = first[place]
            continue
        first[place] = name
        if not force_contiguous and not tensor.is_contiguous():
            hint = "call save_model with force_contiguous=True"
            raise ValueError(message("save_model", "contiguous tensors", f"{name} with strides", hint))
        kept[name] = tensor.detach()
    save_file(kept, filename, texts)


def load_model(
    model: Module, filename: Path, strict: bool = True, device: Any = "cpu"
) -> tuple[list[str], list[str]]:
    """Copy a file of `save_model` into a module: the names that were missing, and those not expected.

    RuntimeError where there are such names and `strict`, and for shapes that differ.
    """
    with safe_open(filename, "pt", device) as file:
        state = {name: file.get_tensor(name) for name in file.keys()}
        named = file.metadata() or {}
    own = model.state_dict(keep_vars=True)
    for name in [name for name in own if name not in state]:
        alike = (other for other in state if other in own and _one(own[name], own[other]))
        found = named[name] if named.get(name) in state else next(alike, None)
        if found is not None and found in state:
            state[name] = state[found]
    result = model.load_state_dict(state, strict=strict)
    return list(result.missing_keys), list(result.unexpected_keys)


def _one(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are one: of the same memory, in the same way."""
    same = a._place == b._place and a.storage_offset() == b.storage_offset()
    return same and a.shape == b.shape and a.stride() == b.stride()


def _texts(metadata: Mapping[str, str] | None) -> dict[str, str]:
    for key, value in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(message("save_file", "metadata of texts by name", f"{key!r}: {describe(value)}"))
    return dict(metadata or {})


def _apart(tensors: Any) -> dict[str, Tensor]:
    """Tensors by name that share no memory."""
    if not isinstance(tensors, dict):
        raise ValueError(
            f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}: save_file writes tensors "
            "by name"
        )
    places: dict[int, str] = {}
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            expected = f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}"
            raise ValueError(f"{expected}: save_file writes tensors by name")
        if tensor.numel() and tensor._place in places:
            raise RuntimeError(
                "Some tensors share memory, this will lead to duplicate memory on disk: "
                f"{places[tensor._place]} and {name}. Save clones of them, or a whole model by save_model"
            )
        places[tensor._place] = name
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _header(source: Source) -> tuple[list[Entry], dict[str, str], int]:
    try:
        return read_header(source)
    except Damaged as damage:
        raise ValueError(f"load: {source.where} is not a whole safetensors file: {damage}") from None


def _tensor(source: Source, start: int, entry: Entry) -> Any:
    try:
        return read_entry(source, start, entry)
    except Damaged as damage:
        raise ValueError(f"load: {source.where} is not a whole safetensors file: {damage}") from None


class safe_open:
    """A file whose tensors are read one by one, as they are asked for. ValueError for a damaged file.

    >>> import kiln, os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "x.safetensors")
    >>> save_file({"w": kiln.arange(6).reshape(2, 3)}, path)
    >>> with safe_open(path, framework="pt") as file:
    ...     file.keys(), file.get_slice("w")[:, 1:]
    (['w'], tensor([[1, 2],
            [4, 5]]))
    """

    def __init__(self, filename: Path, framework: str = "pt", device: Any = "cpu") -> None:
        if framework not in ("pt", "torch", "pytorch", "kiln"):
            raise NotImplementedError(message("safe_open", "framework 'pt'", repr(framework)))
        if str(device).partition(":")[0] != "cpu":
            raise RuntimeError(message("safe_open", "device 'cpu'", repr(str(device)), "there is no other"))
        self._source = opened(filename)
        try:
            entries, self._metadata, self._start = _header(self._source)
        except BaseException:
            self._source.file.close()
            raise
        self._entries = {entry.name: entry for entry in entries}

    def __enter__(self) -> safe_open:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source.file.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def metadata(self) -> dict[str, str] | None:
        """The texts of the file; None for a file that has none."""
        return dict(self._metadata) or None

    def keys(self) -> list[str]:
        """The tensors' names."""
        return sorted(self._entries)

    def offset_keys(self) -> list[str]:
        """The tensors' names in the order of their bytes."""
        return sorted(self._entries, key=lambda name: (self._entries[name].begin, self._entries[name].end))

    def get_tensor(self, name: str) -> Tensor:
        """A tensor, in memory of its own. KeyError for a name that is not there."""
        made: Tensor = _tensor(self._source, self._start, self._entry(name))
        return made

    def get_slice(self, name: str) -> Slice:
        """A tensor of which only what is indexed is kept."""
        return Slice(self, self._entry(name))

    def _entry(self, name: str) -> Entry:
        if name not in self._entries:
            raise KeyError(message("safe_open", "the name of a tensor of the file", repr(name)))
        return self._entries[name]


class Slice:
    """A tensor of a file, before its elements are read."""

    def __init__(self, file: safe_open, entry: Entry) -> None:
        self._file, self._entry = file, entry

    def get_shape(self) -> list[int]:
        """Its sizes."""
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        """Its dtype, as the file says it: "F32"."""
        return self._entry.dtype

    def __getitem__(self, index: Any) -> Tensor:
        entry = self._entry
        first = index[0] if isinstance(index, tuple) and index else index
        if not entry.shape or not isinstance(first, slice) or first.step not in (None, 1):
            return self._file.get_tensor(entry.name)[index].clone()
        # rows lie one after the other: of all dims the first is cut while it is read
        begin, end, _ = first.indices(entry.shape[0])
        rows = max(end - begin, 0)
        width = math.prod(entry.shape[1:]) * DTYPES[entry.dtype].itemsize
        at = entry.begin + begin * width
        part = entry._replace(shape=(rows, *entry.shape[1:]), begin=at, end=at + rows * width)
        found: Tensor = _tensor(self._file._source, self._file._start, part)
        if isinstance(index, tuple) and len(index) > 1:
            found = found[(slice(None), *index[1:])].clone()
        return found
