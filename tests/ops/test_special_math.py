"""Special functions and functions of two arguments, on scalars: errors in ULPs against mpmath."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from backend import kiln, torch
from test_scalar_math import distance, on

from kiln.ops.elementwise.special import double
from kiln.scalars import bessel, gamma, gaussian, hyperbolic, incomplete, inverses, trigonometry

mpmath = pytest.importorskip("mpmath")
Array = np.ndarray[Any, Any]


class Case(NamedTuple):
    """A function, its truth, the worst error allowed in float64, and where: ranges and powers of e."""

    body: Callable[..., Any]
    truth: Callable[..., Any]
    bound: float
    ranges: tuple[tuple[float, float], ...]
    powers: tuple[float, float] | None = None
    own_float32: float = 0.0  # the bound of a float32 body that is not the float64 one's result


def normal_share(x: Any) -> Any:
    """ndtr."""
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def scaled(x: Any) -> Any:
    """erfcx."""
    return mpmath.erfc(x) * mpmath.exp(x * x)


def inverse(function: Callable[[Any], Any], slope: Callable[[Any], Any], guess: Any, y: Any) -> Any:
    """The x with function(x) = y, by Newton's method."""
    x = mpmath.mpf(guess)
    for _ in range(80):
        step = (function(x) - y) / slope(x)
        x -= step
        if abs(step) <= abs(x) * mpmath.mpf(10) ** -40:
            return x
    raise AssertionError(f"no inverse at {y}")


def erfinv(x: Any) -> Any:
    """mpmath's, polished: it is asked for more digits than it gives."""
    slope = lambda v: 2 / mpmath.sqrt(mpmath.pi) * mpmath.exp(-v * v)  # noqa: E731
    return inverse(mpmath.erf, slope, mpmath.erfinv(x), x)


def ndtri(p: Any) -> Any:
    """By the logarithm of ndtr below 0.1."""
    if p > 0.5:
        return -ndtri(1 - p)
    if p > 0.1:
        return -mpmath.sqrt(2) * erfinv(1 - 2 * p)
    density = lambda v: mpmath.exp(-v * v / 2) / mpmath.sqrt(2 * mpmath.pi) / normal_share(v)  # noqa: E731
    return inverse(
        lambda v: mpmath.log(normal_share(v)), density, -mpmath.sqrt(-2 * mpmath.log(p)), mpmath.log(p)
    )


def i(n: int) -> Callable[[Any], Any]:
    return lambda x: mpmath.besseli(n, x)


def k(n: int) -> Callable[[Any], Any]:
    return lambda x: mpmath.besselk(n, x)


def polygamma(n: int, more: tuple[float, float]) -> Case:
    """The n-th derivative of digamma, on positive values and the range `more`."""
    truth = lambda x: mpmath.polygamma(n, x)  # noqa: E731
    return Case(lambda x: gamma.polygamma(n, x), truth, 10, ((0, 20), more), (-5, 9))


def zeta(s: Any, q: Any) -> Any:
    """By 80 terms and Euler and Maclaurin: mpmath's own loses digits for large q."""
    z, factor = q + 80, s
    total = sum((q + k) ** -s for k in range(80)) + z ** (1 - s) / (s - 1) + z**-s / 2
    for k in range(1, 12):
        total += mpmath.bernoulli(2 * k) / mpmath.factorial(2 * k) * factor * z ** (1 - s - 2 * k)
        factor *= (s + 2 * k - 1) * (s + 2 * k)
    return total


# digamma and lgamma below 0 cross 0 between their poles, where only the absolute error is small: not here
CASES = {
    "erfc": Case(gaussian.erfc, mpmath.erfc, 4, ((-6, 26), (-1, 1)), (-30, 0)),
    "erfcx": Case(gaussian.erfcx, scaled, 5, ((-20, 26), (-2, 3)), (-30, 0)),
    "ndtr": Case(gaussian.ndtr, normal_share, 5, ((-37, 5), (-2, 2))),
    "log_ndtr": Case(gaussian.log_ndtr, lambda x: mpmath.log(normal_share(x)), 5, ((-37, 5), (-2, 2))),
    "erfinv": Case(gaussian.erfinv, erfinv, 5, ((-1, 1), (0.998, 1)), (-30, -1)),
    "ndtri": Case(gaussian.ndtri, ndtri, 6, ((0, 1),), (-700, -1)),
    "spherical_bessel_j0": Case(
        bessel.spherical_j, lambda x: mpmath.sin(x) / x, 1.5, ((-9, 9), (100, 1e6)), (-30, 0)
    ),
    "entr": Case(gaussian.entr, lambda x: -x * mpmath.log(x), 1.5, ((0, 3),), (-30, 30)),
    "lgamma": Case(
        gamma.lgamma, lambda x: mpmath.log(mpmath.gamma(x)), 6, ((0, 12), (0.9, 2.1), (2.9, 3.1)), (-30, 6)
    ),
    "digamma": Case(gamma.digamma, mpmath.digamma, 8, ((0, 1), (2, 12), (9, 1e9)), (-30, -1)),
    **{f"polygamma {n}": polygamma(n, low) for n, low in ((1, (-6, 0)), (2, (-0.4, 0)), (5, (0, 1)))},
    "i0": Case(lambda x: bessel.bessel_i(x, 0), i(0), 5, ((-12, 12), (7, 700)), (-20, 0)),
    "i1": Case(lambda x: bessel.bessel_i(x, 1), i(1), 5, ((-12, 12), (7, 700)), (-20, 0)),
    "i0e": Case(lambda x: bessel.bessel_ie(x, 0), lambda x: i(0)(x) * mpmath.exp(-x), 5, ((0, 12), (7, 700))),
    "i1e": Case(lambda x: bessel.bessel_ie(x, 1), lambda x: i(1)(x) * mpmath.exp(-x), 5, ((0, 12), (7, 700))),
    "k0": Case(lambda x: bessel.bessel_k(x, 0, False), k(0), 8, ((0, 12), (1, 700)), (-20, 0)),
    "k1": Case(lambda x: bessel.bessel_k(x, 1, False), k(1), 8, ((0, 12), (1, 700)), (-20, 0)),
    "sinc": Case(
        trigonometry.sinc, lambda x: mpmath.sincpi(x), 1.5, ((-3, 3), (0.99, 1.01)), (-30, 9), own_float32=1.5
    ),
    "logit": Case(
        hyperbolic.logit, lambda x: mpmath.log(x) - mpmath.log1p(-x), 1.5, ((0, 1), (0.49, 0.51)), (-300, -1),
        own_float32=1.5,
    ),
}  # fmt: skip


def samples(case: Case, rng: np.random.Generator) -> Array:
    """Finite values of a function's ranges."""
    parts = [rng.uniform(low, high, 80) for low, high in case.ranges]
    parts += [np.exp(rng.uniform(*case.powers, 60))] if case.powers else []
    return np.concatenate(parts)


def worst(case: Case, x: Array, bits: int, least: int) -> tuple[float, float]:
    """The largest error in ULPs and its argument."""
    body = case.body if x.dtype == np.float64 or case.own_float32 else double(case.body)
    got = on(body, x)
    with mpmath.workdps(60):
        truth = [case.truth(mpmath.mpf(float(v))) for v in x]
        errors = [distance(float(g), t, bits, least) for g, t in zip(got, truth)]
    worst = int(np.argmax(errors))
    return errors[worst], float(x[worst])


@pytest.mark.parametrize("name", CASES)
def test_error(name: str, rng: np.random.Generator) -> None:
    """Within some ULPs in float64; in float32, computed in float64, within a rounding."""
    case = CASES[name]
    x = samples(case, rng)
    error, where = worst(case, x, 53, -1021)
    assert error <= case.bound, where
    narrow = x.astype(np.float32)
    narrow = narrow[(np.abs(narrow) < 80) & (np.abs(narrow) > 1e-30) & ~(narrow == 1)]
    error, where = worst(case, narrow, 24, -125)
    assert error <= (case.own_float32 or 0.501), where


TWO: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "atan2": (inverses.atan2, mpmath.atan2),
    "hypot": (inverses.hypot, mpmath.hypot),
}


@pytest.mark.parametrize("name", TWO)
def test_error_of_two(name: str, rng: np.random.Generator) -> None:
    """Within 1.5 ULP over the whole range, both types; extreme operands neither overflow nor lose digits."""
    body, truth = TWO[name]
    for dtype, bits, least, top in ((np.float64, 53, -1021, 307), (np.float32, 24, -125, 37)):
        for width in (1, 12, top):
            x, y = (10.0 ** rng.uniform(-width, width, 200) * rng.choice([-1, 1], 200) for _ in range(2))
            x, y = x.astype(dtype), y.astype(dtype)
            got = on(body, x, y)
            with mpmath.workdps(60):
                error = [
                    distance(float(g), truth(mpmath.mpf(float(a)), mpmath.mpf(float(b))), bits, least)
                    for a, b, g in zip(x, y, got)
                ]
            assert max(error) <= 1.5, (x[int(np.argmax(error))], y[int(np.argmax(error))])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_special_values_of_two(dtype: str) -> None:
    """Zeros with their signs, infinities, denormals, NaN: as NumPy's."""
    least = float(np.finfo(dtype).smallest_subnormal)
    values = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.5,
        least,
        -least,
        float(np.finfo(dtype).max),
        math.inf,
        -math.inf,
        math.nan,
    ]
    x, y = (np.ascontiguousarray(v.ravel()) for v in np.meshgrid(*[np.array(values, dtype)] * 2))
    for body, peer in ((inverses.atan2, np.arctan2), (inverses.hypot, np.hypot)):
        with np.errstate(all="ignore"):
            want = peer(x, y)
        got = on(body, x, y)
        assert np.array_equal(np.signbit(got) | np.isnan(got), np.signbit(want) | np.isnan(want))
        np.testing.assert_array_almost_equal_nulp(got[np.isfinite(want)], want[np.isfinite(want)], 1)
        assert np.array_equal(got[~np.isfinite(want)], want[~np.isfinite(want)], equal_nan=True)


@pytest.mark.parametrize("order", [0, 1])
def test_oscillating(order: int, rng: np.random.Generator) -> None:
    """J and Y to 1e-14 of the wave they are part of, and J near its first zero to its own digits."""
    x = np.concatenate([rng.uniform(0, 12, 150), rng.uniform(0, 1000, 60)])
    for body, truth in ((bessel.bessel_j, mpmath.besselj), (bessel.bessel_y, mpmath.bessely)):
        for v, g in zip(x, on(lambda a, body=body: body(a, order), x)):
            want = float(truth(order, float(v)))
            assert abs(g - want) <= 1e-14 * max(abs(want), math.sqrt(2 / (math.pi * max(v, 0.5)))), v
    zero = float(mpmath.besseljzero(order, 1)) + np.arange(-5, 6) * 1e-9
    with mpmath.workdps(40):
        want = np.array([float(mpmath.besselj(order, mpmath.mpf(float(v)))) for v in zero])
    assert np.allclose(on(lambda a: bessel.bessel_j(a, order), zero), want, rtol=1e-14, atol=0)


def test_zeta(rng: np.random.Generator) -> None:
    """The sum over (q + k)^-s, both arguments free."""
    s, q = rng.uniform(1.01, 30, 150), np.exp(rng.uniform(-3, 5, 150))
    for a, b, g in zip(s, q, on(gamma.zeta, s, q)):
        with mpmath.workdps(60):
            want = zeta(mpmath.mpf(float(a)), mpmath.mpf(float(b)))
        assert distance(float(g), want) <= 8, (a, b)


def test_incomplete_gamma(rng: np.random.Generator) -> None:
    """P and Q relative to themselves, in every region, to 1e-13; Q of a tiny `a`, P far below a."""
    a = np.concatenate([np.exp(rng.uniform(-12, 4, 100)), rng.uniform(1, 60, 50), rng.uniform(60, 300, 50)])
    x = np.concatenate([np.exp(rng.uniform(-8, 5, 100)), a[100:] * rng.uniform(0.6, 1.5, 100)])
    for body, low in ((incomplete.igamma, True), (incomplete.igammac, False)):
        for u, v, g in zip(a, x, on(body, a, x)):
            with mpmath.workdps(40):
                want = (
                    mpmath.gammainc(float(u), 0, float(v), regularized=True)
                    if low
                    else (mpmath.gammainc(float(u), float(v), regularized=True))
                )
                assert abs(g - want) <= 1e-13 * want + mpmath.mpf(10) ** -290, (u, v, g, want)


@pytest.mark.parametrize("name", ["igamma", "igammac", "zeta"])
def test_gradient_of_one_argument(name: str, answers: Any) -> None:
    """By the second argument as PyTorch's, by the first it raises, as there."""
    first, second = [1.5, 2.0, 4.0], [0.5, 1.0, 3.0]

    def function(lib: Any) -> Any:
        return getattr(lib.special if name == "zeta" else lib, name)

    def slopes(lib: Any, name: str, function: Any, first: list[float], second: list[float]) -> Any:
        x = lib.tensor(second, requires_grad=True)
        function(lib)(lib.tensor(first), x).sum().backward()
        return x.grad

    ours, theirs = answers.both(slopes, name, function, first, second)
    assert ours.tolist() == pytest.approx(theirs.tolist(), rel=1e-5)
    a = kiln.tensor(first, requires_grad=True)
    with pytest.raises(NotImplementedError, match="derivative"):
        function(kiln)(a, kiln.tensor(second)).sum().backward()


def test_names_are_pytorchs(answers: Any) -> None:
    """kiln.special has PyTorch's names, and what it lacks of them is known."""

    def names() -> list[str]:
        return sorted(n for n, f in vars(torch.special).items() if callable(f) and not n.startswith("_"))

    ours = {n for n in dir(kiln.special) if not n.startswith("_")}
    theirs = set(answers("special", names))
    assert ours <= theirs
    assert theirs - ours <= {"airy_ai", "Tensor"}
