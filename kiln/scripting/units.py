"""Scripts of source that is a text: `CompilationUnit`, and `define` of a module."""

from __future__ import annotations

import itertools
import linecache
import math
import sys
import textwrap
import typing
from types import FunctionType, MethodType
from typing import Any

from kiln import _core
from kiln.errors import describe, message
from kiln.scripting.scripted import Scripted, script
from kiln.table.callables import name_helpers as _name_helpers
from kiln.tracing.scripts import above

_count = itertools.count()
_NAMES = ("Any", "Dict", "List", "NamedTuple", "Optional", "Tuple", "Union")


def functions_of(source: str, around: dict[str, Any]) -> dict[str, FunctionType]:
    """The functions that a text defines; they see each other, what is `around`, and what scripts may name."""
    own = sys.modules["kiln"]
    known = {"torch": own, "kiln": own, "Tensor": _core.Tensor, "math": math, "inf": math.inf}
    space = {**known, **{name: getattr(typing, name) for name in _NAMES}, **around}
    before = dict(space)
    name = f"<script {next(_count)}>"
    text = textwrap.dedent(source)
    linecache.cache[name] = len(text), None, text.splitlines(True), name  # where tracebacks and scripts look
    exec(compile(text, name, "exec", dont_inherit=True), space)
    return {n: f for n, f in space.items() if isinstance(f, FunctionType) and before.get(n) is not f}


class CompilationUnit:
    """Functions of a text, each a script.

    >>> unit = kiln.jit.CompilationUnit('''
    ... def double(x: Tensor, limit: int = 3):
    ...     while bool(x.sum() < limit):
    ...         x = x * 2
    ...     return x
    ... ''')
    >>> unit.double(kiln.ones(1))
    tensor([4.])
    """

    def __init__(self, lang: str | None = None, _frames_up: int = 0) -> None:
        self._scripts: dict[str, Scripted] = {}
        if lang is not None:
            self.define(lang, _frames_up=_frames_up + 1)

    def define(self, lang: str, rcb: Any = None, _frames_up: int = 0) -> None:
        """Adds the functions of a text."""
        if not isinstance(lang, str):
            raise TypeError(message("CompilationUnit", "the text of functions", describe(lang)))
        frame = sys._getframe(_frames_up + 1)
        around = {**frame.f_globals, **frame.f_locals}
        found = functions_of(lang, around)
        self._scripts.update({name: script(f) for name, f in found.items()})

    def __getattr__(self, name: str) -> Any:
        made = self.__dict__.get("_scripts", {}).get(name)
        if made is None:
            raise AttributeError(f"'CompilationUnit' object has no attribute '{name}'")
        return made

    def get_functions(self) -> list[Scripted]:
        """The scripts."""
        return list(self._scripts.values())


def define(module: Any, source: str) -> None:
    """Gives a module the functions of a text as methods."""
    frame = sys._getframe(2)
    for name, f in functions_of(source, frame.f_globals).items():
        module.__dict__[name] = MethodType(f, module)


above["define"] = define


_name_helpers(globals(), __name__)
