"""Layers and samplers that go by the ranks of the program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run

import kiln
import kiln.distributed as dist

SIZES = [3, 5, 1]  # of the ranks' batches


def batch(rank: int) -> Any:
    return kiln.from_numpy(np.random.default_rng(rank).standard_normal((SIZES[rank], 4, 2, 3)))


def weights() -> Any:
    return kiln.from_numpy(np.random.default_rng(9).standard_normal((1, 4, 2, 3)))


def trained(norm: Any, x: Any) -> list[Any]:
    """Outputs, gradients and statistics after a step and another."""
    found: list[Any] = []
    for _ in range(2):
        x = x.detach().requires_grad_()
        y = norm(x)
        (y * y * weights()).sum().backward()
        found += [y.detach(), x.grad, norm.weight.grad.clone(), norm.bias.grad.clone()]
    return [
        *found,
        norm.running_mean,
        norm.running_var,
        norm.num_batches_tracked,
        norm.eval()(x.detach()).detach(),
    ]


def synchronised(rank: int, size: int, momentum: float | None) -> list[Any]:
    norm = kiln.nn.SyncBatchNorm(4, momentum=momentum, dtype=kiln.float64)
    return [x.tolist() for x in trained(norm, batch(rank))]


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_norm_over_all_ranks(momentum: float | None, tmp_path: Path) -> None:
    """Values, gradients of inputs and statistics are those of one process that has all batches; gradients of
    weights add up to its own.
    """
    size = len(SIZES)
    norm = kiln.nn.BatchNorm2d(4, momentum=momentum, dtype=kiln.float64)
    whole = trained(norm, kiln.cat([batch(q) for q in range(size)]))
    found = run(synchronised, size, tmp_path, momentum)
    for k, expected in enumerate(whole):
        parts = [np.array(row[k]) for row in found]
        if k < 8 and k % 4 in (2, 3):
            got = sum(parts)
        elif k in (0, 1, 4, 5, 11):
            got = np.concatenate(parts)
        else:
            assert all(np.array_equal(part, parts[0]) for part in parts)
            got = parts[0]
        np.testing.assert_allclose(got, expected.numpy(), rtol=1e-9, atol=1e-12)


def sampled(rank: int, size: int) -> list[Any]:
    sampler = kiln.utils.data.DistributedSampler(range(10), shuffle=False)
    loader = kiln.utils.data.DataLoader(list(range(10)), batch_size=2, sampler=sampler, num_workers=1)
    return [list(sampler), [x.tolist() for x in loader], sampler.num_replicas]


def test_a_sampler_asks_the_group(tmp_path: Path) -> None:
    for rank, found in enumerate(run(sampled, 2, tmp_path)):
        own = list(range(rank, 10, 2))
        assert found == [own, [own[:2], own[2:4], own[4:]], 2]


def test_without_a_group() -> None:
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        kiln.utils.data.DistributedSampler(range(10))
    x = kiln.randn(4, 3, 2, 2)
    ours, plain = kiln.nn.SyncBatchNorm(3), kiln.nn.BatchNorm2d(3)
    assert kiln.equal(ours(x), plain(x))
