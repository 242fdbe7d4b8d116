"""The program of `make demo`: every step holds what it says, and the page shows it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_from_digits_to_programs(tmp_path: Path) -> None:
    """It ends well only if bits are the same and results agree; the page is whole and asks for no other."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples/main_job", "--folder", tmp_path, "--epochs", "8"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "eager and compiled have the same bits: True" in done.stdout
    assert "loaded again it has the same bits: True" in done.stdout
    assert "run from C: the same bits" in done.stdout
    page = (tmp_path / "index.html").read_text()
    assert not re.search(r"\{\{[A-Z]+\}\}", page) and page.count("<svg") == 3
    assert not re.search(r"(src|href)=.(https?:)?//", page)
    for file in ("digits.safetensors", "digits.kiln", "native/libdigits.so", "wasm/digits.wasm"):
        assert (tmp_path / file).stat().st_size > 1000
