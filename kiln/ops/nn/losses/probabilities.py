"""Losses between probabilities: binary cross entropy, the divergence of Kullback and Leibler."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln.ops.elementwise.arithmetic import larger, maximum, where
from kiln.ops.elementwise.comparison import eq
from kiln.ops.elementwise.elementary import exp, log, log1p
from kiln.ops.elementwise.precision import floating, narrow, wide
from kiln.ops.nn.losses.common import BAD_REDUCTION, check_reduction, elements, pairs, reduced
from kiln.ops.nn.smooth_activations import logsigmoid
from kiln.ops.reductions.core_reductions import reduce_sum
from kiln.scalars import mathematics as m
from kiln.scalars.scalar import const
from kiln.table import drawn as d
from kiln.table import kinds
from kiln.table.arguments import number
from kiln.table.record import Operand, Structure, Tensor, composite, pointwise


def _logits(np: ModuleType, x: Any, y: Any, weight: Any = None, pos_weight: Any = None) -> Any:
    rise = 1 if pos_weight is None else (pos_weight - 1) * y + 1
    loss = (1 - y) * x + rise * np.logaddexp(0, -x)
    return (loss if weight is None else loss * weight).astype(x.dtype)


@composite(
    samples=pairs(0, 1),
    differs="a derivative by `weight` too",
    reference=elements(_logits),
    failures=BAD_REDUCTION,
    method=False,
    tests=d.Tests(kinks=lambda np: (np.array([-800.0, 0.0, 800.0]), np.array([1.0, 0.5, 0.0]))),
)
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: Structure = "mean",
    pos_weight: Tensor | None = None,
) -> Any:
    """The cross entropy of sigmoid(input) and `target` (in [0, 1]), each element times `weight`, positives
    times `pos_weight`. ValueError for shapes that differ or another `reduction`.

    >>> kiln.nn.functional.binary_cross_entropy_with_logits(kiln.tensor([0.0]), kiln.tensor([1.0]))
    tensor(0.6931)
    """
    check_reduction(reduction)
    if len(input.shape) != len(target.shape):
        raise ValueError(
            f"Target size ({list(target.shape)}) must be the same as input size ({list(input.shape)})"
        )
    for a, b in zip(input.shape, target.shape):
        input.graph.require_equal(a, b, "binary_cross_entropy_with_logits")
    x, y = floating(input, "binary_cross_entropy"), wide(target)
    below = logsigmoid(x)
    loss = (1 - y) * x - (below if pos_weight is None else ((wide(pos_weight) - 1) * y + 1) * below)
    return narrow(reduced(loss if weight is None else loss * wide(weight), reduction), input.dtype)


def _loss_of(formula: Any) -> Any:
    """The reference of a loss of two arrays from its formula."""

    def call(np: ModuleType, x: Any, y: Any, *more: Any, reduction: str = "mean", **options: Any) -> Any:
        loss = np.asarray(formula(np, x, y, *more, **options)).astype(x.dtype)
        total = {"none": loss, "sum": loss.sum(), "mean": loss.mean(), "batchmean": loss.sum() / len(x)}
        return np.asarray(total[reduction])

    return d.reference(call)


def _entropies(np: ModuleType, x: Any, y: Any, weight: Any = None) -> Any:
    loss = -(y * np.maximum(np.log(x), -100) + (1 - y) * np.maximum(np.log1p(-x), -100))
    return loss if weight is None else loss * weight


@pointwise(
    "float",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t, 0.05, 0.95), d.array(rng, (5,), t, 0, 1)), {}),
        lambda rng, t: ((d.array(rng, (37,), t, 0.05, 0.95), d.array(rng, (37,), t, 0, 1)), {}),
    ),
    reference=d.reference(_entropies),
    failures=d.not_broadcastable,
    public=False,
)
def binary_entropy(input: Operand, target: Operand) -> Any:
    """`-(target * log(input) + (1 - target) * log(1 - input))`, each logarithm at least -100.

    >>> kiln.nn.functional.binary_cross_entropy(kiln.tensor([0.0]), kiln.tensor([1.0]))
    tensor(100.)
    """
    least = const(-100.0, input.type)
    yes, no = larger(m.log(input), least), larger(m.log1p(-input), least)
    return -(target * yes + (1 - target) * no)


@binary_entropy.derivative
def _(g: Tensor, input: Tensor, target: Tensor) -> Any:
    odds = maximum(log1p(-input), -100.0) - maximum(log(input), -100.0)
    return g * ((input - target) / maximum(input * (1 - input), 1e-12)), g * odds


@composite(
    differs="a derivative by `weight` too; that by `target` is of the bounded logarithms",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t, 0.05, 0.95), d.array(rng, (3, 5), t, 0, 1)), {}),
        lambda rng, t: (
            (d.array(rng, (3, 5), t, 0.05, 0.95), d.array(rng, (3, 5), t, 0, 1), d.array(rng, (5,), t)),
            {"reduction": "none"},
        ),
    ),
    reference=_loss_of(_entropies),
    failures=d.failures(
        ((d.Zeros(2), d.Zeros(2)), {"reduction": "x"}, ValueError, "not a valid value for reduction")
    ),
    method=False,
    tests=d.Tests(peer_gradient=False),
)
def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: Structure = "mean"
) -> Any:
    """The cross entropy of probabilities `input` and `target`, each element times `weight`, finite.

    A logarithm counts as at least -100, and NaN outside [0, 1]. ValueError for another `reduction`.

    >>> kiln.nn.functional.binary_cross_entropy(kiln.tensor([0.5]), kiln.tensor([1.0]))
    tensor(0.6931)
    """
    loss = binary_entropy(floating(input, "binary_cross_entropy"), wide(target))
    return narrow(reduced(loss if weight is None else loss * wide(weight), reduction), input.dtype)


def _divergence(np: ModuleType, x: Any, y: Any, log_target: bool = False) -> Any:
    if log_target:
        return np.exp(y) * (y - x)
    return np.where(y > 0, y * (np.log(np.where(y > 0, y, 1)) - x), 0)


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t, -3, 0), d.array(rng, (3, 5), t, 0.1, 1)), {}),
        lambda rng, t: (
            (d.array(rng, (3, 5), t, -3, 0), d.array(rng, (3, 5), t, -3, 0)),
            {"reduction": "batchmean", "log_target": True},
        ),
    ),
    reference=_loss_of(_divergence),
    failures=d.failures(
        ((d.Zeros(2), d.Zeros(2)), {"reduction": "x"}, ValueError, "not a valid value for reduction")
    ),
    method=False,
    differs="the gradient by a `target` of 0 is -`input`; PyTorch's is NaN",
    tests=d.Tests(keeps_less="logarithms or exponentials"),
)
def kl_div(
    input: Tensor, target: Tensor, reduction: Structure = "mean", log_target: Structure = False
) -> Any:
    """The divergence of probabilities `target` from those whose logarithms `input` holds.

    `log_target`: the target holds logarithms too. "batchmean" divides the sum by the size of dim 0.
    ValueError for another `reduction`.

    >>> kiln.nn.functional.kl_div(kiln.tensor([0.0]), kiln.tensor([1.0]))
    tensor(0.)
    """
    dtype = kinds.result_type((input, target))
    x, y = floating(input, "kl_div"), wide(target)
    if log_target:
        loss = exp(y) * (y - x)
    else:
        zero = eq(y, 0)
        loss = where(zero, 0, y * log(where(zero, 1, y))) - y * x
    if reduction != "batchmean":
        check_reduction(reduction)
        return narrow(reduced(loss, reduction), dtype)
    total = reduce_sum(loss, tuple(range(loss.ndim)), False)
    return narrow(total / number(loss, input.shape[0] if input.ndim else 1), dtype)
