"""A cell's steps as a function of the core: its graph, and the graph of its gradients.

The gradients are those of the steps one by one, each op's own as the engine would ask for it, added in the
engine's order: by descending creation of the consumers, then by argument. So they have eager's bits, and
what backward keeps is found as for any composite (`passes/gradient.py`). An operand that several steps use
is one for each of them (`Steps.again`); a value between is summed here, the consumer made last first. Of a
weight of several products each is a pair of factors, in the same order, which the engine stacks with others.
"""

from __future__ import annotations

from typing import Any

from kiln.capture.function import (
    NUMBER,
    Described,
    Forward,
    Operands,
    classify,
    copy_pointwise,
    declare,
    relaid,
)
from kiln.capture.pure.steps import CAST, DETACH, STRIDED, WRITE, Step, Steps
from kiln.graph.graph import Graph, Value, building
from kiln.graph.size import Dim, Size, substitute, symbol
from kiln.ops.views.core_views import gathered_back
from kiln.passes.gradient import Asked, Backward, Sum, finish, given, is_product, transposition, unbroadcast
from kiln.passes.rewrite import append, clone, substitute_attr
from kiln.table.kinds import FLOATS
from kiln.table.record import REQUIRED, Op, Param, constant, find

Given = Any  # a value of a graph, or a Python number


class CellOp(Op):
    """A cell's computation as an op: of a list of tensors, then numbers."""

    __slots__ = ("cell",)

    def __init__(self, name: str, cell: Steps) -> None:
        self.cell = cell
        params = [Param("tensors", "L", REQUIRED)]
        params += [Param(f"n{k}", "N", REQUIRED) for k in range(len(cell.numbers))]
        super().__init__(name, "composite", tuple(params), self._traced, listed=False)
        self.identity = cell.identity()
        self.public = False

    @property
    def structure(self) -> tuple[Any, ...]:
        """What the core passes with a call besides operands."""
        return (self.cell.tensors, *self.cell.numbers)

    def make_function(self, structure: tuple[Any, ...]) -> CellFunction:
        """What the core asks for."""
        return CellFunction(self, structure)

    def _traced(self, tensors: Any, *numbers: Any) -> Any:
        values = [*tensors, *numbers]
        graph = next(v.graph for v in values if isinstance(v, Value))
        return [*self.walk(graph, values, hidden=False).results()]

    def walk(self, graph: Graph, given: list[Given], hidden: bool) -> Walk:
        """The steps on values of a graph."""
        return Walk(graph, self.cell, given, hidden)


class _Run:
    """What `passes.gradient.finish` asks of a sweep: a copy of the forward graph, gradients appended."""

    def __init__(self, walk: Walk, asked: Asked) -> None:
        self.forward = walk.graph
        work, self.copies = clone(walk.graph)
        self.targets = [work.inputs[i] for i in asked.wrt]
        self.seeds, self.begun = given(asked, walk.graph, work)
        sums = {k: Sum(before) for (_, k), before in self.begun.values()}
        with building(work):
            _sweep(walk, self.copies, work, asked, self.seeds, sums)
        self.sums = {id(work.inputs[i]): sums[i] for i in asked.wrt if i in sums}


def _sweep(
    walk: Walk,
    copies: dict[int, Value],
    work: Graph,
    asked: Asked,
    seeds: dict[int, Value],
    sums: dict[int, Sum],
) -> None:
    """Adds up the gradient of every operand asked for and of every value between, by its number."""
    cell = walk.cell
    uses, transposed = cell.uses(), cell.transpositions()
    wanted_here = {at for at, k in uses.items() if k in asked.wrt}
    needed = _depending(walk, wanted_here)

    def gradient(k: int) -> Value | None:
        return sums[k].total if k in sums else None

    for k, seed in seeds.items():
        if cell.results[k] in needed:
            sums.setdefault(cell.results[k], Sum()).add(seed)
    for at in range(len(cell.steps) - 1, -1, -1):
        step, own = cell.steps[at], walk.made[at]
        grads = [gradient(k) for k in step.outs]
        if not step.history or all(g is None for g in grads):
            continue
        wanted = [
            i
            for i, (kind, k) in enumerate(step.args)
            if kind == "value" and (k in needed or (at, i) in wanted_here)
        ]
        if not wanted:
            continue
        # (a size that a cell for rows adds is a number of no graph)
        inputs = [copies.get(id(v), v) if isinstance(v, Value) else v for v in own.inputs]
        outputs = [copies[id(v)] for v in own.outputs]
        for i, part in _rule(step, own, work, grads, inputs, outputs, wanted):
            like = inputs[i]
            part = unbroadcast(part, like)
            if part.dtype != like.dtype:
                part = work.add(find("convert"), (part,), (like.dtype,))
            value: int = step.args[i][1]
            to = uses.get((at, i), value)
            if value in transposed and is_product(part):
                matrix = sums.setdefault(to, Sum())
                matrix.add_product(transposition(part) if transposed[value] else part, to in asked.factored)
                if to in asked.factored:
                    continue
            if value in transposed:
                to = value
            sums.setdefault(to, Sum()).add(part, _gives_slices(step), to in asked.factored)


def _gives_slices(step: Step) -> bool:
    """Whether its results are slices of its operand."""
    return not isinstance(step.op, str) and step.op.native in ("slice", "select", "split", "unbind")


def _depending(walk: Walk, first: set[tuple[int, int]]) -> set[int]:
    """The values that gradients go through on their way to some arguments of steps."""
    needed: set[int] = set()
    for at, step in enumerate(walk.cell.steps):
        if not step.history or not (isinstance(step.op, str) or step.op.differentiable):
            continue
        further = any(kind == "value" and k in needed for kind, k in step.args)
        if further or any((at, i) in first for i in range(len(step.args))):
            needed.update(k for k, dtype in zip(step.outs, step.dtypes) if dtype in FLOATS)
    return needed


def _rule(
    step: Step,
    own: Made,
    work: Graph,
    grads: list[Value | None],
    inputs: list[Given],
    outputs: list[Value],
    wanted: list[int],
) -> list[tuple[int, Value]]:
    """The gradients that one step gives to the arguments `wanted`."""
    if isinstance(step.op, str):
        return _rule_of_memory(step, work, grads[0], inputs, wanted)
    assert own.function is not None
    defined = tuple(g is not None for g in grads)
    derivative = own.function.derivative(own.operands, Asked(tuple(wanted), defined))
    read: list[Given] = []
    for kind, k in derivative.sources:
        if kind == "grad":
            read.append(grads[k])
        elif kind in ("output", "hidden"):
            read.append(outputs[k + (len(step.outs) if kind == "hidden" else 0)])
        else:
            read.append(inputs[k])
    made = inline(work, derivative.graph(tuple(map(described, read))), read)
    values = iter(made)
    return [
        (i, read[at] if at >= 0 else next(values))
        for (i, _), at in zip(derivative.targets, derivative.passes)
    ]


def _rule_of_memory(
    step: Step, work: Graph, gradient: Value | None, inputs: list[Given], wanted: list[int]
) -> list[tuple[int, Value]]:
    """The same of a step that is no op of the table."""
    assert gradient is not None
    if step.op == DETACH:
        return []
    if step.op == CAST:
        return [(0, gradient)]
    sizes, strides, offset = step.structure
    found = []
    if step.op == STRIDED and not _are_apart(sizes, strides):
        whole: Any = inputs[0]
        with building(work):
            found.append((0, gathered_back(gradient, whole.shape, strides, offset)))
    elif step.op == STRIDED:
        zeros = _zeros(work, inputs[0])
        found.append((0, work.add(find("write"), (zeros, gradient), (strides, (offset,)))))
    elif step.op == WRITE:
        if 0 in wanted:
            zero = work.add(find("convert"), (constant(work, 0.0),), (gradient.dtype,))
            hole = work.add(find("expand"), (zero,), (sizes,))
            found.append((0, work.add(find("write"), (gradient, hole), (strides, (offset,)))))
        if 1 in wanted:
            found.append((1, work.add(find("as_strided"), (gradient,), (sizes, strides, (offset,)))))
    return found


def _are_apart(sizes: tuple[Any, ...], strides: tuple[Any, ...]) -> bool:
    """Whether no place is seen twice, as far as sizes that vary tell."""
    if any(isinstance(n, Size) for n in (*sizes, *strides)):
        ends = [n * step for n, step in zip(sizes, strides)]
        return strides[-1:] == (1,) and all(a == b for a, b in zip(strides, ends[1:]))
    end = 1
    for step, n in sorted(zip(strides, sizes)):
        if n > 1 and step < end:
            return False
        end += (n - 1) * step
    return True


def _zeros(work: Graph, like: Value) -> Value:
    zero = work.add(find("convert"), (constant(work, 0.0),), (like.dtype,))
    return work.add(find("expand"), (zero,), (like.shape,))


class Made:
    """What a step became: its function, how its operands look, its values."""

    __slots__ = ("function", "inputs", "operands", "outputs")

    def __init__(self, function: Forward | None, operands: Operands, inputs: list[Given]) -> None:
        self.function, self.operands, self.inputs = function, operands, inputs
        self.outputs: list[Value] = []


class Walk:
    """The steps on values of a graph. With `hidden`, with what derivatives read beside the results."""

    def __init__(self, graph: Graph, cell: Steps, given: list[Given], hidden: bool) -> None:
        self.graph, self.cell, self.hidden = graph, cell, hidden
        self.values: dict[int, Value] = dict(enumerate(given))
        self.made: list[Made] = []
        self._differentiated = any(step.history for step in cell.steps)
        for step in cell.steps:
            self._step(step)

    def results(self) -> list[Value]:
        """The values that are the cell's results."""
        return [self.values[k] for k in self.cell.results]

    def _step(self, step: Step) -> None:
        inputs = [x if kind == "number" else self.values[x] for kind, x in step.args]
        if isinstance(step.op, str):
            made = Made(None, (), inputs)
            made.outputs = [self._memory(step, inputs)]
        else:
            made = self._computed(step, function_for(step.op, step.structure), inputs)
        self._keep(step, made, step.ones)

    def _computed(self, step: Step, function: Forward, inputs: list[Given]) -> Made:
        """What a function makes of a step's inputs."""
        operands = tuple(map(described, inputs))
        made = Made(function, operands, inputs)
        hidden = self.hidden and step.history and function.saves(operands)[0] > 0
        made.outputs = inline(self.graph, function.graph(operands, hidden), inputs)
        return made

    def _keep(self, step: Step, made: Made, ones_of: tuple[tuple[int, ...], ...]) -> None:
        """A step's results are values from here on; `ones_of` each, which of its sizes are 1."""
        for i, (k, dtype, ones) in enumerate(zip(step.outs, step.dtypes, ones_of)):
            value = made.outputs[i]
            if value.weak or value.dtype != dtype:
                value = self.graph.add(find("convert"), (value,), (dtype,))
            for d in ones:
                self.graph.require_equal(value.shape[d], 1, step.name)
            value.shape = tuple(self.graph.canonical(size) for size in value.shape)
            if self._differentiated and not step.history:
                value = self.constant(value)  # for derivatives of derivatives too, which compute it again
            made.outputs[i] = self.values[k] = value
        self.made.append(made)

    def constant(self, x: Value) -> Value:
        """A value as a constant of derivatives."""
        return self.graph.add(find("detach"), (x,)) if x.dtype in FLOATS and not x.weak else x

    def _memory(self, step: Step, inputs: list[Given]) -> Any:
        if step.op == DETACH:
            return self.constant(inputs[0])
        if step.op == CAST:
            x = inputs[0]
            (sizes,) = step.structure
            if x.weak or x.dtype != step.dtypes[0]:
                x = self.graph.add(find("convert"), (x,), (step.dtypes[0],))
            return x if tuple(x.shape) == sizes else self.graph.add(find("expand"), (x,), (sizes,))
        sizes, strides, offset = step.structure
        if step.op == STRIDED:
            return self.graph.add(find("as_strided"), (inputs[0],), (sizes, strides, (offset,)))
        return self.graph.add(find("write"), (inputs[0], inputs[1]), (strides, (offset,)))


_functions: dict[tuple[int, str], Forward] = {}


def function_for(op: Op, structure: tuple[Any, ...]) -> Forward:
    """The function of an op at a structure; kept, as what is captured of it is."""
    key = id(op), repr(structure)
    found = _functions.get(key)
    if found is None:
        make = getattr(op, "make_function", None)
        made = Forward(op, structure) if make is None else make(structure)
        found = _functions[key] = made
    return found


def described(x: Given) -> Described:
    """A value as functions are asked for it: every value is contiguous here."""
    if not isinstance(x, Value):
        return "b" if isinstance(x, bool) else "i" if isinstance(x, (int, Size)) else "f"
    if x.weak and x.node is None:
        return {kind: letter for letter, kind in NUMBER.items()}[x.dtype]
    return x.dtype, tuple(int(d == 1) for d in x.shape), None


def inline(graph: Graph, source: Graph, given: list[Given]) -> list[Value]:
    """The nodes of `source` on the given values and numbers; its sizes become theirs."""
    values: dict[int, Value] = {}
    lifted = [x if isinstance(x, Value) else constant(graph, x) for x in given]
    if classify(source) == "pointwise":
        return copy_pointwise(graph, source, lifted)
    place: dict[int, Dim] = {}
    slot = 0
    for own, x, value in zip(source.inputs, given, lifted):
        values[id(own)] = value
        if own.weak:
            if not isinstance(x, float):  # (which is no size, and may be infinite)
                place[slot] = symbol(x.slot) if isinstance(x, Value) else x if isinstance(x, Size) else int(x)
            slot += 1
            continue
        for size in value.shape:
            place[slot] = size
            slot += 1

    def replace(slot: int) -> Dim:
        return place[slot]

    what = "a recorded op"
    for own, value in zip(source.inputs, lifted):
        for size, actual in zip(own.shape, value.shape):
            graph.require_equal(substitute(size, replace), actual, what)
    for a, b in source.checks:
        graph.require_equal(substitute(a, replace), substitute(b, replace), what)
    for node in source.nodes:
        made = append(graph, node, tuple(values[id(v)] for v in node.inputs))
        made.shape = tuple(graph.canonical(substitute(d, replace)) for d in made.shape)
        assert made.node is not None
        made.node.attrs = tuple(substitute_attr(a, replace) for a in node.attrs)
        values[id(node.out)] = made
    return [values[id(v)] for v in source.outputs]


class CellFunction(Forward):
    """A cell as the core asks for it."""

    op: CellOp

    def __init__(self, op: CellOp, structure: tuple[Any, ...]) -> None:
        super().__init__(op, structure)
        self._walks: dict[Operands, Walk] = {}
        self._found: dict[tuple[Operands, Asked], Backward] = {}

    def walk(self, operands: Operands) -> Walk:
        """The steps as a graph on contiguous operands, with all that derivatives read."""
        operands = _contiguous(operands)
        found = self._walks.get(operands)
        if found is None:
            graph = Graph()
            values = [declare(graph, d) for d in operands]
            with building(graph):
                found = self.op.walk(graph, list(values), hidden=True)
            graph.finish(found.results())
            found = self._walks.setdefault(operands, found)  # another thread's: values are told by identity
        return found

    def capture(self, operands: Operands, hidden: bool) -> Graph:
        walk = self.walk(operands)
        graph, twins = clone(walk.graph)
        extra = self.hidden(operands, Asked.everything(walk.graph)) if hidden else ()
        return relaid(graph.finish([twins[id(v)] for v in (*walk.graph.outputs, *extra)]), operands)

    def primal(self, operands: Operands) -> Graph:
        return self.walk(operands).graph

    def is_pointwise(self, operands: Operands) -> bool:
        return False

    def gradients(self, operands: Operands, asked: Asked, calls: bool = False) -> Backward:
        operands = _contiguous(operands)
        found = self._found.get((operands, asked))
        if found is None:
            walk = self.walk(operands)
            everything = Asked.everything(walk.graph)
            found = finish(_Run(walk, asked), asked.redo, lambda: _Run(walk, everything))
            self._found[operands, asked] = found
        return found

    def hidden(self, operands: Operands, asked: Asked) -> tuple[Value, ...]:
        return self.gradients(operands, asked).hidden


def _contiguous(operands: Operands) -> Operands:
    return tuple(d if isinstance(d, str) else (d[0], d[1], None) for d in operands)


_known: dict[str, CellOp] = {}


def cell_op(name: str, cell: Steps) -> CellOp:
    """The op of these steps; the same for the same steps, as ops live as long as the process."""
    identity = cell.identity()
    if identity is None:
        return CellOp(name, cell)
    found = _known.get(identity)
    if found is None:
        found = _known[identity] = CellOp(name, cell)
    return found
