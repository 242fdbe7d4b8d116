"""What a function reaches besides its arguments: where its parameters are found, what it may not change.

    function -- closure, globals its code names, defaults, self --> modules, lists, dicts, objects --> tensor

A place is a container, a key and what lay there. As long as every place on the way to a tensor holds the
same, the function meets that tensor; modules that run are asked for `training` too.
"""

from __future__ import annotations

import os
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dis import get_instructions
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from kiln import _core
from kiln.errors import is_own, place

_MOST = 20_000  # objects looked at for tensors
_PYTHON: Any = random.random.__self__  # type: ignore[attr-defined]
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_BELOW = ("numpy", "llvmlite")
_PLAIN = (int, float, complex, str, bytes, bool, type(None), _core.dtype)


class Place(NamedTuple):
    """Where something was found: an entry of a dict or list, or (key None) a closure's cell."""

    container: Any
    key: Any
    held: Any

    def holds(self) -> bool:
        """Whether it is there still."""
        try:
            found = self.container.cell_contents if self.key is None else self.container[self.key]
        except (KeyError, IndexError, ValueError):
            return False
        return found is self.held


def entries_of(thing: Any) -> Iterator[Place]:
    """What an object holds."""
    if isinstance(thing, MethodType):
        yield Place(None, None, thing.__func__)
        yield Place(None, None, thing.__self__)
    elif isinstance(thing, FunctionType):
        for cell in thing.__closure__ or ():
            try:
                yield Place(cell, None, cell.cell_contents)
            except ValueError:
                continue  # empty still
        for name in _names(thing.__code__):
            if name in thing.__globals__:
                yield Place(thing.__globals__, name, thing.__globals__[name])
        for held in (*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()):
            yield Place(None, None, held)
    elif isinstance(thing, (list, tuple)):
        own = thing if isinstance(thing, list) else None
        for k, held in enumerate(thing[:1000]):
            yield Place(own, k, held)
    elif isinstance(thing, dict):
        for key in list(thing)[:1000]:
            yield Place(thing, key, thing[key])
    elif not isinstance(thing, (*_PLAIN, ModuleType, type, _core.Tensor)):
        state = getattr(thing, "__dict__", None)
        if type(state) is dict:
            for key in list(state):
                yield Place(state, key, state[key])
        wrapped = getattr(thing, "_function", None)
        if wrapped is not None:
            yield Place(None, None, wrapped)


def _names(code: CodeType) -> set[str]:
    """The names that a function's code, and that of functions in it, may look up."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found


def ways_to(roots: list[Any], wanted: list[Any]) -> dict[int, list[Place]]:
    """By id of what is wanted: the places on the way to it from the roots."""
    left = {id(x) for x in wanted}
    found: dict[int, list[Place]] = {}
    came: dict[int, tuple[int, Place] | None] = {id(r): None for r in roots}
    queue, kept = deque(roots), list(roots)
    while queue and left and len(kept) < _MOST:
        thing = queue.popleft()
        for entry in entries_of(thing):
            held = entry.held
            if id(held) in came or isinstance(held, _PLAIN):
                continue
            came[id(held)] = (id(thing), entry)
            kept.append(held)
            if id(held) in left:
                left.discard(id(held))
                found[id(held)] = _way(came, id(held))
            queue.append(held)
    return found


def _way(came: dict[int, tuple[int, Place] | None], at: int) -> list[Place]:
    way: list[Place] = []
    while (step := came[at]) is not None:
        at, entry = step
        if entry.container is not None:
            way.append(entry)
    return way


class Watch:
    """Watches one run: which code runs, on which modules, and what it changes that outlives it."""

    def __init__(self, refuse: Callable[[str, str], Any]) -> None:
        self._refuse = refuse
        self.codes: dict[CodeType, None] = {}
        self.objects: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._contents: dict[int, tuple[Any, Any]] = {}
        self._new: set[int] = set()
        self._drawn = ""
        self._random = random.getstate()
        self._numpy = _numpy_state()

    def __enter__(self) -> Watch:
        self._before = sys.getprofile()
        sys.setprofile(self._called)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self._before)

    def _called(self, frame: FrameType, event: str, what: Any) -> None:
        if event == "c_call":
            if getattr(what, "__self__", None) is _PYTHON and (line := _line_above(frame)):
                self._drawn = line
            return
        if event != "call":
            return
        code = frame.f_code
        own = is_own(frame) or _is_below(frame.f_code.co_filename)
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if own and "training" not in getattr(first, "__dict__", ()):
            return  # kiln's own, and no layer
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
        if type(state) is dict:
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
        if isinstance(held, (list, dict, set)) and id(held) not in self._contents and len(held) < 1000:
            self._contents[id(held)] = (held, held.copy())

    def objects_met(self) -> list[Any]:
        """The objects whose methods ran."""
        return [thing for key, (thing, _) in self.objects.items() if key >= 0]

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


def _is_below(file: str) -> bool:
    """Whether code is Python's own, or of what kiln stands on."""
    if file.startswith(_LIBRARY):
        inside = file[len(_LIBRARY) :].split(os.sep)
        return inside[0] != "site-packages" or inside[1] in _BELOW
    return file.startswith("<frozen") or any(f"{os.sep}{name}{os.sep}" in file for name in _BELOW)


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
    while frame is not None and _is_below(frame.f_code.co_filename):
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
