"""The plan: what the core runs for a graph.

    plan   := kernels buffers steps outputs
    buffer := "input" i | "output" j | "temp"             an array's memory; temps are made at their first use
    step   := Launch kernel label pointers args grid grain scratch split
                                                          pointers: (buffer, offset in elements, item size)
            | Call graphs inputs outputs sizes                   control flow: graphs that are planned in turn
            | Free temp                                   right after its last use

Sizes, strides and numbers are `Dim`s, to be evaluated per call: a number is the symbol of its slot, which
holds its raw bits. An output that updates an input is written into that input's memory.
"""

from __future__ import annotations

from typing import NamedTuple, Union

from kiln.graph.control import Attrs
from kiln.graph.graph import Shape
from kiln.graph.size import Dim
from kiln.graph.text import dim_text, type_text
from kiln.passes.explore import Array
from kiln.passes.group import Fusion, Group
from kiln.passes.launch import Called, Kernel, Lowered, Memory, Split
from kiln.passes.layout import numel
from kiln.passes.lower import lower_group
from kiln.passes.order import ordered
from kiln.table.kinds import VIEWS
from kiln.table.labels import label

ITEMSIZE = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
LONGEST_LABEL = 60  # letters of what a launch computes


class Buffer(NamedTuple):
    """An array's memory: an input's, an output's, or a temporary of `elements` items."""

    kind: str
    index: int  # type: ignore[assignment]  # hides tuple's method
    elements: Dim
    itemsize: int


class Launch(NamedTuple):
    """One kernel over `grid` units; a thread should get at least `grain` of them, and has `scratch` 64-bit
    words to itself, behind one more pointer. With `split`, there is one before it, and the last two arguments
    say how the launch is cut.
    """

    kernel: int
    label: str  # the ops that it computes, as profiles show it, and recorded ones (kiln/table/labels.py)
    pointers: tuple[tuple[int, Dim, int], ...]
    args: tuple[Dim, ...]
    grid: Dim
    grain: Dim
    scratch: Dim = 0
    split: Split | None = None


class Free(NamedTuple):
    """A temporary is not read any more."""

    buffer: int


class Call(NamedTuple):
    """Graphs are called (kiln/graph/control.py): on pointers to arrays, contiguous; None: a result that
    nobody reads. `strides`: elements of a part, of what a scan goes along and of its stacked results.
    """

    name: str
    attrs: Attrs
    inputs: tuple[tuple[int, Dim, int], ...]
    outputs: tuple[tuple[int, Dim, int] | None, ...]
    strides: tuple[Dim, ...]

    @property
    def pointers(self) -> tuple[tuple[int, Dim, int], ...]:
        """Every array that it reads or writes."""
        return (*self.inputs, *(p for p in self.outputs if p is not None))


Step = Union[Launch, Call, Free]


class Plan(NamedTuple):
    """See the module's text."""

    kernels: tuple[Kernel, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    outputs: tuple[tuple[int, str, Shape], ...]  # buffer, dtype, shape

    def text(self) -> str:
        """The plan to be read: buffers, kernels, then what is launched on what."""
        lines = [f"buffer {k} {_buffer_text(b)}" for k, b in enumerate(self.buffers)]
        for k, kernel in enumerate(self.kernels):
            lines.append(f"kernel {k}")
            lines += [f"    {line}" for line in kernel.text().split("\n")]
        lines += [_step_text(step) for step in self.steps]
        lines += [f"output {k}: buffer {b} {type_text(t, s)}" for k, (b, t, s) in enumerate(self.outputs)]
        return "\n".join(lines) + "\n"


def _buffer_text(buffer: Buffer) -> str:
    if buffer.kind == "temp":
        return f"temp {dim_text(buffer.elements)} x {buffer.itemsize}"
    return f"{buffer.kind} {buffer.index}"


def _step_text(step: Step) -> str:
    if isinstance(step, Free):
        return f"free {step.buffer}"
    if isinstance(step, Call):
        return _call_text(step)
    pointers = ", ".join(map(_pointer_text, step.pointers))
    args = ", ".join(map(dim_text, step.args))
    grid, grain = dim_text(step.grid), dim_text(step.grain)
    scratch = f" scratch {dim_text(step.scratch)}" if step.scratch != 0 else ""
    split = "" if step.split is None else f" split {' '.join(map(dim_text, step.split))}"
    return f"launch {step.kernel} on ({pointers}) args ({args}) grid {grid} grain {grain}{scratch}{split}"


def _pointer_text(pointer: tuple[int, Dim, int] | None) -> str:
    if pointer is None:
        return "none"
    buffer, offset, _ = pointer
    return f"{buffer}" if offset == 0 else f"{buffer} + {dim_text(offset)}"


def _call_text(step: Call) -> str:
    """The call, then the graphs it calls."""
    inputs, outputs = (", ".join(map(_pointer_text, p)) for p in (step.inputs, step.outputs))
    (length, reverse), sizes = step.attrs.steps, ", ".join(map(dim_text, step.attrs.sizes))
    steps = f" steps {dim_text(length)}{' reverse' if reverse else ''}" if step.name == "scan" else ""
    lines = [f"{step.name} on ({inputs}) to ({outputs}) state {step.attrs.counts[0]}{steps} sizes ({sizes})"]
    for sub in step.attrs.graphs:
        lines += [f"    {line}" for line in sub.text.splitlines()]
    return "\n".join(lines)


def plan(fusion: Fusion) -> Plan:
    """The plan of groups."""
    return _Planner(fusion).plan()


class _Planner:
    """Gives arrays their buffers and puts launches in order."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self.buffers: list[Buffer] = []
        self.kernels: list[Kernel] = []
        self._numbers: dict[str, int] = {}
        self._known: dict[tuple[str, int], int] = {}
        self._places = {id(a): j for j, a in enumerate(fusion.outputs)}
        self._inputs = {id(v): i for i, v in enumerate(fusion.graph.inputs)}

    def plan(self) -> Plan:
        """The plan."""
        launches: list[Launch | Call] = []
        places = {id(node): place for place, node in enumerate(self.fusion.graph.nodes)}
        for group in ordered(self.fusion):
            lowered = list(lower_group(self.fusion, group))
            told = _label(group, places)
            launches += [self._launch(one, told) for one in lowered]
        outputs = tuple((self._array(a), a.value.dtype, a.value.shape) for a in self.fusion.outputs)
        return Plan(tuple(self.kernels), tuple(self.buffers), tuple(self._freed(launches)), outputs)

    def _buffer(self, kind: str, index: int, elements: Dim, dtype: str) -> int:
        key = (kind, index)
        if key not in self._known:
            self._known[key] = len(self.buffers)
            shown = index if kind != "temp" else -1
            self.buffers.append(Buffer(kind, shown, elements, ITEMSIZE[dtype]))
        return self._known[key]

    def _array(self, array: Array) -> int:
        """The buffer of an array."""
        elements, dtype = numel(array.value.shape), array.value.dtype
        if array.update >= 0:
            return self._buffer("input", array.update, elements, dtype)
        if id(array) in self._places:
            return self._buffer("output", self._places[id(array)], elements, dtype)
        return self._buffer("temp", id(array), elements, dtype)

    def _memory(self, memory: Memory) -> int:
        if memory.array is not None:
            return self._array(memory.array)
        value = memory.value
        return self._buffer("input", self._inputs[id(value)], numel(value.shape), value.dtype)

    def _pointer(self, memory: Memory) -> tuple[int, Dim, int]:
        return self._memory(memory), memory.offset, ITEMSIZE[memory.value.dtype]

    def _launch(self, lowered: Lowered | Called, label: str) -> Launch | Call:
        if isinstance(lowered, Called):
            inputs = tuple(map(self._pointer, lowered.inputs))
            outputs = tuple(None if m is None else self._pointer(m) for m in lowered.outputs)
            return Call(lowered.name, lowered.attrs, inputs, outputs, lowered.strides)
        key = lowered.kernel.text()
        if key not in self._numbers:
            self._numbers[key] = len(self.kernels)
            self.kernels.append(lowered.kernel)
        pointers = tuple(map(self._pointer, lowered.pointers))
        return Launch(
            self._numbers[key],
            label,
            pointers,
            lowered.args,
            lowered.grid,
            lowered.grain,
            lowered.scratch,
            lowered.split,
        )

    def _freed(self, launches: list[Launch | Call]) -> list[Step]:
        """The launches with every temporary freed after its last use."""
        last: dict[int, int] = {}
        for k, launch in enumerate(launches):
            for buffer, _, _ in launch.pointers:
                if self.buffers[buffer].kind == "temp":
                    last[buffer] = k
        ended: list[list[Step]] = [[] for _ in launches]
        for buffer, end in sorted(last.items()):
            ended[end].append(Free(buffer))
        return [step for launch, frees in zip(launches, ended) for step in (launch, *frees)]


def _label(group: Group, places: dict[int, int]) -> str:
    """The ops of a group in the order of the graph, each once, as many as a table has room for."""
    values = [*group.inline.values(), *(root.value for root in group.roots)]
    nodes = {id(n): n for n in (*group.nodes, *(v.node for v in values), *(f.node for f in group.folds)) if n}
    in_order = sorted(nodes.values(), key=lambda n: places.get(id(n), -1))
    text = " ".join(dict.fromkeys(n.op.name for n in in_order if n.op.kind not in VIEWS))
    if len(text) > LONGEST_LABEL:
        text = f"{text[:LONGEST_LABEL]}..."
    return label(text, (n.line for n in in_order))
