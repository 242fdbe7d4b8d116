"""`autograd.grad` called inside a mapped function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kiln import _core, ops
from kiln.func.backward import gradients_of_batch
from kiln.func.batched import Batched
from kiln.func.levels import Level, levels
from kiln.func.wholes import batch_first, split_batch, whole


def levels_of(values: Sequence[Any]) -> list[Level]:
    """The levels whose samples are among the values."""
    found = set()
    for x in values:
        while type(x) is Batched:
            found.add(x.level)
            x = x.whole
    return [level for level in levels() if level in found]


def gradients(
    outputs: Sequence[Any], inputs: Sequence[Any], seeds: Sequence[Any], keep: bool, create: bool
) -> tuple[Any, ...]:
    """The gradients of each sample's outputs. Outputs of no batch with a batch of seeds are one pass.

    NotImplementedError for an input that all samples share where the outputs are samples.
    """
    own = levels_of(outputs)
    if any(levels_of([x]) != own for x in inputs):
        raise NotImplementedError(
            "grad: inside vmap an input that all samples share has a gradient per sample: use kiln.func.grad "
            "there, or pass the input mapped"
        )
    more = [level for level in levels_of(seeds) if level not in own]
    roots = [whole(y, own) for y in outputs]
    targets = [whole(x, own) for x in inputs]
    given = [
        batch_first(ops.ones_like(y.detach()) if s is None else s, own, more) for y, s in zip(outputs, seeds)
    ]
    if more:
        found: Any = gradients_of_batch(roots, targets, given, keep, create)
    else:
        found = _core.run_backward(tuple(roots), tuple(given), keep, create, tuple(targets), False)
    return tuple(None if g is None else split_batch(g, own, more) for g in found)
