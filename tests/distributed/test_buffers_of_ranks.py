"""`DistributedDataParallel`: when buffers are those of rank 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ranks
from test_data_parallel import STEPS, Net, bits, chain, grads, inputs, made

import kiln
from kiln import nn
from kiln.nn.parallel import DistributedDataParallel as Parallel


def begins(rank: int, size: int) -> list[Any]:
    model = Parallel(made(Net, seed=rank), find_unused_parameters=True)
    first = bits(model.state_dict().values())
    model(inputs(0, rank)).sum().backward()
    model.module.norm.running_mean.fill_(float(rank))
    model(inputs(1, rank)).sum().backward()
    return [first, list(model.state_dict()), model.will_sync_module_buffers()]


def test_parameters_and_buffers_begin_as_those_of_rank_0(tmp_path: Path) -> None:
    found = ranks.run(begins, 2, tmp_path)
    expected = made(Net, seed=0).state_dict()
    assert found[0] == found[1] == [bits(expected.values()), [f"module.{name}" for name in expected], True]


def buffers(rank: int, size: int, options: dict[str, Any]) -> list[Any]:
    model = Parallel(made(Net), find_unused_parameters=True, **options)
    model.module.norm.running_mean.fill_(float(rank))
    model(kiln.zeros(4, 5)).sum().backward()
    return bits([model.module.norm.running_mean])


def test_buffers_are_those_of_rank_0_before_a_forward_in_training(tmp_path: Path) -> None:
    first, second = ranks.run(buffers, 2, tmp_path, {})
    assert first == second
    first, second = ranks.run(buffers, 2, tmp_path, {"broadcast_buffers": False})
    assert first != second


def evaluates(rank: int, size: int, context: Any) -> list[Any]:
    """Running means after a step, and after evaluations that follow it."""
    model = Parallel(made(Net), find_unused_parameters=True)
    mean = model.module.norm.running_mean
    found = []
    for step in range(STEPS):
        model(inputs(step, rank)).sum().backward()
        model.eval()
        found.append(bits([mean]))
        with context():
            asked = model.will_sync_module_buffers()
            model(inputs(0, rank))
            found.append(bits([mean]))
            assert asked and not model.will_sync_module_buffers()
            mean.fill_(float(rank))  # of which the others hear only with the next sync
            model(inputs(1, rank))
            assert mean.tolist() == [rank] * 8
        model.train()
    return found


@pytest.mark.parametrize("context", [kiln.no_grad, kiln.inference_mode])
def test_buffers_are_those_of_rank_0_in_evaluation(context: Any, tmp_path: Path) -> None:
    first, second = ranks.run(evaluates, 2, tmp_path, context)
    assert first[1::2] == second[1::2] and all(a != b for a, b in zip(first[::2], second[::2]))


def evaluates_alone(rank: int, size: int) -> list[Any]:
    """As `evaluates`, of a model whose buckets are built anew after the first step."""
    model = Parallel(nn.Sequential(chain(), nn.BatchNorm1d(3)), bucket_cap_mb=0.0001)
    found = []
    for step in range(STEPS):
        model(inputs(step, rank)).square().sum().backward()
        if rank == 0:
            with kiln.no_grad():
                model.eval()(inputs(9, rank))
            model.train()
        found.append(grads(model))
    with kiln.no_grad():
        model.eval()
        if rank == 1:
            model(inputs(9, rank))
    return [found, bits(model.module.buffers())]


@pytest.mark.parametrize("sent", [False, True])
def test_a_rank_that_evaluates_alone(sent: bool, tmp_path: Path) -> None:
    first, second = ranks.run(evaluates_alone, 2, tmp_path, sent=sent)
    assert first == second


def evaluates_in_join(rank: int, size: int) -> list[Any]:
    model = Parallel(made(Net), find_unused_parameters=True)
    found = []
    with model.join():
        for step in range(1 + 2 * rank):
            model(inputs(step, rank)).sum().backward()
            with kiln.no_grad():
                model.eval()(inputs(9, rank))
            model.train()
            found.append(bits(model.module.buffers()))
    return [found[0], bits(model.module.buffers())]


def test_evaluation_by_ranks_with_different_numbers_of_inputs(tmp_path: Path) -> None:
    first, second = ranks.run(evaluates_in_join, 2, tmp_path)
    assert first == second
