"""Recurrent cells: what one step in time computes, and what gradients go back through it.

    lstm_gates    (B, 4H) before the gates i f g o, cell (B, H)   ->  hidden, cell
    gru_gates     input's and hidden's parts (B, 3H) of the gates r z n, hidden (B, H)  ->  hidden

Each is one kernel, and so is its derivative, which joins the gates' gradients. A step of a layer
(`kiln.nn.recurrent_steps`) is a product and such a kernel, and so is a step back: `lstm_step`, `lstm_back`.
What has gone through the input's weights, `input`, was computed for all steps at once. Weights are
PyTorch's.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise.elementary import relu, sigmoid, tanh
from kiln.ops.elementwise.precision import floating, narrow, wide
from kiln.ops.indexing.concatenation import concat
from kiln.ops.products.matrix_products import _differ, linear, product, swapped
from kiln.ops.views.core_views import slice_
from kiln.table import drawn as d
from kiln.table.public import public
from kiln.table.record import Sample, Structure, Tensor, composite
from kiln.table.registry import forms


def _arrays(*shapes: tuple[int, ...], count: int = 1) -> Any:
    """Samples of arrays of the shapes; small enough for low precision."""
    return lambda rng, t: [Sample(tuple(d.array(rng, s, t, -1, 1) for s in shapes)) for _ in range(count)]


def _parts(gates: Any, cell: Any, count: int) -> list[Any]:
    """What each of `count` gates is made from: (B, count * H) beside (B, H)."""
    size = cell.shape[1]
    gates.graph.require_equal(gates.shape[1], size * count, "gates")
    return [slice_(gates, 1, (size * k, size, 1)) for k in range(count)]


def _joined(parts: list[Any], dtype: str) -> Any:
    return concat([narrow(x, dtype) for x in parts], 1)


def _sum(x: Tensor, y: Tensor) -> Tensor:
    return wide(x) if y is None else wide(x) + wide(y)


def _sigmoid(np: ModuleType, x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _settled(shapes: Any, *settings: str) -> Any:
    """Samples of arrays of the shapes, one for each setting that is the last argument."""
    return lambda rng, t: [Sample((*_arrays(*shapes)(rng, t)[0].args, setting)) for setting in settings]


# LSTM


def _lstm_reference(np: ModuleType, gates: Any, cell: Any) -> Any:
    i, f, g, o = np.split(gates, 4, 1)
    c = _sigmoid(np, f) * cell + _sigmoid(np, i) * np.tanh(g)
    return _sigmoid(np, o) * np.tanh(c), c


def lstm_states(i: Any, f: Any, g: Tensor, o: Any, cell: Any) -> tuple[Any, Any]:
    """The hidden state and the cell, of arrays or scalars."""
    c = sigmoid(f) * cell + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


def _lstm(gates: Any, cell: Any) -> tuple[Any, Any]:
    i, f, g, o = _parts(gates, cell, 4)
    return lstm_states(i, f, g, o, cell)


@composite(
    samples=_arrays((3, 8), (3, 2)),
    reference=d.reference(_lstm_reference),
    public=False,
)
def lstm_gates(gates: Tensor, cell: Tensor) -> tuple[Any, Any]:
    """(B, 4H), (B, H) -> the hidden state sigmoid(o) * tanh(c) and the cell c = sigmoid(f) * cell +
    sigmoid(i) * tanh(g).
    """
    h, c = _lstm(floating(gates, "lstm"), wide(cell))
    return narrow(h, gates.dtype), narrow(c, cell.dtype)


def _lstm_back(gh: Tensor, gc: Tensor, gates: Any, cell: Any, now: Any) -> tuple[list[Any], Any]:
    """The gradients of what the four gates are made from and of the cell, from those of the hidden state
    and the new cell `now`; one of the two may be None.
    """
    i, f, g, o = _parts(gates, cell, 4)
    i, f, g, o = sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)
    t = tanh(now)
    if gh is not None:
        through = gh * o * (1 - t * t)
        gc = through if gc is None else gc + through
    out = o * 0 if gh is None else gh * t * o * (1 - o)
    return [gc * g * i * (1 - i), gc * cell * f * (1 - f), gc * i * (1 - g * g), out], gc * f


@lstm_gates.derivative
def _(gs: Any, gates: Any, cell: Any, ys: Any) -> Any:
    gh, gc = gs
    parts, before = _lstm_back(gh, gc, gates, cell, ys[1])
    return concat(parts, 1), before


def _lstm_back_reference(
    np: ModuleType, gy: Any, gh: Any, gc: Any, gates: Any, cell: Any, now: Any, weight: Any
) -> Any:
    i, f, g, o = np.split(gates, 4, 1)
    i, f, g, o, t = _sigmoid(np, i), _sigmoid(np, f), np.tanh(g), _sigmoid(np, o), np.tanh(now)
    gh = gy + gh
    gc = gc + gh * o * (1 - t * t)
    parts = [gc * g * i * (1 - i), gc * cell * f * (1 - f), gc * i * (1 - g * g), gh * t * o * (1 - o)]
    of_gates = np.concatenate(parts, 1)
    return of_gates, gc * f, of_gates @ weight


@composite(
    samples=_arrays((3, 8), (3, 2), (3, 2), (8, 2)),
    reference=d.reference(lambda np, x, h, c, w: (*_lstm_reference(np, x + h @ w.T, c), x + h @ w.T)),
    public=False,
    dtypes="float32 float64",
)
def lstm_step(input: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor) -> tuple[Any, Any, Any]:
    """A step: the hidden state and the cell (B, H), and the gates (B, 4H) they came by. `input` (B, 4H),
    `hidden` (B, P), `cell` (B, H), `weight` (4H, P).
    """
    gates = wide(input) + wide(product(hidden, swapped(weight)))
    h, c = _lstm(gates, wide(cell))
    return narrow(h, input.dtype), narrow(c, input.dtype), narrow(gates, input.dtype)


@composite(
    samples=_arrays((3, 2), (3, 2), (3, 2), (3, 8), (3, 2), (3, 2), (8, 2)),
    reference=d.reference(_lstm_back_reference),
    public=False,
    dtypes="float32 float64",
)
def lstm_back(
    of_output: Tensor,
    of_hidden: Tensor | None,
    of_cell: Tensor,
    gates: Tensor,
    cell: Tensor,
    now: Tensor,
    weight: Tensor,
) -> tuple[Any, Any, Any]:
    """A step back: the gradients of `gates` (B, 4H), of `cell` (B, H) and of the hidden state (B, P)
    before, from those of the output and the hidden state, which are added, and of the cell `now` (each
    (B, H)). `weight` (4H, P).
    """
    gh = _sum(of_output, of_hidden)
    parts, before = _lstm_back(gh, wide(of_cell), wide(gates), wide(cell), wide(now))
    of_gates = _joined(parts, gates.dtype)
    return of_gates, narrow(before, cell.dtype), product(of_gates, weight)


# GRU


def _gru_reference(np: ModuleType, input: Any, recurrent: Any, hidden: Any) -> Any:
    (xr, xz, xn), (hr, hz, hn) = np.split(input, 3, 1), np.split(recurrent, 3, 1)
    z, n = _sigmoid(np, xz + hz), np.tanh(xn + _sigmoid(np, xr + hr) * hn)
    return (hidden - n) * z + n


def _gru_gates(x: list[Any], h: list[Any]) -> tuple[Any, Any, Any]:
    """The gates r, z, n."""
    r = sigmoid(x[0] + h[0])
    return r, sigmoid(x[1] + h[1]), tanh(x[2] + r * h[2])


def gru_state(x: list[Any], h: list[Any], hidden: Any) -> Any:
    """The hidden state, of the parts of both gates, arrays or scalars."""
    _, z, n = _gru_gates(x, h)
    return (hidden - n) * z + n


def _gru(input: Tensor, recurrent: Any, hidden: Any) -> Any:
    return gru_state(_parts(input, hidden, 3), _parts(recurrent, hidden, 3), hidden)


@composite(
    samples=_arrays((3, 6), (3, 6), (3, 2)),
    reference=d.reference(_gru_reference),
    public=False,
)
def gru_gates(input: Tensor, recurrent: Tensor, hidden: Tensor) -> Any:
    """(B, 3H), (B, 3H), (B, H) -> z * hidden + (1 - z) * n, where r and z are sigmoids of the sums of
    their parts and n = tanh(input's + r * recurrent's).
    """
    return narrow(_gru(floating(input, "gru"), wide(recurrent), wide(hidden)), input.dtype)


def _gru_back(g: Tensor, input: Tensor, recurrent: Any, hidden: Any) -> tuple[list[Any], list[Any], Any]:
    """The gradients of the parts of `input` and of `recurrent`, and of `hidden`."""
    h = _parts(recurrent, hidden, 3)
    r, z, n = _gru_gates(_parts(input, hidden, 3), h)
    of_n = g * (1 - z) * (1 - n * n)
    of_r, of_z = of_n * h[2] * r * (1 - r), g * (hidden - n) * z * (1 - z)
    return [of_r, of_z, of_n], [of_r, of_z, of_n * r], g * z


@gru_gates.derivative
def _(g: Tensor, input: Tensor, recurrent: Any, hidden: Any) -> Any:
    of_input, of_recurrent, of_hidden = _gru_back(g, input, recurrent, hidden)
    return concat(of_input, 1), concat(of_recurrent, 1), of_hidden


def _with_bias(product: Any, bias: Tensor) -> Tensor:
    return wide(product) if bias is None else wide(product) + wide(bias)


def _gru_back_reference(
    np: ModuleType, gy: Any, gh: Any, input: Any, recurrent: Any, hidden: Any, weight: Any
) -> Any:
    (xr, xz, xn), (hr, hz, hn) = np.split(input, 3, 1), np.split(recurrent, 3, 1)
    r, z = _sigmoid(np, xr + hr), _sigmoid(np, xz + hz)
    n, g = np.tanh(xn + r * hn), gy + gh
    of_n = g * (1 - z) * (1 - n * n)
    both = [of_n * hn * r * (1 - r), g * (hidden - n) * z * (1 - z)]
    of_recurrent = np.concatenate([*both, of_n * r], 1)
    return np.concatenate([*both, of_n], 1), of_recurrent, g * z + of_recurrent @ weight


@composite(
    samples=lambda rng, t: [
        *_arrays((3, 6), (3, 2), (6, 2), (6,))(rng, t),
        Sample((*_arrays((3, 6), (3, 2), (6, 2))(rng, t)[0].args, None)),
    ],
    reference=d.reference(
        lambda np, x, h, w, b: (
            _gru_reference(np, x, h @ w.T + (0 if b is None else b), h),
            h @ w.T + (0 if b is None else b),
        )
    ),
    public=False,
    dtypes="float32 float64",
)
def gru_step(input: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Any, Any]:
    """A step: the hidden state (B, H), and the last one's part of the gates (B, 3H). `input` (B, 3H),
    `hidden` (B, H), `weight` (3H, H), `bias` (3H).
    """
    recurrent = wide(product(hidden, swapped(weight)))
    recurrent = recurrent if bias is None else recurrent + wide(bias)
    h = _gru(wide(input), recurrent, wide(hidden))
    return narrow(h, input.dtype), narrow(recurrent, input.dtype)


@composite(
    samples=_arrays((3, 2), (3, 2), (3, 6), (3, 6), (3, 2), (6, 2)),
    reference=d.reference(_gru_back_reference),
    public=False,
    dtypes="float32 float64",
)
def gru_back(
    of_output: Tensor, of_hidden: Tensor, input: Tensor, recurrent: Tensor, hidden: Tensor, weight: Tensor
) -> tuple[Any, Any, Any]:
    """A step back: the gradients of `input` and `recurrent` (each (B, 3H)) and of `hidden` (B, H), from
    those of the output and the new hidden state, which are added (each (B, H)). `weight` (3H, H).
    """
    g = _sum(of_output, of_hidden)
    parts, recurrent_parts, direct = _gru_back(g, wide(input), wide(recurrent), wide(hidden))
    of_recurrent = _joined(recurrent_parts, input.dtype)
    before = direct + wide(product(of_recurrent, weight))
    return _joined(parts, input.dtype), of_recurrent, narrow(before, input.dtype)


# RNN


def _bent_array(np: ModuleType, x: Any, name: str) -> Any:
    return np.tanh(x) if name == "tanh" else np.maximum(x, 0) if name else x


def _rnn_back_reference(np: ModuleType, gy: Any, gh: Any, now: Any, weight: Any, name: str) -> Any:
    g = (gy + gh) * ((1 - now * now) if name == "tanh" else (now > 0))
    return g, g @ weight


def _bent(x: Tensor, nonlinearity: str) -> Any:
    return tanh(x) if nonlinearity == "tanh" else relu(x)


@composite(
    samples=_settled(((3, 4), (3, 4), (4, 4)), "tanh", "relu"),
    reference=d.reference(lambda np, x, h, w, name: _bent_array(np, x + h @ w.T, name)),
    public=False,
    dtypes="float32 float64",
)
def rnn_step(input: Tensor, hidden: Tensor, weight: Tensor, nonlinearity: Structure) -> Any:
    """nonlinearity(input + hidden @ weight.T), "tanh" or "relu": (B, H), (B, H), (H, H)."""
    return narrow(_bent(wide(input) + wide(product(hidden, swapped(weight))), nonlinearity), input.dtype)


@composite(
    samples=_settled(((3, 4), (3, 4), (3, 4), (4, 4)), "tanh", "relu"),
    reference=d.reference(_rnn_back_reference),
    public=False,
    dtypes="float32 float64",
)
def rnn_back(
    of_output: Tensor, of_hidden: Tensor, now: Tensor, weight: Tensor, nonlinearity: Structure
) -> tuple[Any, Any]:
    """A step back: the gradients of `input` and of the hidden state before, from those of the output and
    the hidden state `now`, which are added (each (B, H)). `weight` (H, H).
    """
    g, y = _sum(of_output, of_hidden), wide(now)
    of_input = narrow(g * (1 - y * y) if nonlinearity == "tanh" else p.where(y > 0, g, 0), now.dtype)
    return of_input, product(of_input, weight)


# Cells


def _check_cell(input: Tensor, states: tuple[Any, ...], w_ih: Tensor, w_hh: Tensor) -> None:
    """PyTorch's errors for arrays whose sizes do not fit."""
    (rows, size), wanted, hidden_size = input.shape[:2], w_ih.shape[1], w_hh.shape[1]
    if _differ(size, wanted):
        raise RuntimeError(f"input has inconsistent input_size: got {size} expected {wanted}")
    for k, x in enumerate(states):
        count, size = x.shape[:2]
        if _differ(rows, count):
            raise RuntimeError(f"Input batch size {rows} doesn't match hidden{k} batch size {count}")
        if _differ(size, hidden_size):
            raise RuntimeError(f"hidden{k} has inconsistent hidden_size: got {size}, expected {hidden_size}")


@composite(
    samples=_settled(((4, 3), (4, 2), (2, 3), (2, 2), (2,), (2,)), "", "tanh"),
    reference=d.reference(
        lambda np, x, h, v, w, b, c, name: _bent_array(np, x @ v.T + b + h @ w.T + c, name)
    ),
    public=False,
    dtypes="float32 float64",
)
def cell_gates(
    input: Tensor,
    hidden: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    nonlinearity: Structure = "",
) -> Any:
    """input @ w_ih.T + b_ih + hidden @ w_hh.T + b_hh, then the nonlinearity, if one is named: (B, G)."""
    total = wide(product(input, swapped(w_ih))) + wide(product(hidden, swapped(w_hh)))
    for bias in (b_ih, b_hh):
        total = total if bias is None else total + wide(bias)
    return narrow(_bent(total, nonlinearity) if nonlinearity else total, input.dtype)


def _cell(gates: int, states: int = 1, bias: bool = True) -> Any:
    """A sample of a cell of two hidden numbers for three of input."""

    def sample(rng: Any, t: str) -> Any:
        hidden = _arrays(*[(4, 2)] * states)(rng, t)[0].args
        shapes = ((4, 3), (2 * gates, 3), (2 * gates, 2), *[(2 * gates,)] * (2 * bias))
        x, *weights = _arrays(*shapes)(rng, t)[0].args
        return (x, hidden if states > 1 else hidden[0], *weights), {}

    return sample


def _misfits(gates: int) -> Any:
    w = d.Zeros(2 * gates, 3), d.Zeros(2 * gates, 2)
    return d.failures(
        ((d.Zeros(4, 5), d.Zeros(4, 2), *w), {}, RuntimeError, "inconsistent input_size: got 5 expected 3"),
        ((d.Zeros(4, 3), d.Zeros(5, 2), *w), {}, RuntimeError, "doesn't match hidden0 batch size 5"),
        ((d.Zeros(4, 3), d.Zeros(4, 3), *w), {}, RuntimeError, "hidden0 has inconsistent hidden_size"),
    )


_RNN = {"samples": d.samples(_cell(1), _cell(1, bias=False)), "failures": _misfits(1), "dtypes": "float"}


@public("rnn_tanh_cell", method=False, **_RNN)
def rnn_tanh_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """tanh(input @ w_ih.T + b_ih + hx @ w_hh.T + b_hh): (B, in), (B, H), (H, in), (H, H), (H), (H) -> (B,
    H).

    RuntimeError for sizes that do not fit.

    >>> kiln.rnn_tanh_cell(kiln.ones(1, 1), kiln.zeros(1, 1), kiln.ones(1, 1), kiln.ones(1, 1))
    tensor([[0.7616]])
    """
    _check_cell(input, (hx,), w_ih, w_hh)
    return cell_gates.handle(input, hx, w_ih, w_hh, b_ih, b_hh, "tanh")


@public("rnn_relu_cell", method=False, **_RNN)
def rnn_relu_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """relu(input @ w_ih.T + b_ih + hx @ w_hh.T + b_hh): (B, in), (B, H), (H, in), (H, H), (H), (H) -> (B,
    H).

    RuntimeError for sizes that do not fit.

    >>> kiln.rnn_relu_cell(kiln.ones(1, 1), kiln.ones(1, 1), kiln.ones(1, 1), kiln.ones(1, 1))
    tensor([[2.]])
    """
    _check_cell(input, (hx,), w_ih, w_hh)
    return cell_gates.handle(input, hx, w_ih, w_hh, b_ih, b_hh, "relu")


forms("lstm_cell", "(input, hx: Sequence[Tensor], w_ih, w_hh, b_ih=None, b_hh=None) -> tuple[Tensor, Tensor]")


@public(
    "lstm_cell",
    method=False,
    samples=d.samples(_cell(4, 2), _cell(4, 2, bias=False)),
    dtypes="float",
    failures=d.failures(
        (
            (d.Zeros(4, 3), d.Zeros(4, 2), d.Zeros(8, 3), d.Zeros(8, 2)),
            {},
            TypeError,
            "must be tuple of Tensors",
        ),
        (
            (d.Zeros(4, 3), [d.Zeros(4, 2), d.Zeros(4, 5)], d.Zeros(8, 3), d.Zeros(8, 2)),
            {},
            RuntimeError,
            "hidden1 has inconsistent hidden_size: got 5, expected 2",
        ),
    ),
    tests=d.Tests(keeps_less="the tanh of the new cell's value"),
)
def lstm_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """The hidden state and the cell (B, H) after one step of an LSTM from `hx`, a tuple of both.

    (B, in), weights (4H, in) and (4H, H), biases (4H), in the order of gates input, forget, new, output.
    TypeError unless `hx` is a tuple, RuntimeError for sizes that do not fit.

    >>> w = kiln.zeros(4, 1)
    >>> h, c = kiln.lstm_cell(kiln.ones(1, 1), (kiln.zeros(1, 1), kiln.ones(1, 1)), w, w)
    >>> c
    tensor([[0.5000]])
    """
    if not isinstance(hx, (tuple, list)):
        kind = type(hx).__name__
        raise TypeError(f"lstm_cell(): argument 'hx' (position 2) must be tuple of Tensors, not {kind}")
    hidden, cell = hx
    _check_cell(input, (hidden, cell), w_ih, w_hh)
    return lstm_gates.handle(cell_gates.handle(input, hidden, w_ih, w_hh, b_ih, b_hh), cell)


@public(
    "gru_cell",
    method=False,
    samples=d.samples(_cell(3), _cell(3, bias=False)),
    dtypes="float",
    failures=_misfits(3),
)
def gru_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """The hidden state (B, H) after one step of a GRU from `hx` (B, H).

    (B, in), weights (3H, in) and (3H, H), biases (3H), in the order of gates reset, update, new.
    RuntimeError for sizes that do not fit.

    >>> w = kiln.zeros(3, 1)
    >>> kiln.gru_cell(kiln.ones(1, 1), kiln.ones(1, 1), w, w)
    tensor([[0.5000]])
    """
    _check_cell(input, (hx,), w_ih, w_hh)
    of_input, of_hidden = linear.handle(input, w_ih, b_ih), linear.handle(hx, w_hh, b_hh)
    if of_input.dtype != hx.dtype:  # autocast makes products narrower than the state
        of_input, of_hidden = of_input.to(hx.dtype), of_hidden.to(hx.dtype)
    return gru_gates.handle(of_input, of_hidden, hx)
