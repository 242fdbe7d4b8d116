"""`FlopCounterMode`, which libraries name: kiln counts no operations of single calls yet."""

from __future__ import annotations

from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.absent import refuse as _refuse

__all__ = ["FlopCounterMode"]


class FlopCounterMode:
    """`with` one, multiplications and additions would be counted. NotImplementedError."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("utils.flop_counter.FlopCounterMode")


_hint_missing(__name__)
