"""What loading costs: a process that finds a program's texts and kernels kept imports what runs it alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kiln
from kiln import nn
from kiln.export import Dim, export, save

# what makes layers, captures, plans, generates kernels or reads pickles
UNUSED = (
    "kiln.nn.names", "kiln.nn.modules", "kiln.nn.functional", "kiln.export.reading", "kiln.graph.verify",
    "kiln.tracing.capture", "kiln.tracing.restore", "kiln.tracing.ops", "kiln.capture.make", "kiln.passes",
    "kiln.codegen.nests", "kiln.func", "kiln.serialization.saving", "numpy", "llvmlite", "inspect",
    "dataclasses", "logging",
)  # fmt: skip
PROGRAM = """
import sys
import kiln, kiln.export
program = kiln.export.load(sys.argv[1])
print(program(kiln.rand(int(sys.argv[2]), 4)).shape, program.training)
print(*sys.modules)
"""


def _loaded(path: Path, rows: int, cache: Path) -> list[str]:
    """The modules of a process that has loaded a program and run it."""
    command = [sys.executable, "-P", "-c", PROGRAM, str(path), str(rows)]
    environment = {**os.environ, "KILN_CACHE_DIR": str(cache)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    told, modules = done.stdout.splitlines()
    assert told == f"kiln.Size([{rows}, 3]) False"
    return modules.split()


@pytest.mark.parametrize("varies", [False, True])
def test_a_program_that_was_read_before_runs_without_what_makes_programs(
    tmp_path: Path, varies: bool
) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    dims: Any = ({0: Dim("n", max=9)},) if varies else None
    save(export(model, (kiln.rand(2, 4),), dynamic_shapes=dims), tmp_path / "m.kiln")
    _loaded(tmp_path / "m.kiln", 2, tmp_path)
    modules = _loaded(tmp_path / "m.kiln", 2, tmp_path)
    assert [name for name in modules if f"{name}.".startswith(tuple(f"{own}." for own in UNUSED))] == []


def test_names_that_come_late_leave_a_programs_own_alone() -> None:
    program = """
import kiln.nn.module
import kiln.nn as nn
nn.Linear = 3
assert nn.ReLU and nn.Linear == 3
nn.ReLU = 4
assert not hasattr(nn, "Relu") and "Conv2d" in dir(nn) and (nn.Linear, nn.ReLU) == (3, 4)
names = {}
exec("from kiln.nn import *", names)
assert names["Linear"] == 3 and names["Conv2d"] is nn.Conv2d
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
