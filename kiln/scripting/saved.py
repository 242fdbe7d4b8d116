"""Programs of scripts and traces in files."""

from __future__ import annotations

import copy
from typing import Any

from kiln import export
from kiln.errors import describe, message
from kiln.table.callables import hide_frames
from kiln.tracing.modules import TopLevelTracedModule
from kiln.tracing.program import Program
from kiln.tracing.scripts import ScriptFunction, ScriptModule, TracedModule, above


def save(made: Any, f: Any, extra_files: Any = None) -> None:
    """Writes a program into a file, which `kiln.export.load` reads too: of a script the one that ran last,
    for arguments that look like those of that call. RuntimeError, with the line, of a script whose program
    holds one way alone that the function may go.
    """
    if not isinstance(made, (ScriptFunction, ScriptModule)):
        raise TypeError(message("jit.save", "what jit.trace or jit.script gives", describe(made)))
    if isinstance(made, TopLevelTracedModule) and set(made._methods) != {"forward"}:
        raise NotImplementedError("jit.save: a file holds forward alone, not further methods")
    program = made.__dict__.get("_program")
    captured = made.captured
    if isinstance(program, Program):  # of the tensors that it has now
        tensors = program.state()
        captured = copy.copy(program.captured)
        captured.state = [s._replace(tensor=x) for s, x in zip(captured.state, tensors)]
    export.save(export.ExportedProgram(captured), f, extra_files=extra_files)


above["save"] = save


def load(f: Any, extra_files: Any = None) -> Any:
    """A program that `save` wrote."""
    made = export.load(f, extra_files=extra_files)
    return TracedModule(made, made._captured, made._captured.name)


hide_frames(globals(), ("load", "save"))
