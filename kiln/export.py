"""Programs that run elsewhere: kiln writes none yet."""

from __future__ import annotations

from typing import Any, NoReturn

from kiln.absent import hint_missing as _hint_missing
from kiln.absent import refuse as _refuse
from kiln.tracing.dims import Dim

__all__ = ["Dim", "ExportedProgram", "export", "load", "save"]


class ExportedProgram:
    """A program that was exported. NotImplementedError."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("export.ExportedProgram")


def export(mod: Any, args: Any, kwargs: Any = None, **options: Any) -> NoReturn:
    """NotImplementedError: a model runs in Python; `kiln.compile` makes it faster."""
    _refuse("export.export")


def save(ep: Any, f: Any, **options: Any) -> NoReturn:
    """NotImplementedError: there is nothing exported."""
    _refuse("export.save")


def load(f: Any, **options: Any) -> NoReturn:
    """NotImplementedError: an exported program is one for PyTorch."""
    _refuse("export.load")


_hint_missing(__name__)
