"""Follows the run of a function that is traced: nothing computes, calls of ops become steps.

Arguments, parameters and buffers are stand-ins: tensors of the same look without values, so that no value can
be read. What is written into them is a result more; other tensors that are met are constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kiln import _core, ops
from kiln.capture.pure.trace import Tracer, user_line
from kiln.table.record import Op


class TracingError(RuntimeError):
    """What a function does that a trace of it would not do again."""


_MOVES = {
    "a value was read": "reads the value of a tensor: the trace would keep the one of its example",
    "of a write": "writes to memory that a trace cannot follow",
    "calls backward": "calls backward: take gradients of what the trace gives",
}
_WAYS = (
    "compute it with ops of tensors (where(condition, a, b) for a branch), make it an argument that is no tensor, "
    "or use kiln.compile, which runs any Python"
)


class Recorder(Tracer):
    """A tracer whose operands are stand-ins."""

    def __init__(self, name: str) -> None:
        super().__init__(name, ())
        self._quiet = False
        self._stand_ins: dict[int, tuple[Any, bool]] = {}  # storage of a stand-in -> it, may be written
        self.constants: list[int] = []  # operands that stand for nothing: tensors that were met

    def stand_in(self, tensor: Any, argument: bool) -> Any:
        """A tensor of the same look without values, which becomes an operand when it is used."""
        self._quiet = True
        try:
            made = ops.empty(tuple(tensor.shape), dtype=tensor.dtype)
            if tensor.requires_grad:
                made.requires_grad_()
        finally:
            self._quiet = False
        self._stand_ins[_core.place(made)[0]] = made, True
        if argument:
            self._arguments.add(id(made))
            self.value(made)
        return made

    def called(
        self,
        op: Op,
        structure: tuple[Any, ...],
        operands: tuple[Any, ...],
        out: tuple[Any, ...],
        results: tuple[Any, ...],
        history: bool,
    ) -> None:
        if not self._quiet:
            super().called(op, structure, operands, out, results, history)

    def sizes_read(self, tensor: Any) -> None:
        """Sizes are those of the example."""

    def refuse(self, what: str) -> None:
        self.failure = TracingError(  # type: ignore[assignment]
            f"{self.name}: {user_line()} {_MOVES.get(what, what)}; {_WAYS}"
        )
        raise self.failure  # type: ignore[misc]

    def may_write(self, storage: int) -> bool:
        return storage in self._made or storage in self._stand_ins

    def written(self, stand_in: Any) -> int | None:
        """The value that a stand-in has at the end, if it was written."""
        first = self._value.get(id(stand_in))
        if first is None:
            return None
        last = self.value(stand_in)
        return None if last < len(self.operands) else last

    def operand_of(self, tensor: Any) -> int | None:
        """The operand that a tensor is."""
        return next((k for k, x in enumerate(self.operands) if x is tensor), None)

    def steps_of(self, results: Sequence[int]) -> Any:
        """The steps that these values need."""
        return self.finish(list(results))

    def _meet(self, tensor: Any) -> int:
        own = self._stand_ins.get(_core.place(tensor)[0])
        if own is not None and own[0] is not tensor:
            self.value(own[0])  # the whole comes first
        return super()._meet(tensor)
