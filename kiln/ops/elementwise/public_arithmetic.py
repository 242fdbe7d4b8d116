"""Public arithmetic whose form depends on its arguments: `alpha`, `rounding_mode`, exponents, open bounds."""

from __future__ import annotations

from typing import Any

from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise import comparison
from kiln.ops.elementwise import elementary as u
from kiln.ops.elementwise.infinities_and_nan import all_near, near
from kiln.ops.elementwise.powers import cube, half_power, inverse_half_power, inverse_power, inverse_square
from kiln.ops.elementwise.precision import floating, narrow
from kiln.ops.reductions import core_reductions
from kiln.table import drawn as d
from kiln.table.arguments import dtype_name, fitting, into, is_float
from kiln.table.kinds import NO_DIFFERENCE
from kiln.table.public import public
from kiln.table.record import Number, Operand, Sample, Structure, Tensor, composite
from kiln.table.registry import forms


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float))


def _scaled(other: Any, alpha: Any, input: Any) -> Any:
    """alpha * other; an alpha of exactly 1 is no operation."""
    if alpha is True or (isinstance(alpha, int) and alpha == 1):
        return other
    if isinstance(alpha, float):
        for x in (input, other):
            if not _is_number(x) and not is_float(x):
                raise RuntimeError(
                    "For integral input tensors, argument alpha must not be a floating point number."
                )
    return other * alpha if _is_number(other) and _is_number(alpha) else p.mul(other, alpha)


def _not_bool(x: Any) -> Any:
    """What is subtracted, which must be refused before a factor makes it a number."""
    if not _is_number(x) and dtype_name(x.dtype) == "bool":
        raise RuntimeError(NO_DIFFERENCE)
    return x


@public("add", inplace=True, plain=p.add)
def add(input: Any, other: Any, *, alpha: Any = 1, out: Any = None) -> Any:
    """`input + alpha * other`, broadcast. RuntimeError for a float `alpha` with integers.

    >>> kiln.add(kiln.tensor([1.0]), kiln.tensor([2.0]), alpha=10)
    tensor([21.])
    """
    return p.add.handle(input, _scaled(other, alpha, input), **into(out))


@public("sub", inplace=True, plain=p.sub)
def sub(input: Any, other: Any, *, alpha: Any = 1, out: Any = None) -> Any:
    """`input - alpha * other`, broadcast. RuntimeError for bool, or a float `alpha` with integers.

    >>> kiln.sub(kiln.tensor([1.0]), kiln.tensor([2.0]), alpha=10)
    tensor([-19.])
    """
    return p.sub.handle(input, _scaled(_not_bool(other), alpha, input), **into(out))


@public("div", inplace=True, plain=p.div)
def div(input: Any, other: Any, *, rounding_mode: str | None = None, out: Any = None) -> Any:
    """`input / other`, broadcast; `rounding_mode` None, "trunc" (towards zero) or "floor". RuntimeError for
    another.

    >>> kiln.div(kiln.tensor([-7.0]), 2, rounding_mode="floor")
    tensor([-4.])
    """
    modes = {None: p.div, "trunc": p.div_trunc, "floor": p.floor_divide}
    if rounding_mode not in modes:
        raise RuntimeError(
            f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{rounding_mode}'"
        )
    return modes[rounding_mode](input, other, **into(out))


forms("rsub", "(input, other: Operand, *, alpha=1)")


@public(
    "rsub",
    method=False,
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t), d.array(rng, (5,), t)), {}),
        lambda rng, t: ((d.array(rng, (3, 5), t), 2), {"alpha": 3}),
    ),
    dtypes="numeric",
    failures=d.failures(
        ((d.Zeros(2, dtype="int64"), 1), {"alpha": 1.5}, RuntimeError, "must not be a floating point number"),
    ),
)
def rsub(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """`other - alpha * input`, broadcast. RuntimeError for bool, or a float `alpha` with integers.

    >>> kiln.rsub(kiln.tensor([1.0]), 3)
    tensor([2.])
    """
    return p.sub.handle(other, _scaled(_not_bool(input), alpha, other))


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t), 10.0, False), {}),
        lambda rng, t: ((d.array(rng, (3, 5), t, -99, 99), 10.0, True), {}),
    ),
    reference=d.reference(
        lambda np, x, s, whole: (np.rint(x / s) * s if whole else np.rint(x * s) / s).astype(x.dtype)
    ),
    dtypes="float",
    public=False,
)
def round_at(input: Tensor, scale: Number, whole: Structure) -> Any:
    """`input` rounded to a multiple of `scale` (`whole`), or of 1 / `scale`: `round` at some decimals."""
    x = floating(input, "round_cpu")
    return narrow(u.round(x / scale) * scale if whole else u.round(x * scale) / scale, input.dtype)


@public("round", inplace=True, plain=u.round)
def round(input: Any, *, decimals: int = 0, out: Any = None) -> Any:
    """The nearest integer, or the nearest number of `decimals` digits behind the point (before it, if
    negative); ties to even. The derivative is 0. NotImplementedError for bool, and `decimals` with integers.

    >>> kiln.round(kiln.tensor([-1.5, 2.375]), decimals=2)
    tensor([-1.5000,  2.3800])
    """
    if decimals == 0:
        return u.round(input, **into(out))
    return round_at(input, 10.0 ** abs(decimals), decimals < 0, **into(out))


@public(
    "fill",
    method=False,
    samples=d.samples(lambda rng, t: ((d.array(rng, (3, 5), t), 2), {})),
    failures=d.failures(
        ((d.Zeros(2), d.Zeros(2)), {}, RuntimeError, "only supports 0-dimension value tensor"),
    ),
)
def fill(input: Any, value: Any) -> Any:
    """An array of input's shape and dtype whose every element is `value`, a number or a 0-d array.
    RuntimeError for an array with dims.

    >>> kiln.fill(kiln.zeros(2), 3)
    tensor([3., 3.])
    """
    if not _is_number(value) and value.ndim:
        raise RuntimeError(
            f"fill_ only supports 0-dimension value tensor but got tensor with {value.ndim} dimensions."
        )
    return filled(input, value)


@composite(
    samples=d.samples(lambda rng, t: ((d.array(rng, (3, 5), t), 2), {})),
    reference=d.reference(lambda np, x, value: np.full_like(x, value)),
    dtypes="all",
    public=False,
)
def filled(input: Tensor, value: Operand) -> Any:
    """`fill` once the value is known to have no dims."""
    return p.overwrite(input, p.convert(value, input.dtype))


_pow = p.pow.handle
_POWERS = {
    2: u.square.handle, 3: cube.handle, 0.5: half_power.handle, -0.5: inverse_half_power.handle,
    -1: inverse_power.handle, -2: inverse_square.handle,
}  # fmt: skip


@public("pow", inplace=True)
def pow(input: Any, exponent: Any, *, out: Any = None) -> Any:
    """`input ** exponent`, broadcast. Exponents 2, 3, 0.5, -0.5, -1 and -2 given as numbers are products and
    roots.

    RuntimeError for an integer array to a negative integer power.

    >>> kiln.pow(kiln.tensor([2.0, 3.0]), 2)
    tensor([4., 9.])
    """
    if not _is_number(exponent) or _is_number(input):
        return _pow(input, exponent, **into(out))
    rule = _POWERS.get(exponent)
    if not is_float(input):
        if isinstance(exponent, int) and exponent < 0:
            raise RuntimeError("Integers to negative integer powers are not allowed.")
        rule = _POWERS[2] if isinstance(exponent, int) and exponent == 2 else None
    if rule is None:
        return _pow(input, exponent, **into(out))
    return rule(input) if out is None else rule(input, out=out)


@public("clamp", inplace=True, plain=p.clamp)
def clamp(input: Any, min: Any = None, max: Any = None, *, out: Any = None) -> Any:
    """`input` brought into [min, max], broadcast; None leaves a side open. RuntimeError if both are None.

    >>> kiln.clamp(kiln.tensor([-2.0, 0.5, 9.0]), max=1)
    tensor([-2.0000,  0.5000,  1.0000])
    """
    if min is None and max is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    if max is None:
        return p.clamp_min.handle(input, min, **into(out))
    if min is None:
        return p.clamp_max.handle(input, max, **into(out))
    return p.clamp.handle(input, min, max, **into(out))


@composite(
    samples=d.binary(-2, 2),
    reference=d.reference(lambda np, x, y: np.asarray((x == y).all())),
    failures=d.not_broadcastable,
    dtypes="all",
    differentiable=False,
    public=False,
)
def all_equal(input: Tensor, other: Tensor) -> Any:
    """Whether all elements are equal, broadcast, as a 0-d array: `equal` once the sizes are."""
    same = comparison.eq(input, other)
    return core_reductions.reduce_all(same, tuple(range(same.ndim)), False)


@public("equal", dtypes="all", differentiable=False)
def equal(input: Any, other: Any) -> bool:
    """Whether two tensors have the same sizes and elements; NaN equals nothing.

    >>> kiln.equal(kiln.tensor([1, 2]), kiln.tensor([1, 2]))
    True
    """
    return input.shape == other.shape and bool(all_equal(input, other))


def _check_tolerances(rtol: float, atol: float) -> None:
    for name, value in (("rtol", rtol), ("atol", atol)):
        if not value >= 0:
            raise RuntimeError(f"{name} must be greater than or equal to zero, but got {value}")


def _tolerant(equal_nan: bool) -> Any:
    return lambda rng, t: (
        (d.array(rng, (3, 5), t), d.array(rng, (3, 5), t), 0.5, 0.1),
        {"equal_nan": equal_nan},
    )


@public(
    "isclose",
    samples=d.samples(_tolerant(False), _tolerant(True)),
    differentiable=False,
    failures=d.failures(
        ((d.Zeros(2), d.Zeros(2), -1.0), {}, RuntimeError, "rtol must be greater than or equal to zero"),
        ((d.Zeros(2), d.Zeros(2, dtype="int64")), {}, RuntimeError, "did not match"),
        ((d.Zeros(2), d.Zeros(3)), {}, RuntimeError, "must match the size"),
    ),
)
def isclose(input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    """Whether `|input - other| <= atol + rtol * |other|`, broadcast; infinities equal themselves, and NaN
    itself if `equal_nan`.

    RuntimeError for two dtypes or a negative tolerance.

    >>> kiln.isclose(kiln.tensor([1.0, 2.0]), kiln.tensor([1.0 + 1e-6, 2.1]))
    tensor([ True, False])
    """
    _check_tolerances(rtol, atol)
    if rtol == atol == 0 and not is_float(input) and input.dtype == other.dtype:
        return comparison.eq(input, other)  # exact, where floats do not hold the integers
    return near(input, other, rtol, atol, equal_nan)


@public("allclose", dtypes="all", differentiable=False)
def allclose(
    input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Whether `isclose` holds everywhere. RuntimeError for two dtypes or a negative tolerance.

    >>> kiln.allclose(kiln.tensor([1.0]), kiln.tensor([1.0 + 1e-6]))
    True
    """
    _check_tolerances(rtol, atol)
    return bool(all_near(input, other, rtol, atol, equal_nan))


@public(
    "masked_fill",
    differs="a number beyond a float dtype's range becomes infinite; PyTorch raises",
    inplace=True,
    dtypes="all",
    samples=lambda rng, t: [
        Sample((d.array(rng, (3, 4), t), d.array(rng, (4,), "bool"), 2.5)),
        Sample((d.array(rng, (3,), t), d.array(rng, (2, 3), "bool"), d.array(rng, (), "float64"))),
    ],
    failures=d.failures(
        ((d.Zeros(2), d.Zeros(2), 1), {}, RuntimeError, "only supports boolean masks"),
        ((d.Zeros(2), d.Zeros(2, dtype="bool"), d.Zeros(1)), {}, RuntimeError, "0-dimensional value tensor"),
        ((d.Zeros(2, dtype="uint8"), d.Zeros(2, dtype="bool"), 300), {}, RuntimeError, "without overflow"),
    ),
)
def masked_fill(input: Any, mask: Any, value: Any, *, out: Any = None) -> Any:
    """`input` with `value` (a number or 0-d array) where the bool `mask` holds; of input's dtype.

    RuntimeError for a mask that is not bool, a value with dims or one that the dtype does not hold.

    >>> kiln.masked_fill(kiln.tensor([1.0, 2.0]), kiln.tensor([True, False]), 0)
    tensor([0., 2.])
    """
    if dtype_name(mask.dtype) != "bool":
        raise RuntimeError(
            f"masked_fill only supports boolean masks, but got mask with dtype {dtype_name(mask.dtype)}"
        )
    dtype = dtype_name(input.dtype)
    if isinstance(value, (int, float)):
        value = fitting(value, dtype)
    elif getattr(value, "ndim", 0):
        raise RuntimeError(
            "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with "
            f"{value.ndim} dimension(s)."
        )
    elif hasattr(value, "dtype") and dtype_name(value.dtype) != dtype:
        value = p.convert(value, dtype)
    return p.where(mask, value, input, **into(out))


@public(
    "positive",
    samples=d.samples(lambda rng, t: ((d.array(rng, (3, 5), t),), {})),
    dtypes="numeric",
    failures=d.failures(((d.Zeros(2, dtype="bool"),), {}, RuntimeError, "operator, on a bool tensor")),
)
def positive(input: Any) -> Any:
    """`+input`: the tensor itself. RuntimeError for bool.

    >>> kiln.positive(kiln.tensor([-1.0]))
    tensor([-1.])
    """
    if dtype_name(input.dtype) == "bool":
        raise RuntimeError("The `+` operator, on a bool tensor is not supported.")
    return input
