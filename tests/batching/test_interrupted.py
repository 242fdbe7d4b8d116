"""Ctrl-C at every place of `kiln.batching.map` where CPython looks for signals: nothing of it is left."""

from __future__ import annotations

import dis
import gc
import sys
from functools import cache
from types import CodeType, FrameType
from typing import Any

import pytest
from backend import kiln, needs_kiln
from strands import kind  # noqa: F401 (a fixture)

pytestmark = needs_kiln

OURS = tuple(f"kiln/batching/{name}.py" for name in ("map", "strands", "output"))
LOOKS = ("CALL", "CALL_FUNCTION_EX", "RESUME")  # instructions behind which signals' handlers run


@cache
def instructions_before(code: CodeType) -> dict[int, str]:
    """By the place of an instruction, the name of the one in front; its own for those that do nothing."""
    before, last = {}, ""
    for one in dis.get_instructions(code):
        before[one.offset] = last if one.opname != "NOP" else "NOP"
        last = one.opname
    return before


class Interrupt:
    """A trace function that raises KeyboardInterrupt at the given places, counted from the last."""

    def __init__(self, *places: int) -> None:
        self.left, self.rest = places[0], list(places[1:])
        self.where: list[tuple[str, int]] = []
        self._last: dict[FrameType, int] = {}

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.endswith(OURS):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before = instructions_before(frame.f_code)[frame.f_lasti]
            back = before != "NOP" and self._last.get(frame, -1) >= frame.f_lasti
            self._last[frame] = frame.f_lasti
            if before in LOOKS or back:
                self._pass(frame)
        return self

    def _pass(self, frame: FrameType) -> None:
        self.left -= 1
        if self.left == 0:
            self.where.append((frame.f_code.co_name, frame.f_lineno))
            self.left = self.rest.pop(0) if self.rest else 0
            raise KeyboardInterrupt


def map_interrupted(*places: int) -> list[tuple[str, int]]:
    """A map whose items hold tensors and read values, interrupted; where it was."""
    w = kiln.ones(64, 64) * 2

    def item(n: int) -> Any:
        held = w + n
        x = (kiln.ones(3) * n).sum()
        return x * 2 if x.item() > 3 else held[0, 0]

    interrupt = Interrupt(*places)
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        kiln.batching.map(item, [1, 2, 3], limit=2)
    except KeyboardInterrupt:
        assert interrupt.where
    finally:
        sys.settrace(before)
    return interrupt.where


def held() -> int:
    gc.collect()
    return int(kiln._core.memory_stats()["allocated_bytes"])


def look(streams: tuple[Any, Any], where: Any) -> None:
    """Modes and streams are the program's, and items of another map see no item that is over."""
    assert (sys.stdout, sys.stderr) == streams, where
    assert kiln._core.modes() == (True, False, None) and not kiln._core.is_batching(), where
    x = kiln.zeros(2)
    assert kiln.batching.map(lambda n: x.sum().item() + n, [1, 2]) == [1, 2], where


@pytest.mark.parametrize("second", [0, 1, 4, 13])
def test_ctrl_c_at_every_place(second: int, kind: str) -> None:  # noqa: F811
    """Once, and again so many places later, where the first one is being dealt with."""
    streams = sys.stdout, sys.stderr
    map_interrupted(0)
    look(streams, "before")
    before = held()
    place, where = 0, [("", 0)]
    while where and (not second or place < 60):
        place += 1 if not second else 7
        where = map_interrupted(*filter(None, (place, second)))
        look(streams, where)
    assert place > 50
    if held() != before:  # then where
        for n in range(1, place):
            now = held()
            where = map_interrupted(*filter(None, (n, second)))
            assert held() == now, where
    assert held() == before
