"""`python -m kiln show m.kiln` and `python -m kiln run m.kiln --input x.npy --output y.npy`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from kiln import _core
from kiln.export.files import load
from kiln.export.program import ExportedProgram
from kiln.export.shown import described
from kiln.graph.text import text
from kiln.ops.creation.data import from_numpy


def show(args: list[str], drawn: Callable[..., Any]) -> None:
    """Prints what a program file holds; `drawn` makes a picture of it (kiln/symbolic/pictures.py)."""
    parser = argparse.ArgumentParser("python -m kiln show", description="What a program's file holds.")
    parser.add_argument("program")
    parser.add_argument("--graph", action="store_true", help="the graph's text too")
    parser.add_argument("--picture", metavar="FILE", help="draw the graph: .svg or .html")
    given = parser.parse_args(args)
    program = _loaded(given.program)
    print(described(program))
    if given.graph:
        print("\n" + text(program.graph), end="")
    if given.picture:
        drawn(program._captured, program.graph, None, program._captured.name, program).save(given.picture)


def run(args: list[str]) -> None:
    """Runs a program on arrays from files."""
    parser = argparse.ArgumentParser("python -m kiln run", description="Runs a program on NumPy's files.")
    parser.add_argument("program")
    parser.add_argument(
        "--input", action="append", default=[], metavar="[NAME=]FILE.npy", help="in order, or by name"
    )
    parser.add_argument(
        "--output", action="append", default=[], metavar="FILE.npy", help="in order of the results"
    )
    parser.add_argument("--seed", type=int, help="of random numbers")
    given = parser.parse_args(args)
    program = _loaded(given.program)
    found = program._captured
    names = [own.name for own in found.inputs]
    tensors: dict[str, object] = {}
    for k, argument in enumerate(given.input):
        name, _, path = argument.rpartition("=")
        name = name or (names[k] if k < len(names) else "")
        if name not in names or name in tensors:
            parser.error(f"--input {argument}: the inputs are {', '.join(names)}")
        try:
            array = np.load(path, allow_pickle=False)
        except OSError as error:
            parser.error(f"--input {argument}: {error}")
        except ValueError:
            parser.error(f"--input {argument}: {path} is no array of numbers in NumPy's format")
        tensors[name] = from_numpy(np.ascontiguousarray(array))
    missing = [name for name in names if name not in tensors]
    if missing:
        parser.error(f"no --input for {', '.join(missing)}")
    if len(given.output) > len(found.outputs):
        parser.error(f"{len(given.output)} outputs asked for; the program gives {', '.join(found.outputs)}")
    if given.seed is not None:
        from kiln.random import manual_seed

        manual_seed(given.seed)
    _core.set_grad_enabled(False)
    try:
        results = program.run([tensors[name] for name in names])
    except (RuntimeError, TypeError, IndexError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(1) from None
    for name, value in zip(found.outputs, results):
        if not given.output:
            print(f"{name} = {value}")
    for path, value in zip(given.output, results):
        np.save(path, value.detach().numpy(), allow_pickle=False)


def _loaded(path: str) -> ExportedProgram:
    try:
        return load(path)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(1) from None
