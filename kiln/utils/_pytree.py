"""Trees of containers, as libraries read them from PyTorch: leaves, a description, and functions over leaves.

Containers are tuples (named ones too), lists, dicts, ordered and default ones, deques, and classes that were
registered; whatever else is a leaf.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from kiln.func.tree import CONTAINERS

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

    @property
    def num_nodes(self) -> int:
        """How many containers and leaves there are."""
        return 1 + sum(child.num_nodes for child in self._children)

    def flatten_up_to(self, tree: Any) -> list[Any]:
        """What of a tree stands where this one has leaves. ValueError where it is built otherwise."""
        if self.type is None:
            return [tree]
        if _get_node_type(tree) is not self.type:
            raise ValueError(f"Node type mismatch; expected {self.type}, but got {type(tree)}.")
        children, context = SUPPORTED_NODES[self.type].flatten_fn(tree)
        if len(children) != len(self._children):
            raise ValueError(f"Node arity mismatch; expected {len(self._children)}, but got {len(children)}.")
        if issubclass(self.type, dict) if isinstance(self.type, type) else False:
            keys, found = _keys(self.type, self.context), _keys(self.type, context)
            if set(keys) != set(found):
                raise ValueError(f"Node keys mismatch; expected {keys}, but got {found}.")
            children = [tree[key] for key in keys]
        elif context != self.context and self.type is not deque:
            raise ValueError(f"Node context mismatch; expected {self.context}, but got {context}.")
        return [x for child, spec in zip(children, self._children) for x in spec.flatten_up_to(child)]

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


def _keys(kind: type, context: Any) -> Any:
    """The keys in the context of a dict, or of one with a default."""
    return context[1] if kind is defaultdict else context


SUPPORTED_NODES: dict[Any, NodeDef] = {}
_LEAF = LeafSpec()


def register_pytree_node(
    cls: Any,
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
    CONTAINERS[cls] = flatten_fn, unflatten_fn


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
    (namedtuple, lambda t: (list(t), type(t)), lambda values, kind: kind(*values)),
):
    SUPPORTED_NODES[_kind] = NodeDef(_kind, _flatten, _unflatten)


def is_namedtuple_class(cls: Any) -> bool:
    """Whether a class is that of named tuples."""
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")


def is_namedtuple(obj: Any) -> bool:
    """Whether something is a named tuple, or the class of one."""
    return is_namedtuple_class(obj if isinstance(obj, type) else type(obj))


def is_namedtuple_instance(obj: Any) -> bool:
    """Whether something is a named tuple."""
    return is_namedtuple_class(type(obj))


def is_structseq_class(cls: Any) -> bool:
    """Whether a class is that of results which Python's C has: tuples with names but no `_fields`."""
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "n_sequence_fields")


def is_structseq(obj: Any) -> bool:
    """Whether something is such a result, or the class of one."""
    return is_structseq_class(obj if isinstance(obj, type) else type(obj))


def is_structseq_instance(obj: Any) -> bool:
    """Whether something is such a result."""
    return is_structseq_class(type(obj))


def _get_node_type(tree: Any) -> Any:
    """What SUPPORTED_NODES knows a container by: its class, `namedtuple` of named ones."""
    kind = type(tree)
    return namedtuple if kind not in SUPPORTED_NODES and is_namedtuple_class(kind) else kind


def _node(tree: Any) -> NodeDef | None:
    """How a container is taken apart; None for a leaf."""
    return SUPPORTED_NODES.get(_get_node_type(tree))


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
        return SUPPORTED_NODES[spec.type].unflatten_fn(children, spec.context)

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
    """The tree of func(leaf), with what stands there in further trees. ValueError where they are built
    otherwise.
    """
    leaves, spec = tree_flatten(tree, is_leaf)
    others = [spec.flatten_up_to(rest) for rest in rests]
    return tree_unflatten([func(*xs) for xs in zip(leaves, *others)], spec)


def tree_map_(func: Callable[..., Any], tree: Any, *rests: Any) -> Any:
    """Calls func(leaf) for what it does; the tree itself."""
    tree_map(func, tree, *rests)
    return tree


def tree_map_only(kind: Any, func: Callable[[Any], Any], tree: Any, is_leaf: Any = None) -> Any:
    """The tree in which leaves of a type are func(leaf)."""
    wanted = kind if callable(kind) and not isinstance(kind, type) else lambda x: isinstance(x, kind)
    return tree_map(lambda x: func(x) if wanted(x) else x, tree, is_leaf=is_leaf)


def tree_map_only_(kind: Any, func: Callable[[Any], Any], tree: Any, is_leaf: Any = None) -> Any:
    """Calls func(leaf) of leaves of a type for what it does; the tree itself."""
    tree_map_only(kind, func, tree, is_leaf)
    return tree


def tree_all(pred: Callable[[Any], bool], tree: Any) -> bool:
    """Whether something is so of every leaf."""
    return all(map(pred, tree_leaves(tree)))


def tree_any(pred: Callable[[Any], bool], tree: Any) -> bool:
    """Whether something is so of a leaf."""
    return any(map(pred, tree_leaves(tree)))


def tree_all_only(kind: Any, pred: Callable[[Any], bool], tree: Any, is_leaf: Any = None) -> bool:
    """Whether something is so of every leaf of a type."""
    return all(pred(x) for x in tree_leaves(tree, is_leaf) if isinstance(x, kind))


def tree_any_only(kind: Any, pred: Callable[[Any], bool], tree: Any, is_leaf: Any = None) -> bool:
    """Whether something is so of a leaf of a type."""
    return any(pred(x) for x in tree_leaves(tree, is_leaf) if isinstance(x, kind))


def _broadcast_to_and_flatten(tree: Any, treespec: TreeSpec, is_leaf: Any = None) -> list[Any] | None:
    """What of a tree stands for each leaf of a description, a leaf for all that is below it; None where the
    two are built otherwise.
    """
    if tree_is_leaf(tree, is_leaf):
        return [tree] * treespec.num_leaves
    if treespec.type is None or _get_node_type(tree) is not treespec.type:
        return None
    children, context = SUPPORTED_NODES[treespec.type].flatten_fn(tree)
    if len(children) != len(treespec._children) or context != treespec.context:
        return None
    found: list[Any] = []
    for child, spec in zip(children, treespec._children):
        below = _broadcast_to_and_flatten(child, spec, is_leaf)
        if below is None:
            return None
        found += below
    return found


# where leaves stand: tuples of keys

KeyPath: TypeAlias = tuple[Any, ...]


def _places(tree: Any, children: list[Any], context: Any) -> list[Any]:
    """The keys of a container's children."""
    kind = _get_node_type(tree)
    if kind is namedtuple:
        return [GetAttrKey(name) for name in context._fields]
    if kind in (dict, OrderedDict, defaultdict):
        return [MappingKey(key) for key in _keys(kind, context)]
    with_keys = SUPPORTED_NODES[kind].flatten_with_keys_fn
    if with_keys is not None:
        return [key for key, _ in with_keys(tree)[0]]
    return [SequenceKey(k) for k in range(len(children))]


def tree_leaves_with_path(
    tree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> list[tuple[KeyPath, Any]]:
    """The leaves, each with the keys that lead to it.

    >>> [(keystr(path), leaf) for path, leaf in tree_leaves_with_path({"a": [1, 2]})]
    [("['a'][0]", 1), ("['a'][1]", 2)]
    """
    if tree_is_leaf(tree, is_leaf):
        return [((), tree)]
    node: Any = _node(tree)
    children, context = node.flatten_fn(tree)
    return [
        ((key, *path), leaf)
        for key, child in zip(_places(tree, children, context), children)
        for path, leaf in tree_leaves_with_path(child, is_leaf)
    ]


def tree_flatten_with_path(
    tree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[tuple[KeyPath, Any]], TreeSpec]:
    """The leaves with the keys that lead to them, and the description."""
    return tree_leaves_with_path(tree, is_leaf), tree_structure(tree, is_leaf)


def tree_map_with_path(
    func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: Callable[[Any], bool] | None = None
) -> Any:
    """The tree of func(keys, leaf), with what stands there in further trees."""
    leaves, spec = tree_flatten_with_path(tree, is_leaf)
    others = [spec.flatten_up_to(rest) for rest in rests]
    return tree_unflatten([func(path, leaf, *more) for (path, leaf), *more in zip(leaves, *others)], spec)


def keystr(kp: KeyPath) -> str:
    """Keys as a program would write them: "['a'][0].name"."""
    return "".join(f".{k.name}" if isinstance(k, GetAttrKey) else f"[{k[0]!r}]" for k in kp)


def key_get(obj: Any, kp: KeyPath) -> Any:
    """What stands there in a tree."""
    for key in kp:
        obj = getattr(obj, key.name) if isinstance(key, GetAttrKey) else obj[key[0]]
    return obj


def register_dataclass(
    cls: type, *, field_names: list[str] | None = None, drop_field_names: list[str] | None = None,
    serialized_type_name: str | None = None,
) -> None:  # fmt: skip
    """From now on a dataclass is a container of its fields, without those in `drop_field_names`."""
    names = [
        name for name in getattr(cls, "__dataclass_fields__", {}) if name not in (drop_field_names or [])
    ]
    names = names if field_names is None else field_names

    def flatten(x: Any) -> tuple[list[Any], Any]:
        return [getattr(x, name) for name in names], names

    def flatten_with_keys(x: Any) -> tuple[list[Any], Any]:
        return [(GetAttrKey(name), getattr(x, name)) for name in names], names

    register_pytree_node(
        cls, flatten, lambda values, names: cls(**dict(zip(names, values))),
        flatten_with_keys_fn=flatten_with_keys,
    )  # fmt: skip
