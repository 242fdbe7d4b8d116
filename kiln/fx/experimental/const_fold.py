"""What a traced module computes from its parameters alone, computed once."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from kiln import _core
from kiln.absent import hint_missing as _hint_missing
from kiln.fx._symbolic_trace import symbolic_trace
from kiln.fx.graph import Graph
from kiln.fx.graph_module import GraphModule
from kiln.fx.memory import written
from kiln.fx.node import Node
from kiln.nn import Module, Parameter, ParameterList

__all__ = ["FoldedGraphModule", "get_unique_attr_name_in_module", "split_const_subgraphs"]


class FoldedGraphModule(GraphModule):
    """A module whose constant part, `const_subgraph_module`, runs once: at the first call, or when
    `run_folding` is called. What it gives is then the attribute `fx_const_folded_attrs_name`.
    """

    def __init__(
        self,
        root: Any,
        graph: Graph,
        const_subgraph: Graph | None = None,
        fx_const_folded_attrs_name: str | None = None,
        device_for_folded_attrs: str = "cpu",
    ) -> None:
        super().__init__(root, graph)
        self.const_subgraph_module = None if const_subgraph is None else GraphModule(root, const_subgraph)
        self.fx_const_folded_attrs_name = fx_const_folded_attrs_name
        self.device_for_folded_attrs = device_for_folded_attrs
        self.has_folding_been_run = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.has_folding_been_run:
            self.run_folding()
        return super().__call__(*args, **kwargs)

    def run_folding(self) -> None:
        """Runs the constant part. AssertionError if it ran before."""
        if self.const_subgraph_module is None or self.fx_const_folded_attrs_name is None:
            return
        if self.has_folding_been_run:
            raise AssertionError("Folding has already been run")
        self.has_folding_been_run = True
        found = self.const_subgraph_module()
        folded = ParameterList(map(_constant, found)) if isinstance(found, tuple) else _constant(found)
        setattr(self, self.fx_const_folded_attrs_name, folded)


def _constant(value: Any) -> Any:
    """A result as the module holds it."""
    if not isinstance(value, _core.Tensor) or isinstance(value, Parameter):
        return value
    return Parameter(value.detach(), requires_grad=value.requires_grad)


def get_unique_attr_name_in_module(mod_traced: GraphModule, name: str) -> str:
    """The name, or one like it that is free in a module."""
    free, number = name, 0
    while hasattr(mod_traced, free):
        number += 1
        free = f"{name}_{number}"
    return free


def split_const_subgraphs(
    module: Module,
    skip_folding_node_fn: Callable[[Node], bool] | None = None,
    device_for_folded_attrs: str = "cpu",
) -> FoldedGraphModule:
    """The module traced, with what it computes from parameters and buffers alone as a part that runs once.
    `skip_folding_node_fn(node)` tells which nodes stay; random numbers and what has effects stay too, and
    what a write of the module may change.

    >>> import kiln
    >>> from kiln.fx.experimental.const_fold import split_const_subgraphs
    >>> class Scaled(kiln.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.w = kiln.nn.Parameter(kiln.ones(2))
    ...     def forward(self, x):
    ...         return x * self.w.exp()
    >>> m = split_const_subgraphs(Scaled())
    >>> [(node.op, node.name) for node in m.graph.nodes if node.op.startswith("call")]
    [('call_function', 'mul')]
    """
    traced = module if isinstance(module, GraphModule) else symbolic_trace(module)
    graph = Graph()
    copied: dict[Node, Node] = {}
    output = graph.graph_copy(traced.graph, copied)
    graph.output(output)
    graph.owning_module = traced
    fixed: dict[Node, None] = {}
    changed = written(graph)
    for node in graph.nodes:
        if node in changed or node.is_impure() or not fixed.keys() >= set(node.all_input_nodes):
            continue
        if skip_folding_node_fn is None or not skip_folding_node_fn(node):
            fixed[node] = None
    if all(node.op == "get_attr" for node in fixed):
        return FoldedGraphModule(traced, graph, device_for_folded_attrs=device_for_folded_attrs)
    name = get_unique_attr_name_in_module(traced, "_FX_CONST_FOLDED_ATTRS")
    folded = _moved(graph, fixed, name)
    setattr(traced, name, None)  # until it is computed
    made = FoldedGraphModule(traced, graph, folded, name, device_for_folded_attrs)
    delattr(traced, name)
    return made


def _moved(graph: Graph, fixed: dict[Node, None], name: str) -> Graph:
    """Takes constant nodes out of a graph, which gets what others use of them from an attribute."""
    folded, copied = Graph(), dict[Node, Node]()
    for node in fixed:
        copied[node] = folded.node_copy(node, lambda n: copied[n])
    used = [n for n in fixed if n.op != "get_attr" and any(user not in fixed for user in n.users)]
    results = tuple(copied[node] for node in used)
    folded.output(results[0] if len(results) == 1 else results)
    first = next(iter(fixed))
    with graph.inserting_before(first):
        held = graph.create_node("get_attr", name)
        for k, node in enumerate(used):
            item = held if len(used) == 1 else graph.call_function(operator.getitem, (held, k))
            item.meta = node.meta.copy()
            node.replace_all_uses_with(item, lambda user: user not in fixed)
    for node in reversed(fixed):
        if not node.users:
            graph.erase_node(node)
    return folded


_hint_missing(__name__)
