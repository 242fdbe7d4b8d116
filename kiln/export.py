"""Programs that run elsewhere: kiln writes none yet."""

from __future__ import annotations

from typing import Any, NoReturn

from kiln.absent import hint_missing as _hint_missing
from kiln.absent import refuse as _refuse

__all__ = ["Dim", "ExportedProgram", "export", "load", "save"]


class ExportedProgram:
    """A program that was exported. NotImplementedError."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("export.ExportedProgram")


class Dim:
    """A size that may vary in an exported program: its name and bounds."""

    def __init__(self, name: str, *, min: int | None = None, max: int | None = None) -> None:
        self.__name__, self.min, self.max = name, min, max


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
