"""A softmax over many classes, rare ones in clusters: `AdaptiveLogSoftmaxWithLoss`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kiln import ops
from kiln._core import Tensor
from kiln.nn.containers import ModuleList, Sequential
from kiln.nn.layers import Linear
from kiln.nn.module import Module

if TYPE_CHECKING:
    from kiln._typed.words import Device, DType


class _ASMoutput(NamedTuple):
    """The log-probability of each item's target, (n) or (), and minus their mean, ()."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """The log-probabilities of targets among `n_classes` classes that are sorted from frequent to rare, and
    their negative mean.

    (n, in_features) or (in_features) and targets (n) or () -> output (n) or (), loss (). Classes below
    `cutoffs[0]` are in the head, beside one entry for each cluster: cluster i has those from `cutoffs[i]` to
    `cutoffs[i + 1]` (the last to `n_classes`), behind a projection to in_features // div_value**(i + 1)
    features. Only the clusters that targets name are computed, so targets are looked at. ValueError for
    cutoffs that are not increasing in [1, n_classes - 1], RuntimeError for targets that do not fit. After
    Grave, Joulin, Cisse, Grangier, Jegou, "Efficient softmax approximation for GPUs" (2016).

    >>> import kiln
    >>> layer = kiln.nn.AdaptiveLogSoftmaxWithLoss(8, 20, cutoffs=[5, 10])
    >>> output, loss = layer(kiln.rand(3, 8), kiln.tensor([0, 7, 19]))
    >>> output.shape, loss.shape, layer.log_prob(kiln.rand(3, 8)).shape
    (kiln.Size([3]), kiln.Size([]), kiln.Size([3, 20]))
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: Device | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        ends = list(cutoffs)
        if not ends:
            raise ValueError("cutoffs should be a sequence of length larger than 0")
        if ends != sorted({int(c) for c in ends}) or ends[0] <= 0 or ends[-1] > n_classes - 1:
            raise ValueError(
                "cutoffs should be a sequence of unique, positive integers sorted in an increasing order, "
                "where "
                "each value is between 1 and n_classes-1"
            )
        self.in_features, self.n_classes, self.cutoffs = in_features, n_classes, [*ends, n_classes]
        self.div_value, self.head_bias = div_value, head_bias
        self.shortlist_size, self.n_clusters = ends[0], len(ends)
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, head_bias, device, dtype)
        self.tail = ModuleList()
        for k, (start, end) in enumerate(zip(self.cutoffs, self.cutoffs[1:])):
            size = int(in_features // div_value ** (k + 1))
            first = Linear(in_features, size, False, device, dtype)
            self.tail.append(Sequential(first, Linear(size, end - start, False, device, dtype)))

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        for layer in self.modules():
            if isinstance(layer, Linear):
                layer.reset_parameters()

    def forward(self, input_: Tensor, target_: Tensor) -> _ASMoutput:
        self._check(input_, target_)
        rows = input_ if target_.ndim else input_.unsqueeze(0)
        target = target_ if target_.ndim else target_.unsqueeze(0)
        head = ops.log_softmax(self.head(rows), 1)
        cluster: Any = sum((target >= end).to(target.dtype) for end in self.cutoffs[:-1])
        column = ops.where(target < self.shortlist_size, target, cluster + (self.shortlist_size - 1))
        output: Tensor = head.gather(1, column.unsqueeze(1)).squeeze(1)
        for k, part in enumerate(self.tail):
            places = (cluster == k + 1).nonzero().squeeze(1)
            if places.numel():
                within = target[places] - self.cutoffs[k]
                log_probs = ops.log_softmax(part(rows[places]), 1)
                more = log_probs.gather(1, within.unsqueeze(1)).squeeze(1)
                output = output.index_add(0, places, more.to(output.dtype))
        loss: Tensor = -output.mean()
        return _ASMoutput(output if target_.ndim else output.squeeze(0), loss)

    def _check(self, input: Tensor, target: Tensor) -> None:
        """RuntimeError for sizes that do not fit, or classes that there are not."""
        if target.ndim > 1:
            raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
        if target.ndim and input.shape[0] != target.shape[0]:
            raise RuntimeError("Input and target should have the same size in the batch dimension.")
        if input.ndim != target.ndim + 1:
            raise RuntimeError(
                f"{target.ndim}D target tensor expects {target.ndim + 1}D input tensors, but found inputs "
                "with "
                f"size {input.shape}"
            )
        if target.numel():
            low, high = int(target.min()), int(target.max())
            if low < 0 or high >= self.n_classes:
                raise RuntimeError(
                    f"Target values should be in [0, {self.n_classes - 1}], but values in range [{low}, "
                    f"{high}] "
                    "were found. "
                )

    def _all_log_probs(self, input: Tensor, head: Tensor) -> Tensor:
        """(n, n_classes) of inputs and the head's results."""
        first = ops.log_softmax(head, 1)
        parts = [first[:, : self.shortlist_size]]
        for k, part in enumerate(self.tail):
            column = self.shortlist_size + k
            parts.append(ops.log_softmax(part(input), 1) + first[:, column : column + 1])
        log_probs: Tensor = ops.cat(parts, 1)
        return log_probs

    def log_prob(self, input: Tensor) -> Tensor:
        """The log-probability of every class: (n, in_features) -> (n, n_classes)."""
        return self._all_log_probs(input, self.head(input))

    def predict(self, input: Tensor) -> Tensor:
        """The likeliest class of each item: (n, in_features) -> (n), int64.

        Clusters are computed of the items alone whose likeliest entry of the head is one.
        """
        head = self.head(input)
        found: Tensor = head.argmax(1)
        places = (found >= self.shortlist_size).nonzero().squeeze(1)
        if places.numel():
            best = self._all_log_probs(input[places], head[places]).argmax(1)
            found = found.index_copy(0, places, best)
        return found
