"""Loops that depend on values: a condition and a body, followed until what they change is what is carried.

The first time everything is as it was before the loop; what the body leaves different is carried, and the
body is followed again with something unknown in its place, until nothing more changes. A number of Python's
that stays the same through the body so stays one of Python's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln import _core, ops
from kiln.graph.size import Size
from kiln.scripting.arithmetic import of_numbers
from kiln.scripting.blocks import (
    FAILURE,
    UNSET,
    Block,
    Mark,
    Mismatch,
    Result,
    Slot,
    emit,
    follow,
    graph_of,
    holders,
    look_of,
    needed,
    result_of,
    same,
    told,
    unchanged,
    unpack,
)
from kiln.scripting.context import Context
from kiln.scripting.numbers import (
    KINDS,
    Number,
    Tensor,
    dtype_of,
    filled,
    kind_of,
    number,
    own,
    shape_of,
)
from kiln.scripting.sizes import Each, Rows, has_rows, truth

_ROUNDS = 30


class Loop:
    """One loop on values."""

    def __init__(
        self, context: Context, slots: list[Slot], test: Callable[[], Any], body: Callable[..., Any]
    ) -> None:
        self.context, self.slots, self.test, self.body = context, list(slots), test, body
        self.given = len(slots)
        self.before = [s.read() for s in slots]
        self.carried: set[tuple[int, int]] = set()  # (slot, leaf)
        self.lost: dict[int, str] = {}
        self.changed = False  # whether a name is of another type or shape after a step
        self.may_fail = False  # then nothing is done
        self.keys: dict[Any, int] = {}  # objects that the body changes -> their slot
        self.wholes: dict[int, Any] = {}  # tensors that it writes
        self.stands: dict[tuple[int, int], Any] = {}
        self.values: list[int] = []  # of what is carried, in order

    def run(self) -> dict[int, str] | None:
        """Makes the loop: of slots that have no value afterwards, why. None if it `may_fail` and does."""
        for _ in range(_ROUNDS):
            condition, body = self._follow()
            if not self._grow(condition, body):
                return self._emit(condition, body)
            if self.changed and self.may_fail:
                return None
        self.context.refuse("has a loop whose state changes its structure at every step")
        raise AssertionError

    # -- following --------------------------------------------------------------------------------------

    def _follow(self) -> tuple[Any, Block]:
        context, recorder = self.context, self.context.recorder
        mark = Mark(recorder)
        self._begin()
        found: list[Any] = []
        flag = Slot("", lambda: found[-1] if found else UNSET, lambda _: None)

        def condition() -> None:
            held = truth(self.test())
            failed: Any = context.failure
            if type(failed) is Number:
                clear: Any = of_numbers("eq", failed, 0)
                held = (
                    clear
                    if held is True
                    else held
                    if held is False
                    else Number(bool, clear.tensor & held.tensor)
                )
            found.append(held)

        a = follow(context, [*self.slots, flag], condition)
        b = follow(context, self.slots, self.body)
        self._end(mark)
        if a.written or a.extra:
            context.refuse("changes something in the condition of a loop that depends on values")
        if a.dead:
            context.refuse("raises in the condition of a loop that depends on values")
        return a, b

    def _begin(self) -> None:
        """Puts something unknown in the place of all that is carried."""
        recorder = self.context.recorder
        self.stands, self.values = {}, []
        for i, slot in enumerate(self.slots):
            if i in self.lost:
                slot.write(UNSET)
                continue
            leaves, _, build = unpack(self.before[i])
            if any((i, j) in self.carried for j in range(len(leaves))):
                slot.write(build([self._stand(i, j, x) for j, x in enumerate(leaves)]))
        general = {key: recorder.shape_of(whole) for key, whole in self.wholes.items()}
        for key, whole in self.wholes.items():
            storage, _, shape, _ = _core.place(whole)
            k = recorder._new()
            recorder._value[id(whole)] = k
            recorder.sizes[k], recorder.dtypes[k] = shape, dtype_of(whole)
            if any(isinstance(n, Size) for n in general[key]):
                recorder.shapes[k] = general[key]
            recorder._stale.update(id(x) for x in recorder._on[storage] if x is not whole)
            recorder._stale.discard(id(whole))
            self.values.append(k)

    def _end(self, mark: Mark) -> None:
        """Puts back what was there before the loop."""
        mark.back(self.context.recorder)
        for slot, value in zip(self.slots, self.before):
            slot.write(value)

    def _stand(self, i: int, j: int, x: Any) -> Any:
        if (i, j) not in self.carried:
            return x
        recorder = self.context.recorder
        like = x if isinstance(x, Tensor) else number(x).tensor
        made = recorder.placeholder(dtype_of(like), shape_of(like), bool(own(like).requires_grad))
        self.stands[i, j] = made
        self.values.append(recorder._value[id(made)])
        return recorder.wrapped(made) if isinstance(x, Tensor) else Number(kind_of(x), made)

    # -- what is carried --------------------------------------------------------------------------------

    def _grow(self, condition: Any, body: Block) -> bool:
        """Carries more, as the body asks; whether there was something."""
        before = len(self.carried), len(self.lost), len(self.wholes), len(self.slots)
        again = False
        for i, after in enumerate(body.left):
            if i not in self.lost:
                again = self._grow_slot(i, after) or again
        for key, (slot, old, after) in body.extra.items():
            if key not in self.keys:
                self.keys[key] = len(self.slots)
                self.slots.append(slot)
                self.before.append(old)
            i = self.keys[key]
            if i < len(body.left):
                continue
            again = self._grow_slot(i, after) or again
        for key, (whole, _) in body.written.items():
            if not any(whole is x for x in self.stands.values()):
                self.wholes.setdefault(key, whole)
        return again or before != (len(self.carried), len(self.lost), len(self.wholes), len(self.slots))

    def _grow_slot(self, i: int, after: Any) -> bool:
        slot, before = self.slots[i], self.before[i]
        if before is UNSET and after is UNSET:
            return False
        if before is UNSET and slot.internal:
            leaves, _, build = unpack(after)
            self.before[i] = build([_zero(x) for x in leaves])
            slot.write(self.before[i])
            return True
        if before is UNSET:
            self._lose(i, "is set in the loop alone, which may not run")
            return True
        (old, outline, _), (new, outline2, _) = unpack(before), unpack(after)
        try:
            if outline != outline2 or len(old) != len(new):
                raise Mismatch(f"{told(before)} and {told(after)}")
            for j, (x, y) in enumerate(zip(old, new)):
                if (i, j) in self.carried:
                    look_of(x, y)
                elif not same(x, y):
                    look_of(x, y)
                    self.carried.add((i, j))
        except Mismatch as error:
            if i >= self.given or slot.internal:
                self.context.refuse(f"has a loop on values that changes {slot.name}: it would be {error}")
            self.changed = True
            self._lose(i, f"is {error} before and after the loop's body")
        return False

    def _lose(self, i: int, why: str) -> None:
        self.lost[i] = why
        name = self.slots[i].name
        self.context.unset[name] = f"{name} {why}"

    # -- the node ---------------------------------------------------------------------------------------

    def _state(self, body: Block) -> tuple[list[Any], list[Result]]:
        """What is carried: as it is before, and as the body leaves it."""
        initial: list[Any] = []
        results: list[Result] = []
        for i, j in self.stands:
            x = unpack(self.before[i])[0][j]
            initial.append(x if isinstance(x, Tensor) else number(x).tensor)
            left = body.left[i] if i < len(body.left) else None
            results.append(result_of(unpack(left)[0][j], body, self.context, dtype_of(initial[-1])))
        for key, whole in self.wholes.items():
            initial.append(whole)
            value = body.written[key][1] if key in body.written else self.values[len(results)]
            results.append(Result("value", value, dtype_of(whole)))
        self._check_aliases(body, list(self.stands))
        return initial, results

    def _emit(self, condition: Any, body: Block) -> dict[int, str]:
        context, recorder = self.context, self.context.recorder
        initial, results = self._state(body)
        flag = condition.left[-1]
        ends = [
            Result("number", flag, "bool")
            if isinstance(flag, bool)
            else result_of(flag, condition, context, "bool")
        ]
        steps, outer = needed(condition.steps, ends)
        more, outer2 = needed(body.steps, results)
        rest = [k for k in dict.fromkeys([*outer, *outer2]) if k not in self.values]
        held = holders(recorder)
        given = [held[k] for k in rest]
        inputs = [*self.values, *rest]
        graphs = [graph_of(context, steps, inputs, ends), graph_of(context, more, inputs, results)]
        made = (
            emit(context, "while_loop", [*initial, *given], (len(initial), 0, len(given)), graphs)
            if initial
            else []
        )
        if not initial and flag is not False:
            context.refuse("has a loop on values that changes nothing: it would never end")
        self._give(initial, made)
        return self.lost

    def _give(self, initial: list[Any], made: list[Any]) -> None:
        """Puts the results where the loop leaves them."""
        context, recorder, order = self.context, self.context.recorder, list(self.stands)
        for i, slot in enumerate(self.slots):
            if i in self.lost:
                continue
            leaves, _, build = unpack(self.before[i])
            new = [
                self._given(x, made[order.index((i, j))]) if (i, j) in self.stands else x
                for j, x in enumerate(leaves)
            ]
            slot.write(
                build(new) if any((i, j) in self.stands for j in range(len(leaves))) else self.before[i]
            )
        for key, i in self.keys.items():
            context.changed(key, self.slots[i], self.before[i])
        for (i, j), x, y in zip(order, initial, made):
            if isinstance(unpack(self.before[i])[0][j], Tensor):
                recorder.may_be(own(y), own(x))
        for whole, y in zip(self.wholes.values(), made[len(order) :]):
            whole.copy_(own(y))

    def _given(self, x: Any, made: Any) -> Any:
        return made if isinstance(x, Tensor) else Number(kind_of(x), made)

    def _check_aliases(self, body: Block, order: list[tuple[int, int]]) -> None:
        """What is carried and written in place may be nothing else's memory."""
        written = [key for key in order if id(self.stands[key]) in body.written]
        if not written:
            return
        name = self.slots[written[0][0]].name
        places = [_core.place(self.stands[key])[0] for key in order]
        for (i, j), storage in zip(order, places):
            y = unpack(body.left[i])[0][j]
            if isinstance(y, Tensor) and place_of(y) in places and place_of(y) != storage:
                self.context.refuse(
                    f"has a loop on values that writes {name} in place where another name may be the same "
                    f"tensor: write {name} = ... instead"
                )
        for i, j in written:
            self.context.recorder.spoil(own(unpack(self.before[i])[0][j]))


class Scan(Loop):
    """A loop of as many steps as a size says, through the rows of tensors; lists that get the same number of
    items at every step are results more, stacked.
    """

    def __init__(
        self, context: Context, slots: list[Slot], each: Each, body: Callable[[Any], Any], begun: bool = False
    ) -> None:
        super().__init__(context, slots, lambda: True, body)
        self.each, self.may_fail = each, not begun
        self.parts: list[int] = []  # values
        self.rows: list[Any] = []  # what stands for them
        self.grown: dict[int, list[Any]] = {}  # slot -> what a step adds to its list

    def _follow(self) -> tuple[Any, Block]:
        recorder = self.context.recorder
        mark = Mark(recorder)
        self._begin()
        for i in self.grown:
            before = self.before[i]
            self.slots[i].write(type(before)((*before, Rows())))
        rows = []
        for x in self.each.parts:
            row = recorder.placeholder(dtype_of(x), shape_of(x)[1:], bool(own(x).requires_grad))
            recorder.may_be(row, own(x))
            rows.append(row)
        self.rows = rows
        self.parts = [recorder.value(row) for row in rows]
        body = follow(self.context, self.slots, lambda: self.body(self.each.item(recorder.wrapped(rows))))
        self._end(mark)
        if body.dead:
            self.context.refuse("raises at each step of a loop whose length is a size that varies")
        return None, body

    def _grow_slot(self, i: int, after: Any) -> bool:
        before = self.before[i]
        is_list = type(before) in (list, tuple) and type(after) is type(before)
        if is_list and (len(after) > len(before) or i in self.grown):
            first = len(before) + (i in self.grown)
            whole = after[: len(before)]
            if unchanged(whole, before) and (i not in self.grown or has_rows(after[first - 1 : first])):
                is_new = i not in self.grown
                self.grown[i] = list(after[first:])
                self.context.grows = True
                return is_new
        if i in self.grown:
            self.context.refuse(
                f"changes {self.slots[i].name} in a loop at one step otherwise than at another"
            )
        return super()._grow_slot(i, after)

    def _emit(self, condition: Any, body: Block) -> dict[int, str]:
        context, recorder, each = self.context, self.context.recorder, self.each
        initial, results = self._state(body)
        lists = {i: self._tail(self.slots[i].name, tail) for i, tail in self.grown.items()}
        for columns, _, _ in lists.values():
            for column in columns:
                dtype = dtype_of(column[0]) if isinstance(column[0], Tensor) else KINDS[kind_of(column[0])]
                results += [result_of(x, body, context, dtype) for x in column]
        steps, outer = needed(body.steps, results)
        rest = [k for k in outer if k not in self.values and k not in self.parts]
        held = holders(recorder)
        given = [held[k] for k in rest]
        graph = graph_of(context, steps, [*self.values, *self.parts, *rest], results)
        counts = len(initial), len(each.parts), len(given)
        made = emit(context, "scan", [*initial, *each.parts, *given], counts, [graph], each.length)
        self._give(initial, made[: len(initial)])
        at = len(initial)
        for i, (columns, item, kind) in lists.items():
            leaves = []
            for column in columns:
                parts = made[at : at + len(column)]
                at += len(column)
                leaves.append(parts[0] if len(parts) == 1 else ops.flatten(ops.stack(parts, 1), 0, 1))
            size = each.length * (len(self.grown[i]))
            before = self.before[i]
            for column, leaf in zip(columns, leaves):
                self._may_be(body, column, leaf, made)
            self.slots[i].write(type(before)((*before, Rows(size, leaves, item, kind))))
        return self.lost

    def _may_be(self, body: Block, column: list[Any], leaf: Any, made: list[Any]) -> None:
        """Tells which tensors' memory the items of a list may be."""
        recorder, order = self.context.recorder, list(self.stands)
        for x in column:
            if not isinstance(x, Tensor):
                continue
            storage = place_of(x)
            if any(place_of(whole) == storage for whole, _ in body.written.values()):
                self.context.refuse("adds to a list, in a loop whose length varies, what it writes in place")
            known = [over[0] for over in (recorder._on.get(storage),) if over]
            known += [source for row, source in zip(self.rows, self.each.parts) if place_of(row) == storage]
            for k, (i, j) in enumerate(order):
                before, after = unpack(self.before[i])[0][j], unpack(body.left[i])[0][j]
                if isinstance(before, Tensor) and place_of(self.stands[i, j]) == storage:
                    known += [before, made[k]]
                if isinstance(after, Tensor) and place_of(after) == storage:
                    known.append(made[k])
            for other in known:
                recorder.may_be(own(leaf), own(other))

    def _tail(self, name: str, tail: list[Any]) -> tuple[list[list[Any]], Any, Any]:
        """What a step adds to a list: of each leaf of an item those of all items, what makes an item of rows,
        and its kind.
        """
        parts = [unpack(x) for x in tail]
        try:
            for leaves, outline, _ in parts:
                if not leaves or outline != parts[0][1] or len(leaves) != len(parts[0][0]):
                    raise Mismatch(f"{told(tail[0])} and {told(tail[-1])}")
                for x, y in zip(parts[0][0], leaves):
                    look_of(x, y)
        except Mismatch as error:
            self.context.refuse(
                f"adds to {name} in a loop whose length varies what cannot be stacked: {error}"
            )
        kinds = [None if isinstance(x, Tensor) else kind_of(x) for x in parts[0][0]]
        build = parts[0][2]

        def item(rows: list[Any]) -> Any:
            return build([y if kind is None else Number(kind, y) for kind, y in zip(kinds, rows)])

        kind = None if parts[0][1] is not None else Tensor if kinds[0] is None else kinds[0]
        return [[p[0][k] for p in parts] for k in range(len(kinds))], item, kind


def place_of(tensor: Any) -> Any:
    """Which memory a tensor lies in."""
    return _core.place(own(tensor))[0]


def _zero(x: Any) -> Any:
    if isinstance(x, Tensor):
        return filled(tuple(x.shape), 0, dtype_of(x))
    return x.kind(0) if isinstance(x, Number) else 0 if isinstance(x, Size) else x


__all__ = ["FAILURE", "Loop", "Scan"]
