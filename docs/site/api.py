"""Pages of every public name, written by importing kiln: parsers miss those of the core."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from kiln.testing import op_page

# what is defined in several is described in the first
MODULES = """
kiln kiln.nn kiln.nn.functional kiln.nn.init kiln.nn.utils kiln.optim kiln.optim.lr_scheduler kiln.autograd
kiln.autograd.forward_ad kiln.autograd.functional kiln.autograd.graph kiln.func kiln.compiler kiln.batching
kiln.export kiln.onnx kiln.fx kiln.jit kiln.graph kiln.distributions kiln.linalg kiln.special kiln.masked
kiln.signal.windows kiln.random kiln.utils kiln.utils.data kiln.utils.checkpoint kiln.amp kiln.profiler
kiln.viz kiln.cache kiln.library kiln.overrides kiln.hub kiln.datasets kiln.multiprocessing kiln.futures
kiln.distributed kiln.backends kiln.accelerator kiln.cpu kiln.cuda kiln.types kiln.return_types kiln.testing
""".split()

PLAIN = (int, float, str, tuple, dict, list)  # values whose docstring is their type's


def public(module: Any) -> list[str]:
    """What a module lists; one without a list: what kiln defines and no underscore hides."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(name for name in set(listed) if not name.startswith("_"))
    return sorted(name for name in dir(module) if _own(name, getattr(module, name, None)))


def _own(name: str, value: Any) -> bool:
    home = str(getattr(value, "__module__", None) or "kiln")
    inner = name.startswith("_") or isinstance(value, ModuleType) or home in ("kiln.errors", "kiln.late")
    return not inner and home.split(".")[0] == "kiln"


def prose(text: str) -> str:
    """A docstring as Markdown: examples and what is indented as they stand, the rest as words."""
    parts = []
    lines = inspect.cleandoc(re.sub(r"[ \t]+$", "", text, flags=re.M))
    for part in re.split(r"\n\n+", lines):
        if part.lstrip().startswith(">>>"):
            parts.append(f"```pycon\n{inspect.cleandoc(part)}\n```")
        elif re.search(r"^ ", part, re.M):
            parts.append(f"```text\n{part}\n```")
        else:
            words = re.split(r"(`[^`]*`)", part)
            parts.append(
                "".join(w if w[:1] == "`" else re.sub(r"([\\*_<>\[\]#|])", r"\\\1", w) for w in words)
            )
    return "\n\n".join(parts)


def signature(name: str, value: Any) -> str:
    """How a thing is called; nothing for what is not called, or does not say."""
    if not callable(value):
        return ""
    try:
        shown = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in shown.parameters.values()]
    called = str(shown.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    return f"```python\n{name}{re.sub(r' at 0x[0-9a-f]+', '', called)}\n```"


def table_says(name: str, value: Any) -> str:
    """What the table has of a function's derivative."""
    record = op_page.facts(name.removeprefix("kiln."), value)
    return f"Derivative: {op_page.derivative(record)}." if record is not None else ""


def members(value: Any) -> Iterator[tuple[str, Any]]:
    """The public members of a class of kiln's that say something of themselves."""
    for name, member in sorted(vars(value).items()):
        if isinstance(member, (staticmethod, classmethod)):
            member = member.__func__
        if not name.startswith("_") and isinstance(getattr(member, "__doc__", None), str):
            if callable(member) or isinstance(member, property):
                yield name, member


def entry(place: str, name: str, value: Any, described: dict[int, tuple[str, Any]]) -> str:
    """One name: its signature, what the table has of it and its docstring; or where those stand."""
    full = f"{place}.{name}"
    head = f"### {name} {{ #{full} }}"
    if isinstance(value, ModuleType):
        where = value.__name__
        return f"{head}\n\n" + (
            f"[The module]({where}.md)." if where in MODULES else prose(value.__doc__ or "")
        )
    said = isinstance(getattr(value, "__doc__", None), str) and not isinstance(value, PLAIN)
    if said and id(value) in described:
        home = described[id(value)][0]
        return f"{head}\n\nAs [{home}]({home_page(home)}.md#{home})."
    if not said or not (callable(value) or isinstance(value, type)):
        return f"{head}\n\n`{type(value).__name__}`: `{re.sub(r' at 0x[0-9a-f]+', '', repr(value))[:80]}`"
    described[id(value)] = (full, value)
    functions = op_page.names()
    known = table_says(full, value) if functions.get(full.removeprefix("kiln.")) is value else ""
    parts = [head, signature(full, value), prose(value.__doc__), known]
    if isinstance(value, type) and str(value.__module__).startswith("kiln"):
        for key, member in members(value):
            parts += [f"#### {name}.{key} {{ #{full}.{key} }}", signature(key, member), prose(member.__doc__)]
    return "\n\n".join(part for part in parts if part)


def home_page(full: str) -> str:
    return full.rpartition(".")[0]


def pages() -> Iterator[tuple[str, str]]:
    """Name of each module and the text of its page."""
    described: dict[int, tuple[str, Any]] = {}
    for place in MODULES:
        module = import_module(place)
        names = public(module)
        parts = [f"# {place}", prose(module.__doc__ or "")]
        parts += [entry(place, name, getattr(module, name), described) for name in names]
        yield place, "\n\n".join(parts) + "\n"


def index() -> str:
    """The list of modules with the first sentence of each."""
    rows = []
    for place in MODULES:
        first = prose(import_module(place).__doc__ or "").split("\n\n")[0].split(". ")[0].replace("\n", " ")
        rows.append(f"| [{place}]({place}.md) | {first.replace('|', chr(92) + '|')} |")
    return "\n".join(["# Modules", "", "| module | what is in it |", "| --- | --- |", *rows, ""])
