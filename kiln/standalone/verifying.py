"""Libraries and modules beside the programs they were made of, at the corners of the declared sizes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from typing import Any

import numpy as np

from kiln.export.verification import Verification, beside
from kiln.graph.interpret import memory_dtype
from kiln.standalone.driver import Driver
from kiln.standalone.running import Loaded

# How far results of WebAssembly may be away, in ULP of the largest element of an output: products and
# polynomials round twice a step there.
BOUNDS = {"float64": 256.0, "float32": 256.0, "float16": 4.0, "bfloat16": 4.0}
RUN = """
import { readFileSync, writeFileSync } from "node:fs";
const [module, folder] = process.argv.slice(2);
const { load } = await import(module);
const program = await load();
const { inputs, sizes } = JSON.parse(readFileSync(`${folder}/run.json`, "utf8"));
const given = {};
for (const [k, own] of program.about.inputs.entries()) {
  given[own.name] = new globalThis[own.type](Uint8Array.from(readFileSync(`${folder}/${inputs[k]}`)).buffer);
}
const outputs = Object.values(program.run(given, sizes));
outputs.forEach(({ data }, k) => writeFileSync(`${folder}/out${k}`, new Uint8Array(data.buffer)));
writeFileSync(`${folder}/shapes.json`, JSON.stringify(outputs.map(({ shape }) => shape)));
"""


def native(program: Any, path: str, driver: Driver) -> Verification:
    """A library: equal bits."""
    library = Loaded(path, driver)

    def run(arrays: dict[str, Any]) -> list[Any]:
        return library.of_arrays(list(arrays.values()))

    return beside(program, run)


def wasm(program: Any, path: str, driver: Driver) -> Verification:
    """A module by Node.js, within `BOUNDS`. ImportError where that is not installed."""
    node = shutil.which("node")
    if node is None:
        raise ImportError("to_wasm: verify needs Node.js, the program `node`")
    module = os.path.abspath(os.path.splitext(path)[0] + ".mjs")
    dtypes = [memory_dtype(v.dtype) for v in driver.graph.outputs[: driver.results]]

    def run(arrays: dict[str, Any]) -> list[Any]:
        lengths = [n for x in arrays.values() for n in x.shape]
        sizes = {own.name: lengths[own.slot] for own in driver.stated}
        with tempfile.TemporaryDirectory() as folder:
            for k, array in enumerate(arrays.values()):
                np.ascontiguousarray(array).tofile(f"{folder}/in{k}")
            with open(f"{folder}/run.json", "w", encoding="utf-8") as file:
                json.dump({"inputs": [f"in{k}" for k in range(len(arrays))], "sizes": sizes}, file)
            with open(f"{folder}/run.mjs", "w", encoding="utf-8") as file:
                file.write(RUN)
            done = subprocess.run(
                [node, f"{folder}/run.mjs", module, folder], capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise RuntimeError(f"to_wasm: Node.js: {done.stderr.strip()[-500:]}")
            with open(f"{folder}/shapes.json", encoding="utf-8") as file:
                shapes = json.load(file)
            return [
                np.fromfile(f"{folder}/out{k}", dtype).reshape(shape)
                for k, (dtype, shape) in enumerate(zip(dtypes, shapes))
            ]

    return beside(program, run, BOUNDS)
