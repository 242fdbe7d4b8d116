"""A program as a list of nodes, and what is done to it: nodes added, moved, erased, copied, written."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.absent import leave_out
from kiln.errors import warn
from kiln.fx import names
from kiln.fx.codegen import CodeGen, PythonCode
from kiln.fx.names import Namespace as _Namespace
from kiln.fx.node import Argument, Node, Target, map_aggregate, map_arg

__all__ = ["CodeGen", "Graph", "PythonCode"]


class _node_list:
    """The nodes of a graph in order; `reversed` gives them from the end."""

    def __init__(self, graph: Graph, direction: str = "_next") -> None:
        self.graph, self.direction = graph, direction

    def __len__(self) -> int:
        return self.graph._len

    def __iter__(self) -> Iterator[Node]:
        node: Node = getattr(self.graph._root, self.direction)
        while node is not self.graph._root:
            if not node._erased:
                yield node
            node = getattr(node, self.direction)

    def __reversed__(self) -> _node_list:
        return _node_list(self.graph, "_next" if self.direction == "_prev" else "_prev")


class Graph:
    """A program: nodes in the order they run.

    >>> import kiln
    >>> g = kiln.fx.Graph()
    >>> x = g.placeholder("x")
    >>> g.output(g.call_function(kiln.relu, (x,)))
    output
    >>> print(g)
    graph():
        %x : [num_users=1] = placeholder[target=x]
        %relu : [num_users=1] = call_function[target=kiln.relu](args = (%x,), kwargs = {})
        return relu
    """

    _codegen: CodeGen

    def __init__(self, owning_module: Any = None, tracer_cls: Any = None, tracer_extras: Any = None) -> None:
        self._root = Node(self, "", "root", "", (), {})
        self._len = 0
        self._insert: Callable[[Node], None] = self._root.prepend
        self._graph_namespace = _Namespace()
        self._owning_module = owning_module
        self._tracer_cls, self._tracer_extras = tracer_cls, tracer_extras
        self._codegen = CodeGen()
        self._co_fields: dict[str, Any] = {}

    # -- what is in it -------------------------------------------------------------------------------------

    @property
    def owning_module(self) -> Any:
        """The module whose program it is; None if it is none's."""
        return self._owning_module

    @owning_module.setter
    def owning_module(self, mod: Any) -> None:
        self._owning_module = mod

    @property
    def nodes(self) -> Any:
        """The nodes in order: iterated, counted, reversed."""
        return _node_list(self)

    def output_node(self) -> Node:
        """The node that returns."""
        last: Node = self._root._prev
        if last.op != "output":
            raise AssertionError(f"Graph.output_node: the last node is {last.op}, not output")
        return last

    def find_nodes(self, *, op: str, target: Any = None, sort: bool = True) -> list[Node]:
        """The nodes of a kind, of call_function those of one target too, in order."""
        if op == "call_function" and target is None:
            raise AssertionError("find_nodes: call_function needs a target")
        return [n for n in self.nodes if n.op == op and (target is None or n.target == target)]

    # -- nodes added ---------------------------------------------------------------------------------------

    def create_node(
        self,
        op: str,
        target: Target,
        args: tuple[Argument, ...] | None = None,
        kwargs: dict[str, Argument] | None = None,
        name: str | None = None,
        type_expr: Any = None,
    ) -> Node:
        """A new node at the place where nodes are inserted: the end, or that of `inserting_before`."""
        args, kwargs = () if args is None else args, {} if kwargs is None else kwargs
        if not isinstance(args, tuple):
            raise AssertionError(f"args must be a tuple, got {type(args).__name__}")
        if not isinstance(kwargs, dict):
            raise AssertionError(f"kwargs must be a dict, got {type(kwargs).__name__}")
        free = self._graph_namespace.create_name(name if name is not None else base_name(target), None)
        node = Node(self, free, op, target, args, kwargs, type_expr)
        self._graph_namespace.associate_name_with_obj(free, node)
        self._insert(node)
        self._len += 1
        return node

    def placeholder(self, name: str, type_expr: Any = None, default_value: Any = ...) -> Node:
        """An argument of the program, of this name; `default_value` is what it is if it is not given."""
        args = () if default_value is ... else (default_value,)
        return self.create_node("placeholder", name, args, type_expr=type_expr)

    def get_attr(self, qualified_name: str, type_expr: Any = None) -> Node:
        """What the root module holds under a dotted name. A warning if it holds nothing there."""
        owner = self.owning_module
        if owner is not None and not _reaches(owner, qualified_name):
            warn(
                f"Attempted to insert a get_attr Node with no underlying reference in the owning "
                f"GraphModule! Call GraphModule.add_submodule, register_parameter or register_buffer for "
                f"'{qualified_name}' first"
            )
        return self.create_node("get_attr", qualified_name, (), {}, type_expr=type_expr)

    def call_module(
        self,
        module_name: str,
        args: tuple[Argument, ...] | None = None,
        kwargs: dict[str, Argument] | None = None,
        type_expr: Any = None,
    ) -> Node:
        """A call of the submodule of a dotted name. A warning if the root has none."""
        owner = self.owning_module
        if owner is not None and not _reaches(owner, module_name):
            warn(
                f"Attempted to insert a call_module Node with no underlying reference in the owning "
                f"GraphModule! Call GraphModule.add_submodule for '{module_name}' first"
            )
        return self.create_node("call_module", module_name, args, kwargs, type_expr=type_expr)

    def call_method(
        self,
        method_name: str,
        args: tuple[Argument, ...] | None = None,
        kwargs: dict[str, Argument] | None = None,
        type_expr: Any = None,
    ) -> Node:
        """A call of a method of args[0]."""
        return self.create_node("call_method", method_name, args, kwargs, type_expr=type_expr)

    def call_function(
        self,
        the_function: Callable[..., Any],
        args: tuple[Argument, ...] | None = None,
        kwargs: dict[str, Argument] | None = None,
        type_expr: Any = None,
        name: str | None = None,
    ) -> Node:
        """A call of a function."""
        return self.create_node("call_function", the_function, args, kwargs, name=name, type_expr=type_expr)

    def output(self, result: Argument, type_expr: Any = None) -> Node:
        """What the program returns."""
        return self.create_node("output", "output", (result,), type_expr=type_expr)

    def node_copy(self, node: Node, arg_transform: Callable[[Node], Argument] = lambda x: x) -> Node:
        """A copy of a node, of another graph too, whose arguments are what `arg_transform` gives for them."""
        args, kwargs = map_arg(node.args, arg_transform), map_arg(node.kwargs, arg_transform)
        made = self.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        made.meta, made._called = copy.copy(node.meta), node._called
        return made

    def graph_copy(self, g: Graph, val_map: dict[Node, Node], return_output_node: bool = False) -> Any:
        """Copies all nodes of another graph but its output, and gives what that returns in terms of the
        copies, which `val_map` holds; nodes that are in it already are not copied.
        """
        for node in g.nodes:
            if node in val_map:
                continue
            if node.op == "output":
                result = map_arg(node.args[0], lambda n: val_map[n])
                return (result, node) if return_output_node else result
            val_map[node] = self.node_copy(node, lambda n: val_map[n])
        return None

    # -- places and changes --------------------------------------------------------------------------------

    def inserting_before(self, n: Node | None = None) -> Any:
        """`with` it, nodes are inserted before this one; without one, at the beginning."""
        if n is None:
            return self.inserting_after(self._root)
        if n.graph is not self:
            raise AssertionError("Node to insert before is not in graph.")
        return self._inserting(n.prepend)

    def inserting_after(self, n: Node | None = None) -> Any:
        """`with` it, nodes are inserted behind this one, each behind the one before; without one, at the
        end.
        """
        if n is None:
            return self.inserting_before(self._root)
        if n.graph is not self:
            raise AssertionError("Node to insert after is not in graph.")
        place = n

        def behind(new: Node) -> None:
            nonlocal place
            place.append(new)
            place = new

        return self._inserting(behind)

    @contextmanager
    def _placed(self, insert: Callable[[Node], None], before: Callable[[Node], None]) -> Iterator[None]:
        try:
            yield
        finally:
            self._insert = before

    def _inserting(self, insert: Callable[[Node], None]) -> Any:
        before, self._insert = self._insert, insert
        return self._placed(insert, before)

    def erase_node(self, to_erase: Node) -> None:
        """Takes a node out. RuntimeError if others use it."""
        if to_erase.users:
            raise RuntimeError(
                f"Tried to erase Node {to_erase} but it still had {len(to_erase.users)} users in the graph: "
                f"{to_erase.users}!"
            )
        if to_erase.graph is not self:
            raise RuntimeError(f"Attempting to remove {to_erase} from wrong graph!")
        if to_erase._erased:
            warn(f"erase_node({to_erase}) on an already erased node")
            return
        to_erase._remove_from_list()
        to_erase._erased = True
        self._len -= 1
        to_erase._set(map_arg(to_erase.args, lambda n: None), map_arg(to_erase.kwargs, lambda n: None))

    def eliminate_dead_code(self, is_impure_node: Callable[[Node], bool] | None = None) -> bool:
        """Erases nodes that nothing uses, but those with effects (`Node.is_impure`); whether any."""
        self.lint()
        count = self._len
        for node in reversed(self.nodes):
            impure = node.is_impure() if is_impure_node is None else is_impure_node(node)
            if not impure and not node.users:
                self.erase_node(node)
        return self._len < count

    # -- text ----------------------------------------------------------------------------------------------

    def python_code(self, root_module: str, *, verbose: bool = False, **more: Any) -> PythonCode:
        """The graph as source of a function `forward`, and the names that it uses; `root_module` is what the
        source calls the module ("self").
        """
        namespace = _Namespace()
        for node in self.nodes:
            namespace.create_name(node.name)
        return self._codegen._gen_python_code(self.nodes, root_module, namespace)

    def set_codegen(self, codegen: CodeGen) -> None:
        """Another way of writing source."""
        self._codegen = codegen

    def on_generate_code(self, make_transformer: Callable[[Any], Callable[[list[str]], list[str]]]) -> Any:
        """Registers what changes the lines of the source: `make_transformer(before)` gives a function of the
        list of lines. In a `with` it is taken away at the end.
        """
        before = self._codegen._body_transformer
        self._codegen._body_transformer = make_transformer(before)

        @contextmanager
        def registered() -> Iterator[None]:
            try:
                yield
            finally:
                self._codegen._body_transformer = before

        return registered()

    def process_inputs(self, *args: Any) -> Any:
        """The arguments of a call as the placeholders' values."""
        return self._codegen.process_inputs(*args)

    def process_outputs(self, out: Any) -> Any:
        """The output node's value as what a call gives."""
        return self._codegen.process_outputs(out)

    def print_tabular(self) -> None:
        """Prints the nodes as a table, by the package tabulate where that is installed."""
        head = ["opcode", "name", "target", "args", "kwargs"]
        rows = [[n.op, n.name, n.target, n.args, n.kwargs] for n in self.nodes]
        try:
            from tabulate import tabulate  # type: ignore[import-untyped,unused-ignore]
        except ImportError:
            cells = [head, *([str(cell) for cell in row] for row in rows)]
            widths = [max(len(row[k]) for row in cells) for k in range(len(head))]
            lines = [
                "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells
            ]
            lines.insert(1, "  ".join("-" * width for width in widths))
            print("\n".join(lines))
        else:
            print(tabulate(rows, headers=head))

    def lint(self) -> None:
        """Raises if nodes are out of order, belong elsewhere, share a name, or ask the module for what it has
        not.
        """
        seen: set[Node] = set()
        taken: set[str] = set()
        for node in self.nodes:
            if node.graph is not self:
                raise RuntimeError(f"Node '{node}' does not belong to this Graph!")
            for used in node.all_input_nodes:
                if used.graph is not self:
                    raise RuntimeError(
                        f"Argument '{used}' of Node '{node}' does not belong to this Graph, but was used as "
                        "an argument! If you are copying nodes from another graph, make sure to use "
                        "``arg_transform`` on node_copy() to remap values"
                    )
                if used not in seen:
                    raise RuntimeError(
                        f"Argument '{used}' of Node '{node}' was used before it has been defined! Please "
                        f"check that Nodes in the graph are topologically ordered\n{self}"
                    )
            if node.name in taken:
                raise RuntimeError(f"Node redefined name {node.name}!")
            seen.add(node)
            taken.add(node.name)
            if self.owning_module is not None and node.op in ("get_attr", "call_module"):
                self._check_target(node)

    def _check_target(self, node: Node) -> None:
        found: Any = self.owning_module
        parts = str(node.target).split(".")
        for k, part in enumerate(parts):
            if not hasattr(found, part):
                held = f" in {type(found).__name__}" if k else ""
                raise RuntimeError(
                    f"Node {node} target {node.target} references nonexistent attribute {part}{held} of "
                    f"{'.'.join(parts[:k])}"
                )
            found = getattr(found, part)
        if node.op == "call_module" and not callable(found):
            raise RuntimeError(f"Node {node} target {node.target} does not reference an nn.Module")

    def __str__(self) -> str:
        placeholders: list[str] = []
        lines = [node.format_node(placeholders) for node in self.nodes]
        text = "".join(f"\n    {line}" for line in lines)
        return f"graph():{text}"

    # -- copies --------------------------------------------------------------------------------------------

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        made = Graph(tracer_cls=self._tracer_cls)
        memo[id(self)] = made
        copies: dict[Node, Node] = {}
        found = made.graph_copy(self, copies, return_output_node=True)
        made._codegen = copy.deepcopy(self._codegen, memo)
        if found is not None:
            result, old = found
            made.output(result, old.type).meta = copy.copy(old.meta)
        return made

    def __reduce__(self) -> Any:
        numbers = {node: k for k, node in enumerate(self.nodes)}
        rows = []
        for n in self.nodes:
            held = {key: value for key, value in n.meta.items() if key in _KEPT}
            args, kwargs = (map_arg(a, lambda used: _Place(numbers[used])) for a in (n.args, n.kwargs))
            rows.append((n.op, n.target, args, kwargs, n.name, n.type, held, n._called))
        return _rebuilt, (rows, self._tracer_cls, self._codegen)


# of what is known of a node, what is saved with it
_KEPT = ("nn_module_stack", "stack_trace", "is_wrapped", "source_fn_stack")


class _Place:
    """In a saved graph, in the place of a node: which one."""

    def __init__(self, number: int) -> None:
        self.number = number


def _rebuilt(rows: list[Any], tracer_cls: Any, codegen: CodeGen) -> Graph:
    graph = Graph(tracer_cls=tracer_cls)
    nodes: list[Node] = []

    def at(item: Any) -> Any:
        return nodes[item.number] if isinstance(item, _Place) else item

    for op, target, args, kwargs, name, kind, meta, called in rows:
        made = graph.create_node(op, target, map_aggregate(args, at), map_aggregate(kwargs, at), name, kind)
        made.meta.update(meta)
        made._called = called
        nodes.append(made)
    graph._codegen = codegen
    return graph


def base_name(target: Target) -> str:
    """What a node is called for its target."""
    if not isinstance(target, str) and not callable(target):
        raise AssertionError(f"Expected target to be str, got {type(target)}")
    text = target if isinstance(target, str) else names.stem(target)
    if text.startswith("__") and text.endswith("__") and len(text) > 4:
        text = text[2:-2]
    return names.snake_case(
        text.replace(".", "_").lstrip("*") if not text.startswith("*") else "_" + text.lstrip("*")
    )


def _reaches(module: Any, path: str) -> bool:
    for part in path.split("."):
        if not hasattr(module, part):
            return False
        module = getattr(module, part)
    return True


_hint_missing(__name__)


leave_out(
    Graph,
    "create_size_node create_storage_offset_node create_stride_node materialize_symint materialize_symints",
    "sizes are numbers of the program; call_method('size', (x, dim)) asks for one",
)
