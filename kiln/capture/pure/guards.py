"""What a function may read besides its arguments: where it is found, and whether it is as it was.

    function -- closure, globals its code names, defaults, self --> modules, lists, dicts, objects --> value

A guard is a container and what of it was there, of one of two kinds. What changes in a module, in an object
that is an argument or has methods that ran, or on the way to a parameter makes another variant. What changes
outside, in globals, closures and what else is found there, is no part of what a pure function may depend on:
the next call is checked.

Of an object's attributes those are looked at whose names stand in the code that ran (all, if that asks for
names it computes: `getattr`, `vars`), of lists, dicts and sets all. Numbers and texts are to be equal,
anything else the same object. Tensors are looked at if ops were given them. What lies in slots, and what C
code keeps for itself, is not seen here: a sampled check may.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from kiln import _core

_MOST = 20_000  # objects looked at
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_OWN = os.path.dirname(os.path.abspath(_core.__file__)) + os.sep
_BELOW = ("numpy", "llvmlite")
_PLAIN = (int, float, complex, str, bytes, bool, type(None), _core.dtype)
_COMPUTED = frozenset(("getattr", "vars", "__dict__", "__getattribute__", "attrgetter", "eval", "exec"))


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


def is_below(file: str) -> bool:
    """Whether code is Python's own, or of what kiln stands on."""
    if file.startswith(_LIBRARY):
        inside = file[len(_LIBRARY) :].split(os.sep)
        return inside[0] != "site-packages" or inside[1] in _BELOW
    return file.startswith("<frozen") or any(f"{os.sep}{name}{os.sep}" in file for name in _BELOW)


def _is_own(code: CodeType) -> bool:
    return code.co_filename.startswith(_OWN)


def _is_users(thing: Any) -> bool:
    """Whether a function, class or module belongs to a program rather than to Python or kiln."""
    if isinstance(thing, FunctionType):
        file = thing.__code__.co_filename
    else:
        file = getattr(thing, "__file__", None) or ""
        if not file and not isinstance(thing, type):
            return getattr(thing, "__name__", "") == "__main__"
    return not is_below(file) and not file.startswith(_OWN)


def names_in(code: CodeType) -> set[str]:
    """The names that a function's code, and that of functions in it, may look up."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= names_in(constant)
        elif type(constant) is str and constant.isidentifier():
            found.add(constant)
    return found


def entries_of(thing: Any) -> Iterator[Place]:
    """What an object holds."""
    if isinstance(thing, MethodType):
        yield Place(None, None, thing.__func__)
        yield Place(None, None, thing.__self__)
    elif isinstance(thing, FunctionType):
        yield from _cells_of(thing)
        for name in names_in(thing.__code__):
            if name in thing.__globals__:
                yield Place(thing.__globals__, name, thing.__globals__[name])
        for held in _defaults_of(thing):
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


def _cells_of(function: FunctionType) -> Iterator[Place]:
    for cell in function.__closure__ or ():
        try:
            yield Place(cell, None, cell.cell_contents)
        except ValueError:
            continue  # empty still


def _defaults_of(function: FunctionType) -> list[Any]:
    return [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


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


# of a container by its id: it, its entries by key, whether that is all
Found = dict[int, tuple[Any, dict[Any, tuple[Any, ...]], bool]]


class Read:
    """Collects what the code that `ran`, with its globals, may have read; `met`: tensors ops were given."""

    def __init__(self, ran: dict[CodeType, dict[str, Any]], met: list[Any]) -> None:
        self._names: set[str] = set()
        self._all = False
        self._met = {id(x) for x in met}
        self._inside: Found = {}
        self._outside: Found = {}
        self._found = self._outside  # where what is found now belongs
        self._seen: dict[int, Any] = {}
        self._queue: deque[tuple[Any, Found]] = deque()
        for code in ran:
            names = names_in(code)
            self._names |= names
            self._all = self._all or (not _is_own(code) and not _COMPUTED.isdisjoint(names))
        self._ran = ran

    def guards(self) -> tuple[Any, Any]:
        """Those of objects and of the ways to parameters, those of what is outside."""

        def made(found: Found) -> Any:
            return _core.Guards([(x, tuple(entries.values()), whole) for x, entries, whole in found.values()])

        self._empty()
        for code, state in self._ran.items():
            self._found = self._outside
            if not _is_own(code):
                self._look_at_names(state, code.co_names)
                continue
            for held in map(state.get, code.co_names):
                if isinstance(held, type):  # what holds for every module
                    self.follow(held)
        self._empty()
        return made(self._inside), made(self._outside)

    def _empty(self) -> None:
        while self._queue and len(self._seen) < _MOST:
            thing, self._found = self._queue.popleft()
            self._look(thing)

    def place(self, place: Place) -> None:
        """Something that lies on the way to a tensor or module that was met."""
        self._found = self._inside
        if isinstance(place.container, list):
            self._whole(place.container, [(k, held) for k, held in enumerate(place.container)])
        else:
            self._note(place.container, place.key, place.held)

    def follow(self, thing: Any) -> None:
        """All that may be read by way of an object."""
        self._found = self._inside
        self._follow(thing)

    def attributes(self, tensor: Any) -> None:
        """What the program has given a tensor that may be read: all of it, or nothing."""
        held = vars(tensor)
        self._inside[id(held)] = (held, {k: (k, v) for k, v in held.items()}, True)
        for x in held.values():
            self.follow(x)

    def _follow(self, thing: Any) -> None:
        if not isinstance(thing, (*_PLAIN, _core.Tensor)) and id(thing) not in self._seen:
            self._seen[id(thing)] = thing
            self._queue.append((thing, self._found))

    def _note(self, container: Any, key: Any, *held: Any) -> None:
        """An entry, or that there is none. A tensor nobody met matters as little as what else it may hold."""
        if held and isinstance(held[0], _core.Tensor) and id(held[0]) not in self._met:
            return
        found = self._inside.get(id(container))
        found = found or self._found.setdefault(id(container), (container, {}, False))
        if not found[2]:  # else all is noted
            found[1][key] = (key, *held)
        for x in held:
            self._follow(x)

    def _whole(self, container: Any, entries: list[tuple[Any, ...]]) -> None:
        if id(container) not in self._inside:
            self._found[id(container)] = (container, dict(enumerate(entries)), True)

    def _look(self, thing: Any) -> None:
        if isinstance(thing, MethodType):
            self._follow(thing.__func__)
            self._follow(thing.__self__)
        elif isinstance(thing, FunctionType):
            if _is_users(thing):
                self._look_at_function(thing)
        elif isinstance(thing, CellType):
            pass
        elif isinstance(thing, (list, tuple, set, frozenset, dict)):
            self._look_at_items(thing)
        elif isinstance(thing, ModuleType):
            if _is_users(thing):
                self._look_at_names(vars(thing))
        elif isinstance(thing, partial):
            for x in (thing.func, *thing.args, *thing.keywords.values()):
                self._follow(x)
        elif isinstance(thing, type):
            self._look_at_class(thing)
        else:
            self._look_at_object(thing)

    def _look_at_function(self, function: FunctionType) -> None:
        self._found = self._outside
        for cell, key, held in _cells_of(function):
            self._note(cell, key, held)
        self._look_at_names(function.__globals__, function.__code__.co_names)
        for held in _defaults_of(function):
            self._follow(held)

    def _look_at_items(self, thing: Any) -> None:
        if len(thing) > 1000:
            return
        values = list(thing.values() if isinstance(thing, dict) else thing)
        for held in values:
            self._follow(held)
        if isinstance(thing, list):
            self._whole(thing, [(k, held) for k, held in enumerate(thing)])
        elif isinstance(thing, set) and all(isinstance(x, _PLAIN) for x in thing):
            self._whole(thing, [(x,) for x in thing])
        elif isinstance(thing, dict) and all(type(k) in _PLAIN for k in thing):
            self._whole(thing, list(thing.items()))

    def _look_at_names(self, state: dict[str, Any], names: Any = None) -> None:
        for name in self._names if names is None else names:
            if name in state:
                self._note(state, name, state[name])

    def _look_at_class(self, thing: type) -> None:
        if thing.__flags__ & 1 << 9:  # of a program's, not of C's
            for name in self._names:
                for base in thing.__mro__:
                    if name in vars(base):
                        self._note(thing, name, vars(base)[name])
                        break

    def _look_at_object(self, thing: Any) -> None:
        state = getattr(thing, "__dict__", None)
        if type(state) is not dict or str(type(thing).__module__).startswith("kiln.capture"):
            wrapped = getattr(thing, "_function", None)
            if wrapped is not None:
                self._follow(wrapped)
            return
        if "training" in state:
            self._found = self._inside
        self._follow(type(thing))
        self._look_at_names(state, list(state) if self._all else state.keys() & self._names)
        if "training" in state:
            self._note(state, "training", state["training"])
        for name in self._names - state.keys():  # it may shadow what its class has
            if hasattr(type(thing), name):
                self._note(state, name)
