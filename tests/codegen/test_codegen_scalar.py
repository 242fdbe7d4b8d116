"""Every op of the scalar language as instructions, against the NumPy handler, on the values that break."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from codegen_peer import expected, reads, run, same, to_compute, to_memory, writes
from test_codegen_nest import LEVEL_NAMES

from kiln.codegen.compile import compile_text
from kiln.codegen.nests.generate import nest_text
from kiln.codegen.nests.nest import Nest
from kiln.codegen.target import LEVELS, legal
from kiln.scalars.scalar import COMPARE, FLOATS, INTS, SHIFT, WIDTH, Scalar, const, convert, round_to

DTYPES = {
    "i1": "bool", "i8": "int8", "u8": "uint8", "i16": "int16", "i32": "int32", "u32": "uint32",
    "i64": "int64", "u64": "uint64", "f32": "float32", "f64": "float64",
}  # fmt: skip
TWO = ["add", "sub", "mul", "div", "rem", "and", "or", "xor", "shl", "shr", *sorted(COMPARE)]
ONE = ["neg", "abs", "sqrt", "floor", "ceil", "trunc", "rint", "not", "bits"]
TARGET = LEVELS["x86-64-v4"]


def values(type: str) -> np.ndarray[Any, Any]:
    """The awkward values of a type, and some ordinary ones."""
    if type == "i1":
        return np.array([False, True])
    dtype = np.dtype(DTYPES[type])
    if type in INTS:
        info = np.iinfo(dtype)
        near = [info.min, info.min + 1, info.max, info.max - 1, info.max // 2, 0, 1, 2, 3, 7]
        near += [31, 32, 33, 63, 64, 100]
        return np.array([*near, *([-1, -2, -7] if info.min else [])], dtype=dtype)
    edge = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 0.1, 127.9, 128.0, -128.5, -129.0, 255.5, 256.0]
    edge += [32767.5, 2.0**23, 2.0**31, -(2.0**31), 2.0**31 - 1, 2.0**32, 2.0**53, 2.0**63, -(2.0**63)]
    edge += [2.0**64, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 65519.0, 65520.0, 6e-8, 2.98e-8, 1.00390625]
    edge += [3.3895314e38]
    tiny = [np.finfo(dtype).tiny, np.finfo(dtype).max, np.nextafter(dtype.type(1), dtype.type(2))]
    with np.errstate(all="ignore"):
        return np.array([*edge, *tiny]).astype(dtype)


def check(value: Scalar, arrays: list[np.ndarray[Any, Any]], types: list[str]) -> None:
    """One op on vectors and on single elements gives the NumPy handler's bits."""
    n = len(arrays[0])
    out = np.zeros(n, DTYPES[value.type])
    inputs = [reads(DTYPES[t], "1") for t in types]
    result = writes(DTYPES[value.type], "1")
    nest = Nest(("p",), (*inputs, result), (), ((len(inputs), value),))
    with np.errstate(all="ignore"):
        (want,) = expected(nest, [n], [*arrays, out])
    for level in LEVEL_NAMES:
        run(nest, [n], [*arrays, out], level=level)
        assert same(out, want), (
            level,
            value,
            [a[out != want] for a in arrays],
            out[out != want],
            want[out != want],
        )
    # as rows of one element, the value is uniform along the lanes: scalar instructions
    single = [reads(o.dtype, "10") for o in inputs]
    nest = Nest(("p", "p"), (*single, writes(result.dtype, "10")), (), ((len(inputs), value),))
    columns = [np.lib.stride_tricks.as_strided(a, (n, 1), (a.itemsize, 0)) for a in (*arrays, out)]
    out[...] = 0
    run(nest, [n, 1], columns)
    assert same(out, want), ("scalar", value)


def pairs(first: str, second: str) -> list[np.ndarray[Any, Any]]:
    both = list(itertools.product(values(first), values(second)))
    return [np.array([b[k] for b in both], DTYPES[t]) for k, t in enumerate((first, second))]


def leaf(k: int, type: str) -> Scalar:
    return Scalar("load", (), type, k)


@pytest.mark.parametrize("type", list(WIDTH))
@pytest.mark.parametrize("op", TWO)
def test_two_operands(op: str, type: str) -> None:
    if not legal(op, type, TARGET):
        pytest.skip(f"{op} of {type} is refused")
    result = "i1" if op in COMPARE else type
    check(Scalar(op, (leaf(0, type), leaf(1, type)), result), pairs(type, type), [type, type])
    if op in SHIFT:
        for amount in (0, 1, WIDTH[type] - 1, WIDTH[type]):
            check(Scalar(op, (leaf(0, type), const(amount, type)), type), [values(type)], [type])


@pytest.mark.parametrize("type", list(WIDTH))
@pytest.mark.parametrize("op", ONE)
def test_one_operand(op: str, type: str) -> None:
    if not legal(op, type, TARGET):
        pytest.skip(f"{op} of {type} is refused")
    result = {"f32": "i32", "f64": "i64"}[type] if op == "bits" else type
    x = values(type)
    check(Scalar(op, (leaf(0, type),), result), [x[~np.isnan(x)] if op == "bits" else x], [type])


@pytest.mark.parametrize("source", list(WIDTH))
@pytest.mark.parametrize("target", list(WIDTH))
def test_convert(source: str, target: str) -> None:
    if source != target:
        check(convert(leaf(0, source), target), [values(source)], [source])


@pytest.mark.parametrize("type", sorted(FLOATS))
def test_fma(type: str) -> None:
    x, y = pairs(type, type)
    value = Scalar("fma", (leaf(0, type), leaf(1, type), leaf(0, type)), type)
    check(value, [x, y], [type, type])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_round(dtype: str, rng: np.random.Generator) -> None:
    """An f32 rounded in registers is the f32 that a store and a load of the dtype give."""
    bits = rng.integers(0, 2**32, 20000, dtype=np.uint32).view(np.float32)
    x = np.concatenate([values("f32"), bits])
    nest = Nest(
        ("p",), (reads("float32", "1"), writes("float32", "1")), (),
        ((1, round_to(leaf(0, "f32"), dtype)),),
    )  # fmt: skip
    with np.errstate(all="ignore"):
        want = to_compute(to_memory(x, dtype), dtype)
    for level in LEVEL_NAMES:
        out = np.zeros_like(x)
        run(nest, [len(x)], [x, out], level=level)
        assert same(out, want), level


def test_select_and_from_bits() -> None:
    x, y = pairs("f32", "f32")
    value = Scalar("select", (leaf(0, "f32") < leaf(1, "f32"), leaf(0, "f32"), const(-0.0, "f32")), "f32")
    check(value, [x, y], ["f32", "f32"])
    check(Scalar("from_bits", (leaf(0, "i32"),), "f32"), [values("f32").view(np.int32)], ["i32"])


@pytest.mark.parametrize("level", list(LEVELS))
def test_every_op_compiles_without_calls(level: str) -> None:
    """On every level, also those this machine cannot run: objects leave no symbol undefined."""
    target = LEVELS[level]
    for type in WIDTH:
        stores, operands = [], [reads(DTYPES[type], "1"), reads(DTYPES[type], "s")]
        results = []
        for op in (*TWO, *ONE):
            if legal(op, type, target):
                args = (leaf(0, type), leaf(1, type)) if op in TWO else (leaf(0, type),)
                kind = "i1" if op in COMPARE else {"f32": "i32", "f64": "i64"}[type] if op == "bits" else type
                results.append(Scalar(op, args, kind))
        results += [convert(leaf(0, type), other) for other in WIDTH if other != type]
        if type == "f32":
            results += [round_to(leaf(0, type), "float16"), round_to(leaf(0, type), "bfloat16")]
        for value in results:
            stores.append((len(operands), value))
            operands.append(writes(DTYPES[value.type], "1"))
        compile_text(nest_text(Nest(("p",), tuple(operands), (), tuple(stores)), target), target)
