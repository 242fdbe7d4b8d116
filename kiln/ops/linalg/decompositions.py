"""Factorizations of matrices and determinants: Cholesky, eigenvalues of symmetric matrices, SVD, QR.

Where PyTorch says that a result is not unique (signs of vectors), it may differ from PyTorch's.
"""

from __future__ import annotations

from typing import Any

from kiln.errors import warn
from kiln.ops.creation import constants
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise import comparison
from kiln.ops.linalg import lapack
from kiln.ops.linalg.called import Look, in_programs, matrix, square
from kiln.ops.linalg.outside import LinAlgError, outside
from kiln.ops.linalg.systems import (
    BAD,
    LAPACK,
    SQUARE,
    _check_sides,
    check,
    diagonal_of,
    eye_like,
    infos,
    inverse_of,
    linear,
    lower,
    matmul,
    nothing,
    on_diagonal,
    rows_of,
    same,
    together,
    triangular,
    upper_,
)
from kiln.ops.named_results import named
from kiln.ops.products.addends import given
from kiln.ops.products.matrix_products import swapped
from kiln.ops.views.core_views import broadcast_to, reshape, unsqueeze
from kiln.table import drawn as d
from kiln.table.public import alias, public
from kiln.table.record import Tensor, find
from kiln.table.registry import forms

# Factorizations


def _cholesky_back(upper: bool) -> Any:
    def back(grads: Any, _a: Any, y: Tensor, *rest: Any) -> Any:
        factor, g = (swapped(y), swapped(grads[0])) if upper else (y, grads[0])
        phi = lower(matmul(swapped(factor), g))
        phi = phi - 0.5 * on_diagonal(diagonal_of(phi))
        half = triangular(factor, phi, False, left=False)
        flow = triangular(swapped(factor), half, True)
        return (0.5 * (flow + swapped(flow)),)

    return back


def _cholesky(A: Tensor, upper: bool, name: str) -> tuple[Any, Any]:
    check(A, name)
    found: list[Any] = []

    def compute(x: Tensor) -> Any:
        y, info = lapack.cholesky(x, upper)
        found.append(info)
        return (y,)

    return outside(name, compute, _cholesky_back(upper), A)[0], found[0]


@in_programs("linalg_cholesky", lambda a, upper, name: [square(a)], lambda A, upper, name: check(A, name))
def _cholesky_or_error(A: Tensor, upper: bool, name: str) -> Any:
    y, info = _cholesky(A, upper, name)
    if info is not None:
        raise lapack.not_positive(name, info)
    return y


@linear("cholesky")
def cholesky(A: Tensor, *, upper: bool = False) -> Any:
    """L with A = L L^T (or U with A = U^T U), of symmetric positive definite matrices.

    One triangle is read. LinAlgError for a matrix that is not positive definite. The derivative needs SciPy.

    >>> kiln.linalg.cholesky(kiln.tensor([[4.0, 2.0], [2.0, 5.0]]))
    tensor([[2., 0.],
            [1., 2.]])
    """
    return _cholesky_or_error(A, upper, "linalg.cholesky")


@public("cholesky", dtypes="float32 float64")
def cholesky_of(input: Any, upper: bool = False, *, out: Any = None) -> Any:
    """As kiln.linalg.cholesky.

    >>> kiln.cholesky(kiln.eye(1))
    tensor([[1.]])
    """
    warn("torch.cholesky is deprecated in favor of torch.linalg.cholesky, whose `upper` is a keyword")
    return given(_cholesky_or_error(input, upper, "cholesky"), out)


forms("linalg.cholesky_ex", "-> L, info")


@linear("cholesky_ex")
def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> Any:
    """(L, info): `cholesky` that says in `info` the order of the first minor that is not positive definite.

    >>> kiln.linalg.cholesky_ex(-kiln.eye(2)).info
    tensor(1, dtype=kiln.int32)
    """
    y, info = _cholesky(A, upper, "linalg.cholesky_ex")
    if check_errors and info is not None:
        raise lapack.not_positive("linalg.cholesky_ex", info)
    return named("linalg_cholesky_ex", y, infos(A, info))


def _look_of_solved(factor: Look, b: Look, upper: bool) -> list[Look]:
    square(factor)
    return [matrix(b)]


@in_programs("cholesky_solve", _look_of_solved, lambda *args: None, tensors=2)
def _solved(factor: Tensor, b: Tensor, upper: bool) -> Any:
    """`cholesky_solve` of one batch of matrices.

    From dA = dL L^T + L dL^T: the gradient of L is -(gB X^T + X gB^T) L, in both triangles as PyTorch's.
    """

    def compute(x: Any, y: Any) -> Any:
        first = lapack.triangular(x.swapaxes(-1, -2) if upper else x, y, False, True, False, "cholesky_solve")
        second = x if upper else x.swapaxes(-1, -2)
        return lapack.triangular(second, first[0], True, True, False, "cholesky_solve")

    def back(grads: Any, factor: Tensor, _b: Any, found: Tensor) -> Any:
        gb = _solved(factor, grads[0], upper)
        pairs = matmul(gb, swapped(found))
        pairs = pairs + swapped(pairs)
        return -(matmul(factor, pairs) if upper else matmul(pairs, factor)), gb

    return outside("cholesky_solve", compute, back, factor, b)[0]


@public("cholesky_solve", dtypes="float32 float64")
def cholesky_solve(input: Any, L: Any, upper: bool = False, *, out: Any = None) -> Any:
    """X with A X = input, from A's Cholesky factor. RuntimeError for sizes that do not fit; needs SciPy.

    >>> kiln.cholesky_solve(kiln.ones(1, 1), kiln.full((1, 1), 2.0))
    tensor([[0.2500]])
    """
    check(L, "cholesky_solve")
    check(input, "cholesky_solve", False, "B")
    same(L, input, "cholesky_solve")
    _check_sides(L, input, True, "cholesky_solve")
    factor, b = together(L, input, "cholesky_solve")
    return given(_solved(factor, b, upper), out)


@public("cholesky_inverse", dtypes="float32 float64")
def cholesky_inverse(L: Any, upper: bool = False, *, out: Any = None) -> Any:
    """The inverses of matrices from their Cholesky factors. Needs SciPy.

    >>> kiln.cholesky_inverse(kiln.full((1, 1), 2.0))
    tensor([[0.2500]])
    """
    check(L, "cholesky_inverse")
    return cholesky_solve(broadcast_to(eye_like(L, L.shape[-1]), tuple(L.shape)), L, upper, out=out)


def _eigh_back(grads: Any, _a: Any, values: Any, vectors: Any) -> Any:
    gl, gv = grads
    t = swapped(vectors)
    if gv is None:
        return (matmul(vectors * unsqueeze(gl, -2), t),)
    unit = eye_like(values, values.shape[-1])
    gaps = unsqueeze(values, -2) - unsqueeze(values, -1)
    inner = p.where(unit != 0, 0, matmul(t, gv) / p.where(unit != 0, 1, gaps))
    inner = inner if gl is None else inner + on_diagonal(gl)
    found = matmul(matmul(vectors, inner), t)
    return ((found + swapped(found)) * 0.5,)  # of symmetric matrices, as PyTorch's


def _check_eigh(A: Tensor, UPLO: str, name: str) -> None:
    check(A, name)
    if str(UPLO).upper() not in ("L", "U"):
        raise RuntimeError(f"Expected UPLO argument to be 'L' or 'U', but got {UPLO}")


def _look_of_eigh(a: Look, UPLO: str, name: str) -> list[Look]:
    dtype, shape = square(a)
    return [(dtype, shape[:-1]), (dtype, shape)]


@in_programs("linalg_eigh", _look_of_eigh, _check_eigh, count=2)
def _eigh(A: Any, UPLO: str, name: str) -> tuple[Any, Any]:
    _check_eigh(A, UPLO, name)

    def compute(x: Any) -> Any:
        import numpy as np

        return tuple(np.linalg.eigh(x, "L" if UPLO in "lL" else "U"))

    values, vectors = outside(name, compute, _eigh_back, A)
    return values, vectors


forms("linalg.eigh", "-> eigenvalues, eigenvectors")


@linear("eigh", differs="signs of the vectors may be others")
def eigh(A: Tensor, UPLO: str = "L") -> Any:
    """(eigenvalues, eigenvectors) of symmetric matrices, the values ascending; the triangle UPLO is read.

    RuntimeError for another UPLO. The sign of a vector, and its derivative where values are equal, are not
    defined.

    >>> kiln.linalg.eigh(kiln.tensor([[2.0, 0.0], [0.0, 1.0]])).eigenvalues
    tensor([1., 2.])
    """
    return named("linalg_eigh", *_eigh(A, UPLO, "linalg.eigh"))


@linear("eigvalsh")
def eigvalsh(A: Any, UPLO: str = "L") -> Any:
    """The eigenvalues of symmetric matrices, ascending: [.., n, n] -> [.., n]; the triangle UPLO is read.

    >>> kiln.linalg.eigvalsh(kiln.tensor([[0.0, 1.0], [1.0, 0.0]]))
    tensor([-1.,  1.])
    """
    return _eigvalsh(A, UPLO, "linalg.eigvalsh")


@in_programs("linalg_eigvalsh", lambda *given: _look_of_eigh(*given)[:1], _check_eigh)
def _eigvalsh(A: Any, UPLO: str, name: str) -> Any:
    if A.requires_grad:
        return _eigh(A, UPLO, name)[0]
    _check_eigh(A, UPLO, name)

    def compute(x: Any) -> Any:
        import numpy as np

        return (np.linalg.eigvalsh(x, "L" if UPLO in "lL" else "U"),)

    return outside(name, compute, None, A)[0]


def _svd_back(grads: Any, _a: Any, u: Any, s: Any, vh: Any) -> Any:
    gu, gs, gvh = grads
    k = s.shape[-1]
    u, vh = u[..., :, :k], vh[..., :k, :]
    if gu is None and gvh is None:
        return (matmul(u * unsqueeze(gs, -2), vh),)
    unit = eye_like(s, k)
    squares = s * s
    gaps = p.where(unit != 0, 1, unsqueeze(squares, -2) - unsqueeze(squares, -1))
    inner: Any = 0 if gs is None else on_diagonal(gs)
    outer: Any = 0
    if gu is not None:
        gu = gu[..., :, :k]
        w = matmul(swapped(u), gu)
        inner = inner + (w - swapped(w)) / gaps * unsqueeze(s, -2)
        if u.shape[-2] > k:
            outer = outer + matmul((gu - matmul(u, w)) / unsqueeze(s, -2), vh)
    if gvh is not None:
        gvh = gvh[..., :k, :]
        w = matmul(vh, swapped(gvh))
        inner = inner + unsqueeze(s, -1) * ((w - swapped(w)) / gaps)
        if vh.shape[-1] > k:
            outer = outer + matmul(u, (gvh - matmul(swapped(w), vh)) / unsqueeze(s, -1))
    return (matmul(matmul(u, inner), vh) + outer,)


def svd_parts(A: Any, full_matrices: bool = False, name: str = "linalg.svd") -> Any:
    """U, S and Vh of matrices."""
    return _svd(A, full_matrices, name)


def _look_of_svd(a: Look, full_matrices: bool, name: str) -> list[Look]:
    dtype, shape = matrix(a)
    (m, n), batch = shape[-2:], shape[:-2]
    if not isinstance(m, int) or not isinstance(n, int):
        raise ValueError(f"{name}: of matrices whose sizes vary")
    k = min(m, n)
    left, right = (m, n) if full_matrices else (k, k)
    return [(dtype, (*batch, m, left)), (dtype, (*batch, k)), (dtype, (*batch, right, n))]


def _check_svd(A: Any, full_matrices: bool, name: str) -> None:
    check(A, name, False)


@in_programs("linalg_svd", _look_of_svd, _check_svd, count=3)
def _svd(A: Any, full_matrices: bool, name: str) -> list[Any]:
    check(A, name, False)

    def compute(x: Any) -> Any:
        import numpy as np

        try:
            return tuple(np.linalg.svd(x, full_matrices=full_matrices))
        except np.linalg.LinAlgError as error:
            raise not_finite(name) from error

    return outside(name, compute, _svd_back, A)


@in_programs(
    "linalg_svdvals",
    lambda a, name: _look_of_svd(a, False, name)[1:2],
    lambda A, name: check(A, name, False),
)
def singular_values(A: Any, name: str) -> Any:
    """S alone, without the vectors unless a derivative needs them."""
    if A.requires_grad:
        return svd_parts(A, False, name)[1]
    check(A, name, False)

    def compute(x: Any) -> Any:
        import numpy as np

        try:
            return (np.linalg.svd(x, compute_uv=False),)
        except np.linalg.LinAlgError as error:
            raise not_finite(name) from error

    return outside(name, compute, None, A)[0]


def not_finite(name: str) -> LinAlgError:
    """PyTorch's error where no singular values are found."""
    return LinAlgError(
        f"{name}: The algorithm failed to converge because the input matrix contained non-finite values."
    )


def _no_driver(driver: Any, name: str) -> None:
    if driver is not None:
        raise RuntimeError(f"torch.{name}: keyword argument `driver=` is only supported on CUDA inputs")


forms("linalg.svd", "-> U, S, Vh")


@linear("svd", differs="signs of the vectors may be others")
def svd(A: Tensor, full_matrices: bool = True, *, driver: Any = None) -> Any:
    """(U, S, Vh) with A = U diag(S) Vh, S descending: [.., m, n] -> [.., m, m], [.., k], [.., n, n], or k
    columns and rows without `full_matrices`.

    LinAlgError if a value is not finite. The signs of vectors are not defined.

    >>> kiln.linalg.svd(kiln.tensor([[0.0, 2.0], [1.0, 0.0]])).S
    tensor([2., 1.])
    """
    _no_driver(driver, "linalg.svd")
    return named("linalg_svd", *svd_parts(A, full_matrices))


@linear("svdvals", **LAPACK, samples=d.samples(rows_of((3, 2), nothing), rows_of((2, 2, 3), nothing)),
        failures=d.failures(*BAD[1:]))  # fmt: skip
def svdvals(A: Tensor, *, driver: Any = None) -> Any:
    """The singular values of matrices, descending: [.., m, n] -> [.., k].

    >>> kiln.linalg.svdvals(kiln.tensor([[0.0, 2.0], [1.0, 0.0]]))
    tensor([2., 1.])
    """
    _no_driver(driver, "linalg.svdvals")
    return singular_values(A, "linalg.svdvals")


forms("svd", "-> U, S, V")


@public("svd", dtypes="float32 float64")
def svd_of(input: Any, some: bool = True, compute_uv: bool = True, *, out: Any = None) -> Any:
    """(U, S, V) with input = U diag(S) V^T; zeros for U and V without `compute_uv`.

    >>> kiln.svd(kiln.tensor([[0.0, 2.0], [1.0, 0.0]])).S
    tensor([2., 1.])
    """
    u, s, vh = svd_parts(input, not some)
    v = swapped(vh)
    if not compute_uv:
        (m, n), batch = input.shape[-2:], tuple(input.shape[:-2])
        u, v = (constants.zeros((*batch, k, k), dtype=input.dtype) for k in (m, n))
    result = named("svd", u, s, v)
    return result if out is None else type(result)(*p.written(result, out))


def _qr_square(q: Any, r: Any, gq: Any, gr: Any) -> Any:
    """The gradient of Q R where R is square."""
    inner: Any = 0 if gr is None else matmul(gr, swapped(r))
    inner = inner if gq is None else inner - matmul(swapped(q), gq)
    inner = upper_(inner)
    inner = inner + swapped(inner) - on_diagonal(diagonal_of(inner))
    flow = matmul(q, inner)
    return triangular(swapped(r), flow if gq is None else flow + gq, False, left=False)


def _qr_back(mode: str) -> Any:
    def back(grads: Any, a: Tensor, q: Any, r: Any) -> Any:
        m, n = a.shape[-2:]
        if mode == "r":
            raise RuntimeError(
                "The derivative of linalg.qr depends on Q, which is not computed when mode='r'. Please use "
                "linalg.qr(A, mode='reduced') if you are going to require gradients"
            )
        if mode == "complete" and m > n:
            raise RuntimeError(
                "The QR decomposition is not differentiable when mode='complete' and nrows > ncols"
            )
        gq, gr = grads
        if m >= n:
            return (_qr_square(q, r, gq, gr),)
        y, gv = a[..., :, m:], None if gr is None else gr[..., :, m:]
        if gv is not None:
            more = matmul(y, swapped(gv))
            gq = more if gq is None else gq + more
        gx = _qr_square(q, r[..., :, :m], gq, None if gr is None else gr[..., :, :m])
        gy = constants.zeros(tuple(y.shape), dtype=a.dtype) if gv is None else matmul(q, gv)
        return (find("concat").handle([gx, gy], a.ndim - 1),)

    return back


def _qr(A: Any, mode: str, name: str = "linalg.qr") -> list[Any]:
    check(A, name, False)
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(
            f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), 'r', or "
            "'complete'"
        )

    def compute(x: Any) -> Any:
        import numpy as np

        if mode == "r":
            return np.empty((0,), x.dtype), np.linalg.qr(x, "r")
        return tuple(np.linalg.qr(x, "complete" if mode == "complete" else "reduced"))

    return outside(name, compute, _qr_back(mode), A)


forms("linalg.qr", "-> Q, R")


@linear("qr", differs="signs of the columns may be others")
def qr(A: Tensor, mode: str = "reduced") -> Any:
    """(Q, R) with A = Q R: [.., m, n] -> [.., m, k], [.., k, n], k the smaller of m and n, or m if `mode` is
    "complete"; "r" leaves Q empty.

    RuntimeError for another mode. The derivative needs SciPy.

    >>> kiln.linalg.qr(kiln.tensor([[3.0], [4.0]])).R.abs()
    tensor([[5.]])
    """
    return named("linalg_qr", *_qr(A, mode))


forms("qr", "-> Q, R")


@public("qr", dtypes="float32 float64")
def qr_of(input: Any, some: bool = True, *, out: Any = None) -> Any:
    """(Q, R), reduced if `some`, else complete.

    >>> kiln.qr(kiln.eye(2)).R.abs()
    tensor([[1., 0.],
            [0., 1.]])
    """
    warn('torch.qr is deprecated in favor of torch.linalg.qr, with mode="complete" for some=False')
    result = named("qr", *_qr(input, "reduced" if some else "complete"))
    return result if out is None else type(result)(*p.written(result, out))


# Determinants


def _of_matrices(look: Look) -> Look:
    """A number of each matrix."""
    dtype, shape = square(look)
    return dtype, shape[:-2]


def _logdet_back(grads: Any, a: Tensor, *rest: Any) -> Any:
    g = grads[1]
    if g is None:
        return (None,)
    return (reshape(g, (*g.shape, 1, 1)) * swapped(inverse_of(a, "slogdet")[0]),)


@in_programs("linalg_slogdet", lambda a, name: [_of_matrices(a)] * 2, check, count=2)
def _slogdet(A: Any, name: str) -> tuple[Any, Any]:
    check(A, name)

    def compute(x: Any) -> Any:
        import numpy as np

        return [np.asarray(v) for v in np.linalg.slogdet(x)]

    sign, log = outside(name, compute, _logdet_back, A)
    return sign, log


def _det_back(grads: Any, a: Tensor, y: Tensor) -> Any:
    g = reshape(grads[0], (*y.shape, 1, 1))
    if bool((y != 0).all()):
        return (g * reshape(y, (*y.shape, 1, 1)) * swapped(inverse_of(a, "det")[0]),)
    u, s, vh = svd_parts(a)  # of a singular matrix by its cofactors, which are smooth
    sides = reshape(det(u) * det(vh), (*y.shape, 1, 1))
    n = a.shape[-1]
    others = p.where(eye_like(s, n) != 0, 1, broadcast_to(unsqueeze(s, -2), tuple(a.shape)))
    return (g * sides * matmul(u * unsqueeze(others.prod(-1), -2), vh),)


@linear(
    "det",
    differs="the derivative at singular matrices is right; PyTorch gives zeros at those of rank n - 1",
    samples=SQUARE,
    failures=d.failures(*BAD),
    **LAPACK,
    tests=d.Tests(history="of a matrix without elements the gradient has a history as any other's"),
)
def det(A: Any) -> Any:
    """The determinants of square matrices: [.., n, n] -> [..].

    >>> kiln.linalg.det(kiln.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor(-2.)
    """
    return _det(A, "linalg.det")


@in_programs("linalg_det", lambda a, name: [_of_matrices(a)], check)
def _det(A: Any, name: str) -> Any:
    check(A, name)

    def compute(x: Any) -> Any:
        import numpy as np

        with np.errstate(over="ignore"):
            return (np.asarray(np.linalg.det(x)),)

    return outside(name, compute, _det_back, A)[0]


alias("det", "linalg.det")


forms("linalg.slogdet", "-> sign, logabsdet")


@linear("slogdet", samples=SQUARE, failures=d.failures(*BAD), **LAPACK)
def slogdet(A: Tensor) -> Any:
    """(sign, logabsdet): the sign of the determinants and the logarithms of their size.

    >>> kiln.linalg.slogdet(kiln.tensor([[0.0, 1.0], [1.0, 0.0]])).sign
    tensor(-1.)
    """
    return named("linalg_slogdet", *_slogdet(A, "linalg.slogdet"))


forms("slogdet", "-> sign, logabsdet")


@public("slogdet", dtypes="float32 float64")
def slogdet_(input: Any) -> Any:
    """(sign, logabsdet), as kiln.linalg.slogdet.

    >>> kiln.slogdet(kiln.eye(2)).logabsdet
    tensor(0.)
    """
    return named("slogdet", *_slogdet(input, "linalg.slogdet"))


@public("logdet", samples=SQUARE, failures=d.failures(*BAD), **LAPACK)
def logdet(input: Any) -> Any:
    """The logarithms of the determinants; NaN where one is negative.

    >>> kiln.logdet(kiln.eye(2))
    tensor(0.)
    """
    sign, log = _slogdet(input, "logdet")
    return p.where(comparison.eq(sign, -1), float("nan"), log)
