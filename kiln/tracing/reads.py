"""Reads of values while a function is followed: what the example's are, kept and checked at each call."""

from __future__ import annotations

from typing import Any, NamedTuple

from kiln import _core
from kiln.capture.pure.steps import DETACH
from kiln.capture.pure.trace import Tracer
from kiln.capture.pure.values import user_line
from kiln.graph.size import Size
from kiln.tracing.captured import Expected, Kept
from kiln.tracing.ops import called
from kiln.tracing.sizes import Sizes

_SHOWN = 4  # elements of a tensor that errors show


class Read(NamedTuple):
    """That a value was read: which, what it was for the example, where."""

    value: int
    example: Any
    line: str


class Reads(Tracer):
    """The part of a recorder that knows what values are for the example."""

    def __init__(self, name: str, on_data: str, has_values: bool) -> None:
        super().__init__(name, ())
        self.on_data, self._has_values = on_data, has_values
        self.known = Sizes()
        self.read_values: list[Read] = []
        self.expected: list[tuple[int, type[Exception], str]] = []  # what ops ask of values
        self.running: Any = None  # the run of a script that is followed, which knows what is around
        self._stand_ins: dict[int, tuple[Any, bool]] = {}  # storage of a stand-in -> it, may be written
        self._examples: dict[int, Any] = {}  # id of a stand-in -> what it stands for
        self._computed: dict[int, Any] = {}  # values of the example, where one was read
        self._known_outside: list[tuple[Any, Any]] = []  # tensors whose memory others know, what is in it

    def read(self, tensor: Any, for_others: bool) -> Any:
        """The memory of a tensor whose values are read, as a whole; None for one that has them.

        They are those of the example, kept and checked at each call.
        """
        if self._before_backward is not None:
            self.refuse("reads a value in the backward of an autograd.Function")
        storage = _core.place(tensor)[0]
        own = storage in self._stand_ins or storage in self._made
        value = self.example_of(self.value(tensor))
        if own and (self.on_data != "check" or value is None):
            shown = "" if value is None or value.numel() > _SHOWN else f", {value.tolist()!r} for the example"
            self.refuse(f"reads the value of a tensor{shown}: the trace would keep it ever after")
        if value is None:
            return None
        self.read_values.append(Read(self.value(tensor), value.clone(), user_line()))
        if not own:
            return None
        whole = self._on[storage][0]
        found = self.example_of(self.value(whole)).contiguous()
        if for_others:
            self._sealed[storage] = "memory that others know, as an array of NumPy"
            self._known_outside.append((whole, found))
        return found

    def example_of(self, k: int) -> Any:
        """A value for the example; None where it has none, or the trace is made with other sizes."""
        if not self._has_values or any(
            tuple(self._examples[id(x)].shape) != _core.place(x)[2]
            for x in self.operands
            if id(x) in self._examples
        ):
            return None
        needed: list[Any] = []
        wanted = {k}
        for step in reversed(self.steps):
            if any(j in wanted and j not in self._computed for j in step.outs):
                needed.append(step)
                wanted.update(j for kind, j in step.args if kind == "value")
        seed, start = self.random
        given = [
            seed if kind == "seed" else start + self.known.value_of(delta) for kind, delta in self.numbers
        ]

        def put(x: Any) -> Any:
            return (
                tuple(map(put, x))
                if isinstance(x, tuple)
                else self.known.value_of(x)
                if isinstance(x, Size)
                else x
            )

        def argument(kind: str, x: Any) -> Any:
            return self._now(x) if kind == "value" else given[x] if kind == "operand" else put(x)

        before = _core.set_grad_enabled(False)
        try:
            for step in reversed(needed):
                own = step._replace(structure=put(step.structure)) if isinstance(step.op, str) else step
                made = called(own, tuple([argument(*arg) for arg in step.args]))
                self._computed.update(zip(step.outs, made))
            return self._now(k)
        finally:
            _core.set_grad_enabled(before)

    def _now(self, k: int) -> Any:
        if k < len(self.operands):
            x = self.operands[k]
            return self._examples.get(id(x), x).detach()
        return self._computed[k]

    def stands_for(self, tensor: Any) -> bool:
        """Whether a tensor stands for one that each call has: of an argument, or of the module."""
        return id(tensor) in self._examples

    def expect_unwritten(self) -> None:
        """Refuses that memory was written by who else knows it."""
        for tensor, found in self._known_outside:
            if not _core.same_bytes(tensor.detach(), found):
                self.refuse("writes into a tensor's memory from outside, through NumPy for one")

    def expect(self, holds: Any, kind: type[Exception], text: str) -> None:
        """What an op asks of values: a program raises where it does not hold."""
        if self.running is not None:
            self.running.expect(holds, kind(text))
        else:
            self.expect_at_end(holds, kind, text)

    def expect_at_end(self, holds: Any, kind: type[Exception], text: str) -> None:
        """The same of what every call computes: it is looked at when all is done."""
        holds = getattr(holds, "whole", holds)
        self.expected.append((self.value(holds), kind, text))

    def check_reads(self, first: int) -> tuple[list[Any], list[int]]:
        """The reads as checks; the values that they look at as results more, from number `first` on."""
        found: list[Any] = []
        extra: list[int] = []
        for k, value, line in self.read_values:
            if k < len(self.operands):
                found.append(Kept("operand", k, value, line))
                continue
            detached = self._new()
            self._append(DETACH, (), (("value", k),), [detached], [self.dtypes[k]], [self.sizes[k]], True)
            found.append(Kept("result", first + len(extra), value, line))
            extra.append(detached)
        for k, kind, text in self.expected:
            found.append(Expected(first + len(extra), kind, text))
            extra.append(k)
        return found, extra
