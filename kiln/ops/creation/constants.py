"""Arrays from nothing: constants, positions, ranges. `full` and `iota` are the primitives.

Plain functions work out sizes and dtypes and call an op; under capture they add a node to the graph under
construction.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from kiln import _core
from kiln.device import check as check_device
from kiln.graph import graph as g
from kiln.graph.size import Size
from kiln.layout import strided
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise import comparison
from kiln.ops.views.core_views import sizes_of
from kiln.ops.views.memory_formats import in_format
from kiln.table import drawn as d
from kiln.table import kinds
from kiln.table.arguments import dtype_name, number, run, type_name
from kiln.table.public import methods, public
from kiln.table.record import Number, Sample, Sizes, Structure, Tensor, composite, constant, primitive
from kiln.table.registry import forms


@primitive(
    "full",
    samples=lambda rng, t: [Sample((2, (3, 4), t)), Sample((0, (), t))],
    dtypes="all",
    public=False,
    reference=d.reference(lambda np, value, sizes, dtype: np.full(sizes, value, d.held(dtype))),
    differentiable=False,
    tests=d.Tests(peer=None),
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


def positions(x: Any, dim: int) -> Any:
    """The position along `dim` of every element of x's shape."""
    if isinstance(x, g.Value):  # in the body of a composite
        return x.graph.add(iota, (), (tuple(x.shape), dim))
    return iota.handle(tuple(x.shape), dim)


def _ranged(np: ModuleType, start: Any, step: Any, sizes: Any, dtype: str) -> Any:
    return (start + np.arange(sizes[0]) * step).astype(d.held(dtype))


@composite(
    differentiable=False,
    at_once=True,  # mostly positions: an index is looked at on the line that uses it
    public=False,
    dtypes="numeric",
    reference=d.reference(_ranged),
    samples=lambda rng, t: [Sample((2, 3, (5,), t)), Sample((-1, 1, (37,), "int64"))],
)
def progression(start: Number, step: Number, sizes: Sizes, dtype: Structure) -> Any:
    """start, start + step, ...: in int64, or in float64 rounded once to a float dtype.

    >>> kiln.arange(1, 2, 0.5)
    tensor([1.0000, 1.5000])
    """
    exact = "float64" if dtype in kinds.FLOATS else "int64"
    place = p.convert(start.graph.add(iota, (), (sizes, 0)), exact)
    return _as(p.convert(start, exact) + place * p.convert(step, exact), dtype)


def _as(x: Tensor, dtype: str) -> Any:
    return x if not isinstance(x, g.Value) or x.dtype == dtype else p.convert(x, dtype)


@composite(
    differentiable=False,
    public=False,
    reference=d.reference(
        lambda np, start, end, sizes, dtype: np.linspace(start, end, sizes[0]).astype(d.held(dtype))
    ),
    samples=lambda rng, t: [Sample((0.0, 1.0, (5,), t)), Sample((-3.0, 4.0, (8,), t))],
)
def even_steps(start: Number, end: Number, sizes: Sizes, dtype: Structure) -> Any:
    """`sizes[0]` values from start to end, both met exactly; the second half is counted from the end.

    >>> kiln.linspace(0, 1, 3)
    tensor([0.0000, 0.5000, 1.0000])
    """
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    place = start.graph.add(iota, (), (sizes, 0))
    low, high = p.convert(start, wide), p.convert(end, wide)
    last = number(start, sizes[0] - 1)
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


def chosen_dtype(dtype: Any, default: Any = None, options: dict[str, Any] | None = None) -> str:
    """The name of a dtype given, of that of `out=`, or of the default."""
    out = options.get("out") if options else None
    if dtype is not None:
        name = dtype_name(dtype)
        if out is not None and name != dtype_name(out.dtype):
            have, want = type_name(name), type_name(dtype_name(out.dtype))
            raise RuntimeError(f"dtype {have} does not match dtype of out parameter ({want})")
        return name
    if out is not None:
        return dtype_name(out.dtype)
    return dtype_name(default) if default is not None else str(_core.default_dtype_name())


def settle(
    result: Any, requires_grad: bool, device: Any, op: str, options: dict[str, Any] | None = None
) -> Any:
    """A new array as its creator was asked for it: on the CPU, recording gradients or not; `options` are the
    other keywords of the call.
    """
    if device is not None and str(device).partition(":")[0] != "cpu":
        check_device(op, device)
    if options:
        result = _with_options(result, op, **options)
    return result.requires_grad_() if requires_grad else result


def check_options(op: str, options: dict[str, Any]) -> None:
    """The errors of a call's further keywords, before anything is drawn."""
    _with_options(None, op, **options)


def _with_options(
    result: Any,
    op: str,
    out: Any = None,
    layout: Any = None,
    memory_format: Any = None,
    pin_memory: bool = False,
    **unknown: Any,
) -> Any:
    """What PyTorch's further keywords ask for: an order in memory; `out` is written."""
    if unknown:
        raise TypeError(f"{op}() got an unexpected keyword argument '{min(unknown)}'")
    if layout is not None and layout is not strided:
        raise NotImplementedError(
            f"{op}: expected layout kiln.strided, got {layout}: there is no other layout"
        )
    if result is not None and memory_format is not None:
        result = in_format(op, result, memory_format)
    if pin_memory:
        raise RuntimeError(f"{op}: pin_memory needs an accelerator, and there is none")
    if out is None:
        return result
    if tuple(out.shape) != tuple(result.shape):
        raise RuntimeError(
            f"{op}: expected `out` of shape {list(result.shape)}, got {list(out.shape)}: it is not resized"
        )
    return out.copy_(result)


def _as_dtype(x: Tensor, name: str) -> Any:
    """A tensor or a value of a graph in a dtype; itself if it is."""
    return x if dtype_name(x.dtype) == name else p.convert(x, name)


def number_of(value: Any) -> Any:
    """A number given as such or as a tensor of one element, which is read."""
    return value.item() if isinstance(value, _core.Tensor) else value


def int_or_size(value: Any) -> Any:
    """A whole number as an int; a size that varies as it is."""
    return value if isinstance(value, Size) else int(value)


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
        *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **options: Any
    ) -> Any:
        sizes = sizes_given((options.pop("size"),) if not size and "size" in options else size, op)
        name = chosen_dtype(dtype, None, options)
        return settle(run(full, value, sizes, name), requires_grad, device, op, options)

    make.__name__ = op
    fixed = " `empty` has one fixed content, so that every run gives the same." if op == "empty" else ""
    make.__doc__ = f"""An array of {value}s of the given sizes (one by one or as a sequence) and dtype.{fixed}

    RuntimeError for a negative size.

    >>> kiln.{op}(2)
    tensor([{value}., {value}.])
    """
    return public(op, method=False, dtypes="all", differentiable=False)(make)


zeros = _constant_array("zeros", 0)
ones = _constant_array("ones", 1)
empty = _constant_array("empty", 0)


@public("full", method=False, dtypes="all", differentiable=False)
def full_(
    size: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **options: Any,
) -> Any:
    """An array whose every element is the number `fill_value`, of its type's dtype unless another is given.

    >>> kiln.full((2,), 7)
    tensor([7, 7])
    """
    fill_value = number_of(fill_value)
    by_value = (
        "bool" if isinstance(fill_value, bool) else "int64" if isinstance(fill_value, (int, Size)) else None
    )
    chosen = chosen_dtype(dtype, by_value, options)
    _core.check_in_range(fill_value, chosen)
    result = run(full, fill_value, sizes_given((size,), "full"), chosen)
    return settle(result, requires_grad, device, "full", options)


def _beside(input: Tensor, result: Any) -> Any:
    """A new array that is made after another one: beside a sample of a batch (kiln.func) one per sample, so
    that what depends on the sample may be written into it.
    """
    return input.repeated(result) if hasattr(type(input), "repeated") else result


def _like(op: str, value: int) -> Any:
    """zeros_like, ones_like or empty_like."""

    def make(
        input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **options: Any
    ) -> Any:
        sizes = tuple(input.shape)
        result = run(full, value, sizes, chosen_dtype(dtype, input.dtype))
        if type(input) is not _core.Tensor:
            result = _beside(input, result)
        if device is None and not (requires_grad or options):
            return result
        return settle(result, requires_grad, device, op, options)

    make.__name__ = op
    make.__doc__ = f"""An array of {value}s of input's shape, and of its dtype unless another is given.

    >>> kiln.{op}(kiln.tensor([5, 6]))
    tensor([{value}, {value}])
    """
    return public(op, method=False, dtypes="all", differentiable=False)(make)


zeros_like = _like("zeros_like", 0)
ones_like = _like("ones_like", 1)
empty_like = _like("empty_like", 0)


@public("full_like", method=False, dtypes="all", differentiable=False)
def full_like(
    input: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **options: Any,
) -> Any:
    """An array of input's shape and dtype, every element the number `fill_value`.

    >>> kiln.full_like(kiln.tensor([5, 6]), 3)
    tensor([3, 3])
    """
    fill_value = number_of(fill_value)
    chosen = chosen_dtype(dtype, input.dtype)
    _core.check_in_range(fill_value, chosen)
    result = _beside(input, run(full, fill_value, tuple(input.shape), chosen))
    return settle(result, requires_grad, device, "full_like", options)


def _new(op: str, value: int) -> Any:
    """The method new_zeros, new_ones or new_empty."""

    def make(
        input: Tensor,
        *size: Any,
        dtype: Any = None,
        device: Any = None,
        requires_grad: bool = False,
        **options: Any,
    ) -> Any:
        sizes = sizes_given((options.pop("size"),) if not size and "size" in options else size, op)
        result = _beside(input, run(full, value, sizes, chosen_dtype(dtype, input.dtype)))
        return settle(result, requires_grad, device, op, options)

    make.__name__ = op
    make.__doc__ = f"An array of {value}s of the given sizes, of input's dtype unless another is given."
    return make


def new_full(input: Tensor, size: Any, fill_value: Any, *, dtype: Any = None, **options: Any) -> Any:
    """An array of the number `fill_value`, of input's dtype unless another is given."""
    return _beside(input, full_(size, fill_value, dtype=chosen_dtype(dtype, input.dtype), **options))


methods({f"new_{name}": _new(f"new_{name}", k) for name, k in (("zeros", 0), ("ones", 1), ("empty", 0))})
methods({"new_full": new_full})


forms(
    "arange",
    "(end: Number, *, dtype=None, device=None, requires_grad=False, **options)",
    "(start: Number, end: Number, step: Number = 1, *, dtype=None, device=None, requires_grad=False, "
    "**options)",
)


@public("arange", method=False, dtypes="all", differentiable=False)
def arange(
    start: Any = None,
    end: Any = None,
    step: Any = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **options: Any,
) -> Any:
    """start, start + step, ... below `end` (`arange(end)` starts at 0); int64 if all are integers, else
    floats.

    RuntimeError for a step of 0 or one that leads away from `end`, or infinite ends.

    >>> kiln.arange(1, 6, 2)
    tensor([1, 3, 5])
    """
    if end is None:
        start, end = 0, start
    start, end, step = number_of(0 if start is None else start), number_of(end), number_of(step)
    if not all(isinstance(x, Size) or math.isfinite(x) for x in (start, end)):
        raise RuntimeError(f"unsupported range: {start} -> {end}")
    if dtype is not None and dtype_name(dtype) == "int64":
        start, end, step = _whole(start), _whole(end), _whole(step)
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if (end - start) * step < 0:
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    integers = all(isinstance(v, (int, Size)) for v in (start, end, step))
    if isinstance(end - start, Size) and integers:
        count = (end - start + step - 1) // step
    else:
        count = -((start - end) // step) if integers else math.ceil((end - start) / step)
    name = chosen_dtype(dtype, "int64" if integers else None, options)
    if name not in kinds.FLOATS:
        start, step = _whole(start), _whole(step)
    return settle(run(progression, start, step, (count,), name), requires_grad, device, "arange", options)


def _whole(x: Any) -> Any:
    """A number as an int; a size of a graph as it is."""
    return x if isinstance(x, Size) else int(x)


def expect_numbers(op: str, start: Any, end: Any) -> None:
    """RuntimeError unless both are numbers or tensors without dims."""
    ends = [x.ndim if isinstance(x, _core.Tensor) else 0 for x in (start, end)]
    if any(ends):
        raise RuntimeError(
            f"{op} only supports 0-dimensional start and end tensors, but got start with {ends[0]} "
            f"dimension(s) and end with {ends[1]} dimension(s)."
        )


@public("linspace", method=False, dtypes="all", differentiable=False)
def linspace(
    start: Any,
    end: Any,
    steps: int,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **options: Any,
) -> Any:
    """`steps` evenly spaced numbers from start to end, both included; of integers the ends and
    then all are rounded towards 0. RuntimeError for a negative count.

    >>> kiln.linspace(0, 1, 3)
    tensor([0.0000, 0.5000, 1.0000])
    """
    if steps < 0:
        raise RuntimeError("number of steps must be non-negative")
    name = chosen_dtype(dtype, None, options)
    expect_numbers("linspace", start, end)
    first, last = (float(number_of(x)) for x in (start, end))
    if name not in kinds.FLOATS:
        first, last = float(int(first)), float(int(last))
    result = run(even_steps, first, last, (steps,), name if name in kinds.FLOATS else "float64")
    return settle(_as_dtype(result, name), requires_grad, device, "linspace", options)


@public("eye", method=False, dtypes="all", differentiable=False)
def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **options: Any,
) -> Any:
    """The n x m matrix (m = n by default) with ones on its diagonal. RuntimeError for a negative size.

    >>> kiln.eye(2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    for name, size in (("n", n), ("m", m)):
        if isinstance(size, int) and size < 0:
            raise RuntimeError(f"{name} must be greater or equal to 0, got {size}")
    sizes = sizes_given((n, n if m is None else m), "eye")
    name = chosen_dtype(dtype, None, options)
    return settle(run(identity, sizes, name), requires_grad, device, "eye", options)
