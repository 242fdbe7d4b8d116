"""The schedules without reductions: "flat" (one dim) and "map" (rows of the last dim).

flat:  for v in begin .. end by 16:  store f(loads at v)
map:   for row in begin .. end:
           pointers of the row;  values that do not vary along the row
           for v in 0 .. size by 16:  store f(loads at v)

Rows shorter than a vector go several at a time where they follow one another (`maps_narrow.py`); else those
of at most 4 elements go element by element, as scalars.
"""

from __future__ import annotations

from functools import partial

from kiln.codegen.ir.emit import Expression, together
from kiln.codegen.ir.index import Index, Integer, Pointer
from kiln.codegen.ir.memory import element
from kiln.codegen.ir.value import Value
from kiln.codegen.nests.frame import EXPENSIVE, POINT, Frame, Step
from kiln.codegen.nests.maps_narrow import Narrow
from kiln.codegen.nests.nest import Nest
from kiln.codegen.nests.rows import SHORT
from kiln.codegen.nests.tiles import Tiles, transposed
from kiln.codegen.target import Target


def emit_map(nest: Nest, target: Target) -> str:
    """The kernel of a nest without reduced dims, as LLVM text."""
    frame = Frame(nest, target)
    lane_dim = len(nest.dims) - 1
    every = frozenset(range(len(nest.dims))) | {POINT}
    frame.hoist(frame.outer, frame.roots, every, False)
    if not nest.dims:
        results = [(k, frame.outer.value(value)) for k, value in nest.stores]
        for k, value in results:
            frame.memory.write(nest.operands[k].dtype, frame.base[k], value)
    elif lane_dim == 0:
        begin, end = frame.code.indices("begin", "end")
        frame.streams.ask(lane_dim, begin)
        _row(frame, frame.outer, {}, begin, end)
    else:
        frame.streams.ask(lane_dim)

        def row(index: dict[int, Index], start: Integer) -> None:
            pointers = [
                frame.address(k, index) if _direct(frame, k) else frame.base[k]
                for k in range(len(nest.operands))
            ]
            scope = frame.scope(frame.outer, Step(index, pointers.__getitem__))
            _row(frame, scope, index, start, frame.size[lane_dim], pointers)

        if transposed(nest):
            Tiles(frame, row).emit()
        else:
            begin, end = frame.code.indices("begin", "end")
            first = Narrow(frame).emit(begin, end) if Narrow.suits(frame) else begin
            short = frame.size[lane_dim] <= SHORT
            with frame.code.when(short), frame.units(frame.size[:-1], first) as position:
                _short_row(frame, dict(enumerate(position)))
            with frame.code.when(~short), frame.units(frame.size[:-1], first) as position:
                row(dict(enumerate(position)), 0)
    return frame.finish()


def _direct(frame: Frame, k: int) -> bool:
    """Whether operand k is indexed by the nest's own dims (a gathered one has dims of its own)."""
    return len(frame.nest.operands[k].strides) == len(frame.nest.dims)


def _short_row(frame: Frame, index: dict[int, Index]) -> None:
    """One run of the last dim, element by element."""
    lane_dim = len(frame.nest.dims) - 1
    direct = [k for k in range(len(frame.nest.operands)) if _direct(frame, k)]
    rows = {k: frame.address(k, index) for k in direct}
    with frame.code.loop(0, frame.size[lane_dim], 1) as turn:

        def pointer(k: int) -> Pointer:
            if k not in rows:
                return frame.base[k]
            kind = element(frame.nest.operands[k].dtype)
            return rows[k].element(kind, turn.index * frame.stride[k][lane_dim])

        inside = frame.scope(frame.outer, Step({**index, lane_dim: turn.index}, pointer))
        results = [(k, inside.value(value)) for k, value in frame.nest.stores]
        for k, value in results:
            frame.memory.write(frame.nest.operands[k].dtype, pointer(k), value)


def _row(
    frame: Frame,
    scope: Expression,
    index: dict[int, Index],
    start: Integer,
    limit: Index,
    pointers: list[Pointer] | None = None,
) -> None:
    """One run of the last dim, from `start` to `limit`."""
    nest = frame.nest
    lane_dim = len(nest.dims) - 1
    bases = frame.base if pointers is None else pointers
    lanes = frozenset({lane_dim})
    scope = scope.inner(scope.leaf) if pointers is None else scope
    frame.hoist(scope, frame.roots, lanes, True)
    cheap = frame.cost(frame.roots, lanes) < EXPENSIVE
    frame.fetches = cheap

    def pointer(v: Index, k: int) -> Pointer:
        kind = nest.operands[k].strides[lane_dim]
        if kind == "0":
            return bases[k]
        return bases[k].element(element(nest.operands[k].dtype), v * frame.stride[k][lane_dim])

    def bodies(at: list[Index], count: Index | None = None, mask: Value | None = None) -> None:
        steps = [Step(index, partial(pointer, v), lane_dim, v, count, mask) for v in at]
        if not cheap:
            for step in steps:
                frame.fetch(step)
        scopes = [frame.scope(scope, step) for step in steps]
        results = [(k, together(scopes, value)) for k, value in nest.stores]
        for k, values in results:
            for value, step in zip(values, steps):
                frame.store(k, value, step)

    def body(v: Index, count: Index | None, mask: Value | None, values: list[Value]) -> list[Value]:
        bodies([v], count, mask)
        return values

    if not transposed(nest) and (copies := frame.in_flight(frame.roots, lanes)) > 1:
        with frame.turns(start, limit, copies) as (turn, at):
            bodies([*at])
        start = turn.index
    frame.lanes(start, limit, [], 4 if cheap and not transposed(nest) else 1, body)
