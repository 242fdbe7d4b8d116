"""A graph run node by node, by a method for each kind of node; and one that makes another graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.fx._symbolic_trace import Tracer
from kiln.fx.graph import Graph
from kiln.fx.graph_module import GraphModule
from kiln.fx.node import Argument, Node, Target, map_aggregate, map_arg
from kiln.fx.proxy import Proxy
from kiln.fx.traceback import set_current_meta
from kiln.table.callables import name_helpers as _name_helpers

__all__ = ["Interpreter", "Transformer"]


class Interpreter:
    """Runs a traced module node by node. Override `run_node`, or the method of a kind of node, to do more or
    something else: `placeholder get_attr call_function call_method call_module output`.

    `garbage_collect_values`: values are let go after their last use. `graph`: another program than the
    module's own over its parameters.

    >>> import kiln
    >>> class Names(kiln.fx.Interpreter):
    ...     def run_node(self, n):
    ...         print(n.name, end=" ")
    ...         return super().run_node(n)
    >>> Names(kiln.fx.symbolic_trace(lambda x: x * 2 + 1)).run(kiln.ones(1))
    x mul add output tensor([3.])
    """

    def __init__(self, module: Any, garbage_collect_values: bool = True, graph: Graph | None = None) -> None:
        self.module = module
        self.graph: Graph = module.graph if graph is None else graph
        self.submodules = dict(module.named_modules())
        self.env: dict[Node, Any] = {}
        self.name = "Interpreter"
        self.garbage_collect_values = garbage_collect_values
        self.extra_traceback = True
        self.user_to_last_uses: dict[Node, list[Node]] = {}
        self.args_iter: Iterator[Any] = iter(())
        if garbage_collect_values:
            seen: set[Node] = set()
            for user in reversed(self.graph.nodes):
                for used in user.all_input_nodes:
                    if used not in seen:
                        seen.add(used)
                        self.user_to_last_uses.setdefault(user, []).append(used)

    def run(
        self, *args: Any, initial_env: dict[Node, Any] | None = None, enable_io_processing: bool = True
    ) -> Any:
        """What the program gives for these arguments; `initial_env` holds values of nodes that do not run."""
        self.env = {} if initial_env is None else initial_env
        if enable_io_processing:
            args = tuple(self.graph.process_inputs(*args))
        self.args_iter = iter(args)
        for node in self.graph.nodes:
            if node in self.env:
                continue
            try:
                self.env[node] = self.run_node(node)
            except Exception as error:
                if self.extra_traceback:
                    _say(error, node)
                raise
            for done in self.user_to_last_uses.get(node, ()):
                self.env.pop(done, None)
            if node.op == "output":
                result = self.env[node]
                return self.graph.process_outputs(result) if enable_io_processing else result
        return None

    def boxed_run(self, args_list: list[Any]) -> Any:
        """`run` with the arguments in a list, which is emptied."""
        args = tuple(args_list)
        args_list.clear()
        return self.run(*args)

    def run_node(self, n: Node) -> Any:
        """What one node gives: by the method of its kind."""
        with set_current_meta(n):
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            return getattr(self, n.op)(n.target, args, kwargs)

    def placeholder(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """The next argument, or its default. RuntimeError if neither is there."""
        if isinstance(target, str) and target.startswith("*"):
            return list(self.args_iter) if not target.startswith("**") else next(self.args_iter, {})
        try:
            return next(self.args_iter)
        except StopIteration:
            if args:
                return args[0]
            raise RuntimeError(
                f"Expected positional argument for parameter {target}, but one was not passed in!"
            ) from None

    def get_attr(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """What the module holds under a dotted name."""
        return self.fetch_attr(str(target))

    def call_function(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """The function's call."""
        assert callable(target)
        return target(*args, **kwargs)

    def call_method(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """The call of a method of args[0]."""
        own, *rest = args
        return getattr(own, str(target))(*rest, **kwargs)

    def call_module(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """The submodule's call."""
        return self.fetch_attr(str(target))(*args, **kwargs)

    def output(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """What the program returns."""
        return args[0]

    def fetch_attr(self, target: str) -> Any:
        """What the module holds under a dotted name. RuntimeError if nothing."""
        found, parts = self.module, target.split(".")
        for k, part in enumerate(parts):
            if not hasattr(found, part):
                raise RuntimeError(
                    f"Node referenced nonexistent target {'.'.join(parts[: k + 1])}; Full target {target}"
                )
            found = getattr(found, part)
        return found

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A node's arguments with values in the place of nodes."""
        args: Any = self.map_nodes_to_values(n.args, n)
        kwargs: Any = self.map_nodes_to_values(n.kwargs, n)
        return args, dict(kwargs)

    def map_nodes_to_values(self, args: Argument, n: Node) -> Argument:
        """Values in the place of nodes. RuntimeError for a node that has not run."""

        def value(used: Node) -> Any:
            if used not in self.env:
                raise RuntimeError(
                    f"Node {n} referenced nonexistent value {used}! Run Graph.lint() to diagnose such issues"
                )
            return self.env[used]

        return _plain(map_arg(args, value))


def _plain(a: Any) -> Any:
    """Lists and dicts of a node's arguments as Python's own, which a function may change."""
    if isinstance(a, tuple):
        items = [_plain(item) for item in a]
        return type(a)(*items) if hasattr(a, "_fields") else (tuple(items) if type(a) is tuple else a)
    if type(a).__name__ == "immutable_list":
        return [_plain(item) for item in a]
    if type(a).__name__ == "immutable_dict":
        return {key: _plain(item) for key, item in a.items()}
    return a


def _say(error: Exception, node: Node) -> None:
    """Adds to an error which node ran."""
    said = f"While executing {node.format_node()}"
    if node.stack_trace:
        said += f"\nOriginal traceback:\n{node.stack_trace}"
    first = error.args[0] if error.args else ""
    if isinstance(error, KeyError) or not (first == "" or isinstance(first, str)):
        error.add_note(said)
    else:
        error.args = (f"{first}\n\n{said}" if first else said, *error.args[1:])


class _TransformerTracer(Tracer):
    """The tracer of a `Transformer`: every module's call is a node."""

    def __init__(self, graph: Graph, root: Any) -> None:
        super().__init__()
        self.graph, self.root = graph, root
        self.tensor_attrs = {}
        self.submodule_paths = None

    def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
        return True


class Transformer(Interpreter):
    """Makes another module of a traced one: each method gives what stands in the place of its node, proxies
    among it. `transform()` gives the module.

    >>> import kiln
    >>> class Swapped(kiln.fx.Transformer):
    ...     def call_function(self, target, args, kwargs):
    ...         return super().call_function(kiln.cos if target is kiln.sin else target, args, kwargs)
    >>> Swapped(kiln.fx.symbolic_trace(lambda x: kiln.sin(x))).transform()(kiln.zeros(1))
    tensor([1.])
    """

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.new_graph = Graph()
        self.new_graph.set_codegen(module.graph._codegen)
        self.tracer = _TransformerTracer(self.new_graph, module)

    def placeholder(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """A placeholder of the new graph."""
        default = args[0] if args else ...
        node = self.new_graph.placeholder(str(target), default_value=default)
        return Proxy(node, self.tracer)

    def get_attr(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """A node of the same attribute."""
        return self.tracer.create_proxy("get_attr", target, args, kwargs)

    def call_module(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """A node of the same module's call."""
        module = self.fetch_attr(str(target))
        return self.tracer.call_module(module, module.forward, args, kwargs)

    def call_function(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """A node of the function's call."""
        return self.tracer.create_proxy("call_function", target, args, kwargs)

    def transform(self) -> GraphModule:
        """The module of the new graph."""
        self.extra_traceback = False
        result = super().run(enable_io_processing=False)
        if result is not None:
            old = self.graph.output_node()
            node = map_aggregate(result, lambda a: a.node if isinstance(a, Proxy) else a)
            self.new_graph.output(node, old.type)
        return GraphModule(self.module, self.new_graph)


_name_helpers(globals(), __name__)
_hint_missing(__name__)
