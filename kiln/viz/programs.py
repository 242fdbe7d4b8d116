"""A recording's program to be looked at: its ops as a picture, its kernels with what they cost, its memory.

The program is planned again from what was recorded, at the sizes that were first seen. Nothing runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dis import get_instructions
from math import prod
from typing import Any, NamedTuple

from kiln import _core
from kiln.capture.function import Forward
from kiln.capture.make import function_of, with_functions
from kiln.capture.regions import Arg, Stored, built
from kiln.codegen.gemm.arguments import BATCH, arguments_of
from kiln.codegen.gemm.spec import GemmSpec
from kiln.codegen.nests.nest import Nest
from kiln.graph.size import evaluate
from kiln.passes import pipeline
from kiln.passes.plan import ITEMSIZE, Call, Free, Launch, Plan
from kiln.scalars.scalar import topological
from kiln.table.labels import split
from kiln.viz import words
from kiln.viz.defined import Defined, Given
from kiln.viz.drawing import Drawing, defined
from kiln.viz.lives import Array, held_at_once, lives
from kiln.viz.trace import Call as Called
from kiln.viz.trace import Input, Leaf, Root, Trace

_LEAVES = ("load", "number", "index", "const", "convert")  # of a scalar: no operation of their own


class Kernel(NamedTuple):
    """A launch: what it computes, on which lines, its loops, and what it costs; None: not known."""

    ops: str
    lines: tuple[str, ...]
    text: str
    nbytes: int
    operations: int | None
    seconds: float


class Program(NamedTuple):
    """What is shown of a recording."""

    drawing: Drawing
    kernels: list[Kernel]
    memory: str  # SVG
    temporaries: tuple[int, int]  # bytes: if each had its own, and what lives at once


class Names:
    """Names of tensors by their storages, and the model whose modules they tell."""

    def __init__(self, function: Any, params: Any) -> None:
        self.of: dict[int, str] = {}
        found = {"": params} if params is not None else modules_of(function)
        self.model: Any = next(iter(found.values())) if len(found) == 1 else None
        for outer, given in found.items():
            named = given.named_parameters() if hasattr(given, "named_parameters") else dict(given).items()
            buffers = given.named_buffers() if hasattr(given, "named_buffers") else ()
            for name, tensor in (*named, *buffers):
                told = name if len(found) == 1 else f"{outer}.{name}"
                self.of.setdefault(_core.place(tensor)[0], told)


def modules_of(function: Any) -> dict[str, Any]:
    """The modules that a function names: itself, of its instance, of what it closes over, of its globals."""
    function = getattr(function, "_orig_mod", function)
    if hasattr(function, "named_parameters"):
        return {"": function}
    code, found = getattr(function, "__code__", None), {}
    cells = zip(getattr(code, "co_freevars", ()), getattr(function, "__closure__", None) or ())
    for name, cell in cells:
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    own = getattr(function, "__globals__", {})
    read = [i.argval for i in get_instructions(code) if i.opname == "LOAD_GLOBAL"] if code else []
    found |= {name: own[name] for name in read if name in own}
    if (instance := getattr(function, "__self__", None)) is not None:
        found["self"] = instance
    modules = {name: getattr(x, "_orig_mod", x) for name, x in found.items() if _is_module(x)}
    return {name: x for k, (name, x) in enumerate(modules.items()) if x not in list(modules.values())[:k]}


def _is_module(x: Any) -> bool:
    return hasattr(x, "named_parameters") and hasattr(x, "named_modules") and not isinstance(x, type)


def program(recording: dict[str, Any], names: Names, title: str) -> Program | None:
    """What is shown of a recording; None where it is not known yet what is left of it."""
    (ops, storages, slots), environment, lines, seconds = recording["recorded"]
    if not storages:
        return None
    builder, live = built(with_functions(ops), storages, slots)
    plan = pipeline.program(builder.graph)

    def number(size: Any) -> int:
        return evaluate(size, environment.__getitem__)

    shown = _Recorded(ops, [Stored(*s) for s in storages], environment, lines, names)
    kernels = _kernels(plan, lines, seconds, number)
    arrays = _arrays(plan, shown, builder.pointers, number)
    launches = [kernel.ops for kernel in kernels]
    held = held_at_once(arrays, len(launches))
    temporaries = sum(a.nbytes for a in arrays if a.kind == "temporary")
    picture = defined(shown.trace(live), names.model, None, title)
    return Program(picture, kernels, lives(arrays, launches, title), (temporaries, max(held, default=0)))


# -- kernels --------------------------------------------------------------------------------------------


def _kernels(
    plan: Plan, lines: Sequence[str], seconds: Sequence[float], number: Callable[[Any], int]
) -> list[Kernel]:
    if len(seconds) != len(plan.steps):
        seconds = [0.0] * len(plan.steps)
    found = []
    for step, took in zip(plan.steps, seconds):
        if isinstance(step, Free):
            continue
        buffers = {b: number(plan.buffers[b].elements) * plan.buffers[b].itemsize for b, *_ in step.pointers}
        if isinstance(step, Call):
            found.append(Kernel(step.name, (), "", sum(buffers.values()), None, took))
            continue
        ops, own = split(step.label)
        places = dict.fromkeys(lines[k] for k, _ in own if k < len(lines))
        kernel = plan.kernels[step.kernel]
        nbytes, operations = _cost(kernel.spec, step, buffers, number)
        found.append(Kernel(ops or "copy", tuple(places), kernel.text(), nbytes, operations, took))
    return found


def _cost(
    spec: Any, step: Launch, buffers: dict[int, int], number: Callable[[Any], int]
) -> tuple[int, int | None]:
    """The bytes that a launch reads and writes at least, and how many operations it does."""
    args = [number(a) for a in step.args]
    if isinstance(spec, Nest):
        sizes = [args[spec.arguments.word("size", d)] for d in range(len(spec.dims))]
        points = prod(sizes)
        nbytes = 0
        for operand, (buffer, *_) in zip(spec.operands, step.pointers):
            direct = len(operand.strides) == len(sizes)
            own = [n for n, stride in zip(sizes, operand.strides) if stride != "0"] if direct else sizes
            # what is folded down columns has a row for each of 16 lanes: as many as the array has
            nbytes += min(prod(own) * ITEMSIZE[operand.dtype], buffers[buffer])
        scalars = topological([value for _, value in spec.stores])
        return nbytes, points * sum(s.op not in _LEAVES for s in scalars)
    if isinstance(spec, GemmSpec):
        words_ = arguments_of(spec)
        sizes = [args[words_.word("size", name)] for name in (*range(BATCH), "m", "n", "k")]
        return sum(buffers.values()), 2 * prod(sizes)
    return sum(buffers.values()), None


# -- memory ---------------------------------------------------------------------------------------------


def _arrays(
    plan: Plan, shown: _Recorded, pointers: dict[int, int], number: Callable[[Any], int]
) -> list[Array]:
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    steps = [step for step in plan.steps if not isinstance(step, Free)]
    for k, step in enumerate(steps):
        for at, *_ in step.pointers:
            first.setdefault(at, k)
            last[at] = k
    inputs = [k for k, stored in enumerate(shown.storages) if not stored.pending]
    found: list[Array] = []
    for k in sorted(first):
        buffer = plan.buffers[k]
        kind = "temporary" if buffer.kind == "temp" else buffer.kind
        if buffer.kind == "input":
            name = shown.name(inputs[pointers[buffer.index]])
        else:
            name = f"{'result' if buffer.kind == 'output' else 'temporary'} {len(found)}"
        elements = number(buffer.elements)
        end = len(steps) - 1 if kind == "output" else last[k]
        told = f"{elements:,} x {buffer.itemsize} B"
        found.append(Array(name, kind, elements * buffer.itemsize, told, first[k], end))
    found.sort(key=lambda a: (("input", "temporary", "output").index(a.kind), a.first))
    return found


# -- the picture ----------------------------------------------------------------------------------------


class _Recorded:
    """The ops of a recording as calls of a picture."""

    def __init__(
        self,
        ops: list[Any],
        storages: list[Stored],
        environment: Sequence[int],
        lines: Sequence[str],
        names: Names,
    ) -> None:
        self.ops, self.storages, self.environment = ops, storages, environment
        self.lines, self.names = lines, names
        self.of: dict[int, tuple[Called | Leaf, int]] = {}
        users: dict[int, set[int]] = {}
        written: set[int] = set()
        for k, (_, _, _, writes, args, outs) in enumerate(ops):
            for a in (*args, *outs):
                if (arg := Arg(*a)).storage >= 0:
                    users.setdefault(arg.storage, set()).add(k)
            written.update(Arg(*a).storage for a in outs if writes)
        self.states = {
            s for s in written
            if len(users[s]) == 1 and not storages[s].pending and storages[s].identity not in names.of
        }  # fmt: skip

    def name(self, storage: int) -> str:
        """What a storage is called that was there before."""
        before = sum(not s.pending for s in self.storages[:storage])
        return self.names.of.get(self.storages[storage].identity) or f"input {before}"

    def shape(self, storage: int) -> tuple[int, ...]:
        """The sizes of a storage."""
        s = self.storages[storage]
        return tuple(1 if s.ones >> d & 1 else self.environment[s.slot + d] for d in range(s.ndim))

    def sizes(self, arg: Arg) -> tuple[int, ...]:
        """The sizes of what is read, or written."""
        base = self.shape(arg.storage)
        ones = [arg.ones >> d & 1 for d in range(arg.ndim)]
        if arg.cls == "whole":
            return base
        if arg.cls == "squeeze":
            own = iter([n for n in base if n != 1])
            return tuple(1 if one else next(own, 1) for one in ones)
        extra = arg.ndim - len(base)
        found = []
        for d, one in enumerate(ones):
            kept = arg.cls == "expand" and d >= extra and base[d - extra] != 1
            found.append(1 if one else base[d - extra] if kept else self.environment[arg.slot + d])
        return tuple(found)

    def trace(self, live: list[int]) -> Trace:
        """All of it."""
        calls: list[Called] = []
        for k, (name, handle, _, writes, args, outs) in enumerate(self.ops):
            function = function_of(handle)
            op = function.op if isinstance(function, Forward) else None
            call = Defined(op or _Named(name), k, self.lines[k] if k < len(self.lines) else "")
            call.kind = words.kind_of(call) if op else "op"
            call.record, call.name, call.title, call.told = None, name, name, name + "_" * writes
            call.inputs = [self.given(Arg(*a)) for a in args]
            for number, out in enumerate(Arg(*a) for a in outs):
                call.shapes[number] = self.sizes(out)
                call.dtype = call.dtype or out.dtype
                self.of[out.storage] = call, number
            calls.append(call)
        roots = []
        for number, k in enumerate(k for k in live if self.storages[k].pending):
            source, output = self.of.get(k, (None, 0))
            roots.append(Root(f"result {number}", source, output, self.shape(k), self.storages[k].dtype))
        return Trace(roots, calls[::-1], {}, False)

    def given(self, arg: Arg) -> Input:
        """An argument: a number, or where a tensor comes from. What nameless memory is written by the one op
        that reads it (an optimizer's state) is that op's own: it has no box.
        """
        if arg.cls == "number":
            return Input(None, 0, arg.dtype, (), number="a number")
        if arg.storage in self.states:
            return Input(None, 0, arg.dtype, (), number="its state")
        if arg.storage not in self.of:
            name = self.name(arg.storage)
            leaf = Leaf(name) if self.storages[arg.storage].identity in self.names.of else Given(name)
            leaf.dtype, leaf.shape = self.storages[arg.storage].dtype, self.shape(arg.storage)
            self.of[arg.storage] = leaf, 0
        source, output = self.of[arg.storage]
        return Input(source, output, arg.dtype, self.sizes(arg))


class _Named:
    """A derivative, which is no op of the table."""

    def __init__(self, name: str) -> None:
        self.name = name
