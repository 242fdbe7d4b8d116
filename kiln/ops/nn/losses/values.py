"""Losses of values against values: squares, distances, Huber's two, and those of Poisson and Gauss."""

from __future__ import annotations

from math import log as log_of
from math import pi
from types import ModuleType
from typing import Any

from kiln.ops.creation.constants import full_like
from kiln.ops.elementwise import comparison
from kiln.ops.elementwise.arithmetic import detach, where
from kiln.ops.elementwise.elementary import abs, exp, log, square
from kiln.ops.elementwise.precision import narrow, wide
from kiln.ops.nn.losses.common import check_reduction, difference, elements, pairs, reduced, weighted
from kiln.ops.views.core_views import unsqueeze
from kiln.table import drawn as d
from kiln.table import kinds
from kiln.table.arguments import default_float, expect
from kiln.table.public import public
from kiln.table.record import Number, Structure, Tensor, composite

_BAD_DIFFERENCE = d.failures(
    ((d.Zeros(2), d.Zeros(2)), {"reduction": "x"}, ValueError, "not a valid value for reduction"),
    ((d.Zeros(2), d.Zeros(3)), {}, RuntimeError, "must match the size"),
)


@composite(
    samples=pairs(),
    reference=elements(lambda np, x, y: (x - y) ** 2),
    failures=_BAD_DIFFERENCE,
    method=False,
)
def mse_loss(
    input: Tensor, target: Tensor, reduction: Structure = "mean", weight: Tensor | None = None
) -> Any:
    """(input - target)^2, broadcast; its "mean", "sum", or each ("none"), times `weight` if there is one.

    ValueError for another `reduction`.

    >>> kiln.nn.functional.mse_loss(kiln.tensor([1.0, 2.0]), kiln.tensor([1.0, 4.0]))
    tensor(2.)
    """
    apart, dtype = difference(input, target)
    return narrow(weighted(square(apart), weight, reduction), dtype)


@composite(
    samples=pairs(),
    reference=elements(lambda np, x, y: np.abs(x - y)),
    failures=_BAD_DIFFERENCE,
    method=False,
    tests=d.Tests(keeps_less="differences"),
)
def l1_loss(
    input: Tensor, target: Tensor, reduction: Structure = "mean", weight: Tensor | None = None
) -> Any:
    """|input - target|, broadcast; its "mean", "sum", or each ("none"), times `weight` if there is one.

    ValueError for another `reduction`.

    >>> kiln.nn.functional.l1_loss(kiln.tensor([1.0, 2.0]), kiln.tensor([1.0, 4.0]))
    tensor(1.)
    """
    if "bool" in (input.dtype, target.dtype):
        raise RuntimeError(kinds.NO_DIFFERENCE)
    apart, dtype = difference(input, target)
    return narrow(weighted(abs(apart), weight, reduction), dtype)


def _loss(formula: Any) -> Any:
    """The reference of a loss from its formula, which gives the loss of each."""

    def call(np: ModuleType, x: Any, y: Any, *more: Any, reduction: str = "mean", **options: Any) -> Any:
        loss = np.asarray(formula(np, x, y, *more, **options)).astype(x.dtype)
        return np.asarray({"none": loss, "sum": loss.sum(), "mean": loss.mean()}[reduction]).astype(x.dtype)

    return d.reference(call)


def _pair(rng: Any, t: str, low: float = -3.0) -> tuple[Any, Any]:
    return d.array(rng, (3, 5), t), d.array(rng, (3, 5), t, low)


def _failing(**bad: Any) -> Any:
    """Another reduction, and an argument out of range."""
    ((name, (value, message)),) = bad.items()
    return d.failures(
        ((d.Zeros(2), d.Zeros(2)), {"reduction": "x"}, ValueError, "not a valid value for reduction"),
        ((d.Zeros(2), d.Zeros(2)), {name: value}, RuntimeError, message),
    )


@composite(
    samples=d.samples(
        lambda rng, t: (_pair(rng, t), {}),
        lambda rng, t: (_pair(rng, t), {"beta": 0.5, "reduction": "none"}),
        lambda rng, t: (_pair(rng, t), {"beta": 0.0, "reduction": "sum"}),
    ),
    reference=_loss(
        lambda np, x, y, beta=1.0: np.where(
            np.abs(x - y) < beta, 0.5 * (x - y) ** 2 / (beta or 1), np.abs(x - y) - 0.5 * beta
        )
    ),
    failures=_failing(beta=(-1.0, "negative values for beta")),
    method=False,
    tests=d.Tests(keeps_less="differences"),
)
def smooth_l1_loss(
    input: Tensor, target: Tensor, reduction: Structure = "mean", beta: Structure = 1.0
) -> Any:
    """The difference squared over 2 beta where it is below `beta`, else its size less beta / 2; broadcast.

    ValueError for another `reduction`, RuntimeError for a negative beta.

    >>> kiln.nn.functional.smooth_l1_loss(kiln.tensor([0.0, 0.0]), kiln.tensor([1.0, 3.0]))
    tensor(1.5000)
    """
    check_reduction(reduction)
    if beta < 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")
    apart, dtype = difference(input, target)
    size = abs(apart)  # squared it has no second derivative at 0
    loss = where(comparison.lt(size, beta), 0.5 * apart * apart / beta, size - 0.5 * beta) if beta else size
    return narrow(reduced(loss, reduction), dtype)


@composite(
    samples=d.samples(
        lambda rng, t: (_pair(rng, t), {}),
        lambda rng, t: (_pair(rng, t), {"reduction": "sum", "delta": 0.5}),
        lambda rng, t: (_pair(rng, t), {"delta": 2.0, "weight": d.array(rng, (3, 5), t, 0.5, 2)}),
    ),
    reference=_loss(
        lambda np, x, y, delta=1.0, weight=1: (
            weight
            * np.where(np.abs(x - y) < delta, 0.5 * (x - y) ** 2, delta * (np.abs(x - y) - 0.5 * delta))
        )
    ),
    failures=_failing(delta=(0.0, "non-positive values for delta")),
    method=False,
)
def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: Structure = "mean",
    delta: Structure = 1.0,
    weight: Tensor | None = None,
) -> Any:
    """Half the difference squared where it is below `delta`, beyond it a line; broadcast, times `weight`.

    ValueError for another `reduction`, RuntimeError for a delta that is not positive.

    >>> kiln.nn.functional.huber_loss(kiln.tensor([0.0, 0.0]), kiln.tensor([1.0, 3.0]))
    tensor(1.5000)
    """
    check_reduction(reduction)
    if not delta > 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta.")
    apart, dtype = difference(input, target)
    size = abs(apart)
    loss = where(comparison.lt(size, delta), 0.5 * apart * apart, delta * (size - 0.5 * delta))
    return narrow(reduced(loss if weight is None else loss * wide(weight), reduction), dtype)


def _poisson(
    np: ModuleType, x: Any, y: Any, log_input: bool = True, full: bool = False, eps: float = 1e-8
) -> Any:
    loss = np.exp(x) - y * x if log_input else x - y * np.log(x + eps)
    safe = np.where(y > 1, y, 2)
    rest = safe * np.log(safe) - safe + 0.5 * np.log(2 * pi * safe)
    return loss + np.where(y > 1, rest, 0) if full else loss


@composite(
    samples=d.samples(
        lambda rng, t: (_pair(rng, t, 0.0), {}),
        lambda rng, t: (
            (d.array(rng, (3, 5), t, 0.1), d.array(rng, (3, 5), t, 0), False, True),
            {"reduction": "none"},
        ),
    ),
    differs="a gradient by a `target` of 0 has no NaN",
    reference=_loss(_poisson),
    failures=d.failures(
        ((d.Zeros(2), d.Zeros(2)), {"reduction": "x"}, ValueError, "not a valid value for reduction")
    ),
    method=False,
    tests=d.Tests(keeps_less="logarithms or exponentials"),
)
def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: Structure = True,
    full: Structure = False,
    eps: Number = 1e-8,
    reduction: Structure = "mean",
) -> Any:
    """exp(input) - target * input; of rates, for log_input=False, input - target * log(input + eps).

    `full` adds Stirling's term for targets above 1. ValueError for another `reduction`.

    >>> kiln.nn.functional.poisson_nll_loss(kiln.tensor([0.0]), kiln.tensor([2.0]))
    tensor(1.)
    """
    check_reduction(reduction)
    dtype = kinds.result_type((input, target))
    dtype = dtype if dtype in kinds.FLOATS else default_float()
    x, y = wide(narrow(input, dtype)), wide(target)
    loss = exp(x) - y * x if log_input else x - y * log(x + eps)
    if full:
        many = comparison.gt(y, 1)
        safe = where(many, y, 2)
        loss = loss + where(many, safe * log(safe) - safe + 0.5 * log(2 * pi * safe), 0)
    return narrow(reduced(loss, reduction), dtype)


def _gauss(np: ModuleType, x: Any, y: Any, var: Any, full: bool = False, eps: float = 1e-6) -> Any:
    var = np.maximum(var, eps)
    return 0.5 * (np.log(var) + (x - y) ** 2 / var) + (0.5 * log_of(2 * pi) if full else 0)


@composite(
    samples=d.samples(
        lambda rng, t: ((*_pair(rng, t), d.array(rng, (3, 5), t, 0.1)), {"full": True}),
        lambda rng, t: ((*_pair(rng, t), d.array(rng, (3, 1), t, 0.1)), {"eps": 0.05, "reduction": "none"}),
    ),
    reference=_loss(_gauss),
    failures=d.failures(((d.Zeros(2),) * 3, {"reduction": "x"}, ValueError, "x is not")),
    public=False,
)
def gaussian_losses(
    input: Tensor,
    target: Tensor,
    var: Tensor,
    full: Structure = False,
    eps: Number = 1e-6,
    reduction: Structure = "mean",
) -> Any:
    """`gaussian_nll_loss` of a variance that fits; its gradient passes where it counts as `eps`.

    >>> kiln.nn.functional.gaussian_nll_loss(kiln.tensor([0.0]), kiln.tensor([2.0]), kiln.tensor([1.0]))
    tensor(2.)
    """
    check_reduction(reduction)
    dtype = kinds.result_type((input, target, var))
    own = wide(var)
    v = where(comparison.lt(own, eps), eps + (own - detach(own)), own)
    loss = 0.5 * (log(v) + square(wide(input) - wide(target)) / v)
    return narrow(reduced(loss + 0.5 * log_of(2 * pi) if full else loss, reduction), dtype)


@public(
    "gaussian_nll_loss",
    method=False,
    layer=True,
    samples=d.samples(
        lambda rng, t: ((*_pair(rng, t), d.array(rng, (3,), t, 0.1)), {}),
        lambda rng, t: ((*_pair(rng, t), 0.5), {"full": True, "reduction": "sum"}),
    ),
    dtypes="float",
    reads=True,
    failures=d.failures(
        ((d.Zeros(2), d.Zeros(2), d.Zeros(2, value=-1)), {}, ValueError, "var has negative"),
        ((d.Zeros(2, 3), d.Zeros(2, 3), d.Zeros(3)), {}, ValueError, "var is of incorrect size"),
    ),
    tests=d.Tests(keeps_less="logarithms or exponentials"),
)
def gaussian_nll_loss(
    input: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Any:
    """log(var) / 2 + (input - target)^2 / (2 var), var at least `eps`; `full` adds log(2 pi) / 2.

    `var` has input's sizes, or one for each row, or is a number. ValueError for one that is negative or does
    not fit, and for another `reduction`.

    >>> kiln.nn.functional.gaussian_nll_loss(kiln.tensor([0.0]), kiln.tensor([2.0]), kiln.tensor([1.0]))
    tensor(2.)
    """
    if isinstance(var, float):
        var = full_like(input, var)
    expect(~comparison.lt(var, 0), ValueError, "var has negative entry/entries")
    have, want = tuple(var.shape), tuple(input.shape)
    if have != want:
        if have == want[:-1]:
            var = unsqueeze(var, -1)
        elif len(have) != len(want) or [b for a, b in zip(want, have) if a != b] != [1]:
            raise ValueError("var is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    return gaussian_losses.handle(input, target, var, full, eps, reduction)
