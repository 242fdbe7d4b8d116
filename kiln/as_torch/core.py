"""`torch._C`, as far as libraries read it: names of PyTorch's dispatcher, which is not here."""

from __future__ import annotations

from contextlib import nullcontext
from types import TracebackType
from typing import IO, Any

from kiln import Generator, Size, Tensor, device, dtype, layout, linalg, memory_format
from kiln.absent import no_attribute
from kiln.nn.placement import placement
from kiln.serialization.archive import Archive
from kiln.serialization.source import Path, opened, read_tensor

__all__ = ["Generator", "Size", "Tensor", "device", "dtype", "layout", "memory_format"]

TensorBase = Tensor
_TensorMeta = type(Tensor)  # of whose kind classes of tensors are


class PyTorchFileReader:
    """The records of a file that `torch.save` wrote, by their names: RuntimeError for a name it has not."""

    def __init__(self, file: Path | IO[bytes]) -> None:
        self._archive = Archive(opened(file))

    def get_all_records(self) -> list[str]:
        """The names, as PyTorch has them: without the folder that all are in."""
        return self._archive.names()

    def has_record(self, name: str) -> bool:
        """Whether there is a record of that name."""
        return name in self._archive

    def get_record(self, name: str) -> bytes:
        """A record's bytes."""
        self._check(name)
        return self._archive.read(name)

    def get_storage_from_record(self, name: str, numel: int, dtype: dtype) -> Tensor:
        """A record's elements, as a tensor of one dim."""
        self._check(name)
        record = self._archive.find(name)
        if numel * dtype.itemsize > record.size:
            raise RuntimeError(
                f"record {name}: expected {numel} elements of {dtype}, got {record.size} bytes"
            )
        found: Tensor = read_tensor(self._archive.source, record.at, dtype, numel, name)
        return found

    def _check(self, name: str) -> None:
        if name not in self._archive:
            raise RuntimeError(f"PytorchStreamReader failed locating file {name}: file not found")


class _nn:
    """What PyTorch's modules ask of the core."""

    @staticmethod
    def _parse_to(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool, Any]:
        """The device, dtype, `non_blocking` and memory format that `to(*args, **kwargs)` names."""
        found = placement(args, kwargs)
        place = None if found.device is None else device(found.device)
        given = [value for value in args if isinstance(value, bool)]
        return place, found.dtype, bool(kwargs.get("non_blocking", any(given[:1]))), found.format


class TensorType:
    """What TorchScript says of a tensor in a signature: libraries annotate with it."""


class _Names(type):
    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class DispatchKey(metaclass=_Names):
    """`DispatchKey.AutocastCPU`: the name of a layer of PyTorch's dispatcher."""


class DispatchKeySet:
    """Names of such layers."""

    def __init__(self, key: str | frozenset[str]) -> None:
        self.keys = frozenset([key]) if isinstance(key, str) else key

    def __or__(self, other: DispatchKeySet) -> DispatchKeySet:
        return DispatchKeySet(self.keys | other.keys)

    def has(self, key: str) -> bool:
        """Whether a name is among them."""
        return key in self.keys


class _ExcludeDispatchKeyGuard:
    """`with` it, layers would be left out: there are none."""

    def __init__(self, keys: DispatchKeySet) -> None:
        self.keys = keys

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class DisableTorchFunctionSubclass(nullcontext[None]):
    """`with` it, subclasses of tensors would not be asked: they never are."""


def _disabled_torch_function_impl(
    func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Any:
    """What a class says whose tensors are not to be asked: the function itself."""
    return func(*args, **(kwargs or {}))


def _get_tracing_state() -> None:
    """None: nothing is being traced."""


def _log_api_usage_once(name: str) -> None:
    """Would count uses of PyTorch: nothing is counted."""


def __getattr__(name: str) -> Any:
    if name == "_LinAlgError":  # the class says that it is here
        return linalg.LinAlgError
    no_attribute(__name__, name, "_C")
