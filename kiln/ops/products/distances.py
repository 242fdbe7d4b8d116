"""Distances between rows: `cdist`, `pdist`, `pairwise_distance`, `cosine_similarity`; and `bilinear`."""

from __future__ import annotations

from itertools import chain
from types import ModuleType
from typing import Any

from kiln.graph.size import product as product_of
from kiln.ops.creation.data import tensor
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise import comparison
from kiln.ops.elementwise.elementary import abs, root, sign
from kiln.ops.elementwise.precision import narrow, wide
from kiln.ops.products.matrix_products import (
    _differ,
    _explained,
    _matrices,
    _require,
    matmul,
    product,
    swapped,
)
from kiln.ops.reductions.core_reductions import reduce_sum
from kiln.ops.reductions.norms import INFINITY, norm_over
from kiln.ops.views.core_views import expand, permute, reshape
from kiln.table import drawn as d
from kiln.table import kinds
from kiln.table.arguments import dtype_name, type_name
from kiln.table.kinds import normalize_dim
from kiln.table.public import public
from kiln.table.record import Number, Structure, Tensor, composite, find


def _check_pair(x1: Tensor, x2: Tensor, p: Any = 2.0) -> None:
    """What PyTorch raises for arguments of cdist that do not fit."""
    both = (("X1", x1), ("X2", x2))
    for name, x in both:
        _require(x.ndim >= 2, f"cdist only supports at least 2D tensors, {name} got: {x.ndim}D")
    for name, x in both:
        dtype = dtype_name(x.dtype)
        _require(
            dtype in kinds.FLOATS,
            f"cdist only supports floating-point dtypes, {name} got: {type_name(dtype)}",
        )
    a, b = dtype_name(x1.dtype), dtype_name(x2.dtype)
    _require(a == b, f"expected scalar type {type_name(a)} but found {type_name(b)}")
    if a in ("float16", "bfloat16"):
        raise NotImplementedError(f"\"cdist\" not implemented for '{type_name(a)}'")
    n, m = x1.shape[-1], x2.shape[-1]
    _require(not _differ(n, m), f"X1 and X2 must have the same number of columns. X1: {n} X2: {m}")
    _require(not (p < 0), "cdist only supports non-negative p values")


def _differences(x1: Tensor, x2: Tensor) -> Tensor:
    """[.., n, k] and [.., m, k] -> the differences of every two rows, [.., n, m, k]."""
    a = reshape(x1, (*x1.shape[:-1], 1, x1.shape[-1]))
    return a - reshape(x2, (*x2.shape[:-2], 1, *x2.shape[-2:]))


@composite(
    samples=d.samples(
        lambda rng, t: ((*_matrices((3, 5), (4, 5))(rng, t)[0], 2.0), {}),
        lambda rng, t: ((*_matrices((2, 3, 5), (1, 4, 5))(rng, t)[0], 3.0), {}),
        lambda rng, t: ((*_matrices((2, 3), (4, 3))(rng, t)[0], 1.0), {}),
        lambda rng, t: ((*_matrices((2, 3), (4, 3))(rng, t)[0], INFINITY), {}),
    ),
    reference=d.reference(
        lambda np, a, b, order: np.linalg.norm(a[..., :, None, :] - b[..., None, :, :], order, -1)
    ),
    public=False,
)
def row_distances(x1: Tensor, x2: Tensor, order: Structure) -> Any:
    """The norm of every difference of rows: [.., n, k], [.., m, k] -> [.., n, m]."""
    y = norm_over(_differences(x1, x2), order, (max(x1.ndim, x2.ndim),), False)
    return p.clamp_min(y, 0) if order == INFINITY else y  # over nothing: 0


@row_distances.derivative
def _(g: Tensor, x1: Tensor, x2: Tensor, y: Tensor, order: Any) -> Any:
    delta = _differences(x1, x2)
    y, g = (reshape(v, (*v.shape, 1)) for v in (y, g))
    if order == 0:
        slope = delta * 0
    elif order == 1:
        slope = sign(delta)
    elif order == INFINITY:
        slope = p.where(comparison.eq(abs(delta), y), sign(delta), 0)
    elif order == 2:
        slope = p.where(comparison.eq(y, 0), 0, delta / p.where(comparison.eq(y, 0), 1, y))
    else:
        none = comparison.eq(delta, 0)
        size = p.where(none, 1, abs(delta))
        ratio = p.pow(size / p.where(comparison.eq(y, 0), 1, y), order - 1)
        slope = p.where(none, 0, sign(delta) * ratio)
    flow = slope * g
    n = flow.ndim
    sum_to = find("sum_to")
    return (
        sum_to(reduce_sum(flow, (n - 2,), False), x1),
        sum_to(-reduce_sum(flow, (n - 3,), False), x2),
    )


@composite(
    samples=d.samples(_matrices((3, 5), (4, 5)), _matrices((2, 3, 5), (1, 4, 5))),
    reference=d.reference(lambda np, a, b: np.linalg.norm(a[..., :, None, :] - b[..., None, :, :], 2, -1)),
    public=False,
)
def euclidean_distances(x1: Tensor, x2: Tensor) -> Any:
    """The same for order 2 by a product of matrices: less work, and less exact for rows that are close."""
    last1, last2 = (x1.ndim - 1,), (x2.ndim - 1,)
    squares = reduce_sum(x1 * x1, last1, True) + swapped(reduce_sum(x2 * x2, last2, True))
    return root(p.clamp_min(squares - 2 * matmul.body(x1, swapped(x2)), 0))  # type: ignore[misc]


_MODES = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")


@public(
    "cdist",
    method=False,
    samples=d.samples(
        _matrices((3, 5), (4, 5)),
        lambda rng, t: (_matrices((2, 3, 5), (1, 4, 5))(rng, t)[0], {"p": 3.0}),
        lambda rng, t: (_matrices((2, 3), (2, 3))(rng, t)[0], {"compute_mode": _MODES[1]}),
        lambda rng, t: (_matrices((2, 3), (0, 3))(rng, t)[0], {"p": INFINITY}),
    ),
    failures=d.failures(
        ((d.Zeros(2, 3), d.Zeros(2, 4)), {}, RuntimeError, "same number of columns"),
        ((d.Zeros(3), d.Zeros(2, 3)), {}, RuntimeError, "at least 2D tensors"),
        ((d.Zeros(2, 3), d.Zeros(2, 3), -1), {}, RuntimeError, "non-negative p values"),
        ((d.Zeros(2, 3), d.Zeros(2, 3), 2, "x"), {}, ValueError, "not a valid value for compute_mode"),
        ((d.Zeros(2, 5, 3), d.Zeros(3, 5, 3)), {}, RuntimeError, "must match the size of tensor b"),
    ),
    dtypes="float32 float64",
)
def cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: Any = _MODES[0]) -> Any:
    """The p-norm distance of every row of x1 to every row of x2: [.., n, k], [.., m, k] -> [.., n, m].

    float32 and float64; batch dims broadcast; the gradient at distance 0 is 0. For p = 2 and more than 25
    rows (or as `compute_mode` says) by a product of matrices. RuntimeError for sizes that do not fit.

    >>> kiln.cdist(kiln.tensor([[0.0, 0.0]]), kiln.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([[5., 1.]])
    """
    mode = _MODES[compute_mode or 0] if isinstance(compute_mode, (int, type(None))) else compute_mode
    if mode not in _MODES:
        raise ValueError(f"{mode} is not a valid value for compute_mode")
    _check_pair(x1, x2, p)
    large = any(isinstance(n, int) and n > 25 for n in (x1.shape[-2], x2.shape[-2]))
    if p == 2 and (mode == _MODES[1] or (mode == _MODES[0] and large)):
        return euclidean_distances(x1, x2)
    return row_distances(x1, x2, float(p))


@public(
    "pdist",
    method=False,
    layer=True,
    samples=d.samples(
        _matrices((4, 3)),
        lambda rng, t: (_matrices((3, 2))(rng, t)[0], {"p": 1.0}),
        _matrices((1, 3)),
    ),
    failures=d.failures(
        ((d.Zeros(3),), {}, RuntimeError, "pdist only supports 2D tensors"),
        ((d.Zeros(2, 3), -1), {}, RuntimeError, "pdist only supports non-negative p values"),
    ),
    dtypes="float32 float64",
    reads=True,  # its positions are made on its line
)
def pdist(input: Any, p: float = 2.0) -> Any:
    """The p-norm distances of every two rows of a matrix, [n, k] -> [n (n - 1) / 2].

    They are those that `cdist` has above its diagonal, in its order. RuntimeError unless the input has two
    dims.

    >>> kiln.pdist(kiln.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]))
    tensor([5.0000, 1.0000, 4.2426])
    """
    _require(input.ndim == 2, f"pdist only supports 2D tensors, got: {input.ndim}D")
    _require(not (p < 0), "pdist only supports non-negative p values")
    n = input.shape[0]
    above = chain.from_iterable(range(k * n + k + 1, (k + 1) * n) for k in range(n))
    distances = reshape(cdist(input, input, p, _MODES[2]), (n * n,))
    return find("index_select")(distances, 0, tensor(list(above), dtype="int64"))


def _check_floats(a: Tensor, b: Tensor) -> str:
    dtype = kinds.result_type((a, b))
    if dtype not in kinds.FLOATS:
        name = type_name(dtype)
        raise RuntimeError(f"expected common dtype to be floating point, yet common dtype is {name}")
    return dtype


def _cosine(np: ModuleType, a: Any, b: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    x, y = (v / np.maximum(np.sqrt((v * v).sum(dim, keepdims=True)), eps) for v in (a, b))
    return np.asarray((x * y).sum(dim).astype(a.dtype))


@composite(
    samples=d.samples(
        _matrices((3, 5), (3, 5)),
        # longer than eps: the gradient of shorter ones is PyTorch's, that of their length (test_subgradients)
        lambda rng, t: ((*_matrices((2, 4, 3), (4, 1))(rng, t)[0], -2), {"eps": 0.05}),
    ),
    reference=d.reference(_cosine),
    failures=d.failures(
        ((d.Zeros(2, 3), d.Zeros(2, 4)), {}, RuntimeError, "must match the size"),
        ((d.Zeros(2, 3), d.Zeros(2, 3), 2), {}, IndexError, "Dimension out of range"),
        ((d.Zeros(2, 3, dtype="int64"), d.Zeros(2, 3, dtype="int64")), {}, RuntimeError, "common dtype"),
    ),
    method=False,
)
def cosine_similarity(x1: Tensor, x2: Tensor, dim: Structure = 1, eps: Number = 1e-8) -> Any:
    """The cosine of the angle between x1 and x2 along `dim`, norms being at least `eps`; dims broadcast.

    RuntimeError for integers, IndexError for a dim out of range.

    >>> kiln.cosine_similarity(kiln.tensor([[1.0, 0.0]]), kiln.tensor([[1.0, 1.0]]))
    tensor([0.7071])
    """
    dtype = _check_floats(x1, x2)
    shape = kinds.broadcast(x1.graph, [x1.shape, x2.shape], "cosine_similarity")
    dims = (normalize_dim(dim, len(shape), "cosine_similarity"),) if shape else ()
    units = []
    for x in (x1, x2):
        x = expand(wide(narrow(x, dtype)), shape)
        size = root(reduce_sum(x * x, dims, True))
        units.append(x / (size + p.detach(p.maximum(size, eps) - size)))
    return narrow(reduce_sum(units[0] * units[1], dims, False), dtype)


@composite(
    samples=d.samples(
        _matrices((3, 5), (3, 5)),
        lambda rng, t: ((*_matrices((2, 4, 3), (4, 3))(rng, t)[0], 1.0), {"eps": 0.5, "keepdim": True}),
    ),
    reference=d.reference(
        lambda np, a, b, order=2, eps=1e-6, keepdim=False: np.asarray(
            np.linalg.norm(a - b + a.dtype.type(eps), order, -1, keepdims=keepdim).astype(a.dtype)
        )
    ),
    failures=d.failures(((d.Zeros(2, 3), d.Zeros(2, 4)), {}, RuntimeError, "must match the size")),
    method=False,
    tests=d.Tests(keeps_less="differences"),
)
def pairwise_distance(
    x1: Tensor, x2: Tensor, p: Structure = 2.0, eps: Number = 1e-6, keepdim: Structure = False
) -> Any:
    """The p-norm of `x1 - x2 + eps` along the last dim; dims broadcast.

    >>> kiln.nn.functional.pairwise_distance(kiln.tensor([3.0, 4.0]), kiln.tensor([0.0, 0.0]))
    tensor(5.0000)
    """
    delta = x1 - x2
    dtype = delta.dtype if delta.dtype in kinds.FLOATS else "float32"
    delta = wide(narrow(delta, dtype)) + eps
    return narrow(norm_over(delta, float(p), (delta.ndim - 1,) if delta.ndim else (), keepdim), dtype)


def _check_bilinear(a: Tensor, b: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    names = [type_name(dtype_name(x.dtype)) for x in (a, b, weight)]
    _require(
        len(set(names)) == 1,
        "All tensors must have the same dtype, got input1: {}, input2: {}, weight: {}".format(*names),
    )
    _require(a.ndim == b.ndim, f"bilinear(): input dimensions do not match: got {a.ndim} and {b.ndim}")
    for k, (n, m) in enumerate(zip(a.shape[:-1], b.shape[:-1])):
        _require(
            not _differ(n, m),
            f"bilinear(): input batch dimensions do not match at dim {k}: got {n} and {m}",
        )
    for k, x in enumerate((a, b), 1):
        n, m = x.shape[-1], weight.shape[k]
        _require(
            not _differ(n, m),
            f"bilinear(): input{k} size does not match weight size: got {n} but expected {m}",
        )
    if bias is not None:
        n, m = bias.shape[0], weight.shape[0]
        _require(
            not _differ(n, m), f"bilinear(): bias size does not match weight size: got {n} but expected {m}"
        )


@composite(
    samples=d.samples(
        _matrices((3, 4), (3, 5), (2, 4, 5), (2,)),
        _matrices((2, 3, 4), (2, 3, 5), (2, 4, 5)),
    ),
    reference=d.reference(
        lambda np, a, b, w, bias=0: (np.einsum("...i,oij,...j->...o", a, w, b) + bias).astype(a.dtype)
    ),
    failures=d.failures(
        ((d.Zeros(2, 3), d.Zeros(2, 3), d.Zeros(5, 3, 4)), {}, RuntimeError, "input2 size does not match"),
        ((d.Zeros(2, 3), d.Zeros(3, 4), d.Zeros(5, 3, 4)), {}, RuntimeError, "batch dimensions do not match"),
        (
            (d.Zeros(2, 3), d.Zeros(2, 4), d.Zeros(5, 3, 4), d.Zeros(4)),
            {},
            RuntimeError,
            "bias size does not match",
        ),
        (
            (d.Zeros(2, 3), d.Zeros(2, 4, dtype="uint8"), d.Zeros(5, 3, 4)),
            {},
            RuntimeError,
            "must have the same dtype",
        ),
    ),
    explain=_explained(_check_bilinear),
    method=False,
)
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """`input1 @ weight[o] @ input2 + bias[o]`: [.., n], [.., m], [o, n, m], [o] -> [.., o].

    RuntimeError for sizes that do not fit.

    >>> kiln.nn.functional.bilinear(kiln.ones(1, 2), kiln.ones(1, 3), kiln.ones(1, 2, 3))
    tensor([[6.]])
    """
    _check_bilinear(input1, input2, weight, bias)
    (o, n, m), batch = weight.shape, tuple(input1.shape[:-1])
    rows = product_of(batch)
    left = product(reshape(input1, (rows, n)), reshape(permute(weight, (1, 0, 2)), (n, o * m)))
    result = product(reshape(left, (rows, o, m)), reshape(input2, (rows, m, 1)))
    result = reshape(result, (*batch, o))
    return result if bias is None else narrow(wide(result) + wide(bias), result.dtype)
