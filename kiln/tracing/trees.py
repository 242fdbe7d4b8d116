"""Arguments and results as trees: containers of tensors and of what is no tensor.

    tree := leaf | container(kind, keys, trees) | constant(value)

A leaf has the name a user would write: `x`, `batch['mask']`, `args[1]`.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kiln import _core
from kiln.errors import describe
from kiln.graph.graph import Value


class Tree(NamedTuple):
    """`kind`: "leaf", "constant", "tuple", "list", "dict", "named" (a namedtuple) or "data" (a dataclass)."""

    kind: str
    items: tuple[Tree, ...] = ()
    keys: tuple[Any, ...] = ()  # of a dict, a namedtuple or a dataclass
    type: Any = None  # of what is made again by calling it
    value: Any = None  # of a constant

    @property
    def leaves(self) -> int:
        """How many tensors the tree holds."""
        return 1 if self.kind == "leaf" else sum(item.leaves for item in self.items)


LEAF = Tree("leaf")


def flatten(value: Any, found: list[Any], names: list[str] | None = None, name: str = "") -> Tree:
    """The tree of a value; its tensors are added to `found`, what they are called to `names`."""
    if isinstance(value, (_core.Tensor, Value)):  # (of a graph that control flow calls)
        found.append(value)
        if names is not None:
            names.append(name)
        return LEAF

    def inner(held: list[tuple[str, Any]]) -> tuple[Tree, ...]:
        return tuple([flatten(v, found, names, n) for n, v in held])

    kind = type(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = tuple(value._fields)
        held = [(f"{name}.{f}", getattr(value, f)) for f in fields]
        return Tree("named", inner(held), fields, kind)
    if isinstance(value, (tuple, list)):
        held = [(f"{name}[{k}]", v) for k, v in enumerate(value)]
        if kind in (tuple, list):
            return Tree(kind.__name__, inner(held))
        return Tree("list" if isinstance(value, list) else "tuple", inner(held), (), kind)
    if isinstance(value, dict):
        held = [(f"{name}[{k!r}]", v) for k, v in value.items()]
        return Tree("dict", inner(held), tuple(value), None if kind is dict else kind)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = tuple(f.name for f in dataclasses.fields(value))
        held = [(f"{name}.{f}", getattr(value, f)) for f in fields]
        return Tree("data", inner(held), fields, kind)
    return Tree("constant", value=value)


def constants(tree: Tree, of: Callable[[Any], Any]) -> Tree:
    """The tree with its constants exchanged."""
    if tree.kind == "constant":
        return tree._replace(value=of(tree.value))
    return tree._replace(items=tuple([constants(item, of) for item in tree.items]))


def build(tree: Tree, leaves: Iterator[Any]) -> Any:
    """The value of a tree with these tensors."""
    if tree.kind == "leaf":
        return next(leaves)
    if tree.kind == "constant":
        return tree.value
    items = [build(item, leaves) for item in tree.items]
    if tree.kind == "dict":
        held = dict(zip(tree.keys, items))
        return held if tree.type is None else _mapping(tree.type, held)
    if tree.kind == "named":
        return tree.type(*items)
    if tree.kind == "data":
        return tree.type(**dict(zip(tree.keys, items)))
    return (tree.type or (tuple if tree.kind == "tuple" else list))(items)


def _mapping(kind: Any, held: dict[Any, Any]) -> Any:
    return OrderedDict(held) if issubclass(kind, OrderedDict) and kind is OrderedDict else kind(held)


def alike(a: Tree, b: Tree) -> bool:
    """Whether two trees are the same but for which tensors they hold."""
    if a.kind == "constant" and b.kind == "constant":
        return type(a.value) is type(b.value) and (a.value is b.value or bool(a.value == b.value))
    same = (a.kind, len(a.items), a.keys, a.type) == (b.kind, len(b.items), b.keys, b.type)
    return same and all(alike(x, y) for x, y in zip(a.items, b.items))


def difference(expected: Tree, came: Tree, names: list[str], name: str) -> str:
    """How a tree differs from what is expected, in words; "" if it does not."""
    if expected.kind == came.kind == "constant":
        same = type(expected.value) is type(came.value) and bool(expected.value == came.value)
        return "" if same else f"{name}: must be {expected.value!r}, got {came.value!r}"
    if expected.kind != came.kind or expected.type is not came.type:
        return f"{name}: expected {told(expected)}, got {told(came)}"
    if len(expected.items) != len(came.items) or expected.keys != came.keys:
        if expected.kind == "dict":
            missing = [k for k in expected.keys if k not in came.keys]
            extra = [k for k in came.keys if k not in expected.keys]
            of = (
                f"missing {missing}"
                if missing
                else f"unexpected {extra}"
                if extra
                else "another order of keys"
            )
            return f"{name}: {of}"
        return f"{name}: expected {len(expected.items)}, got {len(came.items)}"
    inner = names if len(names) >= len(came.items) else [f"{name}[{k}]" for k in range(len(came.items))]
    for own, a, b in zip(inner, expected.items, came.items):
        if found := difference(a, b, [], own):
            return found
    return ""


def told(tree: Tree) -> str:
    """A tree in a word or two."""
    if tree.kind == "leaf":
        return "Tensor"
    return (
        describe(tree.value)
        if tree.kind == "constant"
        else f"a {tree.type.__name__ if tree.type else tree.kind}"
    )
