"""The matmul generator: values, the promised order of arithmetic, every layout, nothing read past the end."""

from __future__ import annotations

import ctypes
import itertools
import re
from fractions import Fraction

import numpy as np
import pytest
from codegen_peer import numpy_dtype
from matmul_peer import DTYPES, HOST, TARGETS, Array, Guarded, draw, kernel, multiply, run, scratch_of

from kiln.codegen.blocking import FmaBlocking
from kiln.codegen.compile import compile_parts, object_for
from kiln.codegen.gemm.driver import GemmDriver
from kiln.codegen.gemm.kernel import blocks_of, gemm_parts
from kiln.codegen.gemm.spec import GemmSpec, product
from kiln.codegen.gemm.workspace import ROWS
from kiln.codegen.nests.nest import Operand
from kiln.codegen.target import LEVELS, Target
from kiln.scalars.scalar import Scalar, const, convert, select

SIZES = [
    (1, 1, 1),
    (3, 5, 7),
    (14, 32, 16),
    (15, 33, 17),
    (2, 100, 4),
    (31, 64, 130),
    (100, 1, 9),
    (1, 70, 3),
    (29, 40, 600),
    (20, 64, 520),
]


def widened(x: Array, dtype: str) -> Array:
    """The values of an array, as float64 or int64."""
    if dtype == "bfloat16":
        return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return x.astype(np.float64 if x.dtype.kind == "f" else np.int64)


LAYOUTS = {
    "row": lambda x: np.ascontiguousarray(x),
    "col": lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2),
    "spaced": lambda x: np.repeat(np.repeat(x, 2, axis=2), 3, axis=1)[:, ::3, ::2],
    "reversed": lambda x: np.ascontiguousarray(x[:, ::-1, ::-1])[:, ::-1, ::-1],
}


def fused(x: Array, y: Array, z: Array) -> Array:
    """fma of float32 arrays: the product is exact in f64; the sum is rounded to odd there, so once in all."""
    p, c = x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64)
    total = p + c
    back = total - p
    error = (p - (total - back)) + (c - back)
    even = (total.view(np.int64) & 1) == 0
    away = np.where(error > 0, np.inf, -np.inf)
    return np.where((error != 0) & even, np.nextafter(total, away), total).astype(np.float32)


def ordered(a: Array, b: Array) -> Array:
    """The float32 product of 2-d arrays in the promised order."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for start in range(0, a.shape[1], 512):
        chain = np.zeros_like(total)
        for k in range(start, min(start + 512, a.shape[1])):
            chain = fused(a[:, k : k + 1], b[k : k + 1, :], chain)
        total = chain if start == 0 else total + chain
    return total


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values(dtype: str, target: Target, rng: np.random.Generator) -> None:
    for m, n, k in SIZES:
        a, b = draw(rng, dtype, 2, m, k), draw(rng, dtype, 2, k, n)
        got = multiply(a, b, dtype, target)
        wide_a, wide_b = widened(a, dtype), widened(b, dtype)
        if wide_a.dtype == np.int64:
            assert np.array_equal(got, (wide_a @ wide_b).astype(got.dtype)), (m, n, k)
            continue
        unit = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
        chain = (
            (k + 2) * max(2.0**-53, 2.0**-24 if dtype != "float64" else 0) * (np.abs(wide_a) @ np.abs(wide_b))
        )
        error = np.abs(widened(got, dtype) - wide_a @ wide_b)
        assert np.all(error <= chain + unit * np.abs(wide_a @ wide_b) + 1e-7 * (unit > 1e-4)), (m, n, k)


@pytest.mark.parametrize("k", [1, 5, 64, 511, 512, 513, 1030])
def test_order_float32(k: int, rng: np.random.Generator) -> None:
    a, b = draw(rng, "float32", 1, 17, k), draw(rng, "float32", 1, k, 37)
    expected = ordered(a[0], b[0])
    for target in TARGETS:
        assert np.array_equal(multiply(a, b, target=target)[0], expected)


def test_order_float64(rng: np.random.Generator) -> None:
    a, b = draw(rng, "float64", 1, 2, 520), draw(rng, "float64", 1, 520, 9)
    for i, j in [(0, 0), (1, 8)]:
        chains = []
        for start in (0, 512):
            chain = 0.0
            for x, y in zip(a[0, i, start : start + 512], b[0, start : start + 512, j]):
                chain = float(Fraction(float(x)) * Fraction(float(y)) + Fraction(chain))
            chains.append(chain)
        for target in TARGETS:
            assert multiply(a, b, "float64", target)[0, i, j] == chains[0] + chains[1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32"])
def test_layouts_give_the_same_bits(dtype: str, rng: np.random.Generator) -> None:
    """On every machine too, but that AMX has an order of its own."""
    for m, n, k in [(33, 70, 45), (70, 32, 515), (6, 7, 2)]:
        a, b = draw(rng, dtype, 2, m, k), draw(rng, dtype, 2, k, n)
        expected = {tiles: multiply(a, b, dtype, of_order(dtype, tiles)) for tiles in (True, False)}
        for target, la, lb in itertools.product(TARGETS, LAYOUTS.values(), LAYOUTS.values()):
            assert np.array_equal(multiply(la(a), lb(b), dtype, target), expected[target.tiles])


def of_order(dtype: str, tiles: bool) -> Target:
    """A target with AMX's order, if this machine has it, or with that of all others."""
    return next((t for t in TARGETS if t.tiles == tiles), HOST) if dtype == "bfloat16" else HOST


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_rows_far_apart(target: Target, rng: np.random.Generator) -> None:
    """Rows and columns whose distance makes the kernel copy A and pack B."""
    a, b = np.zeros((1, 70, 1024), np.float32), draw(rng, "float32", 1, 300, 96)
    a[:, :, :300] = draw(rng, "float32", 1, 70, 300)
    expected = ordered(a[0, :, :300], b[0])
    assert np.array_equal(multiply(a[:, :, :300], b, target=target)[0], expected)
    tall = np.zeros((1, 300, 1024), np.float32)
    tall[:, :, :70] = a[:, :, :300].swapaxes(1, 2)
    assert np.array_equal(multiply(tall[:, :, :70].swapaxes(1, 2), b, target=target)[0], expected)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int8"])
def test_rows_in_stretches(dtype: str, target: Target, rng: np.random.Generator) -> None:
    """Shorter and longer than tiles and blocks, k or rows side by side; without k, however far apart."""
    for stretches, rows, k, n in [(20, 3, 40, 70), (3, 15, 70, 33), (9, 40, 520, 20), (2, 2, 600, 300)]:
        values = draw(rng, dtype, 1, stretches, rows, k)
        b = draw(rng, dtype, 1, k, n)
        expected = multiply(values.reshape(1, -1, k), b, dtype, target)
        for order in [(0, 2, 1, 3), (0, 1, 3, 2), (3, 2, 1, 0)]:
            a = np.ascontiguousarray(values.transpose(order)).transpose(np.argsort(order))
            for lies in LAYOUTS.values():
                out = np.empty_like(expected)
                run(product(dtype), a, lies(b), [out], target=target, cuts=[1], in_stretches=True)
                assert np.array_equal(out.view(np.uint8), expected.view(np.uint8)), (a.shape, order)
    far = np.lib.stride_tricks.as_strided(draw(rng, dtype, 1), (1, 5, 7, 0), (0, 1 << 50, 8, 8))
    out = np.ones((1, 35, 9), multiply(far[:, 0], draw(rng, dtype, 1, 0, 9), dtype, target).dtype)
    run(product(dtype), far, draw(rng, dtype, 1, 0, 9), [out], target=target, in_stretches=True)
    assert not out.any()


def test_batches_and_broadcast(rng: np.random.Generator) -> None:
    a, b = draw(rng, "float32", 3, 5, 6), draw(rng, "float32", 1, 6, 40)
    wide = np.broadcast_to(b, (3, 6, 40))
    expected = np.stack([ordered(x, b[0]) for x in a])
    assert np.array_equal(multiply(a, wide), expected)
    row = np.broadcast_to(draw(rng, "float32", 1, 1, 6), (1, 30, 6))
    assert np.array_equal(multiply(row, b)[0], ordered(row[0], b[0]))
    column = np.broadcast_to(draw(rng, "float32", 1, 6, 1), (1, 6, 70))
    assert np.array_equal(multiply(a[:1], column)[0], ordered(a[0], column[0]))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_empty(dtype: str) -> None:
    kind = numpy_dtype(dtype)
    for target in TARGETS:
        got = multiply(np.empty((2, 17, 0), kind), np.empty((2, 0, 33), kind), dtype, target)
        assert not got.view(np.uint8).any()
    for batch, m, n in [(0, 3, 3), (2, 0, 3), (2, 3, 0)]:
        assert product(dtype).units(batch, m, n) == 0
        multiply(np.empty((batch, m, 4), kind), np.empty((batch, 4, n), kind), dtype)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_any_cut_of_the_units(target: Target, rng: np.random.Generator) -> None:
    a, b = draw(rng, "float32", 2, 130, 520), draw(rng, "float32", 2, 520, 150)
    expected = multiply(a, b, target=target)
    units = product("float32").units(2, 130, 150)
    assert units == 2 * 6 * 2
    for cuts in [range(1, units), [7], [1, 2, 13, 23], sorted(rng.choice(units, 5, replace=False) + 0)]:
        assert np.array_equal(multiply(a, b, target=target, cuts=[c for c in cuts if c]), expected)


@pytest.mark.parametrize("columns", [392, 129, 300, 32])
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_units_are_about_as_wide(target: Target, columns: int) -> None:
    """A thread that gets one of few units has about as much to do as the others."""
    spec, a, b = product("float32"), np.ones((20, 8), np.float32), np.ones((8, columns), np.float32)
    strides = [s for rows in (8, columns, columns) for s in (0, 0, 0, rows, 1)]
    arg = np.array([1, 1, 1, 20, columns, 8, 20, 0, *strides, 0, 0], np.int64)
    widths = []
    for unit in range(spec.units(1, 20, columns)):
        out = np.zeros((20, columns), np.float32)
        with scratch_of(spec) as scratch:
            addresses = (a.ctypes.data, b.ctypes.data, out.ctypes.data, 0, scratch)
            kernel(spec, target)((ctypes.c_void_p * 5)(*addresses), arg.ctypes.data, unit, unit + 1)
        widths.append(int((out[0] == 8).sum()))
    assert sum(widths) == columns and max(widths) - min(widths) < 64


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_rows_in_several_groups(target: Target, rng: np.random.Generator) -> None:
    """More rows than a group has, the last group a short one; the product and an epilogue."""
    for columns in (70, 64):  # sums on the stack, sums in the output
        a, b = draw(rng, "float32", 2, 530, 20), draw(rng, "float32", 2, 20, columns)
        expected = np.stack([ordered(x, y) for x, y in zip(a, b)])
        units = product("float32").units(2, 530, columns)
        for cuts in [(), (40,), range(1, units, 7)]:
            assert np.array_equal(multiply(a, b, target=target, cuts=cuts), expected)
    pre, out, bias = np.empty_like(expected), np.empty_like(expected), np.zeros_like(expected)
    run(bias_relu(("s", "1")), a, b, [pre, out, bias], [1.0], target, cuts=[11, 40])
    assert np.array_equal(pre, expected)


def bias_relu(classes: tuple[str, str], dtype: str = "float32") -> GemmSpec:
    """out = relu(product * number 0 + bias), pre = the same before relu."""
    kind = {"float32": "f32", "float64": "f64", "bfloat16": "f32"}[dtype]
    x, bias = Scalar("load", (), kind, 0), Scalar("load", (), kind, 3)
    pre = x * convert(Scalar("number", (), "f64", 0), kind) + bias
    full = ("s", "1")
    operands = (Operand(dtype, "out", full), Operand(dtype, "out", full), Operand(dtype, "in", classes))
    return GemmSpec(dtype, operands, ("f64",), ((1, pre), (2, select(pre < const(0.0, kind), 0.0, pre))))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize(
    "classes, each",
    [(("0", "1"), False), (("1", "0"), False), (("0", "0"), True), (("s", "1"), True), (("s", "s"), True)],
)
def test_epilogue_is_the_unfused_arithmetic(
    classes: tuple[str, str], each: bool, target: Target, rng: np.random.Generator
) -> None:
    for m, n, k in [(33, 70, 45), (5, 19, 1100), (230, 17, 520)]:
        a, b, full = (
            draw(rng, "float32", 2, m, k),
            draw(rng, "float32", 2, k, n),
            draw(rng, "float32", 2, m, n),
        )
        bias = full if each else full[:1]
        bias = bias if classes[0] != "0" else bias[:, :1]
        bias = np.asfortranarray(bias if classes[1] != "0" else bias[:, :, :1])
        bias = np.ascontiguousarray(bias) if classes[1] != "s" else bias
        bias = np.broadcast_to(bias, (2, m, n))
        expected = multiply(a, b, target=target) * np.float32(0.75) + bias
        for taken in (None, 1, 2):
            pre, out = np.empty((2, m, n), np.float32), np.empty((2, m, n), np.float32)
            run(
                bias_relu(classes)._replace(accumulator=taken),
                a,
                b,
                [pre, out, bias],
                [0.75],
                target,
                cuts=[1],
            )
            assert np.array_equal(pre, expected)
            assert np.array_equal(out, np.where(expected < 0, np.float32(0), expected))


def test_epilogue_into_its_own_operand(rng: np.random.Generator) -> None:
    """c = a @ b + c, and an output with strided columns."""
    a, b, c = draw(rng, "float32", 1, 40, 9), draw(rng, "float32", 1, 9, 70), draw(rng, "float32", 1, 40, 70)
    expected = multiply(a, b) + c
    total = Scalar("load", (), "f32", 0) + Scalar("load", (), "f32", 2)
    for classes, keep in ((("s", "1"), c.copy()), (("s", "s"), np.asfortranarray(c))):
        operands = (Operand("float32", "out", classes), Operand("float32", "in", classes))
        run(GemmSpec("float32", operands, (), ((1, total),)), a, b, [keep, keep])
        assert np.array_equal(keep, expected)


def test_epilogue_changes_the_dtype(rng: np.random.Generator) -> None:
    """It reads sums, which have 32 bits at least."""
    a, b = draw(rng, "int8", 1, 20, 30), draw(rng, "int8", 1, 30, 40)
    out = np.empty((1, 20, 40), np.float64)
    spec = GemmSpec(
        "int8",
        (Operand("float64", "out", ("s", "1")),),
        (),
        ((1, convert(Scalar("load", (), "i32", 0), "f64")),),
    )
    run(spec, a, b, [out])
    assert np.array_equal(out, a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_row(dtype: str, target: Target, rng: np.random.Generator) -> None:
    """The kernel of one row gives the bits of the kernel of many, whatever lies how, and reads no more."""
    guarded = Guarded()
    spec = product(dtype)._replace(row=True)
    for n, k in [
        (1, 1),
        (2, 70),
        (4, 9),
        (5, 3),
        (7, 130),
        (10, 1030),
        (12, 65),
        (15, 514),
        (17, 130),
        (200, 70),
        (300, 5),
        (40, 1030),
        (35, 1024),
        (40, 96),
        (1100, 6),
        (3, 0),
    ]:
        a, b = draw(rng, dtype, 2, 1, k), draw(rng, dtype, 2, k, n)
        expected = multiply(a, b, dtype, target)
        for name, at_end in itertools.product(LAYOUTS, (True, False)):
            x = guarded.place(a, at_end) if k else a
            y = LAYOUTS[name](b)
            if k and name in ("row", "col"):
                y = guarded.place(b if name == "row" else b.swapaxes(1, 2), at_end)
                y = y if name == "row" else y.swapaxes(1, 2)
            out = guarded.place(np.zeros_like(expected), at_end)
            run(spec, x, y, [out], target=target, cuts=[1])
            assert np.array_equal(out, expected), (n, k, name)


def test_one_row_with_an_epilogue(rng: np.random.Generator) -> None:
    a, b, bias = (draw(rng, "float32", 3, *s) for s in ((1, 600), (600, 550), (1, 550)))
    for target in TARGETS:
        pre, out = np.empty_like(bias), np.empty_like(bias)
        spec = bias_relu(("s", "1"))._replace(row=True)
        run(spec, a, b, [pre, out, bias], [0.75], target, cuts=[1, 4])
        expected = multiply(a, b) * np.float32(0.75) + bias
        assert np.array_equal(pre, expected)
        assert np.array_equal(out, np.where(expected < 0, np.float32(0), expected))


# the 512-bit level as far as this machine can: LLVM splits its vectors
WIDE = LEVELS["x86-64-v4"]._replace(name="512 bits", cpu=HOST.cpu, features=HOST.features)
FEW = [
    (2, 3, 1),
    (3, 33, 4),
    (4, 16, 511),
    (5, 129, 70),
    (6, 31, 512),
    (8, 65, 513),
    (7, 40, 1024),
    (9, 33, 70),
    (3, 50, 1030),
    (2, 33, 514),
    # columns that are whole vectors, and that share cache sets
    (2, 33, 64),
    (3, 35, 80),
    (4, 17, 1024),
    (5, 34, 176),
    (6, 40, 48),
    (7, 33, 16),
    (8, 49, 1024),
    (9, 33, 1024),
    (16, 35, 1024),
]


@pytest.mark.parametrize("target", [*TARGETS, WIDE], ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_few_rows_by_a_matrix_along_k(dtype: str, target: Target, rng: np.random.Generator) -> None:
    """What a linear layer multiplies, panel by panel: the bits of any other layout, and nothing past its end;
    also in launches cut along k, and with rows that lie anyhow.
    """
    if target is WIDE and (HOST.vector_bits != 256 or dtype != "float32"):
        pytest.skip("the machine's own level, or a kernel of another dtype like it")
    guarded, spec = Guarded(), product(dtype)
    for m, n, k in FEW:
        a, b = draw(rng, dtype, 2, m, k), draw(rng, dtype, 2, k, n)
        expected = multiply(a, b, dtype)
        ways = ("row", True, 1), ("row", False, 1), ("col", True, 1), ("spaced", True, 1), ("row", False, -1)
        for name, at_end, step in ways:  # columns forwards or backwards
            x = LAYOUTS[name](a)
            y = guarded.place(b[:, :, ::step].swapaxes(1, 2), at_end)[:, ::step].swapaxes(1, 2)
            for at_once in (0, 2):
                out = guarded.place(np.zeros_like(expected), at_end)
                run(spec, x, y, [out], target=target, cuts=[1], at_once=at_once)
                assert np.array_equal(out, expected), (m, n, k, name, at_once)


def test_few_rows_with_an_epilogue(rng: np.random.Generator) -> None:
    """Whole panels and a ragged one are both finished, once."""
    for m, n, k in [(2, 750, 300), (3, 33, 70), (4, 600, 150), (1, 33, 70), (7, 50, 20), (4, 40, 520)]:
        a, b, bias = (
            draw(rng, "float32", 1, m, k),
            draw(rng, "float32", 1, k, n),
            draw(rng, "float32", 1, 1, n),
        )
        lies = np.ascontiguousarray(b.swapaxes(1, 2)).swapaxes(1, 2)
        expected = multiply(a, b) * np.float32(0.75) + bias
        for target, taken in itertools.product(TARGETS, (None, 1)):  # what takes the sums
            pre, out = (np.zeros((1, m, n), np.float32) for _ in range(2))
            spec = bias_relu(("s", "1"))._replace(accumulator=taken)
            run(spec, a, lies, [pre, out, np.broadcast_to(bias, pre.shape)], [0.75], target)
            assert np.array_equal(pre, expected), (m, n, k)
            assert np.array_equal(out, np.where(expected < 0, np.float32(0), expected))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int8"])
def test_nothing_outside_the_arrays(dtype: str, target: Target, rng: np.random.Generator) -> None:
    guarded = Guarded()
    for m, n, k in [(1, 1, 1), (5, 7, 3), (15, 33, 18), (70, 66, 130), (13, 10, 129)]:
        a, b = draw(rng, dtype, 1, m, k), draw(rng, dtype, 1, k, n)
        expected = multiply(a, b, dtype, target)
        for at_end, turn_a, turn_b in itertools.product((True, False), (True, False), (True, False)):
            ga = guarded.place(a.swapaxes(1, 2) if turn_a else a, at_end)
            gb = guarded.place(b.swapaxes(1, 2) if turn_b else b, at_end)
            out = guarded.place(np.zeros_like(expected), at_end)
            ga, gb = ga.swapaxes(1, 2) if turn_a else ga, gb.swapaxes(1, 2) if turn_b else gb
            run(product(dtype), ga, gb, [out], target=target)
            assert np.array_equal(out, expected), (m, n, k)


def test_bits_do_not_depend_on_the_other_rows_and_columns(rng: np.random.Generator) -> None:
    a, b = draw(rng, "float32", 1, 61, 200), draw(rng, "float32", 1, 200, 130)
    whole = multiply(a, b)
    for m, n in [(1, 130), (61, 1), (2, 31), (9, 64), (25, 65), (60, 129)]:
        assert np.array_equal(multiply(a[:, :m], b[:, :, :n]), whole[:, :m, :n])


def test_special_values() -> None:
    a = np.array([[[np.inf, 1, -0.0], [np.nan, 2, 1e-45]]], np.float32)
    b = np.array([[[0.0], [1.0], [2.0]]], np.float32)
    got = multiply(a, b)
    assert np.isnan(got).all()
    tiny = multiply(np.full((1, 1, 1), 1e-45, np.float32), np.full((1, 1, 1), 1.0, np.float32))
    assert tiny[0, 0, 0] == np.float32(1e-45)


def test_the_object_and_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = product("float32")
    assert spec.text() == product("float32").text() != product("float64").text()
    first = object_for(spec.text(), lambda: gemm_parts(spec, HOST))
    assert object_for(spec.text(), lambda: pytest.fail("made twice")) == first
    assert spec.text().splitlines()[:2] == ["matmul float32 numbers", "operand 1 out float32 s1"]


def test_refused() -> None:
    good = product("float32")
    row = Scalar("index", (), "i64", 0)
    for stores in [((1, convert(row, "f32")),), ((0, good.stores[0][1]),), ((1, const(1.0, "f64")),), ()]:
        with pytest.raises(ValueError, match="codegen"):
            gemm_parts(good._replace(stores=stores), HOST)
    inside = bias_relu(("s", "1"))
    strided = inside.operands[0]._replace(strides=("s", "s"))
    for taken, spec in ((3, inside), (1, inside._replace(operands=(strided, *inside.operands[1:])))):
        with pytest.raises(ValueError, match="cannot take sums"):
            gemm_parts(spec._replace(accumulator=taken), HOST)


def test_other_architectures_compile() -> None:
    for target in LEVELS.values():
        for dtype in ("float32", "float64", "bfloat16", "int8"):
            spec = product(dtype)
            assert compile_parts(gemm_parts(spec, target), target)


@pytest.mark.parametrize("target", LEVELS.values(), ids=lambda t: t.name)
def test_rows_go_by_in_whole_tiles(target: Target) -> None:
    """Blocks of rows of A are as many as tiles of the tallest kind have, or all that are left: no edge tile
    in each.
    """
    machine = blocks_of(product("float32"), target)
    tallest, most_rows = target.fma.mr[0], target.fma.mc
    text = "\n".join(GemmDriver(machine).write().lines)
    blocks = {
        (int(most), int(rows))
        for most, rows in re.findall(
            r"icmp sle i64 (?:%\w+), (\d+)\n.*select i1 %\w+, i64 %\w+, i64 (\d+)$", text, re.MULTILINE
        )
        if int(rows) > tallest
    }
    assert len(blocks) == 1
    assert all(rows % tallest == 0 and most_rows - tallest < rows <= most_rows for _, rows in blocks)
    assert all(most == rows + tallest <= ROWS for most, rows in blocks)


BLOCKINGS = [
    FmaBlocking((5, 2), 1, 20, 1, 1),
    FmaBlocking((7, 3, 1), 2, 14, 2, 1, pack_rows=1, swap_panels=2),
    FmaBlocking((12, 6), 1, 24, 3, 2, pack_rows=1000, crowded_bytes=64),
    FmaBlocking((2, 1), 2, 6, 1, 1, narrow=3, swap_panels=0, prefetch_k=2),
    FmaBlocking((8, 4), 4, 16, swap_panels=4),
]


@pytest.mark.parametrize("blocking", BLOCKINGS, ids=lambda b: f"{b.mr} x {b.vectors}")
def test_blocking_decides_no_bit(blocking: FmaBlocking, rng: np.random.Generator) -> None:
    """A machine of other registers and caches is a record: any gives the same bits."""
    target = HOST._replace(name=f"{HOST.name} {blocking}", fma=blocking)
    for m, n, k in ((3, 70, 600), (13, 200, 33), (50, 90, 1030), (130, 300, 70)):
        a, b = draw(rng, "float32", 2, m, k), draw(rng, "float32", 2, k, n)
        expected = multiply(a, b)
        for lie_a, lie_b in itertools.product((False, True), repeat=2):
            x, y = (
                np.ascontiguousarray(z.swapaxes(1, 2)).swapaxes(1, 2) if lies else z
                for z, lies in ((a, lie_a), (b, lie_b))
            )
            assert np.array_equal(multiply(x, y, target=target), expected), (m, n, k, lie_a, lie_b)
