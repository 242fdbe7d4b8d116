"""How functions' calls are recorded and shown: as PyTorch does, where kiln goes by PyTorch's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from backend import needs_torch, torch

import kiln
from kiln import fx
from kiln.fx import names

# what is not as in PyTorch: functions that it goes through, or goes through where kiln does not, and those
# of dtypes, which are no operations here
OTHER = frozenset(
    "can_cast is_inference promote_types sym_sum compile lobpcg meshgrid unravel_index normalize "
    "l1_loss upsample upsample_bilinear upsample_nearest linear_cross_entropy "
    "triplet_margin_with_distance_loss".split()
)


@pytest.fixture
def under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "root", lambda: "torch")
    monkeypatch.setattr(names, "root_module", lambda: kiln)


def _lines(graph: Any) -> list[str]:
    return [n.format_node().replace("kiln.", "torch.") for n in graph.nodes if n.op != "placeholder"]


def _recorded(module: Any, call: str, count: int) -> list[str]:
    """The nodes of a call that a program writes so, with as many arguments."""
    given = ", ".join("abcdefg"[:count])
    program = eval(f"lambda {given}: root.{call}({given})", {"root": module})
    return _lines(module.fx.symbolic_trace(program).graph)


@needs_torch
@pytest.mark.usefixtures("under_its_name")
@pytest.mark.parametrize(
    "place, least",
    [("", 430), ("nn.functional.", 100), ("linalg.", 33), ("special.", 50)],
)
def test_calls_are_recorded_as_in_pytorch(place: str, least: int) -> None:
    """Name, target, what goes by place and what by name: of every function, called as PyTorch allows it."""
    ours, theirs = kiln, torch
    for part in place.split(".")[:-1]:
        ours, theirs = getattr(ours, part), getattr(theirs, part)
    compared = 0
    for name in theirs.__all__ if not place else dir(theirs):
        if name.startswith(("_", "set_", "use_")) or name in OTHER or name.endswith("_with_indices"):
            continue
        if isinstance(getattr(theirs, name), type) or not callable(getattr(ours, name, None)):
            continue
        for count in range(1, 8):
            try:
                expected = _recorded(torch, place + name, count)
            except Exception:  # so many it does not take
                continue
            if len(expected) > 1:
                assert _recorded(kiln, place + name, count) == expected, place + name
                compared += 1
            break
    assert compared > least


LAYERS = """
Linear(3, 4) | Linear(3, 4, bias=False) | Bilinear(3, 4, 5) | Conv1d(3, 4, 3, padding='same')
Conv2d(3, 4, 3, stride=2) | Conv2d(3, 4, 3, padding=1, padding_mode='circular') | Conv3d(3, 4, 3)
MaxPool1d(2) | MaxPool2d(2) | MaxPool3d(2) | AvgPool1d(2) | AvgPool2d(2) | AvgPool3d(2) | LPPool1d(2, 3)
LPPool2d(2, 3) | AdaptiveAvgPool1d(2) | AdaptiveAvgPool2d(2) | AdaptiveMaxPool1d(2) | AdaptiveMaxPool2d(2)
FractionalMaxPool2d(2, output_size=3) | MaxUnpool2d(2) | ReflectionPad2d(2) | ReplicationPad1d(2)
ZeroPad2d(2) | ConstantPad3d(2, 1.0) | ELU() | Hardshrink() | Hardsigmoid(inplace=True) | Hardtanh()
Hardswish() | LeakyReLU(inplace=True) | LogSigmoid() | PReLU() | ReLU() | ReLU(inplace=True) | ReLU6()
RReLU() | SELU() | CELU() | GELU() | GELU('tanh') | Sigmoid() | SiLU() | Mish() | Softplus() | Softshrink()
Softsign() | Tanh() | Tanhshrink() | Threshold(0.1, 20) | GLU() | Softmin(1) | Softmax(1) | LogSoftmax(1)
GroupNorm(1, 3) | LayerNorm(3) | RMSNorm(3) | LocalResponseNorm(2) | Dropout() | Dropout1d() | Dropout2d()
Dropout3d() | AlphaDropout() | FeatureAlphaDropout() | Dropout(inplace=True)
Embedding(5, 3, padding_idx=1) | EmbeddingBag(5, 3) | CosineSimilarity() | PairwiseDistance() | MSELoss()
CrossEntropyLoss() | CTCLoss() | NLLLoss() | PoissonNLLLoss() | GaussianNLLLoss() | KLDivLoss() | BCELoss()
BCEWithLogitsLoss() | MarginRankingLoss() | HingeEmbeddingLoss() | MultiLabelMarginLoss() | HuberLoss()
SmoothL1Loss() | SoftMarginLoss() | MultiLabelSoftMarginLoss() | CosineEmbeddingLoss() | MultiMarginLoss()
TripletMarginLoss() | PixelShuffle(2) | PixelUnshuffle(2) | Upsample(scale_factor=2)
Upsample(size=4, mode='bilinear') | UpsamplingBilinear2d(scale_factor=2) | ChannelShuffle(2) | Flatten()
Unflatten(1, (2, 3)) | Fold((4, 4), 2) | Unfold(2) | LinearCrossEntropyLoss(3, 4)
TripletMarginWithDistanceLoss(distance_function=L1Loss()) | Sequential(Linear(2, 3), ReLU())
"""
_LAYERS = [text.strip() for text in LAYERS.replace("\n", "|").split("|") if text.strip()]


@needs_torch
@pytest.mark.usefixtures("under_its_name")
@pytest.mark.parametrize("text", _LAYERS)
def test_layers_that_are_gone_through_call_what_pytorch_s_call(text: str) -> None:
    def lines(module: Any) -> list[str]:
        class All(module.fx.Tracer):  # type: ignore[misc, name-defined]
            def is_leaf_module(self, m: Any, name: str) -> bool:
                return False

        return _lines(All().trace(eval(text, dict(vars(module.nn)))))

    assert lines(kiln) == lines(torch)


F = kiln.nn.functional


def _by_module(x: Any) -> Any:
    return kiln.special.erf(kiln.absolute(x)) + F.max_pool2d(kiln.max_pool2d(x, 2), 2)


def _in_lines(x: Any) -> Any:
    from kiln import special

    return kiln.concat(
        [
            special.expit(kiln.clip(x, max=kiln.amax(x))),
            kiln.subtract(x, kiln.multiply(x, x)),
        ]
    )


def _by_own_name(x: Any) -> Any:
    from kiln import absolute, concat

    joined = concat
    return joined([absolute(x), x.absolute()])


@pytest.mark.parametrize(
    "program, expected",
    [
        (_by_module, "absolute special_erf max_pool2d max_pool2d_1 add"),
        (_in_lines, "amax clip special_expit multiply subtract concat"),
        (_by_own_name, "abs_1 absolute cat"),
    ],
)
def test_nodes_have_the_name_that_a_program_calls(program: Callable[..., Any], expected: str) -> None:
    """Of one function with two names, where it is taken from a module; copies, pickles and code keep it."""
    import copy
    import pickle

    made = fx.symbolic_trace(program)
    assert [n.name for n in made.graph.nodes if n.op.startswith("call_")] == expected.split()
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert str(other.graph) == str(made.graph)
    assert expected.split()[0].rpartition("_1")[0] or f"kiln.{expected.split()[0]}(" in made.code
    x = kiln.arange(16.0).reshape(1, 1, 4, 4)
    assert kiln.equal(made(x), program(x))


def test_another_target_is_shown_by_its_own_name() -> None:
    made = fx.symbolic_trace(_by_module)
    node = next(n for n in made.graph.nodes if n.name == "absolute")
    assert "target=kiln.absolute]" in node.format_node() and node.target is kiln.abs
    node.target = kiln.neg
    made.recompile()
    assert "target=kiln.neg]" in node.format_node() and "kiln.neg(" in made.code


@pytest.mark.parametrize(
    "call, args, kwargs",
    [
        ("F.relu(x)", "(x,)", {"inplace": False}),
        ("F.relu(x, True)", "(x,)", {"inplace": True}),
        ("F.dropout(input=x, training=False)", "(x,)", {"p": 0.5, "training": False, "inplace": False}),
        ("kiln.split(x, 2, dim=1)", "(x, 2)", {"dim": 1}),
        ("F.multi_margin_loss(x, x, 1, 2.0, None, None, None, 'sum')", "(x, x)",
         {"p": 1, "margin": 2.0, "weight": None, "size_average": None, "reduce": None, "reduction": "sum"}),
        ("F.relu(x, True, True)", "(x, True, True)", {}),
    ],
)  # fmt: skip
def test_defaults_are_recorded_by_name(call: str, args: str, kwargs: dict[str, Any]) -> None:
    graph = fx.symbolic_trace(eval(f"lambda x: {call}", {"F": F, "kiln": kiln})).graph
    node = list(graph.nodes)[1]
    assert (str(node.args), dict(node.kwargs)) == (args, kwargs) and list(node.kwargs) == list(kwargs)


def test_flags_of_losses_go_by_place() -> None:
    """`size_average` and `reduce` stand before `reduction`, as in PyTorch; of one loss `eps` between them."""
    x, y = kiln.tensor([[0.5, 1.0]]), kiln.tensor([[1.0, 2.0]])
    whole = F.poisson_nll_loss(x, y, reduction="none")
    assert kiln.equal(F.poisson_nll_loss(x, y, True, False, None, 1e-8, None, "sum"), whole.sum())
    assert kiln.equal(F.poisson_nll_loss(x, y, True, False, False), whole.sum())
    assert kiln.equal(F.soft_margin_loss(x, y, None, False), F.soft_margin_loss(x, y, reduction="none"))


def test_what_is_written_of_a_graph_is_found_again() -> None:
    """Source goes by kiln's own places, also of functions that PyTorch has in its core; losses have names."""

    def f(x: Any, y: Any) -> Any:
        y = kiln.nn.functional.soft_margin_loss(kiln.nn.functional.linear(x, x), y)
        return kiln.linalg.inv(kiln.nn.functional.gelu(x)) * kiln.einsum("ij,jk->ik", x, x) + y

    made = fx.symbolic_trace(f)
    x, y = kiln.randn(3, 3), kiln.ones(3, 3)
    assert kiln.equal(made(x, y), f(x, y))
    found = [n.name for n in made.graph.nodes if n.op == "call_function"]
    assert found == ["linear", "soft_margin_loss", "gelu", "linalg_inv", "einsum", "mul", "add"]
    assert "kiln.linalg.inv(" in made.code and "kiln.nn.functional.soft_margin_loss(" in made.code
