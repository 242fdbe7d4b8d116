"""autocast and GradScaler under a device's name, for `cuda.amp` and `cpu.amp`: deprecated by PyTorch."""

from __future__ import annotations

import functools
from typing import Any

from kiln import _core
from kiln.amp.autocast_mode import autocast, custom_bwd, custom_fwd
from kiln.amp.grad_scaler import GradScaler
from kiln.errors import warn


def _deprecated(device: str, name: str) -> None:
    warn(
        f"`kiln.{device}.amp.{name}(args...)` is deprecated. Please use "
        f"`kiln.amp.{name}('{device}', args...)` instead.",
        FutureWarning,
    )


def autocast_of(device: str, default: Any) -> Any:
    """The class of `kiln.autocast(device, ...)` with that device's default dtype."""

    class Autocast(autocast):
        __slots__ = ()

        def __init__(
            self, enabled: bool = True, dtype: _core.dtype = default, cache_enabled: bool = True
        ) -> None:
            _deprecated(device, "autocast")
            super().__init__(device, dtype, enabled, cache_enabled)

        def clone(self) -> Any:
            return autocast(*self._given())  # which does not warn again

        def __reduce__(self) -> Any:
            return autocast, self._given()

    return _named(Autocast, "autocast", device)


def scaler_of(device: str) -> Any:
    """The class of `kiln.amp.GradScaler(device, ...)`."""

    class Scaler(GradScaler):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            _deprecated(device, "GradScaler")
            super().__init__(device, *args, **kwargs)

    return _named(Scaler, "GradScaler", device)


def custom_of(device: str) -> tuple[Any, Any]:
    """`custom_fwd` and `custom_bwd` for a device."""

    def of(name: str, decorator: Any) -> Any:
        @functools.wraps(decorator)
        def decorate(function: Any = None, **kwargs: Any) -> Any:
            _deprecated(device, name)
            return decorator(function, device_type=device, **kwargs)

        return decorate

    return of("custom_fwd", custom_fwd), of("custom_bwd", custom_bwd)


def _named(made: Any, name: str, device: str) -> Any:
    made.__name__ = made.__qualname__ = name
    made.__module__ = f"kiln.{device}.amp"
    made.__doc__ = f"`kiln.amp.{name}('{device}', ...)`, under a name that PyTorch deprecated."
    return made
