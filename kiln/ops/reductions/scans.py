"""Scans: running sums, products and extrema along one dim (the steps: scan_and_scatter_steps.py)."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise import comparison
from kiln.ops.elementwise.elementary import exp, log
from kiln.ops.indexing.gathering import gather
from kiln.ops.named_results import located
from kiln.ops.views.core_views import reshape
from kiln.table import drawn as d
from kiln.table.arguments import dtype_name, is_float, type_name
from kiln.table.kinds import normalize_dim
from kiln.table.public import public
from kiln.table.record import Op, Structure, Tensor, composite, primitive
from kiln.table.registry import forms


def _running(np: ModuleType, how: str, x: Any, dim: int, dtype: str, reverse: bool) -> Any:
    """A scan of a function of NumPy, kept in float64."""
    x = np.asarray(x).astype(d.held(dtype))
    rows = np.flip(x, dim) if reverse else x
    wide = rows.astype("float64") if x.dtype.kind == "f" else rows
    if how in ("sum", "prod"):
        found = getattr(np, f"cum{how}")(wide, dim, dtype=wide.dtype)
    elif how == "logsumexp":
        found = np.logaddexp.accumulate(wide, dim)
    else:
        found = _places(np, how, wide, dim)
    if how.startswith("arg"):
        return np.flip(x.shape[dim] - 1 - found, dim) if reverse else found
    return (np.flip(found, dim) if reverse else found).astype(x.dtype)


def _places(np: ModuleType, how: str, x: Any, dim: int) -> Any:
    best = (np.maximum if how == "argmax" else np.minimum).accumulate(x, dim)
    here = np.arange(x.shape[dim]).reshape([-1 if k == dim else 1 for k in range(x.ndim)])
    return np.maximum.accumulate(np.where((x == best) | (x != x), here, 0), dim)


def _primitive(name: str, rule: str = "promote", **settings: Any) -> Op:
    """The scan `scan_{name}`."""

    def signature(input: Tensor, dim: Structure, dtype: Structure, reverse: Structure = False) -> Any:
        pass

    how = name.removeprefix("scan_")
    low = 0.5 if how == "prod" else -3.0
    signature.__name__ = name
    signature.__doc__ = (
        f"The running {how} of `input`, taken as `dtype`, along `dim`; from its end if `reverse`."
    )

    def sample(shape: tuple[int, ...], dim: int, reverse: bool) -> Any:
        return lambda rng, t: ((d.array(rng, shape, t, low, 1.5), dim, _asked(how, t), reverse), {})

    return primitive(
        "along",
        algorithm="scan",
        rule=rule,
        public=False,
        samples=d.samples(sample((3, 5), 1, False), sample((2, 7, 18), 1, True), sample((5,), 0, False)),
        reference=d.reference(
            lambda np, x, dim, dtype, reverse=False: _running(np, how, x, dim, dtype, reverse)
        ),
        **settings,
    )(signature)


def _asked(how: str, dtype: str) -> str:
    """The dtype of a sample's scan."""
    return dtype if how not in ("sum", "prod") or dtype.startswith("float") else "int64"


scan_sum = _primitive("scan_sum", dtypes="all")
scan_prod = _primitive("scan_prod", dtypes="all")
scan_argmax = _primitive("scan_argmax", "index", dtypes="all", differentiable=False)
scan_argmin = _primitive("scan_argmin", "index", dtypes="all", differentiable=False)
scan_argmax.gives_positions = scan_argmin.gives_positions = True
scan_logsumexp = _primitive("scan_logsumexp")


@scan_sum.derivative
def _(g: Tensor, dim: Any, reverse: bool) -> Any:
    return scan_sum(g, dim, g.dtype, not reverse)


@scan_prod.derivative
def _(g: Tensor, input: Tensor, y: Tensor, dim: Any, dtype: Any, reverse: bool) -> Any:
    """Each y divided by x and added up; at a zero the products of the rest, times the other zero if any.

    The other zero is written as a sum of them, z -> s - z, so that second derivatives are exact too.
    """

    def later(x: Tensor) -> Any:
        return scan_sum(x, dim, g.dtype, not reverse)

    zero = comparison.eq(input, 0)
    zeros = scan_sum(zero, dim, "int64", reverse)
    flow = g * scan_prod(p.where(zero, 1, input), dim, dtype, reverse)
    paired = p.where(comparison.eq(zeros, 2), flow, 0)
    small = p.where(zero, input, 0)
    alone = p.where(comparison.eq(zeros, 1), flow, 0)
    at_zero = later(alone + paired * scan_sum(small, dim, dtype, reverse)) - small * later(paired)
    return p.where(zero, at_zero, later(g * y) / p.where(zero, 1, input))


@scan_logsumexp.derivative
def _(g: Tensor, input: Tensor, y: Tensor, dim: Any, reverse: bool) -> Tensor:
    """exp(x - y) of every later y; scaled by the largest so that nothing overflows."""
    # sum over i >= k of g_i exp(x_k - y_i): positive and negative g apart, as logarithms
    parts = []
    for sign in (1, -1):
        size = p.where(comparison.gt(g * sign, 0), g * sign, 0)
        nothing = comparison.eq(size, 0)
        logs = p.where(nothing, float("-inf"), log(p.where(nothing, 1, size)) - y)
        parts.append(exp(scan_logsumexp(logs, dim, g.dtype, not reverse) + input))
    return parts[0] - parts[1]


def _cumulative(name: str, primitive_op: Op, doc: str, numpy: str) -> Op:
    """cumsum or cumprod."""

    def body(input: Tensor, dim: Structure, dtype: Structure = None) -> Any:
        place = normalize_dim(dim, input.ndim, name)
        asked = dtype_name(dtype) if dtype is not None else input.dtype
        if dtype is None and not is_float(input):
            asked = "int64"
        if input.ndim == 0:
            return p.convert(input, asked)
        return primitive_op(input, place, asked)

    body.__name__, body.__doc__ = name, doc

    def reference(np: ModuleType, x: Any, dim: int, dtype: Any = None) -> Any:
        kept = dtype or (x.dtype if x.dtype.kind == "f" else "int64")
        wide = x.astype("float64") if np.dtype(kept).kind == "f" else x.astype("int64")
        return getattr(np, numpy)(wide, dim if x.ndim else None).reshape(x.shape).astype(kept)

    return composite(
        samples=d.samples(
            lambda rng, t: ((d.array(rng, (4, 5), t, -1.5, 1.5), 1), {}),
            lambda rng, t: ((d.array(rng, (3, 4, 2), t, -1.5, 1.5), -2), {"dtype": "float64"}),
            lambda rng, t: ((d.array(rng, (), t), 0), {}),
        ),
        reference=d.reference(reference),
        dtypes="all",
        inplace=True,
        failures=d.failures(((d.Zeros(2, 3), 5), {}, IndexError, "Dimension out of range")),
    )(body)


cumsum = _cumulative(
    "cumsum",
    scan_sum,
    """The running sum along `dim`, of `dtype`; integers and bool give int64. IndexError for a dim out of
    range.

    >>> kiln.cumsum(kiln.tensor([1, 2, 3]), 0)
    tensor([1, 3, 6])
    """,
    "cumsum",
)
cumprod = _cumulative(
    "cumprod",
    scan_prod,
    """The running product along `dim`, of `dtype`; integers and bool give int64. IndexError for a dim out of
    range.

    >>> kiln.cumprod(kiln.tensor([1, 2, 3]), 0)
    tensor([1, 2, 6])
    """,
    "cumprod",
)


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (4, 5), t), 1), {}),
        lambda rng, t: ((d.array(rng, (3, 4, 2), t), 0), {}),
    ),
    reference=d.reference(
        lambda np, x, dim: np.logaddexp.accumulate(x.astype("float64"), dim).astype(x.dtype)
    ),
    failures=d.failures(((d.Zeros(2, 3), 5), {}, IndexError, "Dimension out of range")),
)
def logcumsumexp(input: Tensor, dim: Structure) -> Any:
    """The logarithm of the running sum of exp(input) along `dim`, without overflow; floats.

    IndexError for a dim out of range.

    >>> kiln.logcumsumexp(kiln.zeros(3), 0)
    tensor([0.0000, 0.6931, 1.0986])
    """
    place = normalize_dim(dim, input.ndim, "logcumsumexp")
    if not is_float(input):
        name = type_name(input.dtype)
        raise NotImplementedError(f"\"logcumsumexp_out_cpu\" not implemented for '{name}'")
    return scan_logsumexp(input, place, input.dtype) if input.ndim else input * 1


def _extremum(name: str, primitive_op: Op) -> Any:
    """cummax or cummin."""

    def function(input: Tensor, dim: int, *, out: Any = None) -> Any:
        place = normalize_dim(dim, input.ndim, name)
        flat = input if input.ndim else reshape(input, (1,))
        indices = primitive_op.handle(flat, place, dtype_name(flat.dtype))
        values = gather.handle(flat, place, indices)
        if not input.ndim:
            values, indices = reshape(values, ()), reshape(indices, ())
        return located(name, values, indices, out)

    function.__doc__ = f"""The running {name[3:]}imum along `dim` and its position: (values, indices).

    The later of equals, the latest NaN. The gradient goes to the element chosen. IndexError for a dim out of
    range.

    >>> kiln.{name}(kiln.tensor([1, 3, 2]), 0).values
    tensor([{"1, 3, 3" if name == "cummax" else "1, 1, 1"}])
    """
    return public(
        name,
        samples=d.samples(
            lambda rng, t: ((d.array(rng, (4, 5), t), 1), {}),
            lambda rng, t: ((d.array(rng, (3, 7), t), 0), {}),
            lambda rng, t: ((d.array(rng, (), t), 0), {}),
        ),
        failures=d.failures(((d.Zeros(2, 3), 5), {}, IndexError, "Dimension out of range")),
    )(function)


forms("cummax", "-> values, indices")
forms("cummin", "-> values, indices")


cummax = _extremum("cummax", scan_argmax)
cummin = _extremum("cummin", scan_argmin)
