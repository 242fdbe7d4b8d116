"""Libraries and modules beside the programs they were made of, at the corners of the declared sizes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import numpy as np

from kiln.export.verification import Run, Verification, beside
from kiln.graph.interpret import memory_dtype
from kiln.standalone.driver import Driver
from kiln.standalone.running import Loaded

# How far results of WebAssembly may be away, in ULP of the largest element of an output: products and
# polynomials round twice a step there.
BOUNDS = {"float64": 256.0, "float32": 256.0, "float16": 4.0, "bfloat16": 4.0}
RELAXED = "--experimental-wasm-relaxed-simd"  # what relaxed SIMD asks of an engine that does not run it yet
# Runs of a module: a line of JSON says where the inputs are, one answers with the shapes of the outputs.
RUN = """
import { readFileSync, writeFileSync } from "node:fs";
import { createInterface } from "node:readline";
const [module] = process.argv.slice(2);
const { load } = await import(module);
const program = await load();
for await (const line of createInterface({ input: process.stdin })) {
  const { folder, sizes } = JSON.parse(line);
  const given = {};
  for (const [k, own] of program.about.inputs.entries()) {
    given[own.name] = new globalThis[own.type](Uint8Array.from(readFileSync(`${folder}/in${k}`)).buffer);
  }
  let said;
  try {
    const outputs = Object.values(program.run(given, sizes));
    outputs.forEach(({ data }, k) => writeFileSync(`${folder}/out${k}`, new Uint8Array(data.buffer)));
    said = outputs.map(({ shape }) => shape);
  } catch (error) {
    said = error.message;
  }
  console.log(JSON.stringify(said));
}
"""


def native(program: Any, path: str, driver: Driver, cases: Any = 8) -> Verification:
    """A library: equal bits."""
    library = Loaded(path, driver)
    return beside(program, lambda arrays: library.of_arrays(list(arrays.values())), cases=cases)


def wasm(program: Any, path: str, driver: Driver, cases: Any = 8) -> Verification:
    """A module by Node.js, within `BOUNDS`. ImportError where that is not installed."""
    with in_node(path, driver) as run:
        return beside(program, run, BOUNDS, cases)


@cache
def _flags(node: str) -> str:
    """What the engine of a Node.js may be asked for, as it says it."""
    return subprocess.run([node, "--v8-options"], capture_output=True, text=True, check=False).stdout


@contextmanager
def in_node(path: str, driver: Driver) -> Iterator[Run]:
    """A module in a process of Node.js, which gives the outputs for arrays; RuntimeError where that
    refuses.
    """
    node = shutil.which("node")
    if node is None:
        raise ImportError("to_wasm: verify needs Node.js, the program `node`")
    module = os.path.abspath(os.path.splitext(path)[0] + ".mjs")
    dtypes = [memory_dtype(v.dtype) for v in driver.graph.outputs[: driver.results]]
    flags = [RELAXED] if driver.target.relaxed and RELAXED[2:] in _flags(node) else []
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "run.mjs")
        with open(script, "w", encoding="utf-8") as file:
            file.write(RUN)
        pipe = subprocess.PIPE
        with subprocess.Popen([node, *flags, script, module], stdin=pipe, stdout=pipe, text=True) as process:
            given, answers = process.stdin, process.stdout
            assert given is not None and answers is not None

            def run(arrays: dict[str, Any]) -> list[Any]:
                lengths = [n for x in arrays.values() for n in x.shape]
                sizes = {own.name: lengths[own.slot] for own in driver.stated}
                for k, array in enumerate(arrays.values()):
                    np.ascontiguousarray(array).tofile(f"{folder}/in{k}")
                with suppress(BrokenPipeError):  # it ended, which its silence tells
                    print(json.dumps({"folder": folder, "sizes": sizes}), file=given, flush=True)
                said = json.loads(answers.readline() or '"it ended"')
                if isinstance(said, str):
                    raise RuntimeError(f"to_wasm: Node.js: {said}")
                return [
                    np.fromfile(f"{folder}/out{k}", dtype).reshape(shape)
                    for k, (dtype, shape) in enumerate(zip(dtypes, said))
                ]

            try:
                yield run
            finally:
                with suppress(BrokenPipeError):
                    given.close()
