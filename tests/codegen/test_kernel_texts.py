"""Hashes of kernels' texts: of every kernel of a program, on every level, and they change with the text."""

from __future__ import annotations

import subprocess
import sys

from backend import needs_kiln

CHILD = """
import os, tempfile
folder = tempfile.TemporaryDirectory()
os.environ.update(KILN_CACHE_DIR=folder.name, KILN_PACK="0")
import kiln
from kiln.codegen.target import LEVELS
from kiln.testing.kernel_texts import Noted, differences, text_of

def texts(*works):
    for work in works:
        work()
    return noted.texts()

noted = Noted()
noted.watch()
x, w = kiln.ones(5, 70), kiln.ones(70, 30)
one = texts(lambda: x + x, lambda: x @ w, lambda: x.cumsum(0), lambda: kiln.sort(x))
assert {level for _, level in one} == set(LEVELS)
kinds = {type(kernel).__name__ for kernel in noted.kernels.values()}
assert kinds == {"NestKernel", "GemmKernel", "AlongKernel"}, kinds
assert list(differences(one, texts())) == []  # written once more, the same
more = texts(lambda: x * x)
assert [line.split()[-1] for line in differences(one, more)] == ["new"] * len(LEVELS)
assert [line.split()[-1] for line in differences(more, one)] == ["gone"] * len(LEVELS)

from kiln.codegen.nests import maps
real, kernel = maps.emit_map, next(k for k in noted.kernels.values() if type(k).__name__ == "NestKernel")
maps.emit_map = lambda nest, target: real(nest, target).replace("fadd", "fsub")
changed = list(differences(more, texts()))
assert changed and all(line.endswith("another text") for line in changed), changed
assert all(not text_of(kernel, target).startswith("refused") for target in LEVELS.values())
"""


@needs_kiln
def test_a_change_of_a_text_is_seen() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", CHILD], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
