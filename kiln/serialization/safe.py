"""What a program allows files to name beyond data: classes and functions of its own, by their names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from types import TracebackType
from typing import Any, Union

from kiln.table.callables import name_helpers as _name_helpers

Allowed = Union[Callable[..., Any], tuple[Callable[..., Any], str]]

# parts of kiln that are named as in PyTorch; importing one of their modules does nothing else
PARTS = ("nn", "optim", "utils", "distributions")

_lock = threading.Lock()
_allowed: list[Allowed] = []


def add_safe_globals(safe_globals: Sequence[Allowed]) -> None:
    """Lets files that `load` reads name these classes and functions; (one, "module.name") under that name.

    What is allowed is called with what a file says: allow only what does no harm with any arguments.

    >>> import argparse, kiln
    >>> kiln.serialization.add_safe_globals([argparse.Namespace])
    >>> kiln.serialization.clear_safe_globals()
    """
    global _allowed
    added = list(safe_globals)
    for one in added:
        _name(one)
    with _lock:
        _allowed = [*_allowed, *(one for one in added if one not in _allowed)]


def get_safe_globals() -> list[Allowed]:
    """What `add_safe_globals` allowed."""
    return list(_allowed)


def clear_safe_globals() -> None:
    """Allows nothing but data again."""
    global _allowed
    with _lock:
        _allowed = []


class safe_globals:
    """Allows files to name classes and functions inside a `with` block, as by `add_safe_globals`.

    >>> import argparse, kiln
    >>> with kiln.serialization.safe_globals([argparse.Namespace]):
    ...     len(kiln.serialization.get_safe_globals())
    1
    """

    def __init__(self, safe_globals: Sequence[Allowed]) -> None:
        self._added = list(safe_globals)
        self._before: list[Allowed] = []

    def __enter__(self) -> None:
        self._before = get_safe_globals()
        add_safe_globals(self._added)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _allowed
        with _lock:
            _allowed = self._before


def _name(one: Any) -> str:
    """The name by which files may ask for it."""
    if isinstance(one, tuple):
        if len(one) != 2 or not callable(one[0]) or not isinstance(one[1], str):
            raise ValueError(f"add_safe_globals: expected (a class or function, its name), got {one!r:.100}")
        return one[1]
    if not hasattr(one, "__module__") or not hasattr(one, "__qualname__"):
        raise TypeError(f"add_safe_globals: expected classes and functions, got {one!r:.100}")
    return f"{one.__module__}.{one.__qualname__}"


def allowed() -> dict[str, Any]:
    """Each of what is allowed by its name."""
    return {_name(one): one[0] if isinstance(one, tuple) else one for one in _allowed}


def here(module: str, name: str, parts: Collection[str] | None = PARTS) -> Any:
    """What PyTorch's name of something stands for, or kiln's: of torch.nn.modules.linear.Linear
    kiln.nn.Linear.

    None where kiln has nothing of that name in `parts`, or anywhere. Modules of kiln are all that is ever
    imported for it.
    """
    first, *rest = module.split(".")
    rest = [] if rest == ["_C"] else rest  # the core's names are public ones here
    if first not in ("torch", "kiln") or not all(map(str.isidentifier, rest)):
        return None
    if parts and rest and rest[0] not in parts:
        return None
    try:
        found: Any = import_module(".".join(["kiln", *rest]))
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found


def asked_for(module: str, name: str) -> Any:
    """What is allowed under a name that a file says, or under what PyTorch calls it; None if nothing is."""
    those = allowed()
    found = those.get(f"{module}.{name}")
    if found is None and any(key.rpartition(".")[2] == name for key in those):
        known = here(module, name)
        found = known if any(known is one for one in those.values()) else None
    return found


_name_helpers(globals(), __name__)
