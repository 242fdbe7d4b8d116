"""Programs captured from Python: how long it takes to trace and plan them, to export and save them, to load
one in a new process, and to call one.

    python bench/programs.py [--torch]

An MLP 128-256-10 with a batch that varies, and a GPT of six layers 384 wide at 256 characters, on one thread.
A line: medians and minima, in milliseconds, and PyTorch's `torch.export` of the same model beside them. Every
trace is of a model that was not traced before, in a process that has traced others; what is kept on disk is
there from the run before. The exit code is 0: a benchmark never gates a test run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from autocast import VOCABULARY, gpt

import kiln
import kiln.graph
from kiln.export import Dim, export, save
from kiln.testing.backend import peer

ROUNDS = 7
LENGTH = 256  # characters
FIRST = """
import time
begun = time.perf_counter()
import sys
import kiln
program = kiln.export.load(sys.argv[1])
program(kiln.ones(1, 128)).tolist()
print(time.perf_counter() - begun)
"""


def mlp(framework: Any) -> Any:
    """Two layers."""
    nn = framework.nn
    return nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))


def show(name: str, times: list[float], others: list[float] = (), bar: str = "") -> None:  # type: ignore[assignment]
    """A line of the table."""
    cells = [
        f"{t * 1e3:10.4g}"
        for found in (times, others)
        if found
        for t in (statistics.median(found), min(found))
    ]
    print(f"{name:44}{' '.join(cells):43}   {bar}", flush=True)


def seconds(work: Callable[[], Any]) -> float:
    """Of one call."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def traced(make: Callable[[], Any], example: Any, dynamic: Any) -> Callable[[], None]:
    """Traces a new model and makes the plan of its program."""
    model = make()

    def work() -> None:
        kiln.graph.from_function(kiln.jit.trace(model, example, dynamic_shapes=dynamic)).plan()

    return work


def exported(model: Any, example: Any, dynamic: Any, path: Path) -> Callable[[], None]:
    """Exports a new model and writes the file."""
    return lambda: save(export(model, example, dynamic_shapes=dynamic), str(path))


def main() -> None:
    """Prints the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--torch", action="store_true")
    torch = peer() if options.parse_args().torch else None
    kiln.set_num_threads(1)
    if torch is not None:
        torch.set_num_threads(1)
    print(f"{'milliseconds':44}{'median':>10} {'minimum':>10} {'PyTorch':>10} {'minimum':>10}   at most")
    dynamic = ({0: Dim("batch")},)
    works: list[tuple[str, Callable[[Any], Any], Callable[[Any], Any], Any, str, str]] = [
        ("MLP", mlp, lambda f: (f.ones(32, 128),), dynamic, "10", "50"),
        (
            "GPT",
            lambda f: gpt(f, 1, LENGTH),
            lambda f: (f.randint(0, VOCABULARY, (1, LENGTH)),),
            None,
            "100",
            "500",
        ),
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.kiln"
        for name, make, example, shapes, trace_bar, export_bar in works:
            given = example(kiln)
            traces, exports, theirs = [], [], []
            for _ in range(ROUNDS):
                traces.append(seconds(traced(lambda make=make: make(kiln), given, shapes)))  # type: ignore[misc]
                exports.append(seconds(exported(make(kiln), given, shapes, path)))
                if torch is not None:
                    model, arrays = make(torch), example(torch)
                    theirs.append(seconds(lambda m=model, a=arrays: torch.export.export(m, a)))  # type: ignore[misc]
            show(f"{name}: trace and plan", traces, theirs, trace_bar)
            show(f"{name}: export and save", exports, theirs, export_bar)
        model = mlp(kiln)
        program = export(model, (kiln.ones(32, 128),), dynamic_shapes=dynamic)
        save(program, str(path))
        child = [sys.executable, "-c", FIRST, str(path)]
        # Python keeps the bytecode of what it imports, as it does of what pip installs
        usual = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        run = partial(subprocess.run, child, env=usual, capture_output=True, text=True, check=True)
        started = [float(run().stdout) for _ in range(9)]
        show("import, load and first run of a saved MLP", started[2:], bar="60")
        row = kiln.ones(1, 128)
        calls: dict[str, list[float]] = {"program": [], "model": []}
        for _ in range(40):
            for name, called in (("program", program), ("model", model)):
                calls[name].append(seconds(lambda f=called: [f(row) for _ in range(200)]) / 200)  # type: ignore[misc]
        show("a call of the MLP's program, one row", calls["program"], calls["model"], "0.006")
        print(" " * 44 + "(beside it the model itself, which records gradients)")


if __name__ == "__main__":
    main()
