"""What a graph's plan needs of memory: as numbers, as text, as a picture of how long each array lives."""

from __future__ import annotations

from typing import Any

from kiln.graph.graph import Value
from kiln.graph.size import evaluate, product
from kiln.graph.text import dim_text
from kiln.passes.pipeline import program
from kiln.passes.plan import ITEMSIZE, Free, Launch, Plan
from kiln.symbolic.text import named
from kiln.table.kinds import VIEWS
from kiln.tracing.captured import Captured
from kiln.tracing.expand import expand
from kiln.viz.lives import Array, lives
from kiln.viz.words import amount


class Memory:
    """The memory of a graph at some sizes. `str` is a table; a notebook shows the picture, `svg`."""

    def __init__(
        self, name: str, arrays: list[Array], launches: list[str], values: int, at: dict[str, int]
    ) -> None:
        self.name, self.arrays, self.launches, self.at = name, arrays, launches, at
        self.values = values  # bytes, if every op wrote its result

    def _total(self, kind: str) -> int:
        return sum(a.nbytes for a in self.arrays if a.kind == kind)

    @property
    def inputs(self) -> int:
        """Bytes of what a run is given, and of what the graph has."""
        return self._total("input")

    @property
    def outputs(self) -> int:
        """Bytes of the results."""
        return self._total("output")

    @property
    def without_reuse(self) -> int:
        """Bytes of all temporaries, if each had memory of its own."""
        return self._total("temporary")

    @property
    def with_reuse(self) -> int:
        """Bytes of the temporaries that live at once, at most; a run needs them beside inputs and outputs."""
        temporaries = [a for a in self.arrays if a.kind == "temporary"]
        return max(
            (sum(a.nbytes for a in temporaries if a.first <= k <= a.last) for k in range(len(self.launches))),
            default=0,
        )

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} = {n}" for name, n in self.at.items())
        several = f"{len(self.launches)} kernel{'' if len(self.launches) == 1 else 's'}"
        lines = [f"plan of {self.name}: {several}" + (f", at {sizes}" if sizes else "")]
        rows = [
            ("every op's result", self.values, "if each op ran by itself"),
            ("inputs and state", self.inputs, ""),
            ("outputs", self.outputs, ""),
            ("temporaries", self.without_reuse, "without reuse"),
            ("", self.with_reuse, "with reuse: what lives at once"),
        ]
        lines += [f"  {name:18} {amount(n):>10}  {what}".rstrip() for name, n, what in rows]
        if self.arrays:
            lines += ["", f"  {'array':12} {'bytes':>12}  lives"]
        for a in self.arrays:
            span = "throughout" if a.kind == "input" else f"{a.first} to {a.last}"
            lines.append(f"  {a.name:12} {a.nbytes:>12,}  {span}  ({a.size})")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self).split("\n", 1)[0]

    @property
    def svg(self) -> str:
        """A picture: a row for each array, as long as it lives, as high as it is large; what lives at once
        below.
        """
        return lives(self.arrays, self.launches, repr(self))

    def _repr_svg_(self) -> str:
        return self.svg


def memory_of(found: Captured, sizes: dict[str, int]) -> Memory:
    """The memory of a graph. ValueError for a size that it has not."""
    unknown = next((name for name in sizes if name not in found.dims), None)
    if unknown is not None:
        raise ValueError(
            f"Graph.plan: no size is called {unknown!r}; there are {', '.join(found.dims) or 'none'}"
        )
    at = {name: sizes.get(name, dim.example) for name, dim in found.dims.items()}
    slots = _solved(found, at)
    plan: Plan = program(expand(found.graph))

    def number(size: Any) -> int:
        return evaluate(size, slots.__getitem__)

    launches: list[str] = []
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for step in plan.steps:
        if isinstance(step, Free):
            continue
        for read, *_ in step.pointers:
            first.setdefault(read, len(launches))
            last[read] = len(launches)
        kernel = plan.kernels[step.kernel].text().split("\n")[0] if isinstance(step, Launch) else step.name
        launches.append(kernel)
    arrays: list[Array] = []
    names = [x.name for x in found.inputs] + [s.name for s in found.state]
    counts = {"temp": 0}
    for k, buffer in enumerate(plan.buffers):
        if k not in first:
            continue
        if buffer.kind == "input":
            name = names[buffer.index] if buffer.index < len(names) else f"number {buffer.index}"
        elif buffer.kind == "output":
            name = (
                found.outputs[buffer.index] if buffer.index < len(found.outputs) else f"result {buffer.index}"
            )
        else:
            name = f"temporary {counts['temp']}"
            counts["temp"] += 1
        kind = "temporary" if buffer.kind == "temp" else buffer.kind
        size = f"{named(found, dim_text(buffer.elements))} x {buffer.itemsize} B"
        end = len(launches) - 1 if kind == "output" else last[k]
        arrays.append(Array(name, kind, number(buffer.elements) * buffer.itemsize, size, first[k], end))
    arrays.sort(key=lambda a: (("input", "temporary", "output").index(a.kind), a.first))
    return Memory(
        found.name, arrays, launches, sum(_nbytes(n.out, number) for n in found.graph.nodes if _writes(n)), at
    )


def _writes(node: Any) -> bool:
    return node.op.kind not in VIEWS and node.op.kind != "constant" and not node.out.weak


def _nbytes(value: Value, number: Any) -> int:
    return int(number(product(value.shape))) * ITEMSIZE[value.dtype]


def _solved(found: Captured, at: dict[str, int]) -> dict[int, int]:
    """The sizes of the inputs where those that vary are these."""
    slots = {dim.slot: _read_as(dim.symbol, at[dim.name]) for dim in found.dims.values()}
    for first, own in zip(found.firsts, found.inputs):
        for d, n in enumerate(own.shape):
            slots.setdefault(first + d, n if isinstance(n, int) else evaluate(n, slots.__getitem__))
    return slots


def _read_as(symbol: Any, value: int) -> int:
    """The least size of an input from which a size that varies is read as at least `value`."""

    def reaches(size: int) -> bool:
        return evaluate(symbol, lambda _: size) >= value

    low, high = -1, 1
    while not reaches(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high
