"""A recurrent layer in time: steps one after another, and back.

The rows of all steps lie behind each other, as a PackedSequence has them; a batch without padding is the same
with as many rows in every step. What the input contributes is one product over all steps, done before; a step
is one product and one kernel of gates. A layer whose steps all have the same rows is one kernel
(`kiln.ops.nn.recurrent_layers`) instead, the same bits, unless it has projections. Backward is a step's
counterpart from the last to the first, then one product over all steps for each weight. Under `create_graph`
backward takes the steps again, recorded, and is itself recorded.

Where a program is traced for any number of steps or rows, they are that kernel or a loop (`scan`), and back
a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kiln import ops
from kiln._core import Tensor, float32, float64, grad_enabled
from kiln.autograd.function import Function
from kiln.late import later
from kiln.nn.dropouts import dropout
from kiln.ops.nn import recurrent_cells as r
from kiln.ops.nn import recurrent_layers
from kiln.table.arguments import is_symbolic
from kiln.table.callables import draws, hide_frames, named

innermost = later("kiln.func.batched", "innermost")  # the level of vmap that tensors are of
scan = later("kiln.func.control_flow", "scan")
State = tuple[Any, ...]  # (hidden,) or (hidden, cell)
KERNEL_DTYPES = (float32, float64)
OFTEN = 4  # steps from which on a weight is laid out for the product of a step


class Weights(NamedTuple):
    """A step's parameters: (G, P), (G), (P, H) of an LSTM with projections. The bias is a GRU's recurrent
    one, or what the input's part of other gates still lacks.
    """

    recurrent: Any
    bias: Any = None
    projection: Any = None


class _Rnn:
    """A step: the state after it and what `back` reads; a step back: the gradients of the input's part of the
    gates, of the hidden state's part, of the state before, and of what a projection gave.
    """

    keeps = False

    def __init__(self, nonlinearity: str) -> None:
        self.nonlinearity = nonlinearity

    def step(self, x: Any, state: State, w: Weights) -> tuple[State, Any]:
        return (r.rnn_step.handle(x, state[0], w.recurrent, self.nonlinearity),), None

    def back(self, gy: Any, of_state: State, x: Any, kept: Any, before: State, now: State, w: Weights) -> Any:
        of_input, of_hidden = r.rnn_back.handle(gy, of_state[0], now[0], w.recurrent, self.nonlinearity)
        return of_input, of_input, (of_hidden,), None


class _Gru:
    keeps = True

    def kept(self, recurrent: Any) -> Any:
        """What `back` reads, of what the kernel of all steps keeps."""
        return recurrent

    def step(self, x: Any, state: State, w: Weights) -> tuple[State, Any]:
        hidden, kept = r.gru_step.handle(x, state[0], w.recurrent, w.bias)
        return (hidden,), kept

    def back(self, gy: Any, of_state: State, x: Any, kept: Any, before: State, now: State, w: Weights) -> Any:
        of_input, of_recurrent, of_hidden = r.gru_back.handle(
            gy, of_state[0], x, kept, before[0], w.recurrent
        )
        return of_input, of_recurrent, (of_hidden,), None


class _Lstm:
    keeps = True

    def kept(self, gates: Any) -> Any:
        """What `back` reads, of what the kernel of all steps keeps."""
        return gates, None

    def step(self, x: Any, state: State, w: Weights) -> tuple[State, Any]:
        hidden, cell, gates = r.lstm_step.handle(x, *state, w.recurrent)
        if w.projection is None:
            return (hidden, cell), (gates, None)
        return (ops.linear(hidden, w.projection), cell), (gates, hidden)

    def back(self, gy: Any, of_state: State, x: Any, kept: Any, before: State, now: State, w: Weights) -> Any:
        of_hidden, projected = of_state[0], None
        if w.projection is not None:
            projected = gy + of_hidden
            gy, of_hidden = projected @ w.projection, None
        found = r.lstm_back.handle(gy, of_hidden, of_state[1], kept[0], before[1], now[1], w.recurrent)
        return found[0], found[0], (found[2], found[1]), projected


CELLS: dict[str, Any] = {"RNN_TANH": _Rnn("tanh"), "RNN_RELU": _Rnn("relu"), "GRU": _Gru(), "LSTM": _Lstm()}
Steps = Sequence[tuple[int, int]]  # the rows of each step, in the order the steps are taken


class Even(NamedTuple):
    """Steps of the same rows each, where the number of either varies."""

    count: Any
    rows: Any
    reverse: bool = False


def even(count: Any, rows: Any) -> Any:
    """The rows of each of `count` steps that have the same."""
    return Even(count, rows) if is_symbolic((count, rows)) else [rows] * count


class _Rows:
    """States for as many rows as a step has: the rows that others lack wait in `given`, those no more there
    are kept.

    Rows are sorted by the length of their sequences, so those of a step are the first of the batch.
    """

    def __init__(self, given: State, first: int) -> None:
        self.given = given
        self.ended: list[State] = []
        self.state = given if given[0].shape[0] == first else tuple([x[:first] for x in given])
        self.count = first

    def fit(self, rows: int, state: State) -> State:
        """The states of the first `rows` rows, given those of as many as before."""
        if rows < self.count:
            self.ended.append(tuple([x[rows:] for x in state]))
            state = tuple([x[:rows] for x in state])
        else:
            more = tuple([x[self.count : rows] for x in self.given])
            state = tuple([ops.cat(pair) for pair in zip(state, more)])
        self.count = rows
        return state

    def whole(self) -> State:
        """The last state of every row."""
        if not self.ended:
            return self.state
        return tuple([ops.cat(parts) for parts in zip(self.state, *reversed(self.ended))])


def _reverse(steps: Steps) -> bool:
    return steps[0][0] > steps[-1][0]


def _joined(parts: list[Any], reverse: bool) -> Any:
    """What the steps gave, in the order of the rows."""
    return ops.cat(parts[::-1] if reverse else parts)


def _unrolled(
    mode: str, steps: Steps, x: Any, given: State, w: Weights, keep: bool = True
) -> tuple[Any, State, list[Any]]:
    """The output of every step, the last states, and of each step (state before, what it kept, state after),
    unless nothing reads that: then a step's memory serves the next.
    """
    take, trail, outputs = CELLS[mode].step, [], []
    if mode != "GRU" and w.bias is not None:
        x = x + w.bias
    rows = _Rows(given, steps[0][1] - steps[0][0])
    state = rows.state
    for start, stop in steps:
        before = state if stop - start == rows.count else rows.fit(stop - start, state)
        state, kept = take(x[start:stop], before, w)
        outputs.append(state[0])
        if keep:
            trail.append((before, kept, state))
    rows.state = state
    return _joined(outputs, _reverse(steps)), rows.whole(), trail


def _laid(w: Weights, steps: Steps) -> Weights:
    """The weights as the product of a step reads them best, where there are enough steps: columns in a
    row.
    """
    if len(steps) < OFTEN:
        return w
    across = [None if m is None else m.t().contiguous().t() for m in (w.recurrent, w.projection)]
    return Weights(across[0], w.bias, across[1])


def _fits(steps: Steps | Even, x: Any, given: State, w: Weights) -> bool:
    """Whether one kernel takes all steps: of tensors, those of a trace too, but not of a mapped function."""
    arrays = (x, *given, *[a for a in w if a is not None])
    return (
        w.projection is None
        and all(isinstance(a, Tensor) for a in arrays)
        and (all(issubclass(type(a), Tensor) for a in arrays) or innermost(list(arrays)) is None)
        and all(a.dtype == x.dtype and a.ndim == 2 - (a is w.bias) for a in arrays)
        and x.dtype in KERNEL_DTYPES
        and (isinstance(steps, Even) or (len(steps) >= OFTEN and _alike(steps)))
    )


def _alike(steps: Steps) -> bool:
    rows = steps[0][1] - steps[0][0]
    return all(stop - start == rows for start, stop in steps)


def _kernel(
    mode: str, reverse: bool, x: Any, given: State, w: Weights, keep: bool = False
) -> tuple[State, State, Any]:
    """The last states, those after each step, and what else backward reads of each: of x (steps, rows, .).
    Without `keep`, cells are those of the last step.
    """
    cell = given[1] if len(given) > 1 else None
    operands = (x, w.recurrent, given[0], cell, w.bias, mode, reverse, keep)
    found = recurrent_layers.recurrent_layer.handle(*operands)
    y, *rest = found if isinstance(found, tuple) else (found,)
    states = (y, rest[0]) if len(given) > 1 else (y,)
    end = 0 if reverse else -1
    return tuple([s[end] for s in states]), states, rest[-1] if keep and CELLS[mode].keeps else None


def _at_once(
    mode: str, steps: Steps, x: Any, given: State, w: Weights, keep: bool = True
) -> tuple[Any, State, list[Any]]:
    """What `_unrolled` gives, by one kernel; without a trail if nobody keeps it."""
    rows, reverse = given[0].shape[0], _reverse(steps)
    parts = x.reshape(len(steps), rows, x.shape[1])
    last, states, kept = _kernel(mode, reverse, parts, given, w, keep)
    order = range(len(steps))
    trail, before = list[Any](), given
    for t in (reversed(order) if reverse else order) if keep else ():
        now = tuple([s[t] for s in states])
        trail.append((before, None if kept is None else CELLS[mode].kept(kept[t]), now))
        before = now
    return _rows(states[0]), last, trail


def _rows(parts: Any) -> Any:
    """(steps, rows, .) as rows."""
    return parts.reshape(parts.shape[0] * parts.shape[1], parts.shape[2])


class _AtOnce(Function):
    """One kernel where a size varies, loops back: forward(mode, reverse, how many states, x (steps,
    rows, .), *states, *weights) -> hidden states (steps, rows, .), *last states.
    """

    @staticmethod
    def forward(ctx: Any, mode: str, reverse: bool, count: int, x: Any, *tensors: Any) -> Any:
        ctx.of = (mode, reverse, count)
        ctx.save_for_backward(x, *tensors)
        last, states, _ = _kernel(mode, reverse, x, tensors[:count], Weights(*tensors[count:]))
        return states[0].clone(), *[s.clone() for s in last]

    @staticmethod
    def backward(ctx: Any, gy: Any, *of_last: Any) -> Any:
        mode, reverse, count = ctx.of
        x, *tensors = ctx.saved_tensors
        given, w, cell = tuple(tensors[:count]), Weights(*tensors[count:]), CELLS[mode]
        _, states, kept = _scanned(mode, reverse, x, given, w, keep=True)

        def step(of_state: Any, each: Any) -> Any:
            gy, x, before, now, kept = each
            found = cell.kept(kept[0]) if kept else None
            of_x, of_recurrent, of_state, _ = cell.back(gy, of_state, x, found, tuple(before), tuple(now), w)
            return of_state, (of_x, of_recurrent)

        before = [_earlier(s, first, reverse) for s, first in zip(states, given)]
        each = (gy, x, before, states, () if kept is None else (kept,))
        of_given, (of_x, of_recurrent) = scan(step, tuple(of_last), each, reverse=not reverse)
        wanted = Weights(*ctx.needs_input_grad[4 + count :])
        of_w = _of_weights(wanted, _rows(of_recurrent), lambda: _rows(before[0]))
        return None, None, None, of_x, *of_given, *of_w, None


def _earlier(states: Any, first: Any, reverse: bool) -> Any:
    """The state before each step, of those after."""
    first = first.unsqueeze(0)
    return ops.cat([states[1:], first] if reverse else [first, states[:-1]])


def _of_weights(wanted: Weights, of_recurrent: Any, hidden: Callable[[], Any]) -> list[Any]:
    """The gradients of the recurrent weight and the bias; `hidden`: the states before each step."""
    return [
        of_recurrent.t() @ hidden() if wanted.recurrent else None,
        of_recurrent.sum(0) if wanted.bias else None,
    ]


def _scanned(
    mode: str, reverse: bool, x: Any, given: State, w: Weights, keep: bool = False
) -> tuple[State, State, Any]:
    """What `_kernel` gives, by a loop; without `keep`, states are the hidden ones alone."""

    def step(state: Any, now: Any) -> Any:
        after, kept = CELLS[mode].step(now, tuple(state), w)
        gates = kept[0] if isinstance(kept, tuple) else kept
        return after, (after, () if gates is None else (gates,)) if keep else (after[:1], ())

    if mode != "GRU" and w.bias is not None:
        x = x + w.bias
    last, (states, kept) = scan(step, given, x, reverse=reverse)
    return tuple(last), tuple(states), kept[0] if kept else None


def _varying(mode: str, steps: Even, fits: bool, x: Any, given: State, w: Weights) -> tuple[Any, State]:
    """The output and the last states of steps of which a size varies."""
    x = x.reshape(steps.count, steps.rows, x.shape[1])
    if fits and grad_enabled():
        y, *last = _AtOnce.apply(mode, steps.reverse, len(given), x, *given, *w)
        return _rows(y), tuple(last)
    last, states, _ = (_kernel if fits else _scanned)(mode, steps.reverse, x, given, w)
    return _rows(states[0]), last


class _Unrolled(Function):
    """The steps as one node: forward(mode, steps, whether one kernel takes them, how many states, x, *states,
    *weights) -> output, *last states.
    """

    @staticmethod
    def forward(ctx: Any, mode: str, steps: Steps, fits: bool, count: int, x: Any, *tensors: Any) -> Any:
        given, w = tensors[:count], Weights(*tensors[count:])
        ctx.of = (mode, steps, count)
        ctx.save_for_backward(x, *tensors)
        # What comes out is something else than what backward reads: a program may write to it.
        if fits:
            y, last, ctx.trail = _at_once(mode, steps, x, given, w)
            return y.clone(), *[s.clone() for s in last]
        y, last, ctx.trail = _unrolled(mode, steps, x, given, _laid(w, steps))
        now = ctx.trail[-1][2]
        return y, *[s.clone() if s is kept else s for s, kept in zip(last, now)]

    @staticmethod
    def backward(ctx: Any, gy: Any, *of_last: Any) -> Any:
        mode, steps, count = ctx.of
        x, *tensors = ctx.saved_tensors
        given, w = tuple(tensors[:count]), Weights(*tensors[count:])
        trail = _unrolled(mode, steps, x, given, w)[2] if grad_enabled() else ctx.trail
        wanted = Weights(*ctx.needs_input_grad[5 + count :])
        return None, None, None, None, *_back(mode, steps, x, w, trail, gy, of_last, wanted)


def _back(
    mode: str, steps: Steps, x: Any, w: Weights, trail: list[Any], gy: Any, of_last: State, wanted: Weights
) -> list[Any]:
    """The gradients of x, of the states given and of those weights that are wanted."""
    back = CELLS[mode].back
    found: list[Any] = []  # of each step: of the input's and the hidden state's part, of what was projected
    rows = _Rows(of_last, steps[-1][1] - steps[-1][0])
    of_state = rows.state
    for (start, stop), (before, kept, now) in zip(reversed(steps), reversed(trail)):
        if stop - start != rows.count:
            of_state = rows.fit(stop - start, of_state)
        *parts, of_state, projected = back(gy[start:stop], of_state, x[start:stop], kept, before, now, w)
        found.append((*parts, projected))
    rows.state = of_state
    found.reverse()
    reverse = _reverse(steps)
    of_x = _joined([f[0] for f in found], reverse)
    of_recurrent = of_x if mode != "GRU" else _joined([f[1] for f in found], reverse)
    of_w = _of_weights(wanted, of_recurrent, lambda: _joined([before[0] for before, _, _ in trail], reverse))
    of_projection = None
    if wanted.projection:
        of_projection = _joined([f[2] for f in found], reverse).t() @ _joined(
            [kept[1] for _, kept, _ in trail], reverse
        )
    return [of_x, *rows.whole(), *of_w, of_projection]


def _direction(mode: str, steps: Any, x: Any, given: State, params: Sequence[Any]) -> tuple[Any, State]:
    """One layer in one direction: rows (N, in) -> rows (N, P), and the last states."""
    w_ih, w_hh, b_ih, b_hh, w_hr = params
    bias, own = b_ih, b_hh  # a GRU's own is scaled by a gate; else both go together
    if mode != "GRU" and b_ih is not None:
        bias, own = None, b_ih + b_hh
    w = Weights(w_hh, own, w_hr)
    fits = _fits(steps, x, given, w)
    if not fits and mode != "GRU":  # then nobody adds it sooner than the input's product
        bias, w = own, w._replace(bias=None)
    x = ops.linear(x, w_ih, bias)
    if isinstance(steps, Even):
        return _varying(mode, steps, fits, x, given, w)
    if not isinstance(x, Tensor) or not grad_enabled():
        if fits:
            return _at_once(mode, steps, x, given, w, keep=False)[:2]
        return _unrolled(mode, steps, x, given, _laid(w, steps), keep=False)[:2]
    y, *found = _Unrolled.apply(mode, steps, fits, len(given), x, *given, *w)
    return y, tuple(found)


def _ways(sizes: Any) -> tuple[Any, Any]:
    """The steps forth and back."""
    if isinstance(sizes, Even):
        return sizes, sizes._replace(reverse=True)
    ends = [0]
    for n in sizes:
        ends.append(ends[-1] + n)
    forth = list(zip(ends, ends[1:]))
    return forth, forth[::-1]


def unrolled(
    mode: str,
    x: Any,
    sizes: Any,
    hx: State,
    params: Sequence[Sequence[Any]],
    directions: int = 1,
    drop: float = 0.0,
) -> tuple[Any, State]:
    """All layers: rows (N, in) of steps with `sizes` rows each (integers, or `Even`), states
    (layers * directions, B, .), the weights of each layer and direction (input, hidden, their biases,
    projection) -> rows (N, directions * P), last states.

    `drop`: the share of each layer's output but the last's that is set to 0.
    """
    ways = _ways(sizes)[:directions]
    last: list[State] = []
    for k in range(0, len(params), directions):
        if k and drop:
            x = dropout(x, drop)
        found = [
            _direction(mode, steps, x, tuple([s[k + way] for s in hx]), params[k + way])
            for way, steps in enumerate(ways)
        ]
        last += [states for _, states in found]
        x = ops.cat([y for y, _ in found], 1) if directions > 1 else found[0][0]
    return x, tuple([ops.stack(states) for states in zip(*last)])


hide_frames(globals(), ("unrolled",))  # a callable of the core: autocast casts what it is given


def _by_layer(params: Sequence[Any], has_biases: bool, projected: bool) -> list[tuple[Any, ...]]:
    """A flat list of weights as those of each layer and direction."""
    count = 2 + 2 * has_biases + projected
    if not params or len(params) % count:
        raise RuntimeError(
            f"got an incorrect number of RNN parameters: {len(params)}, not a multiple of {count}"
        )
    found = []
    for k in range(0, len(params), count):
        own = list(params[k : k + count])
        hr = own.pop() if projected else None
        found.append((*own, *(() if has_biases else (None, None)), hr))
    return found


def layers(mode: str, *args: Any) -> Any:
    """What `lstm`, `gru`, `rnn_tanh` and `rnn_relu` do: data (T, B, in), or (B, T, in) with `batch_first`; or
    rows of a PackedSequence and its batch sizes.
    """
    packed = len(args) > 2 and isinstance(args[1], Tensor) and not isinstance(args[2], (tuple, list))
    packed = packed or (mode == "LSTM" and isinstance(args[1], Tensor))
    data, hx, params, has_biases, num_layers, drop, train, bidirectional = (
        args[:1] + args[1 + packed : 8 + packed]
    )
    directions = 2 if bidirectional else 1
    states = tuple(hx) if mode == "LSTM" else (hx,)
    weights = _by_layer(params, has_biases, mode == "LSTM" and states[0].shape[2] != states[1].shape[2])
    if len(weights) != num_layers * directions:
        raise RuntimeError(
            f"expected weights of {num_layers * directions} layers and directions, got {len(weights)}"
        )
    rest = (states, weights, directions, float(drop) if train else 0.0)
    if packed:
        y, last = unrolled(mode, data, args[1].tolist(), *rest)
        return (y, *last)
    if batch_first := args[8]:
        data = data.transpose(0, 1)
    length, batch = data.shape[0], data.shape[1]
    if not length:
        raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
    y, last = unrolled(mode, data.reshape(length * batch, data.shape[2]), even(length, batch), *rest)
    y = y.reshape(length, batch, y.shape[1])
    return (y.transpose(0, 1) if batch_first else y, *last)


@draws
def lstm(*args: Any) -> Any:
    """`lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)` or
    `lstm(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional)`: the function
    of `nn.LSTM`: output, last hidden states, last cells.
    """
    return layers("LSTM", *args)


@draws
def gru(*args: Any) -> Any:
    """The function of `nn.GRU`, with the arguments of `lstm`: output, last hidden states."""
    return layers("GRU", *args)


@draws
def rnn_tanh(*args: Any) -> Any:
    """The function of `nn.RNN`, with the arguments of `lstm`: output, last hidden states."""
    return layers("RNN_TANH", *args)


@draws
def rnn_relu(*args: Any) -> Any:
    """The function of `nn.RNN` with relu, with the arguments of `lstm`: output, last hidden states."""
    return layers("RNN_RELU", *args)


for _name in ("gru", "lstm", "rnn_relu", "rnn_tanh"):
    globals()[_name] = named(_name, globals()[_name], raw=False)
