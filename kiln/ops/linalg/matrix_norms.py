"""Norms of vectors and matrices, condition numbers; small products of kiln.linalg."""

from __future__ import annotations

from typing import Any

from kiln import _core
from kiln.graph.size import product as product_of
from kiln.ops.creation.constants import full
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise.precision import narrow, wide
from kiln.ops.linalg.decompositions import singular_values
from kiln.ops.linalg.outside import outside
from kiln.ops.linalg.systems import (
    BAD,
    LAPACK,
    check,
    inverse,
    inverse_of,
    linear,
    nothing,
    rows_of,
    solve_matrices,
)
from kiln.ops.products.addends import given
from kiln.ops.products.matrix_products import _matrices
from kiln.ops.reductions.core_reductions import sum as sum_
from kiln.ops.reductions.norms import INFINITY, norm_over
from kiln.ops.views.core_views import expand, movedim, reshape, unsqueeze
from kiln.table import drawn as d
from kiln.table import kinds, registry
from kiln.table.arguments import dtype_name, into, is_float, run, type_name
from kiln.table.kinds import normalize_dim, normalize_dims
from kiln.table.public import public
from kiln.table.record import Structure, Tensor, composite, find
from kiln.table.registry import forms

_concat, where = find("concat").handle, find("where").handle


def _check_norm(input: Tensor, order: float, dims: tuple[int, ...], dtype: Any, all_: bool) -> None:
    """What PyTorch raises for a norm that does not exist."""
    own = dtype_name(input.dtype)
    name = "linalg.vector_norm"
    if own not in kinds.FLOATS:
        raise RuntimeError(
            f"{name}: Expected a floating point or complex tensor as input. Got {type_name(own)}"
        )
    wanted = own if dtype is None else dtype_name(dtype)
    if wanted not in kinds.FLOATS:
        raise RuntimeError(f"{name}: dtype should be floating point or complex. Got {type_name(wanted)}")
    if wanted != own and _core.promote_types(_dtype(own), _dtype(wanted)) != _dtype(wanted):
        raise RuntimeError(
            f"{name}: the dtype of the input ({type_name(own)}) should be convertible without narrowing to "
            f"the specified dtype ({type_name(wanted)})"
        )
    if order < 0 or order == INFINITY:
        for k in dims:
            if isinstance(input.shape[k], int) and input.shape[k] == 0:
                which = "tensor" if all_ else f"dimension {k}"
                raise RuntimeError(
                    f"{name} cannot compute the {order} norm on an empty {which} because the operation does "
                    "not have an identity"
                )


def _dtype(name: str) -> Any:
    return getattr(_core, name)


@composite(
    samples=d.samples(
        lambda rng, t: ((*_matrices((3, 5))(rng, t)[0], 2.0, (0, 1), False), {}),
        lambda rng, t: ((*_matrices((3, 5))(rng, t)[0], 3.0, (1,), True), {}),
        lambda rng, t: ((*_matrices((3, 5))(rng, t)[0], -INFINITY, (0,), False), {}),
    ),
    reference=d.reference(
        lambda np, x, order, dims, keepdim: np.asarray(
            np.linalg.norm(x.reshape(-1) if len(dims) > 1 else x, order, None if len(dims) > 1 else dims[0],
                           keepdim)
        )
    ),
    public=False,
)  # fmt: skip
def norm_along(input: Tensor, order: Structure, dims: Structure, keepdim: Structure) -> Any:
    """The norm of a float `order` over some dims, floats."""
    return narrow(norm_over(wide(input), order, dims, keepdim), input.dtype)


def _vector_norm(input: Tensor, order: Any, dim: Any, keepdim: bool, dtype: Any, out: Any) -> Any:
    dims = normalize_dims(dim, input.ndim, "linalg.vector_norm")
    _check_norm(input, order, dims, dtype, dim is None)
    if dtype is not None and dtype_name(dtype) != dtype_name(input.dtype):
        input = p.convert(input, dtype_name(dtype))
    return norm_along(input, float(order), dims, bool(keepdim), **into(out))


@public(
    "linalg.vector_norm",
    samples=d.samples(
        _matrices((3, 5)),
        lambda rng, t: ((*_matrices((3, 5))(rng, t)[0], 1), {"dim": 1, "keepdim": True}),
        lambda rng, t: ((*_matrices((3, 5))(rng, t)[0], 3.5, (0, 1)), {}),
        lambda rng, t: ((*_matrices((3, 0))(rng, t)[0], 0, 1), {}),
    ),
    failures=d.failures(
        ((d.Zeros(2, dtype="int64"),), {}, RuntimeError, "Expected a floating point or complex tensor"),
        ((d.Zeros(0), INFINITY), {}, RuntimeError, "not have an identity"),
        ((d.Zeros(2), 2, 5), {}, IndexError, "Dimension out of range"),
    ),
    dtypes="float",
    tests=d.Tests(history="of order 0 the gradient is zeros; PyTorch has none"),
)
def vector_norm(
    x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, out: Any = None
) -> Any:
    """The norm of any order over `dim` (None: of all elements, flat); its derivative at 0 is 0.

    RuntimeError for integers, and for an order <= 0 or infinite of nothing.

    >>> kiln.linalg.vector_norm(kiln.tensor([3.0, -4.0]))
    tensor(5.)
    """
    return _vector_norm(x, ord, dim, keepdim, dtype, out)


def _check_matrix_norm(A: Tensor, ord: Any) -> None:
    name = "linalg.matrix_norm"
    check(A, name, False, short=ord not in ("nuc", 2, -2))
    known = ord in ("fro", "nuc") if isinstance(ord, str) else abs(ord) in (1, 2, INFINITY)
    if not known:
        raise RuntimeError(f"{name}: Order {ord} not supported.")


def _extreme(x: Tensor, dim: int, ord: Any, keepdim: bool = False) -> Any:
    """The largest along dim, for a negative order the smallest; 0 of none."""
    if x.shape[dim] == 0:
        return x.sum(dim, keepdim)
    return x.amax(dim, keepdim) if ord > 0 else x.amin(dim, keepdim)


def _matrix_norm(A: Tensor, ord: Any, dim: Any, keepdim: bool, dtype: Any) -> Any:
    _check_matrix_norm(A, ord)
    if len(dim) != 2:
        raise RuntimeError(f"linalg.matrix_norm: dim must be a 2-tuple. Got {list(dim)}")
    rows, columns = (normalize_dim(k, A.ndim, "linalg.matrix_norm") for k in dim)
    if rows == columns:
        raise RuntimeError(f"linalg.matrix_norm: dims must be different. Got ({dim[0]}, {dim[1]})")
    if ord == "fro":
        return _vector_norm(A, 2, (rows, columns), keepdim, dtype, None)
    if dtype is not None:
        A = p.convert(A, dtype_name(dtype))
    if ord in ("nuc", 2, -2):
        s = singular_values(movedim(A, (rows, columns), (-2, -1)), "linalg.matrix_norm")
        y = s.sum(-1) if ord == "nuc" else _extreme(s, -1, ord)
        return unsqueeze(unsqueeze(y, min(rows, columns)), max(rows, columns)) if keepdim else y
    summed, chosen = (rows, columns) if abs(ord) == 1 else (columns, rows)
    y = _extreme(A.abs().sum(summed, True), chosen, ord, True)
    if keepdim:
        return y
    return reshape(y, tuple(n for k, n in enumerate(y.shape) if k not in (rows, columns)))


forms(
    "linalg.matrix_norm",
    "(A, ord: float | str = 'fro', dim: Sequence[int] = (-2, -1), keepdim=False, *, dtype=None, out=None)",
)


@public(
    "linalg.matrix_norm",
    samples=d.samples(
        rows_of((3, 2), nothing),
        lambda rng, t: ((*rows_of((2, 3, 2), nothing)(rng, t)[0], 1), {"dim": (2, 0), "keepdim": True}),
        lambda rng, t: ((*rows_of((2, 3, 2), nothing)(rng, t)[0], "nuc"), {}),
        lambda rng, t: ((*rows_of((3, 3), nothing)(rng, t)[0], -2), {"keepdim": True}),
    ),
    failures=d.failures(
        ((d.Zeros(2),), {}, RuntimeError, "at least 2 dimensions"),
        ((d.Zeros(2, 2), 3), {}, RuntimeError, "Order 3 not supported"),
        ((d.Zeros(2, 2), 2, (0, 0)), {}, RuntimeError, "dims must be different"),
    ),
    **LAPACK,
)
def matrix_norm(
    A: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None,
    out: Any = None,
) -> Any:  # fmt: skip
    """Norms of the matrices in two dims: "fro", "nuc", +-1, +-2, +-infinity; RuntimeError for another order.

    >>> kiln.linalg.matrix_norm(kiln.tensor([[3.0, 0.0], [0.0, 4.0]]), 2)
    tensor(4.)
    """
    return given(_matrix_norm(A, ord, dim, keepdim, dtype), out)


@public(
    "linalg.norm",
    samples=d.samples(
        _matrices((3, 5)),
        lambda rng, t: (rows_of((3, 2), nothing)(rng, t)[0], {"ord": 2}),
        lambda rng, t: (rows_of((3, 2), nothing)(rng, t)[0], {"ord": 1, "dim": 0}),
    ),
    failures=d.failures(
        ((d.Zeros(2, 2, 2), 2), {}, RuntimeError, "the input must be 1D or 2D"),
        ((d.Zeros(2, 2), "x"), {}, RuntimeError, "Order x not supported"),
    ),
    **LAPACK,
)
def norm(
    input: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, out: Any = None, dtype: Any = None
) -> Any:
    """A matrix norm where `dim` names two dims (or the input has two and `ord` is given), else a vector norm.

    RuntimeError for an order that does not exist.

    >>> kiln.linalg.norm(kiln.tensor([[3.0, 0.0], [0.0, 4.0]]))
    tensor(5.)
    """
    if not (dim is None or isinstance(dim, int) or len(dim) in (1, 2)):
        raise RuntimeError(f"linalg.norm: If dim is specified, it must be of length 1 or 2. Got {list(dim)}")
    if ord is None:
        return _vector_norm(input, 2, dim, keepdim, dtype, out)
    if dim is None:
        if input.ndim not in (1, 2):
            raise RuntimeError(
                "linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got "
                f"{input.ndim}D."
            )
        dim = tuple(range(input.ndim))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    if len(dims) == 2:
        return matrix_norm(input, ord, dims, keepdim, dtype=dtype, out=out)
    if isinstance(ord, str):
        raise RuntimeError(f"linalg.matrix_norm: dim must be a 2-tuple. Got {list(dims)}")
    return _vector_norm(input, ord, dims, keepdim, dtype, out)


forms("linalg.cond", "(A, p: float | str | None = None)")


@linear("cond", differs="derivatives of every order; PyTorch's not for every `p`", samples=d.samples(
    rows_of((3, 2), nothing),
    lambda rng, t: (rows_of((2, 3, 3), nothing)(rng, t)[0], {"p": 1}),
    lambda rng, t: (rows_of((3, 3), nothing)(rng, t)[0], {"p": -2}),
), failures=d.failures(((d.Zeros(2, 2), "x"), {}, RuntimeError, "got an invalid norm type"), BAD[1]),
    **LAPACK, tests=d.Tests(peer_gradient=False))  # fmt: skip
def cond(A: Tensor, p: Any = None) -> Any:
    """The condition numbers in a matrix norm (None: 2): infinity for singular matrices.

    RuntimeError for another norm, and for one but 2 and -2 of matrices that are not square.

    >>> kiln.linalg.cond(kiln.tensor([[4.0, 0.0], [0.0, 2.0]]))
    tensor(2.)
    """
    check(A, "linalg.cond", False)
    if 0 in A.shape[-2:]:
        return run(full, 0, tuple(A.shape[:-2]), dtype_name(A.dtype))
    if p in (None, 2, -2):
        s = singular_values(A, "linalg.cond")
        first, last = s[..., 0], s[..., -1]
        return last / first if p == -2 else first / last
    if not (p in ("fro", "nuc") if isinstance(p, str) else abs(p) in (1, INFINITY)):
        raise RuntimeError(f"linalg.cond got an invalid norm type: {p}")
    check(A, "linalg.cond")
    y, info = inverse_of(A, "linalg.cond")
    if info is None:
        return matrix_norm(A, p) * matrix_norm(y, p)
    lost = outside("linalg.cond", lambda: (info != 0,), None)[0]
    sound = where(reshape(lost, (*lost.shape, 1, 1)), 0, y)
    return where(lost, INFINITY, matrix_norm(A, p) * matrix_norm(sound, p))


def _tensor_check(size: Any, other: Tensor, what: str) -> None:
    if size != other:
        raise RuntimeError(
            f"Expected self to satisfy the requirement prod(self.shape[{what}:]) == "
            f"prod(self.shape[:{what}]), but got {size} != {other}"
        )


@linear("tensorinv", samples=d.samples(
    lambda rng, t: ((reshape_array(rows_of((6, 6), nothing)(rng, t)[0][0], (2, 3, 6)),), {}),
), failures=d.failures(((d.Zeros(2, 3),), {"ind": 1}, RuntimeError, "satisfy the requirement"),
                       ((d.Zeros(2, 3), 0), {}, RuntimeError, "strictly positive")),
    tests=d.Tests(regular=True), **LAPACK)  # fmt: skip
def tensorinv(A: Tensor, ind: int = 2) -> Any:
    """The inverse of A as a map from its dims from `ind` on to those before, which hold as many elements.

    >>> kiln.linalg.tensorinv(kiln.eye(4).reshape(2, 2, 4)).shape
    kiln.Size([4, 2, 2])
    """
    if ind <= 0:
        raise RuntimeError("Expected a strictly positive integer for 'ind'")
    left, right = tuple(A.shape[:ind]), tuple(A.shape[ind:])
    n = product_of(left)
    _tensor_check(product_of(right), n, "ind")
    return reshape(inverse(reshape(A, (n, n)), "linalg.inv"), (*right, *left))


def reshape_array(array: Any, shape: tuple[int, ...]) -> Any:
    """An array of a sample in another shape."""
    return array.reshape(shape)


@linear("tensorsolve", samples=d.samples(
    lambda rng, t: ((reshape_array(rows_of((6, 6), nothing)(rng, t)[0][0], (2, 3, 6)),
                     d.array(rng, (2, 3), t, -1, 1)), {}),
), failures=d.failures(((d.Zeros(2, 3, 6), d.Zeros(2, 2)), {}, RuntimeError, "requirement")),
    **LAPACK, tests=d.Tests(regular=True))  # fmt: skip
def tensorsolve(A: Tensor, B: Tensor, dims: Any = None) -> Any:
    """X with tensordot(A, X, X.ndim) = B; `dims` of A are moved to its end first.

    RuntimeError unless they fit.

    >>> kiln.linalg.tensorsolve(kiln.eye(4).reshape(2, 2, 4), kiln.ones(2, 2))
    tensor([1., 1., 1., 1.])
    """
    if dims is not None:
        moved = [normalize_dim(k, A.ndim, "linalg.tensorsolve") for k in dims]
        A = movedim(A, moved, list(range(A.ndim - len(moved), A.ndim)))
    right = tuple(A.shape[B.ndim :])
    n = B.numel()
    _tensor_check(product_of(right), product_of(tuple(A.shape[: B.ndim])), "other.ndim")
    _tensor_check(product_of(right), n, "other.ndim")
    matrix, column = reshape(A, (n, n)), reshape(B, (n, 1))
    check(matrix, "linalg.tensorsolve")
    check(column, "linalg.tensorsolve", square=False, letter="B")
    return reshape(solve_matrices(matrix, column), right)


@public(
    "linalg.vecdot",
    samples=d.samples(
        _matrices((3, 5), (3, 5)), lambda rng, t: (_matrices((3, 2), (1, 2))(rng, t)[0], {"dim": 0})
    ),
    failures=d.failures(((d.Zeros(2, 3), d.Zeros(2, 4)), {}, RuntimeError, "must match the size")),
    dtypes="float",
)  # fmt: skip
def vecdot(x: Any, y: Any, *, dim: int = -1, out: Any = None) -> Any:
    """The sums of products along `dim`; the other dims broadcast. RuntimeError for sizes that do not fit,
    integers, and two dtypes.

    >>> kiln.linalg.vecdot(kiln.tensor([1.0, 2.0]), kiln.tensor([3.0, 4.0]))
    tensor(11.)
    """
    kinds = [dtype_name(t.dtype) for t in (x, y)]
    if not is_float(x):
        raise RuntimeError(
            f"linalg.vecdot: Expected a floating point or complex tensor as input. Got {type_name(kinds[0])}"
        )
    if kinds[0] != kinds[1]:
        raise RuntimeError(
            "linalg.vecdot: Expected x and y to have the same dtype, but found x of type "
            f"{type_name(kinds[0])} and y of type {type_name(kinds[1])} instead"
        )
    return given(sum_(p.mul(x, y), dim), out)


@public(
    "linalg.vander",
    samples=d.samples(_matrices((3,)), lambda rng, t: (_matrices((2, 3))(rng, t)[0], {"N": 2})),
    failures=d.failures(((d.Zeros(2),), {"N": 1}, RuntimeError, "greater than 1")),
    dtypes="float32 float64 int64",
    tests=d.Tests(history="of two columns the gradient has a history as any other's"),
)
def vander(x: Any, *, N: int | None = None) -> Any:
    """The powers 0, 1, ... N - 1 of each element (by default as many as there are): [.., n] -> [.., n, N].

    Integers give int64. RuntimeError for bool, or N < 2.

    >>> kiln.linalg.vander(kiln.tensor([2, 3]), N=3)
    tensor([[1, 2, 4],
            [1, 3, 9]])
    """
    if dtype_name(x.dtype) == "bool":
        raise RuntimeError(
            "linalg.vander supports floating point, complex, and integer tensors, but got Bool"
        )
    count = (x.shape[-1] if x.ndim else 1) if N is None else N
    if count <= 1:
        raise RuntimeError("N must be greater than 1.")
    x = x if is_float(x) else p.convert(x, "int64")
    x = unsqueeze(x if x.ndim else unsqueeze(x, 0), -1)
    powers = registry.function("cumprod")(expand(x, (*x.shape[:-1], count - 1)), -1)
    return _concat([p.pow(x, 0), powers], x.ndim - 1)
