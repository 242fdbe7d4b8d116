"""What losses share: the reduction of a loss per element, and samples of losses of two arrays."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln._core import result_type
from kiln.ops.elementwise.precision import narrow, wide
from kiln.ops.reductions.core_reductions import reduce_sum
from kiln.table import drawn as d
from kiln.table.arguments import count_of
from kiln.table.record import Tensor


def check_reduction(reduction: str) -> None:
    """ValueError unless a reduction is one of the three."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")


def everything(x: Tensor) -> tuple[int, ...]:
    """All dims of an array."""
    return tuple(range(x.ndim))


def difference(input: Tensor, target: Tensor) -> tuple[Any, str]:
    """input - target, wide, and its dtype. PyTorch broadcasts the two first, so that an array without dims
    counts for the dtype as any other.
    """
    dtype = result_type([(x.dtype, 0) for x in (input, target)])
    return wide(narrow(input, dtype)) - wide(narrow(target, dtype)), dtype


def reduced(loss: Any, reduction: str) -> Any:
    """A loss per element as it was asked for."""
    check_reduction(reduction)
    if reduction == "none":
        return loss
    total = reduce_sum(loss, everything(loss), False)
    return total if reduction == "sum" else total / count_of(loss, everything(loss))


def weighted(loss: Any, weight: Tensor, reduction: str) -> Tensor:
    """A loss per element times its weight, as it was asked for: the mean is over the weights."""
    if weight is None:
        return reduced(loss, reduction)
    check_reduction(reduction)
    w = wide(weight)
    if reduction != "mean":
        return reduced(loss * w, reduction)
    return reduce_sum(loss * w, everything(loss), False) / reduce_sum(w, everything(w), False)


def elements(formula: Any) -> Any:
    """The reference of a loss of two arrays from its formula."""

    def call(np: ModuleType, x: Any, y: Any, reduction: str = "mean", **more: Any) -> Any:
        loss = np.asarray(formula(np, x, y, **more))
        return loss if reduction == "none" else np.asarray(loss.mean() if reduction == "mean" else loss.sum())

    return d.reference(call)


def pairs(low: float = -3.0, high: float = 3.0) -> Any:
    """Samples of a loss of two arrays, the second in [low, high), for every reduction."""

    def make(reduction: str) -> Any:
        return lambda rng, t: (
            (d.array(rng, (3, 5), t), d.array(rng, (3, 5), t, low, high)),
            {"reduction": reduction},
        )

    return d.samples(*map(make, ("mean", "sum", "none")))


BAD_REDUCTION = d.failures(
    ((d.Zeros(2), d.Zeros(2)), {"reduction": "x"}, ValueError, "not a valid value for reduction")
)
