"""The cross entropy of a linear layer's results: of a language model's head, say.

    loss = cross_entropy(linear(input, linear_weight, linear_bias), target)

Where options say so the logits are made for some rows at a time, and again when backward needs them, so that
those of all rows are never there at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln import ops
from kiln._core import Tensor
from kiln.autograd import Function
from kiln.errors import warn

if TYPE_CHECKING:
    from kiln._typed.words import DType

_POLICIES = ("auto", "accurate", "balanced", "compact")
_REDUCTIONS = ("mean", "sum", "none")


@dataclass(slots=True, frozen=True)
class LinearCrossEntropyOptions:
    """How many rows' logits are there at a time.

    `batch_chunk_size` says it in rows. Else `chunking_method` "aspect_ratio" takes as many rows as make
    logits of the input's size, "aspect_ratio:N" an N-th of that, "auto" half of it, None all rows. The
    rest of PyTorch's options chooses nothing: gradients may be asked for twice, and are added up in their
    own dtype. ValueError for a value none of them has.

    >>> kiln.nn.LinearCrossEntropyOptions(batch_chunk_size=64).rows(1000, 32, 5000)
    64
    >>> kiln.nn.LinearCrossEntropyOptions().rows(1000, 32, 5000)
    4
    """

    allow_retain_graph: bool = False
    batch_chunk_size: int | None = None
    chunking_method: str | None = "auto"
    acc_policy: str = "auto"
    acc_dtype: DType | None = None

    def __post_init__(self) -> None:
        if self.acc_policy not in _POLICIES:
            raise ValueError(f"invalid acc_policy: {self.acc_policy!r}")
        if self._factor() == 0:
            raise ValueError(f"invalid chunking_method: {self.chunking_method!r}")
        size = self.batch_chunk_size
        if size is not None and not (isinstance(size, int) and size > 0):
            raise ValueError(f"batch_chunk_size must be positive int or None, got {size!r}")
        if not getattr(self.acc_dtype, "is_floating_point", self.acc_dtype is None):
            raise ValueError(f"acc_dtype must be a floating dtype or None, got {self.acc_dtype!r}")

    def _factor(self) -> int:
        """What the rows of "aspect_ratio" are divided by; 0: no such method."""
        if self.chunking_method in (None, "auto"):
            return 2
        name, _, factor = str(self.chunking_method).partition(":")
        factor = factor or "1"
        return int(factor) if name == "aspect_ratio" and factor.isdigit() else 0

    def rows(self, count: int, in_features: int, num_classes: int) -> int:
        """The rows of a chunk, of `count`."""
        if self.batch_chunk_size is not None:
            return self.batch_chunk_size
        if self.chunking_method is None:
            return max(count, 1)
        wider = -(-num_classes // max(in_features, 1))
        power = 1 << max(-(-count // max(wider, 1)) - 1, 0).bit_length()
        return max(power // self._factor(), 1)


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: LinearCrossEntropyOptions | None = None,
) -> Tensor:
    """cross_entropy(linear(input, linear_weight, linear_bias), target, ...): input (in) or (n, in),
    linear_weight (classes, ..., in), target the classes (n, ...) or probabilities (n, classes, ...).

    `ignore_index` not given is -100, and may not be given with probabilities. With `options` the logits of
    some rows are there at a time. RuntimeError for sizes that do not fit.

    >>> x, w = kiln.ones(2, 3), kiln.zeros(4, 3)
    >>> kiln.nn.functional.linear_cross_entropy(x, w, kiln.tensor([0, 3]))
    tensor(1.3863)
    """
    classes, more = linear_weight.shape[0] if linear_weight.ndim else 0, tuple(linear_weight.shape[1:-1])
    _check(input, linear_weight, linear_bias)
    batch = tuple(input.shape[:-1])
    if tuple(target.shape) == (*batch, classes, *more) and ignore_index is not None:
        raise RuntimeError("ignore_index cannot be specified when target contains probabilities")
    ignored = -100 if ignore_index is None else ignore_index
    if options is not None:
        plain = (
            not more and reduction in _REDUCTIONS and label_smoothing == 0 and not target.is_floating_point()
        )
        if plain and batch:
            rows = options.rows(batch[0], int(input.shape[-1]), classes)
            return _in_chunks(input, linear_weight, target, linear_bias, weight, reduction, ignored, rows)
        if not plain:
            warn(
                "linear_cross_entropy: options are ignored: rows are taken in parts for class indices, "
                "without label_smoothing, and without further dims of linear_weight"
            )
    flat = linear_weight.reshape(-1, linear_weight.shape[-1])
    bias = linear_bias if linear_bias is None else linear_bias.reshape(-1)
    logits = ops.linear(input, flat, bias).reshape(*batch, classes, *more)
    found: Tensor = ops.cross_entropy(logits, target, weight, ignored, reduction, label_smoothing)
    return found


def _check(input: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """RuntimeError where sizes do not fit."""
    if input.ndim not in (1, 2):
        raise RuntimeError(f"expected input with dimensionality 1 or 2, got {input.ndim}")
    if weight.ndim < 2:
        raise RuntimeError(f"expected linear_weight with dimensionality at least 2, got {weight.ndim}")
    if input.shape[-1] != weight.shape[-1]:
        raise RuntimeError(
            "expected equal input and linear_weight last dimensions (in_features), got "
            f"{input.shape[-1]} and {weight.shape[-1]}, respectively"
        )
    if bias is not None and tuple(bias.shape) != tuple(weight.shape[:-1]):
        raise RuntimeError(f"expected linear_bias shape {tuple(weight.shape[:-1])}, got {tuple(bias.shape)}")
    if weight.ndim > 2 and input.ndim == 1:
        raise RuntimeError(
            f"K-dimensional loss defined by linear_weight shape {tuple(weight.shape)} requires batched "
            f"input, (N, {input.shape[-1]}), got unbatched input with shape {tuple(input.shape)}"
        )


class _InChunks(Function):
    """Minus the log-probability of each row's class, of so many rows after the other.

    Of rows x, logits z = x W^T + b and their classes y it is log(sum(exp(z))) - z[y], whose derivative by z
    is softmax(z) - onehot(y). z is made again by backward.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, y: Tensor, rows: int) -> Any:
        """The losses (n)."""
        ctx.save_for_backward(x, w, b, y)
        ctx.rows = rows
        starts = range(0, max(int(x.shape[0]), 1), rows)
        parts = [
            ops.cross_entropy(ops.linear(x[k : k + rows], w, b), y[k : k + rows], reduction="none")
            for k in starts
        ]
        return ops.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """By x, w and b."""
        x, w, b, y = ctx.saved_tensors
        by_x, by_w, by_b = [], ops.zeros_like(w), None if b is None else ops.zeros_like(b)
        for k in range(0, int(x.shape[0]), ctx.rows):
            part, own = x[k : k + ctx.rows], y[k : k + ctx.rows, None]
            by_z = ops.softmax(ops.linear(part, w, b), 1)
            by_z = by_z.scatter_add(1, own, -ops.ones_like(own, dtype=by_z.dtype))
            by_z = by_z * grads[0][k : k + ctx.rows, None]
            by_x.append(by_z @ w)
            by_w = by_w + by_z.t() @ part
            by_b = None if by_b is None else by_b + by_z.sum(0)
        return ops.cat(by_x) if by_x else ops.zeros_like(x), by_w, by_b, None, None


def _in_chunks(
    input: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, of_classes: Tensor | None,
    reduction: str, ignored: int, rows: int,
) -> Tensor:  # fmt: skip
    """The loss of so many rows after the other."""
    counted = target != ignored
    classes = ops.where(counted, target, 0).long()
    losses = ops.where(counted, _InChunks.apply(input, weight, bias, classes, rows), 0)
    share = counted.to(losses.dtype)
    if of_classes is not None:
        share = share * of_classes[classes]
        losses = losses * share
    if reduction == "none":
        return losses
    total: Tensor = losses.sum()
    return total if reduction == "sum" else total / share.sum()
