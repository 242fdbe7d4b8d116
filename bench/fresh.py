"""What only a fresh process shows: imports, first steps, first kernels, a busy neighbour.

    python -P bench/fresh.py TASK BACKEND [ARGUMENT]     prints one line of JSON

Each task is a function of the backend's name; run.py starts them through `child`.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
HEAVY = ("numpy", "scipy", "llvmlite")


def child(
    task: str, backend: str, *arguments: str, cache: str = "", pack: str = "0", timeout: float = 120
) -> dict[str, Any]:
    """The JSON a task prints in a process of its own; `cache` is its kernel cache directory, `pack` where the
    prebuilt pack is looked for: nowhere, or ("") where it was installed.
    """
    environment = {**os.environ, **({"KILN_CACHE_DIR": cache} if cache else {}), "KILN_PACK": pack}
    # -P: the installed kiln, not the tree's
    command = [sys.executable, "-P", str(Path(__file__)), task, backend, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no output"])[-1])
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def has_llvm() -> bool:
    """Whether this process loaded LLVM: its library is mapped."""
    return "libllvmlite" in Path("/proc/self/maps").read_text()


def resident() -> float:
    """Megabytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def task_import(backend: str) -> dict[str, Any]:
    """Seconds of the import, megabytes after it, heavy modules it brought."""
    before, started = resident(), time.perf_counter()
    __import__(backend)
    took = time.perf_counter() - started
    return {
        "seconds": took,
        "before": before,
        "resident": resident(),
        "heavy": [m for m in HEAVY if m in sys.modules],
    }


def task_step(backend: str) -> dict[str, Any]:
    """Seconds of the first calls of a recorded training step, each to its end (the loss read), and of
    what came before.

    `setup` is the import and the making of the model and its optimizer, whose own kernels are new as well.
    `compiled`: from the second call until its program is there, made by another thread.
    """
    from bench.workloads import mlp_step
    from kiln.testing.backend import load

    framework = load(backend)
    started = time.perf_counter()
    step = mlp_step(framework, recorded=True)
    setup = time.perf_counter() - started
    calls, compiled = [], 0.0
    for k in range(4):
        started = time.perf_counter()
        step().item()
        calls.append(time.perf_counter() - started)
        if k == 1 and framework.is_kiln:
            step.wait()
            compiled = time.perf_counter() - started
    return {"calls": calls, "setup": setup, "compiled": compiled, "llvm": has_llvm()}


def task_program(backend: str) -> dict[str, Any]:
    """Seconds of README.md's first program, kiln's own, in a process from its start to its end."""
    text = (ROOT / "README.md").read_text()
    program = re.findall(r"```python\n(import.*?)```", text, re.DOTALL)[0]
    look = "\nprint('libllvmlite' in open('/proc/self/maps').read())"
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", "-c", program + look]
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return {"seconds": time.perf_counter() - started, "llvm": done.stdout.strip() == "True"}


def beyond_later_calls(f: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """Seconds that the first call of `f` takes more than the quickest of five more."""
    times = []
    for _ in range(6):
        started = time.perf_counter()
        f(*args)
        times.append(time.perf_counter() - started)
    return times[0] - min(times[1:])


def task_kernels(backend: str) -> dict[str, Any]:
    """Seconds that first calls took beyond later ones, by name: the process's first kernel, new pointwise
    functions, then ops of other kinds.
    """
    from kiln.testing.backend import load

    k = load(backend)
    result = {"ones": beyond_later_calls(lambda: k.ones(8, 8), ())}
    x, w = k.ones(8, 8), k.ones(8, 8)
    tanh, exp, layer_norm = k.tanh, k.exp, k.nn.functional.layer_norm
    pointwise = {
        "pointwise 1": lambda x: x * x * 1.25 + 3.0,
        "pointwise 2": lambda x: tanh(x) * 0.75 - x,
        "pointwise 3": lambda x: exp(x * -0.5) + x * x,
        "pointwise 4": lambda x: (x - 0.125) * (x + 0.375) * x,
        "pointwise 5": lambda x: 0.5 * x * (1.0 + tanh(0.79 * (x + 0.0447 * x * x * x))),
    }
    calls = {name: (k.pointwise(f), (x,)) for name, f in pointwise.items()}
    calls["sum of rows"] = (lambda x: x.sum(1), (x,))
    calls["sum of columns"] = (lambda x: x.sum(0), (x,))
    calls["softmax"] = (lambda x: k.softmax(x, 1), (x,))
    calls["layer_norm"] = (lambda x: layer_norm(x, (8,)), (x,))
    calls["matmul"] = (lambda x, w: x @ w, (x, w))
    calls["matmul transposed"] = (lambda x, w: x @ w.t(), (x, w))
    result |= {name: beyond_later_calls(f, args) for name, (f, args) in calls.items()}
    return {"seconds": result, "llvm": has_llvm()}


def task_products(backend: str) -> dict[str, Any]:
    """Seconds that a product's first call took beyond later ones, by pattern, after a product and a pointwise
    function of the process.
    """
    from kiln.testing.backend import load

    k = load(backend)
    x, w, b = k.ones(96, 96), k.ones(96, 96), k.ones(96)
    x.double() @ x.double()
    thin, brain, image, taps = k.ones(1, 96), x.bfloat16(), k.ones(1, 8, 12, 12), k.ones(8, 8, 3, 3)
    linear, conv2d = k.nn.functional.linear, k.nn.functional.conv2d
    calls = {
        "x @ w": (lambda: x @ w),
        "x @ w.T": (lambda: x @ w.t()),
        "x.T @ w": (lambda: x.t() @ w),
        "one row": (lambda: thin @ w),
        "linear": (lambda: linear(x, w, b)),
        "batched": (lambda: x.view(2, 48, 96) @ w),
        "bfloat16": (lambda: brain @ brain),
        "convolution": (lambda: conv2d(image, taps, None, 1, 1)),
    }
    return {"seconds": {name: beyond_later_calls(f, ()) for name, f in calls.items()}}


def task_neighbour(backend: str, which: str) -> dict[str, Any]:
    """Seconds of a workload on one thread, then on two while another process keeps one of the cores busy."""
    from bench.measure import Work, interleaved
    from bench.workloads import gelu, mlp_step
    from kiln.testing.backend import load

    framework = load(backend)
    if which == "gelu":
        work = gelu(framework)
    else:
        work = Work("step()", {"step": mlp_step(framework, recorded=True)})
    framework.set_num_threads(1)
    alone = interleaved([work], 1.5)[0]
    framework.set_num_threads(2)
    two = interleaved([work], 1.0)[0]
    hog = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.3)
        hogged = interleaved([work], 2.0)[0]
    finally:
        hog.kill()
        hog.wait()
    return {"one": alone.median, "two": two.median, "hogged": hogged.median}


def task_memory(backend: str, which: str) -> dict[str, Any]:
    """The most bytes that the tensors of a training step take beyond those that are there before it."""
    from bench.gradients import training_step
    from bench.measure import most_memory
    from kiln.testing.backend import load

    framework = load(backend)
    framework.set_num_threads(1)
    step, forget = training_step(framework, which)
    step(), step(), forget()
    return {"bytes": most_memory(framework, step)}


def task_long(backend: str, count: str) -> dict[str, Any]:
    """Seconds per op of a chain of `count` multiplications of 4x4 tensors, made, differentiated and dropped;
    the median of several, after one that is not counted.
    """
    from kiln.testing.backend import load

    framework, length = load(backend), int(count)
    a, b = framework.ones(4, 4).requires_grad_(), framework.ones(4, 4)
    times = []
    for _ in range(1 + max(3, 100_000 // length)):
        started = time.perf_counter()
        y = a
        for _ in range(length):
            y = y * b
        y.sum().backward()
        a.grad = y = None
        times.append((time.perf_counter() - started) / length)
    return {"seconds": statistics.median(times[1:])}


TASKS = {
    "import": task_import,
    "program": task_program,
    "step": task_step,
    "memory": task_memory,
    "long": task_long,
    "kernels": task_kernels,
    "products": task_products,
    "neighbour": task_neighbour,
}


def median_of(task: str, backend: str, key: str, runs: int) -> tuple[float, dict[str, Any]]:
    """The median of a key over several processes, and the last answer."""
    answers = [child(task, backend) for _ in range(runs)]
    return statistics.median(a[key] for a in answers), answers[-1]


if __name__ == "__main__":
    sys.path.append(str(ROOT))
    print(json.dumps(TASKS[sys.argv[1]](*sys.argv[2:])))
