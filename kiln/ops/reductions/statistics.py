"""Reductions in the forms PyTorch offers them, made of the ones of `core_reductions`.

Variances with and without their mean, sums that skip NaN, counts, both extrema at once, covariances.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln.ops.creation.constants import positions
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise import comparison
from kiln.ops.elementwise.elementary import root
from kiln.ops.elementwise.precision import narrow, wide
from kiln.ops.named_results import named
from kiln.ops.products.matrix_products import product
from kiln.ops.reductions import core_reductions, extrema
from kiln.ops.reductions.core_reductions import reduce_any, reduce_sum
from kiln.table import drawn as d
from kiln.table import kinds
from kiln.table.arguments import count_of, default_float, dtype_name, expect, into, is_float, type_name
from kiln.table.kinds import normalize_dims
from kiln.table.public import public
from kiln.table.record import Number, Op, Structure, Tensor, composite, find
from kiln.table.registry import forms

_BAD_DIM: Any = ((d.Zeros(2, 3), 5), {}, IndexError, "Dimension out of range")


# Variance


def _correction(name: str, unbiased: Any, correction: Any) -> Any:
    """The number taken from the count: PyTorch's two ways of saying it."""
    if unbiased is not None and correction is not None:
        raise TypeError(f"{name}() takes unbiased or correction, not both")
    if correction is not None:
        return correction
    return 1 if unbiased is None or unbiased else 0


def _deviation(name: str, op: Op, doc: str) -> Any:
    """A function of the variance, asked for PyTorch's two ways: by a flag, which may come in dim's place, or
    by a number.
    """

    def deviation(
        input: Tensor,
        dim: Any = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        *,
        correction: Any = None,
        out: Any = None,
    ) -> Any:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        taken = _correction(name, unbiased, correction)
        return op.handle(input, dim, taken, keepdim, **into(out))

    deviation.__doc__ = doc
    return public(
        name,
        method=not name.endswith("mean"),
        samples=d.samples(
            lambda rng, t: ((d.array(rng, (3, 5), t), False), {}),
            lambda rng, t: ((d.array(rng, (3, 5), t), [0, 1]), {"correction": 2, "keepdim": True}),
            lambda rng, t: ((d.array(rng, (3, 5), t), 1, True, True), {}),
        ),
        dtypes="float",
        failures=d.failures(
            ((d.Zeros(2, dtype="int64"),), {}, RuntimeError, "only support floating point"), _BAD_DIM
        ),
    )(deviation)


forms("std_mean", "-> tuple[Tensor, Tensor]")
forms("var_mean", "-> tuple[Tensor, Tensor]")


def _with_mean(name: str, deviation: Any, last: Any) -> Op:
    """var_mean or std_mean: one op of two results."""

    def body(input: Tensor, dim: Structure = None, correction: Number = 1, keepdim: Structure = False) -> Any:
        if input.dtype not in kinds.FLOATS:
            raise RuntimeError(f"{name} only support floating point and complex dtypes")
        x, dims = wide(input), normalize_dims(dim, input.ndim, name)
        count = count_of(x, dims)
        mean = reduce_sum(x, dims, True) / count
        centered = x - mean
        square = reduce_sum(centered * centered, dims, keepdim) / p.maximum(count - correction, 0)
        kept = tuple(s for k, s in enumerate(mean.shape) if keepdim or k not in dims)
        mean = mean if keepdim else find("reshape")(mean, kept)
        return narrow(last(square), input.dtype), narrow(mean, input.dtype)

    def of_numpy(np: ModuleType, x: Any, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Any:
        axis = tuple(dim) if isinstance(dim, list) else dim
        spread = getattr(np, deviation)(x, axis=axis, ddof=correction, keepdims=keepdim)
        mean = np.mean(x, axis=axis, keepdims=keepdim)
        return np.asarray(spread).astype(x.dtype), np.asarray(mean).astype(x.dtype)

    body.__name__ = f"{name}_of"
    body.__doc__ = f"""The {"variance" if deviation == "var" else "standard deviation"} and the mean at once.

    >>> kiln.{name}(kiln.tensor([1.0, 2.0, 3.0]))
    (tensor(1.), tensor(2.))
    """
    return composite(
        samples=d.samples(
            lambda rng, t: ((d.array(rng, (3, 5), t),), {}),
            lambda rng, t: ((d.array(rng, (4, 3, 5), t), (0, 2)), {"correction": 0, "keepdim": True}),
        ),
        reference=d.reference(of_numpy),
        failures=d.failures(
            ((d.Zeros(2, dtype="int64"),), {}, RuntimeError, "only support floating point"), _BAD_DIM
        ),
        public=False,
    )(body)


var_mean_of = _with_mean("var_mean", "var", lambda x: x)
std_mean_of = _with_mean("std_mean", "std", root)
_DEVIATION = """{0} over `dim` (an int, several, or None for all); floats.

    The sum of squares is divided by count - `correction`, or by count for unbiased=False. RuntimeError for
    integers, TypeError for both ways of saying it.

    >>> kiln.{1}(kiln.tensor([1.0, 2.0, 3.0]))
    {2}
    """
var = _deviation("var", core_reductions.var, _DEVIATION.format("The variance", "var", "tensor(1.)"))
std = _deviation("std", core_reductions.std, _DEVIATION.format("The standard deviation", "std", "tensor(1.)"))
_BOTH = "(tensor(1.), tensor(2.))"
var_mean = _deviation(
    "var_mean", var_mean_of, _DEVIATION.format("The variance and the mean", "var_mean", _BOTH)
)
std_mean = _deviation(
    "std_mean", std_mean_of, _DEVIATION.format("The standard deviation and the mean", "std_mean", _BOTH)
)


# What skips NaN, and counts


def _with_nan(rng: Any, t: str) -> Any:
    x = d.array(rng, (3, 5), t)
    if x.dtype.kind == "f":
        x[0, 1] = x[2, 4] = float("nan")
    return x


@composite(
    samples=d.samples(
        lambda rng, t: ((_with_nan(rng, t),), {}),
        lambda rng, t: ((_with_nan(rng, t), (0, 1), True), {}),
        lambda rng, t: ((_with_nan(rng, t), -1), {}),
    ),
    reference=d.reference(
        lambda np, x, dim=None, keepdim=False: np.asarray(np.nansum(x, axis=dim, keepdims=keepdim)).astype(
            x.dtype if x.dtype.kind == "f" else "int64"
        )
    ),
    failures=d.failures(_BAD_DIM),
    dtypes="all",
)
def nansum(input: Tensor, dim: Structure = None, keepdim: Structure = False, dtype: Structure = None) -> Any:
    """The sum over `dim` (None: all) in which NaN counts as 0; integers and bool give int64 unless `dtype`
    says otherwise. IndexError for a dim out of range.

    >>> kiln.nansum(kiln.tensor([1.0, float("nan"), 2.0]))
    tensor(3.)
    """
    x = wide(input) if input.dtype in kinds.FLOATS else input
    x = p.where(comparison.ne(x, x), 0, x) if input.dtype in kinds.FLOATS else x
    integral = "int64" if input.dtype not in kinds.FLOATS else input.dtype
    name = integral if dtype is None else dtype_name(dtype)
    x = narrow(x, name) if name in ("float64", "int64") or name not in kinds.FLOATS else wide(narrow(x, name))
    dims = normalize_dims(dim, input.ndim, "nansum")
    return narrow((reduce_any if name == "bool" else reduce_sum)(x, dims, keepdim), name)


@composite(
    differs="the gradient of a mean of nothing but NaN is 0; PyTorch's is NaN",
    samples=d.samples(
        lambda rng, t: ((_with_nan(rng, t),), {}),
        lambda rng, t: ((_with_nan(rng, t), 1, True), {}),
    ),
    reference=d.reference(
        lambda np, x, dim=None, keepdim=False: np.asarray(np.nanmean(x, axis=dim, keepdims=keepdim)).astype(
            x.dtype
        )
    ),
    failures=d.failures(
        ((d.Zeros(2, dtype="int64"),), {}, RuntimeError, "expected input to have floating point"), _BAD_DIM
    ),
)
def nanmean(input: Tensor, dim: Structure = None, keepdim: Structure = False, dtype: Structure = None) -> Any:
    """The mean over `dim` (None: all) of what is not NaN; NaN where nothing is. RuntimeError for integers.

    >>> kiln.nanmean(kiln.tensor([1.0, float("nan"), 2.0]))
    tensor(1.5000)
    """
    if input.dtype not in kinds.FLOATS:
        raise RuntimeError(
            "nanmean(): expected input to have floating point or complex dtype but got "
            f"{type_name(input.dtype)}"
        )
    name = input.dtype if dtype is None else dtype_name(dtype)
    if name not in kinds.FLOATS:
        raise RuntimeError(f"nanmean(): expected dtype to be of floats, but got {type_name(name)}")
    x, dims = wide(narrow(input, name)), normalize_dims(dim, input.ndim, "nanmean")
    missing = comparison.ne(x, x)
    count = reduce_sum(p.convert(comparison.eq(x, x), "int64"), dims, keepdim)
    return narrow(reduce_sum(p.where(missing, 0, x), dims, keepdim) / count, name)


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t, -1, 1),), {}),
        lambda rng, t: ((d.array(rng, (3, 5), t, -1, 1), (0, -1)), {}),
        lambda rng, t: ((d.array(rng, (3, 5), t, -1, 1), 1), {}),
    ),
    reference=d.reference(lambda np, x, dim=None: np.asarray(np.count_nonzero(x, axis=dim))),
    failures=d.failures(_BAD_DIM),
    dtypes="all",
    differentiable=False,
)
def count_nonzero(input: Tensor, dim: Structure = None) -> Any:
    """How many elements over `dim` (an int, a tuple, or None for all) are not 0: int64.

    IndexError for a dim out of range.

    >>> kiln.count_nonzero(kiln.tensor([[1, 0], [2, 3]]), 1)
    tensor([1, 2])
    """
    some = comparison.ne(input, 0)
    return reduce_sum(p.convert(some, "int64"), normalize_dims(dim, input.ndim, "count_nonzero"), False)


forms("aminmax", "-> min, max")


@public(
    "aminmax",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t),), {}),
        lambda rng, t: ((d.array(rng, (3, 5), t),), {"dim": 1, "keepdim": True}),
    ),
    failures=d.failures(
        ((d.Zeros(2, 3),), {"dim": 5}, IndexError, "Dimension out of range"),
        ((d.Zeros(0, 3),), {"dim": 0}, IndexError, "non-zero size"),
        ((d.Zeros(0, 3),), {}, RuntimeError, "cannot compute aminmax"),
    ),
)
def aminmax(input: Any, *, dim: int | None = None, keepdim: bool = False, out: Any = None) -> Any:
    """The smallest and the largest element, of all or along `dim`: a tuple (min, max); NaN if there is one.

    IndexError for a dim out of range or of size 0, RuntimeError for no elements at all.

    >>> kiln.aminmax(kiln.tensor([3, 1, 2])).min
    tensor(1)
    """
    dims = normalize_dims(dim, input.ndim, "aminmax")
    if dim is None and 0 in input.shape:
        raise RuntimeError(
            "aminmax(): cannot compute aminmax over an empty dimension as the operation has no identity."
        )
    extrema.not_empty(input, dims, "aminmax")
    if out is not None and (not isinstance(out, (tuple, list)) or len(out) != 2):
        raise TypeError(f"aminmax(): argument 'out' must be tuple of Tensors, not {type(out).__name__}")
    found = tuple(find(name).handle(input, dim, keepdim) for name in ("amin", "amax"))
    return named("aminmax", *p.written(found, out))


# Covariance


def _observations(input: Tensor, op: str) -> Any:
    """Variables down, observations along: a matrix of floats, wide."""
    if input.ndim > 2:
        raise RuntimeError(
            f"{op}(): expected input to have two or fewer dimensions but got an input with {input.ndim} "
            "dimensions"
        )
    if input.dtype == "bool":
        raise RuntimeError(f"{op}(): bool dtype is not supported for input")
    x = wide(narrow(input, input.dtype if input.dtype in kinds.FLOATS else default_float()))
    if x.ndim < 2:
        x = find("reshape")(x, (1, x.shape[0] if x.ndim else 1))
    return x


def _covariance(x: Tensor, weights: Tensor, given: Any, correction: Any) -> Tensor:
    """The covariance of rows: centered on the weighted mean, over the weights' sum less the correction."""
    if weights is None:
        total = narrow(count_of(x, (1,)), x.dtype)
        centered = x - reduce_sum(x, (1,), True) / total
        rest = total - correction
        return product(centered, find("permute")(centered, (1, 0))) / p.where(
            comparison.lt(rest, 0), 0.0, rest
        )
    total = reduce_sum(weights, (0,), False)
    centered = x - reduce_sum(x * weights, (1,), True) / total
    rest = total - correction * (reduce_sum(weights * given, (0,), False) / total)
    squares = product(centered, find("permute")(centered * weights, (1, 0)))
    return squares / p.maximum(rest, 0)


def _square(c: Any) -> Any:
    """A square matrix; of one variable a 0-d array."""
    return find("reshape")(c, ()) if c.shape[0] == 1 else c


def _cov_reference(np: ModuleType, x: Any, f: Any = None, a: Any = None, correction: int = 1) -> Any:
    x = x if x.dtype.kind == "f" else x.astype("float32")
    return np.asarray(np.cov(x, ddof=correction, fweights=f, aweights=a)).astype(x.dtype)


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t),), {}),
        lambda rng, t: ((d.array(rng, (6,), t), None, None, 0), {}),
        lambda rng, t: ((d.array(rng, (1, 4), t),), {}),
        lambda rng, t: (
            (
                d.array(rng, (2, 4), t),
                rng.integers(1, 4, (4,)),
                d.array(rng, (4,), t if "float" in t else "float32", 0.5, 2),
            ),
            {},
        ),
    ),
    reference=d.reference(_cov_reference),
    failures=d.failures(((d.Zeros(2, 3, 4),), {}, RuntimeError, "two or fewer dimensions")),
    public=False,
    dtypes="numeric",
)
def covariance(
    input: Tensor, fweights: Tensor | None = None, aweights: Tensor | None = None, correction: Number = 1
) -> Any:
    """The covariance matrix of variables (rows), observations weighted.

    >>> kiln.cov(kiln.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    name = kinds.result_type((input,) if aweights is None else (input, aweights))
    name = name if name in kinds.FLOATS else default_float()
    x = wide(narrow(_observations(input, "cov"), name))
    counts = None if fweights is None else narrow(fweights, x.dtype)
    given = None if aweights is None else narrow(aweights, x.dtype)
    weights = given if counts is None else counts if given is None else counts * given
    by = given if given is not None else 1.0
    return narrow(_square(_covariance(x, weights, by, correction)), name)


def _check_weights(name: str, weights: Tensor, count: Any, integral: bool) -> None:
    """PyTorch's errors for weights of observations; their signs and sum are looked at."""
    if weights.ndim > 1:
        raise RuntimeError(
            f"cov(): expected {name} to have one or fewer dimensions but got {name} with {weights.ndim} "
            "dimensions"
        )
    if is_float(weights) is integral:
        kind = "integral" if integral else "floating point"
        have = type_name(dtype_name(weights.dtype))
        raise RuntimeError(f"cov(): expected {name} to have {kind} dtype but got {name} with {have} dtype")
    if weights.numel() != count:
        raise RuntimeError(
            f"cov(): expected {name} to have the same numel as there are observations in the input but got "
            f"{weights.numel()} != {count}"
        )
    expect(~comparison.lt(weights, 0), RuntimeError, f"cov(): {name} cannot be negative")


@public(
    "cov",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t),), {}),
        lambda rng, t: ((d.array(rng, (6,), t),), {"correction": 0}),
    ),
    dtypes="numeric",
    failures=d.failures(
        ((d.Zeros(2, 3, 4),), {}, RuntimeError, "two or fewer dimensions"),
    ),
)
def cov(input: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """The covariances of variables (rows) over observations (columns): (v, o) -> (v, v); of one variable ().

    `fweights`: how often each observation counts, `aweights`: how much. RuntimeError for more than two dims,
    bool, and weights that do not fit, are negative, or sum to 0.

    >>> kiln.cov(kiln.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    count = input.shape[-1] if input.ndim else 1
    for name, weights in (("fweights", fweights), ("aweights", aweights)):
        if weights is not None and input.ndim <= 2:
            _check_weights(name, weights, count, name == "fweights")
            if not bool(weights.any()):
                raise RuntimeError("cov(): weights sum to zero, can't be normalized")
    return covariance.handle(input, fweights, aweights, correction)


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t),), {}),
        lambda rng, t: ((d.array(rng, (6,), t),), {}),
        lambda rng, t: ((d.array(rng, (1, 6), t),), {}),
    ),
    reference=d.reference(
        lambda np, x: np.asarray(np.corrcoef(x)).astype(x.dtype if x.dtype.kind == "f" else "float32")
    ),
    failures=d.failures(((d.Zeros(2, 3, 4),), {}, RuntimeError, "two or fewer dimensions")),
    tests=d.Tests(keeps_less="the rows less their means"),
)
def corrcoef(input: Tensor) -> Any:
    """The correlations of variables (rows) over observations (columns): (v, o) -> (v, v); of one variable ().

    Each is between -1 and 1. RuntimeError for more than two dims, and for bool.

    >>> kiln.corrcoef(kiln.tensor([[1.0, 2.0, 3.0], [6.0, 4.0, 2.0]]))
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    c = _covariance(_observations(input, "corrcoef"), None, None, 1)
    if c.shape[0] == 1:
        ratio = c / c
    else:
        own = p.where(comparison.eq(positions(c, 0), positions(c, 1)), c, 0)
        down, along = (root(reduce_sum(own, (k,), True)) for k in (1, 0))
        ratio = p.clamp(c / down / along, -1.0, 1.0)
    return narrow(_square(ratio), input.dtype if input.dtype in kinds.FLOATS else c.dtype)
