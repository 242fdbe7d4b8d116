"""Windows: what goes back from the results of windows to the taps that they came from.

A column is a plane, laid flat; its windows go over up to three dims of it, in ascending order.

    out[..] = 0
    place[tap] = sum of (tap's index along d) * dilation_d * step_d             once per call, on the stack
    for i, j, k over windows:
        t = taps[i, j, k];   at = sum of (window's index along d * stride_d - padding_d) * step_d + place[t]
        out[at] += source[i, j, k]                                      (or =, where no two windows meet)

A tap in the padding before a dim stands for the first of its window inside, along that dim: windows that
begin there find their tap by division. A place that is not in the plane gets nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kiln.codegen.along.along import Along, AlongSpec
from kiln.codegen.ir.index import Index, Pointer
from kiln.codegen.ir.memory import element
from kiln.codegen.target import Target
from kiln.table.order import LANES

DIMS = 3


class Geometry(NamedTuple):
    """Windows over three dims; those that there are not have one tap."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def of(cls, *settings: tuple[int, ...]) -> Geometry:
        """Of windows over fewer dims, the last ones."""
        absent = (1, 1, 0, 1)
        return cls(*((one,) * (DIMS - len(given)) + tuple(given) for one, given in zip(absent, settings)))

    def text(self) -> str:
        """For a pattern."""
        return " ".join(f"{name} {','.join(map(str, x))}" for name, x in zip(self._fields, self))


class Windows(Along):
    """A kernel being written; `what` of its pattern: add or set, then the geometry."""

    operands = ("out", "taps", "source")
    numbers = ("plane", "count 0", "count 1", "count 2", "size 1", "size 2")

    def __init__(self, spec: AlongSpec, target: Target) -> None:
        super().__init__(spec, target)
        self.how, *rest = spec.what.split()
        self.geometry = Geometry(*(tuple(map(int, x.split(","))) for x in rest[1::2]))
        kernel = self.geometry.kernel
        self.weights = (kernel[1] * kernel[2], kernel[2], 1)
        self.taps = kernel[0] * self.weights[0]
        rows = self.number["size 2"]
        self.steps = (self.number["size 1"] * rows, rows, self.code.index(1))
        self.places = self.code.slot("i64", self.taps)

    def emit(self) -> str:
        with self.code.loop(0, self.taps, 1) as turn:
            place = self.code.index(0)
            for d in range(DIMS):
                place = place + self._own(turn.index, d) * self.geometry.dilation[d] * self.steps[d]
            self.places.put(place, turn.index)
        return super().emit()

    def columns(self, unit: Index, pointers: list[Pointer], count: Index) -> None:
        """One plane."""
        code, (_, stride, padding, _) = self.code, self.geometry
        self._clear(pointers[0])
        counts = [self.number[f"count {d}"] for d in range(DIMS)]
        with code.loop(0, counts[0], 1) as i, code.loop(0, counts[1], 1) as j:
            outer = [x.index * s - p for x, s, p in zip((i, j), stride, padding)]
            row = (i.index * counts[1] + j.index) * counts[2]
            inside = (outer[0] >= 0) & (outer[1] >= 0)
            first = -(-padding[2] // stride[2])
            edge = inside.choose(counts[2].min(first), counts[2])
            with code.loop(0, edge, 1) as k:
                start = [*outer, k.index * stride[2] - padding[2]]
                self._one(pointers, row + k.index, lambda tap: self._clamped(start, tap))
            base = outer[0] * self.steps[0] + outer[1] * self.steps[1] - padding[2]
            with code.loop(edge, counts[2], 1) as k:
                begins = base + k.index * stride[2]
                self._one(pointers, row + k.index, lambda tap: begins + self.places.word(tap))

    def _clear(self, out: Pointer) -> None:
        """The plane's zeros."""
        kind, plane = element(self.spec.dtypes[0]), self.number["plane"]
        whole = plane & -LANES if self.spec.strides[0][0] == "1" else self.code.index(0)
        with self.code.loop(0, whole, LANES) as turn:
            out.element(kind, turn.index).store(f"<{LANES} x {kind}> zeroinitializer", 1)
        with self.code.loop(whole, plane, 1) as turn:
            self.at(0, out, turn.index).store(f"{kind} 0.0", 1)

    def _one(self, pointers: list[Pointer], window: Index, place: Callable[[Index], Index]) -> None:
        """One window's result goes to its tap."""
        code, (out, taps, source) = self.code, pointers
        read = self.machine.convert(self.read(1, self.at(1, taps, window)), "i64")
        at = place(code.index(read).min(self.taps - 1))
        with code.when(at.unsigned("lt", self.number["plane"])):
            to, x = self.at(0, out, at), self.read(2, self.at(2, source, window))
            if self.how == "add":
                x = self.machine.instruction("fadd", self.read(0, to), x)
            self.memory.write(self.spec.dtypes[0], to, x)

    def _own(self, tap: Index, d: int) -> Index:
        """A tap's index along a dim."""
        return tap.udiv(self.weights[d]).urem(self.geometry.kernel[d])

    def _clamped(self, start: list[Index], tap: Index) -> Index:
        """A tap's place, taken into the array along each dim where it is before it."""
        place = self.code.index(0)
        for d, (begin, step, r) in enumerate(zip(start, self.steps, self.geometry.dilation)):
            at = begin + self._own(tap, d) * r
            if self.geometry.padding[d]:
                at = at.max((at + r * self.geometry.padding[d]).urem(r) if r > 1 else 0)
            place = place + at * step
        return place
