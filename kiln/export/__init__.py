"""Programs: a model as a graph with its weights, which runs without the code that made it.

export   traces a module: an `ExportedProgram`, callable, differentiable
save     writes it into one file: safetensors, the graph's text in its metadata, nothing executable
load     reads it in a process that never saw the model's code
"""

from __future__ import annotations

from kiln.absent import hint_missing as _hint_missing
from kiln.export.files import load, save
from kiln.export.program import ExportedProgram, export
from kiln.tracing.dims import Dim, dims

__all__ = ["Dim", "ExportedProgram", "dims", "export", "load", "save"]

_hint_missing(__name__)
