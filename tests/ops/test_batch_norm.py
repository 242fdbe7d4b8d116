"""Batch normalisation as modules keep it: running statistics, evaluation, what is refused, beside PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_kiln

pytestmark = needs_kiln


def batches(shape: tuple[int, ...], count: int = 3) -> list[Any]:
    """Batches of other means and variances each."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape) * (k + 1) + k for k in range(count)]


def agree(ours: Any, theirs: Any, what: str = "") -> None:
    assert ours.shape == theirs.shape, what
    assert ours.ravel().tolist() == pytest.approx(theirs.ravel().tolist(), rel=1e-10, abs=1e-12), what


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
@pytest.mark.parametrize(
    ("name", "shape"),
    [("BatchNorm1d", (4, 3)), ("BatchNorm2d", (2, 3, 4, 2)), ("InstanceNorm1d", (2, 3, 4))],
)
def test_running_statistics(
    name: str, shape: tuple[int, ...], momentum: Any, recorded: bool, answers: Any
) -> None:
    """Statistics after each batch, and what evaluation makes of them."""
    options = {"momentum": momentum, "track_running_stats": True, "affine": True}

    def run(lib: Any, name: str, options: dict[str, Any], given: list[Any], recorded: bool) -> list[Any]:
        layer = getattr(lib.nn, name)(3, **options, dtype=lib.float64)
        call = lib.compile(layer) if recorded and lib.is_kiln else layer
        found: list[Any] = []

        def held() -> None:
            found.append({k: np.array(v.tolist()) for k, v in layer.state_dict().items()})

        for x in given:
            found.append(call(lib.from_numpy(x)).detach().numpy())
            held()
        layer.eval()
        found.append(call(lib.from_numpy(given[1])).detach().numpy())
        held()
        layer.reset_running_stats()
        held()
        return found

    for ours, theirs in zip(*answers.both(run, name, options, batches(shape), recorded), strict=True):
        if not isinstance(ours, dict):
            agree(ours, theirs)
            continue
        assert ours.keys() == theirs.keys()
        for key, value in ours.items():
            agree(value, theirs[key], key)


def test_statistics_take_no_part_in_gradients() -> None:
    layer = kiln.nn.BatchNorm1d(2)
    x = kiln.tensor([[1.0, 2.0], [3.0, 5.0]], requires_grad=True)
    for _ in range(2):
        layer(x).sum().backward()
    assert layer.running_mean.grad_fn is None and not layer.running_var.requires_grad


def test_one_value_per_channel_and_empty_batches() -> None:
    layer = kiln.nn.BatchNorm1d(2)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        layer(kiln.zeros(1, 2))
    with pytest.raises(ValueError, match=r"expected 2D or 3D input \(got 4D input\)"):
        layer(kiln.zeros(1, 2, 3, 4))
    with pytest.raises(RuntimeError, match="should contain 3 elements not 2"):
        layer(kiln.zeros(2, 3))
    assert layer.eval()(kiln.zeros(1, 2)).shape == (1, 2)


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_narrow_inputs_with_wide_statistics(half: str, answers: Any) -> None:
    """Parameters and statistics of float32 beside a narrow input, as mixed precision has them."""

    def run(lib: Any, x: Any, half: str) -> list[Any]:
        layer = lib.nn.BatchNorm1d(3)
        y = layer(lib.from_numpy(x).to(getattr(lib, half)))
        return [y.detach(), layer.running_var]

    (y, variance), (y_, variance_) = answers.both(run, batches((8, 3, 5))[0], half)
    assert y.dtype == y_.dtype == half
    assert y.numpy().ravel().tolist() == pytest.approx(y_.numpy().ravel().tolist(), abs=0.02)
    assert variance.tolist() == pytest.approx(variance_.tolist(), rel=1e-4)


def test_second_derivatives(answers: Any) -> None:
    def run(lib: Any, x: Any) -> list[float]:
        x = lib.from_numpy(x.copy()).requires_grad_()
        y = lib.nn.functional.batch_norm(x, None, None, training=True)
        (first,) = lib.autograd.grad((y**3).sum(), x, create_graph=True)
        found: list[float] = lib.autograd.grad((first**2).sum(), x)[0].flatten().tolist()
        return found

    ours, theirs = answers.both(run, batches((4, 2, 3))[0])
    assert ours == pytest.approx(theirs, rel=1e-8, abs=1e-9)
