"""More factors of matrices: LDL, Householder reflections, and those of low rank by random projection."""

from __future__ import annotations

from typing import Any

from kiln.errors import warn
from kiln.ops.linalg import lapack
from kiln.ops.linalg.decompositions import qr, svd_parts
from kiln.ops.linalg.matrices import householder_product, lu_factor, lu_factor_ex
from kiln.ops.linalg.outside import outside, scipy_linalg
from kiln.ops.linalg.systems import check, linear, matmul, together
from kiln.ops.named_results import named
from kiln.ops.products.matrix_products import swapped
from kiln.ops.random import sampling
from kiln.ops.views.core_views import broadcast_to
from kiln.table import drawn as d
from kiln.table import registry
from kiln.table.arguments import MOST_STEPS, expect_count
from kiln.table.callables import draws
from kiln.table.public import public
from kiln.table.record import Tensor
from kiln.table.registry import forms


@linear(
    "diagonal",
    dtypes="float32 int64",
    samples=d.samples(lambda rng, t: ((d.array(rng, (2, 3, 4), t),), {"offset": 1})),
    failures=d.failures(((d.Zeros(2),), {}, IndexError, "Dimension out of range")),
)
def diagonal_of(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """The diagonals of matrices, as a view.

    >>> kiln.linalg.diagonal(kiln.tensor([[1, 2], [3, 4]]))
    tensor([1, 4])
    """
    return registry.function("diagonal")(A, offset, dim1, dim2)


@linear(
    "matmul",
    dtypes="float32 int64",
    samples=d.samples(lambda rng, t: ((d.array(rng, (2, 3), t), d.array(rng, (3, 4), t)), {})),
    failures=d.failures(((d.Zeros(2, 3), d.Zeros(2, 3)), {}, RuntimeError, "shapes")),
)
def matmul_of(input: Tensor, other: Tensor) -> Any:
    """The product of matrices, as kiln.matmul.

    >>> kiln.linalg.matmul(kiln.ones(1, 2), kiln.ones(2, 1))
    tensor([[2.]])
    """
    return matmul(input, other)


def _refuse_gradient(x: Tensor, name: str) -> None:
    """NotImplementedError where a gradient would be lost."""
    if x.requires_grad:
        raise NotImplementedError(f"{name}: has no derivative; call it on x.detach()")


def _routine(name: str, array: Any, op: str) -> Any:
    """SciPy's LAPACK routine for an array's dtype."""
    return getattr(scipy_linalg(op).lapack, ("s" if array.dtype == "float32" else "d") + name)


def _ldl(A: Any, name: str) -> list[Any]:
    check(A, name)
    _refuse_gradient(A, name)

    def compute(a: Any) -> Any:
        import numpy as np

        routine = _routine("sytrf", a, name)

        def of_one(x: Tensor) -> Any:
            if not x.size:
                return x, np.zeros(0, "int32"), np.int32(0)
            factor, pivots, info = routine(x, lower=1)
            return np.tril(factor), pivots.astype("int32"), np.int32(info)

        return lapack.batched(of_one, name, a)

    return outside(name, compute, None, A)


forms("linalg.ldl_factor", "-> LD, pivots")


@linear("ldl_factor", differentiable=False, needs="scipy")
def ldl_factor(A: Tensor, *, hermitian: bool = False) -> Any:
    """(LD, pivots) of symmetric A = L D L^T, in LAPACK's form; the lower triangle is read.

    RuntimeError for a D that is singular. Needs SciPy.

    >>> kiln.linalg.ldl_factor(kiln.tensor([[4.0, 2.0], [2.0, 3.0]])).LD
    tensor([[4.0000, 0.0000],
            [0.5000, 2.0000]])
    """
    factor, pivots, info = _ldl(A, "linalg.ldl_factor")
    if bool((info != 0).any()):
        raise RuntimeError("torch.linalg.ldl_factor: the factor D is singular; see linalg.ldl_factor_ex")
    return named("linalg_ldl_factor", factor, pivots)


forms("linalg.ldl_factor_ex", "-> LD, pivots, info")


@linear("ldl_factor_ex", differentiable=False, needs="scipy")
def ldl_factor_ex(A: Tensor, *, hermitian: bool = False, check_errors: bool = False) -> Any:
    """(LD, pivots, info): `ldl_factor` that says in `info` where D's first zero is. Needs SciPy.

    >>> kiln.linalg.ldl_factor_ex(kiln.zeros(1, 1)).info
    tensor(1, dtype=kiln.int32)
    """
    if check_errors:
        ldl_factor(A)
    return named("linalg_ldl_factor_ex", *_ldl(A, "linalg.ldl_factor_ex"))


@linear("ldl_solve", differs="no derivative by LD", needs="scipy")
def ldl_solve(LD: Any, pivots: Any, B: Any, *, hermitian: bool = False) -> Any:
    """X with A X = B, from A's LDL factor. Needs SciPy.

    >>> LD, pivots = kiln.linalg.ldl_factor(kiln.tensor([[4.0, 2.0], [2.0, 3.0]]))
    >>> kiln.linalg.ldl_solve(LD, pivots, kiln.tensor([[8.0], [8.0]]))
    tensor([[1.],
            [2.]])
    """
    name = "linalg.ldl_solve"
    check(LD, name)
    check(B, name, False, "B")
    _refuse_gradient(LD, name)
    LD, B = together(LD, B, name)
    pivots = broadcast_to(pivots, tuple(LD.shape[:-1]))

    def compute(factor: Any, order: Any, b: Any) -> Any:
        import numpy as np

        routine = _routine("sytrs", factor, name)

        def of_one(x: Tensor, rows: Any, y: Tensor) -> Any:
            return (routine(x, rows[0], y, lower=1)[0] if y.size else np.empty_like(y),)

        return lapack.batched(of_one, name, factor, order[..., None, :], b)

    def back(grads: Any, factor: Any, order: Any, _b: Any, _x: Any) -> Any:
        return None, None, ldl_solve(factor, order, grads[0])

    return outside(name, compute, back, LD, pivots, B)[0]


forms("geqrf", "-> a, tau")


@public("geqrf", dtypes="float32 float64", differentiable=False, needs="scipy")
def geqrf(input: Any, *, out: Any = None) -> Any:
    """(a, tau): R on and above the diagonal, the vectors of Q's reflections below, and their scales. Needs
    SciPy.

    >>> kiln.geqrf(kiln.tensor([[3.0], [4.0]])).tau
    tensor([1.6000])
    """
    check(input, "geqrf", False)
    _refuse_gradient(input, "geqrf")

    def compute(a: Any) -> Any:
        import numpy as np

        routine = _routine("geqrf", a, "geqrf")

        def of_one(x: Tensor) -> Any:
            if not x.size:
                return x, np.zeros(min(x.shape), x.dtype)
            return routine(x)[:2]

        return lapack.batched(of_one, "geqrf", a)

    found = outside("geqrf", compute, None, input)
    return named("geqrf", *(found if out is None else [o.copy_(f) for o, f in zip(out, found)]))


@public(
    "ormqr",
    dtypes="float32 float64",
    failures=d.failures(
        ((d.Zeros(2), d.Zeros(1), d.Zeros(2, 1)), {}, RuntimeError, "input must have at least 2 dim"),
        ((d.Zeros(2, 1), d.Zeros(1), d.Zeros(2)), {}, RuntimeError, "other must have at least 2 dim"),
        ((d.Zeros(2, 1), d.Zeros(2), d.Zeros(2, 1)), {}, RuntimeError, "must be equal to"),
    ),
)
def ormqr(
    input: Any, tau: Any, other: Any, left: bool = True, transpose: bool = False, *, out: Any = None
) -> Any:
    """`other` times the square Q of the reflections that `geqrf` gives: Q C, or C Q; Q^T if `transpose`.

    >>> a, tau = kiln.geqrf(kiln.tensor([[3.0], [4.0]]))
    >>> kiln.ormqr(a, tau, kiln.tensor([[3.0], [4.0]]), transpose=True).abs().round(decimals=4)
    tensor([[5.],
            [0.]])
    """
    if input.ndim < 2 or other.ndim < 2:
        which = "input" if input.ndim < 2 else "other"
        raise RuntimeError(f"ormqr: {which} must have at least 2 dimensions.")
    size = min(other.shape[-2 if left else -1], input.shape[-1])
    if tau.shape[-1:] != (size,):
        across = "other.shape[-2]" if left else "other.shape[-1]"
        raise RuntimeError(
            f"ormqr: tau.shape[-1] must be equal to min({across}, input.shape[-1]): expected {size}, got "
            f"{tau.shape[-1] if tau.ndim else 'no dims'}"
        )
    check(input, "ormqr", False)
    m, n = input.shape[-2:]
    square = input
    if n < m:  # columns of no reflection make Q square
        square = _padded(input, m)
    q = householder_product(square[..., :, :m], tau)
    q = swapped(q) if transpose else q
    found = matmul(q, other) if left else matmul(other, q)
    return found if out is None else out.copy_(found)


def _padded(x: Tensor, columns: int) -> Any:
    """A matrix with zeros behind its columns."""
    base = x.new_zeros((*x.shape[:-1], columns - x.shape[-1]))
    return registry.function("cat")([x, base], -1)


forms(
    "lu",
    "(A, pivot=True, get_infos: Literal[False] = False, "
    "out: Sequence[Tensor] | None = None) -> tuple[Tensor, Tensor]",
    "(A, pivot=True, *, get_infos: Literal[True], out: Sequence[Tensor] | None = None) -> LU, pivots, info",
)


@public("lu", dtypes="float32 float64", needs="scipy")
def lu(A: Any, pivot: bool = True, get_infos: bool = False, out: Any = None) -> Any:
    """(LU, pivots), or (LU, pivots, info) with `get_infos`: kiln.linalg.lu_factor and lu_factor_ex.

    >>> kiln.lu(kiln.tensor([[0.0, 1.0], [2.0, 0.0]]))[1]
    tensor([2, 2], dtype=kiln.int32)
    """
    warn("torch.lu is deprecated in favor of torch.linalg.lu_factor and torch.linalg.lu_factor_ex")
    if get_infos:
        return named("_lu_with_info", *lu_factor_ex(A, pivot=pivot, out=out))
    return tuple(lu_factor(A, pivot=pivot, out=out))


def _range_of(A: Tensor, q: int, niter: int) -> Any:
    """An orthonormal basis [.., m, q] that nearly spans A's columns, by random projection."""
    expect_count("svd_lowrank", niter, "iterations", MOST_STEPS)
    start = sampling.randn(A.shape[-1], q, dtype=A.dtype)
    basis = qr(matmul(A, start)).Q
    for _ in range(niter):
        basis = qr(matmul(A, qr(matmul(swapped(A), basis)).Q)).Q
    return basis


forms("svd_lowrank", "-> tuple[Tensor, Tensor, Tensor]")


@public("svd_lowrank", method=False, dtypes="float32 float64")
@draws
def svd_lowrank(A: Any, q: int | None = 6, niter: int | None = 2, M: Any = None) -> Any:
    """(U, S, V) with A (less M, if given) nearly U diag(S) V^T, of rank q: [.., m, q], [.., q], [.., n, q].

    Exact where A's rank is q or less; random numbers are drawn.

    >>> kiln.svd_lowrank(kiln.eye(4) * 2, q=3)[1]
    tensor([2., 2., 2.])
    """
    A = A if M is None else A - M
    m, n = A.shape[-2:]
    q = min(6, m, n) if q is None else q
    if q < 0:
        raise ValueError(f"svd_lowrank: expected q >= 0, got {q}")
    basis = _range_of(A, q, 2 if niter is None else niter)
    u, s, vh = svd_parts(matmul(swapped(basis), A))
    return matmul(basis, u), s, swapped(vh)


forms("pca_lowrank", "-> tuple[Tensor, Tensor, Tensor]")


@public("pca_lowrank", method=False, dtypes="float32 float64")
@draws
def pca_lowrank(A: Any, q: int | None = None, center: bool = True, niter: int = 2) -> Any:
    """(U, S, V): `svd_lowrank` of A, its columns' means taken off if `center`; V holds the principal
    directions.

    ValueError for q or niter out of range.

    >>> kiln.pca_lowrank(kiln.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 0.0]]), q=1)[1]
    tensor([2.8284])
    """
    m, n = A.shape[-2:]
    q = min(6, m, n) if q is None else q
    if not 0 <= q <= min(m, n):
        raise ValueError(f"q(={q}) must be non-negative integer and not greater than min(m, n)={min(m, n)}")
    if niter < 0:
        raise ValueError(f"niter(={niter}) must be non-negative integer")
    return svd_lowrank(A - A.mean(-2, True) if center else A, q, niter)
