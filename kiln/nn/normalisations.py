"""Normalisations as modules: of trailing dims, by groups of channels, by batch, by item, by neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kiln import _core, ops
from kiln._core import Tensor
from kiln.errors import warn
from kiln.nn import functional, init
from kiln.nn.module import Module
from kiln.nn.parameter import Parameter
from kiln.table.arguments import keeping

if TYPE_CHECKING:
    from kiln._typed.words import Device, DType


class _Affine(Module):
    """A normalisation with a weight of ones and a bias of zeros, each if it is wanted."""

    weight: Parameter | None
    bias: Parameter | None

    def _make(
        self, shape: Sequence[int], weight: bool, bias: bool, device: Device | None, dtype: DType | None
    ) -> None:
        for name, wanted in (("weight", weight), ("bias", bias)):
            made = Parameter(ops.empty(*shape, device=device, dtype=dtype)) if wanted else None
            self.register_parameter(name, made)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set weight to ones and bias to zeros."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)


class LayerNorm(_Affine):
    """Zero mean and unit variance over the trailing dims `normalized_shape`, then times weight plus bias."""

    normalized_shape: tuple[int, ...]

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Device | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape = shape
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self._make(shape, elementwise_affine, elementwise_affine and bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return functional.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        affine, bias = self.elementwise_affine, self.bias is not None
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={affine}, bias={bias}"


class RMSNorm(Module):
    """x over the root of its mean square along the trailing dims `normalized_shape`, times weight."""

    weight: Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Device | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape = shape
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        made = Parameter(ops.empty(*shape, device=device, dtype=dtype)) if elementwise_affine else None
        self.register_parameter("weight", made)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set weight to ones."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = functional.rms_norm(x, self.normalized_shape, self.weight, self.eps)
        return y

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(_Affine):
    """(n, c, ...) with mean 0 and variance 1 over each of `num_groups` groups of channels."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Device | None = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self._make((num_channels,), affine, affine and bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = functional.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)
        return y

    def extra_repr(self) -> str:
        affine, bias = self.affine, self.bias is not None
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={affine}, bias={bias}"


class _NormBase(_Affine):
    """A normalisation of channels that may keep the statistics it sees."""

    _version = 2  # from 2 on there is num_batches_tracked
    dims: tuple[int, ...] = ()  # that an input may have
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        device: Device | None,
        dtype: DType | None,
        bias: bool,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        kept = track_running_stats
        self.register_buffer("running_mean", ops.zeros(num_features, **options) if kept else None)
        self.register_buffer("running_var", ops.ones(num_features, **options) if kept else None)
        count = ops.zeros((), dtype=_core.int64, device=device) if kept else None
        self.register_buffer("num_batches_tracked", count)
        self._make((num_features,), affine, affine and bias, device, dtype)

    def reset_running_stats(self) -> None:
        """Forget what was seen: mean 0, variance 1, no batches."""
        if self.running_mean is not None and self.running_var is not None:
            self.running_mean.zero_()
            self.running_var.fill_(1)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Forget what was seen, and set weight to ones and bias to zeros."""
        self.reset_running_stats()
        super().reset_parameters()

    def _load_from_state_dict(self, state_dict: dict[str, Any], *args: Any) -> None:
        """States of version 1, and dicts that tell no version, need not hold num_batches_tracked."""
        prefix, metadata = args[0], args[1]
        key = f"{prefix}num_batches_tracked"
        if (
            (metadata.get("version") or 1) < 2
            and self.num_batches_tracked is not None
            and key not in state_dict
        ):
            state_dict[key] = self.num_batches_tracked
        super()._load_from_state_dict(state_dict, *args)

    def _check_dims(self, input: Tensor) -> None:
        if input.ndim not in self.dims:
            wanted = " or ".join(f"{k}D" for k in self.dims)
            raise ValueError(f"expected {wanted} input (got {input.ndim}D input)")

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_NormBase):
    """Each channel of a batch with mean 0 and variance 1.

    With `track_running_stats` the statistics move by `momentum` towards those of each batch in training
    (None: they are the mean over all batches), and are used in evaluation.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Device | None = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def forward(self, input: Tensor) -> Tensor:
        self._check_dims(input)
        count = self.num_batches_tracked
        y: Tensor = keeping(input, partial(self._normalized, input), num_batches_tracked=count)
        return y

    def _share(self) -> float:
        """By how much the statistics move towards those of this batch, which is counted."""
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                return 1.0 / float(self.num_batches_tracked)
        return 0.0 if self.momentum is None else self.momentum

    def _normalized(self, input: Tensor) -> Tensor:
        momentum = self._share()
        kept = not self.training or self.track_running_stats
        y: Tensor = functional.batch_norm(
            input, self.running_mean if kept else None, self.running_var if kept else None, self.weight,
            self.bias, self.training or self.running_mean is None, momentum, self.eps,
        )  # fmt: skip
        return y


class BatchNorm1d(_BatchNorm):
    """Each channel of a batch (n, c) or (n, c, l) with mean 0 and variance 1, times weight plus bias.

    >>> import kiln
    >>> kiln.nn.BatchNorm1d(1)(kiln.tensor([[1.0], [3.0]])).tolist()
    [[-0.9999949932098389], [0.9999949932098389]]
    """

    dims = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Each channel of a batch (n, c, h, w) with mean 0 and variance 1, times weight plus bias.

    >>> import kiln
    >>> kiln.nn.BatchNorm2d(3)(kiln.ones(2, 3, 4, 4)).shape
    kiln.Size([2, 3, 4, 4])
    """

    dims = (4,)


class BatchNorm3d(_BatchNorm):
    """Each channel of a batch (n, c, d, h, w) with mean 0 and variance 1, times weight plus bias.

    >>> import kiln
    >>> kiln.nn.BatchNorm3d(3)(kiln.ones(2, 3, 2, 2, 2)).shape
    kiln.Size([2, 3, 2, 2, 2])
    """

    dims = (5,)


class _InstanceNorm(_NormBase):
    """(n, c, ...) or (c, ...) with mean 0 and variance 1 over each channel of each item.

    With `track_running_stats` the means over items are kept as buffers, and used in evaluation.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Device | None = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def forward(self, input: Tensor) -> Tensor:
        self._check_dims(input)
        items = input if input.ndim == self.dims[1] else input.unsqueeze(0)
        if items.shape[1] != self.num_features:
            dim = input.ndim - self.dims[0]
            if self.affine:
                raise ValueError(
                    f"expected input's size at dim={dim} to match num_features ({self.num_features}), but "
                    f"got: {items.shape[1]}."
                )
            warn(
                f"input's size at dim={dim} does not match num_features. You can silence this warning by not "
                "passing in num_features, which is not used because affine=False"
            )
        y: Tensor = functional.instance_norm(
            items, self.running_mean, self.running_var, self.weight, self.bias,
            self.training or not self.track_running_stats,
            0.0 if self.momentum is None else self.momentum, self.eps,
        )  # fmt: skip
        return y if items is input else y.squeeze(0)


class InstanceNorm1d(_InstanceNorm):
    """Each channel of (n, c, l) or (c, l) normalised."""

    dims = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Each channel of (n, c, h, w) or (c, h, w) normalised."""

    dims = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """Each channel of (n, c, d, h, w) or (c, d, h, w) normalised."""

    dims = (4, 5)


class LocalResponseNorm(Module):
    """(n, c, ...) over (k + alpha * the mean square of `size` neighbouring channels)**beta."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = functional.local_response_norm(input, self.size, self.alpha, self.beta, self.k)
        return y

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class CrossMapLRN2d(Module):
    """(n, c, h, w) over (k + alpha / size * the squares of the (size - 1) // 2 channels to both sides)**beta.

    As in PyTorch, channels more than that from the first have its square in their sums too: for a
    normalisation without that, take LocalResponseNorm. ValueError for other than 4 dims.
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim != 4:
            raise ValueError(f"CrossMapLRN2d: Expected input to be 4D, got {input.ndim}D instead.")
        channels, half = input.shape[1], (self.size - 1) // 2
        squares = input * input
        around = functional.pad(squares, (0, 0, 0, 0, half, half))
        total = sum(around[:, k : k + channels] for k in range(2 * half + 1))
        far = (ops.arange(channels) > half).to(input.dtype).reshape(1, -1, 1, 1)
        scale = (total + squares[:, :1] * far) * (self.alpha / self.size) + self.k
        y: Tensor = input * scale**-self.beta
        return y

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
