"""LAPACK on NumPy arrays, one matrix or a batch: NumPy's calls where it has them, SciPy's where not.

NumPy loops over a batch in C. SciPy's functions take one matrix, in Fortran's order.
"""

from __future__ import annotations

from typing import Any

from kiln.ops.linalg.outside import LinAlgError, scipy_linalg
from kiln.table.record import Tensor


def batched(function: Any, name: str, *arrays: Any) -> list[Any]:
    """`function` of every matrix of a batch (of as many dims in all arrays), its results stacked."""
    import numpy as np

    batch = arrays[0].shape[:-2]
    if not batch:
        return [np.asarray(y, order="C") for y in function(*arrays)]
    results = [function(*(a[k] for a in arrays)) for k in np.ndindex(*batch)]
    if not results:
        sample = function(*(np.ones(a.shape[len(batch) :], a.dtype) for a in arrays))
        return [np.empty((*batch, *np.shape(y)), np.asarray(y).dtype) for y in sample]
    return [np.reshape(np.stack(ys), (*batch, *np.shape(ys[0]))) for ys in zip(*results)]


def _lapack(routine: str, array: Any, name: str) -> Any:
    """A routine of SciPy's LAPACK for the array's dtype."""
    letter = "s" if array.dtype == "float32" else "d"
    return getattr(scipy_linalg(name).lapack, letter + routine)


def _first(info: Any) -> tuple[str, int]:
    """Where the first failure of a batch is, as PyTorch says it, and its number."""
    import numpy as np

    flat = np.asarray(info).reshape(-1)
    k = int(np.flatnonzero(flat)[0])
    return (f"(Batch element {k}): " if np.ndim(info) else ""), int(flat[k])


def singular(name: str, info: Any) -> LinAlgError:
    """PyTorch's error for a matrix without inverse."""
    where, k = _first(info)
    return LinAlgError(
        f"{name}: {where}The diagonal element {k} is zero, the inversion could not be completed because the "
        "input matrix is singular."
    )


def zero_pivots(a: Any) -> Any:
    """For every matrix the place of the first zero on the diagonal of U, from 1; 0 where there is none."""
    import numpy as np

    def of_one(x: Tensor) -> list[Any]:
        x = x.astype("float64")
        n = x.shape[0]
        for k in range(n):
            row = k + int(np.argmax(np.abs(x[k:, k])))
            if x[row, k] == 0:
                return [np.int32(k + 1)]
            x[[k, row]] = x[[row, k]]
            x[k + 1 :] -= np.outer(x[k + 1 :, k] / x[k, k], x[k])
        return [np.int32(0)]

    with np.errstate(all="ignore"):
        return np.asarray(batched(of_one, "zero_pivots", a)[0])


def inv(a: Any) -> tuple[Any, Any]:
    """The inverses (NaN where there is none) and the places of zero pivots."""
    import numpy as np

    try:
        return np.linalg.inv(a), None
    except np.linalg.LinAlgError:
        info = zero_pivots(a)
        sound = np.where((info == 0)[..., None, None], a, np.eye(a.shape[-1], dtype=a.dtype))
        return np.where((info == 0)[..., None, None], np.linalg.inv(sound), np.nan).astype(a.dtype), info


def cholesky(a: Any, upper: bool) -> tuple[Any, Any]:
    """The factors and the orders of the first minors that are not positive definite."""
    import numpy as np

    a = np.swapaxes(a, -1, -2) if upper else a
    try:
        factor, info = np.linalg.cholesky(a), None
    except np.linalg.LinAlgError:
        info = np.asarray(batched(_first_minor, "cholesky", a)[0])
        sound = np.where((info == 0)[..., None, None], a, np.eye(a.shape[-1], dtype=a.dtype))
        factor = np.where((info == 0)[..., None, None], np.linalg.cholesky(sound), np.tril(a)).astype(a.dtype)
    pivots = np.diagonal(factor, axis1=-2, axis2=-1)
    if (lost := np.isnan(pivots)).any():  # no error to NumPy's LAPACK, which goes on with them
        first = np.where(lost.any(-1), lost.argmax(-1) + 1, 0).astype(np.int32)
        info = first if info is None else np.where(info == 0, first, info)
    return (np.ascontiguousarray(np.swapaxes(factor, -1, -2)) if upper else factor), info


def _first_minor(x: Any) -> list[Any]:
    import numpy as np

    for k in range(1, x.shape[0] + 1):
        try:
            np.linalg.cholesky(x[:k, :k])
        except np.linalg.LinAlgError:
            return [np.int32(k)]
    return [np.int32(0)]


def not_positive(name: str, info: Any) -> LinAlgError:
    """PyTorch's error for a matrix that has no Cholesky factor."""
    where, k = _first(info)
    return LinAlgError(
        f"{name}: {where}The factorization could not be completed because the input is not positive-definite "
        f"(the leading minor of order {k} is not positive-definite)."
    )


def lu(a: Any, name: str) -> list[Any]:
    """LU as one matrix, the pivots (rows swapped, from 1), and the place of the first zero pivot."""
    import numpy as np

    routine = _lapack("getrf", a, name)

    def of_one(x: Tensor) -> Any:
        if not x.size:
            k = min(x.shape)
            return np.empty_like(x), np.arange(1, k + 1, dtype="int32"), np.int32(0)
        factor, pivots, info = routine(x)
        return factor, (pivots + 1).astype("int32"), np.int32(max(info, 0))

    return batched(of_one, name, a)


def lu_solve(factor: Any, pivots: Any, b: Any, adjoint: bool, name: str) -> list[Any]:
    """X with A X = B (or of A's transpose) from A's LU."""
    import numpy as np

    routine = _lapack("getrs", factor, name)

    def of_one(x: Tensor, pivots: Any, y: Tensor) -> Any:
        if not y.size:
            return (np.empty_like(y),)
        return (routine(x, pivots[0] - 1, y, trans=int(adjoint))[0],)

    return batched(of_one, name, factor, pivots[..., None, :], b)


def triangular(a: Any, b: Any, upper: bool, left: bool, unit: bool, name: str) -> list[Any]:
    """X with A X = B (left) or X A = B, of a triangular A."""
    import numpy as np

    routine = getattr(scipy_linalg(name).blas, "strsm" if a.dtype == "float32" else "dtrsm")

    def of_one(x: Tensor, y: Tensor) -> Any:
        if not y.size:
            return (np.empty_like(y),)
        return (routine(1.0, x, y, side=int(not left), lower=int(not upper), diag=int(unit)),)

    return batched(of_one, name, a, b)


def permutation(pivots: Any, m: int, dtype: str) -> Any:
    """The permutations P of swapped rows: A = P L U."""
    import numpy as np

    def of_one(pivots: Any) -> Any:
        order = list(range(m))
        for k, row in enumerate(pivots[0] - 1):
            order[k], order[row] = order[row], order[k]
        return (np.eye(m, dtype=dtype)[:, order],)

    return batched(of_one, "lu", pivots[..., None, :])[0]


def lstsq(a: Any, b: Any, rcond: float, driver: str, name: str) -> list[Any]:
    """Solutions, ranks and singular values of least squares."""
    import numpy as np

    m, n = a.shape[-2:]
    linalg = scipy_linalg(name)

    def of_one(x: Tensor, y: Tensor) -> Any:
        if not x.size or not y.size:
            return np.zeros((n, y.shape[1]), x.dtype), np.int64(0), np.zeros(min(m, n), x.dtype)
        if driver == "gels":
            padded = np.zeros((max(m, n), y.shape[1]), x.dtype)
            padded[:m] = y
            solution = _lapack("gels", x, name)(x, padded)[1][:n]
            return solution, np.int64(min(m, n)), np.zeros(min(m, n), x.dtype)
        solution, _, rank, values = linalg.lstsq(x, y, cond=rcond, lapack_driver=driver, check_finite=False)
        return solution, np.int64(rank), np.zeros(min(m, n), x.dtype) if values is None else values

    return batched(of_one, name, a, b)
