"""Trees of values among the arguments of a traced program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.utils._pytree import TreeSpec

__all__ = ["register_pytree_flatten_spec", "tree_flatten_spec"]

_FLATTEN: dict[type, Callable[[Any, TreeSpec], list[Any]]] = {}


def register_pytree_flatten_spec(
    cls: type, flatten_fn_spec: Callable[[Any, TreeSpec], list[Any]], flatten_fn_exact_match_spec: Any = None
) -> None:
    """Says how an object of a class is flattened as a spec has it."""
    _FLATTEN[cls] = flatten_fn_spec


def tree_flatten_spec(pytree: Any, spec: TreeSpec) -> list[Any]:
    """The leaves of a tree, as the tree of the traced program had them. ValueError if it is another one.

    >>> from kiln.utils._pytree import tree_structure
    >>> tree_flatten_spec([1, {"a": 2}], tree_structure([0, {"a": 0}]))
    [1, 2]
    """
    kind = _FLATTEN.get(type(pytree))
    return kind(pytree, spec) if kind else spec.flatten_up_to(pytree)


_hint_missing(__name__)
