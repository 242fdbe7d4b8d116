"""Recurrent layers, cells and sequences of several lengths beside PyTorch's."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import pytest
from backend import filled, kiln, torch

from kiln.autograd import gradcheck, gradgradcheck
from kiln.nn import recurrent_steps
from kiln.nn.utils import rnn

FULL = os.environ.get("KILN_TEST_FULL") == "1"

# mode, settings, how input comes: "" batched, "unbatched", "packed"; with first states or without
LAYERS = [
    ("LSTM", {}, "", True),
    ("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}, "", True),
    ("LSTM", {"proj_size": 2, "bidirectional": True, "bias": False}, "", True),
    ("LSTM", {"proj_size": 2, "num_layers": 2}, "packed", True),
    ("LSTM", {"bidirectional": True, "batch_first": True}, "packed", False),
    ("LSTM", {"proj_size": 3}, "unbatched", True),
    ("LSTM", {"bidirectional": True}, "unbatched", False),
    ("GRU", {}, "", False),
    ("GRU", {"num_layers": 2, "bidirectional": True}, "", True),
    ("GRU", {"bias": False, "batch_first": True}, "unbatched", True),
    ("GRU", {"bidirectional": True, "num_layers": 2}, "packed", True),
    ("RNN", {}, "", True),
    ("RNN", {"nonlinearity": "relu", "bidirectional": True, "bias": False}, "", False),
    ("RNN", {"num_layers": 2, "batch_first": True}, "packed", True),
    ("RNN", {"nonlinearity": "relu"}, "unbatched", True),
]


def flat(x: Any) -> list[Any]:
    return [z for y in x for z in flat(y)] if isinstance(x, (tuple, list)) else [x]


def equal(mine: Any, theirs: Any, tolerance: float = 1e-10) -> None:
    mine, theirs = flat(mine), flat(theirs)
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=tolerance, atol=tolerance, equal_nan=False)


def run(k: Any, model: Any, x: Any, hx: Any, form: str) -> Any:
    """Outputs, states and every gradient of one call."""
    leaves = [t.requires_grad_() for t in flat([x, *([] if hx is None else [hx])])]
    if form == "packed":
        pack = k.nn.utils.rnn.pack_padded_sequence
        x = pack(x, [2, 5, 3], batch_first=model.batch_first, enforce_sorted=False)
    y, last = model(x, hx)
    if form == "packed":
        y, lengths = k.nn.utils.rnn.pad_packed_sequence(y, model.batch_first, padding_value=0.5)
        assert lengths.tolist() == [2, 5, 3]
    found = flat([y, last])
    sum((t**3).sum() * (n + 1) for n, t in enumerate(found)).backward()
    return found, [t.grad for t in [*leaves, *model.parameters()]]


def form_of(model: Any) -> Any:
    """A module's text, and its parameters' names and shapes."""
    return repr(model), [(n, tuple(p.shape)) for n, p in model.named_parameters()]


def layer_of(k: Any, mode: str, settings: dict[str, Any], form: str, x: Any, hx: Any) -> Any:
    """A layer with drawn weights: its form, and what `run` gives of it."""
    model = filled(k, getattr(k.nn, mode)(3, 4, dtype=k.float64, **settings))
    given = [tuple(map(k.tensor, v)) if isinstance(v, tuple) else v for v in (x, hx)]
    x, hx = (k.tensor(v) if isinstance(v, np.ndarray) else v for v in given)
    return form_of(model), run(k, model, x, hx, form)


@pytest.mark.parametrize(("mode", "settings", "form", "states"), LAYERS)
def test_layers(mode: str, settings: dict[str, Any], form: str, states: bool, answers: Any) -> None:
    rng = np.random.default_rng(1)
    first = settings.get("batch_first", False)
    x = rng.normal(size=(5, 3) if form == "unbatched" else (3, 5, 3) if first else (5, 3, 3))
    count = settings.get("num_layers", 1) * (1 + settings.get("bidirectional", False))
    rows = (count, 4) if form == "unbatched" else (count, 3, 4)
    hx: Any = rng.normal(size=rows)
    if mode == "LSTM":
        hx = (rng.normal(size=(*rows[:-1], settings.get("proj_size", 4))), hx)
    given = (mode, settings, form, x, hx if states else None)
    (shown, mine), (wanted, theirs) = answers.both(layer_of, *given)
    assert shown == wanted
    equal(mine, theirs)


@pytest.mark.parametrize("mode", ["LSTM", "GRU", "RNN"])
def test_recorded_steps_have_the_same_bits(mode: str) -> None:
    kiln.manual_seed(0)
    model, x = getattr(kiln.nn, mode)(3, 4), kiln.randn(6, 2, 3)

    def step(x: Any) -> Any:
        y, last = model(x)
        model.zero_grad()
        (y * y).sum().backward()
        return [y, *flat(last), *[p.grad for p in model.parameters()]]

    wanted = [t.tolist() for t in step(x)]
    compiled = kiln.compile(step)
    for _ in range(4):
        assert [t.tolist() for t in compiled(x)] == wanted


@pytest.mark.parametrize(
    ("mode", "settings"),
    [("LSTM", {"proj_size": 2}), ("GRU", {}), ("RNN", {"bias": False})][: 3 if FULL else 1],
)
def test_second_gradients(mode: str, settings: dict[str, Any]) -> None:
    kiln.manual_seed(1)
    model = getattr(kiln.nn, mode)(2, 3, dtype=kiln.float64, bidirectional=mode == "GRU", **settings)
    x = kiln.randn(3, 2, 2, dtype=kiln.float64).requires_grad_()

    def outputs(x: Any, *weights: Any) -> Any:
        packed = rnn.pack_padded_sequence(x, [3, 2])
        named = dict(zip([n for n, _ in model.named_parameters()], weights))
        y, last = kiln.func.functional_call(model, named, (packed,))
        return (y.data, *flat(last))

    inputs = (x, *[p.detach().requires_grad_() for p in model.parameters()])
    assert gradcheck(outputs, inputs, fast_mode=True)
    assert gradgradcheck(outputs, inputs, fast_mode=True)


def test_results_may_be_written_to() -> None:
    """Backward reads states that are the layer's own; what was given and changed since is noticed."""
    model, x = kiln.nn.LSTM(3, 4), kiln.randn(5, 2, 3)
    (y, (h, c)), wanted = model(x), []
    y.sum().backward()
    wanted = [p.grad.tolist() for p in model.parameters()]
    model.zero_grad()
    y, (h, c) = model(x)
    with kiln.no_grad():
        h.zero_()
        c.zero_()
    y.sum().backward()
    assert [p.grad.tolist() for p in model.parameters()] == wanted
    h0 = kiln.zeros(1, 2, 4)
    y, _ = kiln.nn.GRU(3, 4)(x, h0)
    h0 += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_dropout_lies_between_layers() -> None:
    model, x = kiln.nn.GRU(3, 4, num_layers=2, dropout=1.0), kiln.randn(5, 2, 3)
    dropped = model(x)[0]
    alone = kiln.nn.GRU(4, 4)
    alone.load_state_dict(
        {n: model.get_parameter(n.replace("l0", "l1")) for n, _ in alone.named_parameters()}
    )
    assert (dropped == alone(kiln.zeros(5, 2, 4))[0]).all()
    model.eval()
    assert (model(x)[0] != dropped).any()


@pytest.mark.parametrize("mode", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", [(2,), ()])
def test_cells(mode: str, bias: bool, batch: tuple[int, ...], answers: Any) -> None:
    more = {} if mode != "RNN" or bias else {"nonlinearity": "relu"}

    def steps(k: Any, mode: str, bias: bool, more: dict[str, Any], x: Any) -> Any:
        model = filled(k, getattr(k.nn, f"{mode}Cell")(3, 4, bias, dtype=k.float64, **more))
        x, hx = k.tensor(x), None
        for row in x.requires_grad_():
            hx = model(row, hx)
        found = flat([hx])
        found[-1].pow(2).sum().backward(retain_graph=True)
        return form_of(model), [found, x.grad, [p.grad for p in model.parameters()]]

    x = np.random.default_rng(1).normal(size=(2, *batch, 3))
    (shown, mine), (wanted, theirs) = answers.both(steps, mode, bias, more, x)
    assert shown == wanted
    equal(mine, theirs)


def test_functions(answers: Any) -> None:
    """The names of torch itself: `lstm`, `gru`, ... with data padded or packed."""
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype(np.float32) for s in ((4, 2, 3), (2, 2, 5), (2, 2, 5), (7, 3))]

    def run(lib: Any, name: str, layer: str, arrays: Any) -> Any:
        weights = list(filled(lib, getattr(lib.nn, layer)(3, 5, bidirectional=True)).parameters())
        x, h, c, rows = map(lib.tensor, arrays)
        hx = (h, c) if name == "lstm" else h
        rest = (True, 1, 0.0, True, True)
        padded = getattr(lib, name)(x, hx, weights, *rest, False)
        packed = getattr(lib, name)(rows, lib.tensor([2, 2, 2, 1]), hx, weights, *rest)
        return [padded, packed]

    for name, layer in (("lstm", "LSTM"), ("gru", "GRU"), ("rnn_tanh", "RNN"), ("rnn_relu", "RNN")):
        equal(*answers.both(run, name, layer, arrays), 1e-5)


MISTAKES = """
k.nn.LSTM(2,3,dropout=1.5)
k.nn.LSTM(2,3,dropout=True)
k.nn.LSTM(2,3,proj_size=3)
k.nn.LSTM(2,3,proj_size=-1)
k.nn.GRU(2,3,proj_size=1)
k.nn.RNN(2,3,proj_size=1)
k.nn.LSTM(2,0)
k.nn.LSTM(2,3,num_layers=0)
k.nn.LSTM(2,3.0)
k.nn.RNN(2,3,nonlinearity="x")
k.nn.RNNBase("X",2,3)
k.nn.LSTM(2,3,bias=1)
k.nn.LSTM(2,3)(k.zeros(4,5,6))
k.nn.LSTM(2,3)(k.zeros(4))
k.nn.LSTM(2,3)(k.zeros(4,1,2),(k.zeros(1,1,4),k.zeros(1,1,3)))
k.nn.LSTM(2,3)(k.zeros(4,1,2),(k.zeros(1,1,3),k.zeros(1,1,4)))
k.nn.LSTM(2,3)(k.zeros(4,1,2),(k.zeros(1,3),k.zeros(1,3)))
k.nn.LSTM(2,3)(k.zeros(4,2),(k.zeros(1,1,3),k.zeros(1,1,3)))
k.nn.LSTM(2,3)(k.zeros(0,1,2))
k.nn.LSTM(2,3)(k.zeros(4,0,2))[0].shape
k.nn.GRU(2,3)(k.zeros(4,1,2),k.zeros(1,1,4))
k.nn.GRU(2,3)(k.zeros(4,2),k.zeros(1,1,3))
k.nn.GRU(2,3)(k.zeros(4,1,2),k.zeros(1,3))
k.nn.GRU(2,3)(k.zeros(4,1,2,3))
k.nn.RNN(2,3)(k.zeros(4))
k.nn.LSTMCell(2,3)(k.zeros(1,3))
k.nn.LSTMCell(2,3)(k.zeros(1,1,3))
k.nn.LSTMCell(2,3)(k.zeros(2,2),(k.zeros(1,3),k.zeros(2,3)))
k.nn.LSTMCell(2,3)(k.zeros(2,2),(k.zeros(2,3),k.zeros(2,4)))
k.nn.LSTMCell(2,3)(k.zeros(2,2),(k.zeros(1,2,3),k.zeros(2,3)))
k.nn.GRUCell(2,3)(k.zeros(2,2),k.zeros(2,4))
k.nn.GRUCell(2,3)(k.zeros(2,2),k.zeros(1,2,3))
k.nn.RNNCell(2,3,nonlinearity="q")(k.zeros(1,2))
r.pack_padded_sequence(k.zeros(3,2,1),[1,3])
r.pack_padded_sequence(k.zeros(3,2,1),[3])
r.pack_padded_sequence(k.zeros(3,2,1),[3,0])
r.pack_padded_sequence(k.zeros(0,2,1),[4,1])
r.pad_sequence(3)
r.pad_sequence([])
r.pad_sequence([k.zeros(2)],padding_side="x")
r.pad_packed_sequence(r.pack_sequence([k.zeros(3)]),total_length=2)
r.pack_sequence([k.zeros(2,1),k.zeros(3,1)])
"""


@pytest.mark.parametrize("call", MISTAKES.strip().split("\n"))
def test_mistakes(call: str, answers: Any) -> None:
    """What PyTorch refuses is refused in its words."""

    def outcome(k: Any) -> Any:
        try:
            return tuple(eval(call, {"k": k, "r": k.nn.utils.rnn}))
        except Exception as error:
            return error

    mine, theirs = outcome(kiln), answers(call, lambda: outcome(torch))
    if not isinstance(theirs, Exception):
        assert mine == theirs
        return
    assert type(mine) is type(theirs)
    first = re.sub(r"torch|kiln", "", str(theirs).split("\n")[0].split(". ")[0])
    assert first in re.sub(r"torch|kiln", "", str(mine))


def test_dropout_without_layers_to_lie_between_warns() -> None:
    with pytest.warns(UserWarning, match="dropout option adds dropout after all but last"):
        kiln.nn.LSTM(2, 3, dropout=0.5)


SEQUENCES = """
r.pad_sequence([k.arange(6.).reshape(3,2), k.ones(1,2)])
r.pad_sequence([k.arange(6.).reshape(3,2), k.ones(4,2)], batch_first=True, padding_value=-1.)
r.pad_sequence([k.arange(3), k.arange(2), k.arange(0)], padding_side="left")
r.pad_sequence(k.ones(2,3))
list(r.pack_sequence([k.arange(3.), k.arange(2.), k.arange(1.)]))[:2]
list(r.pack_sequence([k.arange(2), k.arange(3)], enforce_sorted=False))
r.unpack_sequence(r.pack_sequence([k.arange(2), k.arange(3)], enforce_sorted=False))
r.unpad_sequence(k.arange(6).reshape(2,3), k.tensor([1,3]), batch_first=True)
list(r.pad_packed_sequence(r.pack_sequence([k.arange(2), k.arange(3)], enforce_sorted=False), True, 9, 4))
r.pack_padded_sequence(k.arange(6.).reshape(3,2), k.tensor([3,1])).to(k.float64).data
r.pack_sequence([k.arange(2)]).double().float().half().long().int().short().char().byte().data
r.PackedSequence(k.zeros(2), k.tensor([1,1]), k.tensor([0])).unsorted_indices
r.PackedSequence((k.zeros(2), k.tensor([1,1]))).data
r.invert_permutation(k.tensor([2,0,1]))
"""


@pytest.mark.parametrize("call", SEQUENCES.strip().split("\n"))
def test_sequences(call: str, answers: Any) -> None:
    def run(k: Any, call: str) -> Any:
        return flat(eval(call, {"k": k, "r": k.nn.utils.rnn}))

    equal(*answers.both(run, call), 0.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", ["LSTM", "GRU", "RNN_TANH", "RNN_RELU"])
def test_one_kernel_has_the_bits_of_steps(mode: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the rows, the size of the state (its segments and groups of columns) and the threads."""
    kiln.manual_seed(0)
    made = getattr(kiln.nn, mode.partition("_")[0])
    settings = {"nonlinearity": mode[4:].lower()} if mode.startswith("RNN") else {}
    for size, rows, steps in ((3, 1, 4), (33, 2, 5), (64, 5, 4), (40, 61, 6), (530, 1, 4), (530, 9, 4)):
        model = made(5, size, bidirectional=rows < 9, dtype=getattr(kiln, dtype), **settings)
        x = kiln.randn(steps, rows, 5, dtype=model.weight_ih_l0.dtype, requires_grad=True)

        def found(model: Any = model, x: Any = x) -> list[Any]:
            with kiln.no_grad():
                given = flat(model(x))
            grown = flat(model(x))
            gradients = kiln.autograd.grad((grown[0] ** 2).sum(), [x, *model.parameters()])
            return [t.detach().numpy() for t in (*given, *grown, *gradients)]

        with kiln.profile() as profile:
            one = found()
        assert "recurrent_layer" in [line.name for line in profile.lines]
        threads = kiln.get_num_threads()
        kiln.set_num_threads(3)
        try:
            assert all((a == b).all() for a, b in zip(one, found()))
        finally:
            kiln.set_num_threads(threads)
        monkeypatch.setattr(recurrent_steps, "_fits", lambda *a: False)
        assert all((a == b).all() for a, b in zip(one, found()))
        monkeypatch.undo()


def test_a_packed_weight_that_lies_otherwise() -> None:
    layer = recurrent_steps.recurrent_layers.recurrent_hidden.handle
    x, h, w = kiln.randn(3, 2, 40), kiln.randn(2, 40), kiln.randn(2, 1, 32, 40)
    operands = (h, None, None, "RNN_TANH", False, False)
    assert layer(x, w.transpose(2, 3), *operands).equal(layer(x, w.transpose(2, 3).contiguous(), *operands))


def test_samples_take_the_steps_one_by_one() -> None:
    layer, x = kiln.nn.GRU(3, 5, batch_first=True), kiln.randn(4, 2, 6, 3)
    with kiln.no_grad():
        found = kiln.vmap(lambda sample: layer(sample)[0])(x)
        assert found.equal(kiln.stack([layer(sample)[0] for sample in x]))


def test_bias_of_halves_is_rounded_with_the_product_of_the_input() -> None:
    """Where no kernel takes all steps, the input's part is one linear layer, rounded once."""
    kiln.manual_seed(0)
    model = kiln.nn.RNN(20, 30, dtype=kiln.bfloat16)
    x, state = kiln.randn(5, 3, 20, dtype=kiln.bfloat16), kiln.zeros(3, 30, dtype=kiln.bfloat16)
    w_ih, w_hh, b_ih, b_hh = model.parameters()
    with kiln.no_grad():
        outputs = model(x)[0]
        for step, y in zip(x, outputs):
            given = kiln.nn.functional.linear(step, w_ih, b_ih + b_hh)
            state = recurrent_steps.r.rnn_step.handle(given, state, w_hh, "tanh")
            assert y.equal(state)


VARYING: dict[str, Any] = {
    "LSTM": kiln.nn.LSTM, "GRU": kiln.nn.GRU, "RNN": kiln.nn.RNN,
    "LSTM with projections": lambda *args, **settings: kiln.nn.LSTM(*args, proj_size=2, **settings),
}  # fmt: skip


@pytest.mark.parametrize("kind", VARYING)
@pytest.mark.parametrize("varies", ["time", "batch", "time batch"])
def test_programs_of_any_number_of_steps_and_rows(kind: str, varies: str) -> None:
    """Results have the bits of the layer, and gradients are the same; none of them is for one length."""
    kiln.manual_seed(2)
    layer = VARYING[kind](4, 3, num_layers=2, bidirectional=True)
    dims = {d: kiln.export.Dim(name, min=1 - d) for d, name in enumerate(("time", "batch")) if name in varies}
    program = kiln.export.export(layer, (kiln.randn(5, 2, 4),), dynamic_shapes=(dims,))
    for steps, rows in ((5, 2), (1, 2), (3, 2), (9, 2), (5, 1), (5, 0), (7, 6)):
        if (steps != 5 and "time" not in varies) or (rows != 2 and "batch" not in varies):
            continue
        x = kiln.randn(steps, rows, 4, requires_grad=True)
        for mode in (kiln.no_grad, kiln.enable_grad):
            with mode():
                assert all(a.equal(b) for a, b in zip(flat(program(x)), flat(layer(x))))
        if rows:
            found = [
                kiln.autograd.grad(sum((y**2).sum() for y in flat(made(x))), [x, *made.parameters()])
                for made in (program, layer)
            ]
            for a, b in zip(*found):
                np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_programs_of_any_number_of_steps_to_second_order(kind: str) -> None:
    """Backward takes the steps again, so that it has a derivative."""
    kiln.manual_seed(2)
    layer = VARYING[kind](2, 2, dtype=kiln.float64)
    x = kiln.randn(3, 2, 2, dtype=kiln.float64, requires_grad=True)
    dims = ({0: kiln.export.Dim("time", min=1)},)
    program = kiln.export.export(layer, (x,), dynamic_shapes=dims)
    assert kiln.autograd.gradgradcheck(lambda x: program(x)[0], (x,))
