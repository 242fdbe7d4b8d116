"""Signs, parts and neighbours of numbers, whole-number functions, choices that pass over NaN: element by
element.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from kiln import _core
from kiln.graph.graph import Value
from kiln.ops.elementwise.arithmetic import convert, larger, smaller, where, zeros_of
from kiln.ops.elementwise.comparison import eq, ge, gt, le, ne, unsupported
from kiln.ops.elementwise.elementary import exp2
from kiln.ops.elementwise.precision import narrow
from kiln.ops.named_results import named
from kiln.scalars import division, scalar
from kiln.scalars.floats import FORMAT
from kiln.scalars.scalar import INTS, SIGNED, WIDTH, Scalar, absolute, bits, const, from_bits, select, trunc
from kiln.table import drawn as d
from kiln.table import kinds
from kiln.table.arguments import INTEGERS, dtype_name, into, is_float, type_name
from kiln.table.kinds import FLOATS
from kiln.table.public import public
from kiln.table.record import Op, Operand, Sample, Structure, Tensor, composite, pointwise
from kiln.table.registry import forms

# The largest finite number of each float dtype, which is also its most negative one's magnitude.
LARGEST = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
}


def _negative(x: Scalar) -> Scalar:
    """Whether the sign bit of a number is set; that of a NaN counts as not set."""
    if x.type in scalar.FLOATS:
        return x.eq(x) & (bits(x) < 0)
    return x < 0 if x.type in SIGNED else const(False, "i1")


# Signs


def _signed_pairs(rng: Any, dtype: str) -> list[Any]:
    number = 1 if dtype in (*INTEGERS, "bool") else -2.0
    x = d.array(rng, (3, 5), dtype)
    return [Sample((x, d.array(rng, (5,), dtype))), Sample((x, number))]


def _copied_sign(np: ModuleType, x: Any, y: Any) -> Any:
    x, y = (np.asarray(v) for v in (x, y))
    kept = x if x.dtype.kind == "f" else x.astype("float32")
    return np.copysign(kept, y.astype(kept.dtype))


@pointwise(
    "float",
    differs="a NaN counts as plus",
    samples=_signed_pairs,
    reference=d.reference(_copied_sign),
    failures=d.not_broadcastable,
    dtypes="all",
    inplace=True,
)
def copysign(input: Operand, other: Operand) -> Any:
    """The magnitude of `input` with the sign of `other` (-0.0 has one, a NaN's counts as plus), broadcast.

    Integers and bool give the default float dtype.

    >>> kiln.copysign(kiln.tensor([1.0, -2.0]), kiln.tensor([-0.0, 3.0]))
    tensor([-1.,  2.])
    """
    size = absolute(input)
    return select(_negative(other), -size, size)


@copysign.derivative
def _(g: Tensor, input: Tensor, y: Tensor) -> Any:
    flat = eq(input, 0)
    return where(flat, 0, g * (y / where(flat, 1, input))), zeros_of(g)


@pointwise(
    "compare",
    differs="a NaN counts as plus",
    samples=d.unary(-2, 2),
    reference=d.reference(lambda np, x: x < 0),
    dtypes="all",
    differentiable=False,
)
def signbit(input: Operand) -> Any:
    """Whether the sign bit of each element is set: a bool array. It is of -0.0, and counts as not of a NaN.

    >>> kiln.signbit(kiln.tensor([-0.0, 1.0]))
    tensor([ True, False])
    """
    return _negative(input)


@pointwise(
    "cast",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 4), t), {"float32": "int32", "float64": "int64"}.get(t, t)), {}),
        lambda rng, t: ((d.array(rng, (5,), "int64"), "float64"), {}),
    ),
    reference=d.reference(
        lambda np, x, dtype: (
            x.astype(dtype.replace("int", "float")).view(dtype)
            if dtype[:3] == "int"
            else x
            if dtype in kinds.ROUNDED
            else x.view(dtype)
        )
    ),
    public=False,
    differentiable=False,
    tests=d.Tests(peer=None),
)
def bit_cast(input: Operand, dtype: Structure) -> Any:
    """The bits of each element as an element of another dtype of 32 or 64 bits, any shape.

    >>> kiln.tensor([1.0]).view(kiln.int32)
    tensor([1065353216], dtype=kiln.int32)
    """
    target = kinds.COMPUTE[dtype]
    if (input.type, target) in (("f32", "i32"), ("f64", "i64")):
        return bits(input)
    if (input.type, target) in (("i32", "f32"), ("i64", "f64")):
        return from_bits(input)
    if input.type != target:
        raise TypeError(
            f"bit_cast: expected dtypes of one width, 32 or 64 bits, got {input.type} and {dtype}"
        )
    return input


@pointwise(
    "float",
    samples=d.unary(),
    reference=d.floats(lambda np, x: np.where(x < 0, np.pi, 0 * x).astype(x.dtype)),
    dtypes="all",
)
def angle(input: Operand) -> Any:
    """pi where `input` is below 0, NaN where it is, else 0; integers and bool give the default float dtype.

    >>> kiln.angle(kiln.tensor([-2.0, 3.0]))
    tensor([3.1416, 0.0000])
    """
    angle = select(input < 0, 3.141592653589793, const(0.0, input.type))
    return select(input.ne(input), input, angle)


@angle.derivative
def _(g: Tensor) -> Any:
    return zeros_of(g)


# Parts of a number, neighbours


def _exact(rng: Any, t: str) -> Any:
    """Floats that every dtype holds exactly, no powers of two: neither rounds nor steps."""
    x = (d.array(rng, (3, 5), t, 1, 7) * 8).round() / 8 + 1 / 16
    return x * rng.choice([-1, 1], x.shape).astype(x.dtype)


@pointwise(
    samples=d.unary(),
    reference=d.reference(lambda np, x: x - np.trunc(x)),
    failures=d.failures(
        ((d.Zeros(2, dtype="int64"),), {}, NotImplementedError, "not implemented for 'Long'"),
    ),
    inplace=True,
)
def frac(input: Operand) -> Any:
    """What `trunc` takes away: `input - trunc(input)`, of input's sign. NotImplementedError but for floats.

    >>> kiln.frac(kiln.tensor([-1.5, 2.25]))
    tensor([-0.5000,  0.2500])
    """
    unsupported("frac_cpu", input, INTS | {"i1"})
    return input - trunc(input)


@frac.derivative
def _(g: Tensor) -> Any:
    return g


def _parts(x: Scalar) -> tuple[Scalar, Scalar]:
    """(mantissa in [0.5, 1), exponent as an integer) of a float; x and 0 for 0, infinities and NaN."""
    width, mantissa, bias = ("i32", 23, 126) if x.type == "f32" else ("i64", 52, 1022)
    small = absolute(x) < 2.0 ** (1 - bias)
    normal = select(small, x * 2.0**64, x)  # denormals have no exponent of their own
    word = bits(normal)
    raw = (word >> mantissa) & const(2 * bias + 3, width)
    kept = from_bits((word & const(~((2 * bias + 3) << mantissa), width)) | const(bias << mantissa, width))
    plain = (absolute(x) < float("inf")) & x.ne(0)
    exponent = raw - bias - select(small, const(64, width), 0)
    return select(plain, kept, x), select(plain, exponent, 0)


@pointwise(
    samples=d.samples(lambda rng, t: ((_exact(rng, t),), {})),
    reference=d.reference(lambda np, x: np.frexp(x)[0]),
    public=False,
)
def mantissa_of(input: Operand) -> Any:
    """The mantissa of floats, in [0.5, 1) by magnitude: the first result of `frexp`."""
    return _parts(input)[0]


@mantissa_of.derivative
def _(g: Tensor, input: Tensor) -> Tensor:
    return g * exp2(-exponent_of(input, "int32"))


@pointwise(
    "cast",
    samples=d.samples(lambda rng, t: ((_exact(rng, t), "int32"), {})),
    reference=d.reference(lambda np, x, dtype: np.frexp(x)[1]),
    public=False,
    differentiable=False,
)
def exponent_of(input: Operand, dtype: Structure) -> Any:
    """The exponent of floats as integers: the second result of `frexp`."""
    return scalar.convert(_parts(input)[1], "i32")


@composite(
    public=False,
    samples=d.samples(
        lambda rng, t: ((_exact(rng, t),), {}),
        lambda rng, t: ((d.array(rng, (0, 2), t),), {}),
    ),
    reference=d.reference(lambda np, x: tuple(np.frexp(x))),
    failures=d.failures(
        ((d.Zeros(2, dtype="int64"),), {}, RuntimeError, "only supports floating-point dtypes"),
    ),
)
def mantissa_and_exponent(input: Tensor) -> Any:
    """`frexp` as a plain pair.

    >>> kiln.frexp(kiln.tensor([6.0])).exponent
    tensor([3], dtype=kiln.int32)
    """
    if not is_float(input):
        raise RuntimeError("torch.frexp() only supports floating-point dtypes")
    return mantissa_of(input), exponent_of(input, "int32")


forms("frexp", "-> mantissa, exponent")


@public("frexp", dtypes="float")
def frexp(input: Any, *, out: Any = None) -> Any:
    """(mantissa, exponent) with `input = mantissa * 2 ** exponent`, the mantissa in [0.5, 1) by magnitude,
    the exponent int32. RuntimeError but for floats.

    >>> kiln.frexp(kiln.tensor([6.0])).mantissa
    tensor([0.7500])
    """
    return named("frexp", *mantissa_and_exponent(input, **into(out)))


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t), rng.integers(0, 5, (5,))), {}),
        lambda rng, t: ((d.array(rng, (4,), t), d.array(rng, (4,), t)), {}),
    ),
    reference=d.reference(
        lambda np, x, n: (
            np.asarray(x, x.dtype if x.dtype.kind == "f" else "float32") * np.exp2(np.asarray(n, "float64"))
        ).astype(x.dtype if x.dtype.kind == "f" else "float32")
    ),
    failures=d.failures(
        ((d.Zeros(2, 3), d.Zeros(2, 4)), {}, RuntimeError, "must match the size"),
    ),
    dtypes="all",
    inplace=True,
    inplace_function=True,
    tests=d.Tests(keeps_less="the inner function's value"),
)
def ldexp(input: Tensor, other: Operand) -> Any:
    """`input * 2 ** other`, broadcast; integers and bool give the default float dtype.

    >>> kiln.ldexp(kiln.tensor([1.0, 1.5]), kiln.tensor([3, -1]))
    tensor([8.0000, 0.7500])
    """
    dtype = kinds.result_type((input, other))
    dtype = dtype if dtype in FLOATS else _core.default_dtype_name()
    inside = "float64" if dtype == "float64" else "float32"
    return narrow(convert(input, inside) * exp2(convert(other, inside)), dtype)


_UNIT = {"float16": 1 << 13, "bfloat16": 1 << 16}  # of the bits of a float32


def _with_sign_of(magnitude: float, x: Scalar) -> Scalar:
    return select(x < 0, const(-magnitude, x.type), magnitude)


@pointwise(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t), d.array(rng, (5,), t), t), {}),
    ),
    reference=d.reference(lambda np, x, y, t: x if t == "bfloat16" else np.nextafter(x, y)),
    public=False,
)
def neighbour(input: Operand, other: Operand, dtype: Structure) -> Any:
    """The float next to `input` towards `other` among those of `dtype`, which is theirs: `nextafter`."""
    x, y = input, other
    form = FORMAT[x.type]
    step, size = const(_UNIT.get(dtype, 1), form.integer), absolute(x)
    grows = (x > 0).eq(x < y)
    moved = from_bits(bits(x) + select(grows, step, -step))
    smallest = from_bits(select(y > 0, step, step | form.sign))
    if dtype == "float16":  # its small numbers are evenly spaced, and its largest is not float32's
        low = (size < 2.0**-14) | (size.eq(2.0**-14) & ~grows)
        beside = x + select(y > x, const(2.0**-24, "f32"), -(2.0**-24))
        moved = select(low, select(beside.eq(0), x * 0.0, beside), moved)  # a zero of x's sign
        moved = select(size.eq(float("inf")), _with_sign_of(LARGEST[dtype], x), moved)
        smallest = _with_sign_of(2.0**-24, y)
    moved = select(x.eq(0), smallest, moved)
    return select(x.ne(x) | y.ne(y), x + y, select(x.eq(y), y, moved))


@neighbour.derivative
def _(g: Tensor, input: Tensor, other: Tensor) -> Any:
    return where(ne(input, other), g, 0), zeros_of(g)


@public(
    "nextafter",
    inplace=True,
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t), d.array(rng, (5,), t)), {}),
        lambda rng, t: ((d.array(rng, (4,), "bool").astype(t), d.array(rng, (4,), t)), {}),
    ),
    failures=d.failures(
        ((d.Zeros(2, 3), d.Zeros(2, 4)), {}, RuntimeError, "must match the size"),
        ((d.Zeros(2, dtype="int64"),) * 2, {}, NotImplementedError, "not implemented for 'Long'"),
    ),
    dtypes="float",
)
def nextafter(input: Any, other: Any, *, out: Any = None) -> Any:
    """The next float of their common dtype after `input` towards `other`, broadcast. NotImplementedError but
    for floats.

    >>> kiln.nextafter(kiln.tensor([1.0]), kiln.tensor([2.0])).item()
    1.0000001192092896
    """
    for x in (input, other):
        if not isinstance(x, (_core.Tensor, Value)):
            raise TypeError(f"nextafter(): expected a Tensor, not {type(x).__name__}")
    dtype = dtype_name(input.dtype)
    if other.dtype != input.dtype:
        dtype = _core.result_type([(dtype_name(x.dtype), 0 if x.ndim else 1) for x in (input, other)])
    if dtype not in FLOATS:
        raise NotImplementedError(f"\"nextafter_cpu\" not implemented for '{type_name(dtype)}'")
    return neighbour.handle(input, other, dtype, **into(out))


# Whole numbers


def _divisor(x: Scalar, y: Scalar) -> Scalar:
    """The greatest common divisor: Euclid's remainders, each brought to at most half the divisor, so that
    50 steps do for 64 bits.
    """
    a, b = (absolute(v) if v.type in SIGNED else v for v in (x, y))
    for _ in range({8: 7, 16: 13, 32: 26, 64: 51}[WIDTH[x.type]]):
        rest = division.fmod(a, b)
        near = select(b - rest < rest, b - rest, rest)
        a, b = select(b.eq(0), a, b), select(b.eq(0), b, near)
    return absolute(a) if a.type in SIGNED else a  # the least integer has no absolute value before


def _integers(
    name: str,
    kernel: str,
    function: Any,
    reference: str,
    doc: str,
    *samples: Callable[[Any, str], Any],
    **settings: Any,
) -> Op:
    """A function of two integers; `kernel`: what errors call it."""

    def body(input: Operand, other: Operand) -> Any:
        unsupported(kernel, input, set(scalar.FLOATS) | {"i1"})
        return function(input, other)

    body.__name__, body.__doc__ = name, doc
    return pointwise(
        samples=d.samples(*samples),
        reference=d.numpy(reference),
        failures=d.failures(
            ((d.Zeros(2), d.Zeros(2)), {}, NotImplementedError, "not implemented for 'Float'"),
            ((d.Zeros(2, dtype="bool"),) * 2, {}, NotImplementedError, "not implemented for 'Bool'"),
        ),
        dtypes="whole",
        differentiable=False,
        inplace=True,
        **settings,
    )(body)


def _whole(name: str, function: Any, doc: str) -> Op:
    """A function of two integers under NumPy's own name."""
    return _integers(
        name,
        f"{name}_cpu",
        function,
        name,
        doc,
        lambda rng, t: ((d.array(rng, (3, 5), t, -30, 30), d.array(rng, (5,), t, -4, 4)), {}),
        inplace_function=True,
    )


def _multiple(x: Scalar, y: Scalar) -> Scalar:
    a, b = (absolute(v) if v.type in SIGNED else v for v in (x, y))
    common = _divisor(a, b)
    multiple = a / common * b
    multiple = absolute(multiple) if x.type in ("i32", "i64") else multiple  # what wraps is as PyTorch's
    return select(common.eq(0), const(0, x.type), multiple)


_WHOLE = """The {0} of integers, broadcast, never negative. NotImplementedError for floats and bool.

    >>> kiln.{1}(kiln.tensor([12, -8]), kiln.tensor([18, 6]))
    tensor([{2}])
    """
gcd = _whole("gcd", _divisor, _WHOLE.format("greatest common divisor", "gcd", "6, 2"))
lcm = _whole("lcm", _multiple, _WHOLE.format("least common multiple", "lcm", "36, 24"))


def _shift(name: str, kernel: str, function: Any, reference: str, doc: str) -> Op:
    """A shift of the bits of integers."""

    def shifted(input: Scalar, other: Scalar) -> Scalar:
        limit = WIDTH[input.type] - (1 if input.type in SIGNED else 0)
        outside = (other < 0) | (other >= WIDTH[input.type])
        return select(outside, input >> limit if reference == "right_shift" else 0, function(input, other))

    return _integers(
        name,
        kernel,
        shifted,
        reference,
        doc,
        lambda rng, t: ((d.array(rng, (3, 5), t, -99, 99), d.array(rng, (5,), t, 0, 6)), {}),
        lambda rng, t: ((d.array(rng, (4,), t, -99, 99), 2), {}),
    )


bitwise_left_shift = _shift(
    "bitwise_left_shift",
    "lshift_cpu",
    lambda x, y: x << y,
    "left_shift",
    """The bits of `input` moved up by `other` places, broadcast; 0 where `other` is negative or beyond the
    width. NotImplementedError for floats and bool.

    >>> kiln.tensor([3, 1]) << 2
    tensor([12,  4])
    """,
)
bitwise_right_shift = _shift(
    "bitwise_right_shift",
    "rshift_cpu",
    lambda x, y: x >> y,
    "right_shift",
    """The bits of `input` moved down by `other` places, broadcast, the sign kept; where `other` is negative
    or beyond the width only the sign is left. NotImplementedError for floats and bool.

    >>> kiln.tensor([12, -1]) >> 2
    tensor([ 3, -1])
    """,
)


# Choices


def _fm(name: str, keeps: Any, reference: str, which: str, example: str) -> Op:
    """`fmax` or `fmin`: the operand that `keeps`, or the one that is no NaN."""

    def body(input: Operand, other: Operand) -> Any:
        if input.type not in scalar.FLOATS:
            return (larger if name == "fmax" else smaller)(input, other)
        return select(keeps(input, other) | other.ne(other), input, other)

    body.__name__ = name
    body.__doc__ = f"""The {which} of `input` and `other`, broadcast; a NaN only where both are. Of equal
    elements `input` has the gradient.

    >>> kiln.{name}(kiln.tensor([1.0, float("nan")]), kiln.tensor([3.0, 2.0]))
    tensor([{example}])
    """
    op = pointwise(
        samples=d.binary(),
        reference=d.numpy(reference),
        failures=d.not_broadcastable,
        dtypes="all",
    )(body)

    def gradient(g: Any, input: Any, other: Any) -> Any:
        mine = (ge if name == "fmax" else le)(input, other) | ne(other, other)
        return where(mine, g, 0), where(mine, 0, g)

    return op.derivative(gradient)


fmax = _fm("fmax", lambda x, y: x >= y, "fmax", "larger", "3., 2.")
fmin = _fm("fmin", lambda x, y: x <= y, "fmin", "smaller", "1., 2.")


@composite(
    differs="the result does not require gradients; PyTorch's does, and backward raises",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t, -1, 1), d.array(rng, (5,), t)), {}),
        lambda rng, t: ((d.array(rng, (4,), "bool").astype(t), d.array(rng, (4,), t)), {}),
    ),
    reference=d.reference(lambda np, x, v: np.where(x == 0, v, (x > 0).astype(x.dtype))),
    failures=d.failures(
        ((d.Zeros(2), d.Zeros(2, dtype="int64")), {}, RuntimeError, "different dtypes"),
        ((d.Zeros(2), d.Zeros(3)), {}, RuntimeError, "must match the size"),
    ),
    dtypes="all",
    differentiable=False,
    inplace=True,
)
def heaviside(input: Tensor, values: Tensor) -> Any:
    """1 where `input` is above 0, `values` where it is 0, else 0, broadcast. RuntimeError for two dtypes.

    >>> kiln.heaviside(kiln.tensor([-1.0, 0.0, 2.0]), kiln.tensor([0.5]))
    tensor([0.0000, 0.5000, 1.0000])
    """
    if input.dtype != values.dtype:
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")
    return where(eq(input, 0), values, convert(gt(input, 0), input.dtype))
