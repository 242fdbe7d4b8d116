"""The closed set of kinds: for each the rule that gives dtype and shape of a result, on symbolic sizes.

A kind is a form of work that the passes know how to run. Each has its rule here, its meaning on arrays
(graph/interpret.py), its rule for batches (func/rules.py), and its place in a plan:

    pointwise constant full iota gather reduce        computed where they are read, in nests
    reshape permute expand slice as_strided           views: strides, nothing is computed
    concat embed write                                arrays stored in parts, by the nests that compute these
    matmul                                            a kernel, which nests join at its store
    along                                             a kernel of its own: an algorithm along one dim
    layer                                             a kernel of its own: the op's body says what it computes
    control                                           a call of whole graphs (graph/control.py)
    called                                            no part of a plan: a function that a library computes

Along and layer hold several, and `op.algorithm` names which: a new algorithm along a dim, or a new layer, is
no new kind, as the passes treat it like the others but for its own lowering.

The core receives these rules compiled (expressions and checks over the inputs' sizes); it has rules of its
own only for pointwise ops and views.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

from kiln import _core
from kiln.graph.graph import Graph, Shape, Value
from kiln.graph.size import Dim, product
from kiln.late import later

# The scalar type a dtype is computed in.
COMPUTE = {
    "bool": "i1", "uint8": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "float16": "f32", "bfloat16": "f32", "float32": "f32", "float64": "f64",
}  # fmt: skip

# The dtype of the sums of a product whose factors are narrower.
SUMS = {"bfloat16": "float32", "uint8": "int32", "int8": "int32", "int16": "int32"}

FLOATS = ("float16", "bfloat16", "float32", "float64")
ROUNDED = ("float16", "bfloat16")  # computed in float32, and rounded once per op

# How a pointwise op treats dtypes: what its operands are converted to, and what it gives.
#   promote   all operands to their common dtype, which is the result's
#   subtract  the same, none of them bool
#   counted   the same, bool to int64 first
#   float     the same, integers and bool to the default float dtype first
#   compare   operands to their common dtype, result bool
#   logical   operands to bool, result bool
#   where     the first operand to bool, the others to their common dtype
#   cast      the operand as it is, result of the dtype given by the first attribute
#   index     operands int64, result of the dtype given by the first attribute
RULES = ("promote", "subtract", "counted", "float", "compare", "logical", "where", "cast", "index")

NO_DIFFERENCE = (
    "Subtraction, the `-` operator, with a bool tensor is not supported. "
    "If you are trying to invert a mask, use the `~` or `logical_not()` operator instead."
)


def result_type(values: tuple[Value, ...]) -> str:
    """The common dtype of values: arrays over 0-d arrays over Python numbers, as PyTorch.

    Among numbers alone it is a number's: "float64", "int64" or "bool".
    """
    if all(v.weak for v in values):
        return max((v.dtype for v in values), key=("bool", "int64", "float64").index)
    return _core.result_type([(v.dtype, 2 if v.weak else 1 if not v.shape else 0) for v in values])


def operand_dtypes(op: Any, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[list[str], str]:
    """The dtype each operand of a pointwise op is converted to, and the result's."""
    rule = op.rule
    if rule == "cast":
        return [inputs[0].dtype], attrs[0]
    if rule == "index":
        return ["int64"] * len(inputs), attrs[0]
    if rule == "logical":
        return ["bool"] * len(inputs), "bool"
    if rule == "where":
        if inputs[0].dtype != "bool" and not inputs[0].weak:
            raise RuntimeError(
                "where expected condition to be a boolean tensor, but got a tensor with dtype "
                f"{inputs[0].dtype}"
            )
        common = result_type(inputs[1:])
        if common == "float64" and not inputs[0].weak and all(v.weak for v in inputs[1:]):
            common = _core.default_dtype_name()  # two numbers chosen by an array make an array
        return ["bool", common, common], common
    common = result_type(inputs)
    if rule == "float" and common not in FLOATS:
        common = "float64" if all(v.weak for v in inputs) else _core.default_dtype_name()
    if rule == "subtract" and any(v.dtype == "bool" for v in inputs):
        raise RuntimeError(NO_DIFFERENCE)
    if rule == "counted" and common == "bool":
        common = "int64"
    return [common] * len(inputs), "bool" if rule == "compare" else common


def broadcast(graph: Graph, shapes: list[Shape], what: str) -> Shape:
    """The shape several shapes broadcast to; dims that are not 1 must be equal."""
    ndim = max((len(s) for s in shapes), default=0)
    result: list[Dim] = [1] * ndim
    for shape in shapes:
        for d, size in enumerate(shape, ndim - len(shape)):
            if size == 1:
                continue
            if result[d] == 1:
                result[d] = size
            elif result[d] is not size:
                if isinstance(result[d], int) and isinstance(size, int) and result[d] != size:
                    raise RuntimeError(
                        f"{what}: The size of tensor a ({result[d]}) must match the size of tensor b "
                        f"({size}) at non-singleton dimension {d}"
                    )
                graph.require_equal(result[d], size, what)
    return tuple(graph.canonical(d) for d in result)


def normalize_dim(dim: int, ndim: int, op: str) -> int:
    """A dim counted from the front; IndexError if out of range."""
    dim, limit = operator.index(dim), max(ndim, 1)
    if not -limit <= dim < limit:
        raise IndexError(
            f"{op}: Dimension out of range (expected to be in range of [{-limit}, {limit - 1}], but "
            f"got {dim})"
        )
    return dim + limit if dim < 0 else dim


def normalize_dims(dim: Any, ndim: int, op: str) -> tuple[int, ...]:
    """Sorted dims from None (all), an int or a tuple of ints; each at most once."""
    if dim is None:
        return tuple(range(ndim))
    dims = [normalize_dim(d, ndim, op) for d in (dim if isinstance(dim, (tuple, list)) else (dim,))]
    if len(set(dims)) != len(dims):
        twice = next(d for k, d in enumerate(dims) if d in dims[:k])
        raise RuntimeError(f"{op}: dim {twice} appears multiple times in the list of dims")
    if not dims:
        return tuple(range(ndim))
    return tuple(sorted(dims)) if ndim else ()


def _pointwise(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    return operand_dtypes(op, inputs, attrs)[1], broadcast(graph, [v.shape for v in inputs], op.name)


def _constant(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """constant(; value): a Python number, or a Size (an int64)"""
    value = attrs[0]
    return "bool" if isinstance(value, bool) else "float64" if isinstance(value, float) else "int64", ()


def _full(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """full(number; sizes, dtype)"""
    return attrs[1], attrs[0]


def _iota(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """iota(; sizes, dim): int64 positions along dim"""
    return "int64", attrs[0]


def _reduce(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """reduce(x; dims, keepdim): dims sorted and counted from the front"""
    x, (dims, keepdim) = inputs[0], attrs
    shape = tuple(1 if d in dims else s for d, s in enumerate(x.shape) if keepdim or d not in dims)
    if op.rule == "index":
        return "int64", shape
    return ("bool" if op.rule == "logical" else x.dtype), shape


def _reshape(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """reshape(x; sizes): no -1 among the sizes, same number of elements"""
    x, sizes = inputs[0], attrs[0]
    graph.require_equal(product(x.shape), product(sizes), op.name)
    return x.dtype, sizes


def _permute(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """permute(x; dims)"""
    return inputs[0].dtype, tuple(inputs[0].shape[d] for d in attrs[0])


def _expand(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """expand(x; sizes): dims of size 1 (and new leading dims) repeat without memory"""
    x, sizes = inputs[0], attrs[0]
    for have, want in zip(x.shape, sizes[len(sizes) - x.ndim :]):
        if have != 1:
            graph.require_equal(have, want, op.name)
    return x.dtype, sizes


def _strided(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """as_strided(x; sizes, strides, (offset,)): in elements of x's contiguous memory"""
    return inputs[0].dtype, attrs[0]


def _slice(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """slice(x; dim, (start, length, step)): start, length and step are dims"""
    x, dim, (_, length, _) = inputs[0], attrs[0], attrs[1]
    return x.dtype, (*x.shape[:dim], length, *x.shape[dim + 1 :])


def _embed(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """embed(x; dim, (size, start, step)): zeros with x at start, start + step, ... along dim"""
    x, dim, (size, _, _) = inputs[0], attrs[0], attrs[1]
    return x.dtype, (*x.shape[:dim], size, *x.shape[dim + 1 :])


def _write(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """write(base, x; strides, (offset,)): base with x at the strided places of its memory"""
    return require_one_dtype(op, *inputs), inputs[0].shape


def require_one_dtype(op: Any, *values: Value) -> str:
    """The dtype of arrays whose elements one loop reads; RuntimeError if they differ."""
    first = values[0].dtype
    for other in values[1:]:
        if other.dtype != first:
            raise RuntimeError(
                f"{op.name}: expected arrays of the same dtype, but got: {first} != {other.dtype}"
            )
    return first


def _matmul(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """product(a, b): [batch..., m, k] @ [batch..., k, n], batch dims equal"""
    a, b = inputs
    if a.dtype == "bool":
        raise NotImplementedError("\"addmm_impl_cpu_\" not implemented for 'Bool'")
    graph.require_equal(a.shape[-1], b.shape[-2], op.name)
    for x, y in zip(a.shape[:-2], b.shape[:-2]):
        graph.require_equal(x, y, op.name)
    dtype = require_one_dtype(op, a, b)
    return SUMS.get(dtype, dtype) if op.rule == "wide" else dtype, (*a.shape[:-1], b.shape[-1])


def _gather(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """gather(x, index; dim): out[..i..] = x[..index[..i..]..]"""
    return inputs[0].dtype, inputs[1].shape


def _scatter(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """scatter(base, index, src; dim): base with src put in at index along dim, in index order"""
    base, _, source = inputs
    return require_one_dtype(op, base, source), inputs[0].shape


def _scan(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """scan(x; dim, dtype, reverse): a running total of x taken as dtype, or the position of its extremum"""
    return "int64" if op.rule == "index" else attrs[1], inputs[0].shape


def _sort(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """sort(x; dim, descending, (first, count)): where the ranks from `first` on are, equals as they come"""
    x, dim, (_, count) = inputs[0], attrs[0], attrs[2]
    return "int64", (*x.shape[:dim], count, *x.shape[dim + 1 :])


def _compact(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """compact(mask; (count,)): the first `count` positions at which a flat mask holds"""
    return "int64", attrs[0]


def _search(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """search(values, rows; side): how many of rows[:, ..] come before values[..]; rows [n, ..values..]"""
    require_one_dtype(op, *inputs)
    return "int64", inputs[0].shape


def _windows(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """windows(g, taps; shape, counts, ..): an array of `shape`, g added at its windows' taps"""
    g, taps = inputs
    for x, y in zip(g.shape, taps.shape):
        graph.require_equal(x, y, op.name)
    return g.dtype, attrs[0]


def _concat(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """concat(a, b, ...; dim): joined along dim, other dims equal"""
    first, dim = inputs[0], attrs[0]
    total: Dim = first.shape[dim]
    for other in inputs[1:]:
        for d, (x, y) in enumerate(zip(first.shape, other.shape)):
            if d != dim:
                graph.require_equal(x, y, op.name)
        total = total + other.shape[dim]
    return require_one_dtype(op, *inputs), (*first.shape[:dim], total, *first.shape[dim + 1 :])


Rule: TypeAlias = Callable[[Any, Graph, tuple[Value, ...], tuple[Any, ...]], tuple[str, Shape]]

ALONG: dict[str, Rule] = {
    "scatter": _scatter,
    "scan": _scan,
    "sort": _sort,
    "search": _search,
    "compact": _compact,
    "windows": _windows,
}

INFER: dict[str, Rule] = {
    "pointwise": _pointwise,
    "constant": _constant,
    "full": _full,
    "iota": _iota,
    "reduce": _reduce,
    "reshape": _reshape,
    "permute": _permute,
    "expand": _expand,
    "as_strided": _strided,
    "slice": _slice,
    "embed": _embed,
    "write": _write,
    "matmul": _matmul,
    "gather": _gather,
    "concat": _concat,
    "along": lambda op, *given: ALONG[op.algorithm](op, *given),
    "layer": lambda op, *given: op.shapes(op, *given),
    "called": lambda op, *given: op.shapes(op, *given),
    "control": later("kiln.graph.control", "infer"),
}

VIEWS = frozenset({"reshape", "permute", "expand", "as_strided", "slice"})
