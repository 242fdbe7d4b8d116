"""Calls that draw random numbers in graphs: known by what runs, made one by no pass, folded by none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kiln
import kiln.nn.functional as F
from kiln import _core, nn
from kiln.fx.experimental.const_fold import split_const_subgraphs
from kiln.fx.passes.dialect.common.cse_pass import CSEPass
from kiln.table import public


def _draws(run: Callable[[], Any]) -> bool:
    """Whether a call moves the generator."""
    before = _core.random_state()
    run()
    return bool(_core.random_state() != before)


def _of_attention(dropout: float, training: bool) -> dict[str, Any]:
    x = kiln.ones(3, 1, 2)
    eye = kiln.eye(2)
    given = {"query": x, "key": x, "value": x, "embed_dim_to_check": 2, "num_heads": 1, "bias_k": None,
             "in_proj_weight": kiln.ones(6, 2), "in_proj_bias": None, "bias_v": None, "add_zero_attn": False,
             "dropout_p": dropout, "out_proj_weight": eye, "out_proj_bias": None}  # fmt: skip
    return {**given, "training": training}


_X = kiln.full((1, 2, 4, 4), 0.5)
_CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "rand": (kiln.rand, (2,), {}),
    "randn_like": (kiln.randn_like, (_X,), {}),
    "randint": (kiln.randint, (0, 9, (3,)), {}),
    "randperm": (kiln.randperm, (5,), {}),
    "normal": (kiln.normal, (_X, 1.0), {}),
    "bernoulli": (kiln.bernoulli, (_X,), {}),
    "poisson": (kiln.poisson, (_X,), {}),
    "binomial": (kiln.binomial, (_X, _X), {}),
    "multinomial": (kiln.multinomial, (kiln.ones(3), 2), {}),
    "dropout": (F.dropout, (_X,), {}),
    "no dropout": (F.dropout, (_X, 0.5, False), {}),
    "dropout of the top module": (kiln.dropout, (_X, 0.5, True), {}),
    "dropout2d": (F.dropout2d, (_X,), {}),
    "alpha_dropout": (F.alpha_dropout, (_X, 0.5, True), {}),
    "no alpha_dropout": (F.alpha_dropout, (_X,), {}),
    "feature_dropout": (kiln.feature_dropout, (_X, 0.5, True), {}),
    "rrelu": (F.rrelu, (_X,), {"training": True}),
    "no rrelu": (F.rrelu, (_X,), {}),
    "rrelu of the top module": (kiln.rrelu, (_X, 0.1, 0.3, True), {}),
    "gumbel_softmax": (F.gumbel_softmax, (_X,), {}),
    "fractional_max_pool2d": (F.fractional_max_pool2d, (_X, 2, 2), {}),
    "fractional_max_pool3d": (F.fractional_max_pool3d, (kiln.ones(1, 4, 4, 4), 2, 2), {}),
    "attention": (F.scaled_dot_product_attention, (_X, _X, _X), {"dropout_p": 0.5}),
    "attention by place": (F.scaled_dot_product_attention, (_X, _X, _X, None, 0.5), {}),
    "no attention": (F.scaled_dot_product_attention, (_X, _X, _X), {}),
    "heads": (F.multi_head_attention_forward, (), _of_attention(0.5, True)),
    "no heads": (F.multi_head_attention_forward, (), _of_attention(0.5, False)),
    "no rate of heads": (F.multi_head_attention_forward, (), _of_attention(0.0, True)),
    "svd_lowrank": (kiln.svd_lowrank, (kiln.eye(5), 2), {}),
    "pca_lowrank": (kiln.pca_lowrank, (kiln.eye(5), 2), {}),
    "lobpcg": (kiln.lobpcg, (kiln.eye(9), 1), {}),
    "relu": (F.relu, (_X,), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", _CALLS)
def test_a_call_that_draws_is_known(name: str) -> None:
    """And is no call that two may share; one that draws nothing is."""
    function, args, kwargs = _CALLS[name]
    graph = kiln.fx.Graph()
    nodes = [graph.call_function(function, args, kwargs) for _ in range(2)]
    graph.output(tuple(nodes))
    expected = _draws(lambda: function(*args, **kwargs))
    assert expected is not name.startswith(("no ", "relu"))
    assert [n.is_impure() for n in nodes] == [expected] * 2
    assert not nodes[0].is_impure(impure_random=False)


@pytest.mark.filterwarnings("ignore")
def test_nothing_else_of_the_table_draws() -> None:
    """Of all records whose samples take numbers from the generator, the calls are known to."""
    rng, seen = np.random.default_rng(0), 0
    for record in public.records():
        dtype = "float32" if record.dtypes != "integral" else "int64"
        for sample in record.samples(rng, dtype)[:3]:
            args, kwargs = (
                kiln.utils._pytree.tree_map(_tensor, given) for given in (sample.args, sample.kwargs)
            )
            try:
                drew = _draws(lambda f=record.function, a=args, k=kwargs: f(*a, **k))
            except (RuntimeError, TypeError, ValueError, NotImplementedError):
                continue
            seen += 1
            if drew:
                assert kiln.fx.Graph().call_function(record.function, args, kwargs).is_impure(), record.name
    assert seen > 300


def _tensor(x: Any) -> Any:
    return kiln.tensor(x) if isinstance(x, np.ndarray) else x


_TWICE: dict[str, Callable[[Any], Any]] = {
    "gumbel": lambda x: F.gumbel_softmax(x) + F.gumbel_softmax(x),
    "attention": lambda x: (
        F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
        + F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
    ),
    "pool": lambda x: F.fractional_max_pool2d(x, 2, 2) + F.fractional_max_pool2d(x, 2, 2),
    "binomial": lambda x: kiln.binomial(x, x) + kiln.binomial(x, x),
    "method": lambda x: x.bernoulli() + x.bernoulli(),
    "rrelu": lambda x: F.rrelu(x, training=True) + F.rrelu(x, training=True),
}


@pytest.mark.parametrize("name", _TWICE)
def test_two_calls_that_draw_stay_two(name: str) -> None:
    result = CSEPass()(kiln.fx.symbolic_trace(_TWICE[name]))
    assert not result.modified
    assert sum(n.op.startswith("call") for n in result.graph_module.graph.nodes) == 3


class _Layers(nn.Module):
    """A layer called on a parameter."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.w, self.layer = nn.Parameter(kiln.ones(4, 1, 2)), layer

    def forward(self, x: Any) -> Any:
        given = [self.w] * (3 if isinstance(self.layer, nn.MultiheadAttention) else 1)
        return x + self.layer(*given)[0].sum()


class _OwnDropout(nn.Dropout):
    pass


_DROPPING: dict[str, Callable[[float], Any]] = {
    "lstm": lambda rate: nn.LSTM(2, 2, 2, dropout=rate),
    "gru": lambda rate: nn.GRU(2, 2, 2, dropout=rate),
    "attention": lambda rate: nn.MultiheadAttention(2, 1, dropout=rate),
    "inside": lambda rate: nn.Sequential(nn.Identity(), _OwnDropout(rate)),
}


class _Whole(kiln.fx.Tracer):
    """All submodules are calls."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


@pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
@pytest.mark.parametrize("name", _DROPPING)
def test_a_layer_that_drops_is_folded_in_eval_mode_alone(name: str, training: bool) -> None:
    net = _Layers(_DROPPING[name](0.5)).train(training)
    made = split_const_subgraphs(kiln.fx.GraphModule(net, _Whole().trace(net)))
    assert ("layer" in [n.name for n in made.graph.nodes]) is training
    kiln.manual_seed(0)
    assert (len({made(kiln.zeros(1)).item() for _ in range(20)}) > 1) is training


def test_an_attention_without_dropout_is_folded_in_training() -> None:
    made = split_const_subgraphs(_Layers(nn.MultiheadAttention(2, 1)))
    assert "layer" not in [n.name for n in made.graph.nodes]
