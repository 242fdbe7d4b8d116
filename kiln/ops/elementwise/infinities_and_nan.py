"""Infinities, NaN and closeness: tests of floats, element by element, and what stands in for them."""

from __future__ import annotations

from typing import Any

from kiln import _core
from kiln.graph.graph import Value
from kiln.ops.elementwise.arithmetic import clone, convert, where
from kiln.ops.elementwise.comparison import eq, ge, le, ne
from kiln.ops.elementwise.elementary import abs, isfinite, special
from kiln.ops.elementwise.parts_of_numbers import LARGEST
from kiln.ops.elementwise.precision import wide
from kiln.ops.reductions.core_reductions import reduce_all
from kiln.scalars import scalar
from kiln.scalars.scalar import const, select
from kiln.table import drawn as d
from kiln.table.arguments import dtype_name, into, type_name
from kiln.table.kinds import FLOATS
from kiln.table.public import public
from kiln.table.record import Number, Op, Operand, Structure, Tensor, composite, pointwise


def _infinity(name: str, value: float, doc: str) -> Op:
    def body(input: Operand) -> Any:
        return input.eq(value) if input.type in scalar.FLOATS else const(False, "i1")

    body.__name__, body.__doc__ = name, doc
    return pointwise(
        "compare",
        samples=special,
        reference=d.reference(lambda np, x: x == value),
        dtypes="all",
        differentiable=False,
    )(body)


_INFINITE = """Whether each element is {0} infinity: a bool array; any dtype.

    >>> kiln.{1}(kiln.tensor([float("inf"), -float("inf"), 1.0]))
    tensor([{2}])
    """
isposinf = _infinity("isposinf", float("inf"), _INFINITE.format("plus", "isposinf", " True, False, False"))
isneginf = _infinity("isneginf", -float("inf"), _INFINITE.format("minus", "isneginf", "False,  True, False"))


@pointwise(
    "compare",
    samples=special,
    reference=d.numpy("isreal"),
    dtypes="all",
    differentiable=False,
)
def isreal(input: Operand) -> Any:
    """Whether each element is a real number, which all are: a bool array.

    >>> kiln.isreal(kiln.tensor([1.0, float("nan")]))
    tensor([True, True])
    """
    return const(True, "i1")


def _as_floats(x: Any) -> Any:
    """Integers and bool as the default float dtype."""
    return wide(x) if x.dtype in FLOATS else convert(x, _core.default_dtype_name())


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t), d.array(rng, (5,), t), 0.5, 0.1, False), {}),
        lambda rng, t: ((special(rng, t)[0].args * 2), {"equal_nan": True}),
    ),
    reference=d.reference(
        lambda np, x, y, rtol=1e-05, atol=1e-08, equal_nan=False: np.isclose(
            x.astype("float64"), y.astype("float64"), rtol, atol, equal_nan
        )
    ),
    failures=d.failures(
        ((d.Zeros(2), d.Zeros(2, dtype="int64")), {}, RuntimeError, "did not match"),
        ((d.Zeros(2), d.Zeros(3)), {}, RuntimeError, "must match the size"),
    ),
    dtypes="all",
    differentiable=False,
    public=False,
)
def near(
    input: Tensor,
    other: Tensor,
    rtol: Number = 1e-05,
    atol: Number = 1e-08,
    equal_nan: Structure = False,
) -> Any:
    """`isclose` once its tolerances are known to be right."""
    if input.dtype != other.dtype:
        raise RuntimeError(
            f"expected one dtype: {type_name(input.dtype)} did not match {type_name(other.dtype)}"
        )
    close = eq(input, other)
    if equal_nan:
        close = close | (ne(input, input) & ne(other, other))
    x, y = _as_floats(input), _as_floats(other)
    apart = abs(x - y)
    return close | ((apart < float("inf")) & (apart <= atol + abs(rtol * y)))


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t), d.array(rng, (5,), t), 0.5, 9.0, False), {}),
        lambda rng, t: ((special(rng, t)[0].args * 2), {"equal_nan": True}),
    ),
    reference=d.reference(
        lambda np, x, y, rtol=1e-05, atol=1e-08, equal_nan=False: np.asarray(
            np.allclose(x.astype("float64"), y.astype("float64"), rtol, atol, equal_nan)
        )
    ),
    failures=d.failures(((d.Zeros(2), d.Zeros(2, dtype="int64")), {}, RuntimeError, "did not match")),
    dtypes="all",
    differentiable=False,
    public=False,
)
def all_near(
    input: Tensor,
    other: Tensor,
    rtol: Number = 1e-05,
    atol: Number = 1e-08,
    equal_nan: Structure = False,
) -> Any:
    """Whether `near` holds everywhere, as a 0-d array."""
    close = near(input, other, rtol, atol, equal_nan)
    return reduce_all(close, tuple(range(close.ndim)), False)


@pointwise(
    samples=d.samples(lambda rng, t: ((d.array(rng, (3, 5), t), 0.0, 9.0, -9.0), {})),
    reference=d.reference(lambda np, x, nan, high, low: np.nan_to_num(x, nan=nan, posinf=high, neginf=low)),
    public=False,
)
def replaced(input: Operand, nan: Operand, posinf: Operand, neginf: Operand) -> Any:
    """`nan_to_num` of floats with its three numbers."""
    infinity = float("inf")
    y = select(input.eq(infinity), posinf, select(input.eq(-infinity), neginf, input))
    return select(input.ne(input), nan, y)


@replaced.derivative
def _(g: Tensor, input: Tensor) -> Any:
    return where(isfinite(input), g, 0), None, None, None


@public(
    "nan_to_num",
    inplace=True,
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t),), {}),
        lambda rng, t: ((d.array(rng, (4,), t),), {"nan": 1.5, "posinf": 2.5}),
    ),
)
def nan_to_num(
    input: Any,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
    *,
    out: Any = None,
) -> Any:
    """`input` with `nan` (None: 0) for NaN, `posinf` and `neginf` for infinities (None: the dtype's largest
    and most negative number); integers and bool as they are.

    >>> kiln.nan_to_num(kiln.tensor([float("nan"), float("inf")]), posinf=9.0)
    tensor([0., 9.])
    """
    if not isinstance(input, (_core.Tensor, Value)):
        raise TypeError(f"nan_to_num(): argument 'input' must be Tensor, not {type(input).__name__}")
    for name, given in (("nan", nan), ("posinf", posinf), ("neginf", neginf)):
        if given is not None and not isinstance(given, (int, float)):
            raise TypeError(f"nan_to_num(): argument '{name}' must be float, not {type(given).__name__}")
    most = LARGEST.get(dtype_name(input.dtype))
    if most is None:
        return clone(input, **into(out))
    high, low = most if posinf is None else posinf, -most if neginf is None else neginf
    return replaced.handle(input, 0.0 if nan is None else nan, float(high), float(low), **into(out))


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t, 0, 1), 0.0, 1.0), {}),
        lambda rng, t: ((d.array(rng, (37,), t, -1, 1), 0.0, 1.0), {}),
    ),
    reference=d.reference(lambda np, x, low, high: np.asarray(((x >= low) & (x <= high)).all())),
    differentiable=False,
    public=False,
)
def all_within(input: Tensor, low: Number, high: Number) -> Any:
    """Whether low <= every element <= high, as a 0-d array; a NaN is not.

    >>> kiln.ops.find("all_within")(kiln.tensor([0.5, 1.5]), 0.0, 1.0)
    tensor(False)
    """
    fits = ge(input, low) & le(input, high)
    return reduce_all(fits, tuple(range(fits.ndim)), False)
