"""Objects and programs that linked libraries are tested with: made, written, run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from kiln.codegen.llvm import Machine
from kiln.codegen.target import LEVELS, Target

X86, ARM = LEVELS["x86-64-v3"], LEVELS["aarch64"]
HOST = os.uname().machine
needs_x86 = pytest.mark.skipif(HOST != "x86_64", reason="runs code of x86-64")
PREFIX = {"x86_64": "", "aarch64": "aarch64-linux-gnu-"}

_machines: dict[str, Machine] = {}


def compiled(text: str, target: Target = X86) -> bytes:
    """The object of a module."""
    name = target.name
    if name not in _machines:
        _machines[name] = Machine(target)
    return _machines[name].object(text.replace("{head}", target.head()))


def written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def tool(name: str, machine: str = "x86_64") -> str:
    """A program of the machine's tools, or a skip."""
    found = shutil.which(PREFIX[machine] + name) or (shutil.which(name) if name == "readelf" else None)
    if found is None:
        pytest.skip(f"no {PREFIX[machine]}{name} here")
    return found


def run(*command: object) -> str:
    """What a program says, if it ends well and complains of nothing."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr + done.stdout
    return done.stdout


def machine_here(target: Target) -> tuple[str, list[str]]:
    """The compiler for a target and what runs its programs."""
    machine = target.triple.split("-")[0]
    compiler = tool("gcc", machine)
    if machine == HOST:
        return compiler, []
    runner = shutil.which(f"qemu-{machine}")
    if runner is None:
        pytest.skip(f"no qemu-{machine} here")
    return compiler, [runner, "-L", f"/usr/{machine}-linux-gnu"]


def in_node(folder: Path, module: bytes, script: str) -> Any:
    """What `script` returns, as JSON: a function's body that sees the exports `e` of the module and `traps`,
    which says what a call throws.
    """
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js here")
    path = written(folder, "module.wasm", module)
    program = f"""
    const traps = f => {{ try {{ f(); return null; }} catch (error) {{ return error.constructor.name; }} }};
    const bytes = require("fs").readFileSync({str(path)!r});
    WebAssembly.instantiate(bytes, {{}}).then(({{ instance: {{ exports: e }}, module }}) => {{
        const result = (() => {{ {script} }})();
        console.log(JSON.stringify(result, (_, x) => typeof x === "bigint" ? Number(x) : x));
    }});
    """
    return json.loads(run(node, "-e", program))


class Job(NamedTuple):
    """A call of a kernel: what it points to, its words, and how many units of work it does."""

    module: bytes
    arrays: Sequence[Any]
    words: Sequence[int]
    units: int


RUNNER = """
const fs = require("fs"), [folder, count] = process.argv.slice(1);
for (let n = 0; n < count; n++) {
    const { sizes, words, units } = JSON.parse(fs.readFileSync(`${folder}/${n}.json`));
    const module = new WebAssembly.Module(fs.readFileSync(`${folder}/${n}.wasm`));
    const { memory, __heap_base, kernel } = new WebAssembly.Instance(module, {}).exports;
    const data = fs.readFileSync(`${folder}/${n}.bin`);
    let at = __heap_base.value;
    const place = size => { const start = at; at = (at + size + 63) & ~63; return start; };
    const places = sizes.map(place), pointers = place(4 * sizes.length), args = place(8 * words.length);
    const pages = Math.ceil(at / 65536) - memory.buffer.byteLength / 65536;
    if (pages > 0) memory.grow(pages);
    const bytes = new Uint8Array(memory.buffer);
    let from = 0;
    places.forEach((place, k) => bytes.set(data.subarray(from, from += sizes[k]), place));
    new Uint32Array(memory.buffer, pointers, sizes.length).set(places);
    new BigInt64Array(memory.buffer, args, words.length).set(words.map(BigInt));
    kernel(pointers, args, 0n, BigInt(units));
    fs.writeFileSync(`${folder}/${n}.bin`, Buffer.concat(places.map((p, k) => bytes.slice(p, p + sizes[k]))));
}
"""


def jobs_in_node(folder: Path, jobs: Sequence[Job]) -> None:
    """Runs kernels by WebAssembly; what they write is in their arrays afterwards."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js here")
    for n, job in enumerate(jobs):
        written(folder, f"{n}.wasm", job.module)
        written(folder, f"{n}.bin", b"".join(a.tobytes() for a in job.arrays))
        call = {
            "sizes": [a.nbytes for a in job.arrays],
            "words": [str(w) for w in job.words],
            "units": job.units,
        }
        written(folder, f"{n}.json", json.dumps(call).encode())
    run(node, "-e", RUNNER, folder, len(jobs))
    for n, job in enumerate(jobs):
        data, at = (folder / f"{n}.bin").read_bytes(), 0
        for a in job.arrays:
            a[...] = np.frombuffer(data, a.dtype, a.size, at).reshape(a.shape)
            at += a.nbytes
