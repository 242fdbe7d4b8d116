"""How near rows are to each other, as modules, and choices drawn with a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln import ops
from kiln._core import Tensor
from kiln.errors import describe, message, warn
from kiln.nn.module import Module
from kiln.table.callables import draws, named


@draws
def gumbel_softmax(
    logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    """A sample of the categories along `dim`, of logits' shape: softmax((logits + Gumbel noise) / tau).

    `hard`: one-hot, with the gradient of the soft sample. `eps` does nothing, as in PyTorch. IndexError for a
    dim out of range.
    """
    if eps != 1e-10:
        warn("`eps` parameter is deprecated and has no effect.")
    noise = -ops.empty_like(logits.detach()).exponential_().log()
    soft: Tensor = ops.softmax((logits + noise) / tau, dim)
    if not hard:
        return soft
    index = soft.detach().max(dim, keepdim=True)[1]
    one = ops.zeros_like(soft.detach()).scatter_(dim, index, 1.0)
    drawn: Tensor = one - soft.detach() + soft
    return drawn


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """max(0, margin + d(anchor, positive) - d(anchor, negative)) for a distance d (None: pairwise_distance).

    `swap`: the nearer of anchor and positive is held against the negative. RuntimeError for different numbers
    of dims, ValueError for a margin that is not positive or another `reduction`.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    if not margin > 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    if not anchor.ndim == positive.ndim == negative.ndim:
        raise RuntimeError(
            "triplet_margin_with_distance_loss: The anchor, positive, and negative tensors are expected "
            f"to have the same number of dimensions, but got: anchor {anchor.ndim}D, positive "
            f"{positive.ndim}D, and negative {negative.ndim}D inputs"
        )
    distance: Any = ops.pairwise_distance if distance_function is None else distance_function
    far = distance(anchor, negative)
    if swap:
        far = ops.minimum(far, distance(positive, negative))
    loss: Tensor = (margin + distance(anchor, positive) - far).clamp_min(0)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


for _name in ("gumbel_softmax", "triplet_margin_with_distance_loss"):
    globals()[_name] = named(_name, globals()[_name], raw=False)  # as layers call them too


class TripletMarginWithDistanceLoss(Module):
    """An anchor nearer to one than to another; see `functional.triplet_margin_with_distance_loss`."""

    def __init__(
        self,
        *,
        distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        if margin <= 0:
            raise ValueError(message("TripletMarginWithDistanceLoss", "a margin above 0", describe(margin)))
        self.distance_function = distance_function
        self.margin, self.swap, self.reduction = margin, swap, reduction

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return triplet_margin_with_distance_loss(
            anchor,
            positive,
            negative,
            distance_function=self.distance_function,
            margin=self.margin,
            swap=self.swap,
            reduction=self.reduction,
        )


class CosineSimilarity(Module):
    """The cosine of the angle between two tensors along `dim`; see `functional.cosine_similarity`."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        y: Tensor = ops.cosine_similarity(x1, x2, self.dim, self.eps)
        return y


class PairwiseDistance(Module):
    """The p-norm of two tensors' difference along the last dim; see `functional.pairwise_distance`."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        y: Tensor = ops.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)
        return y
