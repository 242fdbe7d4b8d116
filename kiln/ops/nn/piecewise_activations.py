"""Piecewise activations: composites of pointwise ops, each one kernel forward and one backward.

float16 and bfloat16 are computed in float32 and rounded once. Every `where` guards its branches from the
inside: the branch not taken sees a harmless argument, so that no 0 * inf arises in a derivative. At a kink
the derivative is PyTorch's: 0 at the bounds of what is clamped, that of the lower branch at 0.
"""

from __future__ import annotations

from typing import Any

from kiln.ops.elementwise.arithmetic import by_steps, convert, overwrite, where
from kiln.ops.elementwise.elementary import abs
from kiln.ops.elementwise.precision import floating, narrow, wide
from kiln.ops.nn.smooth_activations import not_floats, samples_of, slope_samples
from kiln.ops.random.sampling import rand_like
from kiln.ops.views.core_views import reshape
from kiln.scalars.scalar import select
from kiln.table import drawn as d
from kiln.table import kinds
from kiln.table.arguments import dtype_name, into, is_float, type_name
from kiln.table.callables import draws
from kiln.table.public import public
from kiln.table.record import Number, Operand, Sample, Tensor, composite, pointwise


@composite(
    samples=slope_samples,
    reference=d.reference(lambda np, x, s=0.01: np.where(x > 0, x, x * x.dtype.type(s))),
    method=False,
    inplace=True,
    tests=d.Tests(kinks=lambda np: (np.array([-1.0, 0.0, 1.0]),)),
)
def leaky_relu(input: Tensor, negative_slope: Number = 0.01) -> Any:
    """`input` where positive, else `negative_slope * input`; floats. RuntimeError for other dtypes.

    >>> kiln.nn.functional.leaky_relu(kiln.tensor([-1.0, 2.0]))
    tensor([-0.0100,  2.0000])
    """
    x = by_steps(floating(input, "leaky_relu_cpu"))
    return narrow(where(x > 0, x, x * negative_slope), input.dtype)


def _like(x: Tensor, value: Any) -> Any:
    """A number in x's dtype."""
    return value if x.dtype in kinds.FLOATS else convert(value, x.dtype)


@composite(
    samples=samples_of(-2.0, 0.5),
    reference=d.reference(lambda np, x, low=-1, high=1: np.clip(x, x.dtype.type(low), x.dtype.type(high))),
    dtypes="float",
    public=False,
)
def bounded(input: Tensor, min_val: Number = -1.0, max_val: Number = 1.0) -> Any:
    """`hardtanh` for bounds in order: `input` within them, flat at and beyond them."""
    if input.dtype == "bool":
        raise RuntimeError("Bool inputs not supported for hardtanh")
    x = by_steps(wide(input))
    low, high = _like(x, min_val), _like(x, max_val)
    return narrow(where(x <= low, low, where(x >= high, high, x)), input.dtype)


@public(
    "hardtanh",
    layer=True,
    method=False,
    inplace=True,
    samples=samples_of(-2.0, 0.5),
    dtypes="float",
    failures=d.failures(
        ((d.Zeros(2), 2.0, 1.0), {}, ValueError, "min_val cannot be greater than max_val"),
        ((d.Zeros(2, dtype="bool"),), {}, RuntimeError, "Bool inputs not supported for hardtanh"),
    ),
)
def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0, *, out: Any = None) -> Any:
    """`input` brought into [min_val, max_val]; numbers, not bool. No gradient at the bounds.

    ValueError if `min_val` is above `max_val`, RuntimeError for uint8 with a bound below 0.

    >>> kiln.nn.functional.hardtanh(kiln.tensor([-3.0, 0.5, 3.0]))
    tensor([-1.0000,  0.5000,  1.0000])
    """
    if min_val > max_val:
        raise ValueError("min_val cannot be greater than max_val")
    if min_val < 0 and dtype_name(input.dtype) == "uint8":
        raise RuntimeError("cannot do hardtanh on an unsigned type with negative limits")
    return bounded.handle(input, min_val, max_val, **into(out))


@composite(
    samples=samples_of(low=-4.0, high=9.0),
    reference=d.reference(lambda np, x: np.clip(x, x.dtype.type(0), x.dtype.type(6))),
    failures=d.failures(
        ((d.Zeros(2, dtype="bool"),), {}, RuntimeError, "Bool inputs not supported"),
    ),
    method=False,
    inplace=True,
)
def relu6(input: Tensor) -> Any:
    """`input` brought into [0, 6]; numbers, not bool. No gradient at the bounds.

    >>> kiln.nn.functional.relu6(kiln.tensor([-1.0, 3.0, 9.0]))
    tensor([0., 3., 6.])
    """
    return bounded(input, 0, 6)


@composite(
    samples=samples_of(low=-5.0, high=5.0),
    reference=d.reference(lambda np, x: (np.clip(x + x.dtype.type(3), 0, 6) / 6).astype(x.dtype)),
    failures=not_floats("hardsigmoid"),
    method=False,
    inplace=True,
    tests=d.Tests(rough_peer="values"),
)
def hardsigmoid(input: Tensor) -> Any:
    """(input + 3) / 6 brought into [0, 1]; floats. NotImplementedError for other dtypes.

    >>> kiln.nn.functional.hardsigmoid(kiln.tensor([-4.0, 0.0, 1.5]))
    tensor([0.0000, 0.5000, 0.7500])
    """
    x = floating(input, "hardsigmoid_cpu")
    return narrow(where(x <= -3, 0, where(x >= 3, 1, (x + 3) / 6)), input.dtype)


@hardsigmoid.derivative
def _(g: Tensor, input: Tensor) -> Tensor:
    return overwrite(input, where(abs(input) < 3, g / 6, 0))  # none for NaN; see by_steps


@composite(
    samples=samples_of(low=-5.0, high=5.0),
    reference=d.reference(lambda np, x: (x * (np.clip(x + 3.0, 0, 6) / 6)).astype(x.dtype)),
    failures=not_floats("hardswish"),
    method=False,
    inplace=True,
)
def hardswish(input: Tensor) -> Any:
    """`input * hardsigmoid(input)`; floats. NotImplementedError for other dtypes.

    >>> kiln.nn.functional.hardswish(kiln.tensor([-1.5, 0.0, 1.5]))
    tensor([-0.3750,  0.0000,  1.1250])
    """
    x = floating(input, "hardswish_cpu")
    low, high = x <= -3, x >= 3
    within = where(low, 0, where(high, 0, x))  # harmless where it is not taken: infinities
    return narrow(where(low, x * 0, where(high, x, within * (within + 3) / 6)), input.dtype)


@composite(
    samples=samples_of(1.0),
    reference=d.reference(lambda np, x, lambd=0.5: np.where(np.abs(x) <= lambd, 0 * x, x)),
    failures=not_floats("hardshrink"),
)
def hardshrink(input: Tensor, lambd: Number = 0.5) -> Any:
    """0 where `input` lies within [-lambd, lambd], else `input`; floats. NotImplementedError for other
    dtypes.

    >>> kiln.hardshrink(kiln.tensor([-0.5, 0.6]))
    tensor([0.0000, 0.6000])
    """
    x = by_steps(floating(input, "hardshrink_cpu"))
    return narrow(where(abs(x) <= lambd, 0, x), input.dtype)


@composite(
    samples=samples_of(1.0),
    reference=d.reference(
        lambda np, x, lambd=0.5: (np.sign(x) * np.maximum(np.abs(x) - lambd, 0)).astype(x.dtype)
    ),
    failures=not_floats("shrunk"),
    public=False,
)
def shrunk(input: Tensor, lambd: Number = 0.5) -> Any:
    """`softshrink` for a lambd that is not negative."""
    x = by_steps(floating(input, "softshrink_check"))
    return narrow(where(x > lambd, x - lambd, where(x < -lambd, x + lambd, x * 0)), input.dtype)


@public(
    "softshrink",
    layer=True,
    method=False,
    samples=samples_of(1.0),
    dtypes="float",
    failures=d.failures(
        ((d.Zeros(2), -1.0), {}, RuntimeError, "lambda must be in range"),
        ((d.Zeros(2, dtype="int64"),), {}, NotImplementedError, "not implemented for 'Long'"),
    ),
)
def softshrink(input: Any, lambd: float = 0.5, *, out: Any = None) -> Any:
    """`input` moved by `lambd` towards 0, where it stays; floats. RuntimeError for a negative `lambd`.

    >>> kiln.nn.functional.softshrink(kiln.tensor([-2.0, 0.25, 2.0]))
    tensor([-1.5000,  0.0000,  1.5000])
    """
    if lambd < 0:
        kind = type_name(dtype_name(input.dtype))
        raise RuntimeError(
            f"softshrink: lambda must be in range [0, inf) for input dtype {kind}, but found {lambd}"
        )
    return shrunk.handle(input, lambd, **into(out))


@composite(
    samples=lambda rng, t: [Sample((d.array(rng, (3, 5), t), 1, 2)), Sample((d.array(rng, (37,), t), -1, 0))],
    reference=d.reference(
        lambda np, x, low, value: np.where(x <= np.asarray(low).astype(x.dtype), x.dtype.type(value), x)
    ),
    failures=d.failures(
        ((d.Zeros(2, dtype="bool"), 1, 2), {}, NotImplementedError, "not implemented for 'Bool'"),
    ),
    dtypes="numeric",
    method=False,
    inplace=True,
    inplace_function=True,
)
def threshold(input: Tensor, threshold: Number, value: Number) -> Any:
    """`input` where it is above `threshold`, else `value`; numbers, not bool.

    >>> kiln.threshold(kiln.tensor([0.1, 2.0]), 0.5, 9.0)
    tensor([9., 2.])
    """
    if input.dtype == "bool":
        raise NotImplementedError("\"threshold_cpu\" not implemented for 'Bool'")
    x = by_steps(wide(input))
    return narrow(where(x <= _like(x, threshold), _like(x, value), x), input.dtype)


@pointwise(
    samples=d.binary(),
    reference=d.reference(lambda np, x, slope: np.where(x > 0, x, x * slope)),
    failures=d.not_broadcastable,
    public=False,
)
def sloped(input: Operand, slope: Operand) -> Any:
    """`input` where positive, else `slope * input`, broadcast: what `prelu` and `rrelu` are made of."""
    return select(input > 0, input, input * slope)


@sloped.derivative
def _(g: Tensor, input: Tensor, slope: Any) -> Any:
    positive = input > 0
    by_input, by_slope = where(positive, g, g * slope), where(positive, 0, g * input)
    return overwrite(input, by_input), overwrite(slope, by_slope)  # see by_steps


@public(
    "prelu",
    layer=True,
    differs="at 0 the second derivative is of the branch that the first is of: the weight's",
    samples=lambda rng, t: [
        Sample((d.array(rng, (3, 5), t), d.array(rng, (5,), t))),
        Sample((d.array(rng, (2, 3, 2), t), d.array(rng, (1,), t))),
        Sample((d.array(rng, (2, 3, 2), t), d.array(rng, (3,), t))),
    ],
    dtypes="float",
    failures=d.failures(
        ((d.Zeros(3, 4), d.Zeros(3)), {}, RuntimeError, "Mismatch of parameter numbers"),
        ((d.Zeros(3, 4), d.Zeros(2, 2)), {}, RuntimeError, "to be a scalar or 1D tensor"),
        ((d.Zeros(3), d.Zeros(1, dtype="float64")), {}, RuntimeError, "Type promoting not supported"),
    ),
)
def prelu(input: Any, weight: Any) -> Any:
    """`input` where positive, else `weight * input`; one weight, or one per channel (dim 1; dim 0 of a vector
    is no channel). Floats of one dtype.

    RuntimeError for another number of weights or two dtypes, NotImplementedError for integers.

    >>> kiln.prelu(kiln.tensor([[-1.0, 2.0]]), kiln.tensor([0.25]))
    tensor([[-0.2500,  2.0000]])
    """
    if isinstance(weight, (int, float)):
        raise TypeError(f"prelu(): argument 'weight' must be Tensor, not {type(weight).__name__}")
    one, other = dtype_name(input.dtype), dtype_name(weight.dtype)
    if one != other:
        raise RuntimeError(
            f"prelu: Type promoting not supported. Got {type_name(one)} and {type_name(other)}"
        )
    if one not in kinds.FLOATS:
        raise NotImplementedError(f"\"prelu_cpu\" not implemented for '{type_name(one)}'")
    if weight.ndim > 1:
        raise RuntimeError(
            f"prelu: Expected `weight` to be a scalar or 1D tensor, but got: ndim = {weight.ndim}"
        )
    count = weight.shape[0] if weight.ndim else 1
    if count == 1:
        return sloped(input, reshape(weight, ()))
    channels = input.shape[1] if input.ndim > 1 else 1
    if input.ndim == 0:
        raise RuntimeError("Not allow zero-dim input tensor.")
    if count != channels:
        raise RuntimeError(
            f"Mismatch of parameter numbers and input channel size. Found parameter numbers = {count} and "
            f"channel size = {channels}."
        )
    return sloped(input, reshape(weight, (count, *(1,) * (input.ndim - 2))))


@public(
    "rrelu",
    layer=True,
    method=False,
    inplace=True,
    samples=lambda rng, t: [Sample((d.array(rng, (3, 5), t),)), Sample((d.array(rng, (7,), t), 0.2, 0.6))],
    dtypes="float",
    failures=d.failures(
        ((d.Zeros(2), 2.0, 1.0), {}, RuntimeError, "Lower bound should be less than or equal"),
        ((d.Zeros(2, dtype="int64"),), {}, NotImplementedError, "not implemented for 'Long'"),
    ),
)
@draws
def rrelu(
    input: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *, out: Any = None
) -> Any:
    """`input` where positive, else times a slope: in `training` one drawn from [lower, upper) for each
    element, else their mean. Floats. RuntimeError if `lower` is above `upper`.

    >>> kiln.rrelu(kiln.tensor([-1.0, 2.0]), 0.25, 0.75)
    tensor([-0.5000,  2.0000])
    """
    if lower > upper:
        raise RuntimeError("Lower bound should be less than or equal to the upper bound")
    if not training:
        return leaky_relu(input, (lower + upper) / 2, **into(out))
    if not is_float(input):
        name = type_name(dtype_name(input.dtype))
        raise NotImplementedError(f"\"rrelu_with_noise_out_cpu\" not implemented for '{name}'")
    return sloped(input, rand_like(input) * (upper - lower) + lower, **into(out))
