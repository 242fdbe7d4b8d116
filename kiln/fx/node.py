"""An operation of a graph: what is called, with which arguments, and who uses what it gives.

placeholder    an argument of the program; `target` is its name, `args` holds its default
get_attr       what the root module holds under a dotted name
call_function  target(*args, **kwargs)
call_method    args[0].target(*args[1:], **kwargs)
call_module    the submodule of the dotted name `target`, called
output         what the program returns: args[0]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

from kiln import _core
from kiln.absent import hint_missing as _hint_missing
from kiln.fx import names
from kiln.fx.calls import parameters_of
from kiln.fx.immutable_collections import immutable_dict, immutable_list
from kiln.table import registry
from kiln.table.callables import name_helpers as _name_helpers

__all__ = ["Argument", "Node", "Target", "has_side_effect", "map_aggregate", "map_arg"]

Argument: TypeAlias = Any
Target: TypeAlias = Callable[..., Any] | str
BaseArgumentTypes: TypeAlias = Any
_F = TypeVar("_F", bound=Callable[..., Any])

_KINDS = ("placeholder", "call_method", "call_module", "call_function", "get_attr", "output", "root")
_side_effectful_functions: set[Any] = set()


def has_side_effect(fn: _F) -> _F:
    """Says of a function that calls of it stay in a graph though nothing uses their result; a decorator.

    >>> import kiln
    >>> kiln.fx.has_side_effect(print) is print
    True
    """
    _side_effectful_functions.add(fn)
    return fn


def map_aggregate(a: Argument, fn: Callable[[Argument], Argument]) -> Argument:
    """An argument with `fn` of every item that is no list, tuple, dict or slice; lists and dicts that do not
    change.
    """
    if isinstance(a, tuple):
        items = [map_aggregate(item, fn) for item in a]
        return type(a)(*items) if hasattr(a, "_fields") else tuple(items)
    if isinstance(a, list):
        return immutable_list([map_aggregate(item, fn) for item in a])
    if isinstance(a, dict):
        return immutable_dict({key: map_aggregate(item, fn) for key, item in a.items()})
    if isinstance(a, slice):
        return slice(*(map_aggregate(item, fn) for item in (a.start, a.stop, a.step)))
    return fn(a)


def map_arg(a: Argument, fn: Callable[[Node], Argument]) -> Argument:
    """An argument with `fn(node)` in the place of every node in it."""
    if not callable(fn):
        raise AssertionError("torch.fx.map_arg(a, fn): fn must be a callable")
    return map_aggregate(a, lambda item: fn(item) if isinstance(item, Node) else item)


class Node:
    """One operation of a graph; see the module's text. Made by the graph's methods."""

    def __init__(
        self,
        graph: Any,
        name: str,
        op: str,
        target: Target,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        return_type: Any = None,
    ) -> None:
        if op not in _KINDS:
            raise AssertionError(f"op '{op}' is not in _legal_ops: {', '.join(_KINDS)}")
        if op == "call_function" and not callable(target):
            raise ValueError(
                f"Node [graph = {graph}, name = '{name}'] target {target} has type {type(target).__name__} "
                "but a Callable is expected"
            )
        if op != "call_function" and not isinstance(target, str):
            raise ValueError(
                f"Node [graph = {graph}, name = '{name}'] target {target!r} has type "
                f"{type(target).__name__} but a str is expected"
            )
        self.graph, self.name, self.op, self.target = graph, name, op, target
        self.type = return_type
        self.users: dict[Node, None] = {}
        self._input_nodes: dict[Node, None] = {}
        self.meta: dict[str, Any] = {}
        self._prev = self._next = self
        self._erased = False
        self._called: str | None = None  # by which of its names a program called the function
        self._args: tuple[Argument, ...] = ()
        self._kwargs: dict[str, Argument] = {}
        self._set(args, kwargs)

    # -- where it stands -----------------------------------------------------------------------------------

    @property
    def next(self) -> Node:
        """The node behind it."""
        return self._next

    @property
    def prev(self) -> Node:
        """The node before it."""
        return self._prev

    def prepend(self, x: Node) -> None:
        """Moves a node of the same graph to the place before this one."""
        if self.graph is not x.graph:
            raise AssertionError("Attempting to move a Node into a different Graph")
        if self is x:
            return
        x._remove_from_list()
        before = self._prev
        before._next, x._prev, x._next, self._prev = x, before, self, x

    def append(self, x: Node) -> None:
        """Moves a node of the same graph to the place behind this one."""
        self._next.prepend(x)

    def _remove_from_list(self) -> None:
        self._prev._next, self._next._prev = self._next, self._prev

    def __lt__(self, other: Node) -> bool:
        """Whether it stands before another node of its graph."""
        for node in self.graph.nodes:
            if node is self or node is other:
                return node is self and self is not other
        return False

    def __gt__(self, other: Node) -> bool:
        return other < self

    # -- arguments -----------------------------------------------------------------------------------------

    @property
    def args(self) -> tuple[Argument, ...]:
        """The arguments by place; assigned as a whole."""
        return self._args

    @args.setter
    def args(self, a: tuple[Argument, ...]) -> None:
        self._set(a, self._kwargs)

    @property
    def kwargs(self) -> dict[str, Argument]:
        """The arguments by name; assigned as a whole."""
        return self._kwargs

    @kwargs.setter
    def kwargs(self, k: dict[str, Argument]) -> None:
        self._set(self._args, k)

    def _set(self, args: Any, kwargs: Any) -> None:
        for old in self._input_nodes:
            old.users.pop(self, None)
        self._input_nodes = {}

        def used(node: Node) -> Node:
            self._input_nodes.setdefault(node)
            node.users.setdefault(self)
            return node

        self._args = map_arg(args, used)
        self._kwargs = map_arg(kwargs, used)

    def update_arg(self, idx: int, arg: Argument) -> None:
        """Puts another argument in the place of one."""
        args = list(self.args)
        args[idx] = arg
        self.args = tuple(args)

    def insert_arg(self, idx: int, arg: Argument) -> None:
        """Puts an argument before the one of a place. IndexError beyond the end."""
        if not 0 <= idx <= len(self.args):
            raise AssertionError("insert_args index must be between 0 and len(self.args)")
        self.args = (*self.args[:idx], arg, *self.args[idx:])

    def update_kwarg(self, key: str, arg: Argument) -> None:
        """Sets the argument of a name."""
        self.kwargs = {**self.kwargs, key: arg}

    @property
    def all_input_nodes(self) -> list[Node]:
        """The nodes among the arguments, each once, in order."""
        return list(self._input_nodes)

    def replace_input_with(self, old_input: Node, new_input: Node) -> None:
        """Puts another node in the place of one among the arguments."""

        def other(node: Node) -> Node:
            return new_input if node is old_input else node

        self._set(map_arg(self.args, other), map_arg(self.kwargs, other))

    def replace_all_uses_with(
        self,
        replace_with: Node,
        delete_user_cb: Callable[[Node], bool] = lambda user: True,
        *,
        propagate_meta: bool = False,
    ) -> list[Node]:
        """Puts another node in the place of this one in all that use it, but where `delete_user_cb(user)` is
        false; the nodes that were changed.
        """
        if propagate_meta:
            if replace_with.meta:
                raise AssertionError(
                    "Called node.replace_all_uses_with(replace_with, propagate_meta=True), but replace_with "
                    "already has .meta keys"
                )
            replace_with.meta.update(self.meta)
        changed = [user for user in self.users if delete_user_cb(user)]
        for user in changed:
            user.replace_input_with(self, replace_with)
        return changed

    # -- what it says of itself ----------------------------------------------------------------------------

    @property
    def stack_trace(self) -> str | None:
        """Where the program called it, if the tracer was told to record that."""
        found: str | None = self.meta.get("stack_trace")
        return found

    @stack_trace.setter
    def stack_trace(self, trace: str | None) -> None:
        self.meta["stack_trace"] = trace

    def is_impure(self, impure_random: bool = True) -> bool:
        """Whether it is to stay though nothing uses its result: arguments and the output, functions that
        write into what they are given, draw random numbers or were named by `has_side_effect`, and layers
        that work in place, draw or change their state.
        """
        if self.op in ("placeholder", "output"):
            return True
        if self.op == "call_function" and getattr(self.target, "__name__", "") == "_assert":
            return True
        return writes(self) or (impure_random and _draws(self))

    def normalized_arguments(
        self,
        root: Any,
        arg_types: tuple[Any, ...] | None = None,
        kwarg_types: dict[str, Any] | None = None,
        normalize_to_only_use_kwargs: bool = False,
    ) -> Any:
        """The arguments of the call of one of kiln's functions, or of a layer of `root`, in order and with
        defaults, or all by name: `(args, kwargs)`; None if it is not known how it is called.
        """
        from kiln.fx.operator_schemas import normalize_function, normalize_module

        only = normalize_to_only_use_kwargs
        if self.op == "call_function":
            assert callable(self.target)
            return normalize_function(
                self.target, self.args, self.kwargs, arg_types, kwarg_types, normalize_to_only_use_kwargs=only
            )
        if self.op == "call_module":
            return normalize_module(root, str(self.target), self.args, self.kwargs, only)
        return None

    def format_node(
        self,
        placeholder_names: list[str] | None = None,
        maybe_return_typename: list[str] | None = None,
        *,
        include_tensor_metadata: bool = False,
    ) -> str | None:
        """The node as a line of the graph's text."""
        typed = f"{names_of_type(self.type)} " if self.type else ""
        users = f"[num_users={len(self.users)}]"
        if self.op == "placeholder":
            default = f"(default={self.args[0]})" if self.args else ""
            if placeholder_names is not None:
                placeholder_names.append(str(self.target))
            return f"%{self.name} : {typed}{users} = {self.op}[target={self.target}]{default}"
        if self.op == "output":
            if self.type and maybe_return_typename is not None:
                maybe_return_typename[0] = f" -> {names_of_type(self.type)}"
            return f"return {self.args[0]}"
        head = (
            f"%{self.name} : {typed}{users} = {self.op}[target={names.shown_name(self.target, self._called)}]"
        )
        if self.op == "get_attr":
            return head
        return f"{head}(args = {_shown(self.args)}, kwargs = {_shown(self.kwargs)})"

    def __repr__(self) -> str:
        return self.name

    def _rename(self, candidate: str) -> None:
        """Takes the name, or one like it that is free."""
        if candidate != self.name:
            self.name = self.graph._graph_namespace.create_name(candidate, None)


# layers that give other numbers each time, in training mode
_DRAWING = frozenset(
    "Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout RReLU FractionalMaxPool2d "
    "FractionalMaxPool3d".split()
)


def writes(node: Node) -> bool:
    """Whether a node writes into what it is given or holds, or may: by what it calls, or as its arguments
    ask for it.
    """
    if node.op == "call_function":
        if node.target in _side_effectful_functions or node.target in names.IN_PLACE:
            return True
        name = getattr(node.target, "__name__", "")
        return name == "setitem" or _is_in_place(name) or _asks_to_write(node)
    if node.op == "call_method":
        return _is_in_place(str(node.target))
    if node.op == "call_module":
        works = any(getattr(m, "_is_impure", False) or getattr(m, "inplace", False) for m in _layers(node))
        return works or has_state_that_changes(node)
    return False


def has_state_that_changes(node: Node) -> bool:
    """Whether a call of a module may write what the module holds: running statistics in training mode, rows
    of a table made shorter.
    """
    return any(
        (m.training and any(b is not None for b in m._buffers.values()))
        or getattr(m, "max_norm", None) is not None
        for m in _layers(node)
    )


def method_of_tensors(node: Node) -> Any:
    """The method of tensors that a node calls; None: there is none of this name."""
    try:
        return registry.method(str(node.target))
    except KeyError:
        return None


def _draws(node: Node) -> bool:
    """Whether a call draws random numbers: by what its function says of itself, a layer by its kind or by the
    rate of what it drops.
    """
    if node.op == "call_module":
        return any(
            m.training and (_DRAWING & {c.__name__ for c in type(m).__mro__} or _drops(m))
            for m in _layers(node)
        )
    if node.op not in ("call_function", "call_method"):
        return False
    if not _says_it_draws(node.target if node.op == "call_function" else method_of_tensors(node)):
        return False
    given = _given(node)
    off = given.get("training") is False or given.get("train") is False
    return not off and not (isinstance(rate := given.get("dropout_p"), (int, float)) and rate == 0)


def _says_it_draws(function: Any) -> bool:
    """Whether a function is marked by `draws`, itself or as what it calls with arguments more."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    of, _ = getattr(function, "_kiln_more", (None, ()))
    return getattr(function, "_kiln_draws", False) or (of is not None and _says_it_draws(of))


def _drops(module: Any) -> bool:
    """Whether a layer, of LSTMs or attention, drops at a rate that it holds as a number."""
    rate = getattr(module, "dropout", 0)
    return isinstance(rate, (int, float)) and rate > 0


def _layers(node: Node) -> list[Any]:
    """The module that a node calls, and those below it."""
    owner: Any = node.graph.owning_module
    if owner is None:
        raise AssertionError("self.graph.owning_module not set for purity check")
    return list(owner.get_submodule(node.target).modules())


def _is_in_place(name: str) -> bool:
    """Whether a name is that of a function that writes into its argument: `add_`."""
    return name.endswith("_") and not name.endswith("__") and name not in ("and_", "or_", "not_", "is_")


def _asks_to_write(node: Node) -> bool:
    """Whether arguments of a call say that it writes: `relu(x, inplace=True)`, also by place; rows of a table
    made shorter, running statistics in training.
    """
    given = _given(node)
    asked = [given.get(name) for name in ("inplace", "out", "max_norm")]
    if given.get("running_mean") is not None:
        asked += [given.get("training"), given.get("use_input_stats")]
    return any(a is not None and a is not False for a in asked)


def _given(node: Node) -> dict[str, Any]:
    """The arguments of a call by name, defaults too, where it is known what they are called."""
    if not isinstance(node.target, (_core.Op, _core.Function)):
        return node.kwargs
    known = parameters_of(node.target)
    return {**dict(known), **{name: a for (name, _), a in zip(known, node.args)}, **node.kwargs}


def _shown(a: Argument) -> str:
    """Arguments as the text of a graph shows them: `(%x, [%y, 1])`."""
    if isinstance(a, tuple):
        items = ", ".join(map(_shown, a))
        return f"({items},)" if len(a) == 1 else f"({items})"
    if isinstance(a, list):
        return f"[{', '.join(map(_shown, a))}]"
    if isinstance(a, dict):
        return "{" + ", ".join(f"{key}: {_shown(item)}" for key, item in a.items()) + "}"
    if isinstance(a, slice):
        return f"slice({_shown(a.start)}, {_shown(a.stop)}, {_shown(a.step)})"
    return f"%{a.name}" if isinstance(a, Node) else str(a)


def names_of_type(kind: Any) -> str:
    """An annotation as source: "int", "kiln.Tensor"."""
    if isinstance(kind, str):
        return kind
    if kind is _core.Tensor:
        return f"{names.root()}.Tensor"
    if kind is None or kind is type(None):
        return "NoneType"
    module = getattr(kind, "__module__", "")
    if isinstance(kind, type) and not getattr(kind, "__args__", None):
        return kind.__name__ if module == "builtins" else names.qualified_name(kind)
    return repr(kind)


def nodes_in(items: Iterable[Any]) -> list[Node]:
    """The nodes in arguments, each time they are there."""
    found: list[Node] = []
    map_arg(tuple(items), lambda node: found.append(node))
    return found


_name_helpers(globals(), __name__)
_hint_missing(__name__)
