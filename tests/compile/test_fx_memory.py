"""What a write in a graph may change, and what passes leave alone for it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

import kiln
import kiln.nn.functional as F
from kiln.fx import memory
from kiln.testing.mode_cases import table
from kiln.testing.op_cases import results_of, tensors


def test_what_is_said_to_compute_gives_memory_of_its_own() -> None:
    """A sample of each of the table's ops and functions that `computes` names."""
    seen = set()
    for entry in table().values():
        if not memory.computes(entry.record.function):
            continue
        for case in entry.cases(entry.dtypes[0])[:1]:
            own = tensors(kiln, case, entry.dtypes[0])
            given = [x for a in own.args for x in (a if isinstance(a, (list, tuple)) else [a])]
            held = {x.untyped_storage().data_ptr() for x in given if isinstance(x, kiln.Tensor) and x.numel()}
            for y in results_of(entry.record.function(*own.args, **own.kwargs)):
                assert not y.numel() or y.untyped_storage().data_ptr() not in held, case.label
            seen.add(entry.name)
    x = kiln.rand(1, 3)
    for made in (kiln.cat([x]), *x.max(0), *x.min(0), F.cross_entropy(x, x, reduction="none")):
        assert made.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    assert seen >= memory.OWN - {"cat", "max", "min", "cross_entropy"} and len(seen) > 200


_PROGRAMS: dict[str, tuple[Callable[..., Any], set[str]]] = {
    # a program of x and y, and what its writes may change
    "a result": (lambda x, y: (x.exp().add_(1), y.sin()), {"exp", "add_"}),
    "a view of a result": (lambda x, y: (x.exp().view(-1).add_(1), y), {"exp", "view", "add_"}),
    "a part by position": (lambda x, y: (x.exp()[0].mul_(2), y), {"exp", "getitem", "mul_"}),
    "a part of several": (lambda x, y: x.exp().chunk(2)[0].mul_(y), {"exp", "chunk", "getitem", "mul_"}),
    "an argument, which may be another": (lambda x, y: (x.mul_(2), y * 1), {"x", "y", "mul_"}),
    "into another's memory": (lambda x, y: kiln.add(x, 1, out=y.exp()), {"x", "y", "exp", "add"}),
    "what contiguous gives may be what it is given": (
        lambda x, y: x.exp().contiguous().mul_(y),
        {"exp", "contiguous", "mul_"},
    ),
    "as an argument asks": (lambda x, y: F.relu(x + y, inplace=True), {"add", "relu"}),
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_a_write_may_change_what_shares_memory(name: str) -> None:
    program, expected = _PROGRAMS[name]
    traced = kiln.fx.symbolic_trace(lambda x, y: program(x, y))
    assert {node.name for node in memory.written(traced.graph)} == expected


class _Net(kiln.nn.Module):
    """Layers in place between what is constant and what is computed twice."""

    def __init__(self) -> None:
        super().__init__()
        self.w = kiln.nn.Parameter(kiln.arange(4.0).reshape(2, 2))
        self.linear, self.relu = kiln.nn.Linear(2, 2), kiln.nn.ReLU(inplace=True)
        self.norm = kiln.nn.BatchNorm1d(2)

    def forward(self, x: Any) -> Any:
        h = self.relu(self.linear(x))
        h.add_(1)
        return h @ self.w.exp() + x.sin() * x.sin() + h.sin() * h.sin()


def test_a_graph_that_writes_is_folded_and_searched_elsewhere() -> None:
    net, x = _Net(), kiln.randn(3, 2)
    expected = net(x)
    common = import_module("kiln.fx.passes.dialect.common.cse_pass").CSEPass()
    once = common(kiln.fx.symbolic_trace(net)).graph_module
    targets = [node.target for node in once.graph.nodes]
    assert targets.count("sin") == 3  # x.sin() once; h is written, and read where it stands
    assert kiln.equal(once(x), expected)
    folded = import_module("kiln.fx.experimental.const_fold").split_const_subgraphs(net)
    assert "exp" not in [node.target for node in folded.graph.nodes]
    assert kiln.equal(folded(x), expected) and kiln.equal(folded(x), expected)


class _Unused(kiln.nn.Module):
    """Calls whose results nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = kiln.nn.BatchNorm1d(2), kiln.nn.Dropout()
        self.linear, self.table = kiln.nn.Linear(2, 2), kiln.nn.Embedding(3, 2, max_norm=1.0)
        self.still = kiln.nn.BatchNorm1d(2, track_running_stats=False)

    def forward(self, x: Any, k: Any) -> Any:
        self.norm(x), self.drop(x), self.linear(x), self.table(k), self.still(x), x.bernoulli()
        return x * 2


@pytest.mark.parametrize(
    "training, kept", [(True, ["norm", "drop", "table", "bernoulli"]), (False, ["table", "bernoulli"])]
)
def test_a_layer_that_changes_its_state_is_no_dead_code(training: bool, kept: list[str]) -> None:
    net = _Unused().train(training)
    traced = kiln.fx.symbolic_trace(net)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    found = [node.target for node in traced.graph.nodes if node.op in ("call_module", "call_method")]
    assert found == kept
    x, before = kiln.rand(4, 2), net.norm.running_mean.clone()
    traced(x, kiln.tensor([0, 1]))
    assert kiln.equal(net.norm.running_mean, before) != training
