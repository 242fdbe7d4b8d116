"""Runs a plan: with NumPy (what its kernels mean) or with its compiled kernels.

With NumPy, nests become whole-array evaluation; reductions use the interpreter's folds, so results are exact,
and every access is checked against its buffer. Compiled kernels are called for two ranges of their units.
"""

from __future__ import annotations

import ctypes
import math
import struct
from typing import Any

import numpy as np
from codegen_peer import load_object

from kiln.codegen.along.along import AlongSpec
from kiln.codegen.gemm.arguments import BATCH, arguments_of
from kiln.codegen.gemm.element import element_of
from kiln.codegen.gemm.spec import GemmSpec
from kiln.codegen.nests.nest import ROW_ACCUMULATORS, TURN, Nest
from kiln.graph.graph import Graph, building
from kiln.graph.interpret import _greater, _inside, _less, memory_dtype, reduce_last, scalar_on
from kiln.graph.size import evaluate
from kiln.graph.slots import array_input
from kiln.passes.plan import Free, Plan
from kiln.scalars import scalar as sc
from kiln.scalars.on_numpy import DTYPE
from kiln.scalars.on_numpy import evaluate as evaluate_scalars
from kiln.table.kinds import COMPUTE

Array = np.ndarray[Any, Any]
NAN = 0xA5  # what fresh memory is filled with: reading it shows


class Runner:
    """One call of a plan."""

    def __init__(self, plan: Plan, graph: Graph, inputs: list[Any], compiled: bool = False) -> None:
        self.plan = plan
        self.compiled = compiled
        self.graph = graph
        self.slots: list[int] = []
        self.bases: dict[int, tuple[Array, int]] = {}
        for value, given in zip(graph.inputs, inputs):
            if value.weak:
                bits = (
                    struct.unpack("<q", struct.pack("<d", given))[0]
                    if value.dtype == "float64"
                    else int(given)
                )
                self.slots.append(bits)
            else:
                self.slots += given.shape
                if value.layout is not None:
                    self.slots += [s // given.itemsize for s in given.strides]
        self.inputs = inputs
        self.memory: dict[int, Array] = {}

    def size(self, dim: Any) -> int:
        """The value of a size."""
        return evaluate(dim, self.slots.__getitem__)

    def run(self) -> list[Array]:
        """The outputs; updated inputs are changed in place."""
        for k, buffer in enumerate(self.plan.buffers):
            if buffer.kind == "output":
                self.memory[k] = self._fresh(buffer)
        for step in self.plan.steps:
            if isinstance(step, Free):
                del self.memory[step.buffer]
                continue
            for number, _, _ in step.pointers:
                if self.plan.buffers[number].kind == "temp" and number not in self.memory:
                    self.memory[number] = self._fresh(self.plan.buffers[number])
            self._launch(step)
        assert all(self.plan.buffers[k].kind != "temp" for k in self.memory), "a temporary was never freed"
        return [self._output(b, d, tuple(map(self.size, s))) for b, d, s in self.plan.outputs]

    def _fresh(self, buffer: Any) -> Array:
        return np.full(self.size(buffer.elements) * buffer.itemsize, NAN, np.uint8)

    def _output(self, number: int, dtype: str, shape: tuple[int, ...]) -> Array:
        buffer = self.plan.buffers[number]
        if buffer.kind == "input":
            return np.array(self.inputs[buffer.index])
        return self.memory[number].view(memory_dtype(dtype))[: int(np.prod(shape))].reshape(shape)

    def _operand(
        self, pointer: tuple[int, Any, int], dtype: str, sizes: list[int], strides: list[int]
    ) -> Array:
        """A strided array over a buffer, bounds checked."""
        number, offset, itemsize = pointer
        assert np.dtype(memory_dtype(dtype)).itemsize == itemsize
        buffer = self.plan.buffers[number]
        start = self.size(offset)
        if buffer.kind == "input":
            base = self.inputs[buffer.index]
            window, low = _window(base)
        else:
            window, low = self.memory[number], 0
        window = window.view(memory_dtype(dtype))
        start += low
        if 0 not in sizes:
            reach = [(n - 1) * s for n, s in zip(sizes, strides)]
            first, last = start + sum(r for r in reach if r < 0), start + sum(r for r in reach if r > 0)
            assert 0 <= first and last < window.size, f"{first}..{last} outside {window.size} elements"
        else:
            return np.empty(sizes, window.dtype)
        return np.lib.stride_tricks.as_strided(window[start:], sizes, [s * itemsize for s in strides])

    def _launch(self, step: Any) -> None:
        kernel = self.plan.kernels[step.kernel]
        args = [self.size(a) for a in step.args]
        grid = self.size(step.grid)
        spec = kernel[0]
        alone = isinstance(spec, GemmSpec) and spec.row  # each unit of one row may be worth a thread
        assert self.size(step.grain) >= (0 if alone else 1)
        if grid == 0:
            return
        if self.compiled:
            self._call(kernel, step, args, grid)
        elif isinstance(spec, Nest):
            assert grid == _grid(spec, args[: len(spec.dims)]), (grid, spec)
            self._nest(spec, step.pointers, args)
        elif isinstance(spec, AlongSpec):
            self._scatter(spec, step.pointers, args)
        else:
            self._matmul(spec, step.pointers, args)

    def _call(self, kernel: Any, step: Any, args: list[int], grid: int) -> None:
        """The compiled kernel on addresses, its units cut in two."""
        places = []
        for number, offset, itemsize in step.pointers:
            buffer = self.plan.buffers[number]
            base = self.inputs[buffer.index] if buffer.kind == "input" else self.memory[number]
            places.append(base.ctypes.data + self.size(offset) * itemsize)
        places += [0] if step.split else []  # never cut
        own = np.full(self.size(step.scratch) + 8, -1)
        places.append(own.ctypes.data + -own.ctypes.data % 64)  # as aligned as the core's
        table = (ctypes.c_void_p * len(places))(*places)
        numbers = (ctypes.c_int64 * max(len(args), 1))(*args)
        function = compiled_kernel(kernel)
        for begin, end in ((0, grid // 3), (grid // 3, grid)):
            function(ctypes.addressof(table), ctypes.addressof(numbers), begin, end)

    # -- nests --------------------------------------------------------------------------------------

    def _nest(self, nest: Nest, pointers: Any, args: list[int]) -> None:
        count = len(nest.dims)
        sizes, rest = args[:count], args[count:]
        arrays = []
        for pointer, operand in zip(pointers, nest.operands):
            strides, rest = rest[: len(operand.strides)], rest[len(operand.strides) :]
            for stride, kind in zip(strides, operand.strides):
                assert kind == "s" or int(kind) == stride
            own = len(operand.strides) != count or _computed(nest, pointers.index(pointer))
            arrays.append((pointer, operand, strides, own))
        self._evaluate(nest, sizes, arrays, rest)

    def _evaluate(self, nest: Nest, sizes: list[int], arrays: list[Any], numbers: list[int]) -> None:
        done: dict[int, Array] = {}
        reduced = [d for d, role in enumerate(nest.dims) if role == "r"]

        def leaf(node: sc.Scalar) -> Array:
            if id(node) in done:
                return done[id(node)]
            if node.op == "number":
                if nest.numbers[node.data] == "f64":
                    return np.array(struct.unpack("<d", struct.pack("<q", numbers[node.data]))[0])
                return np.array(numbers[node.data], np.int64)
            if node.op == "index":
                return np.arange(sizes[node.data]).reshape(
                    [-1 if d == node.data else 1 for d in range(len(sizes))]
                )
            pointer, operand, strides, _ = arrays[node.data]
            return _inside(operand.dtype, self._operand(pointer, operand.dtype, sizes, strides))

        def gather(node: sc.Scalar, places: list[Array]) -> Array:
            pointer, operand, strides, _ = arrays[node.data]
            extents = [int(np.max(p, initial=-1)) + 1 for p in places]
            source = _inside(operand.dtype, self._operand(pointer, operand.dtype, extents, strides))
            return source[tuple(np.broadcast_arrays(*places))]

        for node in sc.topological([x for _, x in nest.stores]):
            if node.op in sc.REDUCE:
                x = evaluate_scalars([node.args[0]], leaf, gather)[0]
                x = np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(sizes)))
                kept = [d for d in range(len(sizes)) if d not in reduced]
                rows = (
                    x.transpose([*kept, *reduced]).reshape([sizes[d] for d in kept] + [-1])
                    if x.size
                    else np.empty(
                        [sizes[d] for d in kept] + [int(np.prod([sizes[d] for d in reduced]))], x.dtype
                    )
                )
                out = _in_blocks(node.op, rows, nest.block)
                done[id(node)] = out.reshape([1 if d in reduced else sizes[d] for d in range(len(sizes))])
        values = [np.array(v) for v in evaluate_scalars([x for _, x in nest.stores], leaf, gather)]
        for (k, _), value in zip(nest.stores, values):
            pointer, operand, strides, _ = arrays[k]
            if operand.folds:
                rows = np.broadcast_to(value, sizes)
                units = _strips(operand.mode, rows)
                target = self._operand(pointer, operand.dtype, list(units.shape), strides)
                target[...] = _encode(operand.dtype, units)
                continue
            point = any(strides[d] != 0 for d in reduced) or any(
                n != 1
                for d, n in enumerate(np.shape(value)[-len(sizes) :])
                if d in reduced and np.ndim(value) == len(sizes)
            )
            shape = [1 if d in reduced and not point else n for d, n in enumerate(sizes)]
            target = self._operand(pointer, operand.dtype, shape, strides)
            target[...] = _encode(operand.dtype, np.broadcast_to(value, shape))

    # -- products and scatters ----------------------------------------------------------------------

    def _matmul(self, spec: Any, pointers: Any, args: list[int]) -> None:
        names = arguments_of(spec)

        def words(*group: Any) -> list[int]:
            *outer, last = group
            return [args[names.word(*outer, name)] for name in last]

        dims = range(BATCH)
        batch, (m, n, k) = words("size", dims), words("size", "mnk")
        stretch, stretch_stride = words("stretch", ("rows", "stride"))
        strides = [words("stride", "a", (*dims, "row", "k")), words("stride", "b", (*dims, "k", "column"))]
        own_dims = (*dims, "row", "column")
        strides += [words("stride", j + 1, own_dims) for j in range(len(spec.operands))]
        numbers = words("number", range(len(spec.numbers)))

        def block(j: int, *sizes: int) -> Array:
            dtype = spec.operands[j - 2].dtype if j > 1 else spec.dtype
            return self._operand(pointers[j], dtype, [*batch, *sizes], strides[j])

        for operand, own in zip(spec.operands, strides[2:]):
            assert all(
                kind == "s" or int(kind) == stride for stride, kind in zip(own[BATCH:], operand.strides)
            )

        def leaf(node: sc.Scalar, sizes: tuple[int, int]) -> Array:
            if node.op == "number":
                if spec.numbers[node.data] == "f64":
                    return np.array(struct.unpack("<d", struct.pack("<q", numbers[node.data]))[0])
                return np.array(numbers[node.data], np.int64)
            if node.op == "index":
                return np.arange(n)
            return _inside(spec.operands[node.data - 1].dtype, block(node.data + 1, *sizes))

        def factor(j: int, prologue: Any, *sizes: int) -> Array:
            if j == 0 and stretch < m:
                assert prologue is None and m % stretch == 0
                parts = [*batch, m // stretch, stretch, k]
                steps = [*strides[0][:BATCH], stretch_stride, *strides[0][BATCH:]]
                rows = self._operand(pointers[0], spec.dtype, parts, steps)
                return _inside(spec.dtype, rows).reshape(*batch, m, k)
            if prologue is None:
                return _inside(spec.dtype, block(j, *sizes))
            own = (sizes[1], sizes[0]) if prologue.transposed else (sizes[0], sizes[1])
            (x,) = evaluate_scalars([prologue.value], lambda node: leaf(node, own))
            x = np.broadcast_to(x, (*batch, *own))
            return x.swapaxes(-1, -2) if prologue.transposed else x

        element = element_of(spec.dtype)
        a, b = (x.astype(element.total) for x in (factor(0, spec.a, m, k), factor(1, spec.b, k, n)))
        count = math.prod(batch)
        whole = product(a.reshape(count, m, k), b.reshape(count, k, n), element.summed)
        total = whole.reshape(*batch, m, n)
        values = evaluate_scalars(
            [x for _, x in spec.stores],
            lambda node: total if (node.op, node.data) == ("load", 0) else leaf(node, (m, n)),
        )
        positions = np.empty(0)
        for (j, scalar), value in zip(spec.stores, values):
            operand = spec.operands[j - 1]
            if operand.folds:
                rows = np.broadcast_to(np.array(value), (*batch, m, n)).reshape(count, m, n)
                if scalar is TURN:
                    chains = positions
                elif operand.mode.startswith("arg"):
                    chains, positions = best_of(operand.mode, rows)
                else:
                    chains = chains_of(operand.mode, rows)
                target = block(j + 1, *chains.shape[1:])
                target[...] = _encode(operand.dtype, chains).reshape(target.shape)
                continue
            target = block(j + 1, m, n)
            target[...] = _encode(spec.operands[j - 1].dtype, np.broadcast_to(np.array(value), target.shape))

    def _scatter(self, spec: Any, pointers: Any, args: list[int]) -> None:
        """The one kernel along a dim that tests run by hand; the others are compared as compiled."""
        assert spec.what == "scatter_add", spec
        dtype, positions, _ = spec.dtypes
        dims = len(spec.strides[0])
        along, bound, sizes = args[0], args[1], args[2 : dims + 1]
        rest = args[dims + 1 :]
        out = self._operand(pointers[0], dtype, [bound, *sizes], rest[:dims])
        index = self._operand(pointers[1], positions, [along, *sizes], rest[dims : 2 * dims])
        source = self._operand(pointers[2], dtype, [along, *sizes], rest[2 * dims :])
        for i in range(along):
            for column in np.ndindex(*sizes):
                to = (int(index[i][column]), *column)
                if 0 <= to[0] < bound:
                    x = _inside(dtype, np.array([out[to], source[i][column]]))
                    out[to] = _encode(dtype, np.array(x[0] + x[1], x.dtype))


def _grid(nest: Nest, sizes: list[int]) -> int:
    kept = [n for n, role in zip(sizes, nest.dims) if role == "p"]
    schedule = nest.schedule()
    if schedule == "flat":
        return sizes[0]
    if schedule == "map":
        return int(np.prod(sizes[:-1]))
    if schedule == "columns":
        return int(np.prod(kept[:-1])) * -(-kept[-1] // nest.column_block())
    if schedule == "strips":
        return -(-kept[0] // 16384) * 16
    return int(np.prod(kept))


def _window(base: Array) -> tuple[Array, int]:
    """The memory an input array spans as a flat array, and where its first element lies in it."""
    if base.size == 0:
        return base.reshape(-1), 0
    itemsize = base.itemsize
    steps = [s // itemsize for s in base.strides]
    low = sum((n - 1) * s for n, s in zip(base.shape, steps) if s < 0)
    high = sum((n - 1) * s for n, s in zip(base.shape, steps) if s > 0)
    first = base[tuple(-1 if s < 0 else 0 for s in steps)] if base.ndim else base
    origin = np.lib.stride_tricks.as_strided(
        base[tuple(slice(-1, None) if s < 0 else slice(0, 1) for s in steps)]
        if base.ndim
        else base.reshape(1),
        (high - low + 1,),
        (itemsize,),
    )
    del first
    return origin, -low


def _computed(nest: Nest, k: int) -> bool:
    return any(s.op == "load" and s.args and s.data == k for s in sc.topological([x for _, x in nest.stores]))


def _encode(dtype: str, x: Array) -> Array:
    if dtype == "bfloat16":
        rounded = scalar_on(lambda a: sc.round_to(a, dtype), np.array(x), types=["f32"])
        bits = np.ascontiguousarray(rounded).view(np.uint32).reshape(rounded.shape)
        return np.where(np.isnan(rounded), np.uint32(0x7FC0), bits >> 16).astype(np.uint16)
    if dtype == "float16":
        x = scalar_on(lambda a: sc.round_to(a, dtype), np.array(x), types=["f32"])
    else:
        assert x.dtype == DTYPE[COMPUTE[dtype]], (x.dtype, dtype)
    with np.errstate(all="ignore"):
        return x.astype(memory_dtype(dtype))


def _present(x: Array, n: int) -> Array:
    """Accumulators (groups, lanes) of n elements as a row, without those of lanes that no element is in."""
    used = np.arange(x.shape[-2])[:, None] * 128 + np.arange(16) < n
    return x[..., used]


def best_of(name: str, x: Array) -> tuple[Array, Array]:
    """The accumulators of argmax or argmin, and the first place in its chain of each."""
    n, groups = x.shape[-1], -(-x.shape[-1] // 128)
    padded = np.full((*x.shape[:-1], groups * 128), identity(name.removeprefix("arg"), x.dtype), x.dtype)
    padded[..., :n] = x
    padded = padded.reshape(*x.shape[:-1], groups, 8, 16)
    at = (np.argmax if name == "argmax" else np.argmin)(padded, -2)
    best = np.take_along_axis(padded, at[..., None, :], -2)[..., 0, :]
    return _present(best, n), _present(at.astype(np.uint8), n)


STEPS: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": _greater,
    "min": _less,
    "all": np.logical_and,
    "any": np.logical_or,
}


def _in_blocks(name: str, x: Array, block: int) -> Array:
    """Blocks of the last dim in the order of 16 lanes, one after the other."""
    if block == ROW_ACCUMULATORS and x.shape[-1]:
        lanes = np.full((*x.shape[:-1], -(-x.shape[-1] // 16) * 16), identity(name, x.dtype), x.dtype)
        lanes[..., : x.shape[-1]] = x
        parts = [lanes[..., k : k + block] for k in range(0, lanes.shape[-1], block)]
        found = [reduce_last(name, _folded(name, p.reshape(*p.shape[:-1], -1, 16))) for p in parts]
        return _folded(name, np.stack(found, -1)[..., None])[..., 0]
    if x.shape[-1] <= block or name not in STEPS:
        return reduce_last(name, x)
    total = reduce_last(name, x[..., :block])
    for k in range(block, x.shape[-1], block):
        total = STEPS[name](total, reduce_last(name, x[..., k : k + block]))
    return total


def _folded(name: str, x: Array) -> Array:
    """The last dim but one, left to right."""
    total = x[..., 0, :]
    for k in range(1, x.shape[-2]):
        total = STEPS[name](total, x[..., k, :])
    return total


def chains_of(name: str, x: Array) -> Array:
    """The accumulators of rows: of each 128 elements, the 8 of each lane."""
    groups = -(-x.shape[-1] // 128)
    padded = np.full((*x.shape[:-1], groups * 128), identity(name, x.dtype), x.dtype)
    padded[..., : x.shape[-1]] = x
    return _present(_folded(name, padded.reshape(*x.shape[:-1], groups, 8, 16)), x.shape[-1])


def _strips(name: str, x: Array) -> Array:
    """The accumulators (block and lane, column): of each lane the rows of its block, 8 by 8.

    A reduction of one lane's elements and of nothing in the other lanes is that lane's accumulator, as the
    absent add nothing; only a lane without any rows holds the identity.
    """
    found = []
    for start in range(0, len(x), 16384):
        block = x[start : start + 16384]
        for lane in range(16):
            rows = block[lane::16]
            alone = np.full((*x.shape[1:], len(rows) * 16), identity(name, x.dtype), x.dtype)
            alone[..., ::16] = np.moveaxis(rows, 0, -1)
            if len(rows):
                found.append(reduce_last(name, alone))
            else:
                found.append(np.full(x.shape[1:], identity(name, x.dtype), x.dtype))
    return np.stack(found)


def identity(name: str, dtype: Any) -> Any:
    """What changes nothing where it is added."""
    if name == "sum":
        return -0.0 if dtype.kind == "f" else 0
    if name in ("prod", "all", "any"):
        return name != "any"
    low = name == "max"
    if dtype.kind == "f":
        return -np.inf if low else np.inf
    return np.iinfo(dtype).min if low else np.iinfo(dtype).max


def product(a: Array, b: Array, kind: str) -> Array:
    """A product in the fixed order."""
    total = None
    for start in range(0, a.shape[-1], 512):
        chain = np.zeros((*a.shape[:-1], b.shape[-1]), a.dtype)
        for p in range(start, min(start + 512, a.shape[-1])):
            column, row = a[..., :, p, None], b[..., None, p, :]
            chain = (
                scalar_on(sc.fma, column, row, chain, types=[kind] * 3)
                if kind in sc.FLOATS
                else chain + column * row
            )
        total = chain if total is None else total + chain
    return np.zeros((*a.shape[:-1], b.shape[-1]), a.dtype) if total is None else total


def run_plan(plan: Plan, graph: Graph, inputs: list[Any], compiled: bool = False) -> list[Array]:
    """The outputs of a plan; inputs that are updated are changed."""
    with np.errstate(all="ignore"):
        return Runner(plan, graph, inputs, compiled).run()


_functions: dict[str, Any] = {}


def compiled_kernel(kernel: Any) -> Any:
    """A kernel of a plan as a function of (pointers, arguments, begin, end)."""
    key = kernel.text()
    if key not in _functions:
        _functions[key] = load_object(kernel.object())
    return _functions[key]


Spec = tuple[str, tuple[bool, ...]] | tuple[str, tuple[bool, ...], bool] | str


def trace(function: Any, *specs: Spec) -> Graph:
    """A function's graph: an array per (dtype, which dims are 1[, strided]), a number per dtype name."""
    graph = Graph()
    values = [graph.add_number(s) if isinstance(s, str) else array_input(graph, *s) for s in specs]
    with building(graph):
        out = function(*values)
    return graph.finish(list(out) if isinstance(out, (tuple, list)) else [out])


def describe(argument: Any) -> Spec:
    """The spec of an argument: an array (strided if not contiguous; bfloat16 by its bits) or a number."""
    if isinstance(argument, np.ndarray):
        dtype = "bfloat16" if argument.dtype == np.uint16 else argument.dtype.name
        ones = tuple(n == 1 for n in argument.shape)
        return (dtype, ones) if argument.flags.c_contiguous else (dtype, ones, True)
    return "bool" if isinstance(argument, bool) else "int64" if isinstance(argument, int) else "float64"


def same_bits(x: Array, y: Array) -> bool:
    """Equal dtypes, shapes and bits, a NaN counting as a NaN."""
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    if x.dtype.kind != "f":
        return bool(np.array_equal(x, y))
    unsigned = f"u{x.itemsize}"
    a, b = (np.where(np.isnan(v), np.array(np.nan, v.dtype), v).view(unsigned) for v in (x, y))
    return bool(np.array_equal(a, b))
