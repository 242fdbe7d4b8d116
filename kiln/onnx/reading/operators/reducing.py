"""Operators that reduce dims, and products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln import _core, ops
from kiln.onnx.reading.operators.table import Array, Ints, Number, axis_of, cast, kind, operator
from kiln.onnx.reading.refusal import LoadError


def _dims(x: Array, given: Any, noop: int) -> tuple[int, ...] | None:
    """The dims that are reduced; None where there are none to be."""
    if given:
        return tuple(sorted({axis_of(d, x.ndim) for d in given}))
    return () if noop else tuple(range(x.ndim))


def _reduction(function: Callable[[Array, tuple[int, ...]], Any]) -> Any:
    """An operator of a function that reduces dims and keeps them as ones."""

    def apply(x: Array, dims: Ints | None = None, *, axes: Any = None, keepdims: int = 1,
              noop_with_empty_axes: int = 0) -> Any:  # fmt: skip
        reduced = _dims(x, axes if dims is None else dims, noop_with_empty_axes)
        found = cast(function(x, reduced or ()), kind(x))
        if keepdims or not reduced:
            return found
        return found.reshape(tuple([n for d, n in enumerate(x.shape) if d not in reduced]))

    return apply


def _sum(x: Array, dims: tuple[int, ...]) -> Array:
    return ops.sum(x, dims, keepdim=True) if dims else x


def _mean(x: Array, dims: tuple[int, ...]) -> Array:
    if not dims:
        return x
    if kind(x).is_floating_point:
        return ops.mean(x, dims, keepdim=True)
    return ops.div(_sum(x, dims), _count(x, dims), rounding_mode="trunc")


def _count(x: Array, dims: tuple[int, ...]) -> Any:
    count: Any = 1
    for d in dims:
        count = count * x.shape[d]
    return count


def _prod(x: Array, dims: tuple[int, ...]) -> Array:
    for d in dims:
        x = ops.prod(x, d, keepdim=True)
    return x


def _extreme(name: str) -> Any:
    def apply(x: Array, dims: tuple[int, ...]) -> Array:
        if not dims:
            return x
        if any(isinstance(x.shape[d], int) and x.shape[d] == 0 for d in dims):
            shape = [1 if d in dims else n for d, n in enumerate(x.shape)]
            return ops.full(tuple(shape), _least(kind(x), name == "amax"), dtype=kind(x))
        given = cast(x, _core.uint8) if kind(x) == _core.bool else x
        found: Array = getattr(ops, name)(given, dims, keepdim=True)
        return found

    return apply


def _least(dtype: Any, is_max: bool) -> Any:
    """The maximum of nothing, or the minimum."""
    if dtype.is_floating_point:
        return float("-inf") if is_max else float("inf")
    if dtype == _core.bool:
        return not is_max
    width = 8 * dtype.itemsize
    if dtype == _core.uint8:
        return 0 if is_max else 255
    return -(1 << (width - 1)) if is_max else (1 << (width - 1)) - 1


def _log_sum_exp(x: Array, dims: tuple[int, ...]) -> Array:
    if any(isinstance(x.shape[d], int) and x.shape[d] == 0 for d in dims):
        return ops.log(_sum(ops.exp(x), dims))
    x = x if kind(x).is_floating_point else cast(x, _core.float64)
    return ops.logsumexp(x, dims, keepdim=True) if dims else x


def _sum_of(function: Callable[[Array], Array]) -> Any:
    return lambda x, dims: _sum(function(x), dims)


def _root(x: Array, dims: tuple[int, ...]) -> Array:
    return ops.sqrt(cast(_sum(x * x, dims), kind(x) if kind(x).is_floating_point else _core.float64))


for _kind, _function in {
    "ReduceSum": _sum, "ReduceMean": _mean, "ReduceProd": _prod, "ReduceMax": _extreme("amax"),
    "ReduceMin": _extreme("amin"), "ReduceL1": _sum_of(lambda x: ops.abs(x)), "ReduceL2": _root,
    "ReduceLogSum": lambda x, dims: ops.log(_sum(x, dims)), "ReduceLogSumExp": _log_sum_exp,
    "ReduceSumSquare": _sum_of(lambda x: x * x),
}.items():  # fmt: skip
    operator(_kind)(_reduction(_function))


def _scanned(x: Array, axis: Any, exclusive: int, reverse: int, function: Any, first: int) -> Array:
    """What a function gives along one dim, exclusive of the element itself, from the end on."""
    dim = axis_of(axis, x.ndim)
    x = x.flip(dim) if reverse else x
    found = cast(function(x, dim), kind(x))
    if exclusive:
        begin = ops.full_like(x.narrow(dim, 0, 1), first)
        found = ops.cat([begin, found.narrow(dim, 0, x.shape[dim] - 1)], dim)
    return found.flip(dim) if reverse else found


@operator("CumSum")
def _cum_sum(x: Array, axis: Number, *, exclusive: int = 0, reverse: int = 0) -> Any:
    return _scanned(x, axis, exclusive, reverse, ops.cumsum, 0)


@operator("CumProd")
def _cum_prod(x: Array, axis: Number, *, exclusive: int = 0, reverse: int = 0) -> Any:
    return _scanned(x, axis, exclusive, reverse, ops.cumprod, 1)


# -- products ---------------------------------------------------------------------------------------


@operator("MatMul")
def matmul(x: Array, y: Array) -> Any:
    """A product of matrices, of stacks of them, of vectors."""
    if kind(x) != kind(y):
        raise LoadError("expected operands of one dtype")
    return ops.matmul(x, y)


@operator("Gemm")
def _gemm_of_old(a: Array, b: Array, c: Array, *, alpha: float = 1.0, beta: float = 1.0, broadcast: int = 0,
                 transA: int = 0, transB: int = 0) -> Any:  # fmt: skip
    return _gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)


@operator("Gemm", since=7)
def _gemm(a: Array, b: Array, c: Array | None = None, *, alpha: float = 1.0, beta: float = 1.0,
          transA: int = 0, transB: int = 0) -> Any:  # fmt: skip
    plain = alpha == 1.0 and transB and not transA
    if plain and (c is None or beta == 1.0 and c.ndim == 1) and kind(a).is_floating_point:
        return ops.linear(a, b, c)
    found = ops.matmul(a.t() if transA else a, b.t() if transB else b)
    found = found if alpha == 1.0 else cast(found * alpha, kind(a))
    if c is None:
        return found
    return found + (c if beta == 1.0 else cast(c * beta, kind(c)))


@operator("Einsum")
def _einsum(*arrays: Array, equation: str) -> Any:
    return ops.einsum(equation, *arrays)


@operator("Det")
def _det(x: Array) -> Any:
    return ops.det(x)
