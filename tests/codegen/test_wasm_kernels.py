"""Kernels for WebAssembly, run in Node.js, beside what NumPy computes of the same nests.

Where other machines fuse multiplications and additions, WebAssembly has no instruction: an exact `fma` is
written in others, a loose one rounds twice. Functions made of polynomials agree within three ulp, what has no
loose one in every bit.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend import needs_kiln
from codegen_peer import Array, expected, numpy_dtype, reads, same, to_compute, to_memory, units, writes
from linking import Job, compiled, jobs_in_node, run, tool
from test_codegen_scalar import DTYPES, ONE, TWO, leaf, pairs, values

from kiln.codegen.gemm.arguments import BATCH
from kiln.codegen.gemm.kernel import gemm_parts
from kiln.codegen.gemm.spec import product
from kiln.codegen.nests.generate import nest_text
from kiln.codegen.nests.nest import Nest
from kiln.codegen.target import LEVELS, WASM, legal
from kiln.codegen.verify import verify_text
from kiln.scalars import gamma, mathematics, trigonometry
from kiln.scalars.scalar import COMPARE, FLOATS, SHIFT, WIDTH, Scalar, const, convert, round_to
from kiln.standalone.wasm_link import wasm_module


def job(nest: Nest, sizes: list[int], arrays: list[Array]) -> Job:
    """The call of a nest's kernel for all its units."""
    text = nest_text(nest, WASM)
    verify_text(text, WASM)
    strides = [s // a.itemsize for a in arrays for s in a.strides]
    return Job(
        wasm_module(compiled(text, WASM), {}, ["kernel"]), arrays, [*sizes, *strides, 0], units(nest, sizes)
    )


def compared(folder: Path, calls: Sequence[tuple[Nest, list[int], list[Array]]]) -> list[tuple[Array, Array]]:
    """What WebAssembly and NumPy write, for each output."""
    with np.errstate(all="ignore"):
        wants = [expected(*call) for call in calls]
    jobs_in_node(folder, [job(*call) for call in calls])
    return [
        (arrays[k], want.reshape(arrays[k].shape))
        for (nest, _, arrays), found in zip(calls, wants, strict=True)
        for (k, _), want in zip(nest.stores, found, strict=True)
    ]


def flat(value: Scalar, inputs: list[Array], types: list[str]) -> tuple[Nest, list[int], list[Array]]:
    """A nest of one op on vectors."""
    result = DTYPES[value.type]
    operands = (*(reads(DTYPES[t], "1") for t in types), writes(result, "1"))
    nest = Nest(("p",), operands, (), ((len(inputs), value),))
    n = len(inputs[0])
    return nest, [n], [*(np.ascontiguousarray(x) for x in inputs), np.zeros(n, numpy_dtype(result))]


@pytest.mark.parametrize("type", list(WIDTH))
def test_every_op_has_its_bits(type: str, tmp_path: Path) -> None:
    calls = []
    for op in TWO:
        if legal(op, type, WASM):
            result = "i1" if op in COMPARE else type
            calls.append(
                flat(Scalar(op, (leaf(0, type), leaf(1, type)), result), pairs(type, type), [type, type])
            )
        if op in SHIFT and legal(op, type, WASM):
            for amount in (0, 1, WIDTH[type] - 1, WIDTH[type]):
                shift = Scalar(op, (leaf(0, type), const(amount, type)), type)
                calls.append(flat(shift, [values(type)], [type]))
    x = values(type)
    for op in ONE:
        if legal(op, type, WASM):
            result = {"f32": "i32", "f64": "i64"}[type] if op == "bits" else type
            x = values(type)
            calls.append(
                flat(Scalar(op, (leaf(0, type),), result), [x[~np.isnan(x)] if op == "bits" else x], [type])
            )
    calls += [flat(convert(leaf(0, type), other), [values(type)], [type]) for other in WIDTH if other != type]
    for (nest, *_), (got, want) in zip(calls, compared(tmp_path, calls), strict=True):
        assert same(got, want), (nest.text(), got[got != want], want[got != want])


@pytest.mark.parametrize("type", sorted(FLOATS))
def test_a_fused_multiply_add_is_as_if_rounded_once(
    type: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    """With cancellation, where a second rounding loses everything, and with what is not finite."""
    dtype = np.dtype(DTYPES[type])
    x, y = (v[:400000] for v in pairs(type, type))
    a, b = (rng.normal(size=20000).astype(dtype) for _ in range(2))
    wide = (rng.normal(size=20000) * 2.0 ** rng.integers(-30, 30, 20000)).astype(dtype)
    value = Scalar("fma", (leaf(0, type), leaf(1, type), leaf(2, type)), type)
    drawn = [(a, b, wide), (a, b, -(a * b)), (a, b, np.nextafter(-(a * b), dtype.type(1))), (a, -a, a * a)]
    for got, want in compared(tmp_path, [flat(value, list(v), [type] * 3) for v in drawn]):
        assert same(got, want), (got[got != want], want[got != want])
    ends = compared(tmp_path, [flat(value, [x, y, z], [type] * 3) for z in (x, y)])
    for got, want in ends:
        if type == "f32":
            assert same(got, want), (x[got != want], y[got != want], got[got != want], want[got != want])
        else:  # rounded twice at the ends of the range
            close = np.isclose(got, want, rtol=2.0**-51, atol=2.0**-1074, equal_nan=True)
            assert np.all(close | (np.abs(want) > 2.0**1022)), (got[~close], want[~close])


def test_float16_is_converted_as_elsewhere(tmp_path: Path, rng: np.random.Generator) -> None:
    """Every half as a float, and floats of all bits as halves."""
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    bits = rng.integers(0, 2**32, 200000, dtype=np.uint32).view(np.float32)
    ties = (halves[:31743].astype(np.float32) + halves[1:31744].astype(np.float32)) / 2
    around = [np.nextafter(ties, np.float32(side)) for side in (-np.inf, np.inf)]
    floats = np.concatenate([values("f32"), bits, ties, -ties, *around])
    up = Nest(("p",), (reads("float16", "1"), writes("float32", "1")), (), ((1, leaf(0, "f32")),))
    down = Nest(("p",), (reads("float32", "1"), writes("float16", "1")), (), ((1, leaf(0, "f32")),))
    rounded = Nest(
        ("p",),
        (reads("float32", "1"), writes("float32", "1")),
        (),
        ((1, round_to(leaf(0, "f32"), "float16")),),
    )
    count = len(floats)
    calls = [
        (up, [65536], [halves, np.zeros(65536, np.float32)]),
        (down, [count], [floats, np.zeros(count, np.float16)]),
        (rounded, [count], [floats, np.zeros(count, np.float32)]),
    ]
    for (nest, _, arrays), (got, want) in zip(calls, compared(tmp_path, calls), strict=True):
        wrong = ~((got == want) & (np.signbit(got) == np.signbit(want)) | np.isnan(got) & np.isnan(want))
        assert not wrong.any(), (nest.text(), arrays[0][wrong], got[wrong], want[wrong])


@pytest.mark.parametrize("type", ["f64", "f32", "i32"])
def test_long_bodies_go_by_some_lanes_at_a_time(type: str, tmp_path: Path, rng: np.random.Generator) -> None:
    """In every bit what short ones compute, of whole vectors and of tails; masks among what they take."""
    dtype = np.dtype(DTYPES[type])
    x, y, mask = leaf(0, type), leaf(1, type), leaf(2, "i1")
    body = x
    for n in range(60):
        more = Scalar("add" if n % 3 else "sub", (body, Scalar("mul", (x, const(n, type)), type)), type)
        body = Scalar("select", (mask, more, Scalar("add", (body, y), type)), type)
    inputs = [(rng.integers(-99, 99, 70) / 4).astype(dtype) for _ in range(2)]
    call = flat(body, [*inputs, rng.integers(0, 2, 70).astype(np.bool_)], [type, type, "i1"])
    text, lanes = nest_text(call[0], WASM), 128 // WIDTH[type]
    kind = {"f64": "double", "f32": "float", "i32": "i32"}[type]
    assert f"sub <{lanes} x {kind}>" in text and f"sub <16 x {kind}>" not in text
    ((got, want),) = compared(tmp_path, [call])
    assert same(got, want)


FUNCTIONS: list[tuple[str, Callable[[Scalar], Scalar], tuple[float, float]]] = [
    ("exp", mathematics.exp, (-87, 88)),
    ("expm1", mathematics.expm1, (-2, 2)),
    ("log", mathematics.log, (1e-6, 50)),
    ("log1p", mathematics.log1p, (-0.9, 3)),
    ("tanh", mathematics.tanh, (-4, 4)),
    ("erf", mathematics.erf, (-3, 3)),
    ("sin", trigonometry.sin, (-1e5, 1e5)),
    ("cos", trigonometry.cos, (-10, 10)),
    ("tan", trigonometry.tan, (-10, 10)),
    ("lgamma", lambda x: convert(gamma.lgamma(convert(x, "f64")), x.type), (3, 30)),
]


@pytest.mark.parametrize("type", sorted(FLOATS))
def test_functions_agree_within_three_ulp(type: str, tmp_path: Path, rng: np.random.Generator) -> None:
    calls = []
    for _, function, (low, high) in FUNCTIONS:
        x = rng.uniform(low, high, 4000).astype(DTYPES[type])
        calls.append(flat(function(leaf(0, type)), [x], [type]))
    for (name, *_), (nest, _, (x, _)), (got, want) in zip(
        FUNCTIONS, calls, compared(tmp_path, calls), strict=True
    ):
        off = np.abs(got - want) / np.spacing(np.abs(want))
        assert off.max() <= 3, (name, nest.dims, off.max(), x[off.argmax()])


def test_reductions_have_the_order_of_every_machine(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.normal(size=(37, 301)).astype(np.float32)
    calls = []
    for op in ("sum", "max", "prod"):
        reduced = Scalar(op, (leaf(0, "f32"),), "f32")
        for roles, sizes, array in ((("p", "r"), [37, 301], x), (("p", "r"), [301, 37], x.T)):
            classes = "s1" if array is x else "1s"
            out = np.zeros(sizes[0], np.float32)
            column = np.lib.stride_tricks.as_strided(out, (sizes[0], 1), (4, 0))
            nest = Nest(roles, (reads("float32", classes), writes("float32", "10")), (), ((1, reduced),))
            calls.append((nest, sizes, [array, column]))
    with np.errstate(all="ignore"):
        wants = [expected(*call) for call in calls]
    jobs = []
    for nest, sizes, (array, column) in calls:
        made = job(nest, sizes, [array, column])
        base = x if array is x or array.base is x else array
        jobs.append(made._replace(arrays=[base, np.zeros(sizes[0], np.float32)]))
    jobs_in_node(tmp_path, jobs)
    for (nest, *_), done, (want,) in zip(calls, jobs, wants, strict=True):
        assert same(done.arrays[1], want.reshape(-1)), nest.text()


def joined(texts: Sequence[str]) -> str:
    """The modules of a kernel's parts as one."""
    lines = list(itertools.chain.from_iterable(text.splitlines() for text in texts))
    defined = {line.split("@")[1].split("(")[0] for line in lines if line.startswith("define ")}
    once = ("declare ", "target ", "attributes ", "!")
    kept: dict[str, None] = {}
    for n, line in enumerate(lines):
        if line.startswith("declare ") and line.split("@")[1].split("(")[0] in defined:
            continue
        kept[line if line.startswith(once) else f"{line}\0{n}"] = None
    return "\n".join(line.split("\0")[0] for line in kept)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "float16", "bfloat16"])
def test_products(dtype: str, tmp_path: Path, rng: np.random.Generator) -> None:
    """A product beside that of float64, with as many roundings as there are terms."""
    spec = product(dtype)
    module = wasm_module(
        compiled(joined([part.text() for part in gemm_parts(spec, WASM)]), WASM), {}, ["kernel"]
    )
    jobs, wants = [], []
    for m, k, n in ((1, 5, 3), (7, 33, 70), (40, 600, 45), (33, 16, 100)):
        shapes = ((1, m, k), (1, k, n), (1, m, n))
        drawn = [rng.normal(size=s) if dtype != "int32" else rng.integers(-99, 99, s) for s in shapes]
        wide = [to_memory(v.astype(np.float32), dtype) if "16" in dtype else v.astype(dtype) for v in drawn]
        a, b, out = wide
        exact = (to_compute(v, dtype).astype(np.float64) for v in (a, b))
        wants.append(np.matmul(*exact))
        missing = (0,) * (BATCH - 1)
        strides = [s // x.itemsize for x in wide for s in (*missing, *x.strides)]
        words = [*(1 for _ in missing), 1, m, n, k, m, 0, *strides, 0, 0]
        rest = [np.zeros(max(spec.part(1, m, n), 1), np.int64), np.zeros(spec.scratch, np.int64)]
        jobs.append(Job(module, [a, b, out, *rest], words, spec.units(1, m, n)))
    jobs_in_node(tmp_path, jobs)
    for done, want in zip(jobs, wants, strict=True):
        got = to_compute(done.arrays[2], dtype)
        most: Any = {"float32": 1e-5, "float64": 1e-13, "int32": 0, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
        assert np.allclose(got, want, rtol=most, atol=most * 10), (want.shape, np.abs(got - want).max())


def test_a_fused_multiply_add_is_refused_in_text() -> None:
    """LLVM would call a library for it; other levels have the instruction."""
    text = "declare <4 x float> @llvm.fma.v4f32(<4 x float>, <4 x float>, <4 x float>)"
    with pytest.raises(ValueError, match=r"llvm.fma.v4f32 is not an intrinsic that wasm32 allows"):
        verify_text(text, WASM)
    for level in LEVELS.values():
        verify_text(text, level)


FAMILIES = """
import os, sys, tempfile
folder = tempfile.TemporaryDirectory()
os.environ.update(KILN_CACHE_DIR=folder.name, KILN_PACK="0")
import kiln
from kiln import nn
from kiln.codegen.target import WASM
from kiln.codegen.verify import verify_text
from kiln.standalone.wasm_link import wasm_module
from kiln.testing.kernel_texts import Noted
from linking import compiled
from test_wasm_kernels import joined

noted = Noted()
noted.watch()
x = kiln.ones(5, 70)
kiln.softmax(x, 1), x.cumsum(0), kiln.sort(x), kiln.searchsorted(x, x), x.nonzero()
nn.Linear(70, 30)(x), nn.LSTM(32, 64)(kiln.ones(20, 4, 32)), nn.MaxPool2d(2)(kiln.ones(1, 3, 8, 8))
q = kiln.ones(1, 2, 40, 32)
nn.functional.scaled_dot_product_attention(q, q, q)
for n, kernel in enumerate(noted.kernels.values()):
    text = joined([part.text() for part in kernel.parts(WASM)])
    verify_text(text, WASM)
    with open(f"{sys.argv[1]}/{n}.wasm", "wb") as file:
        file.write(wasm_module(compiled(text, WASM), {}, ["kernel"]))
print(*sorted({type(kernel).__name__ for kernel in noted.kernels.values()}), len(noted.kernels))
"""
INSTANTIATED = """
const fs = require("fs"), [folder, count] = process.argv.slice(1);
for (let n = 0; n < count; n++)
    new WebAssembly.Instance(new WebAssembly.Module(fs.readFileSync(`${folder}/${n}.wasm`)), {});
"""


@needs_kiln
def test_kernels_of_every_family_need_nothing(tmp_path: Path) -> None:
    """No function of a library, no instruction that an engine refuses."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", FAMILIES, tmp_path], capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    *families, count = done.stdout.split()
    assert families == ["AlongKernel", "AttentionKernel", "GemmKernel", "NestKernel", "RecurrenceKernel"]
    run(tool("node"), "-e", INSTANTIATED, tmp_path, count)
