"""Batch normalisation over the batches of several ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln import ops
from kiln._core import Tensor
from kiln.autograd import no_grad
from kiln.nn.module import Module
from kiln.nn.normalisations import _BatchNorm
from kiln.nn.ranks import Link, SumOfRanks, is_several

if TYPE_CHECKING:
    from kiln._typed.words import Device, DType


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation whose statistics in training are those of the batches of all ranks of a group
    (`kiln.distributed`), that of all ranks unless `process_group` is given; without one, of its own batch.

    (n, c, ...) of any number of dims; n may differ from rank to rank. Each rank calls it as often.

    >>> import kiln
    >>> model = kiln.nn.Sequential(kiln.nn.Conv2d(3, 4, 1), kiln.nn.BatchNorm2d(4))
    >>> type(kiln.nn.SyncBatchNorm.convert_sync_batchnorm(model)[1]).__name__
    'SyncBatchNorm'
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Device | None = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)
        self.process_group = process_group

    def _normalized(self, input: Tensor) -> Tensor:
        if not self.training or not is_several():
            return super()._normalized(input)
        link = Link(self.process_group, "")
        share, dims = self._share(), [0, *range(2, input.ndim)]
        shape = [1, -1] + [1] * (input.ndim - 2)
        x = input if input.dtype.itemsize >= 4 else input.float()
        count = input.numel() // input.shape[1]
        sums = SumOfRanks.apply(ops.cat([x.sum(dims), ops.full((1,), float(count), dtype=x.dtype)]), link)
        counts = float(sums[-1].detach())
        mean = sums[:-1] / counts
        centred = x - mean.view(shape)
        variance = SumOfRanks.apply((centred * centred).sum(dims), link) / counts
        if self.running_mean is not None and self.running_var is not None:
            with no_grad():
                unbiased = variance.detach() * (counts / max(counts - 1.0, 1.0))
                self.running_mean.lerp_(mean.detach().to(self.running_mean.dtype), share)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)
        y = centred * (variance + self.eps).rsqrt().view(shape)
        if self.weight is not None:
            y = y * self.weight.view(shape)
        if self.bias is not None:
            y = y + self.bias.view(shape)
        normalized: Tensor = y.to(input.dtype)
        return normalized

    def _check_dims(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"expected at least 2D input (got {input.ndim}D input)")
        if input.shape[1] == 0:
            raise ValueError("SyncBatchNorm number of input channels should be non-zero")

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """`module` with a SyncBatchNorm in place of every batch normalisation, of the same tensors.

        The module itself, changed; if it is a batch normalisation, another.
        """
        made: Any = module
        if isinstance(module, _BatchNorm):
            made = cls(
                module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats,
                process_group, bias=module.bias is not None,
            )  # fmt: skip
            for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
                setattr(made, name, getattr(module, name))
            made.training = module.training
        for name, child in module.named_children():
            made.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        converted: Module = made
        return converted
