"""Forks at every moment of a first compile: see `fork_moments.py`.

The suite takes some moments of each kind, KILN_TEST_FULL=1 all of those in what threads share.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from backend import needs_kiln

FULL = os.environ.get("KILN_TEST_FULL") == "1"
# (whose events, in which files): how many there are at least, a few, and how far the others are apart
SWEEPS: dict[tuple[str, str], tuple[int, Iterable[object], int]] = {
    ("compiler", "shared"): (
        200,
        (1, 60, 205, "codegen/compile.py:compile_parts c_call", "capture/background.py:checkpoint call")
        + ("codegen/llvm.py:object return", "capture/background.py:work c_return"),
        1,
    ),
    ("compiler", "all"): (5000, (333, 4444), 61),
    ("caller", "shared"): (
        1500,
        (450, 1500, "capture/service.py:_background call", "capture/background.py:<module> call")
        + ("codegen/fork.py:at_fork return", "capture/background.py:submit call")
        + ("codegen/thread.py:start c_return", "capture/background.py:wait call"),
        3,
    ),
    ("caller", "all"): (30_000, (9_000,), 307),
    ("caller", "imports"): (15_000, (333, 14_000), 307),
}


@needs_kiln
@pytest.mark.parametrize(("who", "where"), SWEEPS)
def test_a_fork_while_a_thread_stands_still(who: str, where: str, tmp_path: Path) -> None:
    least, few, step = SWEEPS[who, where]
    moments: Iterable[object] = range(1, 3 * least, step) if FULL else few
    program = str(Path(__file__).parents[1] / "fork_moments.py")
    done = subprocess.run(
        [sys.executable, "-P", program, who, where, *map(str, moments)],
        capture_output=True,
        text=True,
        timeout=4 * 3600 if FULL else 300,
        env={**os.environ, "TMPDIR": str(tmp_path), "KILN_CHECK": "0"},
    )
    assert done.returncode == 0, (done.stdout[-200:], done.stderr[-4000:])
    places = done.stdout.splitlines()
    stood = [place for place in places if "done after" not in place]
    assert len(stood) > (least // step if FULL else len(places) // 2), places
