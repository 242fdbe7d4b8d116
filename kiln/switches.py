"""Switches of PyTorch's whole program: they keep what they are told.

Each chooses there between speed and what is always so here: results are the same bits in every run, float32
products have float32's digits, and denormals are computed with.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from kiln import _core
from kiln.backends import precision as _precision
from kiln.backends.precision import set_float32_matmul_precision
from kiln.table.arguments import answered
from kiln.table.callables import hide_frames as _hide_frames

__all__ = [
    "are_deterministic_algorithms_enabled", "get_deterministic_debug_mode", "get_float32_matmul_precision",
    "get_default_dtype", "get_num_interop_threads", "get_num_threads",
    "is_deterministic_algorithms_warn_only_enabled", "is_warn_always_enabled",
    "set_deterministic_debug_mode", "set_float32_matmul_precision", "set_flush_denormal",
    "set_num_interop_threads", "set_warn_always", "use_deterministic_algorithms",
]  # fmt: skip

_MODES = ("default", "warn", "error")
_kept: dict[str, Any] = {"deterministic": 0, "interop_threads": None, "warn_always": False}


def _expect_bool(function: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise RuntimeError(f"{function} expects a bool, but got {type(value).__name__}")
    return value


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Asks for the same results in every run: they always are. What is told can be asked for.

    >>> kiln.use_deterministic_algorithms(True)
    >>> kiln.are_deterministic_algorithms_enabled()
    True
    """
    if not isinstance(mode, bool):
        raise TypeError(
            "use_deterministic_algorithms(): argument 'mode' (position 1) must be bool, "
            f"not {type(mode).__name__}"
        )
    _kept["deterministic"] = (1 if warn_only else 2) if mode else 0


def are_deterministic_algorithms_enabled() -> bool:
    """What `use_deterministic_algorithms` was told."""
    return bool(answered("are_deterministic_algorithms_enabled", bool(_kept["deterministic"])))


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """What it was told of warnings."""
    only = bool(_kept["deterministic"] == 1)
    return bool(answered("is_deterministic_algorithms_warn_only_enabled", only))


def get_deterministic_debug_mode() -> int:
    """The same as a number: 0 nothing, 1 warnings, 2 errors were asked for."""
    return int(answered("get_deterministic_debug_mode", int(_kept["deterministic"])))


def set_deterministic_debug_mode(debug_mode: int | str) -> None:
    """The same by number or name: "default", "warn" or "error". RuntimeError for any other.

    >>> kiln.set_deterministic_debug_mode("default")
    """
    if not isinstance(debug_mode, (int, str)) or isinstance(debug_mode, bool):
        raise TypeError(
            f"set_deterministic_debug_mode: debug_mode must be str or int, but got {type(debug_mode)}"
        )
    if isinstance(debug_mode, str):
        if debug_mode not in _MODES:
            one_of = "invalid value of debug_mode, expected one of `default`, `warn`, `error`"
            raise RuntimeError(f"{one_of}, but got {debug_mode}")
        debug_mode = _MODES.index(debug_mode)
    if debug_mode not in (0, 1, 2):
        raise RuntimeError(f"invalid value of debug_mode, expected 0, 1, or 2, but got {debug_mode}")
    _kept["deterministic"] = debug_mode


def set_warn_always(b: bool) -> None:
    """Asks for a warning at every call, not the first: Python's filters of `warnings` decide that here.

    >>> kiln.set_warn_always(False)
    """
    _kept["warn_always"] = _expect_bool("set_warn_always", b)


def is_warn_always_enabled() -> bool:
    """What `set_warn_always` was told."""
    return bool(answered("is_warn_always_enabled", bool(_kept["warn_always"])))


def set_flush_denormal(mode: bool) -> bool:
    """Whether denormals are treated as asked: they are computed with, so False for True.

    >>> kiln.set_flush_denormal(True), kiln.set_flush_denormal(False)
    (False, True)
    """
    return not _expect_bool("set_flush_denormal", mode)


def set_num_interop_threads(num: int) -> None:
    """Says how many threads may run ops beside each other: one does here, each op on `get_num_threads()`.

    The number is kept. RuntimeError for one below 1, and at a second call, as in PyTorch.
    """
    if not isinstance(num, int) or isinstance(num, bool):
        raise RuntimeError(f"set_num_interop_threads expects an int, but got {type(num).__name__}")
    if num < 1:
        raise RuntimeError("set_num_interop_threads expects a positive integer")
    if _kept["interop_threads"] is not None:
        raise RuntimeError(
            "Error: cannot set number of interop threads after parallel work has started or "
            "set_num_interop_threads called"
        )
    _kept["interop_threads"] = num


def get_num_threads() -> int:
    """How many threads an op may run on.

    >>> kiln.get_num_threads() > 0
    True
    """
    return int(answered("get_num_threads", _core.get_num_threads()))


def get_float32_matmul_precision() -> str:
    """What `set_float32_matmul_precision` was told; "highest" before.

    >>> kiln.get_float32_matmul_precision()
    'highest'
    """
    return str(answered("get_float32_matmul_precision", _precision.get_float32_matmul_precision()))


def get_default_dtype() -> _core.dtype:
    """The dtype of floats where none is given.

    >>> kiln.get_default_dtype()
    kiln.float32
    """
    default: _core.dtype = answered("get_default_dtype", _core.get_default_dtype())
    return default


def get_num_interop_threads() -> int:
    """What `set_num_interop_threads` was told; before, the number of processors.

    >>> kiln.get_num_interop_threads() > 0
    True
    """
    return int(answered("get_num_interop_threads", _kept["interop_threads"] or os.cpu_count() or 1))


def _assert(condition: Any, message: str) -> None:
    """`assert condition, message` as a function, which libraries call."""
    assert condition, message


def _check(cond: Any, message: Callable[[], Any] | None = None) -> None:
    """RuntimeError where a condition does not hold, with the text that `message` gives; libraries call it."""
    if not cond:
        raise RuntimeError("Expected cond to be True, but got False" if message is None else str(message()))


_hide_frames(
    globals(),
    ("_assert", "_check", "set_deterministic_debug_mode", "set_flush_denormal", "set_num_interop_threads",
     "set_warn_always", "use_deterministic_algorithms"),
)  # fmt: skip
