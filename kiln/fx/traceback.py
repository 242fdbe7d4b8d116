"""Where nodes come from: metadata that a run of a graph hands on to the nodes that are made meanwhile."""

from __future__ import annotations

import copy
import functools
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.fx.node import Node

__all__ = [
    "annotate", "annotate_fn", "format_stack", "get_current_meta", "has_preserved_node_meta",
    "preserve_node_meta", "set_current_meta", "set_stack_trace",
]  # fmt: skip

_current: dict[str, Any] = {}
_preserved = False


@contextmanager
def preserve_node_meta(enable: bool = True) -> Iterator[None]:
    """`with` it, what `Interpreter` and `annotate` say of the node that runs goes to `meta` of new nodes.

    >>> import kiln
    >>> with kiln.fx.traceback.preserve_node_meta(), kiln.fx.traceback.annotate({"stage": 0}):
    ...     graph = kiln.fx.Tracer().trace(lambda x: x + 1)
    >>> [node.meta.get("custom") for node in graph.nodes if node.op == "call_function"]
    [{'stage': 0}]
    """
    global _preserved, _current
    before = _preserved, _current
    _preserved, _current = enable, copy.copy(_current)
    try:
        yield
    finally:
        _preserved, _current = before


def has_preserved_node_meta() -> bool:
    """Whether metadata is handed on."""
    return _preserved


@contextmanager
def annotate(annotation_dict: dict[str, Any]) -> Iterator[None]:
    """Nodes that are made meanwhile have this in `meta["custom"]`, where `preserve_node_meta` is on."""
    global _current
    before = _current
    _current = {**before, "custom": {**before.get("custom", {}), **annotation_dict}}
    try:
        yield
    finally:
        _current = before


def annotate_fn(annotation_dict: dict[str, Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: the calls of a function are annotated."""

    def decorator(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with annotate(annotation_dict):
                return function(*args, **kwargs)

        return call

    return decorator


@contextmanager
def set_current_meta(node: Node, pass_name: str = "") -> Iterator[None]:
    """Nodes that are made meanwhile have the metadata of a node, where `preserve_node_meta` is on."""
    global _current
    if not (_preserved and node.meta):
        yield
        return
    before = _current
    _current = {**before, **node.meta}
    try:
        yield
    finally:
        _current = before


def get_current_meta() -> dict[str, Any]:
    """What is handed on to new nodes."""
    return _current


def set_stack_trace(stack: list[str]) -> None:
    """Says from where the nodes that are made next come; nothing where `preserve_node_meta` is off."""
    if _preserved and stack:
        _current["stack_trace"] = "".join(stack)


def format_stack() -> list[str]:
    """From where nodes that are made now come, as lines: where `preserve_node_meta` is on what the metadata
    says, which may be nothing; else this program's.
    """
    if _preserved:
        return [str(_current.get("stack_trace", ""))]
    return traceback.format_list(traceback.extract_stack()[:-1])


_hint_missing(__name__)
