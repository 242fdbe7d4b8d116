"""What a picture shows of a graph that was defined, beside what it shows of recorded ops."""

from __future__ import annotations

from typing import Any, NamedTuple

from kiln.viz.trace import Call, Leaf, Trace


class Sub(NamedTuple):
    """A graph that a call of control flow runs: what for, and its calls."""

    name: str
    trace: Trace


class Given(Leaf):
    """An input of a graph."""

    __slots__ = ()


class Defined(Call):
    """An op of a graph; `told`: the call in words, if arguments do not say it; `subs`: graphs it calls."""

    __slots__ = ("kind", "subs", "told")

    def __init__(self, op: Any, order: int, line: str) -> None:
        self.order, self.name, self.record = order, op.name, op
        self.title, self.line = op.name, line
        self.structure: Any = None
        self.inputs, self.saved, self.shapes = [], [], {}
        self.freed, self.dtype, self.named = False, "", {}
        self.told = self.kind = ""
        self.subs: list[Sub] = []
