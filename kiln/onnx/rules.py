"""One rule per kind of node: how it is written with ONNX operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kiln.graph.graph import Graph, Node, Value, building
from kiln.graph.size import Dim, Size, product
from kiln.onnx import control, drawn, scalars
from kiln.onnx.builder import END, Builder
from kiln.onnx.forms import applied
from kiln.onnx.recurrent import last_cell, layer_of
from kiln.ops.reductions import scan_and_scatter_steps as steps
from kiln.scalars import scalar as sc
from kiln.table.apply import apply_pointwise
from kiln.table.kinds import COMPUTE, FLOATS, operand_dtypes

# Operators that runtimes have for float32 alone, and those that are for floats alone.
SINGLE = frozenset(
    "Acos Acosh Asin Asinh Atan Atanh Cosh Elu Erf HardSigmoid HardSwish Mish Selu Sinh Softplus Softsign "
    "Tan".split()
)
FLOATING = frozenset("Ceil Floor IsInf IsNaN Round".split())


def write(builder: Builder, node: Node) -> str:
    """The value of a node."""
    builder.what = f"{node.op.name}{f' ({node.line})' if node.line else ''}"
    if 0 in node.out.shape:  # of no elements, whatever computes it
        return builder.cast(
            builder.op("ConstantOfShape", builder.shape(node.out.shape)), "float32", node.out.dtype
        )
    made = last_cell(builder, node.out) if node.op.name == "select" else None
    if made is None:
        made = applied(builder, node)
    if made is None:
        made = RULES[node.op.kind](builder, node, [builder.names.get(id(v), "") for v in node.inputs])
    return made


def write_nodes(builder: Builder, nodes: Sequence[Node]) -> None:
    """The values of nodes of one graph, in their order."""
    scope = builder.scope
    around, scope.needed = scope.needed, nodes
    for node in nodes:
        builder.names[id(node.out)] = write(builder, node)
    scope.needed = around


def values_read(builder: Builder, node: Node) -> Sequence[Value]:
    """The operands that a node's value is computed from."""
    if node.op.name == "custom":
        return (control.passed_on(node),)
    layer = layer_of(node)
    if layer is not None:
        return layer.values
    return node.inputs[2:] if drawn.is_draw(builder, node) else node.inputs


def needed(builder: Builder, graph: Graph, outputs: Sequence[Value]) -> list[Node]:
    """The nodes that some values of a graph need: what gradients alone need is left out."""
    wanted = {id(v) for v in outputs}
    nodes = []
    for node in reversed(graph.nodes):
        if id(node.out) in wanted:
            nodes.append(node)
            wanted.update(id(v) for v in values_read(builder, node))
    return nodes[::-1]


# -- element by element -----------------------------------------------------------------------------


def _pointwise(b: Builder, node: Node, x: list[str]) -> str:
    op: Any = node.op
    wanted, result = operand_dtypes(op, node.inputs, node.attrs)
    missing = op.onnx in SINGLE and "float64" in wanted
    missing |= op.onnx in FLOATING and wanted[0] not in FLOATS
    if op.onnx and not node.attrs and not missing:
        return _named(b, node, x, wanted, result)
    dtypes = [v.dtype for v in node.inputs]
    root = apply_pointwise(node, [sc.arg(k, COMPUTE[d]) for k, d in enumerate(dtypes)])

    def leaf(scalar: sc.Scalar) -> str:
        k = scalar.data
        return b.cast(x[k], dtypes[k], scalars.NAME[scalar.type])

    found = b.cast(scalars.write(b, root, leaf), scalars.NAME[root.type], node.out.dtype)
    read = [node.inputs[s.data] for s in sc.topological([root]) if s.op == "arg"]
    return found if _reach(read, node.out) else b.op("Expand", found, b.shape(node.out.shape))


def _reach(read: Sequence[Value], out: Value) -> bool:
    """Whether what is read broadcasts to the shape of a result: a body may leave out an operand."""
    return all(
        n == 1 or any(v.ndim >= back and v.shape[-back] == n for v in read)
        for back, n in zip(range(out.ndim, 0, -1), out.shape)
    ) and (not out.ndim or any(v.ndim == out.ndim for v in read))


def _named(b: Builder, node: Node, x: list[str], wanted: Sequence[str], result: str) -> str:
    """An op that is an operator."""
    op: Any = node.op
    given = []
    for k, (name, v, dtype) in enumerate(zip(x, node.inputs, wanted)):
        of_bool = op.rule == "logical" or (op.rule == "where" and k == 0)
        given.append(b.cast(name, v.dtype, "bool" if of_bool else b.wide(dtype)))
    found = b.op(op.onnx, *given)
    return found if op.rule in ("compare", "logical") else b.cast(found, b.wide(wanted[-1]), result)


def _constant(b: Builder, node: Node, x: list[str]) -> str:
    value = node.attrs[0]
    if isinstance(value, Size):
        return b.cast(b.scalar_size(value), "int64", node.out.dtype)
    wide = "float32" if node.out.dtype in ("float16", "bfloat16") else node.out.dtype
    return b.cast(b.constant(value, wide), wide, node.out.dtype)


def _full(b: Builder, node: Node, x: list[str]) -> str:
    value = b.cast(x[0], node.inputs[0].dtype, node.out.dtype)
    return b.op("Expand", value, b.shape(node.out.shape)) if node.out.ndim else value


def _iota(b: Builder, node: Node, x: list[str]) -> str:
    sizes, dim = node.attrs[0], node.attrs[1]
    found = b.op("Range", b.constant(0), b.scalar_size(sizes[dim]), b.constant(1))
    column = [sizes[dim] if d == dim else 1 for d in range(len(sizes))]
    return b.op("Expand", b.reshape(found, column), b.shape(sizes))


# -- sums and products ------------------------------------------------------------------------------

REDUCED = {
    "sum": "ReduceSum", "prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin", "all": "ReduceMin",
    "any": "ReduceMax",
}  # fmt: skip


def _reduce(b: Builder, node: Node, x: list[str]) -> str:
    dims, keepdim = node.attrs
    (value,) = node.inputs
    name, dtype, keeps = node.op.name.removeprefix("reduce_"), value.dtype, int(keepdim)
    if name in REDUCED:
        taken = (
            "bool" if name in ("all", "any") else dtype
        )  # whether elements are 0 or not, or they themselves
        given = b.cast(b.cast(x[0], dtype, taken), taken, b.wide(taken))
        axes = b.constant(list(dims))
        found = b.op(REDUCED[name], given, axes, keepdims=keeps, noop_with_empty_axes=1)
        return b.cast(found, b.wide(taken), node.out.dtype)
    kept = [d for d in range(value.ndim) if d not in dims]
    moved = b.op("Transpose", b.cast(x[0], dtype, b.wide(dtype)), perm=[*kept, *dims])
    rows = b.reshape(moved, [*(value.shape[d] for d in kept), product(tuple(value.shape[d] for d in dims))])
    best = b.op("ArgMax" if name == "argmax" else "ArgMin", rows, axis=len(kept), keepdims=0)
    return b.reshape(best, node.out.shape) if keepdim else best


def _matmul(b: Builder, node: Node, x: list[str]) -> str:
    out = b.wide(node.out.dtype)
    given = [b.cast(name, v.dtype, out) for name, v in zip(x, node.inputs)]
    return b.cast(b.op("MatMul", *given), out, node.out.dtype)


def _by_body(b: Builder, node: Node, x: list[str]) -> str:
    """By the op's body."""
    op: Any = node.op
    graph = Graph()
    graph.slots = node.out.graph.slots
    given = []
    for v in node.inputs:
        copy = Value(graph, None, v.dtype, v.shape)
        copy.weak = v.weak
        given.append(copy)
    graph.inputs = given
    known = op.known(tuple(given), node.attrs)
    with building(graph):
        out = op.body(*(known[param.name] for param in op.params))
    b.names.update({id(v): name for v, name in zip(given, x)})
    for inner in graph.nodes:
        inner.line = node.line
    write_nodes(b, needed(b, graph, [out]))
    return b.of(out)


# -- views and parts --------------------------------------------------------------------------------


def _positions(b: Builder, sizes: Sequence[Dim], strides: Sequence[Dim], offset: Dim) -> str:
    """The positions in memory of all indices of a strided array, as a vector."""
    total = b.scalar_size(offset)
    for d, (size, stride) in enumerate(zip(sizes, strides)):
        along = b.op("Range", b.constant(0), b.scalar_size(size), b.constant(1))
        column = b.reshape(along, [size if e == d else 1 for e in range(len(sizes))])
        total = b.op("Add", total, b.op("Mul", column, b.scalar_size(stride)))
    return b.op("Reshape", total, b.constant([-1]))


def _as_strided(b: Builder, node: Node, x: list[str]) -> str:
    sizes, strides, (offset,) = node.attrs[:3]
    flat = b.op("Reshape", x[0], b.constant([-1]))
    return b.reshape(b.op("Gather", flat, _positions(b, sizes, strides, offset)), sizes)


def _slice(b: Builder, node: Node, x: list[str]) -> str:
    dim, (start, length, step) = node.attrs
    if isinstance(step, Size):
        raise b.refuse("has a step that varies, which has no ONNX form")
    if step > 0:
        return b.part(x[0], dim, start, start + (length - 1) * step + 1, step)
    range_ = b.part(x[0], dim, start + (length - 1) * step, start + 1)
    return b.part(range_, dim, -1, END, step)


def _embed(b: Builder, node: Node, x: list[str]) -> str:
    dim, (_, start, step) = node.attrs
    if isinstance(step, Size):
        raise b.refuse("has a step that varies, which has no ONNX form")
    (value,) = node.inputs
    count, total, found = value.shape[dim], node.out.shape[dim], x[0]
    if step < 0:
        found, start, step = b.part(found, dim, -1, END, -1), start + (count - 1) * step, -step
    found, length = b.cast(found, value.dtype, b.wide(value.dtype)), count
    if step > 1:  # zeros after each, but for the last
        sizes = list(value.shape)
        found = _padded(b, b.reshape(found, [*sizes[: dim + 1], 1, *sizes[dim + 1 :]]), dim + 1, 0, step - 1)
        found = b.reshape(found, [*sizes[:dim], count * step, *sizes[dim + 1 :]])
        length = (count - 1) * step + 1
        found = b.part(found, dim, 0, length)
    found = _padded(b, found, dim, start, total - start - length)
    return b.cast(found, b.wide(value.dtype), value.dtype)


def _padded(b: Builder, x: str, dim: int, before: Dim, after: Dim) -> str:
    """Zeros before and after along one dim."""
    return b.op("Pad", x, b.shape([before, after]), "", b.constant([dim]))


def _write(b: Builder, node: Node, x: list[str]) -> str:
    strides, (offset,) = node.attrs
    base, source = node.inputs
    flat, new = (b.op("Reshape", v, b.constant([-1])) for v in x)
    where = _positions(b, source.shape, strides, offset)
    return b.reshape(b.op("ScatterElements", flat, where, new, axis=0), base.shape)


def _gather(b: Builder, node: Node, x: list[str]) -> str:
    return b.op("GatherElements", *x, axis=node.attrs[0])


def _concat(b: Builder, node: Node, x: list[str]) -> str:
    return b.op("Concat", *x, axis=node.attrs[0])


# -- along one dim ----------------------------------------------------------------------------------

SCANNED = {"scan_sum": "CumSum", "scan_prod": "CumProd"}
SCATTERED = {"set": "none", "add": "add", "prod": "mul", "max": "max", "min": "min"}


def _scatter(b: Builder, node: Node, x: list[str]) -> str:
    base, index, source = node.inputs
    dim, name = node.attrs[0], node.op.name.removeprefix("scatter_")
    given = x[2]
    for d in range(source.ndim):
        if source.shape[d] is not index.shape[d] and source.shape[d] != index.shape[d]:
            given = b.part(given, d, 0, index.shape[d])
    wide = b.wide(base.dtype)
    first, values = b.cast(x[0], base.dtype, wide), b.cast(given, source.dtype, wide)
    found = b.op("ScatterElements", first, x[1], values, axis=dim, reduction=SCATTERED[name])
    return b.cast(found, wide, node.out.dtype)


def _scan(b: Builder, node: Node, x: list[str]) -> str:
    dim, dtype, reverse = node.attrs
    kind, wide = SCANNED.get(node.op.name), b.wide(dtype)
    if kind is None or not b.has(kind):
        return _scanned(b, node, x[0])
    given = b.cast(x[0], node.inputs[0].dtype, wide)
    found = b.op(kind, given, b.constant(dim), reverse=int(reverse))
    return b.cast(found, wide, node.out.dtype)


def _scanned(b: Builder, node: Node, x: str) -> str:
    """A scan step by step."""
    dim, dtype, reverse = node.attrs
    (value,), name = node.inputs, node.op.name
    kind, scan = steps.state_type(name, dtype), steps.SCANS[name]
    given = b.cast(b.cast(x, value.dtype, dtype), dtype, scalars.NAME[kind])
    start = scan.start(kind)
    types = [s.type for s in start]
    leaves = [sc.arg(k, t) for k, t in enumerate([*types, kind, "i64"])]
    after = scan.step(tuple(leaves[:-2]), leaves[-2], leaves[-1])
    rest = tuple(n for d, n in enumerate(value.shape) if d != dim)
    begin = [b.op("Expand", scalars.write(b, s, b.no_leaf), b.shape(rest)) for s in start]

    def step(index: str, now: list[str]) -> tuple[list[str], list[str]]:
        names = [*now, b.op("Gather", given, index, axis=dim), index]
        made = [scalars.write(b, s, lambda leaf: names[leaf.data]) for s in after]
        return made, made[-1:]

    looks = [(scalars.NAME[t], rest) for t in types]
    found = control.scanned(b, value.shape[dim], reverse, begin, looks, looks[-1:], step)[-1]
    order = [*range(1, dim + 1), 0, *range(dim + 1, value.ndim)]  # the scanned dim back in its place
    return b.cast(b.op("Transpose", found, perm=order), scalars.NAME[types[-1]], node.out.dtype)


def _sort(b: Builder, node: Node, x: list[str]) -> str:
    dim, descending, (start, count) = node.attrs
    (value,) = node.inputs
    given = b.cast(x[0], value.dtype, b.wide(value.dtype))
    last = start + count
    found = b.several("TopK", 2, given, b.size(last), axis=dim, largest=int(descending), sorted=1)[1]
    return found if start == 0 else b.part(found, dim, start, last)


def _search(b: Builder, node: Node, x: list[str]) -> str:
    """How many of the rows are below a value."""
    values, rows = node.inputs
    wide = b.wide(rows.dtype)
    one = b.reshape(b.cast(x[0], values.dtype, wide), [1, *values.shape])
    kind = "Less" if node.attrs[0] == "left" else "LessOrEqual"
    below = b.op(kind, b.cast(x[1], rows.dtype, wide), one)
    return b.op("ReduceSum", b.cast(below, "bool", "int64"), b.constant([0]), keepdims=0)


def _call(b: Builder, node: Node, x: list[str]) -> str:
    """A result of a call of graphs."""

    def run(graph: Graph, outputs: Sequence[Value]) -> None:
        write_nodes(b, needed(b, graph, outputs))

    return control.result(b, node, run)


def _no_form(b: Builder, node: Node, x: list[str]) -> str:
    raise b.refuse("has no ONNX form")


Rule = Callable[[Builder, Node, list[str]], str]

ALONG: dict[str, Rule] = {
    "scatter": _scatter, "scan": _scan, "sort": _sort, "search": _search, "compact": _no_form,
    "windows": _no_form,
}  # fmt: skip

RULES: dict[str, Rule] = {
    "pointwise": _pointwise,
    "constant": _constant,
    "full": _full,
    "iota": _iota,
    "reduce": _reduce,
    "reshape": lambda b, node, x: (
        b.reshape(x[0], node.out.shape) if node.inputs[0].shape != node.out.shape else x[0]
    ),
    "permute": lambda b, node, x: b.op("Transpose", x[0], perm=list(node.attrs[0])),
    "expand": lambda b, node, x: b.op("Expand", x[0], b.shape(node.out.shape)),
    "as_strided": _as_strided,
    "slice": _slice,
    "embed": _embed,
    "write": _write,
    "matmul": _matmul,
    "gather": _gather,
    "concat": _concat,
    "along": lambda b, node, x: ALONG[node.op.algorithm](b, node, x),
    "layer": _by_body,
    "composite": _by_body,
    "control": _call,
}
