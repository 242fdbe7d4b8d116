"""Code that asks for a tensor's type in a way that Python answers without asking what stands for the tensor.

    type(x) == Tensor, x.__class__ is Tensor, isinstance(x, Parameter)   are asked of it, and answered rightly
    type(x) is Tensor, issubclass(type(x), Tensor), id(type(x))          are not: code with these is found

It is looked for in the code of a function and of what that calls by a name that says which function it is:
globals, closures, methods of its class and of modules. What is reached otherwise is found when it calls an
op.
"""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from kiln import _core
from kiln.capture.pure.guards import is_below
from kiln.errors import is_own, place
from kiln.nn import Module

__all__ = ["asks_in_frames", "asks_in_vain"]

_UNKNOWN: Any = object()
_MOST = 2000  # functions that are looked at for one
_LOADS = {"LOAD_GLOBAL", "LOAD_NAME"}
_FILLERS = {"PUSH_NULL", "PRECALL", "CACHE", "RESUME", "COPY_FREE_VARS", "NOP", "EXTENDED_ARG"}
_CALLS = {"CALL", "CALL_FUNCTION"}
_NAMES = {"Tensor", "Parameter", "Buffer"}
_TAKE_TYPES = {"issubclass", "id", "map"}
_OWN_FILES = __file__.rpartition("fx")[0]


def _is_users(code: CodeType) -> bool:
    return not code.co_filename.startswith(_OWN_FILES) and not is_below(code.co_filename)


_lines: dict[tuple[CodeType, int, bool], str] = {}  # what was found of code, with these globals


def _asks(code: CodeType, names: dict[str, Any], ints: bool) -> str:
    """The line of code that asks so; "" if it does not. `ints`: also of a `Number`, whose type is not int."""
    key = code, id(names), ints
    found = _lines.get(key)
    if found is None:
        if len(_lines) > 10 * _MOST:
            _lines.clear()
        found = _lines[key] = _found(code, names, ints)
    return found


def _found(code: CodeType, names: dict[str, Any], ints: bool) -> str:
    types = "type" in code.co_names and names.get("type", type) is type
    if not types and not any(n in _NAMES or _is_tensors(names.get(n)) for n in code.co_names):
        return ""
    asked = _Asked(code, names, ints)
    line = code.co_firstlineno
    for at, i in enumerate(asked.listed):
        line = i.starts_line or line
        if asked.at(at):
            return place(code.co_filename, line)
    return ""


def _is_tensors(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, _core.Tensor)


class _Asked:
    """The instructions of a function, which are read backwards from each `is`."""

    def __init__(self, code: CodeType, names: dict[str, Any], ints: bool) -> None:
        self.names, self.ints = names, ints
        self.listed = [i for i in dis.get_instructions(code) if i.opname not in _FILLERS]
        self.kept = {  # names of what `type` gave
            i.argval
            for at, i in enumerate(self.listed)
            if i.opname.startswith("STORE_") and self._is_type_of(at - 1, set())
        }

    def at(self, at: int) -> bool:
        """Whether an instruction asks so."""
        i, before = self.listed[at], self.listed[at - 1]
        if i.opname == "IS_OP":
            return self._compares(at)
        if i.opname not in _LOADS or i.argval != "type":
            return False
        given = before.opname in _LOADS and before.argval in _TAKE_TYPES
        return given or self.listed[at + 1].opname.startswith("STORE_")

    def _compares(self, at: int) -> bool:
        """Whether an `is` may compare the type of a tensor."""
        if _is_call(self.listed[at - 1]):
            if not self._is_simple(at - 1):
                return True
            if self.listed[at - 2].opname == "LOAD_CONST":  # type(None)
                return False
            right, first = _UNKNOWN, at - 3
            types = self._is_type_of(at - 1, self.kept)
        else:
            right, first = self._operand(at - 1)
            types = self.listed[at - 1].argval in self.kept
        left, _ = self._operand(first - 1)
        if self.ints and (left is int or right is int):
            return types or self._is_type_of(first - 1, self.kept)
        if right is not _UNKNOWN:
            asked = self.listed[first - 1]
            return _is_tensors(right) and (asked.opname, asked.argval) != ("LOAD_ATTR", "__class__")
        if left is not _UNKNOWN:
            return types and _is_tensors(left)
        return self._is_type_of(first - 1, self.kept)

    def _is_simple(self, at: int) -> bool:
        """Whether the call that ends here is of a name, with a name."""
        listed = self.listed
        return at >= 2 and listed[at - 1].opname.startswith("LOAD_") and listed[at - 2].opname in _LOADS

    def _is_type_of(self, at: int, kept: set[str]) -> bool:
        """Whether the instructions that end here may give `type(x)`, with another x than `self`."""
        if at < 0 or not _is_call(self.listed[at]):
            return at >= 0 and self.listed[at].argval in kept
        if not self._is_simple(at):
            return True
        called, given = self.listed[at - 2], self.listed[at - 1]
        return called.argval == "type" and given.argval not in ("self", "cls")

    def _operand(self, at: int) -> tuple[Any, int]:
        """What is loaded by the instructions that end here, if that is known, and where they begin."""
        path: list[str] = []
        while at >= 0:
            i = self.listed[at]
            if i.opname == "LOAD_CONST":
                return i.argval, at
            if i.opname in _LOADS:
                found = self.names.get(i.argval, getattr(builtins, i.argval, _UNKNOWN))
                for name in reversed(path):
                    found = getattr(found, name, _UNKNOWN)
                return found, at
            if i.opname != "LOAD_ATTR":
                break
            path.append(i.argval)
            at -= 1
        return _UNKNOWN, max(at, 0)


def _is_call(i: Any) -> bool:
    return i.opname in _CALLS and i.arg == 1


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of functions in it."""
    yield code
    for x in code.co_consts:
        if isinstance(x, CodeType):
            yield from _codes(x)


def _called(function: FunctionType) -> Iterator[Any]:
    """What a function may call by a name."""
    for code in _codes(function.__code__):
        for name in code.co_names:
            held = function.__globals__.get(name)
            yield held
            if isinstance(held, ModuleType):
                yield from (vars(held).get(other) for other in code.co_names)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # nothing is in it yet
            continue
    yield getattr(function, "__wrapped__", None)


def _functions(thing: Any) -> Iterator[Any]:
    """The functions of something that can be called."""
    if isinstance(thing, FunctionType):
        yield thing
    elif isinstance(thing, MethodType):
        yield thing.__func__
        yield from _functions(thing.__self__)
    elif isinstance(thing, Module):
        for module in thing.modules():
            yield from _of_object(module)
    elif isinstance(thing, type):
        for kind in thing.__mro__ if _is_of_user(thing) else ():
            for held in list(vars(kind).values()):
                held = getattr(held, "__func__", getattr(held, "fget", held))
                if isinstance(held, FunctionType):
                    yield held
    elif _is_of_user(type(thing)):
        yield from _of_object(thing)


def _of_object(thing: Any) -> Iterator[Any]:
    yield from _functions(type(thing))
    yield from (x for x in getattr(thing, "__dict__", {}).values() if isinstance(x, FunctionType))


def _is_of_user(kind: type) -> bool:
    module = sys.modules.get(str(kind.__module__))
    file = getattr(module, "__file__", None) or ""
    if str(kind.__module__) == "__main__":
        return True
    return bool(file) and not file.startswith(_OWN_FILES) and not is_below(file)


def asks_in_vain(function: Any, ints: bool = False) -> str:
    """The line of a function, or of what it calls, that asks so; "" if there is none. `ints`: of ints too."""
    waiting: list[Any] = list(_functions(function))
    seen: set[Any] = set()
    while waiting and len(seen) < _MOST:
        found = waiting.pop()
        if found in seen or not _is_users(found.__code__):
            continue
        seen.add(found)
        for code in _codes(found.__code__):
            if line := _asks(code, found.__globals__, ints):
                return line
        for thing in _called(found):
            waiting += _functions(thing)
    return ""


def asks_in_frames(frame: FrameType | None, ints: bool) -> str:
    """The same of the functions that are running, up to the call that is captured."""
    while frame is not None:
        if not is_own(frame):
            if line := _asks(frame.f_code, frame.f_globals, ints):
                return line
        elif frame.f_code.co_name == "_stood":
            break
        frame = frame.f_back
    return ""
