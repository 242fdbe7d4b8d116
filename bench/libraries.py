"""Native libraries beside ONNX Runtime with bound inputs and outputs, and beside the same programs for
WebAssembly in Node.js, one thread each, taken in turn; how long exports take.

    python bench/libraries.py [rounds]

Exports begin with an empty cache of kernels. An MLP 128-256-10 at 1 and 32 rows, and a GPT of six layers 384
wide at 256 characters. What a call from Python costs, about a microsecond of ctypes, is in the times.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np

os.environ["KILN_CACHE_DIR"] = tempfile.mkdtemp()
os.environ["KILN_PACK"] = "0"

from autocast import VOCABULARY, gpt

import kiln
from kiln import nn
from kiln.export import Dim, export
from kiln.standalone.native import library_of, write
from kiln.standalone.running import Loaded
from kiln.standalone.wasm import wasm_of

LENGTH = 256  # characters
# Runs a module of one input and one output, whose elements are counted; each line says how often, and is
# answered by the seconds that it took.
RUNS = """
const [path, name, size, x, y] = process.argv.slice(1);
const bytes = require("fs").readFileSync(path);
const e = new WebAssembly.Instance(new WebAssembly.Module(bytes), {}).exports;
let at = e.__heap_base.value;
const place = n => {
  const start = at;
  at = (at + n + 63) & ~63;
  const pages = Math.ceil((at - e.memory.buffer.byteLength) / 65536);
  if (pages > 0) e.memory.grow(pages);
  return start;
};
const sizes = place(8), inputs = place(4), outputs = place(4), from = place(4 * x), to = place(4 * y);
new BigInt64Array(e.memory.buffer, sizes, 1)[0] = BigInt(size);
const workspace = place(Number(e[`${name}_workspace`](sizes, 1)));
new Uint32Array(e.memory.buffer, inputs, 1)[0] = from;
new Uint32Array(e.memory.buffer, outputs, 1)[0] = to;
const run = () => e[`${name}_run`](inputs, sizes, outputs, workspace, 0);
for (let i = 0; i < 3000; i++) run();
require("readline").createInterface({ input: process.stdin }).on("line", line => {
  const start = performance.now();
  for (let i = 0; i < +line; i++) run();
  console.log((performance.now() - start) / 1000);
});
"""


def in_node(
    program: Any, name: str, x: Any, outputs: int, relaxed: bool, folder: Path
) -> Callable[[int], float]:
    """Seconds that so many runs of a program take in Node.js."""
    path = folder / f"{name}{relaxed}.wasm"
    path.write_bytes(wasm_of(program._captured, name, relaxed).files[f"{name}.wasm"])
    words = ["node", "--experimental-wasm-relaxed-simd", "-e", RUNS, str(path), name]
    words += map(str, (x.shape[0], x.numel(), outputs))
    runner = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(count: int) -> float:
        assert runner.stdin is not None and runner.stdout is not None
        runner.stdin.write(f"{count}\n")
        runner.stdin.flush()
        return float(runner.stdout.readline())

    atexit.register(runner.communicate)
    return seconds


def compare_modules(program: Any, library: Loaded, inputs: list[Any], rounds: int, folder: Path) -> None:
    """Prints medians of an MLP's calls, native and in Node.js."""
    for x in inputs:
        native, repeat = bound(library, x), max(4, 200 // x.shape[0])

        def timed(count: int, native: Callable[[], Any] = native) -> float:
            start = time.perf_counter()
            for _ in range(count):
                native()
            return time.perf_counter() - start

        outputs = program(x).numel()
        ways = {"native": timed}
        for what, relaxed in (("WebAssembly", False), ("relaxed", True)):
            ways[what] = in_node(program, "mlp", x, outputs, relaxed, folder)
        found: dict[str, list[float]] = {what: [] for what in ways}
        for _ in range(rounds):
            for what, way in ways.items():
                found[what].append(way(repeat) / repeat * 1e6)
        print(f"  {tuple(x.shape)}: native {statistics.median(found['native']):.1f} us")
        for what in ("WebAssembly", "relaxed"):
            ratios = [f(found[what]) / f(found["native"]) for f in (statistics.median, min)]
            told = f"{statistics.median(found[what]):.1f} us (least {min(found[what]):.1f})"
            print(f"    {what} {told}; {ratios[0]:.2f}x, of minima {ratios[1]:.2f}x")


def bound(made: Loaded, x: Any) -> Callable[[], Any]:
    """A call of a library whose arguments are addresses already."""
    array, outputs = x.numpy(), made([x])
    stated = np.array([*(x.shape[0] for _ in made.slots), 0], np.int64)
    workspace = np.empty(made._workspace(stated.ctypes.data_as(ctypes.c_void_p), 1), np.uint8)
    lists = [(ctypes.c_void_p * 1)(a.ctypes.data) for a in (array, outputs[0])]
    at, memory = (a.ctypes.data_as(ctypes.c_void_p) for a in (stated, workspace))
    kept = array, outputs, stated, workspace  # whose addresses these are
    return lambda: made._run(lists[0], at, lists[1], memory, None) or kept


def in_runtime(data: bytes, x: Any) -> Callable[[], Any]:
    """A call of ONNX Runtime with bound input and output."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    binding, array = session.io_binding(), x.numpy()
    binding.bind_cpu_input(session.get_inputs()[0].name, array)
    (result,) = session.run(None, {session.get_inputs()[0].name: array})
    output = onnxruntime.OrtValue.ortvalue_from_numpy(result)
    binding.bind_ortvalue_output(session.get_outputs()[0].name, output)
    inner = session._sess, binding._iobinding
    kept = session, binding, array, output
    return lambda: inner[0].run_with_iobinding(inner[1], None) or kept


def timed_exports(name: str, program: Any, modules: bool) -> tuple[Any, bytes]:
    """Prints times of exports, the first of each kind with nothing kept from before, and sizes without
    weights; the library and the ONNX file. `modules`: of WebAssembly too.
    """
    times: dict[str, float] = {}

    def timed(what: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        made = work()
        times[what] = time.perf_counter() - start
        return made

    made = timed("native", lambda: library_of(program._captured, name))
    timed("native again", lambda: library_of(program._captured, name))
    sizes = {"native": len(made.files[f"lib{name}.so"])}
    if modules:
        module = timed("WebAssembly", lambda: wasm_of(program._captured, name))
        sizes["WebAssembly"] = len(module.files[f"{name}.wasm"])
    data: bytes = timed("ONNX", lambda: program.to_onnx().data)
    weights = sum(p.numel() * 4 for p in program.parameters())
    print(f"{name}: exports " + ", ".join(f"{what} {1000 * t:.0f} ms" for what, t in times.items()))
    print("  " + ", ".join(f"{what} {(n - weights) / 1024:.0f} KB" for what, n in sizes.items()))
    return made, data


def compare(
    name: str, program: Any, inputs: list[Any], rounds: int, folder: Path, modules: bool = False
) -> Loaded:
    """Prints times of exports, sizes, and medians of calls; the library that was called."""
    made, data = timed_exports(name, program, modules)
    write(made, folder)
    library = Loaded(str(folder / f"lib{name}.so"), made.driver)
    for x in inputs:
        calls = {"kiln": bound(library, x), "ONNX Runtime": in_runtime(data, x)}
        found: dict[str, list[float]] = {what: [] for what in calls}
        for call in calls.values():
            call()
        start = time.perf_counter()
        calls["kiln"]()
        repeat = max(1, int(1e-3 / max(time.perf_counter() - start, 1e-6)))
        for _ in range(rounds):
            for what, call in calls.items():
                start = time.perf_counter()
                for _ in range(repeat):
                    call()
                found[what].append((time.perf_counter() - start) / repeat * 1e6)
        medians = {what: statistics.median(t) for what, t in found.items()}
        least = {what: min(t) for what, t in found.items()}
        ratios = [x["ONNX Runtime"] / x["kiln"] for x in (medians, least)]
        told = ", ".join(f"{what} {medians[what]:.1f} us (least {least[what]:.1f})" for what in calls)
        print(f"  {tuple(x.shape)}: {told}; {ratios[0]:.2f}x, of minima {ratios[1]:.2f}x")
    return library


def main() -> None:
    """All of it."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    kiln.set_num_threads(1)
    mlp = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
    with tempfile.TemporaryDirectory() as folder, kiln.no_grad():
        program = export(mlp, (kiln.ones(32, 128),), dynamic_shapes=({0: Dim("batch")},))
        batches = [kiln.randn(1, 128), kiln.randn(32, 128)]
        library = compare("mlp", program, batches, rounds, Path(folder), modules=True)
        if which("node") is not None:
            compare_modules(program, library, batches, 4 * rounds, Path(folder))
        tokens = kiln.randint(0, VOCABULARY, (1, LENGTH))
        compare("gpt", export(gpt(kiln, 1, LENGTH), (tokens,)), [tokens], rounds, Path(folder))


if __name__ == "__main__":
    main()
