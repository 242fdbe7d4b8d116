"""Whether a function runs to be captured for a backend (`kiln.compiler.is_compiling`)."""

from __future__ import annotations

from threading import local
from typing import Any


class _State(local):
    capturing = False
    capture: Any = None  # what records its calls
    stance = "default"  # "force_eager": functions with a backend of the program's own run as they are


STATE = _State()
