"""Windows: what goes back from the results of windows to the taps that they came from.

A column is a plane of up to three dims; the dim gone along is that of its windows, laid flat.

    out[..] = 0
    places[tap] = sum of (tap's index along d * dilation_d) * step_d                            on the stack
    for i, j, k over windows:
        t = taps[i, j, k];   at = sum of (window's index along d * stride_d - padding_d) * step_d + places[t]
        out[at] += source[i, j, k]                                      (or =, where no two windows meet)

A result from the padding is as low as everything in its window, so it is the first tap's. Of windows that
are not all inside the plane that tap stands for the first inside, along each dim; what does not lead into the
plane for all that is not written. Of the others each tap is inside, as the table is filled up to a power of
two, and the bits above are cut off.
"""

from __future__ import annotations

from typing import NamedTuple

from kiln.codegen.along.along import Along, AlongSpec
from kiln.codegen.ir.index import Index, Pointer
from kiln.codegen.ir.memory import element
from kiln.codegen.target import Target
from kiln.table.order import LANES

DIMS = 3
TOGETHER = 4  # windows of a turn


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
    numbers = tuple(f"{what} {d}" for what in ("count", "size", "step") for d in range(DIMS))

    def __init__(self, spec: AlongSpec, target: Target) -> None:
        super().__init__(spec, target)
        self.how, *rest = spec.what.split()
        self.geometry = Geometry(*(tuple(map(int, x.split(","))) for x in rest[1::2]))
        kernel = self.geometry.kernel
        self.weights = (kernel[1] * kernel[2], kernel[2], 1)
        self.taps = kernel[0] * self.weights[0]
        self.numbered = 1 << (self.taps - 1).bit_length()
        self.size = [self.number[f"size {d}"] for d in range(DIMS)]
        self.steps = [self.number["step 0"], self.number["step 1"], self.stride[0][0]]
        self.places = self.code.slot("i64", self.numbered)

    def emit(self) -> str:
        """The kernel's text: the table of taps, then plane after plane."""
        with self.code.loop(0, self.numbered, 1) as turn:
            tap, place = turn.index.min(self.taps - 1), self.code.index(0)
            for d, (weight, kernel) in enumerate(zip(self.weights, self.geometry.kernel)):
                along = tap.udiv(weight).urem(kernel) * self.geometry.dilation[d]
                place = place + along * self.steps[d]
            self.places.put(place, turn.index)
        last = ((size - 1) * step for size, step in zip(self.size, self.steps))
        self.span = sum(last, self.code.index(1))
        return super().emit()

    def columns(self, unit: Index, pointers: list[Pointer], count: Index) -> None:
        """One plane."""
        code, (kernel, stride, padding, dilation) = self.code, self.geometry
        self._clear(pointers[0])
        extents = [(k - 1) * r + 1 for k, r in zip(kernel, dilation)]
        counts = [self.number[f"count {d}"] for d in range(DIMS)]
        reached = self.size[2] + (padding[2] + stride[2] - extents[2])
        inner = reached.max(0).udiv(stride[2]).min(counts[2])  # windows that do not reach over the end
        with code.loop(0, counts[0], 1) as i, code.loop(0, counts[1], 1) as j:
            outer = [x.index * s - p for x, s, p in zip((i, j), stride, padding)]
            inside = code.condition(True)
            for x, size, extent in zip(outer, self.size, extents):
                inside = inside & (x >= 0) & (x + extent <= size)
            edge = inside.choose(inner.min(-(-padding[2] // stride[2])), counts[2])
            row = (i.index * counts[1] + j.index) * counts[2]
            base = outer[0] * self.steps[0] + outer[1] * self.steps[1] - self.steps[2] * padding[2]
            first = sum((self._first(x, d) * self.steps[d] for d, x in enumerate(outer)), code.index(0))
            with code.loop(0, edge, 1) as k:
                self._careful(pointers, row, base, first, k.index)
            self._inside(pointers, row, base, edge, edge.max(inner))
            with code.loop(edge.max(inner), counts[2], 1) as k:
                self._careful(pointers, row, base, first, k.index)

    def _clear(self, out: Pointer) -> None:
        """The plane's zeros: as one run of memory if it is one, else row by row."""
        code, (sizes, steps) = self.code, (self.size, self.steps)
        plane = sizes[0] * sizes[1] * sizes[2]
        lines = steps[1].equals(sizes[2] * steps[2]) | sizes[1].equals(1)
        whole = lines & (steps[0].equals(sizes[1] * sizes[2] * steps[2]) | sizes[0].equals(1))
        rows = [whole.choose(1, sizes[0]), whole.choose(1, sizes[1])]
        with code.loop(0, rows[0], 1) as i, code.loop(0, rows[1], 1) as j:
            self._zeros(
                self._from(out, i.index * steps[0] + j.index * steps[1]), whole.choose(plane, sizes[2])
            )

    def _zeros(self, out: Pointer, count: Index) -> None:
        """Zeros along the last dim."""
        kind = element(self.spec.dtypes[0])
        whole = count & -LANES if self.spec.strides[0][0] == "1" else self.code.index(0)
        with self.code.loop(0, whole, LANES) as turn:
            out.element(kind, turn.index).store(f"<{LANES} x {kind}> zeroinitializer", 1)
        with self.code.loop(whole, count, 1) as turn:
            self.at(0, out, turn.index).store(f"{kind} 0.0", 1)

    def _inside(self, pointers: list[Pointer], row: Index, base: Index, first: Index, end: Index) -> None:
        """Windows of a row that are inside the plane, some at a time."""
        code, stride = self.code, self.geometry.stride[2]
        out = pointers[0].element(element(self.spec.dtypes[0]), base)
        taps, source = (self.at(n, pointers[n], row) for n in (1, 2))
        whole = first + ((end - first) & -TOGETHER)
        for start, limit, many in ((first, whole, TOGETHER), (whole, end, 1)):
            with code.loop(start, limit, many) as k:
                places = [self.at(n, p, x) for n, p, x in zip((1, 2), (taps, source), (k.index, k.index))]
                begins = self.at(0, out, k.index * stride)
                for n in range(many):
                    tap = self._tap(self.at(1, places[0], code.index(n)))
                    to = self.at(0, self._from(begins, self.places.word(tap)), code.index(n * stride))
                    self._put(to, self.at(2, places[1], code.index(n)))

    def _careful(self, pointers: list[Pointer], row: Index, base: Index, first: Index, k: Index) -> None:
        """The window k of a row, which is not all in the plane; `first`: of the row's first taps inside."""
        out, taps, source = pointers
        stride, padding = self.geometry.stride[2], self.geometry.padding[2]
        tap = self._tap(self.at(1, taps, row + k))
        inside = first + self._first(k * stride - padding, 2) * self.steps[2]
        place = tap.equals(0).choose(inside, base + self.steps[2] * (k * stride) + self.places.word(tap))
        with self.code.when(place.unsigned("lt", self.span)):
            self._put(self._from(out, place), self.at(2, source, row + k))

    def _first(self, begin: Index, d: int) -> Index:
        """Where the first tap inside of a window is that begins there."""
        r, p = self.geometry.dilation[d], self.geometry.padding[d]
        return begin.max((begin + r * p).urem(r) if r > 1 else 0) if p else begin

    def _from(self, out: Pointer, place: Index) -> Pointer:
        return out.element(element(self.spec.dtypes[0]), place)

    def _tap(self, pointer: Pointer) -> Index:
        """The number of a tap, which has a place in the tables."""
        return self.code.index(self.machine.convert(self.read(1, pointer), "i64")) & (self.numbered - 1)

    def _put(self, to: Pointer, source: Pointer) -> None:
        """A window's result goes to its tap."""
        x = self.read(2, source)
        if self.how == "add":
            x = self.machine.instruction("fadd", self.read(0, to), x)
        self.memory.write(self.spec.dtypes[0], to, x)
