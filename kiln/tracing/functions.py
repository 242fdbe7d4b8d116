"""An `autograd.Function` in a trace: its forward's ops are steps, and its backward is followed once, on
stand-ins of the gradients, and becomes the graph that the call carries as its derivative (`custom.py`).
"""

from __future__ import annotations

from typing import Any

from kiln import _core, ops
from kiln.autograd.function import Function, FunctionCtx
from kiln.autograd.grad_mode import no_grad
from kiln.capture.pure.steps import Step, Steps
from kiln.graph.graph import Shape
from kiln.graph.size import Size, slots_named, substitute, symbol
from kiln.graph.text import text
from kiln.tracing.custom import CUSTOM
from kiln.tracing.graphs import Look, graph_of
from kiln.tracing.recorder import Recorder


def _whole(x: Any) -> Any:
    return getattr(x, "whole", x)


def _is_tensor(x: Any) -> bool:
    return isinstance(x, _core.Tensor)


def applied(recorder: Recorder, cls: Any, args: tuple[Any, ...]) -> Any:
    """`cls.apply(*args)` while a function is traced."""
    ctx = FunctionCtx()
    ctx._function = cls
    ctx._tensors = tuple(map(_is_tensor, args))
    # (whose gradients are wanted is decided by the call)
    ctx.needs_input_grad = tuple([_is_tensor(x) and x.dtype.is_floating_point for x in args])
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
    return tuple(outputs) if several else outputs[0]


def _called(
    recorder: Recorder, ctx: FunctionCtx, inputs: list[Any], outputs: list[Any], own: list[int]
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
    with recorder.beside(known, name) as steps, no_grad():
        found = ctx._function._derivative()(ctx, *grads)
        gradients = ctx._checked(found if isinstance(found, tuple) else (found,))
        values = [None if g is None else recorder.value(_whole(g)) for g in gradients]
    places = tuple([i for i, v in enumerate(values) if v is not None and _floats(inputs[i])])
    wanted = [v for i, v in enumerate(values) if i in places and v is not None]
    read, graph = _graph(recorder, steps, seeds, wanted, name)
    saved = [recorder.tensor_of(k) for k in read]
    counts = (len(inputs), len(own), places, once)
    operands = [*inputs, *(_whole(outputs[k]) for k in own), *saved]
    made = _core.call_op(CUSTOM.handle, (len(operands), counts, text(graph)), tuple(operands))
    for k, y in zip(own, made):
        recorder.share(_whole(outputs[k]), y, name)
    return [recorder.wrapped(y) for y in made]


def _floats(x: Any) -> bool:
    return bool(x.dtype.is_floating_point)


def _graph(
    recorder: Recorder, steps: list[Step], seeds: list[int], wanted: list[int], name: str
) -> tuple[list[int], Any]:
    """The steps that some values need as a graph, of the values it reads from outside, then of the
    gradients; which those are.
    """
    steps = list(Steps(0, "", tuple(steps), tuple(wanted)).needed().steps)
    made = {k for step in steps for k in step.outs}
    used = [k for step in steps for kind, k in step.args if kind == "value"] + wanted
    if any(kind == "operand" for step in steps for kind, _ in step.args):
        recorder.refuse(f"calls {name}, whose backward draws random numbers")
    read = [k for k in dict.fromkeys(used) if k not in made and k not in seeds]
    inputs = [*read, *seeds]
    shapes: list[Shape] = [recorder.shapes.get(k) or recorder.sizes[k] for k in inputs]
    place: dict[int, Any] = {}  # of a size of the trace: where the graph reads it
    first = 0
    for shape in shapes:
        for d, n in enumerate(shape):
            if isinstance(n, Size):
                for slot in slots_named(n):
                    if n is symbol(slot):
                        place.setdefault(slot, symbol(first + d))
        first += len(shape)

    def of(slot: int) -> Any:
        if slot not in place:
            recorder.refuse(
                f"calls {name}, whose backward needs a size that varies and no tensor it reads has"
            )
        return place[slot]

    def moved(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(moved, x))
        return substitute(x, of) if isinstance(x, Size) else x

    number = {k: at for at, k in enumerate(inputs)}
    for step in steps:
        for k in step.outs:
            number[k] = len(number)
    own = [
        step._replace(
            structure=moved(step.structure) if isinstance(step.op, str) else step.structure,
            args=tuple([(kind, number[x] if kind == "value" else moved(x)) for kind, x in step.args]),
            outs=tuple([number[k] for k in step.outs]),
            history=True,
        )
        for step in steps
    ]
    looks = [Look(recorder.dtype_of(k), moved(shape)) for k, shape in zip(inputs, shapes)]
    every = {
        number[k]: moved(recorder.shapes.get(k) or recorder.sizes[k])
        for k in number
        if k in recorder.shapes or k in recorder.sizes
    }
    whole = Steps(len(inputs), "", tuple(own), tuple([number[k] for k in wanted]))
    return read, graph_of(whole, looks, every)
