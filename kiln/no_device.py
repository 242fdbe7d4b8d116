"""What modules of devices that are not there have in common (`kiln.xpu`, `kiln.mtia`)."""

from __future__ import annotations

import typing as _typing

from kiln import _core
from kiln.device import not_compiled as _not_compiled
from kiln.device import refusal as _refusal
from kiln.table.callables import name_helpers as _name_helpers

_REFUSED = (
    "current_device current_stream get_device_capability get_device_name "
    "get_device_properties get_rng_state init initial_seed mem_get_info memory_stats memory_summary "
    "reset_peak_memory_stats set_device set_stream synchronize"
)
_CLASSES = ("Event", "Stream", "StreamContext")


def _cannot(name: str) -> _typing.NoReturn:
    raise RuntimeError(
        f"torch.cuda.{name} requires CUDA support: kiln runs on the CPU; choose by kiln.cuda.is_available()"
    )


class Nowhere:
    """What can only be named: RuntimeError for who makes one, or calls what it would have."""

    @_core.Function
    def __init__(self, *args: _typing.Any, **kwargs: _typing.Any) -> None:
        _cannot(type(self).__name__)

    @classmethod
    def has(cls, methods: str, attributes: str = "") -> None:
        """Gives a class methods and attributes, for who looks at the class."""
        for name in methods.split():
            setattr(cls, name, _method(f"{cls.__name__}.{name}"))
        for name in attributes.split():
            setattr(cls, name, property(_method(f"{cls.__name__}.{name}")))


def _method(name: str) -> _typing.Callable[..., _typing.NoReturn]:
    def refuse(*args: _typing.Any, **kwargs: _typing.Any) -> _typing.NoReturn:
        _cannot(name)

    refuse.__name__, refuse.__qualname__ = name.rpartition(".")[2], name
    refuse.__doc__ = "RuntimeError: there is no CUDA."
    return _core.Function(refuse)


class Event(Nowhere):
    """A point in a stream. RuntimeError: there are no streams without CUDA; `time.perf_counter` measures."""


class Stream(Nowhere):
    """A queue of CUDA's work. RuntimeError: kernels run when they are called, in the caller's order."""


Event.__module__ = Stream.__module__ = "kiln.cuda"  # where programs find them
Event.has("elapsed_time from_ipc_handle ipc_handle query record synchronize wait", "device event_id")
Stream.has(
    "is_capturing query record_event synchronize wait_event wait_stream",
    "device device_index device_type native_handle stream_id",
)


_BASES: dict[str, type] = {"Event": Event, "Stream": Stream}


def is_available() -> bool:
    """False: kiln runs on the CPU."""
    return False


def device_count() -> int:
    """0: kiln runs on the CPU."""
    return 0


def is_initialized() -> bool:
    """False: there is nothing to initialise."""
    return False


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """False, as of every ability of a device that is not there."""
    return False


def manual_seed(seed: int) -> None:
    """Seeds the device there is: none. An error of `int` for what is no number."""
    int(seed)


def manual_seed_all(seed: int) -> None:
    """Seeds every device: none. An error of `int` for what is no number."""
    int(seed)


def get_rng_state_all() -> list[_typing.Any]:
    """The random state of every device: an empty list."""
    return []


def set_rng_state_all(new_states: _typing.Any) -> None:
    """Puts back what `get_rng_state_all` gave: nothing, of each device."""
    list(new_states)


def empty_cache() -> None:
    """Gives back memory of the device that is not used: none."""


def memory_allocated(device: _typing.Any = None) -> int:
    """Bytes of tensors on the device: 0."""
    return 0


max_memory_allocated = memory_reserved = max_memory_reserved = memory_allocated


def refusals(kind: str) -> dict[str, _typing.Any]:
    """Functions and classes by name that refuse, as PyTorch's do where it was built without this device."""

    def refused(name: str) -> _typing.NoReturn:
        _not_compiled(kind)

    made: dict[str, _typing.Any] = {name: _refusal(kind, name, refused) for name in _REFUSED.split()}
    for name in _CLASSES:  # `isinstance(x, kiln.xpu.Event)` is False
        made[name] = type(name, (_BASES[name],) if name in _BASES else (), {
            "__init__": _refusal(kind, name, refused), "__module__": f"kiln.{kind}",
        })  # fmt: skip
    return made


_name_helpers(globals(), __name__)
