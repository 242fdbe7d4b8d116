"""The interpreter: what a graph means, node by node, with NumPy. Slow, and the definition of every other way.

Arrays come and go in their dtype's NumPy type; a bfloat16 array is its bits as uint16. Inside, a float16 or
bfloat16 value is the float32 array of the same values, rounded after every node: the type it is computed in.

Reductions and products follow the order of docs/architecture.md section 6 to the bit. An element that does
not exist adds nothing: the lanes are padded with what changes no bit (-0.0 for sums, 1 for products).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Union

import numpy as np

from kiln.graph.control import Attrs
from kiln.graph.graph import Graph, Node
from kiln.graph.size import Dim, evaluate
from kiln.ops.reductions import scan_and_scatter_steps
from kiln.scalars import scalar as sc
from kiln.scalars.on_numpy import DTYPE
from kiln.scalars.on_numpy import evaluate as evaluate_scalars
from kiln.table.apply import apply_pointwise, convert_dtype
from kiln.table.kinds import COMPUTE, ROUNDED
from kiln.table.order import CHAIN, LANES, REDUCE_BLOCK, SEGMENT

Array = np.ndarray[Any, Any]
Given = Union[Array, int, float, bool]


def interpret(graph: Graph, inputs: Sequence[Given], slots: Sequence[int] | None = None) -> list[Array]:
    """The outputs of a graph. Inputs: an array per array input (any strides), a Python number per number.

    `slots`: what the slots hold, where they do not follow the inputs (those of a recorded region follow its
    ops).
    Raises ValueError where dtype, rank, a dim that must be 1, or a check does not hold.
    """
    env = _environment(graph, inputs)
    values = {id(v): _inside(v.dtype, np.asarray(x)) for v, x in zip(graph.inputs, inputs)}
    machine = _Machine(env if slots is None else slots)
    for a, b in graph.checks:
        if machine.size(a) != machine.size(b):
            raise ValueError(f"check {a} == {b} does not hold: {machine.size(a)} and {machine.size(b)}")
    _compute(graph, machine, values)
    return [_outside(v.dtype, values[id(v)]) for v in graph.outputs]


def _compute(graph: Graph, machine: _Machine, values: dict[int, Array]) -> None:
    """The value of every node, from those of the inputs."""
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            out = RULES[node.op.kind](machine, node, [values[id(v)] for v in node.inputs])
            shape = tuple(map(machine.size, node.out.shape))
            assert out.shape == shape, f"{node.op.name}: inferred {shape}, computed {out.shape}"
            values[id(node.out)] = out


def _environment(graph: Graph, inputs: Sequence[Given]) -> list[int]:
    """What the slots hold: sizes and strides of arrays, the bits of numbers."""
    if len(inputs) != len(graph.inputs):
        raise ValueError(f"expected {len(graph.inputs)} inputs, got {len(inputs)}")
    env: list[int] = []
    for k, (value, given) in enumerate(zip(graph.inputs, inputs)):
        if value.weak:
            env.append(int(np.float64(given).view(np.int64)) if value.dtype == "float64" else int(given))
            continue
        if not isinstance(given, np.ndarray) or given.dtype != memory_dtype(value.dtype):
            raise ValueError(
                f"input {k}: expected an array of {value.dtype}, got {getattr(given, 'dtype', given)}"
            )
        if given.ndim != value.ndim or any(d == 1 and n != 1 for d, n in zip(value.shape, given.shape)):
            raise ValueError(f"input {k}: expected {value!r}, got shape {given.shape}")
        env += given.shape
        if value.layout is not None:
            env += [s // given.itemsize for s in given.strides]
    return env


def memory_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype of an array's memory."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def _inside(dtype: str, x: Array) -> Array:
    """An array as it is computed with."""
    if dtype == "bfloat16":
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32) if dtype == "float16" else x


def _outside(dtype: str, x: Array) -> Array:
    """A computed array as memory; the values are already rounded."""
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(x).view(np.uint32).reshape(x.shape)
        return np.where(np.isnan(x), np.uint32(0x7FC0), bits >> 16).astype(np.uint16)
    return np.array(x, memory_dtype(dtype), order="C")


def scalar_on(make: Callable[..., sc.Scalar], *operands: Array, types: Sequence[str]) -> Array:
    """A scalar function on arrays that broadcast, as a machine computes it."""
    leaves = [sc.arg(k, t) for k, t in enumerate(types)]
    root = make(*leaves)
    shape = np.broadcast_shapes(*(x.shape for x in operands))
    result = evaluate_scalars([root], lambda leaf: operands[leaf.data])[0]
    return np.array(np.broadcast_to(result, shape), dtype=DTYPE[root.type])


def _converted(x: Array, source: str, target: str) -> Array:
    return scalar_on(lambda a: convert_dtype(a, source, target), x, types=[COMPUTE[source]])


def _rounded(x: Array, dtype: str) -> Array:
    """A float32 result rounded to a dtype of 16 bits; others stay."""
    return scalar_on(lambda a: sc.round_to(a, dtype), x, types=["f32"]) if dtype in ROUNDED else x


# -- reductions -------------------------------------------------------------------------------------


def fold(step: Callable[[Array, Array], Array], x: Array, neutral: Any) -> Array:
    """The last axis folded in the fixed order; `neutral` pads and is the result over nothing.

    lanes: 16; lane l takes elements l, l+16, ...; each block of 8 rows of lanes is folded left to right and
    joins the lane's total; lane l += lane l+8, +4, +2, +1; blocks of 16384 join in ascending order.
    """
    length = x.shape[-1]
    if length == 0:
        return np.full(x.shape[:-1], neutral, x.dtype)
    total: Array | None = None
    for start in range(0, length, REDUCE_BLOCK):
        part = _fold_block(step, x[..., start : start + REDUCE_BLOCK], neutral)
        total = part if total is None else step(total, part)
    assert total is not None
    return total


def _fold_block(step: Callable[[Array, Array], Array], x: Array, neutral: Any) -> Array:
    """At most 16384 elements of the last axis."""
    width = LANES * CHAIN
    rows = -(-x.shape[-1] // width)
    padded = np.full((*x.shape[:-1], rows * width), neutral, x.dtype)
    padded[..., : x.shape[-1]] = x
    chains = padded.reshape(*x.shape[:-1], rows, CHAIN, LANES)
    total: Array | None = None
    for row in range(rows):
        chain = chains[..., row, 0, :]
        for k in range(1, CHAIN):
            chain = step(chain, chains[..., row, k, :])
        total = chain if total is None else step(total, chain)
    assert total is not None
    for half in (8, 4, 2, 1):
        total = step(total[..., :half], total[..., half : 2 * half])
    return total[..., 0]


def _lowest(dtype: np.dtype[Any], sign: int) -> Any:
    """The value every other is above (sign 1) or below (sign -1)."""
    if dtype.kind == "f":
        return -np.inf * sign
    if dtype.kind == "b":
        return sign < 0
    return np.iinfo(dtype).min if sign > 0 else np.iinfo(dtype).max


def _greater(total: Array, x: Array) -> Array:
    """The later of two where it is greater or NaN; the first NaN stays."""
    return np.where((x > total) | ((x != x) & (total == total)), x, total)


def _less(total: Array, x: Array) -> Array:
    return np.where((x < total) | ((x != x) & (total == total)), x, total)


def reduce_last(name: str, x: Array) -> Array:
    """The last axis reduced: sum prod max min argmax argmin all any."""
    if name == "sum":
        zero = -0.0 if x.dtype.kind == "f" else 0
        total = fold(np.add, x, zero)
        return total if x.shape[-1] else np.zeros(x.shape[:-1], x.dtype)
    if name == "prod":
        return fold(np.multiply, x, 1)
    if name == "max":
        return fold(_greater, x, _lowest(x.dtype, 1))
    if name == "min":
        return fold(_less, x, _lowest(x.dtype, -1))
    if name in ("argmax", "argmin"):
        best = np.argmax if name == "argmax" else np.argmin
        return np.array(best(x, -1), np.int64) if x.shape[-1] else np.zeros(x.shape[:-1], np.int64)
    return np.array(np.all(x, -1) if name == "all" else np.any(x, -1))


def _reduce(machine: _Machine, node: Node, x: list[Array]) -> Array:
    dims, keepdim = node.attrs
    name = node.op.name.removeprefix("reduce_")
    kept = [d for d in range(x[0].ndim) if d not in dims]
    source = _converted(x[0], node.inputs[0].dtype, "bool") if name in ("all", "any") else x[0]
    length = int(np.prod([x[0].shape[d] for d in dims], dtype=np.int64))
    rows = source.transpose([*kept, *dims]).reshape([x[0].shape[d] for d in kept] + [length])
    out = _rounded(reduce_last(name, rows), node.out.dtype)
    return np.expand_dims(out, tuple(dims)) if keepdim else out


def _matmul(machine: _Machine, node: Node, x: list[Array]) -> Array:
    """One ascending chain of fused multiply-adds over k, restarted every 512; segments added ascending."""
    a, b = x
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    kind = COMPUTE[node.inputs[0].dtype]
    if kind not in sc.FLOATS:
        a, b = (v.astype(node.out.dtype) for v in x)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    total: Array | None = None
    for start in range(0, k, SEGMENT):
        chain = np.zeros((*batch, m, n), a.dtype)
        for p in range(start, min(start + SEGMENT, k)):
            column, row = a[..., :, p, None], b[..., None, p, :]
            if kind in sc.FLOATS:
                chain = scalar_on(sc.fma, column, row, chain, types=[kind] * 3)
            else:
                chain = chain + column * row
        total = chain if total is None else total + chain
    return np.zeros((*batch, m, n), a.dtype) if total is None else _rounded(total, node.out.dtype)


def _layer(machine: _Machine, node: Node, x: list[Array]) -> Array:
    """What the op's body gives, for arrays of these sizes."""
    op: Any = node.op
    graph = Graph()
    given = [
        graph.add_number(v.dtype) if v.weak else graph.add_input(v.dtype, a.shape)
        for v, a in zip(node.inputs, x)
    ]
    known = op.known(tuple(given), node.attrs)
    out = op.body(*(known[param.name] for param in op.params))
    graph.finish([out])
    values = {id(v): a for v, a in zip(graph.inputs, x)}
    _compute(graph, machine, values)
    return values[id(out)]


# -- the other kinds --------------------------------------------------------------------------------


class _Machine:
    """Sizes for one call."""

    def __init__(self, env: Sequence[int]) -> None:
        self.env = env
        self.called: dict[Any, list[Array]] = {}  # what calls gave: each of their results is a node

    def size(self, dim: Dim) -> int:
        """The value of a size."""
        return evaluate(dim, self.env.__getitem__)

    def sizes(self, dims: Sequence[Dim]) -> tuple[int, ...]:
        """The values of sizes."""
        return tuple(map(self.size, dims))

    def positions(self, sizes: Sequence[Dim], strides: Sequence[Dim], offset: Dim) -> Array:
        """The memory position of every index of a strided array."""
        found = np.full(self.sizes(sizes), self.size(offset), np.int64)
        for d, stride in enumerate(strides):
            axis = np.arange(found.shape[d]) * self.size(stride)
            found += axis.reshape([-1 if e == d else 1 for e in range(found.ndim)])
        return found


def _pointwise(machine: _Machine, node: Node, x: list[Array]) -> Array:
    root = apply_pointwise(node, [sc.arg(k, COMPUTE[v.dtype]) for k, v in enumerate(node.inputs)])
    out = evaluate_scalars([root], lambda leaf: x[leaf.data])[0]
    shape = machine.sizes(node.out.shape)
    return np.array(np.broadcast_to(out, shape), dtype=DTYPE[root.type])


def _constant(machine: _Machine, node: Node, x: list[Array]) -> Array:
    value = node.attrs[0]
    number = value if isinstance(value, (bool, int, float)) else machine.size(value)
    return np.array(number, DTYPE[COMPUTE[node.out.dtype]])


def _full(machine: _Machine, node: Node, x: list[Array]) -> Array:
    value = _converted(x[0], node.inputs[0].dtype, node.out.dtype)
    return np.array(np.broadcast_to(value, machine.sizes(node.out.shape)))


def _iota(machine: _Machine, node: Node, x: list[Array]) -> Array:
    sizes, dim = machine.sizes(node.attrs[0]), node.attrs[1]
    axis = np.arange(sizes[dim]).reshape([-1 if d == dim else 1 for d in range(len(sizes))])
    return np.array(np.broadcast_to(axis, sizes))


def _as_strided(machine: _Machine, node: Node, x: list[Array]) -> Array:
    sizes, strides, (offset,) = node.attrs[:3]
    return x[0].ravel()[machine.positions(sizes, strides, offset)]


def _steps(machine: _Machine, ndim: int, dim: int, start: Dim, step: Dim, count: int) -> tuple[Any, ...]:
    """An index that takes start, start + step, ... along one dim."""
    where = machine.size(start) + machine.size(step) * np.arange(count)
    return tuple(where if d == dim else slice(None) for d in range(ndim))


def _slice(machine: _Machine, node: Node, x: list[Array]) -> Array:
    dim, (start, length, step) = node.attrs
    return np.array(x[0][_steps(machine, x[0].ndim, dim, start, step, machine.size(length))])


def _embed(machine: _Machine, node: Node, x: list[Array]) -> Array:
    dim, (_, start, step) = node.attrs
    out = np.zeros(machine.sizes(node.out.shape), x[0].dtype)
    out[_steps(machine, out.ndim, dim, start, step, x[0].shape[dim])] = x[0]
    return out


def _write(machine: _Machine, node: Node, x: list[Array]) -> Array:
    strides, (offset,) = node.attrs
    flat = x[0].flatten()
    flat[machine.positions(x[1].shape, strides, offset).ravel()] = x[1].ravel()
    return flat.reshape(x[0].shape)


def _gather(machine: _Machine, node: Node, x: list[Array]) -> Array:
    """Index dims other than `dim` may be smaller than the source's."""
    source, index = x
    dim = node.attrs[0]
    grid = list(np.ogrid[tuple(slice(n) for n in index.shape)])
    grid[dim] = index
    return source[tuple(grid)]


def _scatter(machine: _Machine, node: Node, x: list[Array]) -> Array:
    """One position along `dim` at a time, ascending; each step rounds, an index out of range does nothing."""
    base, index, source = x
    dim, dtype = node.attrs[0], node.out.dtype
    out = np.moveaxis(base.copy(), dim, 0)
    index, source = np.moveaxis(index, dim, 0), np.moveaxis(source, dim, 0)
    grid = np.indices(index.shape[1:])
    for k in range(len(index)):
        inside = (index[k] >= 0) & (index[k] < len(out))
        where = (index[k][inside], *(g[inside] for g in grid))
        given = source[k][tuple(map(slice, inside.shape))][inside]
        step = scalar_on(
            lambda a, b: scan_and_scatter_steps.scatter_step(node.op.name, a, b),
            out[where],
            given,
            types=[COMPUTE[dtype]] * 2,
        )
        out[where] = _rounded(step, dtype)
    return np.array(np.moveaxis(out, 0, dim))


def _scan(machine: _Machine, node: Node, x: list[Array]) -> Array:
    """One position along `dim` at a time, from the front or the back."""
    dim, dtype, reverse = node.attrs
    name, source = node.op.name, node.inputs[0].dtype
    kind, scan = scan_and_scatter_steps.state_type(name, dtype), scan_and_scatter_steps.SCANS[name]
    taken = scalar_on(
        lambda a: sc.convert(convert_dtype(a, source, dtype), kind), x[0], types=[COMPUTE[source]]
    )
    rows = np.moveaxis(taken, dim, 0)
    start = scan.start(kind)
    state = [np.broadcast_to(v, rows.shape[1:]) for v in evaluate_scalars(list(start), _no_leaf)]
    types = [s.type for s in start]
    leaves = [sc.arg(k, t) for k, t in enumerate([*types, kind, "i64"])]
    after = scan.step(tuple(leaves[:-2]), leaves[-2], leaves[-1])
    out = np.empty(rows.shape, DTYPE[types[-1]])
    given: list[Array] = []
    for k in range(len(rows))[:: -1 if reverse else 1]:
        given[:] = [*state, rows[k], np.asarray(k)]
        state = evaluate_scalars(list(after), lambda leaf: given[leaf.data])
        out[k] = state[-1]
    result = scalar_on(lambda a: sc.convert(a, COMPUTE[node.out.dtype]), out, types=[types[-1]])
    return np.array(np.moveaxis(_rounded(result, node.out.dtype), 0, dim))


def _no_leaf(leaf: sc.Scalar) -> Array:
    raise AssertionError("a scan starts from constants")


def _sort(machine: _Machine, node: Node, x: list[Array]) -> Array:
    """Equals in the order they come, -0 equal to 0, NaN above every number."""
    dim, descending, (start, count) = node.attrs
    ranks = slice(machine.size(start), machine.size(start) + machine.size(count))
    rows = np.moveaxis(x[0], dim, -1)
    flip = slice(None, None, -1) if descending else slice(None)
    order = np.argsort(rows[..., flip], -1, kind="stable")[..., flip]
    if descending:  # of equals the stable sort of the reversed row put the last one first
        order = rows.shape[-1] - 1 - order
    return np.array(np.moveaxis(order[..., ranks], -1, dim).astype(np.int64))


def _compact(machine: _Machine, node: Node, x: list[Array]) -> Array:
    return np.array(np.flatnonzero(x[0])[: machine.size(node.attrs[0][0])].astype(np.int64))


def _search(machine: _Machine, node: Node, x: list[Array]) -> Array:
    """By halves, so that NaN in unexpected places gives the same."""
    values, rows = x
    first, left = np.zeros(values.shape, np.int64), np.full(values.shape, len(rows), np.int64)
    while (left > 0).any():
        half = left // 2
        found = np.take_along_axis(rows, np.minimum(first + half, len(rows) - 1)[None], 0)[0]
        reached = found >= values if node.attrs[0] == "left" else found > values
        before = ~reached & (left > 0)
        first, left = np.where(before, first + half + 1, first), np.where(before, left - half - 1, half)
    return first


def _windows(machine: _Machine, node: Node, x: list[Array]) -> Array:
    """Window after window, of all planes at once; a tap before its dim is the first one inside."""
    shape, counts = (tuple(map(machine.size, s)) for s in node.attrs[:2])
    kernel, stride, padding, dilation, adds = node.attrs[2:]
    sizes = shape[-len(counts) :]
    g, taps = (a.reshape(-1, int(np.prod(counts))) for a in x)
    out, lead = np.zeros((len(g), int(np.prod(sizes))), g.dtype), np.arange(len(g))
    for window, start in enumerate(np.ndindex(*counts)):
        place = np.zeros(len(g), np.int64)
        own = np.unravel_index(taps[:, window].astype(np.int64), kernel)
        for i, k, n, s, a, r in zip(start, own, sizes, stride, padding, dilation):
            at = i * s - a + k * r
            place = place * n + np.where(at < 0, at % r, at)
        out[lead, place] = out[lead, place] + g[:, window] if adds else g[:, window]
    return out.reshape(shape)


# -- control flow -----------------------------------------------------------------------------------


def _control(machine: _Machine, node: Node, x: list[Array]) -> Array:
    """One result of a call of graphs; the call is made once."""
    call = Attrs(*node.attrs)
    key = node.op.name, tuple(map(id, node.inputs)), node.attrs[1:]
    if key not in machine.called:
        env = list(map(machine.size, call.sizes))
        caller = _Caller(call, env, machine.size(call.steps[0]))
        machine.called[key] = CALLS[node.op.name](caller, x)
    return machine.called[key][call.which]


class _Caller:
    """The graphs of a control node and what their slots hold."""

    def __init__(self, call: Attrs, env: list[int], length: int) -> None:
        self.call, self.env, self.length = call, env, length

    def run(self, k: int, x: Sequence[Array], steps: Sequence[int] = ()) -> list[Array]:
        """What graph k gives for some arrays."""
        graph = self.call.graphs[k].graph
        env = [*self.env, *steps]
        arrays = iter(x)
        values = {id(v): _number(v, env) if v.weak else next(arrays) for v in graph.inputs}
        _compute(graph, _Machine(env), values)
        return [np.array(values[id(v)]) for v in graph.outputs]

    def loop(self, x: Sequence[Array]) -> tuple[list[Array], int]:
        """The end of a while_loop and how many steps there were."""
        state = self.call.counts[0]
        now, fixed, steps = list(x[:state]), list(x[state : state + self.call.counts[2]]), 0
        while bool(self.run(0, [*now, *fixed])[0]):
            now, steps = self.run(1, [*now, *fixed]), steps + 1
        return now, steps


def _number(value: Any, env: Sequence[int]) -> Array:
    """A number whose bits a slot holds."""
    bits = np.array(env[value.slot], np.int64)
    return bits.view(np.float64) if value.dtype == "float64" else bits.astype(value.dtype)


def _call_scan(caller: _Caller, x: list[Array]) -> list[Array]:
    state, each, _ = caller.call.counts
    body = caller.call.graphs[0].graph
    now, parts, fixed = x[:state], x[state : state + each], x[state + each :]
    machine = _Machine(caller.env)
    outputs = [
        np.zeros((caller.length, *machine.sizes(v.shape)), DTYPE[COMPUTE[v.dtype]])
        for v in (*body.outputs[state:], *body.outputs[:state])
    ]
    for k in range(caller.length)[:: -1 if caller.call.steps[1] else 1]:
        found = caller.run(0, [*now, *(p[k] for p in parts), *fixed])
        for out, part in zip(outputs, (*found[state:], *now)):
            out[k] = part
        now = found[:state]
    return [*now, *outputs]


CALLS: dict[str, Callable[[_Caller, list[Array]], list[Array]]] = {
    "cond": lambda caller, x: caller.run(0 if bool(x[0]) else 1, x[1:]),
    "while_loop": lambda caller, x: caller.loop(x)[0],
    "scan": _call_scan,
    "counted": lambda caller, x: caller.run(2, x, [caller.loop(x)[1]]),
    "custom": lambda caller, x: x[caller.call.counts[0] :][: caller.call.counts[1]],
}

Rule = Callable[[_Machine, Node, list[Array]], Array]


def _library(machine: _Machine, node: Node, inputs: list[Array]) -> Array:
    """What a library computes, which is its own definition (ops/linalg/called.py)."""
    op: Any = node.op
    found: Array = op.of_arrays(inputs, node.attrs)
    return found


ALONG: dict[str, Rule] = {
    "scatter": _scatter,
    "scan": _scan,
    "sort": _sort,
    "search": _search,
    "compact": _compact,
    "windows": _windows,
}

RULES: dict[str, Rule] = {
    "pointwise": _pointwise,
    "constant": _constant,
    "full": _full,
    "iota": _iota,
    "reduce": _reduce,
    "reshape": lambda machine, node, x: x[0].reshape(machine.sizes(node.attrs[0])),
    "permute": lambda machine, node, x: x[0].transpose(node.attrs[0]),
    "expand": lambda machine, node, x: np.broadcast_to(x[0], machine.sizes(node.attrs[0])),
    "as_strided": _as_strided,
    "slice": _slice,
    "embed": _embed,
    "write": _write,
    "matmul": _matmul,
    "gather": _gather,
    "concat": lambda machine, node, x: np.concatenate(x, node.attrs[0]),
    "along": lambda machine, node, x: ALONG[node.op.algorithm](machine, node, x),
    "layer": _layer,
    "control": _control,
    "called": _library,
}
