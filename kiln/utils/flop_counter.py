"""`FlopCounterMode`, which libraries make and may not use: kiln counts no operations as they are called."""

from __future__ import annotations

from types import TracebackType
from typing import Any, NoReturn

from kiln.absent import hint_missing as _hint_missing

__all__ = ["FlopCounterMode"]


class FlopCounterMode:
    """`with` one, multiplications and additions would be counted: NotImplementedError there. One that was not
    entered has counted nothing.

    >>> kiln.utils.flop_counter.FlopCounterMode(display=False).get_total_flops()
    0
    """

    def __init__(
        self, mods: Any = None, depth: int = 2, display: bool = True, custom_mapping: Any = None
    ) -> None:
        self.depth, self.display = depth, display

    def get_total_flops(self) -> int:
        """How many were counted."""
        return 0

    def get_flop_counts(self) -> dict[str, dict[Any, int]]:
        """How many were counted, by module and function."""
        return {"Global": {}}

    def __enter__(self) -> NoReturn:
        raise NotImplementedError(
            "FlopCounterMode: kiln counts no operations; kiln.profile tells where time goes"
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


_hint_missing(__name__)
