"""Programs as WebAssembly modules, run by Node.js and in a browser, where these are installed: results within
rounding of the program, the same on every engine.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest
from native_libraries import leaves_of
from sample_calls import given, tensors

import kiln
from kiln import nn
from kiln.export import Dim, export
from kiln.nn import functional as F
from kiln.standalone.constants import memory_of
from kiln.standalone.wasm import wasm_of
from kiln.testing import mode_cases
from kiln.tracing.recorder import TracingError
from kiln.tracing.trees import flatten

FULL = bool(os.environ.get("KILN_TEST_FULL"))
RECORDS = sorted(
    (entry.record for entry in mode_cases.table().values() if entry.record.samples is not None),
    key=lambda record: str(record.name),
)
NODE = which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="Node.js is not installed")

# Runs of programs: inputs from files, outputs into files.
RUNS = """
import { readFileSync, writeFileSync } from "node:fs";
const jobs = JSON.parse(readFileSync("jobs.json", "utf8"));
const said = [];
for (const [k, { module, files, sizes }] of jobs.entries()) {
  const { load } = await import(`./${module}.mjs`);
  const program = await load();
  const inputs = {};
  for (const [j, own] of program.about.inputs.entries()) {
    inputs[own.name] = new globalThis[own.type](Uint8Array.from(readFileSync(files[j])).buffer);
  }
  try {
    const outputs = Object.values(program.run(inputs, sizes));
    outputs.forEach(({ data }, j) => writeFileSync(`out${k}_${j}`, new Uint8Array(data.buffer)));
    said.push(outputs.map(({ shape }) => shape));
  } catch (error) {
    said.push(error.message);
  }
}
console.log(JSON.stringify(said));
"""


class Job:
    """A run of a program: arrays, and sizes that are stated."""

    def __init__(self, program: Any, args: Sequence[Any], sizes: dict[str, int] | None = None) -> None:
        self.program, self.leaves, self.sizes = program, leaves_of(program, args), sizes or {}
        found = program._captured
        states = sorted(which for kind, which in found.mutated if kind == "state")
        self.arrays = [
            memory_of(x.detach()) for x in (*self.leaves, *(found.state[k].tensor for k in states))
        ]


def in_node(jobs: Sequence[Job], folder: Path) -> list[Any]:
    """What each of them gives: arrays, or what the error says."""
    listed: list[Any] = []
    made: dict[int, Any] = {}
    for k, job in enumerate(jobs):
        own = made.get(id(job.program))
        if own is None:
            own = made[id(job.program)] = wasm_of(job.program._captured, f"m{k}")
            for name, content in own.files.items():
                (folder / name).write_bytes(content)
        files = []
        for j, array in enumerate(job.arrays):
            (folder / f"in{k}_{j}").write_bytes(array.tobytes())
            files.append(f"in{k}_{j}")
        listed.append({"module": own.name, "files": files, "sizes": job.sizes})
    (folder / "jobs.json").write_text(json.dumps(listed))
    (folder / "runs.mjs").write_text(RUNS)
    assert NODE is not None
    done = subprocess.run(
        [NODE, "runs.mjs"], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results: list[Any] = []
    for k, (job, said) in enumerate(zip(jobs, json.loads(done.stdout), strict=True)):
        if isinstance(said, str):
            results.append(said)
            continue
        driver = made[id(job.program)].driver
        dtypes = [v.dtype for v in driver.graph.outputs[: driver.results]]
        results.append(
            [
                np.frombuffer((folder / f"out{k}_{j}").read_bytes(), _memory(t)).reshape(shape)
                for j, (t, shape) in enumerate(zip(dtypes, said, strict=True))
            ]
        )
    return results


def _memory(dtype: str) -> Any:
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def assert_close(program: Any, args: Sequence[Any], came: Any, close: float = 2e-5) -> None:
    """Within rounding; what is no float has its bits."""
    assert isinstance(came, list), came
    results: list[Any] = []
    with kiln.no_grad():
        flatten(program(*args), results)
    for x, y in zip(results, came):
        expected = memory_of(x.detach())
        assert expected.shape == y.shape and expected.dtype == y.dtype
        if expected.dtype.kind == "f":
            scale = close if expected.dtype.itemsize > 2 else 2e-3
            np.testing.assert_allclose(y, expected, rtol=scale, atol=scale / 10, equal_nan=True)
        else:
            assert np.array_equal(expected, y)


@needs_node
@pytest.mark.parametrize("record", RECORDS if FULL else RECORDS[4::16], ids=lambda record: str(record.name))
def test_ops(record: Any, tmp_path: Path) -> None:
    """Samples of an op as programs of one node."""
    function = getattr(record, "handle", None) or record.function
    dtype = "int64" if record.dtypes == "integral" else "float32"
    jobs, calls = [], []
    for sample in record.samples(np.random.default_rng(3), dtype)[: None if FULL else 2]:
        args, kwargs = tuple(map(given, sample.args)), {k: given(v) for k, v in sample.kwargs.items()}
        places = [k for k, x in enumerate(args) if isinstance(x, kiln.Tensor)]
        if not places or tensors(list(kwargs.values())):
            continue

        def called(*own: Any, args: Any = args, kwargs: Any = kwargs, places: Any = places) -> Any:
            instead = dict(zip(places, own))
            return function(*[instead.get(k, x) for k, x in enumerate(args)], **kwargs)

        own = tuple(args[k] for k in places)
        try:
            program = export(called, own)
            program(*own)
        except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError, TracingError):
            continue  # not of this dtype, or goes by values
        if program._captured.by_steps:
            with pytest.raises(NotImplementedError, match="which NumPy and SciPy compute"):
                wasm_of(program._captured, "m")
        elif not program._captured.random:
            jobs.append(Job(program, own))
            calls.append((program, own))
    for (program, own), came in zip(calls, in_node(jobs, tmp_path) if jobs else [], strict=True):
        assert_close(program, own, came)


def mlp() -> Any:
    return nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))


@needs_node
def test_models(tmp_path: Path) -> None:
    """Sizes follow from the lengths of inputs, at 1 and 0 too."""
    convolutions = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(8 * 49, 10),
    ).eval()  # fmt: skip
    batch = ({0: Dim("batch")},)
    cases = [
        (export(mlp(), (kiln.ones(3, 128),), dynamic_shapes=batch),
         [kiln.randn(n, 128) for n in (3, 1, 32, 0)]),
        (export(convolutions, (kiln.ones(3, 1, 14, 14),), dynamic_shapes=batch),
         [kiln.randn(n, 1, 14, 14) for n in (2, 1)]),
        (export(nn.LSTM(4, 3, batch_first=True), (kiln.ones(2, 5, 4),)), [kiln.randn(2, 5, 4)]),
        (export(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), (kiln.ones(2, 5, 8),)),
         [kiln.randn(2, 5, 8)]),
    ]  # fmt: skip
    jobs = [Job(program, (x,)) for program, inputs in cases for x in inputs]
    for job, came in zip(jobs, in_node(jobs, tmp_path), strict=True):
        assert_close(job.program, job.leaves, came)


@needs_node
def test_control_flow_and_narrow_dtypes(tmp_path: Path) -> None:
    """Branches and loops on values; float16 and bfloat16, which WebAssembly has no instructions for."""

    @kiln.jit.script
    def scripted(x: Any, n: Any) -> Any:
        total, k = x * 0, kiln.zeros((), dtype=kiln.int64)
        while k < n:
            k = k + 1
            if (x.sum() + k) % 2 > 1:
                continue
            total = total + x * k
        return total.sin(), k

    loop = export(scripted, (kiln.ones(3), kiln.tensor(3)))
    jobs = [Job(loop, (kiln.arange(3.0) * 0.5, kiln.tensor(n))) for n in (0, 1, 5)]
    for dtype in (kiln.float16, kiln.bfloat16):
        x = kiln.randn(5, 7).to(dtype)
        jobs.append(Job(export(lambda x: (x @ x.T, x.softmax(1), x * 3, x.float()), (x,)), (x,)))
    for job, came in zip(jobs, in_node(jobs, tmp_path), strict=True):
        assert_close(job.program, job.leaves, came)


@needs_node
def test_what_a_run_refuses(tmp_path: Path) -> None:
    """Sizes outside of the declared ones, wrong lengths, positions out of range."""
    table = kiln.randn(6, 2)
    lookup = export(lambda p: F.embedding(p, table), (kiln.tensor([1, 5]),))
    some = export(lambda x: x * 2, (kiln.ones(4, 3),), dynamic_shapes=({0: Dim("n", min=2, max=8)},))
    jobs = [
        Job(lookup, (kiln.tensor([1, 5]),)), Job(lookup, (kiln.tensor([1, 6]),)),
        Job(some, (kiln.ones(8, 3),)), Job(some, (kiln.ones(9, 3),)),
        Job(some, (kiln.ones(4, 3),), {"n": 3}), Job(some, (kiln.ones(4, 3),), {"m": 3}),
    ]  # fmt: skip
    first, outside, right, large, short, unknown = in_node(jobs, tmp_path)
    assert isinstance(first, list) and isinstance(right, list)
    assert "whose size is 6" in outside and large == "n must be from 2 to 8"
    assert short == "x: expected 9 elements (n x 3), got 12" and unknown == "m: there is no such size"


def test_a_page_runs_it(tmp_path: Path) -> None:
    """From the file system, in a browser without a window."""
    browser = which("chromium") or which("chromium-browser") or which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is installed")
    export(mlp(), (kiln.ones(3, 128),), dynamic_shapes=({0: Dim("batch")},)).to_wasm(tmp_path, name="m")
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         f"--user-data-dir={tmp_path / 'user'}", "--virtual-time-budget=5000", "--dump-dom",
         f"file://{tmp_path / 'm.html'}#run"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "output [2, 10]" in done.stdout and 'class="wrong"' not in done.stdout, done.stdout[-2000:]


def test_wrong_names_and_the_same_files() -> None:
    """An identifier; byte for byte."""
    program = export(mlp(), (kiln.ones(3, 128),))
    with pytest.raises(ValueError, match="identifier of C"):
        program.to_wasm("nowhere", name="a b")
    assert wasm_of(program._captured, "m").files == wasm_of(program._captured, "m").files


@needs_node
def test_verified_modules_are_within_bounds(tmp_path: Path, capsys: Any) -> None:
    """At the corners of the declared sizes."""
    program = export(mlp(), (kiln.ones(3, 128),), dynamic_shapes=({0: Dim("n", max=40)},))
    program.to_wasm(tmp_path, verify=True)
    told = capsys.readouterr().out
    assert "by Node.js: " in told and "within the bounds" in told


def test_a_module_holds_only_what_its_launches_need() -> None:
    """As a native library does."""
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
    program = export(model, (kiln.randn(32, 128),), dynamic_shapes=({0: Dim("batch")},))
    weights = sum(p.numel() * 4 for p in model.parameters())
    assert len(wasm_of(program._captured, "m").files["m.wasm"]) - weights < 20_000


@needs_node
def test_relaxed_modules_are_within_bounds(tmp_path: Path, capsys: Any) -> None:
    """Products use other instructions, of which nothing is in a module that is not relaxed."""
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10, bias=False), nn.Softmax(1))
    program = export(model, (kiln.ones(3, 64),), dynamic_shapes=({0: Dim("n", max=40)},))
    madd = b"\xfd\x85\x02"  # f32x4.relaxed_madd
    assert wasm_of(program._captured, "m", relaxed=True).files["m.wasm"].count(madd) > 20
    assert madd not in wasm_of(program._captured, "m").files["m.wasm"]
    assert NODE is not None
    version = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version[1:].split(".")[0]) < 20:
        pytest.skip("this Node.js has no relaxed SIMD")
    program.to_wasm(tmp_path, verify=True, relaxed=True)
    assert "within the bounds" in capsys.readouterr().out
    assert "relaxed SIMD" in (tmp_path / "model.html").read_text()
