"""Arithmetic, element by element: + - * / ** and their relatives, conversion, choices.

Operands broadcast and are converted to their common dtype (see kinds.RULES for each rule). An op that has no
meaning for bool or for floats says so in PyTorch's words.
"""

from __future__ import annotations

from typing import Any

from kiln import _core
from kiln.ops.elementwise.comparison import eq, ge, gt, le, logical_and, logical_or, lt, unsupported
from kiln.scalars import division, scalar
from kiln.scalars import mathematics as m
from kiln.scalars.scalar import Scalar, select
from kiln.table import drawn as d
from kiln.table.arguments import INTEGERS, number
from kiln.table.kinds import COMPUTE
from kiln.table.record import Operand, Sample, Structure, Tensor, find, pointwise


def zeros_of(x: Any) -> Any:
    """Zeros of x's shape and dtype: the gradient of a function that is flat wherever it is differentiable."""
    return x.graph.add(find("full"), (number(x, 0),), (x.shape, x.dtype))


# Conversion


@pointwise(
    "cast",
    samples=d.samples(
        lambda rng, dtype: ((d.array(rng, (3, 5), dtype), "float64"), {}),
        lambda rng, dtype: ((d.array(rng, (37,), dtype), "int64"), {}),
        lambda rng, dtype: ((d.array(rng, (4, 2), dtype), "bool"), {}),
        lambda rng, dtype: ((d.array(rng, (4, 2), dtype), "float16"), {}),
    ),
    reference=d.reference(lambda np, x, dtype: np.asarray(x).astype(dtype)),
    dtypes="all",
    onnx="Cast",
    public=False,
)
def convert(input: Operand, dtype: Structure) -> Any:
    """`input` as `dtype` (its name), any shape, any dtype: what `x.to(dtype)` and `x.float()` are made of.

    Floats round to nearest even and truncate to integers; anything but zero is True.

    >>> kiln.tensor([1.5, 0.0]).bool()
    tensor([ True, False])
    """
    if COMPUTE[dtype] == "f32" and dtype != "float32" and input.type == "f64":
        return scalar.convert(input, "f32")
    return scalar.convert(input, COMPUTE[dtype])


@convert.derivative
def _(g: Tensor, input: Tensor) -> Any:
    return convert(g, input.dtype) if input.dtype.startswith(("float", "bfloat")) else None


@pointwise(
    samples=d.unary(),
    reference=d.reference(lambda np, x: x),
    dtypes="all",
    public=False,
    differentiable=False,
)
def detach(input: Operand) -> Any:
    """`input` as a constant of derivatives, any shape and dtype: in the body of a composite, a value no
    gradient flows through.

    >>> kiln.tensor([1.0], requires_grad=True).detach().requires_grad
    False
    """
    return input


@pointwise(
    differs="contiguous, whatever the layout of `input`",
    samples=d.unary(),
    reference=d.reference(lambda np, x: x),
    dtypes="all",
    onnx="Identity",
    public=False,
)
def clone(input: Operand) -> Any:
    """A copy of `input` in memory of its own, contiguous; gradients flow through it.

    >>> kiln.clone(kiln.tensor([1, 2]))
    tensor([1, 2])
    """
    return input


@clone.derivative
def _(g: Tensor) -> Any:
    return g


def written_to(found: Any, out: Any, input: Any = None) -> Any:
    """One result, or `out` with it written in; RuntimeError where its dtype or shape cannot be, and where
    gradients would flow through it, unless `out` is `input`: then this is the in-place form.
    """
    if out is None:
        return found
    _refuse_history(found, out, input)
    return clone.handle(found, out=out)


def _refuse_history(found: Any, out: Any, input: Any = None) -> None:
    if out is not input and _core.grad_enabled() and (found.requires_grad or out.requires_grad):
        raise RuntimeError(
            "functions with out=... arguments don't support automatic differentiation, but one of the "
            "arguments requires grad; do it under no_grad(), or use the result"
        )


def written(found: tuple[Any, ...], out: Any) -> tuple[Any, ...]:
    """Several results, or the tensors of `out=` with the results written in, if all of them can be."""
    if out is None:
        return found
    for result, target in zip(found, out):
        _refuse_history(result, target)
        _core.expect_writable(result, target)
    return tuple(map(written_to, found, out))


@pointwise(
    samples=d.binary(),
    reference=d.reference(lambda np, x, y: y + np.zeros_like(x)),
    failures=d.not_broadcastable,
    dtypes="numeric",
    public=False,
)
def overwrite(input: Operand, source: Operand) -> Any:
    """`source` in place of `input`, broadcast: what a write in place means to derivatives of what was there.

    >>> kiln.zeros(2).fill_(3)
    tensor([3., 3.])
    """
    return source


@overwrite.derivative
def _(g: Tensor) -> Any:
    return zeros_of(g), g


@pointwise(
    samples=d.unary(),
    reference=d.reference(lambda np, x: x),
    dtypes="all",
    public=False,
)
def by_steps(input: Operand) -> Any:
    """`input` where a function looks at it to choose: the function's derivative changes by steps alone. Its
    gradient has a history all the same, that of zeros, as PyTorch's has where one op computes it.

    >>> x = kiln.tensor([3.0], requires_grad=True)
    >>> (g,) = kiln.autograd.grad(kiln.nn.functional.relu6(x), x, create_graph=True)
    >>> kiln.autograd.grad(g, x)
    (tensor([0.]),)
    """
    return input


@by_steps.derivative
def _(g: Tensor, input: Tensor) -> Tensor:
    return overwrite(input, g)


# Sums, differences, products, quotients


@pointwise(
    samples=d.binary(),
    reference=d.numpy("add"),
    failures=d.not_broadcastable,
    dtypes="all",
    onnx="Add",
    public=False,
    inplace=True,
)
def add(input: Operand, other: Operand) -> Any:
    """`input + other`, broadcast; bool adds as "or". RuntimeError if the shapes do not broadcast.

    >>> kiln.tensor([1, 2]) + 1
    tensor([2, 3])
    """
    return input | other if input.type == "i1" else input + other


@add.derivative
def _(g: Tensor) -> Any:
    return g, g


@pointwise(
    "subtract",
    samples=d.binary(),
    reference=d.numpy("subtract"),
    failures=d.not_broadcastable,
    dtypes="numeric",
    onnx="Sub",
    public=False,
    inplace=True,
)
def sub(input: Operand, other: Operand) -> Any:
    """`input - other`, broadcast. RuntimeError for bool or shapes that do not broadcast.

    >>> kiln.tensor([3.0]) - 1
    tensor([2.])
    """
    return input - other


@sub.derivative
def _(g: Tensor) -> Any:
    return g, -g


@pointwise(
    samples=d.binary(),
    reference=d.numpy("multiply"),
    failures=d.not_broadcastable,
    dtypes="all",
    onnx="Mul",
    inplace=True,
)
def mul(input: Operand, other: Operand) -> Any:
    """`input * other`, broadcast; bool multiplies as "and". RuntimeError if the shapes do not broadcast.

    >>> kiln.mul(kiln.tensor([2.0]), 3)
    tensor([6.])
    """
    return input & other if input.type == "i1" else input * other


@mul.derivative
def _(g: Tensor, input: Tensor, other: Tensor) -> Any:
    return g * other, g * input


def _positive(rng: Any, dtype: str) -> Any:
    return (d.array(rng, (3, 5), dtype), d.array(rng, (5,), dtype, 1, 4)), {}


@pointwise(
    "float",
    samples=d.samples(_positive),
    reference=d.numpy("true_divide"),
    failures=d.not_broadcastable,
    dtypes="all",
    onnx="Div",
    public=False,
    inplace=True,
)
def div(input: Operand, other: Operand) -> Any:
    """`input / other`, broadcast; integers and bool divide as the default float dtype.

    >>> kiln.tensor([1, 2]) / 4
    tensor([0.2500, 0.5000])
    """
    return input / other


@div.derivative
def _(g: Tensor, input: Tensor, other: Tensor) -> Any:
    return g / other, -g * ((input / other) / other)


def _rounding_samples(rng: Any, dtype: str) -> list[Any]:
    b = d.array(rng, (5,), dtype, 1, 4)
    return [
        Sample((d.array(rng, (3, 5), dtype, -9, 9), b)),
        Sample((d.array(rng, (5,), dtype, -9, 9), -b)),
        Sample((d.array(rng, (4, 1, 5), dtype, -9, 9), d.array(rng, (1, 3, 5), dtype, 1, 4))),
    ]


@pointwise(
    differs="has a derivative (0); PyTorch's has none",
    samples=_rounding_samples,
    failures=d.not_broadcastable,
    divides=True,
    dtypes="numeric",
    inplace=True,
    reference=d.numpy("floor_divide"),
    tests=d.Tests(kinks=lambda np: d.dividends(np, 5.0, 0.0), peer_gradient=False, steps=True),
)
def floor_divide(input: Operand, other: Operand) -> Any:
    """The floor of `input / other`, broadcast; numbers, not bool. Integers divided by 0 raise RuntimeError.

    >>> kiln.floor_divide(kiln.tensor([-7]), 2)
    tensor([-4])
    """
    unsupported("div_floor", input, {"i1"})
    return division.floor_div(input, other)


@floor_divide.derivative
def _(g: Tensor, input: Tensor, other: Tensor) -> Any:
    return zeros_of(g), zeros_of(g)


@pointwise(
    samples=_rounding_samples,
    failures=d.not_broadcastable,
    divides=True,
    dtypes="numeric",
    public=False,
    inplace=True,
    reference=d.reference(lambda np, x, y: np.trunc(x / y).astype(x.dtype)),
    tests=d.Tests(steps=True),
)
def div_trunc(input: Operand, other: Operand) -> Any:
    """`input / other` rounded towards zero, broadcast; numbers, not bool. Integers divided by 0 raise
    RuntimeError.

    >>> kiln.div(kiln.tensor([-7]), 2, rounding_mode="trunc")
    tensor([-3])
    """
    unsupported("div_trunc", input, {"i1"})
    return division.trunc_div(input, other)


@div_trunc.derivative
def _(g: Tensor, input: Tensor, other: Tensor) -> Any:
    return zeros_of(g), zeros_of(g)


@pointwise(
    samples=_rounding_samples,
    reference=d.numpy("remainder"),
    failures=d.not_broadcastable,
    divides=True,
    dtypes="numeric",
    inplace=True,
    tests=d.Tests(kinks=lambda np: d.dividends(np, 1e300, 7.0)),
)
def remainder(input: Operand, other: Operand) -> Any:
    """What Python's `input % other` is: of the divisor's sign; broadcast; exact. Integers % 0 raise
    RuntimeError.

    >>> kiln.remainder(kiln.tensor([-7]), 3)
    tensor([2])
    """
    unsupported("remainder", input, {"i1"})
    return division.remainder(input, other)


@remainder.derivative
def _(g: Tensor, input: Tensor, other: Tensor) -> Any:
    return g, -g * floor_divide(input, other)


@pointwise(
    samples=_rounding_samples,
    reference=d.numpy("fmod"),
    failures=d.not_broadcastable,
    divides=True,
    dtypes="numeric",
    inplace=True,
    tests=d.Tests(kinks=lambda np: d.dividends(np, 1e300, 7.0)),
)
def fmod(input: Operand, other: Operand) -> Any:
    """C's `fmod`: the remainder of the division rounded towards zero, of the dividend's sign; broadcast;
    exact.

    >>> kiln.fmod(kiln.tensor([-7.5]), 2)
    tensor([-1.5000])
    """
    unsupported("fmod", input, {"i1"})
    return division.fmod(input, other)


@fmod.derivative
def _(g: Tensor, input: Tensor, other: Tensor) -> Any:
    return g, -g * div_trunc(input, other)


# Powers


def _power_samples(rng: Any, dtype: str) -> list[Any]:
    if dtype in INTEGERS:
        return [Sample((d.array(rng, (3, 5), dtype, -3, 3), d.array(rng, (5,), dtype, 0, 3)))]
    return [
        Sample((d.array(rng, (3, 5), dtype, 0.5, 3), d.array(rng, (5,), dtype, -2, 2))),
        Sample((d.array(rng, (3, 5), dtype, 0.5, 3), 2.5)),
    ]


@pointwise(
    samples=_power_samples,
    reference=d.numpy("power"),
    failures=d.not_broadcastable,
    dtypes="numeric",
    onnx="Pow",
    public=False,
    inplace=True,
    tests=d.Tests(kinks=lambda np: (np.array([0.0, 2.0, 0.0]), np.array([2.0, 0.0, 0.0]))),
)
def pow(input: Operand, other: Operand) -> Any:
    """`input ** other`, broadcast, with IEEE's special cases; integers wrap, and to a negative power give 0,
    1 or -1.

    >>> kiln.tensor([2.0, 3.0]) ** 2.5
    tensor([ 5.6569, 15.5885])
    """
    unsupported("pow", input, {"i1"})
    return m.pow(input, other) if input.type in scalar.FLOATS else division.integer_power(input, other)


@pow.derivative
def _(g: Tensor, input: Tensor, other: Tensor, y: Tensor) -> Any:
    none, flat = eq(other, 0), logical_and(eq(input, 0), ge(other, 0))
    by_base = where(none, 0, g * (other * pow(input, where(none, 1, other - 1))))
    base = input + convert(flat, g.dtype)  # harmless where it is not taken
    by_exponent = where(flat, 0, g * (y * find("log")(base)))
    return by_base, by_exponent


# Choices


@pointwise(
    "where",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), "bool"), d.array(rng, (3, 5), t), d.array(rng, (5,), t)), {}),
        lambda rng, t: ((d.array(rng, (4,), "bool"), d.array(rng, (4,), t), 0), {}),
    ),
    reference=d.reference(lambda np, c, x, y: np.where(c, x, np.asarray(y, x.dtype))),
    dtypes="all",
    onnx="Where",
    failures=d.failures(
        ((d.Zeros(2, dtype="bool"), d.Zeros(2), d.Zeros(3)), {}, RuntimeError, "must match the size"),
    ),
    public=False,
)
def where(condition: Operand, input: Operand, other: Operand) -> Any:
    """`input` where the bool `condition` holds, else `other`; all three broadcast.

    >>> kiln.where(kiln.tensor([True, False]), 1.0, 2.0)
    tensor([1., 2.])
    """
    return select(condition, input, other)


@where.derivative
def _(g: Tensor, condition: Tensor) -> Any:
    return None, where(condition, g, 0), where(condition, 0, g)


def larger(x: Scalar, y: Scalar) -> Scalar:
    """The larger of two scalars; NaN if either is."""
    if x.type == "i1":
        return x | y
    return select(x > y if x.type in scalar.INTS else (x > y) | x.ne(x), x, y)


def smaller(x: Scalar, y: Scalar) -> Scalar:
    """The smaller of two scalars; NaN if either is."""
    if x.type == "i1":
        return x & y
    return select(x < y if x.type in scalar.INTS else (x < y) | x.ne(x), x, y)


@pointwise(
    samples=d.binary(),
    reference=d.numpy("maximum"),
    failures=d.not_broadcastable,
    dtypes="all",
    onnx="Max",
    tests=d.Tests(kinks=lambda np: (np.array([1.0, 2.0, 3.0, np.nan]), np.array([2.0, 2.0, 2.0, 1.0]))),
)
def maximum(input: Operand, other: Operand) -> Any:
    """The larger of `input` and `other`, broadcast; NaN if either is NaN. Equal elements share the gradient.

    >>> kiln.maximum(kiln.tensor([1, 5]), kiln.tensor([3, 2]))
    tensor([3, 5])
    """
    return larger(input, other)


@maximum.derivative
def _(g: Tensor, input: Tensor, other: Tensor) -> Any:
    return _shared(g, input, other, lt(input, other)), _shared(g, input, other, gt(input, other))


def _shared(g: Any, input: Any, other: Any, loses: Any) -> Any:
    return where(loses, 0, where(eq(input, other), g / 2, g))


@pointwise(
    samples=d.binary(),
    reference=d.numpy("minimum"),
    failures=d.not_broadcastable,
    dtypes="all",
    onnx="Min",
    tests=d.Tests(kinks=lambda np: (np.array([1.0, 2.0, 3.0, np.nan]), np.array([2.0, 2.0, 2.0, 1.0]))),
)
def minimum(input: Operand, other: Operand) -> Any:
    """The smaller of `input` and `other`, broadcast; NaN if either is NaN. Equal elements share the gradient.

    >>> kiln.minimum(kiln.tensor([1, 5]), kiln.tensor([3, 2]))
    tensor([1, 2])
    """
    return smaller(input, other)


@minimum.derivative
def _(g: Tensor, input: Tensor, other: Tensor) -> Any:
    return _shared(g, input, other, gt(input, other)), _shared(g, input, other, lt(input, other))


def _bounds(rng: Any, dtype: str) -> Any:
    return (
        d.array(rng, (3, 5), dtype),
        d.array(rng, (5,), dtype, -2, 0),
        d.array(rng, (5,), dtype, 0, 2),
    ), {}


@pointwise(
    samples=d.samples(_bounds, lambda rng, t: ((d.array(rng, (7,), t), 1, 2), {})),
    public=False,
    reference=d.reference(
        lambda np, x, lo, hi: np.minimum(np.maximum(x, np.asarray(lo, x.dtype)), np.asarray(hi, x.dtype))
    ),
    failures=d.failures(
        ((d.Zeros(2), d.Zeros(3), d.Zeros(2)), {}, RuntimeError, "must match the size"),
    ),
    dtypes="numeric",
)
def clamp(input: Operand, min: Operand, max: Operand) -> Any:
    """`input` brought into [min, max], broadcast; `max` wins if min > max. The gradient passes at the bounds
    too.

    >>> kiln.clamp(kiln.tensor([-2.0, 0.5, 9.0]), -1, 1)
    tensor([-1.0000,  0.5000,  1.0000])
    """
    unsupported("clamp_cpu", input, {"i1"})
    return smaller(larger(input, min), max)


@clamp.derivative
def _(g: Tensor, input: Tensor, min: Any, max: Any) -> Any:
    inside = logical_and(ge(input, min), le(input, max))
    at_min = logical_and(lt(min, max), lt(input, min))
    at_max = logical_or(gt(input, max), lt(max, min))
    return where(inside, g, 0), where(at_min, g, 0), where(at_max, g, 0)


@pointwise(
    samples=d.binary(),
    reference=d.numpy("maximum"),
    failures=d.not_broadcastable,
    dtypes="numeric",
    inplace=True,
    inplace_function=True,
    tests=d.Tests(kinks=lambda np: (np.array([-1.0, 0.0, 2.0]), 0.0)),
)
def clamp_min(input: Operand, min: Operand) -> Any:
    """`input`, at least `min`, broadcast. The gradient passes to `input` where it is at the bound.

    >>> kiln.clamp_min(kiln.tensor([-2.0, 3.0]), 0)
    tensor([0., 3.])
    """
    return larger(input, min)


@clamp_min.derivative
def _(g: Tensor, input: Tensor, min: Any) -> Any:
    return where(ge(input, min), g, 0), where(lt(input, min), g, 0)


@pointwise(
    samples=d.binary(),
    reference=d.numpy("minimum"),
    failures=d.not_broadcastable,
    dtypes="numeric",
    inplace=True,
    inplace_function=True,
)
def clamp_max(input: Operand, max: Operand) -> Any:
    """`input`, at most `max`, broadcast. The gradient passes to `input` where it is at the bound.

    >>> kiln.clamp_max(kiln.tensor([-2.0, 3.0]), 0)
    tensor([-2.,  0.])
    """
    return smaller(input, max)


@clamp_max.derivative
def _(g: Tensor, input: Tensor, max: Any) -> Any:
    return where(le(input, max), g, 0), where(gt(input, max), g, 0)
