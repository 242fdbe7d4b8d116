"""The step of a wheel's build that makes the pack: of kiln's sources and of the core that is installed.

    python pack/install.py PACKAGE       the installed package's folder, which holds the core

A wheel without a pack is whole: its first process makes what it needs. What fails here is said, and no error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
LIMIT = 600  # seconds


def main(package: Path) -> str:
    """Makes the pack; says what became of it."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "kiln"
        shutil.copytree(HERE.parent / "kiln", tree, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        for core in package.glob("_core*"):
            shutil.copy2(core, tree)
        path = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        command = [sys.executable, str(HERE / "make.py"), str(tree / "packs")]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=LIMIT
        )
        if done.returncode:
            return f"none: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
        shutil.copytree(tree / "packs", package / "packs", dirs_exist_ok=True)
    return f"{done.stdout}in {time.perf_counter() - started:.0f} s"


if __name__ == "__main__":
    try:
        said = main(Path(sys.argv[1]))
    except (OSError, subprocess.SubprocessError) as error:
        said = f"none: {error}"
    print(f"kiln, prebuilt pack: {said}", flush=True)
