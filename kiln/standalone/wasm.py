"""A program as a WebAssembly module, with what runs it: an ES module, its TypeScript types, a page.

captured -> primitives -> constants -> driver + kernels as one LLVM module -> wasm_link.py -> NAME.wasm
"""

from __future__ import annotations

import base64
import json
from importlib.resources import files as resources
from typing import Any

from kiln.codegen.llvm import Machine
from kiln.codegen.target import RELAXED, WASM
from kiln.late import later
from kiln.standalone.constants import folded, laid_out
from kiln.standalone.driver import Driver
from kiln.standalone.header import Array, in_comment, inputs_of, outputs_of
from kiln.standalone.library import Library, check_name, write
from kiln.standalone.one_module import one_module
from kiln.standalone.wasm_link import wasm_module
from kiln.tracing.captured import Captured

_verified = later("kiln.standalone.verifying", "wasm")
IN_PAGE = 64 << 20  # bytes of a module that a page can hold
STACK = 1 << 20  # bytes; a kernel of many sums down columns has up to 230 KiB there
ARRAYS = {
    "bool": "Uint8Array", "uint8": "Uint8Array", "int8": "Int8Array", "int16": "Int16Array",
    "int32": "Int32Array", "int64": "BigInt64Array", "float16": "Uint16Array", "bfloat16": "Uint16Array",
    "float32": "Float32Array", "float64": "Float64Array",
}  # fmt: skip


def wasm_of(found: Captured, name: str, relaxed: bool = False) -> Library:
    """All files of a module; `relaxed`: it needs relaxed SIMD."""
    found.expect_plan("to_wasm")
    target = RELAXED if relaxed else WASM
    check_name(name, "to_wasm")
    graph, arrays = folded(found)
    places, data = laid_out(arrays)
    driver = Driver(found, graph, places, name, target)
    text = one_module(driver.text(), driver.kernels.values(), target)
    exports = [f"{name}_{what}" for what in ("run", "workspace", "shape", "message")]
    code = wasm_module(Machine(target).object(text), {driver.data: data}, exports, STACK)
    about = description(driver)
    runner = _resource("runner.js").replace("/*ABOUT*/", json.dumps(about).replace("</", "<\\/"))
    module = runner.replace("NAME", name)
    files = {
        f"{name}.wasm": code,
        f"{name}.mjs": module.encode(),
        f"{name}.d.mts": types_of(driver).encode(),
    }
    if len(code) <= IN_PAGE:
        page = _resource("page.html").replace("NAME", name)
        page = page.replace("NEEDS", "simd128 and relaxed SIMD" if relaxed else "simd128")
        page = page.replace("/*RUNNER*/", module.replace("export ", ""))
        files[f"{name}.html"] = page.replace("/*CODE*/", base64.b64encode(code).decode()).encode()
    return Library(name, files, driver)


def to_wasm(program: Any, folder: Any, name: Any, verify: bool, relaxed: bool) -> str:
    """What `ExportedProgram.to_wasm` does."""
    made = wasm_of(program._captured, name, relaxed)
    path = write(made, folder)[0]
    if verify:
        print(f"{program._captured.name} by Node.js: {_verified(program, path, made.driver)}")
    return path


def _resource(name: str) -> str:
    return (resources("kiln.standalone") / name).read_text(encoding="utf-8")


def description(driver: Driver) -> dict[str, Any]:
    """What the module is called with, for its runner: lengths are numbers, or names of sizes."""

    def array(own: Array) -> dict[str, Any]:
        shape = [int(n) if n.isdigit() else n for n in own.shape]
        return {"name": own.name, "dtype": own.dtype, "type": ARRAYS[own.dtype], "shape": shape}

    sizes = [{"name": s.name, "least": driver.bounds[s.slot][0]} for s in driver.stated]
    sizes += [{"name": number, "least": 0} for number in driver.numbers]
    return {
        "name": driver.name,
        "inputs": list(map(array, inputs_of(driver))),
        "outputs": list(map(array, outputs_of(driver))),
        "sizes": sizes,
    }


def types_of(driver: Driver) -> str:
    """The types of the ES module."""
    inputs = "".join(
        f"  {json.dumps(a.name)}: {ARRAYS[a.dtype]}; // {in_comment(str(a))}\n" for a in inputs_of(driver)
    )
    outputs = "".join(
        f"  {json.dumps(a.name)}: {{ data: {ARRAYS[a.dtype]}; shape: number[] }}; // {in_comment(str(a))}\n"
        for a in outputs_of(driver)
    )
    names = [*(s.name for s in driver.stated), *driver.numbers]
    sizes = "".join(f"  {json.dumps(name)}?: number;\n" for name in names)
    return f"""export interface Inputs {{
{inputs}}}
export interface Outputs {{
{outputs}}}
export interface Sizes {{
{sizes}}}
export interface Program {{
  /** Computes the outputs; sizes that follow from the lengths of inputs may be left out. Throws an Error for
   * wrong inputs, with the reason. */
  run(inputs: Inputs, sizes?: Sizes): Outputs;
  /** What `run` takes and gives. */
  about: {{
    name: string;
    inputs: {{ name: string; dtype: string; type: string; shape: (number | string)[] }}[];
    outputs: {{ name: string; dtype: string; type: string; shape: (number | string)[] }}[];
    sizes: {{ name: string; least: number }}[];
  }};
}}
/** The program; `source`: its code, a response that has it, or where it is, else beside this module. */
export function load(source?: string | URL | Response | BufferSource): Promise<Program>;
"""
