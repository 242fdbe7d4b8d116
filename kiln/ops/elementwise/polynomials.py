"""Orthogonal polynomials of a degree that is data.

Chebyshev's are pointwise: by their recurrence up to degree 8, above by cosines of multiples of the angle, or
hyperbolic ones outside [-1, 1]. The others have no such form: their recurrence runs on whole arrays up to the
largest degree. A degree is cut to an integer; below 0 the polynomial is 0. Computed in float64, rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from kiln import _core
from kiln.errors import describe, message
from kiln.ops.creation.constants import full
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise import comparison
from kiln.ops.elementwise.special import double
from kiln.scalars.hyperbolic import acosh, cosh, sinh
from kiln.scalars.inverses import acos
from kiln.scalars.scalar import Scalar, absolute, select, trunc
from kiln.scalars.trigonometry import cos, sin
from kiln.table import drawn as d
from kiln.table.arguments import MOST_STEPS, default_float, dtype_name, expect_count, into, is_float, numel
from kiln.table.arguments import run as run_op
from kiln.table.public import public
from kiln.table.record import Operand, Sample, Structure, pointwise

SMALL = 8  # the highest degree that the recurrence is used for inside [-1, 1]

# degree 1 and value at 1 of each kind, from its argument and its degree
_FIRST: dict[str, Callable[[Any], Any]] = {
    "t": lambda x: x,
    "u": lambda x: 2.0 * x,
    "v": lambda x: 2.0 * x - 1.0,
    "w": lambda x: 2.0 * x + 1.0,
}
_AT_ONE: dict[str, Callable[[Any], Any]] = {
    "t": lambda n: n * 0.0 + 1.0,
    "u": lambda n: n + 1.0,
    "v": lambda n: n * 0.0 + 1.0,
    "w": lambda n: 2.0 * n + 1.0,
}
_MIRRORED = {"t": "t", "u": "u", "v": "w", "w": "v"}  # of -x, with the sign of (-1)^n


def _of_angle(kind: str, n: Scalar, angle: Scalar) -> Scalar:
    """The polynomial at cos(angle), 0 < angle < pi."""
    if kind == "t":
        return cos(n * angle)
    if kind == "u":
        return sin((n + 1.0) * angle) / sin(angle)
    wave = cos if kind == "v" else sin
    return wave((n + 0.5) * angle) / wave(angle * 0.5)


def _of_hyperbolic(kind: str, n: Scalar, x: Scalar) -> Scalar:
    """The polynomial at x > 1."""
    angle = acosh(x)
    if kind == "t":
        return cosh(n * angle)
    if kind == "u":
        return sinh((n + 1.0) * angle) / sinh(angle)
    wave = cosh if kind == "v" else sinh
    return wave((n + 0.5) * angle) / wave(angle * 0.5)


def _chebyshev(kind: str, x: Scalar, degree: Scalar) -> Scalar:
    """Chebyshev's polynomial of f64 scalars."""
    n = trunc(degree)
    half = n * 0.5
    sign = select(trunc(half).eq(half), 1.0, x * 0.0 - 1.0)
    before, last = x * 0.0 + 1.0, _FIRST[kind](x)
    value = select(n.eq(0.0), before, last)
    for k in range(2, SMALL + 1):
        before, last = last, 2.0 * x * last - before
        value = select(n.eq(float(k)), last, value)
    a = absolute(x)
    inside = select(a < 1.0, x, 0.0)
    outside = select(a > 1.0, a, 2.0)
    near = _of_angle(kind, n, acos(inside))
    far = _of_hyperbolic(kind, n, outside)
    one = _AT_ONE[kind](n)
    if _MIRRORED[kind] == kind:
        far, one = select(x < 0.0, sign * far, far), select(x < 0.0, sign * one, one)
    else:
        other = _MIRRORED[kind]
        far = select(x < 0.0, sign * _of_hyperbolic(other, n, outside), far)
        one = select(x < 0.0, sign * _AT_ONE[other](n), one)
    value = select(n > float(SMALL), select(a < 1.0, near, far), value)
    value = select(a.eq(1.0), one, value)
    return select(n < 0.0, 0.0, select(x.ne(x) | degree.ne(degree), x + degree, value))


def _reference(kind: str, shifted: bool) -> Any:
    def of(np: ModuleType, x: Any, n: Any, *_: Any) -> Any:
        y = 2 * np.asarray(x, np.float64) - 1 if shifted else np.asarray(x, np.float64)
        y, n = np.broadcast_arrays(y, np.trunc(np.asarray(n, np.float64)))
        before, last = np.ones_like(y), _FIRST[kind](y)
        value = np.where(n == 0, before, last)
        for k in range(2, int(max(n.max(initial=0), 1)) + 1):
            before, last = last, 2 * y * last - before
            value = np.where(n == k, last, value)
        return np.where(n < 0, 0, value)

    return d.reference(of)


def _drawn(rng: Any, t: str) -> tuple[Any, Any]:
    return d.array(rng, (3, 5), t, -1.2, 1.2), rng.integers(-1, 14, (3, 5)).astype(t)


def _samples(rng: Any, t: str) -> list[Sample]:
    return [Sample(_drawn(rng, t)), Sample((d.array(rng, (3,), t, -1, 1), 5))]


_DOC = """{0} of degree `n` at `input`, broadcast; integers give the default float dtype.

    NotImplementedError for an input that requires gradients.

    >>> kiln.special.{1}(kiln.tensor([0.5, 2.0]), 3)
    tensor([{2}])
    """


@pointwise(
    "float",
    samples=lambda rng, t: [Sample((*_drawn(rng, t), "v"))],
    reference=_reference("v", False),
    dtypes="float64",
    public=False,
    differentiable=False,
)
def chebyshev(input: Operand, n: Operand, kind: Structure) -> Any:
    """Chebyshev's polynomial of a kind, "t", "u", "v" or "w", of degree `n`."""
    return double(lambda x, degree: _chebyshev(kind, x, degree))(input, n)


def _number(input: Any) -> float:
    """What stands for an array without dims; TypeError for what is no number."""
    if not hasattr(type(input), "__float__"):
        raise TypeError(f"argument 'input' must be Tensor or float, not {type(input).__name__}")
    return float(input)


def _named(kind: str, shifted: bool, value: str) -> None:
    """Makes the public function; the first has samples, the rest are tested beside PyTorch at once."""
    name = f"{'shifted_' if shifted else ''}chebyshev_polynomial_{kind}"

    def function(input: Any, n: Any, *, out: Any = None) -> Any:
        if getattr(input, "requires_grad", False) and _core.grad_enabled():
            raise NotImplementedError(f"special.{name}: has no derivative; detach the input")
        if not shifted:
            return chebyshev(input, n, kind, **into(out))
        wide = p.convert(input, "float64") if hasattr(input, "ndim") else _number(input)
        found = chebyshev(2.0 * wide - 1.0, n, kind)
        dtype = dtype_name(input.dtype) if hasattr(input, "ndim") and is_float(input) else default_float()
        return p.written_to(p.convert(found, dtype), out)

    function.__name__ = name
    what = f"Chebyshev's polynomial of kind {kind.upper()}{', from [0, 1]' if shifted else ''},"
    function.__doc__ = _DOC.format(what, name, value)
    tests: dict[str, Any] = {"samples": _samples} if name == "shifted_chebyshev_polynomial_t" else {}
    public(f"special.{name}", method=False, differentiable=False, dtypes="float32 float64", **tests)(function)


for _kind, _plain, _shifted in (
    ("t", "-1., 26.", "-0., 99."),
    ("u", "-1., 56.", " -0., 204."),
    ("v", "-1., 41.", "  1., 169."),
    ("w", "-1., 71.", " -1., 239."),
):
    _named(_kind, False, _plain)
    _named(_kind, True, _shifted)


# Those of a recurrence alone

_LIMITS = {"float32": 128, "float64": 512}  # of Hermite's degrees, from which on PyTorch gives NaN
Step = Callable[[int, Any, Any, Any], Any]


def _largest(n: Any) -> int:
    """The largest degree, read from an array."""
    if isinstance(n, (int, float)):
        return int(n)
    return int(n.max().item()) if numel(n.shape) else 0


def _recurrent(name: str, what: str, value: str, first: Callable[[Any], Any], step: Step) -> None:
    """Makes a polynomial: `step(k, before, last, x)` is that of degree k + 1."""

    def run(x: Any, n: Any, most: int) -> Any:
        before, last = x * 0 + 1, first(x)
        value = p.where(n == 0, before, last)
        for k in range(1, most):
            before, last = last, step(k, before, last, x)
            value = p.where(n == k + 1, last, value)
        return p.where(n < 0, 0, value)

    def function(input: Any, n: Any, *, out: Any = None) -> Any:
        x = input if hasattr(input, "ndim") else run_op(full, _number(input), (), default_float())
        dtype = dtype_name(x.dtype) if is_float(x) else default_float()
        if not isinstance(n, (int, float)) and not hasattr(n, "ndim"):
            raise TypeError(message(name, "a degree: a number or a tensor", describe(n)))
        degree = p.convert(n.detach(), "int64") if hasattr(n, "ndim") else run_op(full, int(n), (), "int64")
        limit, most = _LIMITS.get(dtype, 128) if name.startswith("hermite") else 2**62, _largest(n)
        most = most if numel(x.shape) and numel(degree.shape) else 0
        expect_count(name, min(most, limit), "degrees", MOST_STEPS)
        found = run(p.convert(x, "float64"), degree, min(most, limit))
        found = found if most <= limit else p.where(comparison.gt(degree, limit), float("nan"), found)
        return p.written_to(p.convert(found, dtype), out)

    function.__name__ = name
    function.__doc__ = _DOC.format(what, name, value).replace("; no derivative", "")
    public(
        f"special.{name}",
        method=False,
        reads=True,
        differs="has a derivative by `input`",
        tests=d.Tests(peer_gradient=False),
        dtypes="float32 float64",
        samples=lambda rng, t: [
            Sample((d.array(rng, (3, 5), t, -2, 2), rng.integers(-1, 7, (3, 5)))),
            Sample((d.array(rng, (4,), t, -2, 2), 3)),
        ],
        failures=d.failures(((d.Zeros(2), "text"), {}, TypeError, "degree")),
    )(function)


_recurrent(
    "hermite_polynomial_h",
    "The physicists' Hermite polynomial",
    "-5., 40.",
    lambda x: 2 * x,
    lambda k, before, last, x: 2 * x * last - 2 * k * before,
)
_recurrent(
    "hermite_polynomial_he",
    "The probabilists' Hermite polynomial",
    "-1.3750,  2.0000",
    lambda x: x,
    lambda k, before, last, x: x * last - k * before,
)
_recurrent(
    "laguerre_polynomial_l",
    "Laguerre's polynomial",
    "-0.1458, -0.3333",
    lambda x: 1 - x,
    lambda k, before, last, x: ((2 * k + 1 - x) * last - k * before) / (k + 1),
)
_recurrent(
    "legendre_polynomial_p",
    "Legendre's polynomial",
    "-0.4375, 17.0000",
    lambda x: x,
    lambda k, before, last, x: ((2 * k + 1) * x * last - k * before) / (k + 1),
)
