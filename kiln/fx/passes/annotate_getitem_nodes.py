"""Annotations of items of annotated sequences."""

from __future__ import annotations

import operator
import typing
from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.fx.graph import Graph
from kiln.fx.node import Node

__all__ = ["annotate_getitem_nodes"]


def annotate_getitem_nodes(graph: Graph) -> None:
    """Says of each node `x[k]` what the annotation of `x` says of its items: of a tuple, list or named tuple.

    >>> import kiln
    >>> graph = kiln.fx.Graph()
    >>> x = graph.placeholder("x", list[int])
    >>> first = graph.call_function(operator.getitem, (x, 0))
    >>> annotate_getitem_nodes(graph)
    >>> first.type
    <class 'int'>
    """
    for node in graph.find_nodes(op="call_function", target=operator.getitem):
        of, key = node.args
        if isinstance(of, Node) and of.type is not None:
            node.type = _item(of.type, key)


def _item(kind: Any, key: Any) -> Any:
    """The annotation of one item; None if it is not said."""
    items = typing.get_args(kind)
    if typing.get_origin(kind) is list:
        return items[0] if items else None
    if typing.get_origin(kind) is tuple:
        if len(items) == 2 and items[1] is Ellipsis:
            return items[0]
        return items[key] if isinstance(key, int) and -len(items) <= key < len(items) else None
    if hasattr(kind, "_fields") and isinstance(key, int):
        return kind.__annotations__.get(kind._fields[key])
    return None


_hint_missing(__name__)
