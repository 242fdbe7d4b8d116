"""Marks for NVIDIA's profiler, which is not there: RuntimeError, as where PyTorch was built without CUDA."""

from __future__ import annotations

from typing import Any, NoReturn

from kiln.absent import hint_missing as _hint_missing
from kiln.table.callables import name_helpers as _name_helpers

__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]


def _missing() -> NoReturn:
    raise RuntimeError(
        "NVTX functions not installed. Are you sure you have a CUDA build?: kiln runs on the CPU; "
        "kiln.profiler.record_function marks ranges"
    )


def mark(msg: str) -> None:
    """Marks a moment. RuntimeError."""
    _missing()


def range_push(msg: str) -> int:
    """Begins a range in the one around it. RuntimeError."""
    _missing()


def range_pop() -> int:
    """Ends the innermost range. RuntimeError."""
    _missing()


def range_start(msg: str) -> int:
    """Begins a range that another thread may end. RuntimeError."""
    _missing()


def range_end(range_id: int) -> None:
    """Ends a range. RuntimeError."""
    _missing()


def range(msg: str, *args: Any, **kwargs: Any) -> Any:
    """`with range("forward"):`. RuntimeError."""
    _missing()


_name_helpers(globals(), __name__)
_hint_missing(__name__)
