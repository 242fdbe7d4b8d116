"""Which names of PyTorch a program's text asks for that kiln has not: `python -m kiln --missing`."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from kiln import absent
from kiln.as_torch.missing import Missing

_CATCH = {"ImportError", "ModuleNotFoundError", "AttributeError", "Exception", "BaseException"}


@cache
def _tree(file: str) -> ast.Module | None:
    """The text of a file as Python reads it; None for what is no file or no program."""
    try:
        with open(file, "rb") as text:
            return ast.parse(text.read(), file)
    except (OSError, SyntaxError, ValueError):
        return None


def _goes_on(node: ast.Try) -> bool:
    """Whether a `try` catches that a name is not there."""
    for handler in node.handlers:
        caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        if any(kind is None or ast.unparse(kind) in _CATCH for kind in caught):
            return True
    return False


@cache
def is_tried(file: str, line: int) -> bool:
    """Whether a line of a file stands in a `try` that goes on without a name, or under an `if` that asks for
    one by `hasattr`.
    """
    tree = _tree(file)
    if tree is None:
        return False
    asking = [node for node in ast.walk(tree) if isinstance(node, (ast.Try, ast.If))]
    return any(
        (_goes_on(node) if isinstance(node, ast.Try) else "hasattr(" in ast.unparse(node.test))
        and node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0)
        for node in asking
    )


def read(file: str, folder: str | None = None) -> list[Missing]:
    """What a program asks for that is not there, by its text and that of its own modules beside it."""
    tree = _tree(os.path.abspath(file))
    if tree is None:
        with open(file, "rb") as text:
            compile(text.read(), file, "exec")  # raises what is wrong with it
        return []
    folder = folder or os.path.dirname(os.path.abspath(file))
    found: dict[tuple[str, int], Missing] = {}
    todo, seen = [os.path.abspath(file)], {os.path.abspath(file)}
    while todo:
        path = todo.pop()
        here = _tree(path)
        if here is None:
            continue
        found.update({(m.name, m.line): m for m in _in_tree(here, path)})
        own = set(_own_files(here, path, folder)) - seen
        seen |= own
        todo += sorted(own)
    return sorted(found.values())


def _own_files(tree: ast.Module, path: str, folder: str) -> Iterator[str]:
    """Files in the program's folder that a module imports."""
    for node in ast.walk(tree):
        names: list[str] = []
        base = folder
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            for _ in range(node.level):
                base = os.path.dirname(path if base == folder else base)
            prefix = f"{node.module}." if node.module else ""
            names = [*([node.module] if node.module else []), *(prefix + alias.name for alias in node.names)]
        for name in names:
            place = os.path.join(base, *name.split("."))
            yield from (file for file in (f"{place}.py", f"{place}/__init__.py") if os.path.isfile(file))


def _in_tree(tree: ast.Module, file: str) -> Iterator[Missing]:
    bound = dict(_bound(tree))
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            chain = _chain(node)
            if chain is not None and chain[0] in bound:
                names = [".".join([bound[chain[0]], *chain[1:]])]
            elif id(node) in called and node.attr in absent.TENSOR.split():
                names = [f"torch.Tensor.{node.attr}"]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if _is_torch(alias.name)]
        elif isinstance(node, ast.ImportFrom) and not node.level and _is_torch(node.module or ""):
            names = [f"{node.module}.{a.name}" if a.name != "*" else str(node.module) for a in node.names]
        for name in names:
            gone = first_missing(name)
            line = getattr(node, "lineno", 0)
            if gone is not None and not is_tried(file, line):
                hint = absent.hint(gone.rpartition(".")[2]) or absent.hint(gone.partition(".")[2])
                yield Missing(file, line, gone, hint)


def _is_torch(name: str) -> bool:
    return name.partition(".")[0] == "torch"


def _bound(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names of a module that mean something of PyTorch's, wherever they are imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if _is_torch(alias.name):
                    yield (alias.asname, alias.name) if alias.asname else ("torch", "torch")
        elif isinstance(node, ast.ImportFrom) and not node.level and _is_torch(node.module or ""):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _chain(node: ast.expr) -> list[str] | None:
    """["torch", "nn", "Linear"] of `torch.nn.Linear`; None for what does not begin with a name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else None


def first_missing(name: str) -> str | None:
    """The shortest beginning of a dotted name of PyTorch's that is not there; None if all of it is."""
    parts = name.split(".")
    here: Any = import_module(parts[0])
    for k, part in enumerate(parts[1:], 2):
        if not isinstance(here, (ModuleType, type)):
            return None  # an object's attributes are known when the program runs
        path = ".".join(parts[:k])
        try:
            here = getattr(here, part)
        except AttributeError:
            if not isinstance(here, ModuleType):
                return path
            try:
                here = import_module(path)
            except ImportError:
                return path
        if isinstance(here, (absent.Absent, absent.Refused)):
            return path
    return None
