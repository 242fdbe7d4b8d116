"""Which values of a graph share memory: what a write into one of them may change.

Values are in one group if one may be a view of another. A result is in the group of all arguments of its
call, but where the call is known to make memory of its own; arguments of the program, and what its modules
hold, are one group, for who calls may give one tensor as two.
"""

from __future__ import annotations

import operator
from typing import Any

from kiln import _core
from kiln.fx import names
from kiln.fx.graph import Graph
from kiln.fx.node import Node, has_state_that_changes, map_arg, method_of_tensors, writes

_OUTSIDE = "outside"
# kinds of ops, and composite ops, whose results may lie in the memory of what they are given
_VIEWS = frozenset("reshape permute expand slice as_strided write control".split())
_MAY_VIEW = frozenset(
    "once detach identity select split split_with_sizes unbind convert overwrite replaced sum_to "
    "diagonal unfold memory_around".split()
)
# functions of others that compute all that they give
OWN = frozenset(
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d batch_norm instance_norm "
    "group_norm rms_norm softmin glu celu hardtanh softshrink prelu cross_entropy max_pool1d max_pool2d "
    "max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
    "scaled_dot_product_attention cat stack outer gather scatter scatter_add index_add cummax cummin sort "
    "argsort topk masked_fill isclose var std max min amax amin argmax argmin flip repeat tile".split()
)
# layers of kiln.nn whose results lie in memory of their own
_LAYERS = frozenset(
    "Linear Bilinear Embedding Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d "
    "BatchNorm1d BatchNorm2d BatchNorm3d InstanceNorm1d InstanceNorm2d InstanceNorm3d LayerNorm GroupNorm "
    "RMSNorm MaxPool1d MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d AdaptiveAvgPool1d "
    "AdaptiveAvgPool2d AdaptiveAvgPool3d ReLU GELU SiLU ELU Tanh Sigmoid Softmax LogSoftmax Softplus Mish "
    "LeakyReLU Hardswish Hardsigmoid".split()
)


def written(graph: Graph) -> set[Node]:
    """The nodes whose value a write of the graph may change.

    >>> import kiln
    >>> g = kiln.fx.symbolic_trace(lambda x: (x * 2, x.exp().view(-1).add_(1))).graph
    >>> sorted(node.name for node in written(g))
    ['add_', 'exp', 'view']
    """
    group: dict[Any, Any] = {}

    def first(member: Any) -> Any:
        while group.setdefault(member, member) is not member:
            member = group[member]
        return member

    changed: list[Any] = []
    for node in graph.nodes:
        for other in _shared_by(node):
            group[first(node)] = first(other)
        if writes(node):
            changed += _written_by(node)
    groups = {first(member) for member in changed}
    return {node for node in graph.nodes if first(node) in groups}


def _shared_by(node: Node) -> list[Any]:
    """What the value of a node may share memory with."""
    if node.op in ("placeholder", "get_attr"):
        return [_OUTSIDE]
    if node.op == "output":
        return []
    if writes(node):
        return _written_by(node)
    return [] if is_own(node) else _reached_by(node)


def _written_by(node: Node) -> list[Any]:
    """What a node that writes may write into."""
    called = str(getattr(node.target, "__name__", node.target))
    if called.endswith("_") or called == "setitem" or node.target in names.IN_PLACE:
        found: list[Any] = []
        map_arg(node.args[:1], found.append)
        return found
    return _reached_by(node)


def _reached_by(node: Node) -> list[Any]:
    """All that a call may see: its arguments, and of what is not known to see these alone all outside."""
    if node.op == "call_module":
        alone = _is_layer(node) and not has_state_that_changes(node)
    else:
        alone = node.op == "call_method" or _name_of(node.target) is not None
    return [*node.all_input_nodes, *([] if alone else [_OUTSIDE])]


def _is_layer(node: Node) -> bool:
    """Whether a node calls one of kiln's layers that give memory of their own, if not asked to write."""
    module = node.graph.owning_module.get_submodule(str(node.target))
    kind = type(module)
    hooked = module._forward_hooks or module._forward_pre_hooks
    return kind.__module__.startswith("kiln.nn.") and kind.__name__ in _LAYERS and not hooked


def is_own(node: Node) -> bool:
    """Whether the value of a node is known to lie in memory that the call made."""
    if node.op == "call_module":
        return _is_layer(node)
    if node.op == "call_method":
        method = method_of_tensors(node)
        return method is not None and computes(method)
    if node.op != "call_function":
        return False
    if node.target in names.INFIX:
        return node.target not in (operator.getitem, operator.pos)
    return computes(node.target)


def computes(function: Any) -> bool:
    """Whether one of kiln's functions is known to give memory of its own."""
    if isinstance(function, _core.Op):
        record = function.record
        return record.kind not in _VIEWS and record.name not in _MAY_VIEW
    return _name_of(function) in OWN


def _name_of(function: Any) -> str | None:
    """The name of one of kiln's functions, or of Python's operators; None of another."""
    if isinstance(function, (_core.Op, _core.Function)):
        return str(getattr(function, "__name__", ""))
    name = getattr(function, "__name__", None)
    return name if function is getattr(operator, str(name), None) or function is getattr else None
