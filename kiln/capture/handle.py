"""Functions as the core holds them: what they are, without anything captured yet.

A handle's identity is a hash of what the function does, the same in every process: an op's name (of a user's
op: its captured content) and structure, under a default dtype; or which gradients of such a function.
"""

from __future__ import annotations

import os
from typing import Any

from kiln import _core
from kiln.codegen.store.identity import digest

_PLAIN = (int, float, str, bool, type(None), _core.dtype)


class Handle:
    """What identifies a function; `kiln.capture.make` sets `function` once it captures something of it."""

    __slots__ = ("function", "identity", "short", "what")

    def __init__(self, what: tuple[Any, ...], identity: bytes | None) -> None:
        self.what = what
        self.identity = identity  # None: known in this process alone
        self.short = (identity or os.urandom(16))[:16]  # what the hash of a recording is made of
        self.function: Any = None


def forward_of(op: Any, structure: tuple[Any, ...]) -> Handle:
    """The handle of an op at a structure, under the default dtype of now."""
    if op.identity is None or not _plain(structure):
        return Handle((op, structure), None)
    text = repr((op.identity, structure, _core.default_dtype_name()))
    return Handle((op, structure), digest(b"forward", text.encode()))


def derivative_of(
    forward: Handle,
    operands: tuple[Any, ...],
    needed: int,
    defined: int,
    redo: int,
    factored: int,
    onto: int,
    shared: int = -1,
) -> Handle:
    """The handle of a derivative."""
    what = (forward, operands, needed, defined, redo, factored, onto, shared)
    if forward.identity is None:
        return Handle(what, None)
    return Handle(what, digest(b"derivative", forward.identity, repr(what[1:]).encode()))


def _plain(value: Any) -> bool:
    """Whether the text of a value says all of it."""
    if type(value) in (tuple, _core.Size):
        return all(map(_plain, value))
    return type(value) in _PLAIN
