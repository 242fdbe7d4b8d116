"""Watches one run of a function: which code runs, on which modules, and what it changes that outlives it."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Iterator
from dis import get_instructions
from types import CodeType, FrameType
from typing import Any

from kiln import _core
from kiln.capture.pure.guards import is_below
from kiln.errors import is_own, place

_PYTHON: Any = random.random.__self__  # type: ignore[attr-defined]


def _items(held: Any) -> Any:
    return held.values() if isinstance(held, dict) else held


class Watch:
    """Watches one run: which code runs, on which modules, and what it changes that outlives it."""

    def __init__(self, refuse: Callable[[str, str], Any]) -> None:
        self._refuse = refuse
        self.codes: dict[CodeType, None] = {}  # the program's
        self.ran: dict[CodeType, dict[str, Any]] = {}  # and of kiln's layers, with their globals
        self.objects: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._contents: dict[int, tuple[Any, Any]] = {}
        self._new: set[int] = set()
        self._tensors: list[Any] = []
        self._drawn = ""
        self._random = random.getstate()
        self._numpy = _numpy_state()

    def __enter__(self) -> Watch:
        self._before = sys.getprofile()
        self._collects = gc.isenabled()
        gc.disable()  # what the collector calls, finalizers and others' callbacks, is not the function's
        sys.setprofile(self._called)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self._before)
        if self._collects:
            gc.enable()

    def _called(self, frame: FrameType, event: str, what: Any) -> None:
        if event == "c_call":
            if getattr(what, "__self__", None) is _PYTHON and (line := _line_above(frame)):
                self._drawn = line
            return
        if event != "call":
            return
        code = frame.f_code
        own = is_own(frame) or is_below(frame.f_code.co_filename)
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if own and "training" not in getattr(first, "__dict__", ()):
            return  # kiln's own, and no layer
        self.ran[code] = frame.f_globals
        if first is not None and id(first) not in self.objects and id(first) not in self._new:
            if code.co_name == "__init__":
                self._new.add(id(first))
                self.objects[-id(first)] = (first, {})  # kept, so that its id stays its own
            elif not isinstance(first, type) and not _is_imported(frame):
                self._note_object(first)
        if own or code in self.codes or _is_imported(frame):
            return
        self.codes[code] = None
        for name in code.co_names:
            self._note(frame.f_globals.get(name))
        for name in code.co_freevars:
            self._note(frame.f_locals.get(name))

    def _note_object(self, thing: Any) -> None:
        state = getattr(thing, "__dict__", None)
        if type(state) is dict and not hasattr(type(thing), "of_one_call"):
            self.objects[id(thing)] = (thing, dict(state))
            for held in state.values():
                self._note(held)

    def note(self, given: Any) -> None:
        """Looks at the lists and dicts among arguments, which it may not change either."""
        self._note(given)
        if isinstance(given, (list, tuple, dict)):
            for held in given.values() if isinstance(given, dict) else given:
                self.note(held)

    def _note(self, held: Any) -> None:
        if isinstance(held, _core.Tensor):
            self._tensors.append(held)
        if isinstance(held, (list, dict, set)) and id(held) not in self._contents and len(held) < 1000:
            self._contents[id(held)] = (held, held.copy())

    def tensors_met(self) -> list[Any]:
        """The tensors that it may have found besides its arguments."""
        held = [x for _, copy in self._contents.values() for x in _items(copy)]
        return [x for x in (*self._tensors, *held) if isinstance(x, _core.Tensor)]

    def objects_met(self) -> list[Any]:
        """The objects whose methods ran."""
        return [thing for key, (thing, _) in self.objects.items() if key >= 0]

    def buffers_met(self) -> list[Any]:
        """The buffers of modules among them."""
        owned = [vars(x).get("_buffers") for x in self.objects_met()]
        return [x for names in owned if isinstance(names, dict) for x in names.values() if x is not None]

    def refuse_changes(self) -> None:
        """Refuses what the run has changed."""
        for code in self.codes:
            for line, name, kind in _stores(code):
                if kind != "STORE_ATTR":
                    what = "a global" if kind.endswith("GLOBAL") else "a variable of the function around it"
                    self._refuse(f"writes {what}, {name}", line)
        for key, (thing, before) in self.objects.items():
            now = vars(thing) if key >= 0 else before
            changed = [n for n in {*now, *before} if now.get(n, self) is not before.get(n, self)]
            if changed:
                name = changed[0]
                self._refuse(f"writes the attribute {name} of a {type(thing).__name__}", self._line(name))
        for held, before in self._contents.values():
            if not _same(held, before):
                self._refuse(f"changes a {type(held).__name__} that outlives it", "")
        if random.getstate() != self._random:
            self._refuse("draws random numbers from Python", self._drawn)
        if _numpy_state() != self._numpy:
            self._refuse("draws random numbers from NumPy", self._line("random"))

    def _line(self, name: str) -> str:
        """The first line that writes an attribute of this name, or names it."""
        for code in self.codes:
            for line, found, kind in _stores(code):
                if found == name and kind == "STORE_ATTR":
                    return line
        for code in self.codes:
            for instruction in get_instructions(code):
                if instruction.argval == name:
                    return _line_of(code, instruction.offset)
        return ""


def _is_imported(frame: FrameType | None) -> bool:
    """Whether code runs because a module is imported, or because the core asks for something."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith("<frozen importlib") or (is_own(frame) and file.endswith("service.py")):
            return True
        frame = frame.f_back
    return False


def _line_above(frame: FrameType | None) -> str:
    """The line of the program that the frame runs for."""
    while frame is not None and is_below(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None or is_own(frame) else place(frame.f_code.co_filename, frame.f_lineno)


def _same(a: Any, b: Any) -> bool:
    if len(a) != len(b):
        return False
    if isinstance(a, dict):
        return all(k in b and b[k] is v for k, v in a.items())
    return a == b if isinstance(a, set) else all(x is y for x, y in zip(a, b))


def _stores(code: CodeType) -> Iterator[tuple[str, str, str]]:
    for instruction in get_instructions(code):
        name = instruction.opname
        outside = name == "STORE_DEREF" and instruction.argval in code.co_freevars
        if name in ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR") or outside:
            yield _line_of(code, instruction.offset), str(instruction.argval), name


def _line_of(code: CodeType, offset: int) -> str:
    lines = [line for start, end, line in code.co_lines() if start <= offset < end and line is not None]
    return place(code.co_filename, lines[0] if lines else code.co_firstlineno)


def _numpy_state() -> Any:
    numpy = sys.modules.get("numpy.random")
    if numpy is None:
        return None
    name, keys, *rest = numpy.get_state()
    return name, keys.tobytes(), *rest
