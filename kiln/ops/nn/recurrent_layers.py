"""Recurrent layers as nodes: all steps of one layer in one direction.

What has gone through the input's weights was computed for all steps at once. The kernel
(`kiln.codegen.recurrence`) computes what the bodies say, step by step, to the bit: a product, then the cell.
Rows of the batch never meet. Backward, and sequences of several lengths, take the steps one by one
(`kiln.nn.recurrent_steps`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from kiln.graph.graph import Graph, Shape, Value
from kiln.graph.size import quotient
from kiln.ops.elementwise.elementary import relu, tanh
from kiln.ops.indexing.concatenation import concat
from kiln.ops.nn.recurrent_cells import gru_state, lstm_states
from kiln.ops.products.matrix_products import product
from kiln.ops.views.core_views import permute, reshape, slice_
from kiln.table import drawn as d
from kiln.table.arguments import number
from kiln.table.kinds import require_one_dtype
from kiln.table.record import Op, Sample, Structure, Tensor, composite, find, layer

COLUMNS = 32  # of a state, whose weights lie side by side: as many as the widest tile has
Parts = list[Any]  # one of each gate, arrays or scalars


class Cell(NamedTuple):
    """What a step computes of the input's and the hidden state's parts of the gates, the states and the bias:
    the states after it, and what backward reads. The bias is the input's, or a GRU's recurrent one.
    """

    gates: int
    states: int
    keeps: bool
    step: Callable[[Parts, Parts, Parts, Any], tuple[tuple[Any, ...], Parts]]


def _sums(x: Parts, y: Tensor) -> Parts:
    return x if y is None else [a + b for a, b in zip(x, y)]


def _lstm(x: Parts, sums: Parts, states: Parts, bias: Tensor) -> tuple[tuple[Any, ...], Parts]:
    gates = _sums(_sums(x, bias), sums)
    i, f, g, o = gates
    return lstm_states(i, f, g, o, states[1]), gates


def _gru(x: Parts, sums: Parts, states: Parts, bias: Tensor) -> tuple[tuple[Any, ...], Parts]:
    recurrent = _sums(sums, bias)
    return (gru_state(x, recurrent, states[0]),), recurrent


def _rnn(bent: Any) -> Any:
    return lambda x, sums, states, bias: ((bent(_sums(_sums(x, bias), sums)[0]),), [])


CELLS = {
    "LSTM": Cell(4, 2, True, _lstm),
    "GRU": Cell(3, 1, True, _gru),
    "RNN_TANH": Cell(1, 1, False, _rnn(tanh)),
    "RNN_RELU": Cell(1, 1, False, _rnn(relu)),
}


def _split(x: Tensor, size: Any, count: int) -> Parts:
    """The gates of the last dim."""
    return [slice_(x, x.ndim - 1, (size * k, size, 1)) for k in range(count)]


def _packed(weight: Tensor, count: int) -> Any:
    """(gates * H, H) -> [group][gate][k][COLUMNS], one array; columns past the last are zero."""
    size = weight.shape[1]
    gates, groups = reshape(weight, (count, size, size)), quotient(size, COLUMNS)
    left = size - groups * COLUMNS
    whole = reshape(slice_(gates, 1, (0, groups * COLUMNS, 1)), (count, groups, COLUMNS, size))
    rest = reshape(slice_(gates, 1, (groups * COLUMNS, left, 1)), (1, count, left, size))
    sizes = (1, count, size, COLUMNS - left)
    zeros = weight.graph.add(find("full"), (number(weight, 0),), (sizes, weight.dtype))
    return concat([permute(whole, (1, 0, 3, 2)), concat([permute(rest, (0, 1, 3, 2)), zeros], 3)], 0)


def _unpacked(weight: Tensor, size: Any) -> Tensor:
    """The transposed weight (H, gates * H) of a packed one."""
    groups, count, _, columns = weight.shape
    rows = reshape(permute(weight, (2, 1, 0, 3)), (size, count, groups * columns))
    return reshape(slice_(rows, 2, (0, size, 1)), (size, count * size))


def _shapes(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """Of what the rule names, of the last step or, of hidden states or if `whole`, of all."""
    (steps, rows, width), size = inputs[0].shape, inputs[2].shape[1]
    mode, _, whole = attrs
    graph.require_equal(width, size * CELLS[mode].gates, op.name)
    graph.require_equal(rows, inputs[2].shape[0], op.name)
    last = size if op.rule != "kept" else width
    dtype = require_one_dtype(op, *inputs)
    if dtype not in op.dtypes.split():  # a packed weight of another one is not as long as the kernel reads it
        raise TypeError(f"{op.name}: expected arrays of float32 or float64, got {dtype}")
    return dtype, (steps if whole or op.rule == "hidden" else 1, rows, last)


def _written(rule: str, given: list[Any], mode: str, reverse: bool, whole: bool) -> Any:
    """Steps of a product and the cell, for sizes that are numbers."""
    cell = CELLS[mode]
    x, weight, *states = given
    bias = states.pop() if len(states) > cell.states else None
    (steps, rows, width), size = x.shape, states[0].shape[1]
    weight, found = _unpacked(weight, size), []
    for t in reversed(range(steps)) if reverse else range(steps):
        now = reshape(slice_(x, 0, (t, 1, 1)), (rows, width))
        sums = _split(product(states[0], weight), size, cell.gates)
        biases = None if bias is None else _split(bias, size, cell.gates)
        after, kept = cell.step(_split(now, size, cell.gates), sums, states, biases)
        states = list(after)
        of_step = concat(kept, 1) if rule == "kept" else states[rule == "cell"]
        found.append(reshape(of_step, (1, *of_step.shape)))
    if rule != "hidden" and not whole:
        return found[-1]
    return concat(found[::-1] if reverse else found, 0)


# What the table's tests compare with


def _sigmoid(np: ModuleType, x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _reference_step(
    np: ModuleType, mode: str, x: Any, sums: Any, states: list[Any], bias: Any
) -> tuple[list[Any], Any]:
    """The states after a step, and what is kept."""
    if mode == "GRU":
        sums = sums + bias
        (xr, xz, xn), (hr, hz, hn) = np.split(x, 3, 1), np.split(sums, 3, 1)
        z, n = _sigmoid(np, xz + hz), np.tanh(xn + _sigmoid(np, xr + hr) * hn)
        return [(states[0] - n) * z + n], sums
    gates = x + bias + sums
    if mode != "LSTM":
        return [np.tanh(gates) if mode == "RNN_TANH" else np.maximum(gates, 0)], gates
    i, f, g, o = np.split(gates, 4, 1)
    c = _sigmoid(np, f) * states[1] + _sigmoid(np, i) * np.tanh(g)
    return [_sigmoid(np, o) * np.tanh(c), c], gates


def _reference_run(
    np: ModuleType, x: Any, weight: Any, hidden: Any, cell: Any, bias: Any, *how: Any
) -> dict[str, Any]:
    """What each primitive gives."""
    mode, reverse, whole = how
    states = [hidden] if cell is None else [hidden, cell]
    bias = 0 if bias is None else bias
    found: list[tuple[Any, ...]] = []
    for now in x[::-1] if reverse else x:
        states, kept = _reference_step(np, mode, now, states[0] @ weight.T, states, bias)
        found.append((states[0], states[-1], kept))
    last = slice(None) if whole else slice(-1, None)
    hidden, cell, kept = (np.stack(y)[where] for y, where in zip(zip(*found), (slice(None), last, last)))
    if reverse:
        hidden, cell, kept = hidden[::-1], cell[::-1], kept[::-1]
    return {"hidden": hidden, "cell": cell, "kept": kept}


def _reference(rule: str) -> Any:
    """The same of a packed weight."""

    def compute(np: ModuleType, x: Any, weight: Any, hidden: Any, *rest: Any) -> Any:
        size = hidden.shape[1]
        rows = weight.transpose(1, 0, 3, 2).reshape(weight.shape[1], -1, size)[:, :size]
        return _reference_run(np, x, rows.reshape(-1, size), hidden, *rest)[rule].astype(x.dtype)

    return d.reference(compute)


def _reference_layer(np: ModuleType, *args: Any) -> Any:
    found, mode, whole = _reference_run(np, *args), args[5], args[7]
    given = {"hidden": True, "cell": mode == "LSTM", "kept": whole and mode in ("LSTM", "GRU")}
    return tuple(found[rule] for rule in found if given[rule])


def _samples(packed: bool, *modes: str) -> Any:
    """Three steps of a layer with each mode, every other one with a bias, forth or back."""

    def samples(rng: Any, t: str) -> list[Sample]:
        found = []
        for k, mode in enumerate(modes):
            gates, size = CELLS[mode].gates, 3
            shape = (1, gates, size, COLUMNS) if packed else (gates * size, size)
            shapes = ((3, 2, gates * size), shape, (2, size), (2, size), (gates * size,))
            x, w, h, c, b = (d.array(rng, s, t, -1, 1) for s in shapes)
            cell, bias = c if mode == "LSTM" else None, b if k % 2 else None
            found.append(Sample((x, w, h, cell, bias, mode, k % 2 == 0, k % 3 == 0)))
        return found

    return samples


def _op(rule: str, *modes: str) -> Op:
    """The op that gives what `rule` names: input [t, b, gates * h], weight [groups, gates, h, COLUMNS]."""

    def body(
        input: Tensor,
        weight: Tensor,
        hidden: Tensor,
        cell: Tensor | None,
        bias: Tensor | None,
        mode: Structure,
        reverse: Structure,
        whole: Structure,
    ) -> Any:
        given = [x for x in (input, weight, hidden, cell, bias) if x is not None]
        return _written(rule, given, mode, reverse, whole)

    body.__name__ = f"recurrent_{rule}"
    body.__doc__ = f"The {rule} states of a layer, as `recurrent_layer` gives them, by a packed weight."
    return layer(
        "recurrence",
        _shapes,
        rule=rule,
        public=False,
        differentiable=False,
        dtypes="float32 float64",
        samples=_samples(True, *modes),
        reference=_reference(rule),
    )(body)


recurrent_hidden = _op("hidden", *CELLS)
recurrent_cell = _op("cell", "LSTM", "LSTM")
recurrent_kept = _op("kept", "LSTM", "GRU")


@composite(
    public=False,
    differentiable=False,
    dtypes="float32 float64",
    samples=_samples(False, *CELLS),
    reference=d.reference(_reference_layer),
)
def recurrent_layer(
    input: Tensor,
    weight: Tensor,
    hidden: Tensor,
    cell: Tensor | None,
    bias: Tensor | None,
    mode: Structure,
    reverse: Structure,
    whole: Structure,
) -> Any:
    """The hidden states after each step (T, B, H); of an LSTM the cells; and if `whole`, what backward reads.
    `input` (T, B, gates * H), `weight` (gates * H, H), `hidden` and `cell` (B, H), `bias` (gates * H). The
    cells are those of all steps if `whole`, else the last.
    """
    how = CELLS[mode]
    operands = (input, _packed(weight, how.gates), hidden, cell, bias, mode, reverse, whole)
    found = [recurrent_hidden(*operands)]
    if how.states > 1:
        found.append(recurrent_cell(*operands))
    if whole and how.keeps:
        found.append(recurrent_kept(*operands))
    return tuple(found)
