"""Whether a function runs to be captured for a backend (`kiln.compiler.is_compiling`)."""

from __future__ import annotations

from threading import local


class _State(local):
    capturing = False


STATE = _State()
