"""Starting values: their distributions, those that are fixed, and their refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
from backend import kiln

from kiln import nn


def test_gains(answers: Any) -> None:
    names = ("linear", "conv2d", "sigmoid", "tanh", "relu", "selu", "leaky_relu")

    def gains(lib: Any, names: tuple[str, ...]) -> list[str]:
        found = [lib.nn.init.calculate_gain(name) for name in names]
        return [repr(float(x)) for x in (*found, lib.nn.init.calculate_gain("leaky_relu", 0.3))]

    ours, theirs = answers.both(gains, names)
    assert ours == theirs
    with pytest.raises(ValueError, match="softplus"):
        nn.init.calculate_gain("softplus")


@pytest.mark.parametrize(
    ("name", "options", "std"),
    [
        ("uniform_", {"a": -1, "b": 3}, 4 / math.sqrt(12)),
        ("normal_", {"mean": 1.0, "std": 0.5}, 0.5),
        ("xavier_uniform_", {"gain": 2.0}, 2 * math.sqrt(2 / 150)),
        ("xavier_normal_", {}, math.sqrt(2 / 150)),
        ("kaiming_uniform_", {"a": math.sqrt(5)}, math.sqrt(1 / 3 / 50)),
        ("kaiming_uniform_", {"mode": "fan_out", "nonlinearity": "relu"}, math.sqrt(2 / 100)),
        ("kaiming_normal_", {"nonlinearity": "relu"}, math.sqrt(2 / 50)),
        ("trunc_normal_", {"std": 0.02}, 0.02),
        ("trunc_normal_", {"a": -1.0, "b": 1.0}, 0.5396),  # of N(0, 1) within one std
        ("orthogonal_", {"gain": 3.0}, 3.0 / 10),
        ("sparse_", {"sparsity": 0.75, "std": 2.0}, 1.0),
    ],
)
def test_distributions(name: str, options: dict[str, Any], std: float) -> None:
    kiln.manual_seed(0)
    w = kiln.empty(100, 50, requires_grad=True)
    assert getattr(nn.init, name)(w, **options) is w and w.requires_grad and w.grad_fn is None
    values = w.reshape(-1).tolist()
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))
    assert (
        spread == pytest.approx(std, rel=0.05)
        and abs(mean - (1 if name in ("uniform_", "normal_") else 0)) < 0.1
    )
    if "uniform" in name:
        center = 1 if name == "uniform_" else 0
        assert max(abs(v - center) for v in values) <= std * math.sqrt(3) * (1 + 1e-6)


def test_fixed_values() -> None:
    w = kiln.empty(2, 3)
    assert nn.init.zeros_(w).tolist() == [[0.0] * 3] * 2 and nn.init.ones_(w).tolist() == [[1.0] * 3] * 2
    assert nn.init.constant_(w, 2.5).tolist() == [[2.5] * 3] * 2
    assert nn.init.eye_(w).tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    assert nn.init.kaiming_uniform_(kiln.empty(0, 3)).numel() == 0
    for refused in (lambda: nn.init.xavier_uniform_(kiln.ones(3)), lambda: nn.init.eye_(kiln.ones(3))):
        with pytest.raises(ValueError, match="dim"):
            refused()
    with pytest.raises(ValueError, match="Mode fan not supported"):
        nn.init.kaiming_normal_(w, mode="fan")


def test_seeds_repeat() -> None:
    kiln.manual_seed(5)
    first = nn.Linear(3, 3).weight.tolist()
    kiln.manual_seed(5)
    assert nn.Linear(3, 3).weight.tolist() == first != nn.Linear(3, 3).weight.tolist()


def test_truncated_normal() -> None:
    kiln.manual_seed(0)
    w = nn.init.trunc_normal_(kiln.empty(2000, dtype=kiln.float64), 1.0, 2.0, a=0.5, b=1.5)
    assert 0.5 <= w.min().item() < 0.51 and 1.49 < w.max().item() <= 1.5
    with pytest.warns(UserWarning, match="more than 2 std"):
        nn.init.trunc_normal_(w, 9.0)
    assert w.max().item() <= 2.0


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 2, 3), (4, 4)])
def test_orthogonal(shape: tuple[int, ...]) -> None:
    w = nn.init.orthogonal_(kiln.empty(shape, dtype=kiln.float64), 2.0).reshape(shape[0], -1)
    few = w if w.shape[0] <= w.shape[1] else w.t()
    assert (few @ few.t() - 4 * kiln.eye(few.shape[0])).abs().max().item() < 1e-12
    with pytest.raises(ValueError, match="2 or more dim"):
        nn.init.orthogonal_(kiln.ones(3))


@pytest.mark.parametrize(("shape", "groups"), [((4, 3, 3), 1), ((4, 2, 3, 2), 2), ((2, 3, 1, 2, 3), 1)])
def test_dirac_and_sparse(shape: tuple[int, ...], groups: int, answers: Any) -> None:
    def dirac(lib: Any, shape: tuple[int, ...], groups: int) -> Any:
        return lib.nn.init.dirac_(lib.empty(shape), groups)

    ours, theirs = answers.both(dirac, shape, groups)
    assert ours.tolist() == theirs.tolist()
    w = nn.init.sparse_(kiln.empty(10, 4), 0.35)
    assert (w == 0).sum(0).tolist() == [4] * 4
    for refused in (lambda: nn.init.dirac_(kiln.ones(3)), lambda: nn.init.sparse_(kiln.ones(3), 0.5)):
        with pytest.raises(ValueError, match="dimensions"):
            refused()
    with pytest.raises(ValueError, match="divisible by groups"):
        nn.init.dirac_(kiln.ones(4, 1, 1), 3)


def test_fans_under_their_names(answers: Any) -> None:
    def fans(lib: Any, shape: tuple[int, ...]) -> Any:
        return lib.nn.init._calculate_fan_in_and_fan_out(lib.empty(shape))

    for shape in ((4, 3), (4, 3, 2, 5)):
        ours, theirs = answers.both(fans, shape)
        assert ours == theirs
        assert nn.init._calculate_correct_fan(kiln.empty(shape), "fan_out") == 4 * math.prod(shape[2:])
