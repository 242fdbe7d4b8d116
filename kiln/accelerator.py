"""The accelerator of this machine, whichever it is: none, as kiln runs on the CPU.

>>> import kiln
>>> kiln.accelerator.current_accelerator() if kiln.accelerator.is_available() else kiln.device("cpu")
device(type='cpu')
"""

from __future__ import annotations

import types as _types
import typing as _typing
from collections import OrderedDict as _OrderedDict
from importlib import import_module as _import_module

from kiln.absent import hint_missing as _hint_missing
from kiln.device import NO_ACCELERATOR as _NO_ACCELERATOR
from kiln.device import device as _device
from kiln.device import refusal as _refusal
from kiln.table.callables import hide_frames as _hide_frames

_REFUSED = (
    "current_device_idx current_device_index current_stream get_device_capability get_memory_info "
    "set_device_idx set_device_index set_stream synchronize"
)


def is_available() -> bool:
    """False: kiln runs on the CPU."""
    return False


def device_count() -> int:
    """0: kiln runs on the CPU."""
    return 0


def current_accelerator(check_available: bool = False) -> _device | None:
    """None: there is no accelerator."""
    return None


def get_device_module(device: _typing.Any = None) -> _types.ModuleType:
    """The module of a device's kind: `kiln.cpu` for None and "cpu", `kiln.cuda` for "cuda", and so on.

    RuntimeError for a kind that has no module here.

    >>> kiln.get_device_module("cuda").is_available()
    False
    """
    if not isinstance(device, (str, _device, type(None))):
        raise RuntimeError(f"Invalid value of device '{device}', expect kiln.device, str, or None")
    kind = "cpu" if device is None else _device(device).type
    if kind not in ("cpu", "cuda", "mps", "mtia", "xpu"):
        raise RuntimeError(f"Invalid device '{kind}': Device module not found")
    return _import_module(f"kiln.{kind}")


def empty_cache() -> None:
    """Gives back memory of the accelerator that is not used: none."""


def memory_allocated(device_index: _typing.Any = None) -> int:
    """Bytes of tensors on the accelerator: 0."""
    return 0


def memory_stats(device_index: _typing.Any = None) -> _OrderedDict[str, int]:
    """The allocator's counts: an empty dict."""
    return _OrderedDict()


max_memory_allocated = memory_reserved = max_memory_reserved = memory_allocated


def _refused(name: str) -> _typing.NoReturn:
    raise RuntimeError(
        f"{name}: {_NO_ACCELERATOR} kiln runs on the CPU; ask kiln.accelerator.is_available() before"
    )


globals().update({name: _refusal("accelerator", name, _refused) for name in _REFUSED.split()})

if _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> _typing.Any: ...  # what refuses

else:
    _hint_missing(__name__)

_hide_frames(globals(), ("get_device_module",))
