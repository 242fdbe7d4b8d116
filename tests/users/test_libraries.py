"""Libraries built on PyTorch, with kiln under its name: each a small program in a process of its own.

They run with KILN_TEST_FULL=1 (`make libraries`), where the packages are installed; the others are
skipped. What a program needs is what it imports.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from backend import needs_kiln

PROGRAMS = sorted((Path(__file__).parent / "libraries").glob("*.py"))

pytestmark = [
    needs_kiln,
    pytest.mark.skipif(not os.environ.get("KILN_TEST_FULL"), reason="minutes: KILN_TEST_FULL=1"),
]


def packages(program: Path) -> set[str]:
    """The packages a program imports, without PyTorch and Python's own."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(program.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found - {"torch"} - sys.stdlib_module_names


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_real_use(program: Path, tmp_path: Path) -> None:
    missing = [name for name in sorted(packages(program)) if find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed")
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TORCH_HOME": str(tmp_path),
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, "-m", "kiln", str(program)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert done.stdout.splitlines()[-1] == "ok"
