"""`torch._dynamo` and `torch._inductor`, as programs set them up: nothing of them is here.

`kiln.compile` records what runs instead of reading it, so there is nothing to suppress, mark or reset.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.capture.capturing import STATE
from kiln.compiler import (
    allow_in_graph,
    assume_constant_result,
    disable,
    is_compiling,
    list_backends,
    register_backend,
    reset,
)
from kiln.nn import Module as _Module

__all__ = [
    "OptimizedModule", "TransformGetItemToIndex",
    "allow_in_graph", "assume_constant_result", "config", "disable", "graph_break",
    "is_compile_supported", "is_compiling", "list_backends", "mark_dynamic", "mark_static",
    "maybe_mark_dynamic", "register_backend",
    "reset",
]  # fmt: skip

config = SimpleNamespace(suppress_errors=False, verbose=False, cache_size_limit=8, recompile_limit=8)


class TransformGetItemToIndex(nullcontext[None]):
    """`with` it, an index that is a sample of a batch would be taken: it is anyway."""


class OptimizedModule(_Module):
    """What PyTorch's `compile` puts around a module: none is one, a compiled module keeps its class."""


def is_compile_supported(device_type: Any) -> bool:
    """Whether `compile` takes functions over tensors of a device: of the CPU."""
    return str(device_type).partition(":")[0] == "cpu"


def graph_break(msg: str = "") -> None:
    """Ends the graph of a backend of the program's own here; recordings need no such hint."""
    if STATE.capture is not None:
        STATE.capture.end("graph_break()")


def mark_dynamic(t: Any, index: Any, **kwargs: Any) -> None:
    """Would say that a size varies: every size may."""


def mark_static(t: Any, index: Any = None) -> None:
    """Would say that a size stays: every size may vary."""


maybe_mark_dynamic = mark_dynamic

_hint_missing(__name__, "_dynamo")
