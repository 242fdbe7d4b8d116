"""Batch normalisation as modules keep it: running statistics, evaluation, what is refused, beside PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
from backend import kiln, needs_kiln, needs_torch, torch

pytestmark = needs_kiln


def batches(shape: tuple[int, ...], count: int = 3) -> list[Any]:
    """Batches of other means and variances each."""
    made = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=made, dtype=torch.float64) * (k + 1) + k for k in range(count)]


def agree(ours: Any, theirs: Any) -> None:
    assert ours.tolist() == pytest.approx(theirs.tolist(), rel=1e-10, abs=1e-12)


def as_far(ours: Any, theirs: Any) -> None:
    """Whether two modules hold the same."""
    want = theirs.state_dict()
    for name, value in ours.state_dict().items():
        agree(value.flatten(), want[name].flatten())


@needs_torch
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
@pytest.mark.parametrize(
    ("name", "shape"),
    [("BatchNorm1d", (4, 3)), ("BatchNorm2d", (2, 3, 4, 2)), ("InstanceNorm1d", (2, 3, 4))],
)
def test_running_statistics(name: str, shape: tuple[int, ...], momentum: Any, recorded: bool) -> None:
    """Statistics after each batch, and what evaluation makes of them."""
    options = {"momentum": momentum, "track_running_stats": True, "affine": True}
    ours = getattr(kiln.nn, name)(3, **options, dtype=kiln.float64)
    theirs = getattr(torch.nn, name)(3, **options, dtype=torch.float64)
    run = kiln.compile(ours) if recorded else ours
    for x in batches(shape):
        agree(run(kiln.from_numpy(x.numpy())).flatten(), theirs(x).flatten())
        as_far(ours, theirs)
    ours.eval(), theirs.eval()
    x = batches(shape)[1]
    agree(run(kiln.from_numpy(x.numpy())).flatten(), theirs(x).flatten())
    as_far(ours, theirs)
    ours.reset_running_stats(), theirs.reset_running_stats()
    as_far(ours, theirs)


@needs_torch
def test_statistics_take_no_part_in_gradients() -> None:
    layer = kiln.nn.BatchNorm1d(2)
    x = kiln.tensor([[1.0, 2.0], [3.0, 5.0]], requires_grad=True)
    for _ in range(2):
        layer(x).sum().backward()
    assert layer.running_mean.grad_fn is None and not layer.running_var.requires_grad


@needs_torch
def test_one_value_per_channel_and_empty_batches() -> None:
    layer = kiln.nn.BatchNorm1d(2)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        layer(kiln.zeros(1, 2))
    with pytest.raises(ValueError, match=r"expected 2D or 3D input \(got 4D input\)"):
        layer(kiln.zeros(1, 2, 3, 4))
    with pytest.raises(RuntimeError, match="should contain 3 elements not 2"):
        layer(kiln.zeros(2, 3))
    assert layer.eval()(kiln.zeros(1, 2)).shape == (1, 2)


@needs_torch
@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_narrow_inputs_with_wide_statistics(half: str) -> None:
    """Parameters and statistics of float32 beside a narrow input, as mixed precision has them."""
    x = batches((8, 3, 5))[0]
    ours, theirs = kiln.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    y = ours(kiln.from_numpy(x.numpy()).to(getattr(kiln, half)))
    y_ = theirs(x.to(getattr(torch, half)))
    assert str(y.dtype).endswith(half)
    assert y.float().flatten().tolist() == pytest.approx(y_.float().flatten().tolist(), abs=0.02)
    assert ours.running_var.tolist() == pytest.approx(theirs.running_var.tolist(), rel=1e-4)


@needs_torch
def test_second_derivatives() -> None:
    made = batches((4, 2, 3))[0]
    found = []
    for f, x in ((kiln, kiln.from_numpy(made.numpy())), (torch, made.clone())):
        x.requires_grad_()
        y = f.nn.functional.batch_norm(x, None, None, training=True)
        (first,) = f.autograd.grad((y**3).sum(), x, create_graph=True)
        found.append(f.autograd.grad((first**2).sum(), x)[0].flatten().tolist())
    assert found[0] == pytest.approx(found[1], rel=1e-8, abs=1e-9)
