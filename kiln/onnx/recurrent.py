"""Recurrent layers as LSTM, GRU and RNN: one operator for a layer in one direction.

    linear(x, w_ih, b_ih) -> recurrent_hidden(it, packed w_hh, states .., b_hh)   Y of LSTM(x, w_ih, w_hh ..)
                             select(recurrent_cell(the same), its last step)      Y_c

A kernel is given what has gone through the input's weights, and packed ones; the operator wants x and both
weights as they are, so this looks through what lies between. Where something else lies there the steps are
written one by one, as those of float64, which ONNX Runtime does not have.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kiln.graph.graph import Node, Value
from kiln.graph.size import Dim, Size
from kiln.onnx.builder import Builder
from kiln.onnx.forms import form
from kiln.ops.nn.recurrent_layers import CELLS

PASSED = ("detach", "reshape")
PACKED = ("concat", "permute", "reshape", "slice")
# By mode: the operator, where each of its gates is among kiln's, what else it is told.
OPERATORS: dict[str, tuple[str, list[int], dict[str, Any]]] = {
    "LSTM": ("LSTM", [0, 3, 1, 2], {}),
    "GRU": ("GRU", [1, 0, 2], {"linear_before_reset": 1}),
    "RNN_TANH": ("RNN", [0], {"activations": ["Tanh"]}),
    "RNN_RELU": ("RNN", [0], {"activations": ["Relu"]}),
}


class Layer(NamedTuple):
    """What the operator of a layer is given: (T * B, in), (G * H, in), (G * H, H), states (B, H), (G * H)."""

    mode: str
    reverse: bool
    node: Node
    x: Value
    weight: Value
    recurrent: Value
    states: list[Value]
    bias: Value | None
    own_bias: Value | None

    @property
    def values(self) -> list[Value]:
        """All that is read."""
        biases = [v for v in (self.bias, self.own_bias) if v is not None]
        return [self.x, self.weight, self.recurrent, *self.states, *biases]


def layer_of(node: Node) -> Layer | None:
    """The layer whose hidden states, or last cell, a node gives; None where it is none of an operator."""
    if node.op.name == "select":
        return _of_last_cell(node)
    return _layer(node) if node.op.name == "recurrent_hidden" else None


def _of_last_cell(node: Node) -> Layer | None:
    cells = _through(node.inputs[0], ("detach",))
    made = cells.node
    if made is None or made.op.name != "recurrent_cell" or node.attrs[0] != 0:
        return None
    last = 0 if made.attrs[1] else made.out.shape[0] - 1
    return _layer(made) if node.attrs[1] == (last,) else None


def _layer(node: Node) -> Layer | None:
    mode, reverse, _ = node.attrs
    given, recurrent, *rest = node.inputs
    count = CELLS[mode].states
    states, own_bias = rest[:count], rest[count] if len(rest) > count else None
    linear = _through(given, PASSED).node
    if linear is None or linear.op.name != "linear" or node.out.dtype != "float32":
        return None
    x, weight, *bias = linear.inputs
    width, size = weight.shape[0], states[0].shape[1]
    while recurrent.shape != (width, size):
        if recurrent.node is None or recurrent.node.op.name not in PACKED:
            return None
        recurrent = recurrent.node.inputs[0]
    if x.ndim != 2 or given.shape[2] != width:
        return None
    return Layer(mode, reverse, node, x, weight, recurrent, states, bias[0] if bias else None, own_bias)


def _through(value: Value, names: tuple[str, ...]) -> Value:
    """What a value is a view of."""
    while value.node is not None and value.node.op.name in names:
        value = value.node.inputs[0]
    return value


def _written(b: Builder, made: Layer) -> list[str]:
    """The results of the operator: Y, and the last states."""
    key = tuple(b.of(v) for v in made.values), made.mode, made.reverse
    if key not in b.scope.layers:
        kind, gates, settings = OPERATORS[made.mode]
        steps, rows, width = made.node.inputs[0].shape
        size, order = made.recurrent.shape[1], b.constant(gates)

        def ordered(value: Value | None) -> str:
            """The gates of a weight or bias as the operator has them."""
            if value is None:
                return b.op("Expand", b.constant(0.0, "float32"), b.shape([1, width]))
            by_gate = b.reshape(b.of(value), [len(gates), size, *value.shape[1:]])
            return b.reshape(b.op("Gather", by_gate, order, axis=0), [1, *value.shape])

        biases = b.op("Concat", ordered(made.bias), ordered(made.own_bias), axis=1)
        x = _some_rows(b, b.reshape(b.of(made.x), [steps, rows, made.x.shape[1]]), rows)
        states = [_some_rows(b, b.reshape(b.of(v), [1, rows, size]), rows) for v in made.states]
        way = "reverse" if made.reverse else "forward"
        found = b.several(
            kind, 1 + len(states), x, ordered(made.weight), ordered(made.recurrent), biases, "", *states,
            hidden_size=size, direction=way, **settings,
        )  # fmt: skip
        if isinstance(rows, Size):
            found = [b.part(y, 1 if k else 2, 0, rows) for k, y in enumerate(found)]
        b.scope.layers[key] = found
    return b.scope.layers[key]


def _some_rows(b: Builder, x: str, rows: Dim) -> str:
    """(., rows, .) with a row of zeros where there is none: ONNX Runtime (1.32) ends the process there."""
    if not isinstance(rows, Size):
        return x
    lacks = b.op("Sub", b.constant([1]), b.op("Min", b.size(rows), b.constant([1])))
    return b.op("Pad", x, b.op("Concat", b.constant([0] * 4), lacks, b.constant([0]), axis=0))


@form("recurrent_hidden")
def _hidden(b: Builder, y: Value, *given: Any) -> str | None:
    made = layer_of(y.node) if y.node is not None else None
    return None if made is None else b.reshape(_written(b, made)[0], y.shape)


def last_cell(b: Builder, y: Value) -> str | None:
    """The last cell of an LSTM, which a select of all of them gives."""
    made = layer_of(y.node) if y.node is not None else None
    return None if made is None else b.reshape(_written(b, made)[2], y.shape)
