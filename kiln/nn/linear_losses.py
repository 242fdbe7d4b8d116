"""The loss that has a linear layer of its own in front."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from kiln._core import Tensor
from kiln.errors import describe, message
from kiln.nn import functional
from kiln.nn.layers import Linear
from kiln.nn.linear_cross_entropy import LinearCrossEntropyOptions
from kiln.nn.losses import _WeightedLoss

if TYPE_CHECKING:
    from kiln._typed.words import DType


class LinearCrossEntropyLoss(_WeightedLoss):
    """A linear layer and the cross entropy of what it gives; see `functional.linear_cross_entropy`.

    `linear.weight` is (num_classes * out_features..., in_features). RuntimeError for a weight of another
    shape than (num_classes), or a smoothing outside [0, 1].

    >>> loss = kiln.nn.LinearCrossEntropyLoss(3, 4)
    >>> loss(kiln.zeros(2, 3), kiln.tensor([0, 3]))
    tensor(1.3863, grad_fn=<NllLossBackward0>)
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device: Any = None,
        dtype: DType | None = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        options: LinearCrossEntropyOptions | None = None,
    ) -> None:
        if weight is not None and tuple(weight.shape) != (num_classes,):
            raise RuntimeError(f"expected weight shape to be {(num_classes,)}, got {tuple(weight.shape)}")
        if not 0 <= label_smoothing <= 1:
            raise RuntimeError(f"expected label_smoothing to be in range [0, 1], got {label_smoothing}")
        if options is not None and not isinstance(options, LinearCrossEntropyOptions):
            raise TypeError(message("LinearCrossEntropyLoss", "LinearCrossEntropyOptions", describe(options)))
        super().__init__(weight, reduction=reduction)
        self.num_classes, self.out_features = num_classes, out_features
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing
        self.linear = Linear(in_features, num_classes * prod(out_features), bias, device, dtype)
        self.options = options

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        shape = (self.num_classes, *self.out_features)
        bias = self.linear.bias
        return functional.linear_cross_entropy(
            input,
            self.linear.weight.reshape((*shape, self.linear.in_features)),
            target,
            linear_bias=bias if bias is None else bias.reshape(shape),
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            options=self.options,
        )

    def extra_repr(self) -> str:
        return (
            f"in_features={self.linear.in_features}, num_classes={self.num_classes}, "
            f"out_features={self.out_features}, bias={self.linear.bias is not None}, "
            f"reduction={self.reduction}, ignore_index={self.ignore_index}, "
            f"label_smoothing={self.label_smoothing}, options={self.options}"
        )
