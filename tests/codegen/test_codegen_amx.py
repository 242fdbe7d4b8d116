"""Products of bfloat16 and of 8-bit integers on AMX: the promised order, or what NumPy has of integers; all
shapes and layouts, nothing read past the end.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matmul_peer import Guarded, draw, multiply, run
from test_codegen_matmul import LAYOUTS, bias_relu, widened
from test_codegen_windows import Look, seen
from test_codegen_windows import run as run_window

import kiln
from kiln.codegen import target as levels
from kiln.codegen.gemm.kernel import gemm_parts
from kiln.codegen.gemm.spec import GemmSpec, product
from kiln.codegen.nests.nest import Operand
from kiln.codegen.target import LEVELS, host_target, intrinsic_allowed
from kiln.scalars.scalar import Scalar
from kiln.testing.random_programs import compiler_warnings

Array = np.ndarray[Any, Any]
AMX = LEVELS["x86-64-v4-amx"]
needs_amx = pytest.mark.skipif(
    not host_target().includes(AMX), reason="this machine has no AMX, or may not use it"
)
DTYPES = ["bfloat16", "int8", "uint8"]
SHAPES = [
    (1, 1, 1), (1, 64, 33), (16, 16, 32), (17, 15, 31), (32, 32, 64), (33, 31, 65), (47, 96, 255),
    (48, 33, 256), (64, 128, 257), (65, 130, 600), (100, 1, 40), (2, 200, 1030),
]  # fmt: skip


def flushed(x: Array) -> Array:
    """Denormals of float32 as zeros."""
    return np.where(np.abs(x) < np.float32(2.0**-126), np.float32(0), x)


def fused(x: Array, y: Array, z: Array) -> Array:
    """x * y + z of float32 arrays rounded once: the product of two bfloat16 is exact in float64, the sum is
    rounded to odd there.
    """
    p, c = x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64)
    total = p + c
    back = total - p
    error = (p - (total - back)) + (c - back)
    away = np.where(error > 0, np.inf, -np.inf)
    odd = np.where((error != 0) & ((total.view(np.int64) & 1) == 0), np.nextafter(total, away), total)
    return flushed(odd.astype(np.float32))


def ordered(a: Array, b: Array) -> Array:
    """The float32 sums of a product of matrices of bfloat16 (as bits), in the promised order."""
    x, y = (flushed(widened(v, "bfloat16").astype(np.float32)) for v in (a, b))
    steps = -(-x.shape[1] // 32)
    x = np.pad(x, ((0, 0), (0, steps * 32 - x.shape[1])))
    y = np.pad(y, ((0, steps * 32 - y.shape[0]), (0, 0)))
    total = np.zeros((x.shape[0], y.shape[1]), np.float32)
    for start in range(0, steps * 32, 32):
        halves = []
        for odd in (0, 1):
            chain = np.zeros_like(total)
            for k in range(start + odd, start + 32, 2):
                chain = fused(x[:, k : k + 1], y[k : k + 1, :], chain)
            halves.append(chain)
        total = flushed(total + flushed(halves[0] + halves[1]))
    return total


def expected_of(a: Array, b: Array, dtype: str) -> Array:
    """The promised product of stacked matrices."""
    if dtype == "bfloat16":
        return np.stack([rounded(ordered(x, y)) for x, y in zip(a, b)])
    return (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32).astype(a.dtype)


def sums_of(dtype: str) -> GemmSpec:
    """A product of integers that stores its sums."""
    out = Operand("int32", "out", ("s", "1"))
    return GemmSpec(dtype, (out,), (), ((1, Scalar("load", (), "i32", 0)),))


def rounded(x: Array) -> Array:
    """float32 as the bits of bfloat16, to nearest even."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


@needs_amx
@pytest.mark.parametrize("k", [1, 2, 31, 32, 33, 100, 256, 257, 700])
def test_the_order(k: int, rng: np.random.Generator) -> None:
    a, b = draw(rng, "bfloat16", 1, 35, k), draw(rng, "bfloat16", 1, k, 50)
    assert np.array_equal(multiply(a, b, "bfloat16", AMX)[0], rounded(ordered(a[0], b[0])))


@needs_amx
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_sums_of_integers(dtype: str, rng: np.random.Generator) -> None:
    """Every sum has 32 bits; k that end in any part of a word, a step or a panel; extreme values."""
    for m, n, k in [(17, 33, 1), (35, 50, 63), (20, 40, 64), (33, 31, 67), (9, 70, 2050), (40, 33, 5000)]:
        a, b = draw(rng, dtype, 1, m, k), draw(rng, dtype, 1, k, n)
        a[:, 3], b[:, :, 5] = np.iinfo(dtype).min, np.iinfo(dtype).min
        a[:, 4], b[:, :, 6] = np.iinfo(dtype).max, np.iinfo(dtype).max
        for x, y in itertools.product((a, LAYOUTS["col"](a)), (b, LAYOUTS["col"](b))):
            out = np.empty((1, m, n), np.int32)
            run(sums_of(dtype), x, y, [out], target=AMX)
            assert np.array_equal(out, a.astype(np.int64) @ b.astype(np.int64)), (m, n, k)


@needs_amx
@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts_rows_and_cuts(dtype: str, rng: np.random.Generator) -> None:
    """One product's bits, whatever lies how, whoever computes what, and whatever else is computed."""
    for m, n, k in SHAPES:
        a, b = draw(rng, dtype, 2, m, k), draw(rng, dtype, 2, k, n)
        expected = expected_of(a, b, dtype)
        for la, lb in itertools.product(LAYOUTS.values(), LAYOUTS.values()):
            assert np.array_equal(multiply(la(a), lb(b), dtype, AMX), expected), (m, n, k)
        units = product(dtype).units(2, m, n)
        for cuts in (range(1, units), [units // 2] if units > 1 else []):
            assert np.array_equal(multiply(a, b, dtype, AMX, cuts), expected)
        row = product(dtype)._replace(row=True)
        out = np.empty((2, 1, n), expected.dtype)
        run(row, a[:, -1:], b, [out], target=AMX)
        assert np.array_equal(out, expected[:, -1:])


@needs_amx
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_far_apart_and_in_several_groups(dtype: str, rng: np.random.Generator) -> None:
    """Rows of A in few cache sets are copied; a deep product has groups of fewer rows."""
    wide = np.zeros((1, 70, 32768), draw(rng, dtype, 1).dtype)
    wide[:, :, :300] = draw(rng, dtype, 1, 70, 300)
    b = draw(rng, dtype, 1, 300, 40)
    got = multiply(wide[:, :, :300], b, dtype, AMX)
    assert np.array_equal(got, expected_of(wide[:, :, :300], b, dtype))
    for m, n, k in [(410, 20, 40), (230, 10, 6000)]:
        a, b = draw(rng, dtype, 1, m, k), draw(rng, dtype, 1, k, n)
        whole = multiply(a, b, dtype, AMX)
        assert np.array_equal(whole[:, ::37], expected_of(a[:, ::37], b, dtype))
        assert np.array_equal(multiply(a[:, 5:60], b, dtype, AMX), whole[:, 5:60])


@needs_amx
@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_outside_the_arrays(dtype: str, rng: np.random.Generator) -> None:
    guarded = Guarded()
    for m, n, k in SHAPES:
        a, b = draw(rng, dtype, 1, m, k), draw(rng, dtype, 1, k, n)
        expected = multiply(a, b, dtype, AMX)
        for at_end, turn_a, turn_b in itertools.product((True, False), (True, False), (True, False)):
            x = guarded.place(a.swapaxes(1, 2) if turn_a else a, at_end)
            y = guarded.place(b.swapaxes(1, 2) if turn_b else b, at_end)
            out = guarded.place(np.zeros_like(expected), at_end)
            x, y = x.swapaxes(1, 2) if turn_a else x, y.swapaxes(1, 2) if turn_b else y
            run(product(dtype), x, y, [out], target=AMX)
            assert np.array_equal(out, expected), (m, n, k)


@needs_amx
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("channels", "taps", "step"), [(20, 5, 1), (30, 3, 2), (3, 90, 1), (100, 3, 1)])
def test_windows(channels: int, taps: int, step: int, dtype: str, rng: np.random.Generator) -> None:
    """The product over a window has the bits of the product with the matrix it stands for; nothing but the
    source is read.
    """
    m, n = 35, 77
    size = (n - 1) * step + taps
    look = Look(channels * size, ((channels, size), (taps, 1)), ((n, step),))
    a, src = draw(rng, dtype, m, channels * taps), draw(rng, dtype, look.size)
    out, guarded = np.empty((1, m, n), src.dtype), Guarded()
    for at_end in (True, False):
        run_window(a, guarded.place(src, at_end), look, 1, 0, out, dtype, AMX)
        assert np.array_equal(out, multiply(a[None], seen(src, look, 1, 0), dtype, AMX))


@needs_amx
def test_an_epilogue_sees_the_sums(rng: np.random.Generator) -> None:
    """Scale, bias and relu on sums that were not rounded."""
    for m, n, k in [(33, 70, 45), (5, 19, 1100), (1, 40, 64)]:
        a, b = draw(rng, "bfloat16", 1, m, k), draw(rng, "bfloat16", 1, k, n)
        bias = np.broadcast_to(draw(rng, "bfloat16", 1, 1, n), (1, m, n))
        pre, out = np.empty((1, m, n), np.uint16), np.empty((1, m, n), np.uint16)
        spec = bias_relu(("0", "1"), "bfloat16")
        run(spec._replace(row=m == 1), a, b, [pre, out, bias], [0.75], AMX)
        sums = ordered(a[0], b[0]) * np.float32(0.75) + widened(bias[0], "bfloat16").astype(np.float32)
        assert np.array_equal(pre[0], rounded(sums))
        assert np.array_equal(out[0], rounded(np.where(sums < 0, np.float32(0), sums)))


@needs_amx
def test_special_values() -> None:
    """Infinities and NaN stay in their rows and columns; denormals count as zero."""
    a = np.zeros((1, 20, 5), np.uint16)
    b = np.full((1, 5, 40), 0x3F80, np.uint16)
    a[0, 3, 4], a[0, 5, 0], a[0, 7, 1], a[0, 9, 2] = 0x7F80, 0x7FC0, 0x0001, 0x3F80
    got = widened(multiply(a, b, "bfloat16", AMX)[0], "bfloat16")
    assert np.isposinf(got[3]).all() and np.isnan(got[5]).all() and (got[9] == 1).all()
    assert not np.delete(got, [3, 5, 9], axis=0).any()
    empty = multiply(np.zeros((2, 17, 0), np.uint16), np.zeros((2, 0, 33), np.uint16), "bfloat16", AMX)
    assert not empty.any()


@needs_amx
def test_threads_and_recording(rng: np.random.Generator) -> None:
    """The same bits by one thread or two, op by op or recorded, alone or with a bias and an activation."""
    x, w = (
        kiln.tensor(rng.normal(size=s).astype(np.float32)).to(kiln.bfloat16) for s in ((300, 333), (250, 333))
    )
    bias = kiln.tensor(rng.normal(size=250).astype(np.float32)).to(kiln.bfloat16)

    def step(x: Any, w: Any, bias: Any) -> Any:
        plain = x @ w.t()
        return plain, kiln.relu(plain) * 2, kiln.nn.functional.linear(x, w, bias), x.float() @ w.t().float()

    def bits(found: Any) -> list[Any]:
        return [y.float().numpy().tobytes() for y in found]

    before = kiln.get_num_threads()
    try:
        expected = bits(step(x, w, bias))
        for threads in (1, 2):
            kiln.set_num_threads(threads)
            assert bits(step(x, w, bias)) == expected
            recorded = kiln.compile(step)
            for _ in range(4):
                assert bits(recorded(x, w, bias)) == expected
            recorded.wait()
            assert bits(recorded(x, w, bias)) == expected
    finally:
        kiln.set_num_threads(before)
    a, b = (y.float().numpy().astype(np.float64) for y in (x, w))
    exact, bound = a @ b.T, np.abs(a) @ np.abs(b).T
    assert np.all(
        np.abs(step(x, w, bias)[0].float().numpy() - exact) <= 2.0**-8 * np.abs(exact) + 1e-5 * bound
    )


@pytest.mark.parametrize("dtype", [kiln.int8, kiln.uint8])
def test_a_quantised_layer(dtype: Any, rng: np.random.Generator) -> None:
    """Sums of 8-bit factors, scaled and biased: the same numbers however it is said, by one thread or two,
    op by op or recorded.
    """
    x, w = (rng.integers(-128, 128, s).astype(np.int8) for s in ((130, 300), (200, 300)))
    scale, bias = (kiln.tensor(rng.normal(size=200).astype(np.float32)) for _ in range(2))
    first, w = kiln.tensor(x).to(dtype), kiln.tensor(w)

    def direct(x: Any) -> Any:
        return kiln._int_mm(x, w.t()).float() * scale + bias

    def converted(x: Any) -> Any:
        return (x.int() @ w.t().int()).float() * scale + bias

    sums = first.numpy().astype(np.int64) @ w.numpy().astype(np.int64).T
    expected = sums.astype(np.float32) * scale.numpy() + bias.numpy()
    before = kiln.get_num_threads()
    try:
        for threads, layer in itertools.product((1, 2), (direct, converted)):
            kiln.set_num_threads(threads)
            recorded = kiln.compile(layer)
            for call in (layer, recorded, recorded, recorded.wait() or recorded):
                assert np.array_equal(call(first).numpy(), expected)
    finally:
        kiln.set_num_threads(before)


@needs_amx
def test_gradients(rng: np.random.Generator) -> None:
    """Both gradients are products of bfloat16 as well; recorded or not, the same."""
    x, w, g = (rng.normal(size=s).astype(np.float32) for s in ((70, 100), (100, 90), (70, 90)))
    low = [kiln.tensor(v).to(kiln.bfloat16) for v in (x, w, g)]

    def step(x: Any, w: Any, g: Any) -> Any:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        return kiln.autograd.grad((x @ w * g).sum(), (x, w))

    recorded = kiln.compile(step)
    found = [[y.float().numpy() for y in f(*low)] for f in (step, recorded, recorded, recorded)]
    a, b, c = (v.float().numpy().astype(np.float64) for v in low)
    for dx, dw in found:
        assert np.array_equal(dx, found[0][0]) and np.array_equal(dw, found[0][1])
    for got, exact, bound in ((dx, c @ b.T, np.abs(c) @ np.abs(b).T), (dw, a.T @ c, np.abs(a).T @ np.abs(c))):
        assert np.all(np.abs(got - exact) <= 2.0**-8 * np.abs(exact) + 1e-5 * bound)


def test_who_gets_tiles() -> None:
    """Products of three dtypes at one level; no other kernel or level may name the instructions."""
    for level in LEVELS.values():
        for dtype in DTYPES:
            assert product(dtype).tiled(level) == (level is AMX)
            row = product(dtype)._replace(row=True)
            assert row.tiled(level) == (level is AMX and dtype == "bfloat16")
        assert not product("float16").tiled(level)
        assert intrinsic_allowed("llvm.x86.tdpbf16ps", level) == (level is AMX)
        assert all("tdpbf16ps" not in part.text() for part in gemm_parts(product("float32"), level))
    assert AMX.includes(LEVELS["x86-64-v3"]) and not LEVELS["x86-64-v4"].includes(AMX)


@pytest.mark.op_by_op
def test_a_refusal_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system says no, the level is the one below, and the log has a line."""
    have = frozenset((*levels.V4, *levels.AMX))
    monkeypatch.setattr(levels._core, "ask_for_tiles", lambda: False)
    with compiler_warnings() as said:
        assert levels._x86_level(have, "").name == "x86-64-v4"
    assert "AMX" in said[0] and "float32" in said[0]
    with compiler_warnings() as said:
        for taken in ("-amx-bf16", "-amx-int8", "-amx-tile", "-amx*"):
            assert levels._x86_level(have, taken).name == "x86-64-v4"
    assert not said
    monkeypatch.setattr(levels._core, "ask_for_tiles", lambda: True)
    assert levels._x86_level(have, "") is AMX
    assert levels._x86_level(have - {"amx-bf16"}, "").name == "x86-64-v4"


PROGRAM = """
import numpy as np, kiln
from kiln.codegen.target import host_target
x, w = (np.random.default_rng(k).normal(size=(40, 40)).astype("f4") for k in (1, 2))
x, w = kiln.tensor(x).to(kiln.bfloat16), kiln.tensor(w).to(kiln.bfloat16)
print(host_target().name, (x @ w).float().numpy().tobytes().hex()[:64], float((x @ w).float().sum()))
"""


@needs_amx
def test_without_it_by_the_environment(tmp_path: Path) -> None:
    """One cache serves processes with and without AMX, each its own kernels; the values are as near."""
    found = {}
    for asked in ("", "-amx-bf16", "", "x86-64-v4"):
        env = {
            **os.environ,
            "KILN_TARGET_FEATURES": asked,
            "KILN_CACHE_DIR": str(tmp_path),
            "PYTHONPATH": str(Path(kiln.__file__).parents[1]),
        }
        done = subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM], env=env, capture_output=True, text=True, check=True
        )
        name, bits, total = done.stdout.split()
        assert name == ("x86-64-v4" if asked else "x86-64-v4-amx")
        assert found.setdefault(name, bits) == bits
        assert float(total) == pytest.approx(found.setdefault("total", float(total)), abs=2.0)
