"""LSTM, GRU and RNN, as scans over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kiln import _core, ops
from kiln import graph as flow
from kiln.nn import functional as F
from kiln.onnx.reading.operators.table import Array, cast, kind, operator
from kiln.onnx.reading.refusal import LoadError, UnsupportedError

# name -> the function of x, alpha, beta, and what those are where nothing is said
ACTIVATIONS: dict[str, tuple[Callable[..., Array], float, float]] = {
    "relu": (lambda x, a, b: ops.relu(x), 0, 0),
    "tanh": (lambda x, a, b: ops.tanh(x), 0, 0),
    "sigmoid": (lambda x, a, b: ops.sigmoid(x), 0, 0),
    "softsign": (lambda x, a, b: F.softsign(x), 0, 0),
    "softplus": (lambda x, a, b: F.softplus(x), 0, 0),
    "affine": (lambda x, a, b: x * a + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a, b: F.leaky_relu(x, a), 0.01, 0),
    "thresholdedrelu": (lambda x, a, b: ops.where(x > a, x, ops.zeros_like(x)), 1.0, 0),
    "scaledtanh": (lambda x, a, b: a * ops.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: ops.clamp(x * a + b, 0, 1), 0.2, 0.5),
    "elu": (lambda x, a, b: F.elu(x, a), 1.0, 0),
}
WITH_ALPHA = ("affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu")
WITH_BETA = ("affine", "scaledtanh", "hardsigmoid")

Step = Callable[..., "tuple[Array, ...]"]


def _with_numbers(function: Callable[..., Array], a: float, b: float, x: Array) -> Array:
    return function(x, a, b)


def _activations(names: Sequence[str], alphas: Any, betas: Any) -> list[Callable[[Array], Array]]:
    """Functions by their names, with the numbers that are given for those that have any."""
    made: list[Callable[[Array], Array]] = []
    alpha, beta = list(alphas or ()), list(betas or ())
    for name in names:
        if name.lower() not in ACTIVATIONS:
            raise LoadError(f"an activation is {name!r:.20}")
        function, a, b = ACTIVATIONS[name.lower()]
        if name.lower() in WITH_ALPHA and alpha:
            a = alpha.pop(0)
        if name.lower() in WITH_BETA and beta:
            b = beta.pop(0)
        made.append(partial(_with_numbers, function, a, b))
    return made


def _along(
    step: Step, x: Array, state: tuple[Array, ...], reverse: bool, lengths: Array | None
) -> tuple[Array, tuple[Array, ...]]:
    """A layer over [time, ..]: each first state of every step, and the last states."""

    def one(carry: Any, each: Any) -> Any:
        part, k = each
        after = step(part, *carry)
        if lengths is None:
            return after, after[0]
        goes_on = (k < lengths).unsqueeze(-1)
        kept = tuple([ops.where(goes_on, a, b) for a, b in zip(after, carry)])
        return kept, ops.where(goes_on, after[0], ops.zeros_like(after[0]))

    last, stacked = flow.scan(one, state, (x, ops.arange(x.shape[0])), reverse=reverse)
    return stacked, last


def _layers(
    cell: Callable[[int], tuple[Array, Step]], x: Array, states: Sequence[Array | None], hidden: int,
    direction: str, layout: int, lengths: Array | None,
) -> tuple[Array, ...]:  # fmt: skip
    """Both directions of a layer: Y, then the last of each state. `cell(d)`: what of all steps is computed
    at once, [time, batch, ..], and the step.
    """
    ways = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}.get(direction)
    if ways is None:
        raise LoadError(f"direction is {direction!r:.20}")
    if layout:
        x, states = x.transpose(0, 1), [s if s is None else s.transpose(0, 1) for s in states]
    lengths = None if lengths is None else cast(lengths, _core.int64)
    whole, ends = [], []
    for d, reverse in enumerate(ways):
        given, step = cell(d)
        given = given.transpose(0, 1) if layout else given
        first = tuple([ops.zeros((x.shape[1], hidden), dtype=kind(x)) if s is None else s[d] for s in states])
        stacked, last = _along(step, given, first, reverse, lengths)
        whole.append(stacked)
        ends.append(last)
    y = ops.stack(whole, 1)  # [time, directions, batch, hidden]
    tails = [ops.stack(list(s), 0) for s in zip(*ends)]
    if layout:
        return (y.permute(2, 0, 1, 3), *[t.transpose(0, 1) for t in tails])
    return (y, *tails)


def _clipped(x: Array, clip: float | None) -> Array:
    return x if clip is None else ops.clamp(x, -clip, clip)


def _biases(bias: Array | None, d: int, size: Any) -> tuple[Any, Any]:
    """Those of the input and of the state."""
    return (None, None) if bias is None else (bias[d, :size], bias[d, size:])


@operator("RNN", since=7)
def _rnn(
    x: Array, weight: Array, recurrent: Array, bias: Array | None = None, lengths: Array | None = None,
    first: Array | None = None, *, activation_alpha: Any = None, activation_beta: Any = None,
    activations: Any = None, clip: float | None = None, direction: str = "forward",
    hidden_size: int | None = None, layout: int = 0,
) -> Any:  # fmt: skip
    size, many = recurrent.shape[-1], weight.shape[0]
    functions = _activations(activations or ["Tanh"] * many, activation_alpha, activation_beta)

    def cell(d: int) -> tuple[Array, Step]:
        own, other = _biases(bias, d, size)
        (f,) = functions[d : d + 1]

        def step(part: Array, h: Array) -> tuple[Array, ...]:
            return (f(_clipped(part + ops.linear(h, recurrent[d], other), clip)),)

        return ops.linear(x, weight[d], own), step

    return _layers(cell, x, [first], size, direction, layout, lengths)


@operator("GRU", since=7)
def _gru(
    x: Array, weight: Array, recurrent: Array, bias: Array | None = None, lengths: Array | None = None,
    first: Array | None = None, *, activation_alpha: Any = None, activation_beta: Any = None,
    activations: Any = None, clip: float | None = None, direction: str = "forward",
    hidden_size: int | None = None, layout: int = 0, linear_before_reset: int = 0,
) -> Any:  # fmt: skip
    size, many = recurrent.shape[-1], weight.shape[0]
    functions = _activations(activations or ["Sigmoid", "Tanh"] * many, activation_alpha, activation_beta)

    def cell(d: int) -> tuple[Array, Step]:
        own, other = _biases(bias, d, 3 * size)
        f, g = functions[2 * d : 2 * d + 2]
        gates, last = recurrent[d, : 2 * size], recurrent[d, 2 * size :]
        of_gates, of_last = (None, None) if other is None else (other[: 2 * size], other[2 * size :])

        def step(part: Array, h: Array) -> tuple[Array, ...]:
            both = f(_clipped(part[..., : 2 * size] + ops.linear(h, gates, of_gates), clip))
            z, r = both[..., :size], both[..., size:]
            if linear_before_reset:
                found = r * ops.linear(h, last, of_last)
            else:
                found = ops.linear(r * h, last, of_last)
            new = g(_clipped(part[..., 2 * size :] + found, clip))
            return ((1 - z) * new + z * h,)

        return ops.linear(x, weight[d], own), step

    return _layers(cell, x, [first], size, direction, layout, lengths)


@operator("LSTM", since=7)
def _lstm(
    x: Array, weight: Array, recurrent: Array, bias: Array | None = None, lengths: Array | None = None,
    first: Array | None = None, first_cell: Array | None = None, peepholes: Array | None = None, *,
    activation_alpha: Any = None, activation_beta: Any = None, activations: Any = None,
    clip: float | None = None, direction: str = "forward", hidden_size: int | None = None,
    input_forget: int = 0, layout: int = 0,
) -> Any:  # fmt: skip
    if input_forget:
        raise UnsupportedError("an LSTM whose input and forget gates are one is not there")
    size, many = recurrent.shape[-1], weight.shape[0]
    names = activations or ["Sigmoid", "Tanh", "Tanh"] * many
    functions = _activations(names, activation_alpha, activation_beta)

    def cell(d: int) -> tuple[Array, Step]:
        own, other = _biases(bias, d, 4 * size)
        f, g, h_of = functions[3 * d : 3 * d + 3]
        looks = None if peepholes is None else [peepholes[d, k * size : (k + 1) * size] for k in range(3)]

        def step(part: Array, h: Array, c: Array) -> tuple[Array, ...]:
            gates = part + ops.linear(h, recurrent[d], other)
            i, o, forget, new = [gates[..., k * size : (k + 1) * size] for k in range(4)]
            if looks is not None:
                i, forget = i + looks[0] * c, forget + looks[2] * c
            after = f(_clipped(forget, clip)) * c + f(_clipped(i, clip)) * g(_clipped(new, clip))
            if looks is not None:
                o = o + looks[1] * after
            return f(_clipped(o, clip)) * h_of(after), after

        return ops.linear(x, weight[d], own), step

    return _layers(cell, x, [first, first_cell], size, direction, layout, lengths)
