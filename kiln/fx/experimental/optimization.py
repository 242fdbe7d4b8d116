"""Modules made faster for inference: a convolution and the normalization behind it as one, no dropout."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable
from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.fx._symbolic_trace import Tracer, symbolic_trace
from kiln.fx.graph import Graph
from kiln.fx.graph_module import GraphModule
from kiln.fx.interpreter import Transformer
from kiln.fx.node import Node
from kiln.nn import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    Conv1d,
    Conv2d,
    Conv3d,
    Dropout,
    Module,
)
from kiln.nn.utils import fuse_conv_bn_eval

__all__ = [
    "extract_subgraph", "fuse", "matches_module_pattern", "optimize_for_inference", "remove_dropout",
    "replace_node_module",
]  # fmt: skip

_FUSED = ((Conv1d, BatchNorm1d), (Conv2d, BatchNorm2d), (Conv3d, BatchNorm3d))


def matches_module_pattern(pattern: Iterable[type], node: Node, modules: dict[str, Any]) -> bool:
    """Whether a node is the call of a module of the second class, on the result of one of the first."""
    if not node.args:
        return False
    for kind, one in zip(pattern, (node.args[0], node)):
        if not isinstance(one, Node) or one.op != "call_module" or one.target not in modules:
            return False
        if type(modules[str(one.target)]) is not kind:
            return False
    return True


def replace_node_module(node: Node, modules: dict[str, Any], new_module: Module) -> None:
    """Puts another module where a node's stands, and into `modules`, a dict of modules by dotted name."""
    if not isinstance(node.target, str):
        raise AssertionError(f"Expected str target, got {type(node.target)}")
    parent, _, name = node.target.rpartition(".")
    modules[node.target] = new_module
    setattr(modules[parent], name, new_module)


def fuse(model: Module, inplace: bool = False, no_trace: bool = False) -> GraphModule:
    """A traced module in which each batch norm in evaluation mode is part of the convolution before it, if
    nothing else uses that or its weights. The model is copied, but `inplace`; `no_trace`: it is a traced one.

    >>> import kiln
    >>> from kiln.fx.experimental.optimization import fuse
    >>> model = kiln.nn.Sequential(kiln.nn.Conv2d(1, 2, 3), kiln.nn.BatchNorm2d(2)).eval()
    >>> [name for name, _ in fuse(model).named_children()]
    ['0']
    """
    if not inplace:
        model = copy.deepcopy(model)
    traced = model if no_trace and isinstance(model, GraphModule) else symbolic_trace(model)
    modules: dict[str, Any] = dict(traced.named_modules())
    graph = copy.deepcopy(traced.graph)
    uses = Counter(_used(node) for node in graph.nodes if node.op in ("call_module", "get_attr"))
    for pattern in _FUSED:
        for node in list(graph.nodes):
            if not matches_module_pattern(pattern, node, modules):
                continue
            (before, *_), norm = node.args, modules[str(node.target)]
            assert isinstance(before, Node)
            if len(before.users) > 1 or uses[str(before.target)] > 1 or not norm.track_running_stats:
                continue
            replace_node_module(before, modules, fuse_conv_bn_eval(modules[str(before.target)], norm))
            node.replace_all_uses_with(before)
            graph.erase_node(node)
    return GraphModule(traced, graph)


def _used(node: Node) -> str:
    """The module that a node calls, or of which it reads something."""
    return str(node.target).rpartition(".")[0] if node.op == "get_attr" else str(node.target)


class _WithoutDropout(Transformer):
    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(self.submodules[target], Dropout):
            return args[0] if args else kwargs["input"]
        return super().call_module(target, args, kwargs)


def remove_dropout(model: Module) -> GraphModule:
    """The module traced, without its `Dropout` layers."""
    return _WithoutDropout(symbolic_trace(model)).transform()


def extract_subgraph(
    orig_module: Module, nodes: list[Node], inputs: list[Node], outputs: list[Node]
) -> GraphModule:
    """Some nodes of a traced module as one of their own: it takes `inputs` and returns a list."""
    graph, made = Graph(), dict[Node, Node]()
    for node in inputs:
        made[node] = graph.placeholder(node.name)
    for node in nodes:
        made[node] = graph.node_copy(node, lambda n: made[n])
    graph.output([made[node] for node in outputs])
    graph.lint()
    return GraphModule(orig_module, graph)


def optimize_for_inference(
    model: Module, pass_config: dict[str, Any] | None = None, tracer: type[Tracer] = Tracer
) -> GraphModule:
    """The module traced for inference: `fuse` and `remove_dropout`, where `pass_config` does not turn them
    off (`{"conv_bn_fuse": False, "remove_dropout": False}`). Layouts are chosen when kernels are made, so
    there is nothing to choose for `"mkldnn_layout_optimize"`.
    """
    config = {
        "conv_bn_fuse": True,
        "remove_dropout": True,
        "mkldnn_layout_optimize": {},
        **(pass_config or {}),
    }
    if config["conv_bn_fuse"]:
        model = fuse(model)
    if config["remove_dropout"]:
        model = remove_dropout(model)
    asked = config["mkldnn_layout_optimize"]
    if asked is not False and not isinstance(asked, dict):
        raise RuntimeError("mkldnn_layout_optimize config is not a dict")
    own = tracer()
    graph = own.trace(copy.deepcopy(model))
    return GraphModule(own.root, graph)


_hint_missing(__name__)
