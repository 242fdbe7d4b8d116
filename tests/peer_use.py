"""Which tests look at PyTorch or ONNX Runtime, by what they reach: the other ones say the same wherever these
are installed.

A test does if its marks, parameters or fixtures do, or if its code, or that of a function or class of the
tests that it names, names such a module or holds `torch` in a text that it runs or imports.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CellType, CodeType, ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent
PEERS = {"torch", "onnx", "onnxruntime"}


def uses_peer(item: pytest.Item) -> bool:
    """Whether the test looks at PyTorch."""
    if "answers" in getattr(item, "fixturenames", ()):
        return True
    if any("PyTorch" in str(mark.kwargs.get("reason", "")) for mark in item.iter_markers("skipif")):
        return True
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    if any(is_peer(value) or reaches(value) for value in parameters):
        return True
    info = getattr(item, "_fixtureinfo", None)
    fixtures = [f.func for many in info.name2fixturedefs.values() for f in many] if info else []
    own = [f for f in fixtures if Path(inspect.getfile(f)).name != "conftest.py"]
    return any(map(reaches, (getattr(item, "obj", None), *own)))


def is_peer(value: Any) -> bool:
    """Whether a value is a module of PyTorch's, ONNX's or ONNX Runtime's."""
    return isinstance(value, ModuleType) and value.__name__.partition(".")[0] in PEERS


def reaches(value: Any) -> bool:
    """Whether a function of the tests, or one that it names or holds, looks at PyTorch."""
    todo, seen = [value], set()
    while todo:
        value = todo.pop()
        if isinstance(value, type) and value not in seen and is_of_tests(value):
            seen.add(value)
            todo += vars(value).values()
        function = code_of_tests(value)
        if function is None or function in seen:
            continue
        seen.add(function)
        held = [c.cell_contents for c in function.__closure__ or () if c != CellType()]
        for code in parts(function.__code__):
            texts = [c for c in code.co_consts if isinstance(c, str) and c != function.__doc__]
            if any("torch" in text for text in texts):
                return True
            held += [function.__globals__.get(name) for name in code.co_names]
        held += [item for value in held for item in items(value)]
        if any(map(is_peer, held)):
            return True
        todo += held
    return False


def is_of_tests(kind: type) -> bool:
    """Whether the tests define a class."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is not None and HERE in Path(file).parents


def items(value: Any) -> list[Any]:
    """What a container holds: a pair of libraries, a table of programs."""
    found = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [part for item in found for part in (item, *(item if isinstance(item, tuple) else ()))]


def code_of_tests(value: Any) -> Any:
    """The function behind a value, if its code is the tests'."""
    if not callable(value) or isinstance(value, type):
        return None
    function = inspect.unwrap(getattr(value, "__func__", value))
    function = getattr(getattr(function, "hypothesis", None), "inner_test", function)
    if not inspect.isfunction(function) or HERE not in Path(function.__code__.co_filename).parents:
        return None
    return function


def parts(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from parts(constant)
