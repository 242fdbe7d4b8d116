"""Special functions: the error functions' relatives, gamma's, Bessel's.

Each has one body on float64 scalars; float32 is computed in float64 and rounded once. Bounds of error are in
NUMERICS.md. Integers and bool become the default float dtype first. What PyTorch has in torch.special only
is registered under that name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

from kiln.ops.elementwise.arithmetic import convert as convert_array
from kiln.ops.elementwise.arithmetic import mul, where
from kiln.ops.elementwise.comparison import lt, unsupported
from kiln.ops.elementwise.elementary import DOC, abs, exp, float_function, log, sign
from kiln.ops.elementwise.precision import narrow, wide
from kiln.ops.elementwise.trigonometry_and_logarithms import xlog1py
from kiln.ops.reductions.core_reductions import reduce_sum
from kiln.ops.views.core_views import reshape
from kiln.scalars import bessel, gamma, gaussian, incomplete
from kiln.scalars.scalar import INTS, Scalar, convert
from kiln.table import drawn as d
from kiln.table import registry
from kiln.table.arguments import MOST_STEPS, expect_count, into
from kiln.table.kinds import FLOATS
from kiln.table.public import methods, public
from kiln.table.record import (
    REQUIRED,
    Op,
    Operand,
    Param,
    Sample,
    Structure,
    Tensor,
    composite,
    find,
    pointwise,
)

registry.FUNCTIONS["special.xlog1py"] = xlog1py.handle


def double(body: Callable[..., Scalar]) -> Callable[..., Scalar]:
    """A body of f64 scalars, on f32 scalars too: computed in f64 and rounded once."""

    def either(*xs: Scalar) -> Scalar:
        return convert(body(*[convert(x, "f64") for x in xs]), xs[0].type)

    return either


def _samples(low: float, high: float) -> Any:
    return lambda rng, t: [Sample((d.array(rng, s, t, low, high),)) for s in ((3, 5), (2, 1, 3), ())]


def _function(
    name: str, body: Any, gradient: Any, reference: Any, low: float, high: float, doc: str, **settings: Any
) -> Any:
    """A float function with samples in [low, high)."""
    return float_function(
        name,
        double(body),
        gradient,
        d.floats(reference),
        _samples(low, high),
        doc,
        dtypes="float",
        **settings,
    )


def _special(name: str, body: Any, gradient: Any, reference: Any, low: float, high: float, doc: str) -> Any:
    """The same, of kiln.special only."""
    doc = doc.replace(f"kiln.{name}(", f"kiln.special.{name}(")
    op = _function(name, body, gradient, reference, low, high, doc, public=False, inplace=False)
    registry.FUNCTIONS[f"special.{name}"] = op.handle
    return op


def _each(function: Callable[[float], float]) -> Any:
    """A reference from a function of one Python float."""
    return lambda np, x: np.vectorize(function, otypes=[float])(x).astype(x.dtype)


# Error functions

_SLOPE = 2 / math.sqrt(math.pi)

erfc = _function(
    "erfc",
    gaussian.erfc,
    lambda g, input: g * (-_SLOPE * exp(-(input * input))),
    _each(math.erfc),
    -3,
    3,
    DOC.format("1 - erf(input), accurate where it is small", "erfc", "0.0, 1.0", "1.0000, 0.1573"),
)
erfinv: Any = _function(
    "erfinv",
    gaussian.erfinv,
    lambda g, input: g * (exp(erfinv(input) ** 2) / _SLOPE),  # not y, which programs scale in place
    _each(lambda x: _quantile((x + 1) / 2) * math.sqrt(0.5)),
    -0.9,
    0.9,
    DOC.format("The inverse of erf; NaN beyond 1", "erfinv", "0.0, 0.5", "0.0000, 0.4769"),
)
erfcx: Any = _special(
    "erfcx",
    gaussian.erfcx,
    lambda g, input, y: g * (2 * input * y - _SLOPE),
    _each(lambda x: math.exp(x * x) * math.erfc(x)),
    -2,
    5,
    DOC.format("exp(input**2) * erfc(input)", "erfcx", "0.0, 1.0", "1.0000, 0.4276"),
)


def _quantile(share: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(share)


ndtr = _special(
    "ndtr",
    gaussian.ndtr,
    lambda g, input: g * (exp(-0.5 * (input * input)) / math.sqrt(2 * math.pi)),
    _each(lambda x: 0.5 * math.erfc(-x * math.sqrt(0.5))),
    -3,
    3,
    DOC.format("The normal distribution's share below `input`", "ndtr", "0.0, 1.0", "0.5000, 0.8413"),
)
ndtr.tests = d.Tests(keeps_less="the inner function's value")
log_ndtr = _special(
    "log_ndtr",
    gaussian.log_ndtr,
    lambda g, input: g * (math.sqrt(2 / math.pi) / erfcx(-math.sqrt(0.5) * input)),
    _each(lambda x: math.log(0.5 * math.erfc(-x * math.sqrt(0.5)))),
    -3,
    3,
    DOC.format(
        "The logarithm of the normal distribution's share below `input`",
        "log_ndtr",
        "0.0, 1.0",
        "-0.6931, -0.1728",
    ),
)
ndtri = _special(
    "ndtri",
    gaussian.ndtri,
    lambda g, y: g * (math.sqrt(2 * math.pi) * exp(0.5 * (y * y))),
    _each(_quantile),
    0.05,
    0.95,
    DOC.format("The inverse of ndtr; NaN outside [0, 1]", "ndtri", "0.5, 0.9", "0.0000, 1.2816"),
)
entr = _special(
    "entr",
    gaussian.entr,
    lambda g, input: g * (-1 - log(input)),
    _each(lambda x: -x * math.log(x)),
    0.1,
    3,
    DOC.format("-input * log(input); 0 at 0, -inf below", "entr", "0.5, 2.0", " 0.3466, -1.3863"),
)

# Gamma functions


def _from_ten(np: ModuleType, x: Any, step: Callable[[Any], Any], far: Callable[[Any], Any]) -> Any:
    """far(x + 30) plus step(x) + step(x + 1) + ... below."""
    x = np.asarray(x, np.float64)
    return sum(step(x + k) for k in range(30)) + far(x + 30)


def _digamma(np: ModuleType, x: Any) -> Any:
    far = lambda z: np.log(z) - 1 / (2 * z) - 1 / (12 * z**2) + 1 / (120 * z**4) - 1 / (252 * z**6)  # noqa: E731
    return _from_ten(np, x, lambda z: -1 / z, far).astype(x.dtype)


def _zeta(np: ModuleType, s: Any, q: Any) -> Any:
    def far(z: Any) -> Any:
        more = s / 12 / z**2 - s * (s + 1) * (s + 2) / 720 / z**4
        more = more + s * (s + 1) * (s + 2) * (s + 3) * (s + 4) / 30240 / z**6
        return z**-s * (z / (s - 1) + 0.5 + more * z)

    s = np.asarray(s, np.float64)
    return _from_ten(np, q, lambda z: z**-s, far)


@pointwise(
    "float",
    samples=lambda rng, t: [Sample((d.array(rng, (3, 5), t, 0.5, 9), n)) for n in (1, 2)],
    reference=d.reference(
        lambda np, x, n: ((-1) ** (n + 1) * math.factorial(n) * _zeta(np, n + 1.0, x)).astype(x.dtype)
    ),
    public=False,
)
def polygamma_of(input: Tensor, n: Structure) -> Any:
    """The n-th derivative of digamma, n >= 1."""
    return double(lambda x: gamma.polygamma(n, x))(input)


@polygamma_of.derivative
def _(g: Tensor, input: Tensor, n: Any) -> Tensor:
    return g * polygamma_of(input, n + 1)


lgamma: Any = _function(
    "lgamma",
    gamma.lgamma,
    lambda g, input: g * digamma(input),
    _each(math.lgamma),
    0.1,
    9,
    DOC.format("The logarithm of |gamma(input)|", "lgamma", "0.5, 4.0", "0.5724, 1.7918"),
)
lgamma.tests = d.Tests(rough_peer="derivatives")
digamma: Any = _function(
    "digamma",
    gamma.digamma,
    lambda g, input: g * polygamma_of(input, 1),
    _digamma,
    0.1,
    9,
    DOC.format("The derivative of lgamma", "digamma", "1.0, 2.0", "-0.5772,  0.4228"),
)
digamma.tests = d.Tests(rough_peer="values")


@public(
    "polygamma",
    method=False,
    differs="0 at infinity; PyTorch gives NaN from n = 2 on",
    samples=lambda rng, t: [Sample((n, d.array(rng, (3, 5), t, 0.5, 9))) for n in (0, 1, 3)],
    dtypes="float",
    failures=d.failures(
        ((-1, d.Zeros(2)), {}, RuntimeError, "does not support negative n"),
        ((1.5, d.Zeros(2)), {}, TypeError, "must be int"),
    ),
    tests=d.Tests(rough_peer="derivatives"),
)
def polygamma(n: int, input: Any, *, out: Any = None) -> Any:
    """The n-th derivative of digamma at `input`, any shape; integers and bool give the default float dtype.

    RuntimeError for n < 0.

    >>> kiln.polygamma(1, kiln.tensor([1.0]))
    tensor([1.6449])
    """
    if not isinstance(n, int):
        raise TypeError(f"polygamma(): argument 'n' (position 1) must be int, not {type(n).__name__}")
    if n < 0:
        raise RuntimeError("polygamma(n, x) does not support negative n.")
    return polygamma_of(input, n, **into(out)) if n else digamma(input, **into(out))


def _polygamma_method(self: Any, n: int) -> Any:
    """The n-th derivative of digamma (see kiln.polygamma)."""
    return polygamma(n, self)


def _polygamma_in_place(self: Any, n: int) -> Any:
    """`polygamma` with its result written into the tensor, which is returned."""
    return polygamma(n, self, out=self)


methods({"polygamma": _polygamma_method, "polygamma_": _polygamma_in_place})


def _mvlgamma(np: ModuleType, x: Any, p: int) -> Any:
    parts = [np.vectorize(math.lgamma, otypes=[float])(x - j / 2) for j in range(p)]
    return (sum(parts) + p * (p - 1) / 4 * math.log(math.pi)).astype(x.dtype)


@composite(
    samples=lambda rng, t: [Sample((d.array(rng, (3, 5), t, 1.5, 9), p)) for p in (1, 3)],
    reference=d.reference(_mvlgamma),
    failures=d.failures(((d.Zeros(2), 0), {}, RuntimeError, "p has to be greater than or equal to 1")),
    inplace=True,
    tests=d.Tests(rough_peer="derivatives"),
)
def mvlgamma(input: Tensor, p: Structure) -> Any:
    """The logarithm of the multivariate gamma function of dimension `p`, any shape; integers and bool give
    the default float dtype. RuntimeError for p < 1.

    >>> kiln.mvlgamma(kiln.tensor([2.0]), 2)
    tensor([0.4516])
    """
    if p < 1:
        raise RuntimeError("p has to be greater than or equal to 1")
    expect_count("mvlgamma", p, "terms", MOST_STEPS)
    x = wide(input) if input.dtype in FLOATS else mul(input, 1.0)
    terms = convert_array(x.graph.add(find("iota"), (), ((p,), 0)), x.dtype)
    total = reduce_sum(lgamma(reshape(x, (*x.shape, 1)) - terms / 2), (x.ndim,), False)
    total = total + p * (p - 1) / 4 * math.log(math.pi)
    return narrow(total, input.dtype) if input.dtype in FLOATS else total


@pointwise(
    "float",
    differs="NaN for an `other` below 0 but at poles; PyTorch sums integral powers there",
    samples=d.binary(1.5, 6, 0.5, 6),
    reference=d.reference(lambda np, x, q: _zeta(np, x, q).astype(x.dtype)),
    failures=d.not_broadcastable,
    public=False,
    tests=d.Tests(underived=True),
)
def zeta(input: Operand, other: Operand) -> Any:
    """The sum of (other + k)**-input over k = 0, 1, ..., broadcast; infinite at input 1, NaN below.

    Infinite where `other` is 0 or a negative integer, else NaN below 0. Integers and bool give the default
    float dtype. NotImplementedError for a gradient by `input`.

    >>> kiln.special.zeta(kiln.tensor([2.0]), 1.0)
    tensor([1.6449])
    """
    return double(gamma.zeta)(input, other)


def _underived(input: Any) -> Any:
    """Stands for a derivative nobody has written: making a kernel of it fails."""
    raise NotImplementedError("the derivative by the first argument is not implemented")


underived = Op("underived", "pointwise", (Param("input", "V", REQUIRED),), _underived, "float", listed=False)


@zeta.derivative
def _(g: Tensor, input: Tensor, other: Tensor) -> Any:
    return underived(g), g * -input * zeta(input + 1, other)


registry.FUNCTIONS["special.zeta"] = zeta.handle


def _incomplete_samples(rng: Any, t: str) -> list[Any]:
    pairs = ((3, 5), (5,)), ((), ())
    return [Sample((d.array(rng, s, t, 0.5, 4), d.array(rng, r, t, 0.5, 6))) for s, r in pairs]


def _igamma(np: ModuleType, a: Any, x: Any) -> Any:
    """By its series, to x = 6."""
    a, x = np.asarray(a, np.float64), np.asarray(x, np.float64)
    term = total = np.ones_like(a + x)
    for k in range(1, 60):
        term = term * x / (a + k)
        total = total + term
    return total * np.exp(a * np.log(x) - x - np.vectorize(math.lgamma, otypes=[float])(a + 1))


@pointwise(
    differs="NaN where an argument is NaN; PyTorch gives 0 or 1 where the other is 0 or infinite",
    samples=_incomplete_samples,
    reference=d.reference(lambda np, a, x: (1 - _igamma(np, a, x)).astype(x.dtype)),
    failures=d.not_broadcastable,
    inplace=True,
    tests=d.Tests(underived=True),
)
def igammac(input: Tensor, other: Tensor) -> Any:
    """The regularised upper incomplete gamma function Q(input, other), broadcast; floats.

    NotImplementedError for other dtypes, and for a gradient by `input`.

    >>> kiln.igammac(kiln.tensor([1.0]), kiln.tensor([1.0]))
    tensor([0.3679])
    """
    unsupported("igammac_cpu", input, INTS | {"i1"})
    return double(incomplete.igammac)(input, other)


@pointwise(
    differs="NaN where an argument is NaN; PyTorch gives 0 or 1 where the other is 0 or infinite",
    samples=_incomplete_samples,
    reference=d.reference(lambda np, a, x: _igamma(np, a, x).astype(x.dtype)),
    failures=d.not_broadcastable,
    inplace=True,
    tests=d.Tests(underived=True),
)
def igamma(input: Tensor, other: Tensor) -> Any:
    """The regularised lower incomplete gamma function P(input, other), broadcast; floats.

    NotImplementedError for other dtypes, and for a gradient by `input`.

    >>> kiln.igamma(kiln.tensor([1.0]), kiln.tensor([1.0]))
    tensor([0.6321])
    """
    unsupported("igamma_cpu", input, INTS | {"i1"})
    return double(incomplete.igamma)(input, other)


def _density(a: Any, x: Any) -> Any:
    return exp((a - 1) * log(x) - x - lgamma(a))


@igamma.derivative
def _(g: Tensor, input: Tensor, other: Tensor) -> Any:
    return underived(g), g * _density(input, other)


@igammac.derivative
def _(g: Tensor, input: Tensor, other: Tensor) -> Any:
    return underived(g), -g * _density(input, other)


# Bessel functions


def _integral(np: ModuleType, f: Callable[[Any], Any], high: float) -> Any:
    """The integral of f from 0 to high; f's last dim is that of the points."""
    points, weights = np.polynomial.legendre.leggauss(100)
    return (f((points + 1) * (high / 2)) * weights).sum(-1) * (high / 2)


def _i(n: int, scaled: bool) -> Any:
    def reference(np: ModuleType, x: Any) -> Any:
        a = np.asarray(x, np.float64)[..., None]
        less = np.abs(a) if scaled else 0
        f = lambda t: np.exp(a * np.cos(t) - less) * np.cos(n * t)  # noqa: E731
        return (_integral(np, f, math.pi) / math.pi).astype(x.dtype)

    return reference


def _k(n: int, scaled: bool) -> Any:
    def reference(np: ModuleType, x: Any) -> Any:
        a = np.asarray(x, np.float64)[..., None]
        f = lambda t: np.exp(-a * (np.cosh(t) - scaled)) * np.cosh(n * t)  # noqa: E731
        return _integral(np, f, 6.0).astype(x.dtype)

    return reference


def _j(n: int) -> Any:
    def reference(np: ModuleType, x: Any) -> Any:
        a = np.asarray(x, np.float64)[..., None]
        return (_integral(np, lambda t: np.cos(a * np.sin(t) - n * t), math.pi) / math.pi).astype(x.dtype)

    return reference


def _y(n: int) -> Any:
    def reference(np: ModuleType, x: Any) -> Any:
        a = np.asarray(x, np.float64)[..., None]
        near = _integral(np, lambda t: np.sin(a * np.sin(t) - n * t), math.pi)
        f = lambda t: (np.exp(n * t) + (-1) ** n * np.exp(-n * t)) * np.exp(-a * np.sinh(t))  # noqa: E731
        far = _integral(np, f, 6.0)
        return ((near - far) / math.pi).astype(x.dtype)

    return reference


def _signed_inverse(input: Any) -> tuple[Any, Any]:
    """Where input is 0 or as good as that, and 1 / input, or 1 there."""
    zero = lt(abs(input), 2.0**-52)
    return zero, 1 / where(zero, 1, input)


def _i1_gradient(g: Any, input: Any, y: Any) -> Any:
    zero, inverse = _signed_inverse(input)
    return g * where(zero, 0.5, i0(input) - y * inverse)


def _i1e_gradient(g: Any, input: Any, y: Any) -> Any:
    zero, inverse = _signed_inverse(input)
    return g * where(zero, 0.5, i0e(input) - y * (sign(input) + inverse))


_FIRST = "The modified Bessel function of the first kind, of order {0}{1}"
i0: Any = _function(
    "i0",
    lambda x: bessel.bessel_i(x, 0),
    lambda g, input: g * i1(input),
    _i(0, False),
    -3,
    3,
    DOC.format(_FIRST.format(0, ""), "i0", "0.0, 1.0", "1.0000, 1.2661"),
    differs="infinite where it overflows; PyTorch gives NaN at infinity and near it",
)
i0e: Any = _special(
    "i0e",
    lambda x: bessel.bessel_ie(x, 0),
    lambda g, input, y: g * (i1e(input) - sign(input) * y),
    _i(0, True),
    -3,
    12,
    DOC.format(_FIRST.format(0, ", times exp(-|input|)"), "i0e", "0.0, 1.0", "1.0000, 0.4658"),
)
i1: Any = _special(
    "i1",
    lambda x: bessel.bessel_i(x, 1),
    _i1_gradient,
    _i(1, False),
    -3,
    3,
    DOC.format(_FIRST.format(1, ""), "i1", "0.0, 1.0", "0.0000, 0.5652"),
)
i1e: Any = _special(
    "i1e",
    lambda x: bessel.bessel_ie(x, 1),
    _i1e_gradient,
    _i(1, True),
    -3,
    12,
    DOC.format(_FIRST.format(1, ", times exp(-|input|)"), "i1e", "0.0, 1.0", "0.0000, 0.2079"),
)


def _bessel(name: str, body: Any, reference: Any, what: str, value: str) -> None:
    """A Bessel function without derivative, as in PyTorch."""
    doc = DOC.format(f"The {what}; no derivative", name, "2.0", value)
    op = _special(name, body, None, reference, 0.5, 9, doc)
    op.differs = "its limit at infinity; PyTorch gives NaN"
    op.tests = d.Tests(rough_peer="values" if name.startswith("bessel") else "")


_bessel("bessel_j0", lambda x: bessel.bessel_j(x, 0), _j(0), "Bessel function J of order 0", "0.2239")
_bessel("bessel_j1", lambda x: bessel.bessel_j(x, 1), _j(1), "Bessel function J of order 1", "0.5767")
_bessel("bessel_y0", lambda x: bessel.bessel_y(x, 0), _y(0), "Bessel function Y of order 0", "0.5104")
_bessel("bessel_y1", lambda x: bessel.bessel_y(x, 1), _y(1), "Bessel function Y of order 1", "-0.1070")
_bessel(
    "spherical_bessel_j0",
    bessel.spherical_j,
    lambda np, x: np.sin(x) / x,
    "spherical Bessel function j of order 0",
    "0.4546",
)
for _n, _plain, _scaled, _first in ((0, "0.1139", "0.8416", "2.2796"), (1, "0.1399", "1.0335", "1.5906")):
    _of = f"modified Bessel function {{}} of order {_n}"
    _bessel(
        f"modified_bessel_i{_n}",
        lambda x, n=_n: bessel.bessel_i(x, n),
        _i(_n, False),
        _of.format("I"),
        _first,
    )
    _bessel(
        f"modified_bessel_k{_n}",
        lambda x, n=_n: bessel.bessel_k(x, n, False),
        _k(_n, False),
        _of.format("K"),
        _plain,
    )
    _bessel(
        f"scaled_modified_bessel_k{_n}",
        lambda x, n=_n: bessel.bessel_k(x, n, True),
        _k(_n, True),
        _of.format("K") + ", times exp(input)",
        _scaled,
    )
