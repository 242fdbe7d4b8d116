"""Factors computed inside a product's kernel: bits of the product of arrays, nothing read past the end."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from codegen_peer import numpy_dtype, to_memory
from matmul_peer import HOST, TARGETS, Array, Guarded, draw, multiply, run
from test_codegen_matmul import widened

from kiln.codegen.gemm.kernel import gemm_parts
from kiln.codegen.gemm.spec import GemmSpec, Prologue, product
from kiln.codegen.nests.nest import Operand
from kiln.codegen.target import Target
from kiln.scalars.scalar import Scalar, const, convert, round_to, select
from kiln.table.kinds import COMPUTE

DTYPES = ["float32", "float64", "float16", "int64", "bfloat16", "int8", "uint8"]


def scaled(dtype: str, first: bool, second: bool, turned: bool) -> GemmSpec:
    """relu(x) @ w, x @ (w * scale), or both: operands x (2), w (3) and scale (4), one number for each k."""
    kind, spec = COMPUTE[dtype], product(dtype)
    x, w, scale = (Scalar("load", (), kind, k) for k in (2, 3, 4))
    along = ("s", "1")
    row = ("0", "1") if turned else ("1", "0")
    operands = (*spec.operands, *(Operand(dtype, "in", c) for c in (along, along, row)))
    relu = Prologue(select(x < const(0, kind), 0, x), turned)
    times = Prologue(round_to(w * scale, dtype), turned)
    return spec._replace(operands=operands, a=relu if first else None, b=times if second else None)


def factors(dtype: str, x: Array, w: Array, scale: Array) -> tuple[Array, Array]:
    """What the two factors are, as arrays."""
    if dtype == "bfloat16":
        x, w, scale = (widened(v, dtype).astype(np.float32) for v in (x, w, scale))
    with np.errstate(over="ignore"):
        return to_memory(np.where(x < 0, x.dtype.type(0), x), dtype), to_memory(w * scale, dtype)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_the_product_of_arrays(dtype: str, target: Target, rng: np.random.Generator) -> None:
    """Sizes below and above a vector, a panel, a segment or a depth of k, a run of columns and a block of
    rows; both ways to lie.
    """
    guarded = Guarded()
    sides = [(True, False), (False, True), (True, True)]
    for (m, n, k), turned, (first, second) in itertools.product(
        [(1, 1, 1), (5, 37, 3), (50, 70, 130), (33, 130, 515), (35, 1100, 513), (70, 33, 2049)],
        (False, True),
        sides,
    ):
        x, w, scale = draw(rng, dtype, 2, m, k), draw(rng, dtype, 2, k, n), draw(rng, dtype, 1, k, 1)
        a, b = factors(dtype, x, w, scale)
        expected = multiply(a if first else x, b if second else w, dtype, target)
        lying = [guarded.place(v.swapaxes(1, 2) if turned else v, True) for v in (x, w)]
        step = guarded.place(scale.swapaxes(1, 2) if turned else scale, True)
        step = np.broadcast_to(step, (2, n, k) if turned else (2, k, n))
        nowhere = np.full((1, 1, 1), 0x5A, numpy_dtype(dtype))
        a = np.broadcast_to(nowhere, x.shape) if first else x
        b = np.broadcast_to(nowhere, w.shape) if second else w
        out = np.zeros_like(expected)
        run(scaled(dtype, first, second, turned), a, b, [out, *lying, step], target=target, cuts=[1])
        assert np.array_equal(out, expected), (m, n, k, turned, first, second)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_other_dtypes_numbers_and_an_epilogue(target: Target, rng: np.random.Generator) -> None:
    """out = (int8 as float32) @ (float16 * number) + bias: finished apart, many rows."""
    codes, halves = draw(rng, "int8", 1, 530, 40), draw(rng, "float16", 1, 40, 300)
    bias = np.broadcast_to(draw(rng, "float32", 1, 1, 300), (1, 530, 300))
    full = ("s", "1")
    operands = (
        Operand("float32", "out", full), Operand("float32", "in", ("0", "1")),
        Operand("int8", "in", full), Operand("float16", "in", full),
    )  # fmt: skip
    load = [Scalar("load", (), kind, k) for k, kind in ((0, "f32"), (2, "f32"), (3, "i8"), (4, "f32"))]
    number = convert(Scalar("number", (), "f64", 0), "f32")
    spec = GemmSpec(
        "float32", operands, ("f64",), ((1, load[0] + load[1]),),
        a=Prologue(convert(load[2], "f32"), False), b=Prologue(load[3] * number, False),
    )  # fmt: skip
    nothing = [np.broadcast_to(np.full((1, 1, 1), np.nan, np.float32), x.shape) for x in (codes, halves)]
    a, b = codes.astype(np.float32), halves.astype(np.float32) * np.float32(0.3)
    expected = multiply(a, b, target=target) + bias
    units = spec.units(1, 530, 300)
    for cuts in [(), (5,), range(1, units, 7)]:
        out = np.zeros((1, 530, 300), np.float32)
        run(spec, *nothing, [out, bias, codes, halves], [0.3], target, cuts)
        assert np.array_equal(out, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_without_k(dtype: str) -> None:
    """Nothing is read: sums are zero."""
    kind = numpy_dtype(dtype)
    for turned in (False, True):
        x, w = np.empty((2, 5, 0), kind), np.empty((2, 0, 37), kind)
        lying = [v.swapaxes(1, 2) if turned else v for v in (x, w)]
        scale = np.broadcast_to(np.empty((1, 1, 0), kind), (2, 37, 0))
        scale = scale if turned else scale.swapaxes(1, 2)
        for target in TARGETS:
            out = np.ones((2, 5, 37), kind)
            run(scaled(dtype, True, True, turned), x, w, [out, *lying, scale], target=target)
            assert not out.view(np.uint8).any()


def test_what_is_refused() -> None:
    """Factors of one row, and of windows, are arrays; they hold no positions."""
    spec = scaled("float32", True, False, False)
    at = convert(Scalar("index", (), "i64", 1), "f32")
    for wrong in (
        spec._replace(row=True),
        spec._replace(window=True),
        spec._replace(a=Prologue(at, False)),
    ):
        with pytest.raises(ValueError, match="is an array|may not hold"):
            gemm_parts(wrong, HOST)
