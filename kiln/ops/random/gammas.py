"""Draws from the gamma distribution, and how they and draws from the beta distribution move with their
parameters.

Draws: Marsaglia and Tsang, A simple method for generating gamma variables (2000), in rounds as counts are
drawn (`kiln.ops.random.distributions`), in float64 and as logarithms, which are finite where a small
concentration makes the number itself 0.

Slopes: a draw z of a density p(.; a) with distribution function F moves with its parameter as

    dz/da = -(dF/da) / p(z; a) = -integral over t below z of  s(t) p(t; a) / p(z; a),  s = d log p / da

(Figurnov, Mohamed and Mnih, Implicit reparameterization gradients, 2018). The integral above z is the same
with the other sign, so the side is taken that does not hold the mode. In the coordinate u in which both
densities are log-concave (log t, and the logit of t for beta), |u - u(z)| = v, the quotient of densities
falls from 1 as exp(g(v)). Newton's steps find L with g(L) = -1, and the double exponential rule v = 0.4 L
exp(k - exp(-k)) for integrals over a half line (Takahasi and Mori, 1974) adds NODES values of it. The result
has 9 digits or more for concentrations from 1e-3 to 1e6 (mostly 12), which the tests compare with high
precision.
"""

from __future__ import annotations

import math
from itertools import count as rounds
from types import ModuleType
from typing import Any

from kiln.ops.creation.constants import iota
from kiln.ops.elementwise.arithmetic import convert, maximum, minimum, where
from kiln.ops.elementwise.elementary import cos, exp, expm1, log, log1p, sqrt
from kiln.ops.elementwise.special import digamma
from kiln.ops.random import draws as r
from kiln.ops.random import references
from kiln.ops.random.distributions import draw_stream
from kiln.ops.random.generator import reserve
from kiln.ops.reductions.core_reductions import reduce_sum
from kiln.ops.views.core_views import reshape
from kiln.table import drawn as d
from kiln.table.arguments import numel
from kiln.table.record import Number, Sample, Tensor, composite

NODES = 100
FIRST, STEP = -3.7, 9.2 / 99  # of k
SCALE = 0.4
NEWTON = 8  # steps
TINY = 2.0**-1020

_DRAWN: dict[str, Any] = {"differentiable": False, "public": False, "dtypes": "float64"}


# -- draws --------------------------------------------------------------------------------------------------


def _candidates(np: ModuleType, concentration: Any, position: int, seed: int, stream: int) -> Any:
    places = position + np.arange(concentration.size).reshape(concentration.shape)
    drawn = [references.uniform(np, places, seed, "float64", 4 * stream + k) for k in range(4)]
    return np.vectorize(references.log_gamma, otypes=["float64"])(concentration, *drawn)


@composite(
    samples=lambda rng, t: [
        Sample((d.array(rng, (3, 40), t, 0.01, 1), 100, 7, 1)),
        Sample((d.array(rng, (30,), t, 1, 20), 0, 7, 0)),
    ],
    reference=d.reference(_candidates),
    **_DRAWN,
)
def gamma_round(concentration: Tensor, position: Number, seed: Number, stream: Number) -> Any:
    """The logarithm of a candidate for each draw of gamma(concentration, 1), NaN where it was thrown away.

    >>> kiln.distributions.Gamma(kiln.ones(2), 1.0).sample().shape
    kiln.Size([2])
    """
    sizes = tuple(concentration.shape)
    flat = r.places(position, sizes)
    u, turn, height, power = (
        r.shaped(draw_stream(flat, seed, stream * 4 + k, "float64"), sizes) for k in range(4)
    )
    small = concentration < 1
    base = where(small, concentration + 1, concentration) - 1 / 3
    z = sqrt(log(1 - u) * -2) * cos(turn * (2 * math.pi))
    root = z / sqrt(base * 9) + 1
    log_cube = log(maximum(root, TINY)) * 3
    limit = z * z * 0.5 + base * (1 - root * root * root + log_cube)
    kept = (root > 0) & (log(1 - height) < limit)
    drawn = log(base) + log_cube + where(small, log(1 - power) / concentration, 0.0)
    return where(kept, drawn, math.nan)


def log_standard_gamma(concentration: Any, generator: Any = None) -> Any:
    """The logarithms of draws of gamma(concentration, 1): float64, of the shape of `concentration`, without a
    gradient. A concentration of 0 gives -inf, one below it or NaN gives NaN.
    """
    sizes = tuple(concentration.shape)
    given = reshape(convert(concentration.detach(), "float64"), (numel(sizes),))  # one kernel for every rank
    valid = (given > 0) & (given < math.inf)
    safe = where(valid, given, 1.0)
    position, seed = reserve(sizes, generator)
    result = gamma_round(safe, position, seed, 0)
    for number in rounds(1):
        if not bool((result != result).any()):
            break
        result = where(result != result, gamma_round(safe, position, seed, number), result)
    result = where(valid, result, where(given == 0, -math.inf, where(given == math.inf, given, math.nan)))
    return reshape(result, sizes)


# -- slopes -------------------------------------------------------------------------------------------------


def _rule(like: Any) -> tuple[Any, Any]:
    """Places and weights of the double exponential rule on the half line."""
    k = convert(like.graph.add(iota, (), ((NODES,), 0)), "float64") * STEP + FIRST
    fall = exp(-k)
    v = exp(k - fall) * SCALE
    return v, v * (fall + 1) * STEP


def _half_line(scale: Any, integrand: Any, *numbers: Any) -> Any:
    """The integral from 0 to infinity of integrand(v, *numbers), which falls at `scale`."""
    v, weights = _rule(scale)
    column = [reshape(x, (*x.shape, 1)) for x in (scale, *numbers)]
    return reduce_sum(integrand(v * column[0], *column[1:]) * weights, (len(scale.shape),), False) * scale


def _gamma_slope(np: ModuleType, concentration: Any, sample: Any) -> Any:
    return np.vectorize(lambda *at: references.gamma_slope(np, *at))(concentration, sample)


@composite(
    samples=lambda rng, t: [Sample((d.array(rng, (4,), t, 0.5, 4), d.array(rng, (4,), t, 0.5, 4)))],
    reference=d.reference(_gamma_slope),
    **_DRAWN,
)
def gamma_slope(concentration: Tensor, sample: Tensor) -> Any:
    """The derivative of a draw > 0 of gamma(concentration, 1) by its concentration; both float64, of one
    shape.

    >>> a = kiln.tensor([1.0], requires_grad=True)
    >>> kiln.distributions.Gamma(a, 1.0).rsample().backward()
    >>> bool(a.grad > 0)
    True
    """
    right = sample > concentration
    side = where(right, 1.0, -1.0)
    excess = sample - concentration
    scale = where(right, 2 / (excess + sqrt(excess * excess + sample * 2)), (sample + 1) / concentration)
    for _ in range(NEWTON):
        level = side * concentration * scale - sample * expm1(side * scale) + 1
        scale = scale - level / (side * (concentration - sample * exp(side * scale)))

    def integrand(v: Any, side: Any, a: Any, x: Any, score: Any) -> Any:
        u = minimum(side * v, 300.0)  # beyond, nothing is left
        return (score + u) * exp(a * u - x * expm1(u))

    score = log(sample) - digamma(concentration)
    return side * sample * _half_line(scale, integrand, side, concentration, sample, score)


def _beta_slope(np: ModuleType, sample: Any, concentration: Any, rest: Any) -> Any:
    return np.vectorize(lambda *at: references.beta_slope(np, *at))(sample, concentration, rest)


@composite(
    samples=lambda rng, t: [
        Sample(
            (
                d.array(rng, (4,), t, 0.1, 0.9),
                d.array(rng, (4,), t, 0.5, 4),
                d.array(rng, (4,), t, 0.5, 4),
            )
        )
    ],
    reference=d.reference(_beta_slope),
    **_DRAWN,
)
def beta_slope(sample: Tensor, concentration: Tensor, rest: Tensor) -> Any:
    """The derivative of a draw 0 < x <= 1 of beta(concentration, rest) by `concentration`, over 1 - x; all
    float64, of one shape.

    Of a Dirichlet draw that is how x_j moves with the j-th concentration, the others keeping their
    proportions: dx_i / da_j = slope_j (1 if i == j else 0, less x_i).

    >>> a = kiln.tensor([1.0, 1.0], requires_grad=True)
    >>> kiln.distributions.Dirichlet(a).rsample()[0].backward()
    >>> bool(a.grad[0] > 0)
    True
    """
    total = concentration + rest
    right = sample * total > concentration
    side = where(right, 1.0, -1.0)
    other = 1 - sample
    near = where(right, other, sample)  # falls along v; what stays near it of all is 1 - near
    far = maximum(where(right, sample, other), TINY)
    power = where(right, rest, concentration)
    scale = (1 - total * log(far)) / power
    for _ in range(NEWTON):
        less = near * expm1(-scale)
        level = 1 - power * scale - total * log1p(less)
        scale = scale - level / (total * near * exp(-scale) / (less + 1) - power)

    def integrand(v: Any, side: Any, near: Any, power: Any, total: Any, score: Any) -> Any:
        less = log1p(near * expm1(-v))
        return (where(side > 0, score, score - v) - less) * exp(-power * v - total * less)

    score = log(sample) - digamma(concentration) + digamma(total)
    return side * sample * _half_line(scale, integrand, side, near, power, total, score)


def at_once(slope: Any, *args: Any) -> Any:
    """A slope of tensors of one shape and any float dtype: by one kernel for every rank."""
    sizes = tuple(args[0].shape)
    return reshape(slope(*(reshape(convert(x, "float64"), (numel(sizes),)) for x in args)), sizes)
