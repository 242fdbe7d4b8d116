"""Dropout as functions and as layers: in training, elements or whole channels are lost at random."""

from __future__ import annotations

from typing import Any

from kiln import ops
from kiln._core import Tensor
from kiln.errors import message, warn
from kiln.nn.module import Module
from kiln.table.callables import draws, named


def _apply(name: str, input: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    y: Tensor = getattr(ops, f"{name}_" if inplace else name)(input, p, training)
    return y


@draws
def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Each element zeroed with probability p, the others divided by 1 - p; no change unless `training`."""
    return _apply("dropout", input, p, training, inplace)


@draws
def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Each element moved to a SELU's floor with probability p; mean 0 and variance 1 stay what they are."""
    return _apply("alpha_dropout", input, p, training, inplace)


@draws
def feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Alpha dropout of whole channels: (N, C, ...). RuntimeError for fewer than two dims."""
    return _apply("feature_alpha_dropout", input, p, training, inplace)


def _channels(input: Tensor, p: float, training: bool, inplace: bool, batched: int) -> Tensor:
    """Dropout of the channels of `input`, to which a batch dim of 1 is given if it has fewer dims than
    `batched`.
    """
    whole = input if input.ndim >= batched else input.unsqueeze(0)
    y = _apply("feature_dropout", whole, p, training, inplace)
    return y if whole is input else y.squeeze(0)


_SHAPES = "give the dims (N, C, ...), or take dropout, which knows no channels"


@draws
def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Each channel of (N, C, L) or (C, L) zeroed with probability p, the others divided by 1 - p.

    RuntimeError for other numbers of dims.
    """
    if input.ndim not in (2, 3):
        raise RuntimeError(message("dropout1d", "2D or 3D input", f"a {input.ndim}D input"))
    return _channels(input, p, training, inplace, 3)


@draws
def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Each channel of (N, C, H, W) zeroed with probability p, the others divided by 1 - p.

    Three dims are read as (N, C, L), as in PyTorch; a warning for other numbers of dims.
    """
    if input.ndim not in (3, 4):
        warn(f"dropout2d: Received a {input.ndim}-D input to dropout2d, which expects 3 or 4 dims; {_SHAPES}")
    if input.ndim == 3:
        warn(
            "dropout2d: Received a 3D input to dropout2d and assuming that channel-wise 1D dropout behavior "
            "is desired: it is read as (N, C, L); say so by dropout1d"
        )
    return _channels(input, p, training, inplace, 0)


@draws
def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Each channel of (N, C, D, H, W) or (C, D, H, W) zeroed with probability p, the others divided by 1 - p.

    A warning for other numbers of dims.
    """
    if input.ndim not in (4, 5):
        warn(f"dropout3d: Received a {input.ndim}-D input to dropout3d, which expects 4 or 5 dims; {_SHAPES}")
    return _channels(input, p, training, inplace, 5)


for _name in ("dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d"):
    globals()[_name] = named(_name, globals()[_name], raw=False)  # as layers call them too


class _DropoutNd(Module):
    """What is lost with probability p in training; `inplace`: in the input itself."""

    function: Any

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p = p
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = self.function(input, self.p, self.training, self.inplace)
        return y

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_DropoutNd):
    """In training, zeroes each element with probability p and divides the others by 1 - p."""

    function = staticmethod(dropout)


class Dropout1d(_DropoutNd):
    """In training, zeroes each channel of (N, C, L) or (C, L) with probability p."""

    function = staticmethod(dropout1d)


class Dropout2d(_DropoutNd):
    """In training, zeroes each channel of (N, C, H, W) with probability p."""

    function = staticmethod(dropout2d)


class Dropout3d(_DropoutNd):
    """In training, zeroes each channel of (N, C, D, H, W) or (C, D, H, W) with probability p."""

    function = staticmethod(dropout3d)


class AlphaDropout(_DropoutNd):
    """In training, moves each element to a SELU's floor with probability p, keeping mean and variance."""

    function = staticmethod(alpha_dropout)


class FeatureAlphaDropout(_DropoutNd):
    """In training, alpha dropout of whole channels of (N, C, ...)."""

    function = staticmethod(feature_alpha_dropout)
