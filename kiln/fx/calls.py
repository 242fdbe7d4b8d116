"""How a call of one of kiln's functions is recorded: by which of its names, and what goes by name."""

from __future__ import annotations

import dis
import functools
from types import CodeType, FrameType, ModuleType
from typing import Any

from kiln import _core
from kiln.fx import names
from kiln.nn import shown

_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_DEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")


@functools.lru_cache(maxsize=64)
def _callees(code: CodeType) -> dict[int, tuple[str, ...]]:
    """Offset of a call -> the dotted name that the program calls, where it calls one: `F.relu(x)`.

    What is called is loaded first: a load and loads of attributes that begin where the call begins. That it
    is what was called is asked when it is (`place_of_call`).
    """
    found: dict[int, tuple[str, ...]] = {}
    chains: dict[tuple[int, int], tuple[str, ...]] = {}  # (line, column) of its beginning -> the last one
    for i in dis.get_instructions(code):
        position = i.positions
        if position is None or position.lineno is None or position.col_offset is None:
            continue
        start = (position.lineno, position.col_offset)
        if i.opname in _LOADS:
            chains[start] = (str(i.argval),)
        elif i.opname in _ATTRIBUTES and start in chains:
            chains[start] = (*chains[start], str(i.argval))
        elif i.opname in _CALLS and start in chains:
            found[i.offset] = chains.pop(start)  # what is called next there is the result
    return found


def place_of_call(function: Any, frame: FrameType) -> str | None:
    """The dotted name by which a frame calls a function right now ("kiln.special.erf"), if it takes it from
    one of kiln's modules; None: as a name of its own, or from elsewhere.
    """
    parts = _callees(frame.f_code).get(frame.f_lasti, ())
    if len(parts) < 2:
        return None
    owner: Any = frame.f_globals.get(parts[0])
    if owner is None or parts[0] in (*frame.f_code.co_varnames, *frame.f_code.co_freevars):
        owner = frame.f_locals.get(parts[0])
    for part in parts[1:-1]:
        owner = getattr(owner, part, None)
    if not isinstance(owner, ModuleType) or getattr(owner, parts[-1], None) is not function:
        return None
    root, _, place = owner.__name__.partition(".")
    if root not in ("kiln", names.root()) or place not in names.PLACES:
        return None
    if place == "nn.functional" and parts[-1] not in shown.FUNCTIONAL:
        return None  # the same function in PyTorch too, whichever name it is called by
    return ".".join(part for part in (names.root(), place, parts[-1]) if part)


def handed_over(
    function: Any, called: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as PyTorch records them: of functions that it has in Python what must be given by place, all
    else by name, defaults too; of others as they were given.
    """
    known = called or names.known_place(function) or ""
    place, _, name = known.partition(".")[2].rpartition(".")
    if name not in {"nn.functional": shown.IN_PYTHON, "": shown.OF_FUNCTIONAL}.get(place, ()):
        return args, kwargs
    parameters = parameters_of(function)
    known_names = [parameter for parameter, _ in parameters]
    given = {**dict(zip(known_names, args)), **kwargs}
    if len(given) != len(args) + len(kwargs):
        return args, kwargs  # a call that is refused when it runs
    count = shown.BY_PLACE.get(name, sum(default is _core.REQUIRED for _, default in parameters))
    if not set(known_names[:count]) <= set(given):
        return args, kwargs
    by_place = tuple(given.pop(p) for p in known_names[:count])
    return by_place, {**dict(parameters[count:]), **given}


def parameters_of(function: Any) -> list[tuple[str, Any]]:
    """A function's parameters that may be given by place, and their defaults."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    if isinstance(function, _core.Op):
        return [(p.name, p.default) for p in function.record.params]
    more = getattr(function, "_kiln_more", None)
    if more is not None:
        of, added = more
        found = parameters_of(of)
        for at, name, default in added:
            found.insert(at, (name, default))
        return found
    code, defaults = function.__code__, function.__defaults__ or ()
    required = code.co_argcount - len(defaults)
    return list(zip(code.co_varnames, (*[_core.REQUIRED] * required, *defaults), strict=False))
