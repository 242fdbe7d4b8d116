"""The examples do what they say: each is listed with its picture; the slow job runs all to their results.

An example is a file of `examples/`. It states a bound of its result as AT_LEAST or AT_MOST, and its last line
is `result: NAME VALUE`. Its picture, if it makes one, has its own name. Data, if it takes `--data`, is looked
for beside this tree, where working copies share it.

KILN_TEST_FULL=1 (`make examples`) runs all of them as a user would, and as PyTorch's programs.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from backend import needs_kiln, needs_torch

pytestmark = needs_kiln

FOLDER = Path(__file__).parents[2] / "examples"
DATA = FOLDER.parents[1] / "shared" / "data"
PROGRAMS = sorted(FOLDER.glob("*.py"))
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
README = (FOLDER / "README.md").read_text()

by_name = pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
by_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
slow = pytest.mark.skipif(os.environ.get("KILN_TEST_FULL") != "1", reason="KILN_TEST_FULL=1 runs it")

# what an example may take of the processors: under two minutes on two cores that do nothing else
SECONDS = 120
# waits for one that others keep from running
PATIENCE = 1800

# runs a program in which every `kiln` has become `torch`; the digits that kiln ships are there too
AS_PYTORCH = """
import runpy, sys, types
import kiln, torch
torch.datasets = sys.modules["torch.datasets"] = types.ModuleType("torch.datasets")
torch.datasets.load_digits = lambda: tuple(torch.from_numpy(x.numpy()) for x in kiln.datasets.load_digits())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def bound(path: Path) -> tuple[str, float]:
    """Which side of its result an example states, and the bound."""
    found = [
        (node.targets[0].id, float(ast.literal_eval(node.value)))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if node.targets[0].id in ("AT_LEAST", "AT_MOST")
    ]
    assert len(found) == 1, f"{path.name} states no result, as AT_LEAST = ... or AT_MOST = ..."
    return found[0]


def holds(path: Path, output: str) -> None:
    """Fails if what an example printed does not end in a result within its bound."""
    last = output.rstrip().rpartition("\n")[2]
    match = re.fullmatch(r"result: \w+ (-?\d+(\.\d+)?)", last)
    assert match, f"the last line is {last!r}"
    side, limit = bound(path)
    value = float(match[1])
    assert value >= limit if side == "AT_LEAST" else value <= limit, f"{last}; {side} = {limit}"


def run(*command: object, folder: Path) -> str:
    """What a process prints that runs in a folder, with the data if there is some; it must end well."""
    if DATA.is_dir() and not (folder / "data").exists():
        (folder / "data").symlink_to(DATA)
    # as users run: with the pack, and no program twice
    env = {k: v for k, v in os.environ.items() if k not in ("KILN_CHECK", "KILN_PACK", "PYTHONSAFEPATH")}
    # PyTorch's threads would wait in loops for processors that others use
    env["OMP_WAIT_POLICY"] = "PASSIVE"
    texts = [sys.executable, *map(str, command)]
    done = subprocess.run(texts, capture_output=True, text=True, timeout=PATIENCE, cwd=folder, env=env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def renamed(path: Path, folder: Path) -> Path:
    """The example as a program of PyTorch's."""
    program = folder / path.name
    program.write_text(re.sub(r"\bkiln\b", "torch", path.read_text()))
    return program


def data_is_there(path: Path) -> None:
    """Skips where an example needs data that is not beside this tree."""
    if '"--data"' in path.read_text() and not DATA.is_dir():
        pytest.skip(f"needs {DATA.parent.name}/{DATA.name} beside this tree")


def cells(path: Path) -> list[dict[str, Any]]:
    """A notebook's cells of code."""
    cells: list[dict[str, Any]] = json.loads(path.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_every_example_is_listed_with_its_picture() -> None:
    """The list has each of them and nothing else; pictures are small."""
    linked = {name for name in re.findall(r"\]\(([\w./]+)\)", README) if not name.startswith("..")}
    pictures = {f"pictures/{path.name}" for path in (FOLDER / "pictures").iterdir()}
    assert {name for name in linked if "/" not in name} == {path.name for path in PROGRAMS + NOTEBOOKS}
    assert {name for name in linked if "/" in name} == pictures
    drawing = {f"pictures/{p.stem}.png" for p in PROGRAMS if f'"{p.stem}.png"' in p.read_text()}
    assert pictures == drawing
    large = {p.name: p.stat().st_size for p in (FOLDER / "pictures").iterdir() if p.stat().st_size > 100_000}
    assert not large


@by_name
def test_an_example_says_what_it_does_and_reaches(path: Path) -> None:
    """It fits on a few pages, says how it is run, and states a bound."""
    text = path.read_text()
    tree = ast.parse(text)
    assert f"    python examples/{path.name}" in (ast.get_docstring(tree) or "")
    assert text.count("\n") <= 250
    assert "result: " in text and bound(path)


def test_a_short_run_of_an_example(tmp_path: Path) -> None:
    """A few steps of one; where matplotlib is missing it says so and goes on."""
    output = run(FOLDER / "neural_ode.py", "--steps", 2, "--folder", "new/folder", folder=tmp_path)
    drawn = (tmp_path / "new/folder/neural_ode.png").exists()
    assert drawn == bool(importlib.util.find_spec("matplotlib"))
    assert drawn or "matplotlib is not installed" in output
    assert re.fullmatch(r"result: distance \d+\.\d+", output.rstrip().rpartition("\n")[2])


def test_missing_data_is_told(tmp_path: Path) -> None:
    """The files' names, the folder that was looked at, and what to do; no traceback."""
    command = [sys.executable, FOLDER / "mnist.py", "--data", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("t10k-images-idx3-ubyte.gz is not in nowhere/: put MNIST's")


@by_notebook
def test_a_notebook_is_kept_with_what_it_showed(path: Path) -> None:
    """Every cell was run in order, none failed, and nothing in it names a machine."""
    assert not re.search(r"(?<![\w.])/(home|Users|work|root|tmp)/\w", path.read_text())
    assert path.stat().st_size < 200_000
    for count, cell in enumerate(cells(path), 1):
        compile("".join(cell["source"]), path.name, "exec")
        assert cell["execution_count"] == count
        assert not [output for output in cell["outputs"] if output["output_type"] == "error"]


@slow
@by_name
def test_an_example_reaches_its_result(path: Path, tmp_path: Path) -> None:
    """With its default arguments, in time, with its picture."""
    data_is_there(path)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    output = run(path, folder=tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{path.name}: {time.perf_counter() - start:.1f} s, of processors {seconds:.1f} s")
    holds(path, output)
    assert seconds < SECONDS
    if f'"{path.stem}.png"' in path.read_text() and importlib.util.find_spec("matplotlib"):
        assert (tmp_path / f"{path.stem}.png").read_bytes().startswith(b"\x89PNG")


@slow
@by_name
def test_under_the_name_of_pytorch_an_example_is_the_same(path: Path, tmp_path: Path) -> None:
    """`python -m kiln` runs it as a program that imports torch, to the very result."""
    data_is_there(path)
    if path.stem in ("beam_search", "digits", "reinforce"):
        pytest.skip("it shows what kiln alone has")
    results = [
        run(*command, path if way == "kiln" else renamed(path, tmp_path), folder=tmp_path)
        for way, command in (("kiln", ()), ("torch", ("-m", "kiln")))
    ]
    assert len({output.rstrip().rpartition("\n")[2] for output in results}) == 1


@slow
@needs_torch
@by_name
def test_pytorch_runs_an_example_to_the_same_result(path: Path, tmp_path: Path) -> None:
    """The program in which the word kiln is replaced keeps the same bound."""
    data_is_there(path)
    if path.stem in ("beam_search", "digits", "reinforce"):
        pytest.skip("it shows what kiln alone has")
    holds(path, run("-c", AS_PYTORCH, renamed(path, tmp_path), folder=tmp_path))


@slow
@by_notebook
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    """Its cells, as one program: without Jupyter."""
    pytest.importorskip("matplotlib")
    program = tmp_path / "cells.py"
    program.write_text("\n\n".join("".join(cell["source"]) for cell in cells(path)))
    run(program, folder=tmp_path)
