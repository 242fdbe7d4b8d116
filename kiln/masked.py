"""Reductions and normalisations of the elements a mask leaves in, under the names of torch.masked.

`mask` is of bool (True: left in) and broadcasts to the input; without one all elements are. What is left out
counts as the operation's neutral element, so that a reduction of nothing is that, and NaN for those that have
none (mean, var, std, median). `dim`: one, several, or all dims.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kiln import ops
from kiln.errors import describe, message
from kiln.ops.creation.dtypes import iinfo
from kiln.table import arguments, registry
from kiln.table.arguments import dtype_name as _dtype_name
from kiln.table.callables import name_helpers as _name_helpers
from kiln.table.kinds import normalize_dim

if TYPE_CHECKING:
    from kiln._core import Tensor
    from kiln._typed.words import Dims, DType

__all__ = [
    "amax", "amin", "argmax", "argmin", "cumprod", "cumsum", "log_softmax", "logaddexp", "logsumexp", "mean",
    "median", "norm", "normalize", "prod", "softmax", "softmin", "std", "sum", "var",
]  # fmt: skip
_LEAST, _MOST = "min", "max"


def _mask_of(input: Tensor, mask: Tensor, name: str) -> Tensor:
    """The mask in input's shape. IndexError for more dims than input has, TypeError but for bool."""
    if _dtype_name(mask.dtype) != "bool":
        raise TypeError(message(name, "a mask of bool", describe(mask)))
    if mask.ndim > input.ndim:
        raise IndexError(
            "_input_mask expected broadcastable mask (got mask dimensionality higher than of the input)"
        )
    return ops.broadcast_to(mask, tuple(input.shape))


def _end(input: Tensor, which: str) -> Any:
    """The largest or the smallest value of a dtype: infinite where it is a float one."""
    if arguments.is_float(input):
        return math.inf if which == _MOST else -math.inf
    if _dtype_name(input.dtype) == "bool":
        return which == _MOST
    return getattr(iinfo(input.dtype), which)


def _left(input: Tensor, mask: Tensor | None, neutral: Any, name: str) -> Tensor:
    """The input with `neutral` for what is left out."""
    return input if mask is None else ops.where(_mask_of(input, mask, name), input, neutral)


def _dims(input: Tensor, dim: Any) -> tuple[int, ...]:
    """The dims reduced; RuntimeError for one named twice."""
    if dim is None or (not isinstance(dim, int) and not len(dim)):
        return tuple(range(input.ndim))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    found = tuple(normalize_dim(k, input.ndim, "dim") for k in dims)
    if len(set(found)) < len(found):
        raise RuntimeError(f"dim={dim} appears multiple times in the list of dims")
    return found


def sum(
    input: Tensor,
    dim: Dims = None,
    *,
    keepdim: bool = False,
    dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The sum over `dim`; integers and bool give int64.

    >>> x = kiln.tensor([[1, 2], [3, 4]])
    >>> kiln.masked.sum(x, 1, mask=kiln.tensor([True, False]))
    tensor([1, 3])
    """
    return ops.sum(_left(input, mask, 0, "sum"), _dims(input, dim), keepdim, dtype=dtype)


def prod(
    input: Tensor,
    dim: Dims = None,
    *,
    keepdim: bool = False,
    dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The product over `dim`; integers and bool give int64.

    >>> kiln.masked.prod(kiln.tensor([2.0, 3.0]), 0, mask=kiln.tensor([True, False]))
    tensor(2.)
    """
    result = _left(input, mask, 1, "prod")
    if not input.ndim:
        return ops.prod(result, dtype=dtype)
    for k in sorted(_dims(input, dim), reverse=True):
        result = ops.prod(result, k, keepdim, dtype=dtype)
    return result


def _extreme(name: str, which: str, doc: str) -> Any:
    def function(
        input: Tensor,
        dim: Dims = None,
        *,
        keepdim: bool = False,
        dtype: DType | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        left = _left(input, mask, _end(input, which), name)
        found: Tensor = getattr(ops, name)(left, _dims(input, dim), keepdim)
        return found if dtype is None else found.to(dtype)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""The {doc} over `dim`.

    >>> kiln.masked.{name}(kiln.tensor([2.0, 5.0, 3.0]), 0, mask=kiln.tensor([False, False, True]))
    tensor(3.)
    """
    return function


def _place(name: str, which: str, doc: str) -> Any:
    def function(
        input: Tensor,
        dim: int | None = None,
        *,
        keepdim: bool = False,
        dtype: DType | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        found: Tensor = getattr(ops, name)(_left(input, mask, _end(input, which), name), dim, keepdim)
        return found.to(input.dtype if dtype is None else dtype)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""The position of the {doc} along `dim`, or in the flat input; of the input's dtype.

    >>> kiln.masked.{name}(kiln.tensor([2, 5, 3]), 0, mask=kiln.tensor([False, False, True]))
    tensor(2)
    """
    return function


amax = _extreme("amax", _LEAST, "largest element")
amin = _extreme("amin", _MOST, "smallest element")
argmax = _place("argmax", _LEAST, "largest element")
argmin = _place("argmin", _MOST, "smallest element")


def _float_dtype(input: Tensor, dtype: DType | None, name: str) -> None:
    """ValueError where a mean would have no float dtype."""
    kind = _dtype_name(input.dtype if dtype is None else dtype)
    if not kind.startswith(("float", "bfloat")):
        source = "Input" if dtype is None else "Optional"
        raise ValueError(
            f"{name}(): Could not infer output dtype. {source} dtype must be either a floating point or "
            f"complex dtype. Got: {kind}"
        )


def _count(input: Tensor, dim: Dims, keepdim: bool, mask: Tensor | None, name: str) -> Tensor:
    """How many elements are left in over `dim`."""
    truth: Any = "bool"
    one = ops.ones((1,) * input.ndim, dtype=truth) if mask is None else mask
    return ops.sum(_mask_of(input, one, name), _dims(input, dim), keepdim)


def mean(
    input: Tensor,
    dim: Dims = None,
    *,
    keepdim: bool = False,
    dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The mean over `dim`. ValueError for a dtype that is not of floats.

    >>> kiln.masked.mean(kiln.tensor([2.0, 5.0, 4.0]), 0, mask=kiln.tensor([True, False, True]))
    tensor(3.)
    """
    _float_dtype(input, dtype, "mean")
    total = sum(input, dim, keepdim=keepdim, dtype=dtype, mask=mask)
    return total / _count(input, dim, keepdim, mask, "mean")


def var(
    input: Tensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
    dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The mean square deviation over `dim`, divided by the count less `correction` (1 unless said, or 0 if
    not `unbiased`).

    >>> kiln.masked.var(kiln.tensor([2.0, 5.0, 4.0]), 0, mask=kiln.tensor([True, False, True]))
    tensor(2.)
    """
    if unbiased is not None and correction is not None:
        raise AssertionError("Only one of unbiased and correction may be given")
    less = correction if correction is not None else 0.0 if unbiased is False else 1.0
    x = input if arguments.is_float(input) else input.float()
    count = _count(x, dim, True, mask, "var")
    off = x - sum(x, dim, keepdim=True, dtype=dtype, mask=mask) / count
    total = sum(off * off, dim, keepdim=keepdim, dtype=dtype, mask=mask)
    divisor = ops.clamp(ops.reshape(count, tuple(total.shape)).to(total.dtype) - less, min=0)
    return total / divisor


def std(
    input: Tensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
    dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The root of `var`.

    >>> kiln.masked.std(kiln.tensor([2.0, 5.0, 4.0]), 0, False, mask=kiln.tensor([True, False, True]))
    tensor(1.)
    """
    found = var(input, dim, unbiased, correction=correction, keepdim=keepdim, dtype=dtype, mask=mask)
    return ops.sqrt(found)


def median(
    input: Tensor,
    dim: int = -1,
    *,
    keepdim: bool = False,
    dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The lower median along `dim`. ValueError if nothing is left in somewhere and the dtype has no NaN.

    >>> kiln.masked.median(kiln.tensor([2.0, 5.0, 4.0]), mask=kiln.tensor([True, False, True]))
    tensor(2.)
    """
    is_float = arguments.is_float(input)
    left = _left(input if is_float else input.float(), mask, math.nan, "median")
    found = ops.nanmedian(left, dim, keepdim).values
    if is_float:
        return found
    if bool(ops.isnan(found).any()):
        raise ValueError("masked median expects no fully masked out rows if dtype is not floating point")
    return found.to(input.dtype if dtype is None else dtype)


def logsumexp(
    input: Tensor,
    dim: Dims = None,
    *,
    keepdim: bool = False,
    dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The logarithm of the sum of exponentials over `dim`.

    >>> kiln.masked.logsumexp(kiln.tensor([2.0, 5.0]), 0, mask=kiln.tensor([True, False]))
    tensor(2.)
    """
    found = ops.logsumexp(_left(input, mask, _end(input, _LEAST), "logsumexp"), _dims(input, dim), keepdim)
    return found if dtype is None else found.to(dtype)


def logaddexp(
    input: Tensor,
    other: Tensor,
    *,
    dtype: DType | None = None,
    input_mask: Tensor | None = None,
    other_mask: Tensor | None = None,
) -> Tensor:
    """log(exp(input) + exp(other)), each with its own mask.

    >>> kiln.masked.logaddexp(kiln.tensor([2.0]), kiln.tensor([3.0]), other_mask=kiln.tensor([False]))
    tensor([2.])
    """
    x = _left(input, input_mask, _end(input, _LEAST), "logaddexp")
    y = _left(other, other_mask, _end(other, _LEAST), "logaddexp")
    return ops.logaddexp(x, y).to(input.dtype if dtype is None else dtype)


def norm(
    input: Tensor,
    ord: float | None = 2.0,
    dim: Dims = None,
    *,
    keepdim: bool = False,
    dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The norm of order `ord` over `dim`.

    >>> kiln.masked.norm(kiln.tensor([3.0, 5.0, 4.0]), 2, 0, mask=kiln.tensor([True, False, True]))
    tensor(5.)
    """
    left = _left(input, mask, math.inf if ord == -math.inf else 0, "norm")
    vector_norm = registry.function("linalg.vector_norm")
    found: Tensor = vector_norm(left, ord, _dims(input, dim), keepdim, dtype=dtype)
    return found


def normalize(
    input: Tensor,
    ord: float,
    dim: int,
    *,
    eps: float = 1e-12,
    dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The input divided by its norm along `dim`, or by `eps` if that is larger; 0 where left out.

    >>> kiln.masked.normalize(kiln.tensor([3.0, 5.0, 4.0]), 2, 0, mask=kiln.tensor([True, False, True]))
    tensor([0.6000, 0.0000, 0.8000])
    """
    size = norm(input, ord, dim, keepdim=True, dtype=dtype, mask=mask)
    return _left(input, mask, 0, "normalize") / ops.clamp(size, min=eps)


def _along(name: str, which: str, doc: str) -> Any:
    """A normalisation: what is left out is as far from the top as can be."""

    def function(
        input: Tensor, dim: int, *, dtype: DType | None = None, mask: Tensor | None = None
    ) -> Tensor:
        left = _left(input, mask, _end(input, which), name)
        found: Tensor = getattr(ops, name)(left if dtype is None else left.to(dtype), dim)
        return found

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""The {doc} along `dim`.

    >>> kiln.masked.{name}(kiln.tensor([2.0, 5.0]), 0, mask=kiln.tensor([True, False])).exp()[0] > 0
    tensor(True)
    """
    return function


softmax = _along("softmax", _LEAST, "exponentials divided by their sum")
log_softmax = _along("log_softmax", _LEAST, "logarithms of softmax")
softmin = _along("softmin", _MOST, "softmax of the negated input")


def cumsum(input: Tensor, dim: int, *, dtype: DType | None = None, mask: Tensor | None = None) -> Tensor:
    """Running sums along `dim`.

    >>> kiln.masked.cumsum(kiln.tensor([2.0, 5.0, 4.0]), 0, mask=kiln.tensor([True, False, True]))
    tensor([2., 2., 6.])
    """
    return ops.cumsum(_left(input, mask, 0, "cumsum"), dim, dtype=dtype)


def cumprod(input: Tensor, dim: int, *, dtype: DType | None = None, mask: Tensor | None = None) -> Tensor:
    """Running products along `dim`.

    >>> kiln.masked.cumprod(kiln.tensor([2.0, 5.0, 4.0]), 0, mask=kiln.tensor([True, False, True]))
    tensor([2., 2., 8.])
    """
    return ops.cumprod(_left(input, mask, 1, "cumprod"), dim, dtype=dtype)


_name_helpers(globals(), __name__, "masked.")
