"""Extrema as PyTorch offers them: amax and relatives, undefined over nothing; max and min in three forms."""

from __future__ import annotations

from typing import Any

from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise import comparison
from kiln.ops.named_results import located
from kiln.ops.reductions.core_reductions import reduce_max, reduce_min, reduce_sum
from kiln.table import drawn as d
from kiln.table.arguments import dtype_name, into, is_float, type_name
from kiln.table.kinds import normalize_dim, normalize_dims
from kiln.table.public import public
from kiln.table.record import Op, Tensor, composite, find
from kiln.table.registry import forms


def not_empty(input: Tensor, dims: tuple[int, ...], op: str, asked: bool = True) -> None:
    """PyTorch's error for an extremum of nothing; a symbolic size passes."""
    for k in dims:
        size = input.shape[k] if input.ndim else 1
        if isinstance(size, int) and size == 0:
            if not asked:
                raise (IndexError if op.startswith("arg") else RuntimeError)(
                    f"{op}(): Expected reduction dim to be specified for input.numel() == 0. "
                    "Specify the reduction dim with the 'dim' argument."
                )
            raise IndexError(f"{op}(): Expected reduction dim {k} to have non-zero size.")


def _fits(out: Any, dtype: Any) -> dict[str, Any]:
    """The keyword `out=`, if there is one; RuntimeError unless it is of the dtype, as it is not converted."""
    if out is not None and dtype_name(out.dtype) != dtype_name(dtype):
        raise RuntimeError(
            f"Expected the dtype for input and out to match, but got {type_name(dtype_name(dtype))} for "
            f"input's dtype and {type_name(dtype_name(out.dtype))} for out's dtype."
        )
    return into(out)


def _extremum(name: str) -> Any:
    """amax or amin behind the check that it reduces something."""
    op = find(name)

    def reduce(input: Tensor, dim: Any = (), keepdim: bool = False, *, out: Any = None) -> Any:
        not_empty(input, normalize_dims(dim, input.ndim, name), name, dim not in (None, ()))
        return op.handle(input, dim, keepdim, **_fits(out, input.dtype))

    reduce.__doc__ = op.doc
    return public(name, dtypes="all")(reduce)


def _position(name: str) -> Any:
    """argmax or argmin behind PyTorch's checks."""
    op = find(name)

    def reduce(input: Tensor, dim: int | None = None, keepdim: bool = False, *, out: Any = None) -> Any:
        if dim is not None and not hasattr(dim, "__index__"):
            raise TypeError(f"{name}(): argument 'dim' must be int, not {type(dim).__name__}")
        if dtype_name(input.dtype) == "bool":
            raise RuntimeError(f"{name}(): does not support bool input")
        not_empty(input, normalize_dims(dim, input.ndim, name), name, dim is not None)
        return op.handle(input, dim, keepdim, **_fits(out, "int64"))

    reduce.__doc__ = op.doc
    return public(name, dtypes="number", differentiable=False)(reduce)


amax, amin = map(_extremum, ("amax", "amin"))
argmax, argmin = map(_position, ("argmax", "argmin"))


_ANY = d.samples(
    lambda rng, t: ((d.distinct(rng, (3, 5), t),), {}),
    lambda rng, t: ((d.distinct(rng, (4,), t),), {}),
)


@composite(public=False, dtypes="float", samples=_ANY, reference=d.reference(lambda np, x: np.max(x)))
def largest(input: Tensor) -> Any:
    """The largest of all elements; NaN if there is one.

    >>> kiln.tensor([1.0, 3.0]).max()
    tensor(3.)
    """
    return reduce_max(input, tuple(range(input.ndim)), False)


@composite(public=False, dtypes="float", samples=_ANY, reference=d.reference(lambda np, x: np.min(x)))
def smallest(input: Tensor) -> Any:
    """The smallest of all elements; NaN if there is one.

    >>> kiln.tensor([1.0, 3.0]).min()
    tensor(1.)
    """
    return reduce_min(input, tuple(range(input.ndim)), False)


def _shared(g: Tensor, input: Tensor, y: Tensor) -> Tensor:
    """Shared by all that equal it, and of a NaN by all NaNs; amax and amin give NaNs there."""
    same = comparison.eq(input, y) | (comparison.ne(input, input) & comparison.ne(y, y))
    count = reduce_sum(p.convert(same, "int64"), tuple(range(input.ndim)), False)
    return p.where(same, g / count, 0)


largest.derivative(_shared)
smallest.derivative(_shared)


def _choose(name: str, pair: Op) -> Any:
    """max or min in its three forms."""
    of_all = largest if name == "max" else smallest
    whole, position, elementwise = find(f"a{name}").handle, find(f"arg{name}").handle, pair.handle
    reshape, clone = find("reshape").handle, find("clone").handle

    def choose(
        input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Tensor | None = None, out: Any = None
    ) -> Any:
        if isinstance(input, (int, float)):
            raise TypeError(f"{name}(): argument 'input' must be Tensor, not {type(input).__name__}")
        if other is not None or (dim is not None and not isinstance(dim, int)):
            return elementwise(input, dim if other is None else other, **into(out))
        if dim is None:
            not_empty(input, tuple(range(input.ndim)), name, asked=False)
            return of_all(input) if out is None and is_float(input) else whole(input, **into(out))
        if out is not None and (not isinstance(out, (tuple, list)) or len(out) != 2):
            raise TypeError(f"{name}(): argument 'out' must be tuple of Tensors, not {type(out).__name__}")
        dim = normalize_dim(dim, input.ndim, name)
        not_empty(input, (dim,), name)
        values, indices = chosen(input, dim, keepdim)
        if out is not None:
            _fits(out[0], input.dtype)
            _fits(out[1], "int64")
        return located(name, values, indices, out)

    def chosen(input: Tensor, dim: int, keepdim: bool) -> tuple[Any, Any]:
        indices = position(input, dim, True)
        values = find("gather").handle(input, dim, indices) if input.ndim else clone(input)
        if keepdim or not input.ndim:
            return values, indices
        shape = tuple(input.shape)
        shape = (*shape[:dim], *shape[dim + 1 :])
        return reshape(values, shape), reshape(indices, shape)

    choose.__name__ = name
    choose.__doc__ = f"""The {name}imum: of all elements, along a dim with its position, or of two arrays.

    `{name}(x)` is an array of no dims; `{name}(x, dim, keepdim)` a tuple (values, indices), whose gradient
    goes to the chosen element alone; `{name}(x, y)` is elementwise. IndexError for a dim out of range or of
    size 0.

    >>> kiln.{name}(kiln.tensor([3, 1, 2]))
    tensor({3 if name == "max" else 1})
    """
    return public(name, dtypes="all")(choose)


forms(
    "max",
    "(input) -> Tensor",
    "(input, dim: int, keepdim=False, *, out=None) -> values, indices",
    "(input, other, *, out=None) -> Tensor",
)
forms(
    "min",
    "(input) -> Tensor",
    "(input, dim: int, keepdim=False, *, out=None) -> values, indices",
    "(input, other, *, out=None) -> Tensor",
)


max = _choose("max", find("maximum"))
min = _choose("min", find("minimum"))
