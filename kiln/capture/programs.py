"""From graphs to what the core runs: one kernel for a pointwise function, a program for any other graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln import _core
from kiln.capture.function import Function, Operands
from kiln.codegen.compile import kernel_key
from kiln.codegen.nests.nest import Nest, moved
from kiln.codegen.nests.nest import Operand as Array
from kiln.graph.graph import Graph, Value
from kiln.graph.size import Atom, Dim, Size
from kiln.passes import pipeline
from kiln.passes.control import with_condition
from kiln.passes.launch import Kernel, NestKernel
from kiln.passes.plan import Call, Free, Plan, Step
from kiln.scalars.scalar import Scalar, const
from kiln.table.apply import apply_pointwise, convert_dtype
from kiln.table.arguments import type_name
from kiln.table.kinds import COMPUTE

CONSTANT, ADD, MULTIPLY, DIVIDE = range(4)
INPUT, OUTPUT, TEMP = range(3)
FREE, CALL = -1, -2  # in the place of a kernel
CALLS = ("cond", "while_loop", "scan", "counted")  # in native/program/program.h too

# kernels this process planned, by their keys
by_key: dict[bytes, Kernel] = {}


def planned(kernel: Kernel) -> bytes:
    """The key of a kernel, whose code comes when it is first launched."""
    key = kernel_key(kernel.text())
    if not _core.kernel_known(key):
        by_key[key] = kernel
    return key


def knows(key: bytes) -> bool:
    """Whether a kernel was planned here."""
    return key in by_key


def kernel_object(key: bytes) -> bytes:
    """Machine code of a kernel that was planned here, from disk or generated."""
    kernel = by_key.get(key)
    if kernel is None:
        raise RuntimeError(f"kernel {key.hex()[:16]}: its code is gone from the cache, and its plan with it")
    return kernel.object()


class Slots:
    """Size expressions for the core: slots after the environment's, each distinct expression once."""

    def __init__(self, environment: int) -> None:
        self.environment = environment
        self.exprs: list[tuple[int, int, int]] = []
        self._known: dict[Any, int] = {}

    def of(self, dim: Dim) -> int:
        """The slot that holds `dim`."""
        if isinstance(dim, bool) or isinstance(dim, int):
            return self._expr(CONSTANT, int(dim), 0)
        found = self._known.get(dim)
        if found is None:
            found = self._known[dim] = self._sum(dim)
        return found

    def _expr(self, kind: int, a: int, b: int) -> int:
        key = (kind, a, b)
        slot = self._known.get(key)
        if slot is None:
            slot = self._known[key] = self.environment + len(self.exprs)
            self.exprs.append(key)
        return slot

    def _sum(self, size: Size) -> int:
        total = -1
        for monomial, coefficient in size.terms:
            term = -1
            for atom in monomial:
                factor = self._atom(atom)
                term = factor if term < 0 else self._expr(MULTIPLY, term, factor)
            if term < 0:
                term = self.of(coefficient)
            elif coefficient != 1:
                term = self._expr(MULTIPLY, term, self.of(coefficient))
            total = term if total < 0 else self._expr(ADD, total, term)
        return total

    def _atom(self, atom: Atom) -> int:
        if atom.slot >= 0:
            return atom.slot
        return self._expr(DIVIDE, self.of(atom.numerator), self.of(atom.denominator))


def program(
    graph: Graph, input_index: Callable[[int], int] = lambda i: i, update: bool = False
) -> tuple[Any, ...]:
    """A graph as the core's program: (kernels, environment, expressions, checks, buffers, outputs, steps).

    With `update`, the result is written where the first input lies.
    """
    plan = pipeline.program(graph, {0: 0} if update else None)
    kernels: dict[bytes, int] = {}
    body = _body(graph, plan, kernels, input_index, [*graph.checks])
    return (list(kernels), *body)


def _body(
    graph: Graph,
    plan: Plan,
    kernels: dict[bytes, int],
    input_index: Callable[[int], int],
    stated: list[tuple[Dim, Dim]],
) -> tuple[Any, ...]:
    """All but the kernels, which are numbered in `kernels`."""
    slots = Slots(graph.slots)
    checks = [(slots.of(a), slots.of(b)) for a, b in stated]
    buffers = [_buffer(b, slots, input_index) for b in plan.buffers]
    own = [kernels.setdefault(planned(k), len(kernels)) for k in plan.kernels]
    steps = [_step(s, slots, own, kernels) for s in plan.steps]
    outputs = [(buffer, dtype, [slots.of(d) for d in shape]) for buffer, dtype, shape in plan.outputs]
    return graph.slots, slots.exprs, checks, buffers, outputs, steps


def _call(step: Call, slots: Slots, kernels: dict[bytes, int]) -> tuple[Any, ...]:
    """A call of graphs: what they check is checked by those around them (native/program/program.h)."""
    _, counts, (length, reverse), sizes, graphs = step.attrs
    strides = [slots.of(d) for d in step.strides]
    inputs = [_pointer(p, slots) for p in step.inputs]
    outputs = [(0, -1, 0) if p is None else _pointer(p, slots) for p in step.outputs]
    bodies = []
    called = [sub.graph for sub in graphs]
    if step.name in ("while_loop", "counted"):
        called[1] = with_condition(called[0], called[1], counts[0])
    for graph in called:
        plan = pipeline.program(graph, called=True)
        bodies.append(_body(graph, plan, kernels, lambda i: i, []))
    held = [slots.of(d) for d in sizes]
    kind = CALLS.index(step.name)
    return CALL, kind, *counts, slots.of(length), reverse, held, strides, inputs, outputs, bodies


def _pointer(pointer: tuple[int, Dim, int], slots: Slots) -> tuple[int, int, int]:
    buffer, offset, itemsize = pointer
    return buffer, -1 if offset == 0 else slots.of(offset), itemsize


def _buffer(buffer: Any, slots: Slots, input_index: Callable[[int], int]) -> tuple[int, int, int, int]:
    kind = {"input": INPUT, "output": OUTPUT, "temp": TEMP}[buffer.kind]
    index = input_index(buffer.index) if kind == INPUT else buffer.index
    return kind, index, 0 if kind == INPUT else slots.of(buffer.elements), buffer.itemsize


def _step(step: Step, slots: Slots, own: list[int], kernels: dict[bytes, int]) -> tuple[Any, ...]:
    if isinstance(step, Free):
        return FREE, step.buffer
    if isinstance(step, Call):
        return _call(step, slots, kernels)
    pointers = [_pointer(p, slots) for p in step.pointers]
    scratch = -1 if step.scratch == 0 else slots.of(step.scratch)
    args = [slots.of(a) for a in step.args]
    split = -1 if step.split is None else tuple(slots.of(d) for d in step.split)
    units = slots.of(step.grid), slots.of(step.grain)
    return own[step.kernel], step.label, *units, scratch, split, pointers, args


# ---- pointwise functions ----------------------------------------------------------------------------


def pointwise(
    function: Function, operands: Operands, ndim: int, layouts: tuple[int, ...], out_dtypes: tuple[str, ...]
) -> tuple[list[bytes], list[str], list[str]]:
    """The kernel of a pointwise function, the dtypes of its results, and those it computes them in.

    `layouts` holds the innermost stride class (0, 1, 2: any; 3: any, and 1 along the dim before) of every
    array, then of every result (3: 1, and large); results take `out_dtypes` if those are given (in-place
    writes).
    """
    graph = function.graph(operands)
    dtypes = [v.dtype for v in graph.outputs]
    targets = list(out_dtypes) or dtypes
    try:
        nest = pointwise_nest(graph, ndim, layouts, targets)
    except NotImplementedError:
        for have, want in zip(dtypes, targets):  # PyTorch's first error; elsewhere the core checks it
            if not _core.can_cast(have, want):
                raise RuntimeError(
                    f"{function.name}: result type {type_name(have)} can't be cast to the desired output "
                    f"type {type_name(want)}"
                ) from None
        raise
    return [planned(NestKernel(nest))], targets, dtypes


def pointwise_nest(graph: Graph, ndim: int, layouts: tuple[int, ...], targets: list[str]) -> Nest:
    """The nest over `ndim` dims that computes every output of a pointwise graph at each point."""
    rows, results = ("s",) * (ndim - 1), len(layouts) - len(targets)
    strides = ((*rows, "0"), (*rows, "1"), (*rows, "s"), (*rows[1:], "1", "s"))
    of_array = iter([strides[c] for c in layouts[:results]])
    of_result = iter([strides[1 if c == 3 else c] for c in layouts[results:]])
    scalars: dict[int, Scalar] = {}
    arrays: list[Array] = []
    numbers: list[str] = []
    for value in graph.inputs:
        if value.weak:
            scalars[id(value)] = _number(value, len(numbers))
            numbers.append("f64" if value.dtype == "float64" else "i64")
        else:
            scalars[id(value)] = Scalar("load", (), COMPUTE[value.dtype], len(arrays))
            arrays.append(Array(value.dtype, "in", next(of_array)))
    for node in graph.nodes:
        inputs = [scalars[id(v)] for v in node.inputs]
        if node.op.kind == "constant":
            scalars[id(node.out)] = const(node.attrs[0], COMPUTE[node.out.dtype])
        elif node.op.kind == "full":
            scalars[id(node.out)] = convert_dtype(inputs[0], node.inputs[0].dtype, node.out.dtype)
        else:
            scalars[id(node.out)] = apply_pointwise(node, inputs)
    stores = []
    for value, target in zip(graph.outputs, targets):
        stores.append((len(arrays), convert_dtype(scalars[id(value)], value.dtype, target)))
        arrays.append(Array(target, "out", next(of_result)))
    small = 3 not in layouts[results:]
    return moved(Nest(("p",) * ndim, tuple(arrays), tuple(numbers), tuple(stores), small=small))


def _number(value: Value, position: int) -> Scalar:
    """A number argument in its compute type; a bool arrives as an integer."""
    if value.dtype == "bool":
        return Scalar("number", (), "i64", position).ne(0)
    return Scalar("number", (), COMPUTE[value.dtype], position)
