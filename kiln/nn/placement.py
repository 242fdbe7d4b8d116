"""What `Module.to` is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln import _core
from kiln._core import Tensor
from kiln.errors import describe, message
from kiln.tuples import NamedTuple

if TYPE_CHECKING:
    from kiln._typed.words import Device
    from kiln.layout import memory_format


class Placement(NamedTuple):
    """What `Module.to` was asked for: None leaves a tensor's own."""

    device: Device | None
    dtype: _core.dtype | None
    format: memory_format | None


def placement(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Placement:
    """The device, dtype and memory format that `to(*args, **kwargs)` names."""
    unknown = set(kwargs) - {"device", "dtype", "non_blocking", "memory_format"}
    if unknown:
        expected = "device, dtype, non_blocking or memory_format"
        raise TypeError(message("Module.to", expected, f"'{min(unknown)}'"))
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    for value in args:
        if isinstance(value, Tensor):
            device, dtype = getattr(value, "device", None), value.dtype
        elif isinstance(value, _core.dtype):
            dtype = value
        elif isinstance(value, str) or hasattr(value, "type"):
            device = value
        elif value is not None and not isinstance(value, bool):
            raise TypeError(message("Module.to", "a device, a dtype or a tensor", describe(value)))
    if dtype is not None and not dtype.is_floating_point:
        hint = "convert single tensors with their own .to()"
        raise TypeError(
            "nn.Module.to only accepts floating point or complex dtypes, but got desired "
            f"dtype={dtype}; {hint}"
        )
    return Placement(device, dtype, kwargs.get("memory_format"))
