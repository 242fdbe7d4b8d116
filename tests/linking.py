"""Objects and programs that linked libraries are tested with: made, written, run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kiln.codegen.llvm import Machine
from kiln.codegen.target import LEVELS, Target

X86, ARM = LEVELS["x86-64-v3"], LEVELS["aarch64"]
HOST = os.uname().machine
needs_x86 = pytest.mark.skipif(HOST != "x86_64", reason="runs code of x86-64")
PREFIX = {"x86_64": "", "aarch64": "aarch64-linux-gnu-"}

_machines: dict[str, Machine] = {}


def compiled(text: str, target: Target = X86) -> bytes:
    """The object of a module."""
    name = target.name
    if name not in _machines:
        _machines[name] = Machine(target)
    return _machines[name].object(text.replace("{triple}", target.triple))


def written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def tool(name: str, machine: str = "x86_64") -> str:
    """A program of the machine's tools, or a skip."""
    found = shutil.which(PREFIX[machine] + name) or (shutil.which(name) if name == "readelf" else None)
    if found is None:
        pytest.skip(f"no {PREFIX[machine]}{name} here")
    return found


def run(*command: object) -> str:
    """What a program says, if it ends well and complains of nothing."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr + done.stdout
    return done.stdout


def machine_here(target: Target) -> tuple[str, list[str]]:
    """The compiler for a target and what runs its programs."""
    machine = target.triple.split("-")[0]
    compiler = tool("gcc", machine)
    if machine == HOST:
        return compiler, []
    runner = shutil.which(f"qemu-{machine}")
    if runner is None:
        pytest.skip(f"no qemu-{machine} here")
    return compiler, [runner, "-L", f"/usr/{machine}-linux-gnu"]
