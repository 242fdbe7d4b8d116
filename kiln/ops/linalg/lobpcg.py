"""The largest or smallest eigenvalues of a symmetric matrix, without the others."""

from __future__ import annotations

from typing import Any

from kiln import _core
from kiln.ops.creation.dtypes import finfo
from kiln.ops.indexing.concatenation import cat, stack
from kiln.ops.linalg.decompositions import cholesky, eigh, qr
from kiln.ops.linalg.systems import matmul, solve_triangular
from kiln.ops.products.matrix_products import swapped
from kiln.ops.random import sampling
from kiln.table import drawn as d
from kiln.table.callables import draws
from kiln.table.public import public
from kiln.table.record import Tensor
from kiln.table.registry import forms

forms("lobpcg", "-> tuple[Tensor, Tensor]")


@public(
    "lobpcg",
    method=False,
    dtypes="float32 float64",
    failures=d.failures(
        ((d.Zeros(3, 4),), {}, ValueError, "A must be square"),
        ((d.Zeros(5, 5), 2), {}, ValueError, "smaller than 3 x the number"),
    ),
)
@draws
def lobpcg(
    A: Tensor,
    k: int | None = None,
    B: Tensor | None = None,
    X: Tensor | None = None,
    n: int | None = None,
    iK: Tensor | None = None,
    niter: int | None = None,
    tol: float | None = None,
    largest: bool | None = None,
    method: str | None = None,
    tracker: object = None,
    ortho_iparams: object = None,
    ortho_fparams: object = None,
    ortho_bparams: object = None,
) -> Any:
    """(E [.., k], V [.., m, k]): the `k` largest eigenvalues of the symmetric `A` [.., m, m], or the smallest
    if not `largest`, and their vectors: A V = B V diag(E), `B` the identity if it is not given.

    `X` [.., m, n] is where to start, random if not given; `iK` is near the inverse of A. At most `niter`
    steps (1000; -1: no limit) are done, until every residual is below `tol` (the root of the dtype's eps) of
    the norms of A, B and the vector. Both methods, "basic" and "ortho", are one here, and `ortho_*params`
    change nothing. Where gradients of A or B are wanted, all eigenvalues are computed. After Knyazev (2001),
    Toward the Optimal Preconditioned Eigensolver, with an orthonormal basis of each subspace.

    ValueError where m < 3 k, and for another method; NotImplementedError for a `tracker`.

    >>> E, V = kiln.lobpcg(kiln.diag(kiln.tensor([1.0, 5.0, 2.0])))
    >>> E
    tensor([5.])
    """
    m = A.shape[-1]
    if A.ndim < 2 or A.shape[-2] != m:
        raise ValueError(f"lobpcg: A must be square, got shape {A.shape}")
    if method not in (None, "basic", "ortho"):
        raise ValueError(f"lobpcg: expected method 'basic' or 'ortho', got {method!r}")
    if tracker is not None:
        raise NotImplementedError("lobpcg: kiln calls no tracker; leave it out")
    count = (1 if X is None else X.shape[-1]) if k is None else k
    if m < 3 * count:
        raise ValueError(
            f"LOBPCG algorithm is not applicable when the number of A rows (={m}) is smaller than 3 x the "
            f"number of requested eigenpairs (={count})"
        )
    if count < 1:
        raise ValueError(f"lobpcg: expected k >= 1, got {count}")
    largest = True if largest is None else largest
    if _core.grad_enabled() and (A.requires_grad or (B is not None and B.requires_grad)):
        return _projected(A, B, None, count, largest)
    if A.ndim > 2:
        many = A.shape[:-2]
        flat: list[Any] = [None if x is None else x.expand(*many, *x.shape[-2:]).reshape(-1, *x.shape[-2:])
                for x in (A, B, X, iK)]  # fmt: skip
        found = [
            lobpcg(flat[0][j], count, *(None if x is None else x[j] for x in flat[1:3]), n,
                   None if flat[3] is None else flat[3][j], niter, tol, largest)
            for j in range(len(flat[0]))
        ]  # fmt: skip
        values, vectors = (stack([pair[i] for pair in found]) for i in (0, 1))
        return values.reshape(*many, count), vectors.reshape(*many, m, count)
    if X is None:
        X = sampling.randn(m, max(n or count, count), dtype=A.dtype)
    tol = finfo(A.dtype).eps ** 0.5 if tol is None else tol
    return _iterated(A, B, X, iK, count, 1000 if niter is None else niter, tol, largest)


def _iterated(
    A: Tensor, B: Any, X: Any, iK: Any, count: int, niter: int, tol: float, largest: bool
) -> tuple[Any, Any]:
    """See `lobpcg`."""
    basis, width, done = qr(X).Q, X.shape[-1], 0
    steps: list[Any] = []  # the direction of the last step
    size_a = (matmul(A, basis).norm() / basis.norm()).item()
    size_b = 1.0 if B is None else (matmul(B, basis).norm() / basis.norm()).item()
    E, V = _projected(A, B, basis, width, largest)
    while True:
        BV = V if B is None else matmul(B, V)
        residual = matmul(A, V) - BV * E
        error = residual.norm(dim=0) / (V.norm(dim=0) * (size_a + E.abs() * size_b))
        if bool((error[:count] < tol).all()) or done == niter:
            return E[:count], V[:, :count]
        done += 1
        parts = [V, residual if iK is None else matmul(iK, residual), *steps]
        basis = qr(cat(parts, -1)[:, : A.shape[-1]]).Q
        E, after = _projected(A, B, basis, width, largest)
        steps = [after - matmul(V, matmul(swapped(BV), after))]
        V = after


def _projected(A: Tensor, B: Any, basis: Any, count: int, largest: bool) -> tuple[Any, Any]:
    """The outermost eigenvalues in the span of a basis, None: of all vectors, and their vectors."""
    if basis is not None:
        A = matmul(swapped(basis), matmul(A, basis))
        B = None if B is None else matmul(swapped(basis), matmul(B, basis))
    if B is not None:
        lower = cholesky(B)
        A = solve_triangular(lower, A, upper=False)
        A = solve_triangular(lower, swapped(A), upper=False)
    E, V = eigh((A + swapped(A)) / 2)
    E, V = (E.flip(-1), V.flip(-1)) if largest else (E, V)
    E, V = E[..., :count], V[..., :count]
    if B is not None:
        V = solve_triangular(swapped(lower), V, upper=True)
    return E, V if basis is None else matmul(basis, V)
