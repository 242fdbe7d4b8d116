"""Simplification: fewer nodes, the same bits.

    dead code                   what no output, update or check needs is dropped
    literals                    a pointwise node on literals only becomes a literal (float64, int64, bool)
    x * 1, x / 1, x - 0         become x, where dtype and shape stay; x + 0.0 stays: it turns -0.0 into 0.0
    convert to the same dtype   becomes x, as what only derivatives tell from it (detach, by_steps)
    overwrite(x, y)             becomes y, where dtype and shape are its own
    sums over dims of size 1    become a reshape (also products, maxima, minima)
    views of views              reshape of reshape, permute of permute, expand of expand: one view; a view
                                that changes nothing: none
    transposed products         (a b)^T becomes b^T a^T, where nothing else reads a b: the same chains of
                                multiply-adds
    converted integers          their product, in the dtype of such sums, is product_wide of what they were
    common subexpressions       equal op, inputs and attributes: one node. Numbers are never equal by value:
                                each is its own input; a random number is a function of such numbers

One sweep in order: every rule looks at the node about to be added, whose inputs are simplified already.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kiln.graph.graph import Graph, Node, Value
from kiln.graph.size import Size
from kiln.passes.fold import fold_pointwise
from kiln.passes.narrow import narrow_factors
from kiln.passes.rewrite import append, begun, reachable
from kiln.table.kinds import VIEWS
from kiln.table.record import CONSTANT, find

Key = tuple[Any, ...]


class _Rewriting:
    """The graph being made: `known` nodes by what they compute; `single`: ids of values read once."""

    def __init__(self, graph: Graph, differentiable: bool) -> None:
        self.graph = graph
        self.differentiable = differentiable
        self.known: dict[Key, Value] = {}
        self.single: set[int] = set()


def simplify(graph: Graph, differentiable: bool = False) -> Graph:
    """An equivalent graph with the same inputs, outputs and updates; `differentiable`: with the same
    derivatives too, so what only they tell from a copy is kept.
    """
    alive = reachable(graph.outputs)
    new, values = begun(graph)
    state = _Rewriting(new, differentiable)
    uses = _uses(graph, alive)
    for node in graph.nodes:
        if id(node.out) in alive:
            before = len(new.nodes)
            values[id(node.out)] = out = _add(state, node, tuple(values[id(v)] for v in node.inputs))
            if uses[id(node.out)] == 1 and len(new.nodes) > before:
                state.single.add(id(out))
            else:
                state.single.discard(id(out))
    new.finish([values[id(v)] for v in graph.outputs])
    new.updates = dict(graph.updates)
    return _without_dead(new)


def _uses(graph: Graph, alive: set[int]) -> dict[int, int]:
    """How often each value is read or repermuted."""
    uses = dict.fromkeys(alive, 0)
    for node in graph.nodes:
        for value in node.inputs if id(node.out) in alive else ():
            uses[id(value)] += 1
    for value in graph.outputs:
        uses[id(value)] += 1
    return uses


def _add(state: _Rewriting, node: Node, inputs: tuple[Value, ...]) -> Value:
    """The value of a node on simplified inputs: an old value where a rule applies, else a new node's."""
    rule = _RULES.get(node.op.kind)
    found = rule(state, node, inputs) if rule is not None else None
    return found if found is not None else _new(state, node, inputs)


def _new(state: _Rewriting, node: Node, inputs: tuple[Value, ...]) -> Value:
    """The value of an equal node if there is one, else of a new one."""
    key = (node.op.name, tuple(map(id, inputs)), tuple(map(_attr_key, node.attrs)))
    found = state.known.get(key)
    if found is None:
        state.known[key] = found = append(state.graph, node, inputs)
    return found


def _attr_key(attr: Any) -> Key:
    """Equal only for attributes that mean the same: 1, 1.0 and True differ, so do 0.0 and -0.0."""
    if isinstance(attr, tuple):
        return ("tuple", *map(_attr_key, attr))
    if isinstance(attr, float):
        return ("float", attr.hex())
    return (type(attr).__name__, id(attr) if isinstance(attr, Size) else attr)


def _literal(value: Value) -> Any:
    """The Python number a literal stands for, else None."""
    if value.node is not None and value.node.op is CONSTANT:
        number = value.node.attrs[0]
        return None if isinstance(number, Size) else number
    return None


def _is_one(value: Value) -> bool:
    number = _literal(value)
    return number is not None and number == 1


def _is_zero(value: Value) -> bool:
    """0 or 0.0, not -0.0: what may be subtracted without a trace."""
    number = _literal(value)
    return number is not None and number == 0 and math.copysign(1.0, number) > 0


def _pointwise(state: _Rewriting, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    """Literals, neutral elements, conversions that do nothing."""
    name = node.op.name
    if all(_literal(v) is not None for v in inputs) and inputs:
        return _fold(state, node, inputs)
    copies = name == "convert" or (name in ("detach", "by_steps") and not state.differentiable)
    if copies and inputs[0].dtype == node.out.dtype and not inputs[0].weak:
        return inputs[0]
    if len(inputs) != 2:
        return None
    kept: Value | None = None
    if (name in ("mul", "div") and _is_one(inputs[1])) or (name == "sub" and _is_zero(inputs[1])):
        kept = inputs[0]
    elif (name == "mul" and _is_one(inputs[0])) or name == "overwrite":
        kept = inputs[1]
    if (
        kept is None
        or kept.weak
        or kept.dtype != node.out.dtype
        or not state.graph.same_shape(kept.shape, node.out.shape)
    ):
        return None
    return kept


def _fold(state: _Rewriting, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    """A literal for a node on literals whose value the scalar ops of Python give exactly."""
    if not node.out.weak:
        return None
    value = fold_pointwise(node, [_literal(v) for v in inputs])
    if value is None or value != value:
        return None
    literal = Node(CONSTANT, (), (value,))
    literal.out = Value(state.graph, literal, node.out.dtype, ())
    literal.out.weak = True
    return _new(state, literal, ())


def _view(state: _Rewriting, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    """Two views of a kind become one, a view that changes nothing becomes its operand."""
    source, kind = inputs[0], node.op.kind
    same = state.graph.same_shape(source.shape, node.out.shape)
    if kind in ("reshape", "expand") and same:
        return source
    if kind == "permute" and node.attrs[0] == tuple(range(source.ndim)):
        return source
    if kind == "slice" and node.attrs[1][0] == 0 and node.attrs[1][2] == 1 and same:
        return source
    inner = source.node
    if inner is not None and kind == "permute" and inner.op.kind == "matmul" and id(source) in state.single:
        return _transposed(state, node, inner)
    if inner is None or inner.op.kind != kind or kind not in ("reshape", "permute", "expand"):
        return None
    joined = Node(node.op, (), node.attrs, node.line)
    if kind == "permute":
        joined.attrs = (tuple(inner.attrs[0][d] for d in node.attrs[0]),)
    joined.out = node.out
    return _add(state, joined, inner.inputs)


def _reduce(state: _Rewriting, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    """A sum, product, maximum or minimum over dims of size 1 only is a reshape."""
    over = [inputs[0].shape[d] for d in node.attrs[0]]
    if node.op.name not in _ONE_IS_ITSELF or any(d != 1 for d in over):
        return None
    view = Node(find("reshape"), (), (node.out.shape,), node.line)
    view.out = node.out
    return _add(state, view, inputs)


def _transposed(state: _Rewriting, node: Node, inner: Node) -> Value | None:
    """The product of the transposed factors in the other order, for a transposed product."""
    dims, last = node.attrs[0], len(node.attrs[0]) - 1
    swap = (*range(last - 1), last, last - 1)
    if dims != swap:
        return None
    factors = []
    for factor in reversed(inner.inputs):
        permuted = Node(node.op, (), (swap,), node.line)
        permuted.out = Value(state.graph, permuted, factor.dtype, tuple(factor.shape[d] for d in swap))
        factors.append(_add(state, permuted, (factor,)))
    joined = Node(inner.op, (), inner.attrs, inner.line)
    joined.out = node.out
    return _new(state, joined, tuple(factors))


def _product(state: _Rewriting, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    """The product of narrow integers that were converted to int32 is the same without that."""
    if node.op.name != "product" or node.out.dtype != "int32":
        return None
    factors = narrow_factors(state.graph, inputs)
    if factors is None:
        return None
    wide = Node(find("product_wide"), (), (), node.line)
    wide.out = node.out
    return _new(state, wide, factors)


_ONE_IS_ITSELF = ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")
_Rule = Callable[[_Rewriting, Node, "tuple[Value, ...]"], "Value | None"]
_RULES: dict[str, _Rule] = {
    "pointwise": _pointwise,
    "reduce": _reduce,
    "matmul": _product,
    **dict.fromkeys(VIEWS, _view),
}


def _without_dead(graph: Graph) -> Graph:
    """Drops nodes that simplification left without a reader."""
    alive = reachable(graph.outputs)
    graph.nodes = [n for n in graph.nodes if id(n.out) in alive]
    return graph
