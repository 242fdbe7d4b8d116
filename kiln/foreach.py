"""Functions of lists of tensors, as optimizers call them: `kiln._foreach_add_(xs, ys, alpha=0.1)`.

Each is its op, tensor by tensor, in order: what is done is what a loop over the tensors does. Those that end
in `_` write into the first list and give it back; the others give a tuple.

    second operand       a number for all; a tensor of no dims; a list of numbers; a list of tensors
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from kiln import ops
from kiln._core import Tensor
from kiln.errors import describe

_UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg "
    "reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
)
_BINARY = "add clamp_max clamp_min div maximum minimum mul pow sub"
NAMES = frozenset(
    f"_foreach_{name}"
    for name in [
        *(n + end for n in f"{_UNARY} {_BINARY} addcdiv addcmul lerp".split() for end in ("", "_")),
        *"clone copy_ max mm norm powsum zero_".split(),
    ]
)
_NUMBERED = {"maximum": "clamp_min", "minimum": "clamp_max"}  # with numbers


def function(name: str) -> Callable[..., Any]:
    """The function of a name in NAMES.

    >>> function("_foreach_mul")([kiln.ones(1), kiln.ones(2)], [2, 3])
    (tensor([2.]), tensor([3., 3.]))
    """
    short = name.removeprefix("_foreach_")
    plain = short.removesuffix("_")
    made: Any
    if plain in _UNARY.split() or short in ("clone", "zero_", "max"):
        made = _unary(name, short)
    elif plain in _BINARY.split():
        made = _binary(name, short)
    else:
        made = {
            "addcdiv": _scaled, "addcmul": _scaled, "lerp": _lerp, "copy": _copy, "mm": _mm, "norm": _norm,
            "powsum": _powsum,
        }[plain](name, short)  # fmt: skip
    made.__name__ = made.__qualname__ = name
    made.__module__ = "kiln"
    return cast(Callable[..., Any], made)


def _is_list(x: Any) -> bool:
    return isinstance(x, (list, tuple))


def _checked(name: str, tensors: Any) -> Sequence[Any]:
    """A list of tensors, at least one."""
    if not _is_list(tensors) or not all(isinstance(x, Tensor) for x in tensors):
        raise TypeError(f"{name}: expected a list of tensors, got {describe(tensors)}")
    if not tensors:
        raise RuntimeError("Tensor list must have at least one tensor.")
    return tensors  # type: ignore[no-any-return]


def _beside(name: str, tensors: Sequence[Any], other: Any) -> Sequence[Any]:
    """The second operand of each tensor."""
    if isinstance(other, Tensor):
        if other.dim():
            raise RuntimeError(
                f"scalar tensor expected to be 0 dim but it has {other.dim()} dimensions and {other.numel()} "
                "elements."
            )
        return [other] * len(tensors)
    if not _is_list(other):
        if isinstance(other, (str, bytes)) or not hasattr(other, "__float__"):
            raise TypeError(f"{name}: expected a number, a tensor or a list of either, got {describe(other)}")
        return [other] * len(tensors)
    if len(other) != len(tensors):
        if other and all(isinstance(x, Tensor) for x in other):
            raise RuntimeError(
                f"Tensor lists must have the same number of tensors, got {len(tensors)} and {len(other)}"
            )
        raise RuntimeError("Tensor list must have same number of elements as scalar list.")
    return other  # type: ignore[no-any-return]


def _given(short: str, tensors: Sequence[Any], results: list[Any]) -> Any:
    return tensors if short.endswith("_") else tuple(results)


def _unary(name: str, short: str) -> Any:
    def each(self: Any) -> Any:
        tensors = _checked(name, self)
        return _given(short, tensors, [getattr(x, short)() for x in tensors])

    return each


def _binary(name: str, short: str) -> Any:
    plain = short.removesuffix("_")
    numbered = _NUMBERED.get(plain, plain) + short[len(plain) :]

    def each(self: Any, other: Any, *, alpha: Any = None) -> Any:
        more = {} if alpha is None else {"alpha": alpha}
        if plain == "pow" and not _is_list(self) and not isinstance(self, Tensor):  # of a number
            return tuple(ops.pow(self, x) for x in _checked(name, other))
        tensors = _checked(name, self)
        others = _beside(name, tensors, other)
        if short in ("maximum_", "minimum_") and isinstance(others[0], Tensor):  # tensors have no such method
            results = [x.copy_(getattr(ops, plain)(x, y)) for x, y in zip(tensors, others)]
        else:
            of = [short if isinstance(y, Tensor) else numbered for y in others]
            results = [getattr(x, f)(y, **more) for x, y, f in zip(tensors, others, of)]
        return _given(short, tensors, results)

    return each


def _scaled(name: str, short: str) -> Any:
    def each(self: Any, tensor1: Any, tensor2: Any, value: Any = 1, *, scalars: Any = None) -> Any:
        tensors = _checked(name, self)
        firsts = _beside(name, tensors, _checked(name, tensor1))
        seconds = _beside(name, tensors, _checked(name, tensor2))
        scalars = value if scalars is None else scalars
        if isinstance(scalars, Tensor) and scalars.dim() != 1:
            raise RuntimeError(
                f"{name}: Expected packed scalar Tensor to be of dimension 1. Got {scalars.dim()} instead."
            )
        values = scalars.tolist() if isinstance(scalars, Tensor) else scalars
        factors = _beside(name, tensors, values)
        rows = zip(tensors, firsts, seconds, factors)
        return _given(short, tensors, [getattr(x, short)(a, b, value=v) for x, a, b, v in rows])

    return each


def _lerp(name: str, short: str) -> Any:
    def each(self: Any, tensors1: Any, weight: Any) -> Any:
        tensors = _checked(name, self)
        ends, weights = _beside(name, tensors, _checked(name, tensors1)), _beside(name, tensors, weight)
        rows = zip(tensors, ends, weights)
        return _given(short, tensors, [getattr(x, short)(end, w) for x, end, w in rows])

    return each


def _copy(name: str, short: str) -> Any:
    def each(self: Any, src: Any, non_blocking: bool = False) -> Any:
        tensors = _checked(name, self)
        for x, y in zip(tensors, _beside(name, tensors, _checked(name, src))):
            x.copy_(y)
        return tensors

    return each


def _mm(name: str, short: str) -> Any:
    def each(self: Any, mat2: Any) -> Any:
        tensors = _checked(name, self)
        return tuple(x.mm(y) for x, y in zip(tensors, _beside(name, tensors, _checked(name, mat2))))

    return each


def _norm(name: str, short: str) -> Any:
    def each(self: Any, ord: Any = 2, dtype: Any = None) -> Any:
        if isinstance(ord, str):
            raise TypeError(f"{name}(): argument 'ord' (position 2) must be Number, not str")
        return tuple(ops.norm(x, ord, dtype=dtype) for x in _checked(name, self))

    return each


def _powsum(name: str, short: str) -> Any:
    def each(self: Any, ord: Any = 2, dtype: Any = None) -> Any:
        return tuple(x.abs().pow(ord).sum(dtype=dtype) for x in _checked(name, self))

    return each
