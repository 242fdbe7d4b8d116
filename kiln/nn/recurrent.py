"""Recurrent layers and cells: RNN, LSTM, GRU; how they run in time stands in `recurrent_steps`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Union, overload

from kiln import ops
from kiln._core import Tensor, modes
from kiln.errors import warn
from kiln.nn import init
from kiln.nn.module import Module
from kiln.nn.parameter import Parameter
from kiln.nn.recurrent_steps import even, unrolled
from kiln.nn.utils.rnn import PackedSequence
from kiln.ops.nn.recurrent_layers import CELLS
from kiln.table.arguments import MOST_STEPS, expect_count

if TYPE_CHECKING:
    from kiln._typed.words import Device, DType

Input = Union[Tensor, PackedSequence]


def _check_sizes(mode: str, sizes: dict[str, Any], dropout: Any, flags: dict[str, Any]) -> None:
    """PyTorch's errors for settings that mean nothing."""
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout <= 1:
        raise ValueError(
            "dropout should be a number in range [0, 1] representing the probability of an element being "
            "zeroed"
        )
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name} should be of type bool, got: {type(flag).__name__}")
    for name in ("input_size", "hidden_size"):
        if not isinstance(sizes[name], int):
            raise TypeError(f"{name} should be of type int, got: {type(sizes[name]).__name__}")
    for name in ("input_size", "hidden_size", "num_layers"):
        if sizes[name] <= 0:
            raise ValueError(f"{name} must be greater than zero")
    expect_count(mode, sizes["num_layers"], "layers", MOST_STEPS)
    if sizes["proj_size"] < 0:
        raise ValueError("proj_size should be a positive integer or zero to disable projections")
    if sizes["proj_size"] >= sizes["hidden_size"]:
        raise ValueError("proj_size has to be smaller than hidden_size")
    if mode not in CELLS:
        raise ValueError(f"Unrecognized RNN mode: {mode}")


class RNNBase(Module):
    """What RNN, LSTM and GRU share: weights of every layer and direction, uniform in +-1/sqrt(hidden_size),
    and how input and states are laid. `mode` is "RNN_TANH", "RNN_RELU", "LSTM" or "GRU".
    """

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Device | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}
        flags = {"bias": bias, "batch_first": batch_first}
        _check_sizes(mode, {**sizes, "proj_size": proj_size}, dropout, flags)
        if dropout > 0 and num_layers == 1:
            warn(
                "dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects "
                f"num_layers greater than 1, but got dropout={dropout} and num_layers={num_layers}"
            )
        self.mode = mode
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        self._names = [
            self._add_weights(layer, suffix, device, dtype)
            for layer in range(num_layers)
            for suffix in ("", "_reverse")[: 1 + bool(bidirectional)]
        ]
        self.reset_parameters()

    def _add_weights(self, layer: int, suffix: str, device: Device | None, dtype: DType | None) -> list[str]:
        """Makes one layer's parameters in one direction; gives their names."""
        rows, out = CELLS[self.mode].gates * self.hidden_size, self.proj_size or self.hidden_size
        wide = self.input_size if layer == 0 else out * (1 + bool(self.bidirectional))
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, wide), "weight_hh": (rows, out)}
        if self.bias:
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        if self.proj_size:
            shapes |= {"weight_hr": (self.proj_size, self.hidden_size)}
        for name, shape in shapes.items():
            made = Parameter(ops.empty(*shape, device=device, dtype=dtype))
            setattr(self, f"{name}_l{layer}{suffix}", made)
        return [f"{name}_l{layer}{suffix}" for name in shapes]

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        bound = 1 / math.sqrt(self.hidden_size)
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def flatten_parameters(self) -> None:
        """Does nothing: taken, as programs say it."""

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of every layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._names]

    # what layers of programs' own read and set, which put other weights in the place of these

    @property
    def _all_weights(self) -> list[list[str]]:
        return self._names

    @property
    def _flat_weights_names(self) -> list[str]:
        return [name for names in self._names for name in names]

    @property
    def _flat_weights(self) -> list[Parameter]:
        return [weight for weights in self.all_weights for weight in weights]

    @_flat_weights.setter
    def _flat_weights(self, weights: list[Parameter]) -> None:
        for name, weight in zip(self._flat_weights_names, weights, strict=True):
            if getattr(self, name, None) is not weight:
                setattr(self, name, weight)

    def _weights(self) -> list[tuple[Any, ...]]:
        """Of every layer and direction: weights of input and hidden state, their biases, projection."""
        found = []
        for names in self._names:
            own = {name.partition("_l")[0]: getattr(self, name) for name in names}
            found.append(
                tuple([own.get(k) for k in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")])
            )
        return found

    # -- what comes in and goes out -------------------------------------------------------------------

    def check_input(self, input: Tensor, batch_sizes: Tensor | None) -> None:
        """RuntimeError, ValueError for input of another dtype or shape."""
        own = getattr(self, self._names[0][0]).dtype
        if input.dtype != own and modes()[2] is None:  # autocast would make them one
            raise ValueError(
                f"RNN input dtype ({input.dtype}) does not match weight dtype ({own}). Convert input: "
                f"input.to({own}), or convert model: model.to({input.dtype})"
            )
        ndim = 3 if batch_sizes is None else 2
        if input.ndim != ndim:
            raise RuntimeError(f"input must have {ndim} dimensions, got {input.ndim}")
        if input.shape[-1] != self.input_size:
            raise RuntimeError(
                "input.size(-1) must be equal to input_size. Expected "
                f"{self.input_size}, got {input.shape[-1]}"
            )

    def get_expected_hidden_size(self, input: Tensor, batch_sizes: Tensor | None) -> tuple[int, int, int]:
        """The shape of hidden states: (layers * directions, batch, size)."""
        batch = input.shape[0 if self.batch_first else 1] if batch_sizes is None else int(batch_sizes[0])
        return len(self._names), batch, self.proj_size or self.hidden_size

    def check_hidden_size(
        self,
        hx: Tensor,
        expected_hidden_size: tuple[int, int, int],
        msg: str = "Expected hidden size {}, got {}",
    ) -> None:
        """RuntimeError for a state of another shape."""
        if tuple(hx.shape) != expected_hidden_size:
            raise RuntimeError(msg.format(expected_hidden_size, list(hx.shape)))

    def check_forward_args(self, input: Tensor, hidden: Any, batch_sizes: Tensor | None) -> None:
        """RuntimeError for input or states that do not fit."""
        self.check_input(input, batch_sizes)
        self.check_hidden_size(hidden, self.get_expected_hidden_size(input, batch_sizes))

    def permute_hidden(self, hx: Any, permutation: Tensor | None) -> Any:
        """States in another order of the batch."""
        return hx if permutation is None else hx.index_select(1, permutation)

    def _zeros(self, input: Tensor, batch: int) -> Any:
        size = self.proj_size or self.hidden_size
        return ops.zeros(len(self._names), batch, size, dtype=input.dtype)

    def _unbatched(self, hx: Any, batched: bool) -> Any:
        """The states given, with a batch of one if there was none."""
        if hx.ndim != (3 if batched else 2):
            asked = "batched 3-D" if batched else "unbatched 2-D"
            raise RuntimeError(
                f"For {asked} input, hx should also be {3 if batched else 2}-D but got {hx.ndim}-D tensor"
            )
        return hx if batched else hx.unsqueeze(1)

    def _run(self, x: Tensor, sizes: Any, hx: Any) -> tuple[Tensor, Any]:
        """Rows of all steps and states -> rows and states."""
        drop = self.dropout if self.training else 0.0
        states = hx if isinstance(hx, tuple) else (hx,)
        y, last = unrolled(self.mode, x, sizes, states, self._weights(), 1 + bool(self.bidirectional), drop)
        return y, last if isinstance(hx, tuple) else last[0]

    def _packed(self, input: PackedSequence, hx: Any) -> tuple[PackedSequence, Any]:
        data, batch_sizes, order, places = input
        sizes = [int(n) for n in batch_sizes.tolist()]
        hx = self._zeros(data, sizes[0]) if hx is None else self.permute_hidden(hx, order)
        self.check_forward_args(data, hx, batch_sizes)
        y, last = self._run(data, sizes, hx)
        return PackedSequence(y, batch_sizes, order, places), self.permute_hidden(last, places)

    def forward(self, input: Input, hx: Any = None) -> tuple[Any, Any]:
        if isinstance(input, PackedSequence):
            return self._packed(input, hx)
        if input.ndim not in (2, 3):
            kind = "RNN" if self.mode.startswith("RNN") else self.mode
            came = f"{input.ndim}D tensor" if kind == "RNN" else f"{input.ndim}D"
            raise ValueError(f"{kind}: Expected input to be 2D or 3D, got {came} instead")
        x: Any = input
        batched, batch_dim = x.ndim == 3, 0 if self.batch_first else 1
        if not batched:
            x = x.unsqueeze(batch_dim)
        if hx is not None:
            hx = self._unbatched(hx, batched)
        else:
            hx = self._zeros(x, x.shape[batch_dim])
        self.check_forward_args(x, hx, None)
        steps, batch = x.shape[1 - batch_dim], x.shape[batch_dim]
        if not steps:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
        rows = x.transpose(0, 1) if self.batch_first else x
        y, last = self._run(rows.reshape(steps * batch, self.input_size), even(steps, batch), hx)
        y = y.reshape(steps, batch, y.shape[1])
        y = y.transpose(0, 1) if self.batch_first else y
        return (y, last) if batched else (y.squeeze(batch_dim), _squeezed(last))

    def extra_repr(self) -> str:
        shown = [f"{self.input_size}, {self.hidden_size}"]
        defaults = {"proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0}
        for name, default in {**defaults, "bidirectional": False}.items():
            if getattr(self, name) != default:
                shown.append(f"{name}={getattr(self, name)}")
        return ", ".join(shown)


def _squeezed(states: Any) -> Any:
    return tuple([s.squeeze(1) for s in states]) if isinstance(states, tuple) else states.squeeze(1)


class RNN(RNNBase):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh) over time, or relu: (T, B, in) -> (T, B, directions * hidden),
    and the last hidden states (layers * directions, B, hidden).

    With `batch_first` (B, T, in); without a batch (T, in); a PackedSequence gives one. `hx`: the first hidden
    states, else zeros.

    >>> import kiln
    >>> y, h = kiln.nn.RNN(3, 4, num_layers=2)(kiln.zeros(5, 2, 3))
    >>> y.shape, h.shape
    (kiln.Size([5, 2, 4]), kiln.Size([2, 2, 4]))
    """

    if TYPE_CHECKING:

        @overload  # type: ignore[no-overload-impl]
        def __call__(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]: ...
        @overload
        def __call__(
            self, input: PackedSequence, hx: Tensor | None = None
        ) -> tuple[PackedSequence, Tensor]: ...

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device | None = None,
        dtype: DType | None = None,
        **kwargs: Any,
    ) -> None:
        if "proj_size" in kwargs:
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'.")
        super().__init__(
            f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, bias, batch_first, dropout,
            bidirectional, device=device, dtype=dtype, **kwargs,
        )  # fmt: skip
        self.nonlinearity = nonlinearity


class LSTM(RNNBase):
    """Long short-term memory over time: (T, B, in) -> (T, B, directions * hidden), and the last hidden states
    and cells (layers * directions, B, hidden).

    Gates input, forget, new and output in the weights' rows. With `proj_size` hidden states go through a
    product of their own to that size. With `batch_first` (B, T, in); without a batch (T, in); a
    PackedSequence gives one. `hx`: the first hidden states and cells, else zeros.

    >>> import kiln
    >>> y, (h, c) = kiln.nn.LSTM(3, 4, proj_size=2, bidirectional=True)(kiln.zeros(5, 2, 3))
    >>> y.shape, h.shape, c.shape
    (kiln.Size([5, 2, 4]), kiln.Size([2, 2, 2]), kiln.Size([2, 2, 4]))
    """

    if TYPE_CHECKING:

        @overload  # type: ignore[no-overload-impl]
        def __call__(
            self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
        ) -> tuple[Tensor, tuple[Tensor, Tensor]]: ...
        @overload
        def __call__(
            self, input: PackedSequence, hx: tuple[Tensor, Tensor] | None = None
        ) -> tuple[PackedSequence, tuple[Tensor, Tensor]]: ...

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Device | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(
            "LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size,
            device, dtype,
        )  # fmt: skip

    def get_expected_cell_size(self, input: Tensor, batch_sizes: Tensor | None) -> tuple[int, int, int]:
        """The shape of cells: (layers * directions, batch, hidden_size)."""
        return (*self.get_expected_hidden_size(input, batch_sizes)[:2], self.hidden_size)

    def check_forward_args(self, input: Tensor, hidden: Any, batch_sizes: Tensor | None) -> None:
        self.check_input(input, batch_sizes)
        expected = self.get_expected_hidden_size(input, batch_sizes)
        if len(hidden) < 2:
            raise RuntimeError("lstm expects two hidden states, got one")
        self.check_hidden_size(hidden[0], expected, "Expected hidden[0] size {}, got {}")
        expected = self.get_expected_cell_size(input, batch_sizes)
        self.check_hidden_size(hidden[1], expected, "Expected hidden[1] size {}, got {}")
        if len(hidden) > 2:
            raise RuntimeError(f"lstm expects two hidden states, got {len(hidden)}")

    def permute_hidden(self, hx: Any, permutation: Tensor | None) -> Any:
        return tuple([super(LSTM, self).permute_hidden(s, permutation) for s in hx])

    def _zeros(self, input: Tensor, batch: int) -> Any:
        cell = ops.zeros(len(self._names), batch, self.hidden_size, dtype=input.dtype)
        return super()._zeros(input, batch), cell

    def _unbatched(self, hx: Any, batched: bool) -> Any:
        if len(hx) < 2:
            raise IndexError("tuple index out of range: lstm expects two hidden states, got one")
        h, c = hx[0], hx[1]
        if {h.ndim, c.ndim} != {3 if batched else 2}:
            asked = "batched 3-D" if batched else "unbatched 2-D"
            raise RuntimeError(
                f"For {asked} input, hx and cx should also be {3 if batched else 2}-D but got ({h.ndim}-D, "
                f"{c.ndim}-D) tensors"
            )
        states = (h, c) if batched else (h.unsqueeze(1), c.unsqueeze(1))
        return states if len(hx) == 2 else (*states, *hx[2:])


class GRU(RNNBase):
    """Gated recurrent units over time: (T, B, in) -> (T, B, directions * hidden), and the last hidden states
    (layers * directions, B, hidden).

    Gates reset, update and new in the weights' rows. With `batch_first` (B, T, in); without a batch (T, in);
    a PackedSequence gives one. `hx`: the first hidden states, else zeros.

    >>> import kiln
    >>> y, h = kiln.nn.GRU(3, 4, batch_first=True)(kiln.zeros(2, 5, 3))
    >>> y.shape, h.shape
    (kiln.Size([2, 5, 4]), kiln.Size([1, 2, 4]))
    """

    if TYPE_CHECKING:

        @overload  # type: ignore[no-overload-impl]
        def __call__(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]: ...
        @overload
        def __call__(
            self, input: PackedSequence, hx: Tensor | None = None
        ) -> tuple[PackedSequence, Tensor]: ...

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device | None = None,
        dtype: DType | None = None,
        **kwargs: Any,
    ) -> None:
        if "proj_size" in kwargs:
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        super().__init__(
            "GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            device=device, dtype=dtype, **kwargs,
        )  # fmt: skip


class RNNCellBase(Module):
    """What the cells share: weights of `num_chunks` gates, uniform in +-1/sqrt(hidden_size)."""

    bias_ih: Parameter | None
    bias_hh: Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        num_chunks: int,
        device: Device | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        rows = num_chunks * hidden_size
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight_ih = Parameter(ops.empty(rows, input_size, **made))
        self.weight_hh = Parameter(ops.empty(rows, hidden_size, **made))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(ops.empty(rows, **made)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        bound = 1 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def extra_repr(self) -> str:
        s = f"{self.input_size}, {self.hidden_size}"
        return s if self.bias is True else f"{s}, bias={self.bias}"

    def _step(self, function: Any, input: Tensor, hx: Any, names: tuple[str, ...]) -> Any:
        """One step of a cell with states of these names; a batch of one if there is none."""
        states: Any = (None,) * len(names) if hx is None else hx if len(names) > 1 else (hx,)
        count = len(names)
        if hx is not None and input.ndim == 2 == states[0].ndim == states[-1].ndim and len(states) == count:
            return function(input, hx, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        kind = type(self).__name__
        batched = input.ndim == 2
        if not batched and input.ndim != 1:
            raise ValueError(f"{kind}: Expected input to be 1D or 2D, got {input.ndim}D instead")
        for name, x in zip(names, states):
            if x is not None and x.ndim not in (1, 2):
                raise ValueError(f"{kind}: Expected {name} to be 1D or 2D, got {x.ndim}D instead")
        if batched and count > 1 and isinstance(hx, Tensor):
            raise TypeError("lstm_cell(): argument 'hx' (position 2) must be tuple of Tensors, not Tensor")
        if hx is not None and (len(states) < count or batched and len(states) > count):
            raise (RuntimeError if batched else IndexError)(f"{kind}: lstm_cell expects two hidden states")
        for k, x in enumerate(states if hx is not None and batched else ()):
            if x.ndim == 1:
                sizes = f"Input batch size {input.shape[0]} doesn't match hidden{k} batch size {x.shape[0]}"
                raise RuntimeError(sizes)
        input = input if batched else input.unsqueeze(0)
        if hx is None:
            zeros = ops.zeros(input.shape[0], self.hidden_size, dtype=input.dtype)
            states = (zeros,) * len(names)
        elif not batched:
            states = tuple([states[k].unsqueeze(0) for k in range(count)])
        given = states if len(names) > 1 else states[0]
        found = function(input, given, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        if batched:
            return found
        return tuple([x.squeeze(0) for x in found]) if len(names) > 1 else found.squeeze(0)


class RNNCell(RNNCellBase):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu: (B, in), (B, hidden) -> (B, hidden); or without B.

    >>> import kiln
    >>> kiln.nn.RNNCell(3, 4)(kiln.zeros(2, 3)).shape
    kiln.Size([2, 4])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Device | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        function = ops.rnn_tanh_cell if self.nonlinearity == "tanh" else ops.rnn_relu_cell
        y: Tensor = self._step(function, input, hx, ("hidden",))
        return y

    def extra_repr(self) -> str:
        shown = super().extra_repr()
        return shown if self.nonlinearity == "tanh" else f"{shown}, nonlinearity={self.nonlinearity}"


class LSTMCell(RNNCellBase):
    """One step of an LSTM: (B, in), a tuple of hidden state and cell (B, hidden) -> the two after it; or
    without B.

    >>> import kiln
    >>> h, c = kiln.nn.LSTMCell(3, 4)(kiln.zeros(2, 3))
    >>> c.shape
    kiln.Size([2, 4])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Device | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        h, c = self._step(ops.lstm_cell, input, hx, ("hx[0]", "hx[1]"))
        return h, c


class GRUCell(RNNCellBase):
    """One step of a GRU: (B, in), (B, hidden) -> (B, hidden); or without B.

    >>> import kiln
    >>> kiln.nn.GRUCell(3, 4)(kiln.zeros(3)).shape
    kiln.Size([4])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Device | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        y: Tensor = self._step(ops.gru_cell, input, hx, ("hidden",))
        return y
