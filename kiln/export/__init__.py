"""Programs: a model as a graph with its weights, which runs without the code that made it.

export             traces a module: an `ExportedProgram`, callable, differentiable
draft_export       the same of a model that goes by values, which every call then checks
save               writes it into one file: safetensors, the graph's text in its metadata, nothing executable
unflatten          makes modules of one again, by the names and calls that the model had
load               reads it in a process that never saw the model's code
Dim, dims          sizes that vary; ShapesCollection and AdditionalInputs say which by tensors, by examples
"""

from __future__ import annotations

import typing as _typing
from importlib import import_module as _import_module

from kiln.absent import no_attribute as _no_attribute
from kiln.export.files import load, save
from kiln.export.program import ExportedProgram, draft_export, export
from kiln.tracing.dims import Dim, dims

if _typing.TYPE_CHECKING:
    from kiln.export import graph_signature
    from kiln.export.call_graph import ModuleCallEntry, ModuleCallSignature
    from kiln.export.graph_signature import ExportGraphSignature
    from kiln.export.shapes import AdditionalInputs, ShapesCollection, register_dataclass
    from kiln.export.unflattened import UnflattenedModule, unflatten

__all__ = [
    "AdditionalInputs", "Dim", "ExportGraphSignature", "ExportedProgram", "ModuleCallEntry",
    "ModuleCallSignature", "ShapesCollection", "UnflattenedModule", "dims", "draft_export", "export",
    "graph_signature", "load", "register_dataclass", "save", "unflatten",
]  # fmt: skip

# What who loads a program needs not, imported when it is first asked for: name -> its module.
_LATER = {
    "AdditionalInputs": "shapes",
    "ExportGraphSignature": "graph_signature",
    "ModuleCallEntry": "call_graph",
    "ModuleCallSignature": "call_graph",
    "ShapesCollection": "shapes",
    "UnflattenedModule": "unflattened",
    "graph_signature": "graph_signature",
    "register_dataclass": "shapes",
    "unflatten": "unflattened",
}


def _found(name: str) -> _typing.Any:
    """`__getattr__`, which type checkers do not see."""
    if name not in _LATER:
        _no_attribute(__name__, name)
    module = _import_module(f"kiln.export.{_LATER[name]}")
    return module if name == _LATER[name] else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


if not _typing.TYPE_CHECKING:
    __getattr__ = _found
