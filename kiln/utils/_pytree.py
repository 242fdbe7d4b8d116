"""Trees of containers, as libraries read them from PyTorch: leaves, a description, and functions over leaves.

Containers are tuples (named ones too), lists, dicts, ordered and default ones, deques, and classes that were
registered; whatever else is a leaf.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

PyTree: TypeAlias = Any
Context: TypeAlias = Any


class NodeDef(NamedTuple):
    """How a class is taken apart and put together."""

    type: Any
    flatten_fn: Callable[[Any], tuple[list[Any], Any]]
    unflatten_fn: Callable[[Iterable[Any], Any], Any]
    flatten_with_keys_fn: Any = None


class TreeSpec:
    """What a tree is without its leaves."""

    def __init__(self, type: Any, context: Any, children: list[TreeSpec]) -> None:
        self.type, self.context, self._children = type, context, children
        self.num_leaves: int = sum(child.num_leaves for child in children) if type is not None else 1

    @property
    def num_children(self) -> int:
        """Of the root."""
        return len(self._children)

    @property
    def children_specs(self) -> list[TreeSpec]:
        """Those of the root's children."""
        return self._children

    def children(self) -> list[TreeSpec]:
        """Those of the root's children."""
        return self._children

    def child(self, index: int) -> TreeSpec:
        """That of one child."""
        return self._children[index]

    def is_leaf(self) -> bool:
        """Whether the tree is a leaf alone."""
        return self.type is None

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """The tree of these leaves. ValueError for another number of them."""
        return tree_unflatten(leaves, self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TreeSpec):
            return NotImplemented
        return (self.type, self.context, self._children) == (other.type, other.context, other._children)

    def __hash__(self) -> int:
        return hash((self.type, self.num_leaves, len(self._children)))

    def __repr__(self) -> str:
        if self.type is None:
            return "*"
        return f"TreeSpec({self.type.__name__}, {self.context}, {self._children})"


class LeafSpec(TreeSpec):
    """That of a leaf."""

    def __init__(self) -> None:
        super().__init__(None, None, [])


SUPPORTED_NODES: dict[Any, NodeDef] = {}
_LEAF = LeafSpec()


def register_pytree_node(
    cls: type,
    flatten_fn: Callable[[Any], tuple[list[Any], Any]],
    unflatten_fn: Callable[[Iterable[Any], Any], Any],
    *,
    serialized_type_name: str | None = None,
    to_dumpable_context: Any = None,
    from_dumpable_context: Any = None,
    flatten_with_keys_fn: Any = None,
) -> None:
    """From now on a class is a container: `flatten_fn` gives its children and a context, `unflatten_fn` takes
    them.
    """
    if cls in SUPPORTED_NODES:
        raise ValueError(f"{cls} is already registered as pytree node.")
    SUPPORTED_NODES[cls] = NodeDef(cls, flatten_fn, unflatten_fn, flatten_with_keys_fn)


_register_pytree_node = register_pytree_node


def _dict_flatten(d: dict[Any, Any]) -> tuple[list[Any], Any]:
    return list(d.values()), list(d.keys())


def _dict_unflatten(values: Iterable[Any], context: Any) -> dict[Any, Any]:
    return dict(zip(context, values))


class MappingKey(NamedTuple):
    """The place of a child in a dict."""

    key: Any


class SequenceKey(NamedTuple):
    """The place of a child in a tuple or list."""

    idx: int


class GetAttrKey(NamedTuple):
    """The place of a child in an object."""

    name: str


def _dict_flatten_with_keys(d: dict[Any, Any]) -> tuple[list[Any], Any]:
    values, keys = _dict_flatten(d)
    return [(MappingKey(key), value) for key, value in zip(keys, values)], keys


def _list_flatten(d: Iterable[Any]) -> tuple[list[Any], Any]:
    return list(d), None


for _kind, _flatten, _unflatten in (
    (tuple, _list_flatten, lambda values, context: tuple(values)),
    (list, _list_flatten, lambda values, context: list(values)),
    (dict, _dict_flatten, _dict_unflatten),
    (OrderedDict, _dict_flatten, lambda values, keys: OrderedDict(zip(keys, values))),
    (
        defaultdict,
        lambda d: (list(d.values()), [d.default_factory, list(d.keys())]),
        lambda values, context: defaultdict(context[0], zip(context[1], values)),
    ),
    (deque, lambda d: (list(d), d.maxlen), lambda values, most: deque(values, maxlen=most)),
):
    register_pytree_node(_kind, _flatten, _unflatten)


def _is_named(tree: Any) -> bool:
    return isinstance(tree, tuple) and hasattr(tree, "_fields")


def _node(tree: Any) -> NodeDef | None:
    """How a container is taken apart; None for a leaf."""
    found = SUPPORTED_NODES.get(type(tree))
    if found is None and _is_named(tree):
        return NodeDef(type(tree), lambda t: (list(t), type(t)), lambda values, kind: kind(*values))
    return found


def tree_is_leaf(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> bool:
    """Whether something is no container, or `is_leaf` says so."""
    return (is_leaf is not None and is_leaf(tree)) or _node(tree) is None


def tree_flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], TreeSpec]:
    """The leaves, and the description that puts a tree of them together.

    >>> leaves, spec = tree_flatten({"a": 1, "b": (2, [3])})
    >>> leaves, tree_unflatten([x * 10 for x in leaves], spec)
    ([1, 2, 3], {'a': 10, 'b': (20, [30])})
    """
    if tree_is_leaf(tree, is_leaf):
        return [tree], _LEAF
    node: Any = _node(tree)
    children, context = node.flatten_fn(tree)
    leaves, specs = [], []
    for child in children:
        below, spec = tree_flatten(child, is_leaf)
        leaves += below
        specs.append(spec)
    return leaves, TreeSpec(node.type, context, specs)


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> Any:
    """The tree of a description and leaves. ValueError for another number of leaves."""
    found = list(leaves)
    if len(found) != treespec.num_leaves:
        raise ValueError(
            f"tree_unflatten: expected {treespec.num_leaves} leaves, got {len(found)} for {treespec}"
        )
    rest = iter(found)

    def built(spec: TreeSpec) -> Any:
        if spec.type is None:
            return next(rest)
        children = [built(child) for child in spec._children]
        node = SUPPORTED_NODES.get(spec.type)
        return spec.type(*children) if node is None else node.unflatten_fn(children, spec.context)

    return built(treespec)


def tree_leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """The leaves."""
    return tree_flatten(tree, is_leaf)[0]


tree_iter = tree_leaves


def tree_structure(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> TreeSpec:
    """The description."""
    return tree_flatten(tree, is_leaf)[1]


def tree_map(
    func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: Callable[[Any], bool] | None = None
) -> Any:
    """The tree of func(leaf), with leaves of further trees built alike."""
    leaves, spec = tree_flatten(tree, is_leaf)
    others = [tree_flatten(rest, is_leaf)[0] for rest in rests]
    return tree_unflatten([func(*xs) for xs in zip(leaves, *others)], spec)


def tree_map_(func: Callable[..., Any], tree: Any, *rests: Any) -> Any:
    """Calls func(leaf) for what it does; the tree itself."""
    tree_map(func, tree, *rests)
    return tree


def tree_map_only(kind: Any, func: Callable[[Any], Any], tree: Any, is_leaf: Any = None) -> Any:
    """The tree in which leaves of a type are func(leaf)."""
    wanted = kind if callable(kind) and not isinstance(kind, type) else lambda x: isinstance(x, kind)
    return tree_map(lambda x: func(x) if wanted(x) else x, tree, is_leaf=is_leaf)


def tree_all(pred: Callable[[Any], bool], tree: Any) -> bool:
    """Whether something is so of every leaf."""
    return all(map(pred, tree_leaves(tree)))


def tree_any(pred: Callable[[Any], bool], tree: Any) -> bool:
    """Whether something is so of a leaf."""
    return any(map(pred, tree_leaves(tree)))
