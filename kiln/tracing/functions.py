"""An `autograd.Function` in a trace: its forward's ops are steps, and its backward is followed once, on
stand-ins of the gradients, and becomes the graph that the call carries as its derivative: a node `custom`
(kiln/graph/control.py). What a cell does is followed in the same way.
"""

from __future__ import annotations

from typing import Any

from kiln import _core, ops
from kiln.autograd.function import Function, FunctionCtx
from kiln.autograd.grad_mode import no_grad
from kiln.capture.called import CALLED, remembered
from kiln.capture.pure.steps import Step, Steps
from kiln.graph.control import Attrs, add
from kiln.graph.graph import Graph, Shape, Value, building
from kiln.graph.size import Dim, Size, slots_named, substitute, symbol
from kiln.graph.text import Subgraph
from kiln.table.record import CONTROL
from kiln.tracing.expand import expand
from kiln.tracing.graphs import add_step


def _whole(x: Any) -> Any:
    return getattr(x, "whole", x)


def _is_tensor(x: Any) -> bool:
    return isinstance(x, _core.Tensor)


def applied(recorder: Any, cls: Any, args: tuple[Any, ...]) -> Any:
    """`cls.apply(*args)` while a function is traced."""
    ctx = FunctionCtx()
    ctx._function = cls
    ctx._tensors = tuple(map(_is_tensor, args))
    ctx.needs_input_grad = tuple([_is_tensor(x) and recorder.needs_gradient(x) for x in args])
    inputs = [_whole(x) for x in args if _is_tensor(x)]
    before = [recorder.value(x) for x in inputs]
    recorder.apart += 1
    try:
        with no_grad():
            if cls.setup_context is not Function.setup_context:
                output = cls.forward(*args)
                cls.setup_context(ctx, args, output)
            else:
                output = cls.forward(ctx, *args)
    finally:
        recorder.apart -= 1
    several = isinstance(output, tuple)
    outputs = list(output) if several else [output]
    if [recorder.value(x) for x in inputs] != before:
        recorder.refuse(f"calls {cls.__name__}, whose forward writes what it is given")
    own = [
        k
        for k, y in enumerate(outputs)
        if _is_tensor(y) and y.dtype.is_floating_point and not any(y is c for c in ctx._constant)
    ]
    if own and any(ctx.needs_input_grad) and _core.grad_enabled():
        if recorder.apart:
            pass  # inside another one's forward, nobody asks for its gradient
        else:
            made = _called(recorder, ctx, inputs, outputs, own)
            for k, y in zip(own, made):
                outputs[k] = y
    for k, y in enumerate(outputs):
        if k not in own and _is_tensor(y) and y.requires_grad:
            outputs[k] = y.detach()  # without derivative, it does not keep what it was given with
    return tuple(outputs) if several else outputs[0]


def _called(
    recorder: Any, ctx: FunctionCtx, inputs: list[Any], outputs: list[Any], own: list[int]
) -> list[Any]:
    """The results with the derivative."""
    name = ctx._function.__name__
    if len(own) > 1 and not ctx._materialize:
        recorder.refuse(
            f"calls {name}, whose backward may be given None for a gradient (set_materialize_grads)"
        )
    known = recorder.held()
    grads: list[Any] = []
    seeds: list[int] = []
    for k, y in enumerate(outputs):
        if k in own:
            made, number = recorder.seed(_whole(y))
            grads.append(made)
            seeds.append(number)
        elif _is_tensor(y) and ctx._materialize and y.dtype.is_floating_point:
            grads.append(ops.zeros_like(y))
        else:
            grads.append(None)
    once = getattr(ctx._function._derivative(), "once_differentiable", False)
    numbers = len(recorder.numbers)
    with recorder.beside(known) as steps:
        found = ctx._function._derivative()(ctx, *grads)
        gradients = ctx._checked(found if isinstance(found, tuple) else (found,))
        values = [None if g is None else recorder.value(_whole(g)) for g in gradients]
    if len(recorder.numbers) > numbers:
        recorder.refuse(f"calls {name}, whose backward draws random numbers")
    given = [(x, v) for x, v in zip(inputs, values) if v is not None and x.dtype.is_floating_point]
    wanted = [v for _, v in given]
    used = list(Steps(0, "", tuple(steps), tuple(wanted)).needed().steps)
    if once:  # they ran without recording, but are to be asked for their derivative, which is refused
        used = [step._replace(history=True) for step in used]
    made_inside = {k for step in used for k in step.outs}
    outside = [k for step in used for kind, k in step.args if kind == "value"] + wanted
    raw = [_whole(outputs[k]) for k in own]
    of_raw = [recorder.value(y) for y in raw]
    known_inside = {*of_raw, *made_inside, *seeds}
    read = [k for k in dict.fromkeys(outside) if k not in known_inside]
    operands = [*(x for x, _ in given), *raw, *(recorder.tensor_of(k) for k in read)]
    inside = _Inside(recorder, [recorder.value(x) for x in operands], name)
    backward = inside.graph([*read, *of_raw, *seeds], used, wanted)
    results = inside.graph(of_raw, [], of_raw)
    root, arrays = inside.root()
    attrs = Attrs(0, (len(given), len(raw), len(read)), (0, once), inside.sizes(), (backward, results))
    root.finish(add(root, CONTROL["custom"], arrays, attrs))
    structure = (len(operands), remembered(root), 0)
    made = _core.call_op(CALLED.handle, structure, tuple(operands))
    for k, y in zip(own, made):
        recorder.share(_whole(outputs[k]), y, name)
    return [recorder.wrapped(y) for y in made]


def replaced(recorder: Any, before: int, content: int) -> tuple[Any, tuple[Any, ...]]:
    """The call, of two values, that gives the content of the second with the history of the first."""
    inside = _Inside(recorder, [before, content], "what is written where gradients are off")
    # (of the content and its gradient, which looks alike and is what the backward gives)
    backward = inside.graph([content, content], [], [content])
    results = inside.graph([content], [], [content])
    root, arrays = inside.root()
    attrs = Attrs(0, (1, 1, 0), (0, False), inside.sizes(), (backward, results))
    root.finish(add(root, CONTROL["custom"], arrays, attrs))
    return CALLED, (2, remembered(root), 0)


class _Inside:
    """Graphs on the sizes of a call's operands, as the one that holds the call has them: slot by slot."""

    def __init__(self, recorder: Any, operands: list[int], name: str) -> None:
        self.recorder, self.operands, self.name = recorder, operands, name
        self.slots = 0
        self._place: dict[int, Dim] = {}  # of a size of the trace: where the graph reads it
        for k in operands:
            for d, n in enumerate(self._shape(k)):
                if isinstance(n, Size):
                    for slot in slots_named(n):
                        if n is symbol(slot):
                            self._place.setdefault(slot, symbol(self.slots + d))
            self.slots += len(self._shape(k))

    def _shape(self, k: int) -> Shape:
        found: Shape = self.recorder.shapes.get(k) or self.recorder.sizes[k]
        return found

    def _of(self, slot: int) -> Dim:
        if slot not in self._place:
            self.recorder.refuse(
                f"calls {self.name}, whose backward needs a size that varies and no tensor it reads has"
            )
        return self._place[slot]

    def _moved(self, x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(self._moved, x))
        return substitute(x, self._of) if isinstance(x, Size) else x

    def sizes(self) -> tuple[Dim, ...]:
        """All of them."""
        return tuple(map(symbol, range(self.slots)))

    def root(self) -> tuple[Graph, list[Value]]:
        """A graph of the operands."""
        return self._begun(self.operands)

    def _begun(self, inputs: list[int]) -> tuple[Graph, list[Value]]:
        graph = Graph()
        graph.slots = self.slots
        looks = [(self.recorder.dtype_of(k), self._moved(self._shape(k))) for k in inputs]
        return graph, [graph.add_input(*look) for look in looks]

    def graph(self, inputs: list[int], steps: list[Step], wanted: list[int]) -> Subgraph:
        """Steps on some values, and what they give of these."""
        graph, arrays = self._begun(inputs)
        values = dict(zip(inputs, arrays))
        every = [*inputs, *(k for step in steps for k in step.outs)]
        shapes = {k: self._moved(self._shape(k)) for k in every if self._is_known(k)}
        with building(graph):
            for step in steps:
                structure = self._moved(step.structure) if isinstance(step.op, str) else step.structure
                args = tuple([(kind, x if kind == "value" else self._moved(x)) for kind, x in step.args])
                add_step(graph, step._replace(structure=structure, args=args), values, shapes)
        return Subgraph(expand(graph.finish([values[k] for k in wanted])))

    def _is_known(self, k: int) -> bool:
        return k in self.recorder.shapes or k in self.recorder.sizes
