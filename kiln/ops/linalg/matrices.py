"""Linear algebra made of factorizations: LU, least squares, pseudo-inverses, ranks, powers."""

from __future__ import annotations

from typing import Any

from kiln.errors import warn
from kiln.ops.creation import constants
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise import comparison
from kiln.ops.linalg import lapack
from kiln.ops.linalg.decompositions import eigvalsh, singular_values, svd_parts
from kiln.ops.linalg.outside import outside, scipy_linalg
from kiln.ops.linalg.systems import (
    BAD,
    LAPACK,
    _check_sides,
    _is_vector,
    check,
    eye_like,
    inverse,
    linear,
    lower,
    matmul,
    nothing,
    right,
    rows_of,
    same,
    solve_matrices,
    together,
    triangular,
    upper_,
)
from kiln.ops.named_results import named
from kiln.ops.products.matrix_products import swapped
from kiln.ops.views.core_views import broadcast_to, squeeze, unsqueeze
from kiln.table import drawn as d
from kiln.table.arguments import dtype_name
from kiln.table.public import alias, public
from kiln.table.record import Tensor, find
from kiln.table.registry import forms

_concat = find("concat").handle
_EPS = {"float32": 2.0**-23, "float64": 2.0**-52}


# LU


def parts_of_lu(factor: Any) -> tuple[Any, Any]:
    """L, with its ones, and U of LU as one matrix."""
    m, n = factor.shape[-2:]
    k = min(m, n)
    left = lower(factor[..., :, :k], -1)
    ones = eye_like(factor, max(m, k))[:, :k] if m >= k else eye_like(factor, k)
    return left + ones, upper_(factor[..., :k, :])


def _lu_back(grads: Any, _a: Any, factor: Any, pivots: Tensor, *rest: Any) -> Any:
    (m, n), g = factor.shape[-2:], grads[0]
    k = min(m, n)
    left, up = parts_of_lu(factor)
    gl, gu = lower(g[..., :, :k], -1), upper_(g[..., :k, :])
    l1, u1 = left[..., :k, :], up[..., :, :k]
    low = matmul(swapped(l1), gl[..., :k, :])
    high = matmul(gu[..., :, :k], swapped(u1))
    if n > m:
        u2, gu2 = up[..., :, k:], gu[..., :, k:]
        low = low - matmul(gu2, swapped(u2))
    if m > n:
        l2, gl2 = left[..., k:, :], gl[..., k:, :]
        high = high - matmul(swapped(l2), gl2)
    inner = triangular(swapped(u1), lower(low, -1) + upper_(high), False, left=False)
    flow = triangular(swapped(l1), inner, True, unit=True)
    if n > m:
        flow = _concat([flow, triangular(swapped(l1), gu2, True, unit=True)], factor.ndim - 1)
    if m > n:
        flow = _concat([flow, triangular(swapped(u1), gl2, False, left=False)], factor.ndim - 2)
    return (matmul(_permutation(pivots, m, factor), flow),)


def _permutation(pivots: Tensor, m: int, like: Any) -> Any:
    dtype = dtype_name(like.dtype)
    return outside("lu", lambda x: (lapack.permutation(x, m, dtype),), None, pivots)[0]


def _lu(A: Tensor, pivot: bool, name: str) -> list[Any]:
    check(A, name, False)
    if not pivot:
        raise RuntimeError(f"{name}: LU without pivoting is not implemented on the CPU")
    return outside(name, lambda x: lapack.lu(x, name), _lu_back, A)


_TALL = d.samples(rows_of((3, 3), nothing), rows_of((2, 3, 2), nothing), rows_of((2, 3), nothing))


forms("linalg.lu_factor", "-> LU, pivots")


@linear(
    "lu_factor", samples=_TALL, failures=d.failures(BAD[1], BAD[2]), **LAPACK, tests=d.Tests(regular=True)
)
def lu_factor(A: Tensor, *, pivot: bool = True) -> Any:
    """(LU, pivots): L below the diagonal and U of A = P L U, and which rows were swapped, from 1 (int32).

    RuntimeError if U has a zero on its diagonal. Needs SciPy.

    >>> kiln.linalg.lu_factor(kiln.tensor([[0.0, 1.0], [2.0, 0.0]])).pivots
    tensor([2, 2], dtype=kiln.int32)
    """
    factor, pivots, info = _lu(A, pivot, "linalg.lu_factor")
    if bool((info != 0).any()):
        k = next(v for v in info.flatten().tolist() if v)
        raise RuntimeError(
            f"torch.linalg.lu_factor: U[{k},{k}] is zero and using it on lu_solve would result in a division "
            "by zero. If you still want to perform the factorization, consider calling linalg.lu(A, pivot) "
            "or linalg.lu_factor_ex(A, pivot)"
        )
    return named("linalg_lu_factor", factor, pivots)


forms("linalg.lu_factor_ex", "-> LU, pivots, info")


@linear("lu_factor_ex")
def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> Any:
    """(LU, pivots, info): `lu_factor` that says in `info` where U's first zero is. Needs SciPy.

    >>> kiln.linalg.lu_factor_ex(kiln.zeros(1, 1)).info
    tensor(1, dtype=kiln.int32)
    """
    if check_errors:
        lu_factor(A, pivot=pivot)
    factor, pivots, info = _lu(A, pivot, "linalg.lu_factor_ex")
    return named("linalg_lu_factor_ex", factor, pivots, info)


forms("linalg.lu", "-> P, L, U")


@linear("lu", samples=_TALL, failures=d.failures(BAD[1], BAD[2]), **LAPACK)
def lu(A: Tensor, *, pivot: bool = True) -> Any:
    """(P, L, U) with A = P L U: [.., m, n] -> [.., m, m], [.., m, k], [.., k, n]. Needs SciPy.

    >>> kiln.linalg.lu(kiln.tensor([[0.0, 1.0], [2.0, 0.0]])).U
    tensor([[2., 0.],
            [0., 1.]])
    """
    factor, pivots, _ = _lu(A, pivot, "linalg.lu")
    left, up = parts_of_lu(factor)
    return named("linalg_lu", _permutation(pivots, A.shape[-2], A), left, up)


forms("lu_unpack", "-> P, L, U")


@public("lu_unpack", method=False, dtypes="float32 float64")
def lu_unpack(
    LU_data: Any, LU_pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True, *, out: Any = None
) -> Any:
    """(P, L, U) of what `lu_factor` gives; what is not asked for is empty.

    >>> kiln.lu_unpack(kiln.eye(1), kiln.ones(1, dtype=kiln.int32)).L
    tensor([[1.]])
    """
    if unpack_pivots and dtype_name(LU_pivots.dtype) != "int32":
        raise RuntimeError("lu_unpack: LU_pivots is expected to be a contiguous tensor of int32")
    none = constants.zeros((0,), dtype=LU_data.dtype)
    left, up = parts_of_lu(LU_data) if unpack_data else (none, none)
    order = _permutation(LU_pivots, LU_data.shape[-2], LU_data) if unpack_pivots else none
    return named("lu_unpack", *p.written((order, left, up), out))


@linear("lu_solve")
def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Any:
    """X with A X = B (or X A = B; or of A's transpose) from what `lu_factor(A)` gives.

    RuntimeError for sizes that do not fit. Needs SciPy.

    >>> kiln.linalg.lu_solve(*kiln.linalg.lu_factor(kiln.full((1, 1), 2.0)), kiln.ones(1, 1))
    tensor([[0.5000]])
    """
    name = "linalg.lu_solve"
    check(LU, name)
    same(LU, B, name)
    check(B, name, False, "B")
    _check_sides(LU, B, left, name)
    factor, b = together(LU, B, name)
    order = broadcast_to(pivots, tuple(factor.shape[:-1]))
    if not left:
        adjoint, b = not adjoint, swapped(b)
    if LU.requires_grad:
        low, up = parts_of_lu(factor)
        a = matmul(_permutation(order, LU.shape[-1], LU), matmul(low, up))
        x = solve_matrices(swapped(a) if adjoint else a, b)
    else:
        x = _lu_solved(factor, order, b, adjoint)
    return x if left else swapped(x)


def _lu_solved(factor: Any, pivots: Tensor, b: Tensor, adjoint: bool) -> Any:
    def back(grads: Any, _b: Any, _x: Any) -> Any:
        return (_lu_solved(factor, pivots, grads[0], not adjoint),)

    lu_, order = factor.detach().numpy(), pivots.numpy()
    return outside(
        "linalg.lu_solve", lambda y: lapack.lu_solve(lu_, order, y, adjoint, "linalg.lu_solve"), back, b
    )[0]


@public("lu_solve", dtypes="float32 float64")
def lu_solve_of(b: Any, LU_data: Any, LU_pivots: Any, *, out: Any = None) -> Any:
    """X with A X = b, from what `lu_factor(A)` gives. Needs SciPy.

    >>> kiln.lu_solve(kiln.ones(1, 1), *kiln.linalg.lu_factor(kiln.full((1, 1), 2.0)))
    tensor([[0.5000]])
    """
    warn("torch.lu_solve is deprecated in favor of torch.linalg.lu_solve, which takes b last")
    return lu_solve(LU_data, LU_pivots, b, out=out)


forms("triangular_solve", "-> solution, cloned_coefficient")


@public("triangular_solve", dtypes="float32 float64")
def triangular_solve(
    b: Any,
    A: Any,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
    *,
    out: Any = None,
) -> Any:
    """(solution, cloned_coefficient): X with A X = b of a triangular A, and A. Needs SciPy.

    >>> kiln.triangular_solve(kiln.ones(1, 1), kiln.full((1, 1), 2.0)).solution
    tensor([[0.5000]])
    """
    warn(
        "torch.triangular_solve is deprecated in favor of torch.linalg.solve_triangular, which takes A first"
    )
    check(A, "triangular_solve")
    same(A, b, "triangular_solve")
    _check_sides(A, b, True, "triangular_solve")
    a, y = together(A, b, "triangular_solve")
    x = (
        triangular(swapped(a), y, not upper, unit=unitriangular)
        if transpose
        else triangular(a, y, upper, unit=unitriangular)
    )
    return named("triangular_solve", *p.written((x, p.clone(A)), out))


# Pseudo-inverses, ranks, least squares


def _tolerance(A: Tensor, largest: Any, atol: Any, rtol: Any) -> Any:
    """Below which singular values count as 0."""
    if rtol is None:
        known = atol is not None and (hasattr(atol, "shape") or atol > 0)
        rtol = 0.0 if known else _EPS[dtype_name(A.dtype)] * max(A.shape[-2:])
    scaled = largest * (unsqueeze(rtol, -1) if hasattr(rtol, "shape") and rtol.ndim else rtol)
    if atol is None:
        return scaled
    atol = unsqueeze(atol, -1) if hasattr(atol, "shape") and atol.ndim else atol
    return p.maximum(scaled, atol)


def _pinv_back(grads: Any, a: Tensor, y: Tensor) -> Any:
    return (_pinv_flow(grads[0], a, y),)


def _pinv_flow(g: Tensor, a: Tensor, y: Tensor) -> Tensor:
    """The gradient of `a` from that of its pseudo-inverse y (Golub and Pereyra)."""
    m, n = a.shape[-2:]
    t, h = swapped(y), swapped(g)
    if m <= n:
        k = matmul(h, y)
        kt = matmul(k, t)
        more = kt - matmul(matmul(a, y), kt) + matmul(matmul(t, y), h - matmul(k, a))
        return more - swapped(matmul(y, k))
    k = matmul(y, h)
    tk = matmul(t, k)
    more = matmul(matmul(h - matmul(a, k), y), t) + tk - matmul(matmul(tk, y), a)
    return more - swapped(matmul(k, y))


def _pinv(A: Tensor, atol: Any, rtol: Any, hermitian: bool = False) -> Any:
    a = _symmetric(A.detach()) if hermitian else A.detach()
    u, s, vh = svd_parts(a, False, "linalg.pinv")
    if not min(A.shape[-2:]):
        return swapped(A) * 1
    kept = p.where(comparison.gt(s, _tolerance(a, s[..., :1], atol, rtol)), 1 / p.where(s != 0, s, 1), 0)
    y = matmul(swapped(vh) * unsqueeze(kept, -2), swapped(u))
    return outside("linalg.pinv", lambda x: (y.numpy(),), _pinv_back, A)[0]


@linear("pinv", samples=d.samples(rows_of((3, 2), nothing), rows_of((2, 2, 3), nothing)),
        failures=d.failures(*BAD[1:]), **LAPACK)  # fmt: skip
def pinv(A: Tensor, rcond: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Any:
    """The pseudo-inverses: [.., m, n] -> [.., n, m].

    Singular values up to max(atol, rtol * largest) count as 0; `rtol` is by default the dtype's eps times the
    larger size.

    >>> kiln.linalg.pinv(kiln.tensor([[2.0], [0.0]]))
    tensor([[0.5000, 0.0000]])
    """
    check(A, "linalg.pinv", hermitian)
    return _pinv(A, atol, rcond if rtol is None else rtol, hermitian)


def _symmetric(a: Tensor) -> Tensor:
    low = lower(a, -1)
    return lower(a) + swapped(low)


@public("pinverse", dtypes="float32 float64")
def pinverse(input: Any, rcond: float = 1e-15) -> Any:
    """The pseudo-inverses; singular values up to rcond times the largest count as 0.

    >>> kiln.pinverse(kiln.tensor([[2.0], [0.0]]))
    tensor([[0.5000, 0.0000]])
    """
    check(input, "linalg.pinv", False)
    return _pinv(input, None, rcond)


@linear("matrix_rank", samples=d.samples(rows_of((3, 2), nothing), rows_of((2, 2, 2), nothing)),
        failures=d.failures(*BAD[1:]), differentiable=False, **LAPACK)  # fmt: skip
def matrix_rank(
    A: Tensor, tol: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None
) -> Any:
    """How many singular values are above max(atol, rtol * largest): int64, [.., m, n] -> [..].

    >>> kiln.linalg.matrix_rank(kiln.ones(2, 2))
    tensor(1)
    """
    check(A, "linalg.matrix_rank", hermitian)
    a = A.detach()
    if not min(a.shape[-2:]):
        return constants.zeros(tuple(a.shape[:-2]), dtype="int64")
    s = eigvalsh(a).abs() if hermitian else singular_values(a, "linalg.matrix_rank")
    if tol is not None:
        atol, rtol = tol, 0.0 if rtol is None else rtol
    return comparison.gt(s, _tolerance(a, s.amax(-1, True), atol, rtol)).sum(-1)


def _lstsq_back(grads: Any, a: Tensor, b: Tensor, _x: Any, *rest: Any) -> Any:
    if grads[0] is None:
        return None, None
    y = _pinv(a, None, None)
    return _pinv_flow(matmul(grads[0], swapped(b)), a, y), matmul(swapped(y), grads[0])


forms("linalg.lstsq", "-> solution, residuals, rank, singular_values")


@linear("lstsq")
def lstsq(A: Tensor, B: Tensor, rcond: Any = None, *, driver: Any = None) -> Any:
    """(solution, residuals, rank, singular_values): X that makes A X - B smallest.

    [.., m, n] and [.., m, k] (or [.., m]); `driver` is "gelsy", "gelsd", "gelss" or "gels" (full rank). What
    a driver does not compute is empty. RuntimeError for another driver and for sizes that do not fit. Needs
    SciPy.

    >>> a, b = kiln.tensor([[1.0], [1.0]]), kiln.tensor([[1.0], [3.0]])
    >>> kiln.linalg.lstsq(a, b).solution
    tensor([[2.0000]])
    """
    name = "torch.linalg.lstsq"
    check(A, name, False)
    same(A, B, name)
    driver = "gelsy" if driver is None else driver
    if driver not in ("gels", "gelsy", "gelsd", "gelss"):
        raise RuntimeError(f"{name}: parameter `driver` should be one of (gels, gelsy, gelsd, gelss)")
    vector = _is_vector(A[..., :, 0] if A.shape[-1] else A, B) or A.ndim - 1 == B.ndim
    b = unsqueeze(B, -1) if vector else B
    (m, n), batch = A.shape[-2:], tuple(A.shape[:-2])
    if b.ndim != A.ndim or b.shape[-2] != m or tuple(b.shape[:-2]) != batch:
        raise RuntimeError(f"{name}: input.size(-2) should match other.size(-2)")
    eps = _EPS[dtype_name(A.dtype)] * max(m, n) if rcond is None else float(rcond)
    x, rank, values = outside(name, lambda x, y: lapack.lstsq(x, y, eps, driver, name), _lstsq_back, A, b)
    empty = constants.zeros((0,), dtype=A.dtype)
    full = m > n and driver != "gelsy" and bool((rank == n).all())
    residual = ((matmul(A, x) - b) ** 2).sum(-2) if full else empty
    return named(
        "linalg_lstsq",
        squeeze(x, -1) if vector else x,
        residual,
        constants.zeros((0,), dtype="int64") if driver == "gels" else rank,
        values.detach() if driver in ("gelsd", "gelss") else empty,
    )


# Powers


@linear("matrix_power", samples=d.samples(
    lambda rng, t: (rows_of((2, 2), right(2))(rng, t)[0][:1] + (3,), {}),
    lambda rng, t: (rows_of((2, 2, 2), right(2))(rng, t)[0][:1] + (2,), {}),
), failures=d.failures(((d.Zeros(2, 3), 2), {}, RuntimeError, "square matrices"),
                       ((d.Zeros(2, 2), 2.0), {}, TypeError, "must be int")), **LAPACK)  # fmt: skip
def matrix_power(A: Tensor, n: int) -> Any:
    """A @ A @ ... n times; of the inverses for a negative n, unit matrices for 0.

    >>> kiln.linalg.matrix_power(kiln.tensor([[1.0, 1.0], [0.0, 1.0]]), 3)
    tensor([[1., 3.],
            [0., 1.]])
    """
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(
            f"linalg_matrix_power(): argument 'n' (position 2) must be int, not {type(n).__name__}"
        )
    m, k = A.shape[-2:] if A.ndim >= 2 else (0, 1)
    if m != k:
        check(A, "linalg.matrix_power")
    if n == 0:
        return p.overwrite(A, eye_like(A, m))  # of A, whose gradient is zeros
    if n < 0:
        A, n = inverse(A, "linalg.inv"), -n
    result = None
    while True:
        if n & 1:
            result = A if result is None else matmul(result, A)
        n >>= 1
        if not n:
            return p.clone(result) if result is A else result
        A = matmul(A, A)


def _exp_back(grads: Any, a: Tensor, _y: Any) -> Any:
    n, t = a.shape[-1], swapped(a)
    zeros = constants.zeros(tuple(a.shape), dtype=a.dtype)
    rows = [_concat([t, grads[0]], a.ndim - 1), _concat([zeros, t], a.ndim - 1)]
    return (matrix_exp(_concat(rows, a.ndim - 2))[..., :n, n:],)


@linear("matrix_exp", samples=d.samples(rows_of((2, 2), nothing), rows_of((2, 2, 2), nothing)),
        failures=d.failures(BAD[0]), **LAPACK)  # fmt: skip
def matrix_exp(A: Tensor) -> Any:
    """The exponentials of square matrices. Needs SciPy.

    >>> kiln.linalg.matrix_exp(kiln.tensor([[0.0, 1.0], [0.0, 0.0]]))
    tensor([[1., 1.],
            [0., 1.]])
    """
    check(A, "linalg.matrix_exp")

    def compute(x: Tensor) -> Any:
        return (scipy_linalg("linalg.matrix_exp").expm(x).astype(x.dtype, copy=False),)

    return outside("linalg.matrix_exp", compute, _exp_back, A)[0]


for _name in ("matrix_power", "matrix_exp"):
    alias(_name, f"linalg.{_name}")


@linear("householder_product")
def householder_product(A: Tensor, tau: Tensor) -> Any:
    """The first n columns of the product of the reflections I - tau[i] v[i] v[i]^T, v[i] being column i of A
    below its diagonal, with 1 on it: [.., m, n], [.., k] -> [.., m, n].

    >>> kiln.linalg.householder_product(kiln.zeros(2, 1), kiln.ones(1))
    tensor([[0.],
            [0.]])
    """
    check(A, "torch.linalg.householder_product", False)
    m, n = A.shape[-2:]
    if m < n:
        raise RuntimeError(
            "torch.linalg.householder_product: input.shape[-2] must be greater than or equal to "
            "input.shape[-1]"
        )
    if n < tau.shape[-1]:
        raise RuntimeError(
            "torch.linalg.householder_product: input.shape[-1] must be greater than or equal to tau.shape[-1]"
        )
    if tuple(tau.shape[:-1]) != tuple(A.shape[:-2]):
        raise RuntimeError(
            "torch.linalg.householder_product: Expected batch dimensions of tau to be equal to "
            f"input.shape[:-2], but got {list(tau.shape[:-1])}"
        )
    if not tau.shape[-1]:
        return p.overwrite(A, eye_like(A, m)[:, :n])  # of A, whose gradient is zeros
    columns = lower(A, -1) + eye_like(A, m)[:, :n]
    x = broadcast_to(eye_like(A, m)[:, :n], tuple(A.shape))
    for i in reversed(range(tau.shape[-1])):
        v = columns[..., :, i : i + 1]
        x = x - matmul(v * unsqueeze(unsqueeze(tau[..., i], -1), -1), matmul(swapped(v), x))
    return x


alias("orgqr", "linalg.householder_product")
