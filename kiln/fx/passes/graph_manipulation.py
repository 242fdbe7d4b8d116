"""Targets exchanged, and how many bytes nodes take."""

from __future__ import annotations

from typing import Any, NamedTuple

from kiln.absent import hint_missing as _hint_missing
from kiln.fx.graph_module import GraphModule
from kiln.fx.node import Node
from kiln.fx.passes.shape_prop import ShapeProp, TensorMetadata

__all__ = [
    "get_size_of_all_nodes", "get_size_of_node", "get_tensor_meta", "replace_target_nodes_with", "size_bytes",
]  # fmt: skip


class size_bytes(NamedTuple):
    """How many bytes a node's result has, and with those of the parameters of its module."""

    output_size: int
    total_size: int


def replace_target_nodes_with(
    fx_module: GraphModule, old_op: str, old_target: Any, new_op: str, new_target: Any
) -> None:
    """Exchanges what the nodes of a kind and target call: their arguments stay."""
    for node in list(fx_module.graph.nodes):
        if node.op == old_op and node.target == old_target:
            with fx_module.graph.inserting_before(node):
                made = fx_module.graph.create_node(
                    new_op, new_target, node.args, node.kwargs, node.name, node.type
                )
            made.meta = node.meta.copy()
            node.replace_all_uses_with(made)
            fx_module.graph.erase_node(node)
    fx_module.recompile()


def get_size_of_all_nodes(fx_module: GraphModule, args: list[Any] | None = None) -> None:
    """Sets `size_bytes` of every node but the output; with arguments, `ShapeProp` runs on them first."""
    if args is not None:
        ShapeProp(fx_module).propagate(*args)
    for node in fx_module.graph.nodes:
        if node.op != "output":
            node.size_bytes = get_size_of_node(fx_module, node)


def get_tensor_meta(node: Node) -> TensorMetadata:
    """What `ShapeProp` found of a node. RuntimeError if it did not run."""
    found = node.meta.get("tensor_meta")
    if not found:
        raise RuntimeError(
            f"Node {node} has no tensor metadata associated with it! Check that shape propagation has run."
        )
    meta: TensorMetadata = found
    return meta


def get_size_of_node(fx_module: GraphModule, node: Node) -> size_bytes:
    """The bytes of a node's result, and with those of its module's parameters."""
    total = 0
    if node.op == "call_module":
        module = fx_module.get_submodule(str(node.target))
        total = sum(p.nbytes for p in module.parameters())
    own = _bytes(get_tensor_meta(node))
    return size_bytes(own, total + own)


def _bytes(meta: Any) -> int:
    """Of what `ShapeProp` found of a result, which may be a tuple of tensors."""
    if isinstance(meta, TensorMetadata):
        return int(meta.shape.numel() * meta.dtype.itemsize)
    return sum(map(_bytes, meta)) if isinstance(meta, (tuple, list)) else 0


_hint_missing(__name__)
