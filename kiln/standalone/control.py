"""Control flow as code: which graph runs next, and on what.

The state of a loop goes to and fro between the memory of its results and a second place for each; where it
ends in the second, it is copied. A result that nobody reads has memory for it, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from kiln.capture.programs import Slots
from kiln.codegen.ir.index import Condition, Integer, Pointer
from kiln.graph.size import Dim, Size, substitute
from kiln.passes.control import with_condition
from kiln.passes.plan import Call
from kiln.standalone.function import Function, Module, Runs
from kiln.standalone.memory import ALIGNMENT, Where, address, aligned, larger
from kiln.standalone.sizes import Sizes


class Control:
    """A step that calls graphs."""

    def __init__(self, driver: Module, step: Call, slots: Slots) -> None:
        if step.name == "counted":
            raise ValueError(
                f"to_native: {driver.name} has the gradient of a while loop, whose memory grows with every "
                "step: a loop whose number of steps is a size can be exported"
            )
        self.step, self.sizes = step, step.attrs.sizes
        graphs = [sub.graph for sub in step.attrs.graphs]
        if step.name == "while_loop":
            graphs[1] = with_condition(graphs[0], graphs[1], step.attrs.counts[0])
        self.bodies: list[Runs] = []
        for graph in graphs:
            arrays = [k for k, v in enumerate(graph.inputs) if not v.weak]
            self.bodies.append(driver.new_body(graph, range(len(self.sizes)), arrays, called=True))
        self.driver = driver
        self.state = 0 if step.name == "cond" else step.attrs.counts[0]
        self.results = self.bodies[-1]  # gives the results
        self._lengths = [self._length(k) for k in range(len(self.results.plan.outputs))]
        self._held: tuple[Function, Pointer] | None = None
        for dim in (*self.sizes, *self._lengths, *step.strides, step.attrs.steps[0]):
            slots.of(dim)

    def _length(self, k: int) -> Dim:
        """The elements of a result of one call, in the sizes of those around it."""
        count = self.results.elements(k)
        return substitute(count, lambda slot: self.sizes[slot]) if isinstance(count, Size) else count

    # -- memory -------------------------------------------------------------------------------------------

    def bytes(self, f: Function, sizes: Sizes, threads: Integer) -> Integer:
        """How much memory it needs."""
        held = f.slot("i64", max(len(self.sizes), 1))
        for j, dim in enumerate(self.sizes):
            held.put(sizes.of(dim), j)
        self._held = f, held
        most: Integer = 0
        for body in self.bodies:
            most = larger(most, f.index(f.call_for("i64", f"{body.symbol}.bytes", held, threads)))
        own: Integer = ALIGNMENT  # the condition of a loop
        for k in self._own_places():
            own = own + self._bytes(sizes, k)
        return own + aligned(most)

    def _own_places(self) -> list[int]:
        """Of each place in its own memory, which result it is as long as."""
        unread = [k for k, where in enumerate(self._outputs()) if where is None]
        return [*range(self.state), *unread]

    def _outputs(self) -> tuple[Where | None, ...]:
        """Where the results of one call go."""
        return self.step.outputs[: self._count]

    @property
    def _count(self) -> int:
        """How many results there are, without the condition that a loop's body gives as well."""
        return len(self.results.plan.outputs) - (self.step.name == "while_loop")

    def _bytes(self, sizes: Sizes, k: int) -> Integer:
        return aligned(self._exactly(sizes, k))

    def _exactly(self, sizes: Sizes, k: int) -> Integer:
        return sizes.of(self._lengths[k]) * self.results.itemsize(k)

    # -- code ---------------------------------------------------------------------------------------------

    def write(self, f: Function, sizes: Sizes, bases: list[Pointer], memory: Pointer) -> None:
        """The step, in memory of its own."""
        assert self._held is not None and self._held[0] is f
        own: Integer = ALIGNMENT
        places = []
        for k in self._own_places():
            places.append(memory[own])
            own = own + self._bytes(sizes, k)
        unread = iter(places[self.state :])
        inputs = [address(bases, sizes, where) for where in self.step.inputs]
        outputs = [
            next(unread) if where is None else address(bases, sizes, where) for where in self._outputs()
        ]
        call = _Call(self, f, sizes, self._held[1], memory, memory[own])
        if self.step.name == "cond":
            call.branch(inputs, outputs)
        elif self.step.name == "while_loop":
            call.loop(inputs, outputs, places[: self.state])
        else:
            kept = [
                None if where is None else address(bases, sizes, where)
                for where in self.step.outputs[self._count :]
            ]
            call.scan(inputs, outputs, places[: self.state], kept)


class _Call:
    """The code of one step."""

    def __init__(
        self, control: Control, f: Function, sizes: Sizes, held: Pointer, flag: Pointer, memory: Pointer
    ) -> None:
        self.control, self.f, self.sizes, self.held = control, f, sizes, held
        self.flag, self.memory = flag, memory

    def _list(self, pointers: Sequence[Pointer]) -> Pointer:
        made = self.f.slot("ptr", max(len(pointers), 1))
        for n, p in enumerate(pointers):
            made.put(p, n)
        return made

    def _run(self, k: int, inputs: Pointer, outputs: Pointer) -> None:
        body = self.control.bodies[k].symbol
        self.f.call_for("void", body, inputs, self.held, outputs, self.memory, self.f.pointer("%threads"))

    def _move(self, to: Pointer, source: Pointer, k: int) -> None:
        size = self.control._exactly(self.sizes, k)
        self.f.call_for("void", self.control.driver.mover, to, source, size)

    def _holds(self, flag: Pointer) -> Condition:
        """A bool in memory."""
        return self.f.condition(self.f.op(f"icmp ne i8 {flag.load('i8')}, 0"))

    def branch(self, inputs: list[Pointer], outputs: list[Pointer]) -> None:
        """cond"""
        given, to = self._list(inputs[1:]), self._list(outputs)
        with self.f.either(self._holds(inputs[0])) as other:
            self._run(0, given, to)
            next(other)
            self._run(1, given, to)

    def loop(self, inputs: list[Pointer], first: list[Pointer], second: list[Pointer]) -> None:
        """while_loop"""
        f, state = self.f, self.control.state
        given = self._list(inputs)
        to_first, to_second = self._list([*first, self.flag]), self._list([*second, self.flag])
        from_first = self._list([*first, *inputs[state:]])
        from_second = self._list([*second, *inputs[state:]])
        self._run(0, given, self._list([self.flag]))
        with f.either(self._holds(self.flag)) as stay:
            self._run(1, given, to_first)
            with f.repeat([f.index(1)], lambda _: self._holds(self.flag)) as turn:
                (steps,) = turn.indices
                odd = (steps & 1).equals(1)
                self._run(1, odd.choose(from_first, from_second), odd.choose(to_second, to_first))
                turn.next = [steps + 1]
            (steps,) = turn.indices
            ends_first = (steps & 1).equals(1)
            for k in range(state):
                self._move(first[k], ends_first.choose(first[k], second[k]), k)
            next(stay)
            for k in range(state):
                self._move(first[k], inputs[k], k)

    def scan(
        self,
        inputs: list[Pointer],
        outputs: list[Pointer],
        second: list[Pointer],
        kept: list[Pointer | None],
    ) -> None:
        """scan"""
        f, control, state = self.f, self.control, self.control.state
        length, reverse = control.step.attrs.steps
        count, each = self.sizes.of(length), control.step.attrs.counts[1]
        moved = [*control.step.inputs[state : state + each], *control._outputs()[state:]]
        strides = [
            0 if where is None else self.sizes.of(stride) * where[2]
            for stride, where in zip(control.step.strides, moved)
        ]
        given, to = self._list(inputs), self._list(outputs)
        with f.loop(0, count, 1) as turn:
            step = turn.index
            at = f.index(count) - 1 - step if reverse else step
            for k, place in enumerate(kept):
                if place is not None:
                    self._move(place[at * control._exactly(self.sizes, k)], given.pointer(k), k)
            for k in range(each):
                given.put(inputs[state + k][at * strides[k]], state + k)
            for k in range(len(outputs) - state):
                to.put(outputs[state + k][at * strides[each + k]], state + k)
            odd = (step & 1).equals(1)
            for k in range(state):
                to.put(odd.choose(second[k], outputs[k]), k)
            self._run(0, given, to)
            for k in range(state):
                given.put(to.pointer(k), k)
        for k in range(state):
            self._move(outputs[k], given.pointer(k), k)
