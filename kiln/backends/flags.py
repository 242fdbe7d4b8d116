"""Flags as attributes of a module: set, read back, restored; of the wrong type they are refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from kiln.absent import no_attribute


class Flags(ModuleType):
    """A module whose flags keep their types: those that `_KINDS` names."""

    def __setattr__(self, name: str, value: Any) -> None:
        kinds: Any = vars(self).get("_KINDS", {}).get(name)
        if kinds is not None and not isinstance(value, kinds):
            wanted = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
            given = f"{self.__name__}.{name} expects a {wanted}, but got {type(value).__name__}"
            raise RuntimeError(given)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        no_attribute(self.__name__, name)


def keep_kinds(module: str, **kinds: Any) -> None:
    """From now on the module's flags of these names are of these types."""
    vars(sys.modules[module])["_KINDS"] = kinds
    sys.modules[module].__class__ = Flags


@contextmanager
def flags_of(module: str, **values: Any) -> Iterator[None]:
    """Inside, a module's flags have these values; None leaves one as it is."""
    home = sys.modules[module]
    before = {name: getattr(home, name) for name, value in values.items() if value is not None}
    try:
        for name in before:
            setattr(home, name, values[name])
        yield
    finally:
        for name, value in before.items():
            setattr(home, name, value)
