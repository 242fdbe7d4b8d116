"""Extrema as PyTorch offers them: amax and relatives, undefined over nothing; max and min in three forms."""

from __future__ import annotations

from typing import Any, NamedTuple

from kiln.ops import declare as d
from kiln.ops.kinds import normalize_dim, normalize_dims
from kiln.ops.record import Op, find


def not_empty(input: Any, dims: tuple[int, ...], op: str, asked: bool = True) -> None:
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


def _checked(name: str) -> Any:
    """The reduction `name` behind the check that it reduces something."""
    op = find(name)

    def reduce(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
        not_empty(input, normalize_dims(dim, input.ndim, name), name, dim not in (None, ()))
        return op.handle(input, dim, keepdim)

    reduce.__name__, reduce.__doc__ = name, op.doc
    return d.public(name)(reduce)


amax, amin, argmax, argmin = map(_checked, ("amax", "amin", "argmax", "argmin"))


class Extremum(NamedTuple):
    """What `max(x, dim)` and `min(x, dim)` give."""

    values: Any
    indices: Any


def _choose(name: str, pair: Op) -> Any:
    """max or min in its three forms."""
    whole, position, elementwise = find(f"a{name}").handle, find(f"arg{name}").handle, pair.handle
    reshape = find("reshape").handle

    def choose(input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
        if other is not None or (dim is not None and not isinstance(dim, int)):
            return elementwise(input, dim if other is None else other)
        if dim is None:
            not_empty(input, tuple(range(input.ndim)), name, asked=False)
            return whole(input)
        dim = normalize_dim(dim, input.ndim, name)
        not_empty(input, (dim,), name)
        indices = position(input, dim, True)
        values = find("gather").handle(input, dim, indices) if input.ndim else input
        if not keepdim and input.ndim:
            shape = tuple(input.shape)
            shape = (*shape[:dim], *shape[dim + 1 :])
            values, indices = reshape(values, shape), reshape(indices, shape)
        return Extremum(values, indices)

    choose.__name__ = name
    choose.__doc__ = f"""The {name}imum: of all elements, along a dim with its position, or of two arrays.

    `{name}(x)` is an array of no dims; `{name}(x, dim, keepdim)` a tuple (values, indices), whose gradient
    goes to the chosen element alone; `{name}(x, y)` is elementwise. IndexError for a dim out of range or of
    size 0.

    >>> kiln.{name}(kiln.tensor([3, 1, 2]))
    tensor({3 if name == "max" else 1})
    """
    return d.public(name)(choose)


max = _choose("max", find("maximum"))
min = _choose("min", find("minimum"))
