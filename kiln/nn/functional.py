"""The layers' mathematics as functions, under PyTorch's names.

What is written here is what the table does not say by itself: another default, `inplace`, an embedding's
padding.
An op of the table that is a function and no method is here under its own name.
Reductions are "mean", "sum" or "none".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kiln import ops
from kiln._core import Tensor
from kiln.errors import describe, message

_REDUCTIONS = ("none", "mean", "sum")
_OPS: dict[str, Any] = {op.name: op.handle for op in ops.table() if op.public and not op.method}
_OPS["pdist"] = ops.pdist


def __getattr__(name: str) -> Any:
    if name not in _OPS:
        raise AttributeError(f"kiln.nn.functional has no function '{name}'")
    return _OPS[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_OPS})


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input @ weight.T + bias: (..., in), (out, in), (out) -> (..., out)."""
    y: Tensor = ops.linear(input, weight, bias)
    return y


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(input, 0), elementwise."""
    y: Tensor = input.relu_() if inplace else ops.relu(input)
    return y


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """input times the normal distribution function at input; approximate="tanh" takes the tanh formula."""
    y: Tensor = ops.gelu(input, approximate=approximate)
    return y


def tanh(input: Tensor) -> Tensor:
    """The hyperbolic tangent, elementwise."""
    y: Tensor = ops.tanh(input)
    return y


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(-input)), elementwise."""
    y: Tensor = ops.sigmoid(input)
    return y


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """input * sigmoid(input), elementwise."""
    y: Tensor = ops.silu(input, **_into(input, inplace))
    return y


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """input where it is positive, else negative_slope * input."""
    y: Tensor = ops.leaky_relu(input, negative_slope, **_into(input, inplace))
    return y


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """input where it is positive, else alpha * (exp(input) - 1)."""
    y: Tensor = ops.elu(input, alpha, **_into(input, inplace))
    return y


def softmax(input: Tensor, dim: int | None = None, *, dtype: Any = None) -> Tensor:
    """exp(input) over its sum along `dim` (None is an error); `dtype` converts the input first."""
    y: Tensor = ops.softmax(_as(input, dtype), _dim("softmax", dim))
    return y


def log_softmax(input: Tensor, dim: int | None = None, *, dtype: Any = None) -> Tensor:
    """The logarithm of softmax, computed without overflow."""
    y: Tensor = ops.log_softmax(_as(input, dtype), _dim("log_softmax", dim))
    return y


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Zero mean and unit variance over the trailing dims `normalized_shape`, then times weight plus bias."""
    y: Tensor = ops.layer_norm(input, tuple(normalized_shape), weight, bias, eps)
    return y


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of `weight` (num, dim) at the integers `input` (...) -> (..., dim).

    No gradient flows to row `padding_idx`. Raises IndexError for an index outside [0, num).
    """
    rows: Tensor = ops.embedding(input, weight)
    if padding_idx is None:
        return rows
    num = weight.shape[0]
    if not -num <= padding_idx < num:
        raise ValueError(message("embedding", f"padding_idx within {num} rows", describe(padding_idx)))
    padding = (input == padding_idx % num).unsqueeze(-1)
    masked: Tensor = ops.where(padding, rows.detach(), rows)
    return masked


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Each element zeroed with probability p, the others divided by 1 - p; no change unless `training`."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(message("dropout", "a probability p in [0, 1]", describe(p)))
    if not training or p == 0.0:
        return input
    y: Tensor = ops.dropout(input, p, training, inplace)
    return y


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Minus the log-probability of `target` under the logits `input`.

    input (N, C), (C) or (N, C, d...); target: class indices, or probabilities of input's shape. "mean"
    divides by the targets' weight, ignored ones left out.
    """
    _reduction("cross_entropy", reduction)
    options: dict[str, Any] = {"weight": weight, "ignore_index": ignore_index, "reduction": reduction}
    loss: Tensor = ops.cross_entropy(input, target, **options, label_smoothing=label_smoothing)
    return loss


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """(input - target)**2, averaged, summed or elementwise."""
    _reduction("mse_loss", reduction)
    loss: Tensor = ops.mse_loss(input, target, reduction=reduction)
    return loss


def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """|input - target|, averaged, summed or elementwise."""
    _reduction("l1_loss", reduction)
    loss: Tensor = ops.l1_loss(input, target, reduction=reduction)
    return loss


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Minus the log-probability that `input` (N, C), (C) or (N, C, d...) gives the classes `target`.

    "mean" divides by the targets' weight, ignored ones left out.
    """
    _reduction("nll_loss", reduction)
    loss: Tensor = ops.nll_loss(input, target, weight, ignore_index, reduction)
    return loss


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """The cross entropy of sigmoid(input) and `target` in [0, 1], of one shape; computed without overflow.

    `weight` scales every term, `pos_weight` those of the positive class; both broadcast.
    """
    _reduction("binary_cross_entropy_with_logits", reduction)
    _same_sizes(input, target)
    loss: Tensor = ops.binary_cross_entropy_with_logits(input, target, weight, reduction, pos_weight)
    return loss


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """The cross entropy of probabilities `input` and `target`, of one shape; finite at 0 and 1.

    `weight` scales every term and broadcasts.
    """
    _reduction("binary_cross_entropy", reduction)
    _same_sizes(input, target)
    loss: Tensor = ops.binary_cross_entropy(input, target, weight, reduction)
    return loss


def kl_div(input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """The divergence of probabilities `target` from those whose logarithms `input` holds.

    "batchmean" is the sum over the size of dim 0; `log_target`: the target holds logarithms too.
    """
    loss: Tensor = ops.kl_div(input, target, reduction, log_target)
    return loss


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """int64 (...) -> (..., num_classes): 1 at the index, 0 elsewhere; -1 takes the largest index + 1."""
    hot: Tensor = ops.one_hot(tensor, num_classes)
    return hot


def _into(input: Tensor, inplace: bool) -> dict[str, Tensor]:
    """The keyword of a call whose result is written over its input, if it is to be."""
    return {"out": input} if inplace else {}


def _as(input: Tensor, dtype: Any) -> Tensor:
    """`input` as `dtype`, or as it is."""
    converted: Tensor = input if dtype is None else input.to(dtype)
    return converted


def _dim(op: str, dim: int | None) -> int:
    """The dim to normalise along."""
    if dim is None:
        raise TypeError(message(op, "a dim", "None", "pass dim=-1 for the last one"))
    return dim


def _same_sizes(input: Tensor, target: Tensor) -> None:
    if input.shape != target.shape:
        raise ValueError(
            f"Target size ({list(target.shape)}) must be the same as input size ({list(input.shape)})"
        )


def _reduction(op: str, reduction: str) -> None:
    if reduction not in _REDUCTIONS:
        raise ValueError(message(op, f"reduction in {_REDUCTIONS}", describe(reduction)))
