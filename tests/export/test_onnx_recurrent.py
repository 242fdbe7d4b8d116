"""Recurrent layers in ONNX models: one operator for a layer and direction, beside kiln."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from onnx_models import Model, onnx

import kiln
from kiln import nn
from kiln.export import Dim, export


def kinds(model: Model) -> list[str]:
    """The operators of a model."""
    return [node.op_type for node in onnx.load_from_string(model.data).graph.node]


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {}, "no bias": {"bias": False}, "batch first": {"batch_first": True},
    "both ways": {"bidirectional": True}, "stacked": {"num_layers": 3},
    "stacked both ways": {"num_layers": 2, "bidirectional": True, "batch_first": True},
}  # fmt: skip
LAYERS: dict[str, Any] = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "RNN": nn.RNN,
    "RNN relu": lambda *args, **settings: nn.RNN(*args, nonlinearity="relu", **settings),
}


@pytest.mark.parametrize("size", [3, 37])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", LAYERS)
def test_layers(kind: str, settings: str, size: int) -> None:
    """The output and the last states, with initial states and without, traced with gradients and without."""
    kiln.manual_seed(1)
    how = SETTINGS[settings]
    layer = LAYERS[kind](4, size, **how)
    count = how.get("num_layers", 1) * (1 + how.get("bidirectional", False))
    x = kiln.randn(2, 6, 4) if how.get("batch_first") else kiln.randn(6, 2, 4)
    state: Any = kiln.randn(count, 2, size)
    state = (state, kiln.randn(count, 2, size)) if kind == "LSTM" else state
    for args in ((x,), (x, state)):
        for mode in (nullcontext, kiln.no_grad):
            with mode():
                model = Model(kiln.export.export(layer, args))
            with kiln.no_grad():
                model.compare(args, {}, layer(*args), 2e-5)
            assert kinds(model).count(kind.split()[0]) == count and "Sigmoid" not in kinds(model)


def test_other_uses_are_written_step_by_step() -> None:
    """Sequences shorter than a kernel is for, float64, projections; a loop for any number of steps."""
    time = ({0: Dim("time", min=1)},)
    cases = [
        (nn.LSTM(4, 3), kiln.randn(2, 2, 4), None),
        (nn.GRU(4, 3).double(), kiln.randn(6, 2, 4).double(), None),
        (nn.LSTM(4, 3, proj_size=2), kiln.randn(6, 2, 4), None),
        (nn.LSTM(4, 3, proj_size=2), kiln.randn(6, 2, 4), time),
    ]
    for layer, x, shapes in cases:
        model = Model(kiln.export.export(layer, (x,), dynamic_shapes=shapes))
        with kiln.no_grad():
            model.compare((x,), {}, layer(x), 2e-5)
        assert {"LSTM", "GRU"}.isdisjoint(kinds(model)) and ("Loop" in kinds(model)) == bool(shapes)


SIZES = {
    "batch": {1: Dim("batch")},
    "time": {0: Dim("time", min=1)},
    "both": {0: Dim("time", min=1), 1: Dim("batch")},
}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kind", LAYERS)
def test_sizes_that_vary(kind: str, sizes: str) -> None:
    """No rows and one step among them: bits of the layer, one operator for a layer and direction."""
    kiln.manual_seed(1)
    layer = LAYERS[kind](4, 3, num_layers=2, bidirectional=True)
    program = export(layer, (kiln.randn(5, 2, 4),), dynamic_shapes=(SIZES[sizes],))
    assert program.verify(2).equal
    report = program.to_onnx().verify(2)
    assert report.holds, report
    model = Model(program)
    assert kinds(model).count(kind.split()[0]) == 4 and {"Loop", "Sigmoid"}.isdisjoint(kinds(model))


def test_what_reads_more_of_a_layer() -> None:
    """A part of the output, and the hidden states of a decoder that starts from an encoder's."""

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.LSTM(4, 5), nn.LSTM(4, 5)

        def forward(self, x: Any) -> Any:
            y, state = self.encoder(x)
            return self.decoder(x.flip(0), state)[0] + y[2:3], state[1]

    made, x = Decoder(), kiln.randn(6, 2, 4)
    model = Model(kiln.export.export(made, (x,)))
    with kiln.no_grad():
        model.compare((x,), {}, made(x), 2e-5)
    assert kinds(model).count("LSTM") == 2
