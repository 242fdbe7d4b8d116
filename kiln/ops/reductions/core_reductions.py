"""Reductions: the primitives over given dims, and PyTorch's functions made of them.

A primitive reduces `dims` (sorted, counted from the front) in the fixed order of architecture.md section 6.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise import comparison
from kiln.ops.elementwise.elementary import exp, isinf, log, root
from kiln.ops.elementwise.precision import narrow, wide
from kiln.table import drawn as d
from kiln.table import kinds
from kiln.table.arguments import count_of, default_float, dtype_name, type_name
from kiln.table.kinds import normalize_dims
from kiln.table.record import Number, Op, Sample, Structure, Tensor, composite, find, primitive
from kiln.table.registry import forms


def spread(g: Tensor, like: Any, dims: tuple[int, ...], keepdim: bool) -> Any:
    """A reduced value laid over `like`'s shape again."""
    if not keepdim and dims != tuple(range(len(dims))):  # leading dims come by expanding
        g = find("reshape")(g, tuple(1 if k in dims else s for k, s in enumerate(like.shape)))
    return g if like.ndim == 0 else find("expand")(g, tuple(like.shape))


def _lay(np: ModuleType, function: str, x: Any, dims: Any, keepdim: Any) -> Any:
    if function in ("argmax", "argmin"):
        moved = np.moveaxis(x, dims, range(x.ndim - len(dims), x.ndim))
        flat = moved.reshape(*moved.shape[: x.ndim - len(dims)], -1)
        found = getattr(np, function)(flat, -1)
        return np.expand_dims(found, dims) if keepdim else found
    result = getattr(np, function)(x, axis=dims, keepdims=keepdim)
    return result if function in ("all", "any") else np.asarray(result).astype(x.dtype)


def _primitive(name: str, function: str, doc: str, rule: str = "promote", **settings: Any) -> Op:
    """The reduction `name`, NumPy's `function`."""

    def signature(input: Tensor, dims: Structure, keepdim: Structure = False) -> Any:
        pass

    signature.__name__, signature.__doc__ = name, doc
    low = 0.5 if function == "prod" else -3.0
    return primitive(
        "reduce",
        rule=rule,
        public=False,
        samples=d.samples(
            lambda rng, t: ((d.array(rng, (3, 5), t, low), (1,)), {}),
            lambda rng, t: ((d.array(rng, (4, 3, 5), t, low), (0, 2), True), {}),
            lambda rng, t: ((d.array(rng, (300,), t, low), (0,)), {}),
        ),
        reference=d.reference(lambda np, x, dims, keepdim=False: _lay(np, function, x, dims, keepdim)),
        **settings,
    )(signature)


_PRIMITIVE = """{0} of `input` over `dims`, of its own dtype.

    >>> kiln.tensor([[1.0, 2.0], [3.0, 4.0]]).{1}
    {2}
    """
reduce_sum = _primitive(
    "reduce_sum",
    "sum",
    _PRIMITIVE.format("The sum", "sum(1)", "tensor([3., 7.])"),
    dtypes="numeric",
)
reduce_prod = _primitive(
    "reduce_prod",
    "prod",
    _PRIMITIVE.format("The product", "prod(1)", "tensor([ 2., 12.])"),
    dtypes="numeric",
)
reduce_max = _primitive(
    "reduce_max",
    "max",
    _PRIMITIVE.format("The largest element, NaN if there is one,", "amax(1)", "tensor([2., 4.])"),
    dtypes="numeric",
)
reduce_min = _primitive(
    "reduce_min",
    "min",
    _PRIMITIVE.format("The smallest element, NaN if there is one,", "amin(1)", "tensor([1., 3.])"),
    dtypes="numeric",
)
_INDEXED = """The position (int64, along the reduced dims laid flat) of the first {0} element or the first
NaN.

    >>> kiln.tensor([[1.0, 2.0], [4.0, 3.0]]).{1}(1)
    tensor([{2}])
    """
reduce_argmax = _primitive(
    "reduce_argmax",
    "argmax",
    _INDEXED.format("largest", "argmax", "1, 0"),
    "index",
    dtypes="numeric",
    differentiable=False,
)
reduce_argmin = _primitive(
    "reduce_argmin",
    "argmin",
    _INDEXED.format("smallest", "argmin", "0, 1"),
    "index",
    dtypes="numeric",
    differentiable=False,
)
_LOGICAL = """Whether {0} of `input` over `dims` is not zero: bool.

    >>> kiln.tensor([[True, False], [True, True]]).{0}(1)
    tensor([{1}])
    """
reduce_all = _primitive(
    "reduce_all", "all", _LOGICAL.format("all", "False,  True"), "logical", dtypes="all", differentiable=False
)
reduce_any = _primitive(
    "reduce_any", "any", _LOGICAL.format("any", "True, True"), "logical", dtypes="all", differentiable=False
)


@reduce_sum.derivative
def _(g: Tensor, input: Tensor, dims: tuple[int, ...], keepdim: bool) -> Any:
    return spread(g, input, dims, keepdim)


def _evenly(g: Tensor, input: Tensor, y: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    """The gradient of an extremum, shared by all elements equal to it; NaN, which equals none, gives NaN."""
    chosen = comparison.eq(input, spread(y, input, dims, keepdim))
    count = reduce_sum(p.convert(chosen, "int64"), dims, keepdim)
    rest = p.where(comparison.ne(y, y), p.detach(y), 0)
    return p.where(chosen, spread(g / count, input, dims, keepdim), spread(rest, input, dims, keepdim))


reduce_max.derivative(_evenly)
reduce_min.derivative(_evenly)


@reduce_prod.derivative
def _(g: Tensor, input: Tensor, y: Tensor, dims: tuple[int, ...], keepdim: bool) -> Any:
    """The product of the others: y / x, and at a zero the product of the rest times the other zeros.

    The product of the other zeros is written as a polynomial in sums of them, z -> s - z and
    ((s - z)^2 - (q - z^2)) / 2, so that second and third derivatives are exact too; the fourth, which sees
    four zeros, is not.
    """

    def wide(x: Tensor) -> Any:
        return spread(x, input, dims, keepdim)

    zero = comparison.eq(input, 0)
    zeros = wide(reduce_sum(p.convert(zero, "int64"), dims, keepdim))
    rest = wide(reduce_prod(p.where(zero, 1, input), dims, keepdim))
    small = p.where(zero, input, 0)
    other = wide(reduce_sum(small, dims, keepdim)) - input
    squares = wide(reduce_sum(small * small, dims, keepdim)) - input * input
    pair = (other * other - squares) * 0.5
    others = p.where(comparison.eq(zeros, 2), other, p.where(comparison.eq(zeros, 3), pair, 0))
    at_zero = rest * p.where(comparison.eq(zeros, 1), 1, others)
    return wide(g) * p.where(zero, at_zero, wide(y) / p.where(zero, 1, input))


def _floating(x: Tensor, op: str, dtype: Any) -> Tensor:
    """x in the dtype asked for (or its own), wide; PyTorch's error if that is not of floats."""
    x = x if dtype is None else narrow(x, dtype_name(dtype))
    if x.dtype not in kinds.FLOATS:
        if op in ("var", "std"):
            raise RuntimeError("std and var only support floating point and complex dtypes")
        if op == "norm":
            raise RuntimeError(
                "linalg.vector_norm: Expected a floating point or complex tensor as input. "
                f"Got {type_name(x.dtype)}"
            )
        which = "Input" if dtype is None else "Optional"
        raise RuntimeError(
            f"{op}(): could not infer output dtype. {which} dtype must be either a floating point or "
            f"complex dtype. Got: {type_name(x.dtype)}"
        )
    return wide(x)


def _asked(x: Tensor, dtype: Any) -> str:
    """The dtype of a reduction's result."""
    return x.dtype if dtype is None else dtype_name(dtype)


def _summed(x: Tensor, dtype: Any) -> Any:
    """What sum and prod add up: integers and bool as int64 unless a dtype is asked for."""
    if dtype is not None:
        return narrow(x, dtype_name(dtype))
    return x if x.dtype in kinds.FLOATS else narrow(x, "int64")


def _axis(dim: Any) -> Any:
    return tuple(dim) if isinstance(dim, list) else dim


def _reference(function: str, **extra: Any) -> Any:
    """NumPy's reduction with PyTorch's arguments."""

    def call(
        np: ModuleType, x: Any, dim: Any = None, keepdim: Any = False, dtype: Any = None, **kwargs: Any
    ) -> Any:
        options = {("ddof" if k == "correction" else k): v for k, v in kwargs.items()}
        result = np.asarray(
            getattr(np, function)(x, axis=_axis(dim), keepdims=keepdim, **{**extra, **options})
        )
        if dtype is not None:
            return result.astype(dtype)
        return result if x.dtype.kind not in "f" else result.astype(x.dtype)

    return d.reference(call)


def _whole(low: float = -3.0, high: float = 3.0) -> Any:
    """Samples of a reduction with PyTorch's signature."""
    return d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t, low, high),), {}),
        lambda rng, t: ((d.array(rng, (3, 5), t, low, high), 1), {}),
        lambda rng, t: ((d.array(rng, (4, 3, 5), t, low, high), -2), {"keepdim": True}),
        lambda rng, t: ((d.array(rng, (1000,), t, low, high), 0), {}),
    )


_BAD_DIM: tuple[Any, ...] = (((d.Zeros(2, 3), 5), {}, IndexError, "Dimension out of range"),)


@composite(
    samples=_whole(),
    reference=_reference("sum"),
    failures=d.failures(*_BAD_DIM),
    dtypes="all",
)
def sum(input: Tensor, dim: Structure = None, keepdim: Structure = False, dtype: Structure = None) -> Any:
    """The sum over `dim` (an int, a tuple, or None for all); integers and bool give int64 unless `dtype` says
    otherwise.

    IndexError for a dim out of range, RuntimeError for one given twice.

    >>> kiln.sum(kiln.tensor([[1, 2], [3, 4]]), 0)
    tensor([4, 6])
    """
    x, dims = _summed(input, dtype), normalize_dims(dim, input.ndim, "sum")
    return (reduce_any if x.dtype == "bool" else reduce_sum)(x, dims, keepdim)


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t, 0.5, 2),), {}),
        lambda rng, t: ((d.array(rng, (3, 5), t, 0.5, 2), 1, True), {}),
    ),
    reference=_reference("prod"),
    failures=d.failures(*_BAD_DIM),
    dtypes="all",
    tests=d.Tests(kinks=lambda np: (np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 3.0], [1.0, 2.0, 3.0]]), 1)),
)
def prod(input: Tensor, dim: Structure = None, keepdim: Structure = False, dtype: Structure = None) -> Any:
    """The product over `dim` (None: all); integers and bool give int64 unless `dtype` says otherwise.

    IndexError for a dim out of range.

    >>> kiln.prod(kiln.tensor([1.0, 2.0, 3.0]))
    tensor(6.)
    """
    x, dims = _summed(input, dtype), normalize_dims(dim, input.ndim, "prod")
    return (reduce_all if x.dtype == "bool" else reduce_prod)(x, dims, keepdim)


@composite(
    samples=_whole(),
    reference=_reference("mean"),
    failures=d.failures(
        ((d.Zeros(2, dtype="int64"),), {}, RuntimeError, "could not infer output dtype"), *_BAD_DIM
    ),
)
def mean(input: Tensor, dim: Structure = None, keepdim: Structure = False, dtype: Structure = None) -> Tensor:
    """The mean over `dim` (None: all); NaN over nothing. RuntimeError for integers without a float `dtype`.

    >>> kiln.mean(kiln.tensor([[1.0, 2.0], [3.0, 4.0]]), 1)
    tensor([1.5000, 3.5000])
    """
    x, dims = _floating(input, "mean", dtype), normalize_dims(dim, input.ndim, "mean")
    return narrow(reduce_sum(x, dims, keepdim) / count_of(x, dims), _asked(input, dtype))


def _extremum(name: str, primitive_op: Op, reduce_logical: Op, doc: str) -> Op:
    """amax or amin."""

    def body(input: Tensor, dim: Structure = None, keepdim: Structure = False) -> Any:
        dims = normalize_dims(dim, input.ndim, name)
        return (reduce_logical if input.dtype == "bool" else primitive_op)(input, dims, keepdim)

    body.__name__, body.__doc__ = name, doc
    return composite(
        samples=_whole(),
        reference=_reference(name),
        dtypes="all",
        failures=d.failures(*_BAD_DIM),
        public=False,
    )(body)


_EXTREMUM = """The {0} element over `dim` (an int, a tuple, or None for all); NaN if there is one.

    Equal elements share the gradient. IndexError for a dim out of range or of size 0.

    >>> kiln.{1}(kiln.tensor([[1, 2], [4, 3]]), 1)
    tensor([{2}])
    """
amax = _extremum("amax", reduce_max, reduce_any, _EXTREMUM.format("largest", "amax", "2, 4"))
amax.tests = d.Tests(kinks=lambda np: (np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]), 1))
amin = _extremum("amin", reduce_min, reduce_all, _EXTREMUM.format("smallest", "amin", "1, 3"))


def _position(name: str, primitive_op: Op, doc: str) -> Op:
    """argmax or argmin."""

    def body(input: Tensor, dim: Structure = None, keepdim: Structure = False) -> Any:
        dims = normalize_dims(dim, input.ndim, name)
        return primitive_op(input, dims, keepdim)

    def of_numpy(np: ModuleType, x: Any, dim: Any = None, keepdim: Any = False) -> Any:
        return np.asarray(getattr(np, name)(x, axis=dim, keepdims=keepdim))

    body.__name__, body.__doc__ = name, doc
    return composite(
        samples=_whole(),
        reference=d.reference(of_numpy),
        dtypes="numeric",
        differentiable=False,
        gives_positions=True,
        failures=d.failures(*_BAD_DIM),
        public=False,
    )(body)


_POSITION = """The position of the first {0} element (or the first NaN) along `dim`, or in the flat array:
int64.

    IndexError for a dim out of range or of size 0.

    >>> kiln.{1}(kiln.tensor([[1, 2], [4, 3]]), 1)
    tensor([{2}])
    """
argmax = _position("argmax", reduce_argmax, _POSITION.format("largest", "argmax", "1, 0"))
argmin = _position("argmin", reduce_argmin, _POSITION.format("smallest", "argmin", "0, 1"))


def _verdict(name: str, primitive_op: Op, doc: str) -> Op:
    """all or any."""

    def body(input: Tensor, dim: Structure = None, keepdim: Structure = False) -> Any:
        if dim == ():  # no dims, here alone; elsewhere in PyTorch these are all
            result = comparison.ne(input, 0)
        else:
            result = primitive_op(input, normalize_dims(dim, input.ndim, name), keepdim)
        return narrow(result, "uint8") if input.dtype == "uint8" else result

    def of_numpy(np: ModuleType, x: Any, dim: Any = None, keepdim: Any = False) -> Any:
        return np.asarray(getattr(np, name)(x, axis=_axis(dim), keepdims=keepdim))

    body.__name__, body.__doc__ = name, doc
    return composite(
        samples=_whole(-2, 2),
        reference=d.reference(of_numpy),
        dtypes="all",
        differentiable=False,
        failures=d.failures(*_BAD_DIM),
    )(body)


_VERDICT = """Whether {0} element over `dim` (None: of all; (): each for itself) is not zero: bool, of uint8
    uint8. IndexError for a dim out of range.

    >>> kiln.{1}(kiln.tensor([[True, False], [True, True]]), 1)
    tensor([{2}])
    """
all = _verdict("all", reduce_all, _VERDICT.format("every", "all", "False,  True"))
any = _verdict("any", reduce_any, _VERDICT.format("any", "any", "True, True"))


def _variance(input: Tensor, dim: Any, correction: Any, keepdim: bool, op: str) -> Tensor:
    """The mean square distance from the mean, in two passes, wide."""
    x, dims = _floating(input, op, None), normalize_dims(dim, input.ndim, op)
    count = count_of(x, dims)
    centered = x - reduce_sum(x, dims, True) / count
    return reduce_sum(centered * centered, dims, keepdim) / p.maximum(count - correction, 0)


def _spread_samples(rng: Any, dtype: str) -> list[Any]:
    return [Sample((d.array(rng, (3, 5), dtype),)), Sample((d.array(rng, (3, 5), dtype), 1)),
            Sample((d.array(rng, (4, 3, 5), dtype), (0, 2)), {"correction": 0, "keepdim": True})]  # fmt: skip


@composite(
    samples=_spread_samples,
    reference=_reference("var", ddof=1),
    failures=d.failures(
        ((d.Zeros(2, dtype="int64"),), {}, RuntimeError, "std and var only support"), *_BAD_DIM
    ),
    public=False,
    tests=d.Tests(rounding=4.0),
)
def var(input: Tensor, dim: Structure = None, correction: Number = 1, keepdim: Structure = False) -> Any:
    """The variance over `dim` (None: all), dividing by count - correction; floats. RuntimeError for integers.

    >>> kiln.var(kiln.tensor([1.0, 2.0, 3.0]))
    tensor(1.)
    """
    return narrow(_variance(input, dim, correction, keepdim, "var"), input.dtype)


@composite(
    samples=_spread_samples,
    reference=_reference("std", ddof=1),
    failures=d.failures(
        ((d.Zeros(2, dtype="int64"),), {}, RuntimeError, "std and var only support"), *_BAD_DIM
    ),
    public=False,
    tests=d.Tests(rounding=4.0),
)
def std(input: Tensor, dim: Structure = None, correction: Number = 1, keepdim: Structure = False) -> Any:
    """The standard deviation over `dim` (None: all), the root of `var`; its derivative where it is 0 is 0.

    RuntimeError for integers.

    >>> kiln.std(kiln.tensor([1.0, 2.0, 3.0]))
    tensor(1.)
    """
    return narrow(root(_variance(input, dim, correction, keepdim, "std")), input.dtype)


forms("logsumexp", "(input, dim: int | Sequence[int], keepdim=False, *, out=None)")


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t), 1), {}),
        lambda rng, t: ((d.array(rng, (3, 5), t), (0, 1), True), {}),
    ),
    reference=d.reference(
        lambda np, x, dim, keepdim=False: np.asarray(np.log(np.sum(np.exp(x), axis=dim, keepdims=keepdim)))
    ),
    failures=d.failures(*_BAD_DIM),
    tests=d.Tests(kinks=lambda np: (np.array([[-np.inf, 0.0], [np.inf, 1.0]]), 1)),
)
def logsumexp(input: Tensor, dim: Structure, keepdim: Structure = False) -> Any:
    """log(sum(exp(input))) over `dim` (an int or a tuple) without overflow; integers and bool give the
    default float dtype.

    IndexError for a dim out of range.

    >>> kiln.logsumexp(kiln.tensor([0.0, 0.0]), 0)
    tensor(0.6931)
    """
    name = input.dtype if input.dtype in kinds.FLOATS else default_float()
    x, dims = wide(narrow(input, name)), normalize_dims(dim, input.ndim, "logsumexp")
    top = p.detach(reduce_max(x, dims, True))
    top = p.where(isinf(top), 0, top)
    total = log(reduce_sum(exp(x - top), dims, True)) + top
    if not keepdim:
        total = find("reshape")(total, tuple(s for k, s in enumerate(x.shape) if k not in dims))
    return narrow(total, name)


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (4, 3, 5), t), d.array(rng, (3, 1), t)), {}),
        lambda rng, t: ((d.array(rng, (3, 5), t), d.array(rng, (3, 5), t)), {}),
    ),
    reference=d.reference(lambda np, x, like: _sum_to(x, like)),
    public=False,
)
def sum_to(input: Tensor, like: Tensor) -> Any:
    """`input` summed over the dims along which `like` was repeated to give its shape; only like's sizes are
    read.

    >>> kiln.tensor([[1.0, 2.0], [3.0, 4.0]]).sum(0, keepdim=True)
    tensor([[4., 6.]])
    """
    extra = input.ndim - like.ndim
    dims = tuple(
        k
        for k in range(input.ndim)
        if k < extra or (_is_one(like.shape[k - extra]) and not _is_one(input.shape[k]))
    )
    result = reduce_sum(input, dims, False) if dims else input
    return result if result.ndim == like.ndim else find("reshape")(result, tuple(like.shape))


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _sum_to(x: Tensor, like: Any) -> Any:
    extra = x.ndim - like.ndim
    dims = tuple(k for k in range(x.ndim) if k < extra or (like.shape[k - extra] == 1 and x.shape[k] != 1))
    return x.sum(dims).reshape(like.shape).astype(x.dtype)
