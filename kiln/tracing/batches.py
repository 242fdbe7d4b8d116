"""Programs that are called with samples of a batch (`kiln.vmap`): what they check is asked of each sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kiln import _core
from kiln.func.batched import Batched, expect_randomness
from kiln.func.levels import levels
from kiln.ops.creation import constants
from kiln.tracing.captured import Captured
from kiln.tracing.graphs import bound_of
from kiln.tracing.ops import called


def results_of_batch(found: Captured, operands: list[Any], tensors: list[Any]) -> tuple[Any, ...]:
    """The results of a program's op; RuntimeError for what it cannot do for a batch."""
    if found.random:
        expect_randomness()
    if found.random and any(level.randomness == "different" for level in levels()):
        raise NotImplementedError(
            f"vmap: {found.name} is a program, which draws the same random numbers for every sample: map the "
            "function that it was made of, or draw the numbers outside"
        )
    for given in samples(operands) if found.checks else ():
        for check in found.checks:
            check.before(given)
    numbers = found.draw(operands)
    if found.by_steps:
        return _checked(found, operands, found.replay(tensors, numbers, call=_of_samples))
    made = found.op.handle(tensors, *([tuple(numbers)] if numbers else []))
    return _checked(found, operands, tuple(made) if isinstance(made, (tuple, list)) else (made,))


def _of_samples(step: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """One step on samples of a batch."""
    if isinstance(step.op, str) or step.op.kind == "called":
        done: tuple[Any, ...] = called(step, given)
        return done
    made = step.op.handle(*bound_of(step.op, step.structure, list(given)))
    return tuple(made) if isinstance(made, (tuple, list)) else (made,)


def _checked(found: Captured, operands: list[Any], results: tuple[Any, ...]) -> tuple[Any, ...]:
    """Results, of which each sample is as the program asks."""
    for given in samples([*operands, *results]) if found.checks else ():
        for check in found.checks:
            check.after(given[: len(operands)], tuple(given[len(operands) :]))
    return results


def samples(values: list[Any]) -> Iterator[list[Any]]:
    """The values of each sample of a batch, also of a batch of batches."""
    inner = max((x.level for x in values if type(x) is Batched), key=lambda level: level.number, default=None)
    if inner is None:
        yield [x.detach() if isinstance(x, _core.Tensor) else x for x in values]
        return
    for k in range(inner.size):
        yield from samples([x.whole[k] if type(x) is Batched and x.level is inner else x for x in values])


def looks_as_sample(x: Any) -> Any:
    """A tensor that looks as a sample does; another value as it is."""
    if type(x) is not Batched:
        return x
    whole: Any = x
    made = constants.zeros(tuple(x.shape), dtype=whole.dtype)
    return made.requires_grad_() if x.requires_grad else made
