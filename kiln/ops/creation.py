"""Arrays from nothing: constants, positions, ranges. `full` and `iota` are the primitives.

Plain functions work out sizes and dtypes and call an op; under capture they add a node to the graph under
construction.
"""

from __future__ import annotations

import math
from typing import Any

from kiln import _core
from kiln.graph import graph as g
from kiln.ops import comparison, kinds
from kiln.ops import declare as d
from kiln.ops import pointwise as p
from kiln.ops.declare import dtype_name, public, run
from kiln.ops.record import Number, Sample, Sizes, Structure, composite, constant, primitive
from kiln.ops.views import sizes_of


@primitive(
    "full",
    samples=lambda rng, t: [Sample((2, (3, 4), t)), Sample((0, (), t))],
    dtypes="all",
    public=False,
    reference=d.reference(lambda np, value, sizes, dtype: np.full(sizes, value, d.held(dtype))),
    differentiable=False,
    failures=d.failures((("text", (2,), "float32"), {}, TypeError, "full")),
    onnx="ConstantOfShape",
)
def full(value: Number, sizes: Sizes, dtype: Structure) -> Any:
    """An array of the given sizes and dtype (its name), every element `value`.

    >>> kiln.full((2,), 7)
    tensor([7, 7])
    """


@primitive(
    "iota",
    samples=lambda rng, t: [Sample(((3, 4), 1)), Sample(((5,), 0))],
    dtypes="integral",
    public=False,
    reference=d.reference(lambda np, sizes, dim: np.indices(sizes)[dim]),
    differentiable=False,
    failures=d.failures((("text", 0), {}, TypeError, "iota")),
)
def iota(sizes: Sizes, dim: Structure) -> Any:
    """The position of every element along `dim`: int64 of the given sizes.

    >>> kiln.arange(3)
    tensor([0, 1, 2])
    """


def filled(graph: g.Graph, value: Any, sizes: tuple[Any, ...], dtype: str) -> g.Value:
    """full(value) as a node of a graph."""
    return graph.add(full, (value if isinstance(value, g.Value) else constant(graph, value),), (sizes, dtype))


def positions(x: g.Value, dim: int) -> g.Value:
    """The position along `dim` of every element of x's shape, in the body of a composite."""
    return x.graph.add(iota, (), (tuple(x.shape), dim))


def _ranged(np: Any, start: Any, step: Any, sizes: Any, dtype: str) -> Any:
    return (start + np.arange(sizes[0]) * step).astype(d.held(dtype))


@composite(
    differentiable=False,
    at_once=True,  # mostly positions: an index is looked at on the line that uses it
    public=False,
    dtypes="numeric",
    reference=d.reference(_ranged),
    samples=lambda rng, t: [Sample((2, 3, (5,), t)), Sample((-1, 1, (37,), "int64"))],
    failures=d.failures((("text", 1, (2,), "float32"), {}, TypeError, "progression")),
    onnx="Range",
)
def progression(start: Number, step: Number, sizes: Sizes, dtype: Structure) -> Any:
    """start, start + step, ...: in int64, or in float64 rounded once to a float dtype.

    >>> kiln.arange(1, 2, 0.5)
    tensor([1.0000, 1.5000])
    """
    exact = "float64" if dtype in kinds.FLOATS else "int64"
    place = p.convert(start.graph.add(iota, (), (sizes, 0)), exact)
    return _as(p.convert(start, exact) + place * p.convert(step, exact), dtype)


def _as(x: Any, dtype: str) -> Any:
    return x if not isinstance(x, g.Value) or x.dtype == dtype else p.convert(x, dtype)


@composite(
    differentiable=False,
    public=False,
    reference=d.reference(
        lambda np, start, end, sizes, dtype: np.linspace(start, end, sizes[0]).astype(d.held(dtype))
    ),
    samples=lambda rng, t: [Sample((0.0, 1.0, (5,), t)), Sample((-3.0, 4.0, (8,), t))],
    failures=d.failures((("text", 1, (2,), "float32"), {}, TypeError, "even_steps")),
)
def even_steps(start: Number, end: Number, sizes: Sizes, dtype: Structure) -> Any:
    """`sizes[0]` values from start to end, both met exactly; the second half is counted from the end.

    >>> kiln.linspace(0, 1, 3)
    tensor([0.0000, 0.5000, 1.0000])
    """
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    place = start.graph.add(iota, (), (sizes, 0))
    low, high = p.convert(start, wide), p.convert(end, wide)
    last = d.number(start, sizes[0] - 1)
    step = (high - low) / p.convert(p.maximum(last, 1), wide)
    up, down = p.convert(place, wide), p.convert(last - place, wide)
    return _as(p.where(comparison.lt(2 * place, p.add(last, 1)), low + step * up, high - step * down), dtype)


@composite(
    differentiable=False,
    public=False,
    reference=d.reference(lambda np, sizes, dtype: np.eye(*sizes, dtype=d.held(dtype))),
    samples=lambda rng, t: [Sample(((3, 5), t)), Sample(((4, 4), t))],
    dtypes="all",
    failures=d.failures((("text", "float32"), {}, TypeError, "identity")),
    onnx="EyeLike",
)
def identity(sizes: Sizes, dtype: Structure) -> Any:
    """Ones on the diagonal of a matrix of zeros.

    >>> kiln.eye(2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    graph = g.current()
    return p.convert(comparison.eq(graph.add(iota, (), (sizes, 0)), graph.add(iota, (), (sizes, 1))), dtype)


# Public functions


def chosen_dtype(dtype: Any, default: Any = None) -> str:
    """The name of a dtype given, or of the default."""
    if dtype is not None:
        return dtype_name(dtype)
    return dtype_name(default) if default is not None else str(_core.default_dtype_name())


def settle(result: Any, requires_grad: bool, device: Any, op: str) -> Any:
    """A new array as its creator was asked for it: on the CPU, recording gradients or not."""
    if device is not None and str(device).partition(":")[0] != "cpu":
        raise NotImplementedError(
            f"{op}: expected device 'cpu', got {str(device)!r}: there is no other device"
        )
    return result.requires_grad_() if requires_grad else result


def sizes_given(size: tuple[Any, ...], op: str) -> tuple[Any, ...]:
    """Sizes given one by one or as a sequence, none of them negative."""
    sizes = sizes_of(size)
    for s in sizes:
        if isinstance(s, int) and s < 0:
            raise RuntimeError(f"Trying to create tensor with negative dimension {s}: {list(sizes)}")
        if isinstance(s, float):
            raise TypeError(
                f"{op}(): argument 'size' must be a tuple of ints, but found element of type float"
            )
    return sizes


def _constant_array(op: str, value: int) -> Any:
    """zeros, ones or empty."""

    def make(
        *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **size_keyword: Any
    ) -> Any:
        sizes = sizes_given((size_keyword.pop("size"),) if not size and "size" in size_keyword else size, op)
        if size_keyword:
            raise TypeError(f"{op}() got an unexpected keyword argument '{min(size_keyword)}'")
        return settle(run(full, value, sizes, chosen_dtype(dtype)), requires_grad, device, op)

    make.__name__ = op
    fixed = " `empty` has one fixed content, so that every run gives the same." if op == "empty" else ""
    make.__doc__ = f"""An array of {value}s of the given sizes (one by one or as a sequence) and dtype.{fixed}

    RuntimeError for a negative size.

    >>> kiln.{op}(2)
    tensor([{value}., {value}.])
    """
    return public(op, method=False)(make)


zeros = _constant_array("zeros", 0)
ones = _constant_array("ones", 1)
empty = _constant_array("empty", 0)


@public("full", method=False)
def full_(
    size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Any:
    """An array whose every element is the number `fill_value`, of its type's dtype unless another is given.

    >>> kiln.full((2,), 7)
    tensor([7, 7])
    """
    by_value = "bool" if isinstance(fill_value, bool) else "int64" if isinstance(fill_value, int) else None
    chosen = chosen_dtype(dtype, by_value)
    _core.check_in_range(fill_value, chosen)
    result = run(full, fill_value, sizes_given((size,), "full"), chosen)
    return settle(result, requires_grad, device, "full")


def _like(op: str, value: int) -> Any:
    """zeros_like, ones_like or empty_like."""

    def make(input: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
        sizes = tuple(input.shape)
        result = run(full, value, sizes, chosen_dtype(dtype, input.dtype))
        return settle(result, requires_grad, device, op)

    make.__name__ = op
    make.__doc__ = f"""An array of {value}s of input's shape, and of its dtype unless another is given.

    >>> kiln.{op}(kiln.tensor([5, 6]))
    tensor([{value}, {value}])
    """
    return public(op, method=False)(make)


zeros_like = _like("zeros_like", 0)
ones_like = _like("ones_like", 1)
empty_like = _like("empty_like", 0)


@public("full_like", method=False)
def full_like(
    input: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Any:
    """An array of input's shape and dtype, every element the number `fill_value`.

    >>> kiln.full_like(kiln.tensor([5, 6]), 3)
    tensor([3, 3])
    """
    chosen = chosen_dtype(dtype, input.dtype)
    _core.check_in_range(fill_value, chosen)
    result = run(full, fill_value, tuple(input.shape), chosen)
    return settle(result, requires_grad, device, "full_like")


def _new(op: str, value: int) -> Any:
    """The method new_zeros, new_ones or new_empty."""

    def make(
        input: Any, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
    ) -> Any:
        result = run(full, value, sizes_given(size, op), chosen_dtype(dtype, input.dtype))
        return settle(result, requires_grad, device, op)

    make.__name__ = op
    make.__doc__ = f"An array of {value}s of the given sizes, of input's dtype unless another is given."
    return make


NEW = {f"new_{name}": _new(f"new_{name}", value) for name, value in (("zeros", 0), ("ones", 1), ("empty", 0))}


def new_full(
    input: Any, size: Any, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False
) -> Any:
    """An array of the number `fill_value`, of input's dtype unless another is given."""
    return full_(size, fill_value, dtype=chosen_dtype(dtype, input.dtype), requires_grad=requires_grad)


@public("arange", method=False)
def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Any:
    """start, start + step, ... below `end` (`arange(end)` starts at 0); int64 if all are integers, else
    floats.

    RuntimeError for a step of 0 or one that leads away from `end`.

    >>> kiln.arange(1, 6, 2)
    tensor([1, 3, 5])
    """
    if end is None:
        start, end = 0, start
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if (end - start) * step < 0:
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    integers = all(isinstance(v, int) for v in (start, end, step))
    count = -((start - end) // step) if integers else math.ceil((end - start) / step)
    name = chosen_dtype(dtype, "int64" if integers else None)
    if name not in kinds.FLOATS:
        start, step = int(start), int(step)
    return settle(run(progression, start, step, (count,), name), requires_grad, device, "arange")


@public("linspace", method=False)
def linspace(
    start: float,
    end: float,
    steps: int,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Any:
    """`steps` evenly spaced floats from start to end, both included. RuntimeError for a negative count.

    >>> kiln.linspace(0, 1, 3)
    tensor([0.0000, 0.5000, 1.0000])
    """
    if steps < 0:
        raise RuntimeError("number of steps must be non-negative")
    result = run(even_steps, float(start), float(end), (steps,), chosen_dtype(dtype))
    return settle(result, requires_grad, device, "linspace")


@public("eye", method=False)
def eye(
    n: int, m: int | None = None, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Any:
    """The n x m matrix (m = n by default) with ones on its diagonal. RuntimeError for a negative size.

    >>> kiln.eye(2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    sizes = sizes_given((n, n if m is None else m), "eye")
    return settle(run(identity, sizes, chosen_dtype(dtype)), requires_grad, device, "eye")
