"""Trees of arguments and results: tuples (named ones too), lists, dicts, and classes that the program says
are containers; whatever else is a leaf.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

MOST_DEPTH = 200  # of a tree: beyond that it contains itself

TakesApart: TypeAlias = Callable[[Any], tuple[list[Any], Any]]
PutsTogether: TypeAlias = Callable[[Iterable[Any], Any], Any]

# other classes that are containers: a function that gives children and a context, and one that takes both;
# `kiln.utils._pytree.register_pytree_node` puts those of the program here
CONTAINERS: dict[type, tuple[TakesApart, PutsTogether]] = {
    deque: (lambda d: (list(d), d.maxlen), lambda children, most: deque(children, most)),
}


def flatten(tree: Any, depth: int = 0) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The leaves of a tree, and the function that builds the same tree of other leaves.

    ValueError for a tree that contains itself.

    >>> leaves, build = flatten({"a": 1, "b": (2, [3])})
    >>> leaves
    [1, 2, 3]
    >>> build([10, 20, 30])
    {'a': 10, 'b': (20, [30])}
    """
    children = _children(tree)
    if children is None:
        return [tree], lambda leaves: leaves[0]
    if depth > MOST_DEPTH:
        raise ValueError(f"expected at most {MOST_DEPTH} lists, tuples and dicts in each other")
    parts = [flatten(child, depth + 1) for child in children]
    sizes = [len(leaves) for leaves, _ in parts]

    def build(leaves: list[Any]) -> Any:
        at, built = 0, []
        for size, (_, made) in zip(sizes, parts):
            built.append(made(leaves[at : at + size]))
            at += size
        return _like(tree, built)

    return [leaf for leaves, _ in parts for leaf in leaves], build


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """The tree of function(leaf)."""
    leaves, build = flatten(tree)
    return build([function(leaf) for leaf in leaves])


def spread(prefix: Any, tree: Any) -> list[Any] | None:
    """For each leaf of a tree the leaf of `prefix`, a tree that ends where it likes, above it; None where the
    two are not built alike.
    """
    children, above = _children(tree), _children(prefix)
    if above is None:
        return [prefix] * len(flatten(tree)[0])
    if children is None or type(prefix) is not type(tree) or len(above) != len(children):
        return None
    if isinstance(tree, dict) and prefix.keys() != tree.keys():
        return None
    if isinstance(tree, dict):
        above = [prefix[key] for key in tree]
    parts = [spread(p, t) for p, t in zip(above, children)]
    return None if any(p is None for p in parts) else [leaf for p in parts for leaf in p or ()]


def _children(tree: Any) -> list[Any] | None:
    """What a node of a tree holds; None of a leaf."""
    if (container := CONTAINERS.get(type(tree))) is not None:
        return list(container[0](tree)[0])
    if isinstance(tree, dict):
        return list(tree.values())
    return list(tree) if isinstance(tree, (tuple, list)) else None


def _like(tree: Any, children: list[Any]) -> Any:
    """A node like `tree` with other children."""
    if (container := CONTAINERS.get(type(tree))) is not None:
        return container[1](children, container[0](tree)[1])
    if isinstance(tree, dict):
        made = tree.copy()
        made.update(zip(tree, children))
        return made
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*children)
    return children if isinstance(tree, list) else tuple(children)
