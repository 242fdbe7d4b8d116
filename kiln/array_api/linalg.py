"""Linear algebra: the standard's functions, and its extension `linalg`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kiln import linalg as _linalg
from kiln import ops
from kiln.array_api import common as _common
from kiln.errors import message as _message

if TYPE_CHECKING:
    __getattr__: Callable[[str], Any]


def _plain(name: str) -> Any:
    function = getattr(_linalg, name)

    def call(x: Any, /) -> Any:
        return function(_common.array(x, name))

    return _common.named(call, name, __name__, f"`kiln.linalg.{name}` of matrices: the last two axes.")


globals().update({name: _plain(name) for name in ("det", "eigh", "eigvalsh", "inv", "slogdet", "svdvals")})


def matmul(x1: Any, x2: Any, /) -> Any:
    """The product of matrices (the last two axes) or vectors, promoted."""
    return ops.matmul(*_common.promote("matmul", x1, x2))


def matrix_transpose(x: Any, /) -> Any:
    """A view with the last two axes swapped."""
    return _common.array(x, "matrix_transpose").mT


def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Any:
    """Sums of products over the last `axes` axes of one array and the first of the other, or over pairs."""
    if not isinstance(axes, int):
        axes = tuple(list(side) for side in axes)
    x, y = _common.promote("tensordot", x1, x2)
    return ops.tensordot(x, y, axes)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Sums of products along a (negative) axis of both arrays, whose sizes are equal; promoted."""
    x1, x2 = _common.promote("vecdot", x1, x2)
    place = _from_the_end("vecdot", axis, x1, x2)
    if x1.shape[place] != x2.shape[place]:
        raise ValueError(_message("vecdot", "axes of one size", f"{x1.shape[place]} and {x2.shape[place]}"))
    return ops.sum(x1 * x2, place, dtype=x1.dtype)


def _from_the_end(name: str, axis: int, x1: Any, x2: Any) -> int:
    """The axis, which counts from the end. ValueError for one that does not, or is not there."""
    least = -min(x1.ndim, x2.ndim)
    if not least <= axis <= -1:
        raise ValueError(_message(name, f"an axis in [{least}, -1]", str(axis)))
    return axis


def cholesky(x: Any, /, *, upper: bool = False) -> Any:
    """The lower (or upper) Cholesky factor of positive-definite matrices."""
    return _linalg.cholesky(_common.array(x, "cholesky"), upper=upper)


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """The cross product of vectors of 3 along a (negative) axis; broadcast and promoted."""
    x1, x2 = _common.promote("cross", x1, x2)
    place = _from_the_end("cross", axis, x1, x2)
    if (x1.shape[place], x2.shape[place]) != (3, 3):
        raise ValueError(_message("cross", "axes of size 3", f"{x1.shape[place]} and {x2.shape[place]}"))
    return _linalg.cross(*ops.broadcast_tensors(x1, x2), dim=place)


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """A view of a diagonal of matrices."""
    return ops.diagonal(_common.array(x, "diagonal"), offset, -2, -1)


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """The norm of matrices: "fro", "nuc", 1, 2, inf, or their least counterparts -1, -2, -inf."""
    return _linalg.matrix_norm(_common.array(x, "matrix_norm"), ord, (-2, -1), keepdims)


def matrix_power(x: Any, n: int, /) -> Any:
    """Square matrices to an integer power."""
    return _linalg.matrix_power(_common.array(x, "matrix_power"), n)


def matrix_rank(x: Any, /, *, rtol: Any = None) -> Any:
    """How many singular values of matrices exceed the largest times `rtol`: int64."""
    if _common.array(x, "matrix_rank").ndim < 2:
        raise ValueError(_message("matrix_rank", "at least two dims", f"{x.ndim} dims"))
    return _linalg.matrix_rank(x, rtol=rtol)


def outer(x1: Any, x2: Any, /) -> Any:
    """The products of every element of one vector with every one of another, promoted."""
    return ops.outer(*_common.promote("outer", x1, x2))


def pinv(x: Any, /, *, rtol: Any = None) -> Any:
    """The pseudo-inverse of matrices, singular values below the largest times `rtol` taken as 0."""
    return _linalg.pinv(_common.array(x, "pinv"), rtol=rtol)


def qr(x: Any, /, *, mode: str = "reduced") -> Any:
    """Q and R of matrices, "reduced" or "complete". ValueError for another mode."""
    if mode not in ("reduced", "complete"):
        raise ValueError(_message("qr", "mode 'reduced' or 'complete'", repr(mode)))
    return _linalg.qr(_common.array(x, "qr"), mode=mode)


def solve(x1: Any, x2: Any, /) -> Any:
    """What matrices x1 take to x2: a vector if that has one dim, else matrices; broadcast and promoted."""
    x1, x2 = _common.promote("solve", x1, x2)
    if x2.ndim == 1:
        return _linalg.solve(x1, ops.unsqueeze(x2, -1))[..., 0]
    batch = ops.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    return _linalg.solve(x1.expand(*batch, *x1.shape[-2:]), x2.expand(*batch, *x2.shape[-2:]))


def svd(x: Any, /, *, full_matrices: bool = True) -> Any:
    """U, S and Vh of matrices."""
    return _linalg.svd(_common.array(x, "svd"), full_matrices=full_matrices)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """The sum of a diagonal of matrices; of integers and bool int64, unless a dtype is given."""
    found = diagonal(_common.array(x, "trace"), offset=offset)
    return ops.sum(found, -1, dtype=_common.total_dtype(x.dtype, dtype))


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: float = 2) -> Any:
    """The norm of order `ord` over axes (None: of all elements)."""
    x, dims, some = _common.reduced(x, axis, "vector_norm")
    return _linalg.vector_norm(x, ord, dims, bool(keepdims and some))
