"""A plan as code: sizes, places of temporary arrays, launches of kernels and calls of other graphs.

    NAME.p0.bytes(sizes, threads)                            how much memory it needs for its own
    NAME.p0(inputs, sizes, outputs, memory, threads)         runs it

`memory` holds temporary arrays, then what calls of graphs need, then the scratch memory of each thread.
`sizes` are the integers of the slots `stated`, in that order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kiln.capture.programs import Slots
from kiln.codegen.ir.index import Integer, Pointer
from kiln.graph.graph import Graph
from kiln.graph.size import Dim, product
from kiln.passes import pipeline
from kiln.passes.plan import ITEMSIZE, Call, Launch
from kiln.standalone.control import Control
from kiln.standalone.function import Function, Module, Source
from kiln.standalone.memory import Layout, address, aligned, larger, lay_out
from kiln.standalone.sizes import Interval, Sizes, intervals

Lists = tuple[Pointer, Pointer]  # what a launch is given: pointers, integers


class Body:
    """A graph that a library runs. `sources`: what each of its arrays is; `stated`: the slots that callers
    fill, in order.
    """

    def __init__(
        self, driver: Module, graph: Graph, stated: Sequence[int], sources: Sequence[Source], called: bool
    ) -> None:
        self.driver, self.stated, self.sources = driver, list(stated), list(sources)
        self.plan = pipeline.program(graph, called=called)
        self.slots = Slots(graph.slots)
        self.controls: dict[int, Control] = {}
        for at, step in enumerate(self.plan.steps):
            if isinstance(step, Call):
                self.controls[at] = Control(driver, step, self.slots)
        launches = [step for step in self.plan.steps if isinstance(step, Launch)]
        self.kernels = [
            driver.kernel(kernel, [step.args for step in launches if step.kernel == k])
            for k, kernel in enumerate(self.plan.kernels)
        ]
        self.symbol = driver.new_symbol("p")
        for dim in self._dims():
            self.slots.of(dim)

    def _dims(self) -> Iterator[Dim]:
        """Every size that the code needs."""
        for buffer in self.plan.buffers:
            if buffer.kind != "input":
                yield buffer.elements
        for step in self.plan.steps:
            if isinstance(step, Launch):
                yield from (step.grid, step.grain, step.scratch, *step.args)
            if isinstance(step, (Launch, Call)):
                yield from (offset for _, offset, _ in step.pointers)
        for k in range(len(self.plan.outputs)):
            yield self.elements(k)

    def elements(self, k: int) -> Dim:
        """How many elements output k has."""
        return product(self.plan.outputs[k][2])

    def itemsize(self, k: int) -> int:
        """Bytes of an element of output k."""
        return ITEMSIZE[self.plan.outputs[k][1]]

    def intervals(self, bounds: Mapping[int, Interval]) -> Iterator[Interval]:
        """Bounds of every expression, those of graphs it calls among them."""
        found = intervals(self.slots, bounds)
        yield from found
        for control in self.controls.values():
            held = [found[self.slots.of(d)] for d in control.sizes]
            for body in control.bodies:
                yield from body.intervals(dict(enumerate(held)))

    # -- code ---------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Both functions, and those of the graphs it calls."""
        for control in self.controls.values():
            for body in control.bodies:
                body.write()
        self._write_bytes()
        self._write_run()

    def sizes(self, f: Function, given: Pointer) -> Sizes:
        """What its sizes are, of those that are stated in memory."""
        return Sizes(f, self.slots, {slot: given.word(j) for j, slot in enumerate(self.stated)})

    def _parts(
        self, f: Function, sizes: Sizes, threads: Integer
    ) -> tuple[Layout, dict[int, Integer], Integer]:
        """Where temporary arrays lie, where the memory of each control step, and where scratch memory."""
        layout = lay_out(self.plan, sizes)
        top = layout.bytes
        starts: dict[int, Integer] = {}
        for at, control in self.controls.items():
            starts[at] = top
            top = top + control.bytes(f, sizes, threads)
        return layout, starts, top

    def _write_bytes(self) -> None:
        f = self.driver.function("i64", f"{self.symbol}.bytes", "ptr %sizes, i64 %threads")
        sizes, threads = self.sizes(f, f.pointer("%sizes")), f.index("%threads")
        _, _, top = self._parts(f, sizes, threads)
        most: Integer = 0
        for step in self.plan.steps:
            if isinstance(step, Launch) and step.scratch != 0:
                most = larger(most, aligned(sizes.of(step.scratch) * 8))
        f.line(f"ret i64 {top if most == 0 else top + threads * most}")

    def _write_run(self) -> None:
        params = "ptr %inputs, ptr %sizes, ptr %outputs, ptr %memory, ptr %threads"
        f = self.driver.function("void", self.symbol, params)
        sizes = self.sizes(f, f.pointer("%sizes"))
        threads = f.index(f.call_for("i64", self.driver.counter, f.pointer("%threads")))
        memory = f.pointer("%memory")
        layout, starts, scratch = self._parts(f, sizes, threads)
        bases = self._bases(f, layout)
        launches = [step for step in self.plan.steps if isinstance(step, Launch)]
        most = max((len(step.pointers) + 2 for step in launches), default=0)
        self.driver.most_pointers = max(self.driver.most_pointers, most)
        lists = f.slot("ptr", most), f.slot("i64", max((len(step.args) for step in launches), default=0))
        for at, step in enumerate(self.plan.steps):
            if isinstance(step, Launch):
                self._launch(f, step, sizes, bases, memory[scratch], lists)
            elif isinstance(step, Call):
                self.controls[at].write(f, sizes, bases, memory[starts[at]])
        self._copy_repeated(f, sizes, bases)
        f.line("ret void")

    def _bases(self, f: Function, layout: Layout) -> list[Pointer]:
        """Where every buffer begins."""
        bases = []
        for k, buffer in enumerate(self.plan.buffers):
            if buffer.kind == "temp":
                bases.append(f.pointer("%memory")[layout.starts.get(k, 0)])
            elif buffer.kind == "output":
                bases.append(f.pointer("%outputs").pointer(buffer.index))
            else:
                source = self.sources[buffer.index]
                if isinstance(source, int):
                    bases.append(f.pointer("%inputs").pointer(source))
                else:
                    bases.append(self.driver.data_at(f)[source.offset])
        return bases

    def _launch(
        self, f: Function, step: Launch, sizes: Sizes, bases: list[Pointer], scratch: Pointer, lists: Lists
    ) -> None:
        pointers, args = lists
        for n, where in enumerate(step.pointers):
            pointers.put(address(bases, sizes, where), n)
        for n, arg in enumerate(step.args):
            args.put(sizes.of(arg), n)
        place = len(step.pointers)
        if step.split is not None:  # nothing is cut: nobody reads what this one points to
            pointers.put(scratch, place)
            place += 1
        if not self.driver.threads:
            self._run_here(f, step, sizes, scratch, lists, place)
            return
        words = sizes.of(step.scratch)
        f.call_for(
            "void", self.driver.launcher, f.pointer(f"@{self.kernels[step.kernel]}"), pointers, args,
            sizes.of(step.grid), sizes.of(step.grain), scratch, aligned(words * 8),
            -1 if step.scratch == 0 else place, f.pointer("%threads"),
        )  # fmt: skip

    def _run_here(
        self, f: Function, step: Launch, sizes: Sizes, scratch: Pointer, lists: Lists, place: int
    ) -> None:
        """A launch where there are no threads: a call of the kernel."""
        pointers, args = lists
        if step.scratch != 0:
            pointers.put(scratch, place)
        units = f.index(sizes.of(step.grid))
        with f.when(units > 0):
            f.call_for("void", self.kernels[step.kernel], pointers, args, f.index(0), units)

    def _copy_repeated(self, f: Function, sizes: Sizes, bases: list[Pointer]) -> None:
        """Results that are written where another one is, or that are an input."""
        for k, (buffer, _, _) in enumerate(self.plan.outputs):
            found = self.plan.buffers[buffer]
            if found.kind != "output" or found.index != k:
                to = f.pointer("%outputs").pointer(k)
                f.call_for(
                    "void",
                    self.driver.mover,
                    to,
                    bases[buffer],
                    sizes.of(self.elements(k)) * self.itemsize(k),
                )
