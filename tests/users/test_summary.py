"""`kiln.summary` and `kiln.utils.flop_counter`: products counted beside arithmetic and PyTorch; what is
left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from backend import kiln, needs_kiln

nn = kiln.nn
F = kiln.nn.functional

pytestmark = needs_kiln


def counted(library: Any, run: Callable[[], Any]) -> int:
    """The operations of what runs."""
    counter = import_module(f"{library.__name__}.utils.flop_counter").FlopCounterMode(display=False)
    with counter:
        run()
    return int(counter.get_total_flops())


def grad(library: Any, *shape: int) -> Any:
    return library.ones(*shape, requires_grad=True)


# name -> (what runs, operations of its forward and backward by arithmetic: a multiply-add is two)
PRODUCTS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "matmul": (lambda lib: grad(lib, 3, 4) @ lib.ones(4, 5), 2 * 3 * 4 * 5 * 2),
    "batched": (lambda lib: lib.bmm(grad(lib, 2, 3, 4), grad(lib, 2, 4, 5)), 2 * 2 * 3 * 4 * 5 * 3),
    "linear": (
        lambda lib: lib.nn.functional.linear(grad(lib, 6, 4), grad(lib, 5, 4), grad(lib, 5)),
        2 * 6 * 4 * 5 * 3,
    ),
    "convolution": (
        lambda lib: lib.nn.functional.conv2d(
            grad(lib, 2, 3, 8, 8), grad(lib, 4, 3, 3, 3), stride=2, padding=1
        ),
        2 * 2 * 4 * 4 * 4 * 3 * 9 * 3,
    ),
    "transposed": (
        lambda lib: lib.nn.functional.conv_transpose2d(
            grad(lib, 2, 3, 4, 4), grad(lib, 3, 4, 3, 3), stride=2, padding=1
        ),
        2 * 2 * 3 * 16 * 4 * 9 * 3,
    ),
    "einsum": (lambda lib: lib.einsum("bij,bjk->bik", grad(lib, 2, 3, 4), lib.ones(2, 4, 5)), 2 * 120 * 2),
    "embedding": (lambda lib: lib.nn.functional.embedding(lib.tensor([1, 2]), grad(lib, 5, 3)), 0),
    "elementwise": (lambda lib: (grad(lib, 3, 4) * 2).softmax(1), 0),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_operations_are_pytorchs(name: str, answers: Any) -> None:
    run, expected = PRODUCTS[name]
    ours, theirs = answers.both(lambda library: counted(library, lambda: run(library).sum().backward()))
    assert ours == theirs == expected


def test_operations_that_pytorch_counts_not_or_otherwise() -> None:
    def of(run: Callable[[], Any]) -> int:
        return counted(kiln, run)

    x, w = grad(kiln, 2, 4, 6, 6), grad(kiln, 8, 2, 3, 3)
    forward = 2 * 2 * 8 * 16 * 2 * 9
    assert of(lambda: F.conv2d(x, w, groups=2)) == forward
    assert of(lambda: F.conv2d(x, w, groups=2).sum().backward()) == 3 * forward  # two gradients, as much each
    by_taps = 2 * 2 * 4 * 16 * 9  # each channel by itself
    assert of(lambda: F.conv2d(x, grad(kiln, 4, 1, 3, 3), groups=4).sum().backward()) == 3 * by_taps
    q, k, v = grad(kiln, 1, 2, 5, 8), grad(kiln, 1, 2, 7, 8), grad(kiln, 1, 2, 7, 6)
    scores, sums = 2 * 2 * 5 * 7 * 8, 2 * 2 * 5 * 7 * 6
    assert of(lambda: F.scaled_dot_product_attention(q, k, v)) == scores + sums
    both = of(lambda: F.scaled_dot_product_attention(q, k, v).sum().backward())
    assert both == (scores + sums) + (scores + sums) + 2 * scores + sums  # again, then the three gradients
    layer = nn.LSTM(3, 4, 2)
    steps, batch = 5, 2
    with kiln.no_grad():
        assert of(lambda: layer(kiln.ones(steps, batch, 3))) == 2 * steps * batch * 16 * (3 + 4 + 4 + 4)
    assert of(lambda: kiln.ones(4) @ kiln.ones(4)) == 2 * 4


def test_operations_by_module_and_in_recorded_programs(capsys: Any) -> None:
    counter = kiln.utils.flop_counter.FlopCounterMode(depth=1)
    model = nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.Linear(5, 5), nn.ReLU()))
    step = kiln.compile(lambda x: model(x).sum())
    for _ in range(3):
        with counter:
            step(kiln.ones(2, 4)).backward()
        assert counter.get_total_flops() == 80 + 80 + 100 + 200
        found = {name: sum(counts.values()) for name, counts in counter.get_flop_counts().items()}
        assert found["Global"] == found["Sequential"] == 460
        assert found["Sequential.0"] == 160 and found["Sequential.1.0"] == found["Sequential.1"] == 300
    shown = capsys.readouterr().out
    assert "Sequential" in shown and "Sequential.1.0" not in shown and "100.00%" in shown
    assert "Sequential.1.0" in counter.get_table(3)
    with pytest.raises(NotImplementedError, match="custom_mapping"):
        kiln.utils.flop_counter.FlopCounterMode(custom_mapping={"mm": len})


class Net(nn.Module):
    """Layers used twice, shared weights, functional code, results of every form."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.block = nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU())
        self.again = self.block
        self.rnn = nn.LSTM(8, 6, batch_first=True)
        self.head, self.tied = nn.Linear(6, 5), nn.Linear(6, 5)
        self.tied.weight = self.head.weight
        self.mix = nn.Parameter(kiln.ones(5, 5), requires_grad=False)
        self.drop = nn.Dropout()

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        x = self.drop(self.again(self.block(self.bn(self.conv(x)))))
        y, (h, _) = self.rnn(x.mean(-1).transpose(1, 2))
        return {"logits": (self.head(y) + self.tied(y) * scale) @ self.mix, "hidden": h}


def test_a_summary_adds_up() -> None:
    model = Net()
    found = kiln.summary(model, (2, 3, 4, 4))
    rows = {layer.name: layer for layer in found.layers}
    assert found.total_params == sum(p.numel() for p in model.parameters())
    assert found.trainable_params == found.total_params - 25
    assert found.total_params == sum(layer.parameters for layer in found.layers)
    assert found.total_mult_adds == sum(layer.multiply_adds for layer in found.layers)
    assert rows["conv"].multiply_adds == 2 * 8 * 16 * 27 and rows["conv"].parameters == 216
    assert rows["conv"].inputs == "[2, 3, 4, 4]" and rows["conv"].outputs == "[2, 8, 4, 4]"
    assert rows["block"].calls == 2 and rows["0"].multiply_adds == 2 * (2 * 8 * 16 * 8)
    assert rows["again"].shared and not rows["again"].parameters
    assert rows["rnn"].outputs == "[2, 4, 6], [1, 2, 6], ..."
    assert rows["tied"].parameters == 5 and rows["head"].parameters == 35
    assert rows["model"].multiply_adds == 2 * 4 * 5 * 5  # the matmul in its own forward
    assert rows["model"].outputs == "[2, 4, 5], [1, 2, 6]"
    assert found.total_input == 4 * 2 * 3 * 16 and found.total_param_bytes == 4 * found.total_params
    assert found.total_output_bytes >= 4 * 2 * 8 * 16
    text = str(found)
    assert re.search(r"├─block \(Sequential\) 2x .* \[2, 8, 4, 4\]", text)
    assert f"Parameters: {found.total_params:,}, of them trainable" in text
    html = found._repr_html_()
    assert "block (Sequential) 2x" in html and "<script" not in html


def test_a_summary_leaves_everything_as_it_was() -> None:
    model = Net().train()
    model.bn.eval()
    calls: list[Any] = []
    handle = model.head.register_forward_hook(lambda *args: calls.append(args))
    state = {key: value.clone() for key, value in model.state_dict().items()}
    kiln.manual_seed(3)
    first = kiln.rand(2).tolist()
    kiln.manual_seed(3)
    for mode in ("eval", "train", "same"):
        kiln.summary(model, (2, 3, 4, 4), mode=mode)
    assert kiln.rand(2).tolist() == first
    assert model.training and model.rnn.training and not model.bn.training
    assert all(bool((value == state[key]).all()) for key, value in model.state_dict().items())
    assert len(calls) == 3 and len(model.head._forward_hooks) == 1 and not model.conv._forward_hooks
    assert "_hooked" not in model.conv.__dict__ and all(p.grad is None for p in model.parameters())
    with pytest.raises(RuntimeError, match="channels"):
        kiln.summary(model, (2, 4, 4, 4))
    assert model.training and not model.conv._forward_pre_hooks
    handle.remove()


def test_what_a_summary_takes() -> None:
    model = Net()
    without = kiln.summary(model)
    assert not without.ran and without.total_params == kiln.summary(model, (1, 3, 2, 2)).total_params
    assert "Multiply-adds" not in str(without)
    x = kiln.ones(1, 3, 4, 4)
    totals = {
        kiln.summary(model, x).total_mult_adds,
        kiln.summary(model, input_size=(1, 3, 4, 4)).total_mult_adds,
        kiln.summary(model, input_data=[x, 2.0]).total_mult_adds,
        kiln.summary(model, {"x": x, "scale": 2.0}).total_mult_adds,
        kiln.summary(model, x, scale=2.0, depth=0).total_mult_adds,
    }
    assert len(totals) == 1
    assert len(kiln.summary(model, x, depth=0).layers) == 1 and len(kiln.summary(model, depth=1).layers) == 9
    tokens = kiln.summary(nn.Embedding(5, 3), (2, 4), dtypes=[kiln.int64])
    assert tokens.total_mult_adds == 0 and tokens.layers[0].outputs == "[2, 4, 3]"
    two = kiln.summary(nn.Bilinear(3, 4, 5), input_size=[(2, 3), (2, 4)])
    assert two.layers[0].inputs == "[2, 3], [2, 4]"
    assert kiln.summary(nn.LazyLinear(5), (2, 4)).total_params == 25
    for wrong, error in (({"mode": "x"}, ValueError), ({"depth": -1}, ValueError)):
        with pytest.raises(error):
            kiln.summary(model, x, **wrong)
    with pytest.raises(TypeError, match="a Module"):
        kiln.summary(3)


class Repeats(nn.Module):
    """Calls itself; makes a layer when it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(3, 3)

    def forward(self, x: Any, times: int = 2) -> Any:
        self.late = nn.Linear(3, 2)
        return self(self.step(x), times - 1) if times else self.late(x)


def test_a_summary_of_a_model_that_changes_or_is_not_called_as_others() -> None:
    found = kiln.summary(Repeats(), (2, 3))
    model, step = found.layers
    assert (model.calls, model.outputs, step.calls) == (3, "[2, 2]", 2)
    assert found.total_params == 12 + 8 and found.total_mult_adds == 2 * (2 * 9 + 6)
    compiled = kiln.summary(kiln.compile(nn.Linear(3, 2)), (4, 3)).layers[0]
    assert (compiled.inputs, compiled.outputs) == ("[4, 3]", "[4, 2]")
    assert kiln.summary(nn.Sequential(nn.LazyLinear(2), nn.Linear(2, 2))).total_params == 6


def test_a_half_model_is_given_halves() -> None:
    assert kiln.summary(nn.Linear(3, 2).half(), (4, 3)).total_mult_adds == 24
