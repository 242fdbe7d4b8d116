"""Loops that depend on values: a condition and a body, followed until what they change is what is carried.

The first time everything is as it was before the loop; what the body leaves different is carried, and the
body is followed again with something unknown in its place, until nothing more changes. A number of Python's
that stays the same through the body so stays one of Python's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln import _core
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
    unpack,
)
from kiln.scripting.context import Context
from kiln.scripting.numbers import Number, Tensor, dtype_of, filled, number, truth

_ROUNDS = 30


class Loop:
    """One loop on values."""

    def __init__(
        self, context: Context, slots: list[Slot], test: Callable[[], Any], body: Callable[[], Any]
    ) -> None:
        self.context, self.slots, self.test, self.body = context, list(slots), test, body
        self.given = len(slots)
        self.before = [s.read() for s in slots]
        self.carried: set[tuple[int, int]] = set()  # (slot, leaf)
        self.lost: dict[int, str] = {}
        self.keys: dict[Any, int] = {}  # objects that the body changes -> their slot
        self.wholes: dict[int, Any] = {}  # tensors that it writes
        self.stands: dict[tuple[int, int], Any] = {}
        self.values: list[int] = []  # of what is carried, in order

    def run(self) -> dict[int, str]:
        """Makes the loop: of slots that have no value afterwards, why."""
        for _ in range(_ROUNDS):
            condition, body = self._follow()
            if not self._grow(condition, body):
                return self._emit(condition, body)
        self.context.refuse("has a loop whose state changes its structure at every step")
        raise AssertionError

    # -- following --------------------------------------------------------------------------------------

    def _follow(self) -> tuple[Block, Block]:
        context, recorder = self.context, self.context.recorder
        mark = Mark(recorder)
        self.stands, self.values = {}, []
        for i, slot in enumerate(self.slots):
            if i in self.lost:
                slot.write(UNSET)
                continue
            leaves, _, build = unpack(self.before[i])
            if any((i, j) in self.carried for j in range(len(leaves))):
                slot.write(build([self._stand(i, j, x) for j, x in enumerate(leaves)]))
        for whole in self.wholes.values():
            storage, _, shape, _ = _core.place(whole)
            k = recorder._new()
            recorder._value[id(whole)] = k
            recorder.sizes[k], recorder.dtypes[k] = shape, dtype_of(whole)
            recorder._stale.update(id(x) for x in recorder._on[storage] if x is not whole)
            recorder._stale.discard(id(whole))
            self.values.append(k)
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
        mark.back(recorder)
        for slot, value in zip(self.slots, self.before):
            slot.write(value)
        if a.written or a.extra:
            context.refuse("changes something in the condition of a loop that depends on values")
        if a.dead:
            context.refuse("raises in the condition of a loop that depends on values")
        return a, b

    def _stand(self, i: int, j: int, x: Any) -> Any:
        if (i, j) not in self.carried:
            return x
        recorder = self.context.recorder
        like = x if isinstance(x, Tensor) else number(x).tensor
        made = recorder.placeholder(dtype_of(like), tuple(like.shape), bool(like.requires_grad))
        self.stands[i, j] = made
        self.values.append(recorder._value[id(made)])
        return made if isinstance(x, Tensor) else Number(number(x).kind, made)

    # -- what is carried --------------------------------------------------------------------------------

    def _grow(self, condition: Block, body: Block) -> bool:
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
            self._lose(i, f"is {error} before and after the loop's body")
        return False

    def _lose(self, i: int, why: str) -> None:
        self.lost[i] = why
        name = self.slots[i].name
        self.context.unset[name] = f"{name} {why}"

    # -- the node ---------------------------------------------------------------------------------------

    def _emit(self, condition: Block, body: Block) -> dict[int, str]:
        context, recorder = self.context, self.context.recorder
        order = list(self.stands)
        initial: list[Any] = []
        results: list[Result] = []
        for i, j in order:
            x = unpack(self.before[i])[0][j]
            initial.append(x if isinstance(x, Tensor) else number(x).tensor)
            left = body.left[i] if i < len(body.left) else None
            results.append(result_of(unpack(left)[0][j], body, context, dtype_of(initial[-1])))
        for key, whole in self.wholes.items():
            initial.append(whole)
            value = body.written[key][1] if key in body.written else self.values[len(results)]
            results.append(Result("value", value, dtype_of(whole)))
        flag = condition.left[-1]
        ends = [
            Result("number", flag, "bool")
            if isinstance(flag, bool)
            else result_of(flag, condition, context, "bool")
        ]
        self._check_aliases(body, order)
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
                recorder.may_be(y, x)
        for whole, y in zip(self.wholes.values(), made[len(order) :]):
            whole.copy_(y)
        return self.lost

    def _given(self, x: Any, made: Any) -> Any:
        return made if isinstance(x, Tensor) else Number(number(x).kind, made)

    def _check_aliases(self, body: Block, order: list[tuple[int, int]]) -> None:
        """What is carried and written in place may be nothing else's memory."""
        written = [key for key in order if id(self.stands[key]) in body.written]
        if not written:
            return
        name = self.slots[written[0][0]].name
        places = [_core.place(self.stands[key])[0] for key in order]
        for (i, j), own in zip(order, places):
            y = unpack(body.left[i])[0][j]
            if isinstance(y, Tensor) and _core.place(y)[0] in places and _core.place(y)[0] != own:
                self.context.refuse(
                    f"has a loop on values that writes {name} in place where another name may be the same "
                    f"tensor: write {name} = ... instead"
                )
        for i, j in written:
            self.context.recorder.spoil(unpack(self.before[i])[0][j])


def _zero(x: Any) -> Any:
    if isinstance(x, Tensor):
        return filled(tuple(x.shape), 0, dtype_of(x))
    return x.kind(0) if isinstance(x, Number) else x


__all__ = ["FAILURE", "Loop"]
