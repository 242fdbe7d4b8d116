"""Differences and sums of neighbours: diff, trapezoid, gradient; cross, trace, vander, unravel_index."""

from __future__ import annotations

from typing import Any

from kiln import _core
from kiln.errors import warn
from kiln.ops.elementwise.arithmetic import convert
from kiln.ops.indexing.concatenation import cat
from kiln.ops.views.core_views import reshape, slice_
from kiln.ops.views.shapes import together
from kiln.ops.views.strided import diagonal_
from kiln.table import drawn as d
from kiln.table import registry
from kiln.table.arguments import answerable, dtype_name, is_float, type_name
from kiln.table.kinds import normalize_dim, normalize_dims
from kiln.table.public import alias, public
from kiln.table.record import Sample, Tensor, find

_reshape, _slice = reshape.handle, slice_.handle


@public(
    "trace",
    samples=d.samples(lambda rng, t: ((d.array(rng, (3, 4), t),), {})),
    dtypes="float32 bfloat16 int64",
    failures=d.failures(((d.Zeros(3),), {}, RuntimeError, "expected a matrix")),
)
def trace(input: Any) -> Any:
    """The sum of a matrix's diagonal; of integers int64. RuntimeError for another number of dims.

    >>> kiln.trace(kiln.tensor([[1, 2], [3, 4]]))
    tensor(5)
    """
    if input.ndim != 2:
        raise RuntimeError(f"trace: expected a matrix, but got tensor with dim {input.ndim}")
    if dtype_name(input.dtype) == "bool":
        raise NotImplementedError("\"trace\" not implemented for 'Bool'")
    return find("sum").handle(diagonal_(input))


_THREES = d.samples(
    lambda rng, t: ((d.array(rng, (2, 3), t), d.array(rng, (2, 3), t)), {}),
    lambda rng, t: ((d.array(rng, (3, 1), t), d.array(rng, (3, 4), t)), {"dim": 0}),
)
_NOT_THREE: Any = (
    ((d.Zeros(3), d.Zeros(2, 3)), {}, RuntimeError, "same number of dimensions"),
    ((d.Zeros(2, 3), d.Zeros(2, 3)), {"dim": 0}, RuntimeError, "must have length 3"),
    ((d.Zeros(3), d.Zeros(3, dtype="int64")), {}, RuntimeError, "expected scalar type"),
)


@public("linalg.cross", samples=_THREES, dtypes="float32 bfloat16 int64", failures=d.failures(*_NOT_THREE))
def linalg_cross(input: Any, other: Any, *, dim: int = -1, out: Any = None) -> Any:
    """The vector product along `dim`, of size 3; other dims broadcast.

    RuntimeError for other sizes, numbers of dims that differ, or dtypes that do.

    >>> kiln.linalg.cross(kiln.tensor([1, 0, 0]), kiln.tensor([0, 1, 0]))
    tensor([0, 0, 1])
    """
    if input.ndim != other.ndim:
        raise RuntimeError("linalg.cross: inputs must have the same number of dimensions.")
    asked, dim = dim, normalize_dim(dim, input.ndim, "cross")
    if any(x.shape[dim] != 3 for x in (input, other)):
        raise RuntimeError(
            f"linalg.cross: inputs dimension {asked} must have length 3. Got {input.shape[dim]} and "
            f"{other.shape[dim]}"
        )
    if input.dtype != other.dtype:
        names = (type_name(dtype_name(x.dtype)) for x in (input, other))
        raise RuntimeError("expected scalar type {} but found {}".format(*names))
    if dtype_name(input.dtype) == "bool":
        raise NotImplementedError("\"cross\" not implemented for 'Bool'")
    a, b = ([_slice(x, dim, (k, 1, 1)) for k in range(3)] for x in together((input, other)))
    result = cat([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]], dim)
    return result if out is None else out.copy_(result)


@public(
    "cross",
    samples=_THREES,
    dtypes="float32 bfloat16 int64",
    failures=d.failures(
        *_NOT_THREE, ((d.Zeros(2, 2), d.Zeros(2, 2)), {}, RuntimeError, "no dimension of size 3")
    ),
)
def cross(input: Any, other: Any, dim: int | None = None, *, out: Any = None) -> Any:
    """The vector product along `dim`, of size 3 (without it: the first such dim); other dims broadcast.

    RuntimeError for other sizes, numbers of dims that differ, or dtypes that do.

    >>> kiln.cross(kiln.tensor([1, 0, 0]), kiln.tensor([0, 1, 0]))
    tensor([0, 0, 1])
    """
    if dim is None:
        warn(
            "Using torch.cross without specifying the dim arg is deprecated: pass the dim, or take "
            "torch.linalg.cross, whose dim is the last one without it"
        )
    if dim is None and input.ndim == other.ndim:
        dim = next((k for k, size in enumerate(input.shape) if size == 3), None)
        if dim is None:
            raise RuntimeError("no dimension of size 3 in input")
    return linalg_cross(input, other, dim=-1 if dim is None else dim, out=out)


def _difference(x: Tensor, dim: int) -> Any:
    """Every element but the first, less the one before it."""
    count = x.shape[dim] - 1
    after, before = _slice(x, dim, (1, count, 1)), _slice(x, dim, (0, count, 1))
    return find("logical_xor").handle(after, before) if dtype_name(x.dtype) == "bool" else after - before


@public(
    "diff",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 5), t),), {}),
        lambda rng, t: ((d.array(rng, (4, 2), t), 2, 0), {}),
        lambda rng, t: (
            (d.array(rng, (3,), t),),
            {"prepend": d.array(rng, (1,), t), "append": d.array(rng, (2,), t)},
        ),
        lambda rng, t: ((d.array(rng, (3,), t), 5), {}),
        lambda rng, t: ((d.array(rng, (3,), t), 0), {"prepend": d.array(rng, (1,), t)}),
    ),
    failures=d.failures(
        ((d.Zeros(),), {}, RuntimeError, "at least one-dimensional"),
        ((d.Zeros(3), -1), {}, RuntimeError, "non-negative"),
        ((d.Zeros(2, 3), 1, 1, d.Zeros(3)), {}, RuntimeError, "same dimension as input"),
        ((d.Zeros(2, 3), 1, 1, d.Zeros(1, 3)), {}, RuntimeError, "except along the differencing"),
    ),
)
def diff(
    input: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None, *, out: Any = None
) -> Any:
    """Differences of neighbours along `dim`, taken n times, after joining `prepend` and `append` to it; of
    bools whether they differ. With n = 0 a copy of `input` alone.

    RuntimeError for a 0-d tensor, a negative n, or parts that do not fit.

    >>> kiln.diff(kiln.tensor([1, 3, 2]))
    tensor([ 2, -1])
    """
    if input.ndim == 0:
        raise RuntimeError("diff expects input to be at least one-dimensional")
    if n < 0:
        raise RuntimeError(f"order must be non-negative but got {n}")
    dim = normalize_dim(dim, input.ndim, "diff")
    for x in (prepend, append):
        _check_joins(input, x, dim)
    parts = [x for x in (prepend, input, append) if x is not None and (n or x is input)]
    result = cat(parts, dim) if len(parts) > 1 else input
    size = result.shape[dim]
    for _ in range(min(n, size) if isinstance(size, int) else n):
        result = _difference(result, dim)
    if n == 0:
        result = find("clone").handle(result)
    return result if out is None else out.copy_(result)


def _check_joins(input: Tensor, x: Tensor, dim: int) -> None:
    if x is None:
        return
    if x.ndim != input.ndim:
        raise RuntimeError("diff expects prepend or append to be the same dimension as input")
    for k, (have, want) in enumerate(zip(x.shape, input.shape)):
        if k != dim and answerable(have, want) and have != want:
            raise RuntimeError(
                "diff expects the shape of tensor to prepend or append to match that of input except along "
                f"the differencing dimension; input.size({k}) = {want}, but got tensor.size({k}) = {have}"
            )


_INTEGRAL: dict[str, Any] = {
    "samples": d.samples(
        lambda rng, t: ((d.array(rng, (2, 4), t),), {"dx": 2}),
        lambda rng, t: ((d.array(rng, (3, 2), t), d.array(rng, (3,), t)), {"dim": 0}),
        lambda rng, t: ((d.array(rng, (1,), t),), {}),
    ),
    "dtypes": "float32 bfloat16 int64",
    "failures": d.failures(
        ((d.Zeros(),), {}, IndexError, "no dimensions"),
        ((d.Zeros(2, 3), d.Zeros(4)), {}, RuntimeError, "one `x` value for each sample"),
        ((d.Zeros(3, dtype="bool"),), {}, RuntimeError, "bool is not supported"),
    ),
}


@public("trapezoid", method=False, **_INTEGRAL)
def trapezoid(y: Any, x: Any = None, *, dx: Any = None, dim: int = -1) -> Any:
    """The integral along `dim` by the trapezoidal rule, of samples at `x` or `dx` (1) apart.

    RuntimeError for bools, or an x that does not fit; IndexError for a 0-d tensor.

    >>> kiln.trapezoid(kiln.tensor([1.0, 2.0, 4.0]))
    tensor(4.5000)
    """
    dim = _integral_dim("trapezoid", y, x, dim)
    count = y.shape[dim] - 1
    if isinstance(count, int) and count < 0:
        return find("sum").handle(
            convert(y, dtype_name(y.dtype) if is_float(y) else _core.default_dtype_name()), dim
        )
    both = _slice(y, dim, (0, count, 1)) + _slice(y, dim, (1, count, 1))
    if x is None:
        return find("sum").handle(both, dim) * ((1 if dx is None else dx) / 2.0)
    return find("sum").handle(_steps("trapezoid", x, y, dim) * both, dim) / 2.0


@public("cumulative_trapezoid", method=False, **_INTEGRAL)
def cumulative_trapezoid(y: Any, x: Any = None, *, dx: Any = None, dim: int = -1) -> Any:
    """The integrals along `dim` up to each sample but the first, by the trapezoidal rule, of samples at `x`
    or `dx` (1) apart; one element less than y along `dim`.

    RuntimeError for bools, or an x that does not fit; IndexError for a 0-d tensor.

    >>> kiln.cumulative_trapezoid(kiln.tensor([1.0, 2.0, 4.0]))
    tensor([1.5000, 4.5000])
    """
    dim = _integral_dim("cumulative_trapezoid", y, x, dim)
    count = y.shape[dim] - 1
    both = _slice(y, dim, (0, count, 1)) + _slice(y, dim, (1, count, 1))
    if x is None:
        return find("cumsum").handle(both, dim) * ((1 if dx is None else dx) / 2.0)
    return find("cumsum").handle(_steps("cumulative_trapezoid", x, y, dim) * both, dim) / 2.0


def _integral_dim(op: str, y: Tensor, x: Tensor, dim: int) -> int:
    """The dim to integrate along, counted from the front; y and x must not be bools, nor y of no dims."""
    if y.ndim == 0:
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    for name, given in (("y", y), ("x", x)):
        if given is not None and dtype_name(given.dtype) == "bool":
            raise RuntimeError(f"{op}: received a bool input for `{name}`, but bool is not supported")
    return normalize_dim(dim, y.ndim, op)


def _steps(op: str, x: Tensor, y: Tensor, dim: int) -> Any:
    """The distances of sample points, in a shape that broadcasts with y's."""
    if x.ndim == 1:
        if x.shape[0] != y.shape[dim]:
            raise RuntimeError(f"{op}: There must be one `x` value for each sample point")
        shape = [1] * y.ndim
        shape[dim] = x.shape[0] - 1
        return _reshape(_difference(x, 0), shape)
    shape = (1,) * (y.ndim - x.ndim) + tuple(x.shape)
    return _difference(_reshape(x, shape), dim)


alias("trapz", "trapezoid", method=False)


def _places(rng: Any, dtype: str) -> Any:
    """Coordinates for a sample: a list with one rising vector."""
    return [d.array(rng, (4,), dtype, 0.5, 2.0).cumsum(0)]


def _edge(values: list[Any], points: list[Any], at: int, order: int) -> Any:
    """The slope at points[at], an end, from `order` neighbours."""
    if order == 1:
        return (values[1] - values[0]) / (points[1] - points[0])
    a, b = points[1] - points[0], points[2] - points[1]
    whole = a + b
    if at:  # the last of three
        weights = b / (a * whole), -whole / (a * b), (a + 2.0 * b) / (b * whole)
    else:
        weights = -(2.0 * a + b) / (a * whole), whole / (a * b), -a / (b * whole)
    return values[0] * weights[0] + values[1] * weights[1] + values[2] * weights[2]


def _slopes(x: Tensor, points: Any, dim: int, order: int) -> Any:
    """dx / dpoints along `dim`; `points`: a number (the distance), or coordinates that broadcast with x."""
    size = x.shape[dim]
    even = not hasattr(points, "shape")

    def cut(start: int, count: Any) -> Any:
        return _slice(x, dim, (start, count, 1))

    def place(k: int) -> Any:
        return k * points if even else _slice(points, dim, (k, 1, 1))

    ends = []
    for at, first in ((0, 0), (order, size - 1 - order)):
        values = [cut(first + k, 1) for k in range(order + 1)]
        ends.append(_edge(values, [place(first + k) for k in range(order + 1)], at, order))
    before, middle, after = (cut(k, size - 2) for k in range(3))
    if even:
        inner = (after - before) / (2.0 * points)
    else:
        steps = _difference(points, dim)
        a, b = (_slice(steps, dim, (k, size - 2, 1)) for k in (0, 1))
        inner = middle * ((b - a) / (a * b)) + after * (a / (b * (a + b))) - before * (b / (a * (a + b)))
    return cat([ends[0], inner, ends[1]], dim)


@public(
    "gradient",
    method=False,
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 4), t),), {"spacing": 2.0}),
        lambda rng, t: ((d.array(rng, (4,), t),), {"spacing": _places(rng, t), "edge_order": 2}),
        lambda rng, t: ((d.array(rng, (3, 4), t),), {"dim": 1, "edge_order": 2, "spacing": None}),
    ),
    dtypes="float32",
    failures=d.failures(
        ((d.Zeros(1),), {}, RuntimeError, "at least edge_order"),
        ((d.Zeros(3),), {"edge_order": 3}, RuntimeError, "edge_order=1 and edge_order=2"),
        ((d.Zeros(3, 3),), {"dim": (0, 0)}, RuntimeError, "appears multiple times"),
        ((d.Zeros(3, 3),), {"spacing": [1.0, 2.0], "dim": 1}, RuntimeError, "same length"),
    ),
)
def gradient(input: Any, *, spacing: Any = None, dim: Any = None, edge_order: int = 1) -> tuple[Any, ...]:
    """Slopes along each of `dim` (all by default) by central differences, at the ends of order `edge_order`
    (1 or 2). `spacing`: a distance (by default 1), one for every dim, or a vector of coordinates for each.

    RuntimeError for another order, too few samples, or spacings that do not fit.

    >>> kiln.gradient(kiln.tensor([1.0, 4.0, 9.0]))
    (tensor([3., 4., 5.]),)
    """
    dims = [dim] if isinstance(dim, int) else list(range(input.ndim) if dim is None else dim)
    normalize_dims(tuple(dims), input.ndim, "gradient")
    dims = [normalize_dim(k, input.ndim, "gradient") for k in dims]
    if edge_order not in (1, 2):
        raise RuntimeError("torch.gradient only supports edge_order=1 and edge_order=2.")
    spacing = 1 if spacing is None else spacing
    spacings = list(spacing) if isinstance(spacing, (tuple, list)) else [spacing] * len(dims)
    if len(spacings) != len(dims):
        raise RuntimeError(
            "torch.gradient expected spacing to be unspecified, a scalar or it's spacing and dim arguments "
            f"to have the same length, but got a spacing argument of length {len(spacings)} and a dim "
            f"argument of length {len(dims)}."
        )
    if not is_float(input):
        input = convert(input, _core.default_dtype_name())
    results = []
    for k, points in zip(dims, spacings):
        if answerable(input.shape[k]) and input.shape[k] <= edge_order:
            raise RuntimeError("torch.gradient expected each dimension size to be at least edge_order+1")
        if hasattr(points, "shape") and points.ndim == 1:
            if answerable(points.shape[0], input.shape[k]) and points.shape[0] != input.shape[k]:
                raise RuntimeError(
                    f"torch.gradient expected a coordinate for each of the {input.shape[k]} elements of dim "
                    f"{k}, but got {points.shape[0]}"
                )
            points = _reshape(points, [points.shape[0] if j == k else 1 for j in range(input.ndim)])
        results.append(_slopes(input, points, k, edge_order))
    return tuple(results)


@public(
    "unravel_index",
    method=False,
    samples=lambda rng, t: [Sample((rng.integers(0, 40, (2, 3)), (4, 5)))],
    dtypes="float32",
    failures=d.failures(
        ((d.Zeros(2), (2, 3)), {}, TypeError, "integer dtype"),
        ((d.Zeros(2, dtype="int64"), (-2, 3)), {}, ValueError, "negative values"),
    ),
)
def unravel_index(indices: Any, shape: Any) -> tuple[Any, ...]:
    """Positions in a flat array of `shape` as one tensor of positions for every dim; beyond the end they
    wrap.

    TypeError unless they are integers, ValueError for a negative size.

    >>> kiln.unravel_index(kiln.tensor([3, 5]), (2, 3))
    (tensor([1, 1]), tensor([0, 2]))
    """
    if is_float(indices) or dtype_name(indices.dtype) == "bool":
        raise TypeError(f"expected 'indices' to be integer dtype, but got {indices.dtype}")
    if dtype_name(indices.dtype) != "int64":
        indices = convert(indices, "int64")
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(size < 0 for size in sizes):
        raise ValueError(f"'shape' cannot have negative values, but got {sizes}")
    steps = [1]
    for size in reversed(sizes[1:]):
        steps.insert(0, steps[0] * size)
    return tuple([indices // step % size for step, size in zip(steps, sizes)])


@public(
    "vander",
    differs="has a derivative; PyTorch's raises",
    method=False,
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3,), t),), {}),
        lambda rng, t: ((d.array(rng, (2,), t), 4), {"increasing": True}),
    ),
    dtypes="float32 int64",
    failures=d.failures(
        ((d.Zeros(2, 2),), {}, RuntimeError, "one-dimensional"),
        ((d.Zeros(2), -1), {}, RuntimeError, "N must be non-negative"),
    ),
    tests=d.Tests(peer_gradient=False),
)
def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:
    """The powers N - 1 to 0 of a vector's elements as columns (N: its size by default), or 0 to N - 1.

    RuntimeError for another number of dims, or a negative N.

    >>> kiln.vander(kiln.tensor([1, 2, 3])).tolist()
    [[1, 1, 1], [4, 2, 1], [9, 3, 1]]
    """
    if x.ndim != 1:
        raise RuntimeError("x must be a one-dimensional tensor.")
    count = x.shape[0] if N is None else N
    if count < 0:
        raise RuntimeError("N must be non-negative.")
    if not is_float(x) and dtype_name(x.dtype) != "int64":
        x = convert(x, "int64")
    if not count:
        return _reshape(_slice(x, 0, (0, 0, 1)), (x.shape[0], 0))
    rows = x.shape[0]
    x = _reshape(x, (rows, 1))
    powers = registry.function("ones_like")(x)
    if count > 1:
        more = registry.function("cumprod")(registry.function("expand")(x, (rows, count - 1)), 1)
        powers = cat([powers, more], 1)
    return powers if increasing else registry.function("flip")(powers, (1,))
