"""Dropout in its forms: of elements or whole channels, to zero or to where a SELU's statistics stay.

Each is a function of the tensor and of one uniform number per element, or per channel: (N, C, ...) has N * C.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from kiln.ops.elementwise.arithmetic import where
from kiln.ops.elementwise.precision import floating, narrow
from kiln.ops.random.draws import draw_uniform, places, shaped
from kiln.ops.random.generator import reserve
from kiln.table import drawn as d
from kiln.table.arguments import into
from kiln.table.callables import draws
from kiln.table.public import public
from kiln.table.record import Number, Sample, Structure, Tensor, composite

SELU_FLOOR = 1.7580993408473766  # minus what a SELU gives far below 0: scale * alpha


def _mask_sizes(shape: Any, features: bool) -> tuple[Any, ...]:
    """The sizes of the mask: the tensor's, or one element per channel."""
    sizes = tuple(shape)
    return (*sizes[:2], *[1 for _ in sizes[2:]]) if features else sizes


def _kept(x: Any, p: Any, position: Any, seed: Any, features: bool) -> Any:
    sizes = _mask_sizes(x.shape, features)
    return shaped(draw_uniform(places(position, sizes), seed, "float32"), sizes) >= p


def reference_mask(np: ModuleType, x: Any, p: float, position: Any, seed: Any, features: bool) -> Any:
    """What is kept, in NumPy."""
    sizes = _mask_sizes(x.shape, features)
    u = draw_uniform.reference(position + np.arange(np.prod(sizes, dtype=int)), seed, "float32")  # type: ignore[misc]
    return u.reshape(sizes) >= np.float32(p)


def _dropped(np: ModuleType, x: Any, p: float, position: Any, seed: Any, features: bool) -> Any:
    return (x * np.where(reference_mask(np, x, p, position, seed, features), 1 / (1 - p), 0)).astype(x.dtype)


def _samples(rng: Any, t: str) -> list[Sample]:
    x = d.array(rng, (3, 5, 2), t)
    return [Sample((x, 0.25, 100, 7, features)) for features in (False, True)]


@composite(
    samples=_samples,
    reference=d.reference(_dropped),
    public=False,
)
def dropout_values(input: Tensor, p: Number, position: Number, seed: Number, features: Structure) -> Any:
    """`input` with each element (or each channel) zero with probability p, the others divided by 1 - p.

    >>> kiln.nn.functional.dropout(kiln.ones(2), 0.0)
    tensor([1., 1.])
    """
    x = floating(input, "dropout")
    # a number; with p = 1 nothing is kept, and nothing is scaled by infinity
    scale = where(p < 1, 1 / (1 - p), 0)
    return narrow(where(_kept(x, p, position, seed, features), x * scale, 0), input.dtype)


def _alpha_samples(rng: Any, t: str) -> list[Sample]:
    return [Sample((x, p, 0.8, *rest)) for (x, p, *rest), _ in _samples(rng, t)]


def _alpha_reference(np: ModuleType, x: Any, p: float, scale: float, *drawn: Any) -> Any:
    moved = np.where(reference_mask(np, x, p, *drawn), x, -SELU_FLOOR) * scale + SELU_FLOOR * scale * p
    return moved.astype(x.dtype)


@composite(
    samples=_alpha_samples,
    reference=d.reference(_alpha_reference),
    public=False,
)
def alpha_dropout_values(
    input: Tensor, p: Number, scale: Number, position: Number, seed: Number, features: Structure
) -> Any:
    """`input` with each element (or channel) at a SELU's floor with probability p, times `scale`, moved so
    that its mean stays.

    >>> kiln.nn.functional.alpha_dropout(kiln.ones(2), 0.0, training=True)
    tensor([1., 1.])
    """
    x = floating(input, "alpha_dropout")
    kept = where(_kept(x, p, position, seed, features), x * scale, -SELU_FLOOR * scale)
    return narrow(kept + scale * p * SELU_FLOOR, input.dtype)


# Public functions


def _form(name: str, alpha: bool, features: bool, doc: str) -> None:
    """torch.dropout and its like: `name` and, written over its input, `name_`."""

    def apply(input: Any, p: float, train: bool, out: Any = None) -> Any:
        if not 0 <= p <= 1:
            raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {p}")
        if not train or p == 0:
            return input
        if features and len(input.shape) < 2:
            raise RuntimeError("Feature dropout requires at least 2 dimensions in the input")
        p = float(p)
        if alpha and p == 1:  # nothing is kept, and 0 stands for its mean
            return dropout_values(input, p, 0, 0, False, **into(out))
        drawn = reserve(_mask_sizes(input.shape, features), None)
        if not alpha:
            return dropout_values(input, p, *drawn, features, **into(out))
        scale = 1 / math.sqrt((SELU_FLOOR**2 * p + 1) * (1 - p))
        return alpha_dropout_values(input, p, scale, *drawn, features, **into(out))

    def plain(input: Any, p: float, train: bool) -> Any:
        return apply(input, p, train)

    def over(input: Any, p: float, train: bool) -> Any:
        return apply(input, p, train, input)

    text = """{0}{2}; itself unless `train`.

    RuntimeError for a probability outside [0, 1]{3}.

    >>> kiln.{1}(kiln.ones(2, 2), 0.9, False)
    tensor([[1., 1.],
            [1., 1.]])
    """
    least = " or for fewer than two dims" if features else ""
    plain.__doc__ = text.format(doc, name, "", least)
    over.__doc__ = text.format(doc, f"{name}_", ", written over it", least)
    failing = d.failures(((d.Zeros(2, 2), 1.5, True), {}, RuntimeError, "probability"))

    def samples(rng: Any, t: str) -> list[Sample]:
        return [Sample((d.array(rng, (3, 4), t), 1.0, True)), Sample((d.array(rng, (3, 4), t), 0.5, False))]

    public(name, method=False, samples=samples, failures=failing, dtypes="float32")(draws(plain))
    public(f"{name}_", method=False)(over)


_form("dropout", False, False, "`input` with each element zero with probability `p`, the others over 1 - p")
_form("feature_dropout", False, True, "`input` (N, C, ...) with each channel zero with probability `p`")
_form("alpha_dropout", True, False, "Dropout that keeps the mean and variance of a SELU's outputs")
_form("feature_alpha_dropout", True, True, "Alpha dropout of whole channels of `input` (N, C, ...)")
