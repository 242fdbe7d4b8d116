"""Devices: where a tensor's memory is. There is one, the CPU; others can be named, compared and asked for."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from kiln import _core
from kiln.errors import warn
from kiln.table.callables import name_constructor

_TYPES = (
    "cpu cuda ipu xpu mkldnn opengl opencl ideep hip ve fpga maia xla lazy vulkan mps meta hpu mtia "
    "privateuseone"
).split()
NO_ACCELERATOR = "Cannot access accelerator device when none is available."


class device:
    """A device by its type ("cpu", "cuda", ...) and index; naming one does not say that it is there.

    RuntimeError for a type that PyTorch has not, an index that is no number from 0, or a number alone: that
    would be an accelerator's. `with device("cpu"):` is for programs that choose where tensors are made.

    >>> kiln.device("cpu").type, kiln.device("cuda:1")
    ('cpu', device(type='cuda', index=1))
    """

    __slots__ = ("index", "type")

    index: int | None
    type: str

    def __init__(self, type: str | device, index: int | None = None) -> None:
        if isinstance(type, device):
            if index is not None:
                raise TypeError("device: expected a name beside an index, got a device")
            self.type, self.index = type.type, type.index
            return
        if index is not None and (not isinstance(index, int) or isinstance(index, bool)):
            given = index.__class__.__name__
            raise TypeError(f"device(): argument 'index' (position 2) must be int, not {given}")
        if isinstance(type, int) and not isinstance(type, bool):
            raise RuntimeError(f"{NO_ACCELERATOR} device: {type} alone is an accelerator's; write 'cpu'")
        if not isinstance(type, str):
            raise TypeError(f"device: expected a string or a device, got {type.__class__.__name__}")
        self.type, self.index = _parsed(type, index)

    def __repr__(self) -> str:
        index = "" if self.index is None else f", index={self.index}"
        return f"device(type='{self.type}'{index})"

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __reduce__(self) -> tuple[Any, ...]:
        return device, ((self.type,) if self.index is None else (self.type, self.index))

    def __enter__(self) -> device:
        if self.type == "meta":
            warn("with device('meta'): kiln has no tensors without values, so these have them, on the CPU")
        else:
            check("device", self)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        return None


def _parsed(text: str, index: int | None) -> tuple[str, int | None]:
    """The type and index of a name such as "cuda:1"."""
    if not text:
        raise RuntimeError("Device string must not be empty")
    name, colon, number = text.partition(":")
    if name not in _TYPES:
        known = ", ".join(_TYPES)
        raise RuntimeError(f"Expected one of {known} device type at start of device string: {name}")
    if not colon:
        if index is not None and index < 0:
            raise RuntimeError("Device index must not be negative")
        return name, index
    if index is not None:
        raise RuntimeError(
            f"type (string) must not include an index because index was passed explicitly: {text}"
        )
    if not number.isascii() or not number.isdecimal() or (number[0] == "0" and number != "0"):
        raise RuntimeError(f"Invalid device string: '{text}'")
    return name, int(number)


CPU = device("cpu")


def check(op: str, given: Any) -> None:
    """Returns if a device, its name or None is the CPU; else raises what PyTorch does without that device.

    AssertionError for CUDA, XPU and MTIA, RuntimeError for a name that is none, and of `to` for a device that
    PyTorch could be linked with; NotImplementedError else.
    """
    if given is None or given is CPU or given == "cpu":
        return
    if not isinstance(given, (str, int, device)) or isinstance(given, bool):
        raise TypeError(f"{op}(): argument 'device' must be a device or its name, not {type(given).__name__}")
    kind = device(given).type  # type: ignore[arg-type]
    if kind == "cpu":
        return
    if kind in ("cuda", "xpu", "mtia"):
        not_compiled(kind)
    if op == "to" and kind != "meta":
        raise RuntimeError(f"to: PyTorch is not linked with support for {kind} devices; kiln runs on the CPU")
    raise NotImplementedError(f"{op}: expected device 'cpu', got {str(given)!r}: there is no other device")


def not_compiled(kind: str) -> NoReturn:
    """Raises what PyTorch says where it was built without a kind of device."""
    raise AssertionError(
        f"Torch not compiled with {kind.upper()} enabled: kiln runs on the CPU; choose the device by "
        f"kiln.{kind}.is_available()"
    )


def refusal(kind: str, name: str, error: Callable[[str], NoReturn]) -> Callable[..., NoReturn]:
    """What stands for a function of an accelerator, `kind.name`, and raises when it is called: `error` is
    told the name. The error shows no lines of kiln's.
    """

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        error(name)

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__module__ = f"kiln.{kind}"
    refuse.__doc__ = f"Raises: kiln runs on the CPU; choose the device by kiln.{kind}.is_available()."
    return _core.Function(refuse)


def get_default_device() -> device:
    """Where new tensors are: on the CPU.

    >>> kiln.get_default_device()
    device(type='cpu')
    """
    return CPU


def set_default_device(device: Any) -> None:
    """Says where new tensors are: "cpu", or None for that too. AssertionError and the like for what is not
    there, as where a tensor is made there.

    >>> kiln.set_default_device("cpu")
    """
    check("set_default_device", device)


name_constructor(device)
