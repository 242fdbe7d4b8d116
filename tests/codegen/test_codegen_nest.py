"""Nests as kernels against NumPy, bit for bit: schedules, dtypes, layouts, sizes, cuts, levels."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from codegen_peer import expected, numpy_dtype, reads, run, same, to_memory, writes
from matmul_peer import Guarded

from kiln.codegen.ir.memory import MEMORY, compute_type
from kiln.codegen.nests.generate import nest_text
from kiln.codegen.nests.nest import Nest, Operand, moved, within
from kiln.codegen.nests.stream import STREAM_FROM
from kiln.codegen.target import LEVELS, host_target
from kiln.scalars.scalar import Scalar, const, convert, fma, rint, select, sqrt

Array = np.ndarray[Any, Any]
LEVEL_NAMES = [name for name, target in LEVELS.items() if host_target().includes(target)]
SIZES = [0, 1, 15, 16, 17, 127, 128, 129, 1000]
LONG = [16384, 16385, 100000]
FLOATING = ["float32", "float64", "float16", "bfloat16"]


def load(k: int, type: str = "f32", *at: Scalar) -> Scalar:
    return Scalar("load", at, type, k)


def index(d: int) -> Scalar:
    return Scalar("index", (), "i64", d)


def number(k: int, type: str = "f64") -> Scalar:
    return Scalar("number", (), type, k)


def reduce(op: str, x: Scalar) -> Scalar:
    return Scalar(op, (x,), "i64" if op.startswith("arg") else x.type)


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, special: bool = True) -> Array:
    """Random elements of a dtype, NaN, infinities and -0.0 among the floats."""
    kind = numpy_dtype(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype == "bfloat16" or kind.kind == "f":
        x = rng.standard_normal(shape)
        if special and x.size:
            x[rng.random(shape) < 0.02] = -0.0
            x[rng.random(shape) < 0.01] = rng.choice([np.nan, np.inf, -np.inf, 1e-40, 1e30, 0.0])
        with np.errstate(all="ignore"):
            return to_memory(x.astype(np.float64 if kind.itemsize == 8 else np.float32), dtype)
    low, high = (-100, 100) if kind.kind == "i" else (0, 200)
    return rng.integers(low, high, shape).astype(kind)


def strided(x: Array, step: int) -> Array:
    """x with the same values, every stride multiplied by `step` (negative: reversed in memory)."""
    wide = np.zeros([max(1, s) * abs(step) for s in x.shape], x.dtype)
    view = wide[tuple(slice(0, s * abs(step), abs(step)) for s in x.shape)]
    if step < 0:
        view = view[tuple(slice(None, None, -1) for _ in x.shape)]
    view[...] = x
    return view


def check(
    nest: Nest, sizes: list[int], arrays: list[Array], numbers: Sequence[Any] = (), cuts: Any = None
) -> None:
    """Every level writes exactly the expected bits, cut or not."""
    wanted = expected(nest, sizes, arrays, numbers)
    for level in LEVEL_NAMES:
        for edges in ([], cuts) if cuts else ([],):
            for k, _ in nest.stores:
                if arrays[k].size:
                    arrays[k].view(f"u{arrays[k].itemsize}")[...] = 77
            run(nest, sizes, arrays, numbers, level, edges)
            for (k, _), want in zip(nest.stores, wanted):
                got = arrays[k][tuple(slice(0, 1) if s == 0 else slice(None) for s in arrays[k].strides)]
                want = want[tuple(slice(0, 1) if s == 0 else slice(None) for s in arrays[k].strides)]
                assert same(got, want), (level, nest.schedule(), sizes, edges, k)


def output(shape: tuple[int, ...], dtype: str, along: tuple[int, ...] | None = None) -> Array:
    """An output array; dims not in `along` have size 1 and stride 0."""
    kept = [s if along is None or d in along else 1 for d, s in enumerate(shape)]
    x = np.zeros(kept, numpy_dtype(dtype))
    strides = [s if along is None or d in along else 0 for d, s in enumerate(x.strides)]
    return np.lib.stride_tricks.as_strided(x, kept, strides)


# -- flat and map ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", list(MEMORY))
def test_flat_every_dtype(dtype: str, n: int, rng: np.random.Generator) -> None:
    type = compute_type(dtype)
    x, y = load(0, type), load(1, type)
    value = Scalar("xor", (x, y), "i1") if type == "i1" else x + y * x
    nest = Nest(("p",), (reads(dtype, "1"), reads(dtype, "1"), writes(dtype, "1")),
                (), ((2, value),))  # fmt: skip
    check(
        nest,
        [n],
        [draw(rng, (n,), dtype), draw(rng, (n,), dtype), output((n,), dtype)],
        cuts=[3, 17, 64, 100],
    )


@pytest.mark.parametrize(("step", "kind"), [(2, "s"), (-1, "s"), (-3, "s"), (2, "2")])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "bool"])
def test_flat_strided(dtype: str, step: int, kind: str, rng: np.random.Generator) -> None:
    x, y = load(0, compute_type(dtype)), load(1, compute_type(dtype))
    nest = Nest(("p",), (reads(dtype, kind), reads(dtype, "0"), writes(dtype, kind)),
                (), ((2, select(x.eq(y), y, x)),))  # fmt: skip
    for n in (1, 15, 33, 100):
        one = np.lib.stride_tricks.as_strided(draw(rng, (1,), dtype), (n,), (0,))
        check(
            nest,
            [n],
            [strided(draw(rng, (n,), dtype), step), one, strided(output((n,), dtype), step)],
            cuts=[5],
        )


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bool"])
def test_every_other_element_and_no_byte_beyond(dtype: str, rng: np.random.Generator) -> None:
    """The array ends before a page that may not be touched, or begins behind one."""
    guarded, x = Guarded(), load(0, compute_type(dtype))
    nest = Nest(("p", "p"), (reads(dtype, "s2"), writes(dtype, "s1")), (), ((1, x),))
    for n, at_end in product((1, 2, 8, 9, 15, 16, 17, 40), (False, True)):
        source = guarded.place(draw(rng, (2 * 2 * n - 1,), dtype), at_end)
        twice = np.lib.stride_tricks.as_strided(
            source, (2, n), (2 * n * source.itemsize, 2 * source.itemsize)
        )
        check(nest, [2, n], [twice, output((2, n), dtype)])


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 1, 1), (7, 1, 33), (2, 0, 3), (2, 3, 16)])
def test_map_layouts(shape: tuple[int, int, int], rng: np.random.Generator) -> None:
    a, b, c = (
        draw(rng, shape, "float32"),
        draw(rng, shape[::-1], "float32").T,
        draw(rng, shape[2:], "float32"),
    )
    nest = Nest(("p",) * 3, (reads("float32", "ss1"), reads("float32", "1ss"),
                reads("float32", "001"), writes("float64", "ss1")), ("f64", "i64"),
                ((3, convert(load(0) * load(1) + load(2) * convert(number(0), "f32"), "f64")
                  + convert(index(1) * number(1, "i64") + index(2), "f64")),))  # fmt: skip
    arrays = [a, b, np.broadcast_to(c, shape), output(shape, "float64")]
    check(nest, list(shape), arrays, [1.5, 7], cuts=[1, 4])


@pytest.mark.parametrize(
    "shape", [(1, 70, 33), (2, 16, 16), (3, 15, 40), (2, 37, 5), (1, 130, 64), (0, 9, 9)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "bool"])
def test_map_transposed(dtype: str, shape: tuple[int, int, int], rng: np.random.Generator) -> None:
    a, b = draw(rng, (shape[0], shape[2], shape[1]), dtype).transpose(0, 2, 1), draw(rng, shape, dtype)
    row = np.broadcast_to(draw(rng, (shape[0], shape[1], 1), "float32"), shape)
    values = [convert(load(k, compute_type(dtype)), "f32") for k in (0, 1)]
    nest = Nest(("p",) * 3, (reads(dtype, "s1s"), reads(dtype, "ss1"), reads("float32", "ss0"),
                writes("float32", "ss1")), ("f64",),
                ((3, values[0] - values[1] * (load(2) * convert(number(0), "f32"))
                  + convert(index(1) * 3 + index(2), "f32")),))  # fmt: skip
    arrays = [a, b, row, output(shape, "float32")]
    check(nest, list(shape), arrays, [1.5], cuts=[1, 18, 35, 36, 90])


def test_no_dims() -> None:
    nest = Nest((), (reads("float32", ""), writes("float32", "")), (), ((1, load(0) * 3.0),))
    check(nest, [], [np.array(2.5, np.float32), np.zeros((), np.float32)])


def test_several_stores_and_in_place(rng: np.random.Generator) -> None:
    """Two outputs, one of them the input itself: every value is read before any is written."""
    n = 1003
    nest = Nest(("p",), (reads("float32", "1"), writes("float32", "1"),
                writes("bool", "1")), (), ((1, load(0) * 2.0), (2, load(0) > 0.0)))  # fmt: skip
    x = draw(rng, (n,), "float32")
    for level in LEVEL_NAMES:
        y, positive = x.copy(), np.zeros(n, np.bool_)
        run(nest, [n], [y, y, positive], level=level)
        assert same(y, x * np.float32(2)) and same(positive, x > 0)


@pytest.mark.parametrize("table", ["float32", "uint8", "bfloat16"])
def test_gathers(table: str, rng: np.random.Generator) -> None:
    """Rows of a table by index (neighbours), one element per point, and a transposed gather."""
    b, d, rows = 5, 37, 11
    type = compute_type(table)
    at = convert(load(1, "i32"), "i64")
    nest = Nest(("p", "p"), (reads(table, "s1"), reads("int32", "10"),
                writes(table, "s1"), writes(table, "s1")), (),
                ((2, load(0, type, at, index(1))), (3, load(0, type, index(1) >> 2, at + 1))))  # fmt: skip
    picks = np.broadcast_to(rng.integers(0, rows, (b, 1)).astype(np.int32), (b, d))
    arrays = [draw(rng, (rows, d), table), picks, output((b, d), table), output((b, d), table)]
    check(nest, [b, d], arrays, cuts=[2])
    rows_only = nest_text(nest._replace(stores=nest.stores[:1]), host_target())
    assert "masked.gather" not in rows_only, "neighbours in a row are one load"


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "bool"])
def test_backwards(dtype: str, rng: np.random.Generator) -> None:
    """Rows read from an element backwards, held in range at both ends: no byte is read beyond the table's."""
    guarded, last = Guarded(), number(1, "i64") - 1
    place = within(number(0, "i64") - index(1), last)
    nest = Nest(("p", "p"), (reads(dtype, "s1"), writes(dtype, "s1")), ("i64", "i64"),
                ((1, load(0, compute_type(dtype), index(0), place)),))  # fmt: skip
    for n, at_end in product((1, 15, 16, 17, 32, 70), (False, True)):
        table = guarded.place(draw(rng, (2, n), dtype), at_end)
        for first in (n - 1, n + 5, n // 2, 0, -3):
            wide = np.clip(first - np.arange(n), 0, n - 1)
            out = output((2, n), dtype)
            for level in LEVEL_NAMES:
                out.view(f"u{out.itemsize}")[...] = 77
                run(nest, [2, n], [table, out], [first, n], level, [1])
                assert same(out, table[:, wide]), (level, n, first)


# -- reductions -------------------------------------------------------------------------------------------


NUMERIC = ("sum", "prod", "max", "min", "argmax", "argmin")
REDUCED = [(op, t) for t in ("float32", "float64", "int32", "int64", "uint8") for op in NUMERIC]
REDUCED += [("all", "bool"), ("any", "bool"), ("sum", "float16"), ("max", "bfloat16")]


def out_dtype(op: str, dtype: str) -> str:
    return "int64" if op.startswith("arg") else dtype


@pytest.mark.parametrize(("op", "dtype"), REDUCED)
def test_rows(op: str, dtype: str, rng: np.random.Generator) -> None:
    out = out_dtype(op, dtype)
    nest = Nest(("p", "r"), (reads(dtype, "s1"), writes(out, "10")), (),
                ((1, reduce(op, load(0, compute_type(dtype)))),))  # fmt: skip
    assert nest.schedule() == "rows"
    for n in SIZES:
        if n == 0 and op.startswith("arg"):
            continue
        check(nest, [3, n], [draw(rng, (3, n), dtype, n < 200), output((3, n), out, (0,))], cuts=[1])


@pytest.mark.parametrize(("op", "dtype"), REDUCED)
def test_columns(op: str, dtype: str, rng: np.random.Generator) -> None:
    out = out_dtype(op, dtype)
    nest = Nest(("r", "p"), (reads(dtype, "s1"), writes(out, "01")), (),
                ((1, reduce(op, load(0, compute_type(dtype)))),))  # fmt: skip
    assert nest.schedule() == "columns"
    for n, c in zip(SIZES, (3, 300, 1, 16, 257, 17, 5, 31, 3)):
        if n == 0 and op.startswith("arg"):
            continue
        check(nest, [n, c], [draw(rng, (n, c), dtype, n < 200), output((n, c), out, (1,))], cuts=[1])


@pytest.mark.parametrize("rows", [1, 15, 129, 300, 16500])
def test_columns_with_values_of_a_row(rows: int, rng: np.random.Generator) -> None:
    """The gradient of layer_norm's weight: what is known once per row does not turn columns into rows."""
    g, x = load(0), load(1)
    value = g * ((x - load(2)) / sqrt(load(3) + convert(number(0), "f32")))
    nest = Nest(("r", "p"), (reads("float32", "s1"), reads("float32", "s1"), reads("float32", "10"),
                reads("float32", "10"), writes("float32", "01"), writes("float32", "01")), ("f64",),
                ((4, reduce("sum", value)), (5, reduce("max", g))))  # fmt: skip
    assert nest.schedule() == "columns"
    shape = (rows, 20)
    mean, square = draw(rng, (rows, 1), "float32"), np.abs(draw(rng, (rows, 1), "float32", False))
    arrays = [draw(rng, shape, "float32"), draw(rng, shape, "float32")]
    arrays += [np.broadcast_to(mean, shape), np.broadcast_to(square, shape)]
    arrays += [output(shape, "float32", (1,)) for _ in range(2)]
    check(nest, list(shape), arrays, [1e-5])


@pytest.mark.parametrize("n", LONG)
@pytest.mark.parametrize("roles", ["pr", "rp"])
def test_long_reductions(roles: str, n: int, rng: np.random.Generator) -> None:
    """More than one block of 16384; rows and columns agree because both agree with the order."""
    column = roles == "rp"
    shape = (n, 3) if column else (2, n)
    classes, along = ("01", (1,)) if column else ("10", (0,))
    nest = Nest(tuple(roles), (reads("float32", "s1"), writes("float32", classes),
                writes("int64", classes)), (),
                ((1, reduce("sum", load(0))), (2, reduce("argmax", load(0)))))  # fmt: skip
    arrays = [
        draw(rng, shape, "float32", False),
        output(shape, "float32", along),
        output(shape, "int64", along),
    ]
    check(nest, list(shape), arrays)


def test_total_and_signed_zero(rng: np.random.Generator) -> None:
    """A sum over everything; -0.0 stays where every element is -0.0; nothing sums to +0.0."""
    nest = Nest(("r",), (reads("float32", "1"), writes("float32", "0")), (),
                ((1, reduce("sum", load(0))),))  # fmt: skip
    for n in (0, 1, 5, 16, 200, 20000):
        check(nest, [n], [np.full(n, -0.0, np.float32), output((n,), "float32", ())])
        check(nest, [n], [draw(rng, (n,), "float32", False), output((n,), "float32", ())])


@pytest.mark.parametrize("step", [2, -1])
def test_order_ignores_strides(step: int, rng: np.random.Generator) -> None:
    for roles, classes in (("pr", "10"), ("rp", "01")):
        shape = (3, 1000) if roles == "pr" else (1000, 3)
        nest = Nest(tuple(roles), (reads("float32", "ss"), writes("float32", classes)), (),
                    ((1, reduce("sum", load(0))),))  # fmt: skip
        along = (0,) if roles == "pr" else (1,)
        check(
            nest, list(shape), [strided(draw(rng, shape, "float32"), step), output(shape, "float32", along)]
        )


@pytest.mark.parametrize("shape", [(4, 3, 5), (17, 2, 40), (2, 3, 1), (1, 1, 7), (0, 2, 3), (3, 2, 0)])
@pytest.mark.parametrize("swapped", [False, True])
def test_several_reduced_dims(shape: tuple[int, int, int], swapped: bool, rng: np.random.Generator) -> None:
    """r p r: neighbours of the row straddle runs of memory; with point stores, indices, argmax."""
    x = load(0)
    s = reduce("sum", x)
    nest = Nest(("r", "p", "r"), (reads("float32", "sss" if swapped else "ss1"),
                writes("float32", "010"), writes("int64", "010"),
                writes("float32", "ss1"), writes("int64", "010")), (),
                ((1, s), (2, reduce("max", index(0) * 3 + index(2))), (3, x - s * convert(index(2), "f32")),
                 (4, reduce("argmax", x))))  # fmt: skip
    data = draw(rng, shape, "float32")
    if 0 in (shape[0], shape[2]):
        nest = nest._replace(stores=nest.stores[:3])
    if swapped:
        data = np.asfortranarray(data)
    arrays = [data, output(shape, "float32", (1,)), output(shape, "int64", (1,)), output(shape, "float32"),
              output(shape, "int64", (1,))]  # fmt: skip
    check(nest, list(shape), arrays, cuts=[1])


def test_several_reduced_dims_in_columns(rng: np.random.Generator) -> None:
    shape = (5, 7, 300)
    nest = Nest(("r", "r", "p"), (reads("float32", "ss1"), writes("float32", "001"),
                writes("int64", "001")), (),
                ((1, reduce("sum", load(0))), (2, reduce("sum", index(1) * index(2)))))  # fmt: skip
    wide = draw(rng, (5, 9, 300), "float32", False)[:, 1:8]
    check(nest, list(shape), [wide, output(shape, "float32", (2,)), output(shape, "int64", (2,))], cuts=[1])


# -- several passes -----------------------------------------------------------------------------------------


def rough_exp(x: Scalar) -> Scalar:
    """2^n times a polynomial: costly enough to be parked and rolled."""
    n = rint(x * 1.4426950408889634)
    r = fma(n, -0.693145751953125, x)
    p = const(0.008333, "f32")
    for c in (0.0416666, 0.1666666, 0.5, 1.0, 1.0):
        p = fma(p, r, c)
    return p * Scalar("from_bits", ((convert(n, "i32") + 127) << 23,), "f32") + sqrt(x * x) / (x * x + 3.0)


def softmax(x: Scalar) -> Scalar:
    e = rough_exp(x - reduce("max", x))
    return e / reduce("sum", e)


def layer_norm(x: Scalar, scale: Scalar, w: Scalar, b: Scalar) -> Scalar:
    d = x - reduce("sum", x) * scale
    return fma(d * (const(1.0, "f32") / sqrt(reduce("sum", d * d) * scale + 1e-5)), w, b)


@pytest.mark.parametrize("n", [1, 10, 16, 100, 129, 1000, 20000])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_softmax(dtype: str, axis: int, n: int, rng: np.random.Generator) -> None:
    """Passes that depend on each other; float32 parks exp in the output, float16 computes it again."""
    shape, roles = ((5, n), ("p", "r")) if axis else ((n, 5), ("r", "p"))
    nest = Nest(roles, (reads(dtype, "s1"), writes(dtype, "s1")), (),
                ((1, softmax(load(0))),))  # fmt: skip
    x = to_memory(rng.standard_normal(shape).astype(np.float32), dtype)
    check(nest, list(shape), [x, output(shape, dtype)], cuts=[1, 3])


def test_softmax_in_place(rng: np.random.Generator) -> None:
    nest = Nest(("p", "r"), (reads("float32", "s1"), writes("float32", "s1")), (),
                ((1, softmax(load(0)) + load(0)),))  # fmt: skip
    x = rng.standard_normal((4, 333)).astype(np.float32)
    (want,) = expected(nest, [4, 333], [x, x])
    for level in LEVEL_NAMES:
        y = x.copy()
        run(nest, [4, 333], [y, y], level=level)
        assert same(y, want)


@pytest.mark.parametrize("axis", [0, 1])
def test_layer_norm_keeps_statistics(axis: int, rng: np.random.Generator) -> None:
    """Two dependent sums, a per-element weight, stores of the points and of the statistics."""
    shape, roles = ((6, 300), ("p", "r")) if axis else ((300, 6), ("r", "p"))
    across = "01" if axis else "10"
    point = "10" if axis else "01"
    x = load(0)
    scale = convert(number(0), "f32")
    nest = Nest(roles, (reads("float32", "s1"), reads("float32", across),
                reads("float32", across), writes("float32", "s1"), writes("float32", point)),
                ("f64",),
                ((3, layer_norm(x, scale, load(1), load(2))), (4, reduce("sum", x) * scale)))  # fmt: skip
    w, b = (rng.standard_normal(300).astype(np.float32) for _ in range(2))
    spread = [np.broadcast_to(v if axis else v[:, None], shape) for v in (w, b)]
    along = (0,) if axis else (1,)
    arrays = [
        draw(rng, shape, "float32", False),
        *spread,
        output(shape, "float32"),
        output(shape, "float32", along),
    ]
    check(nest, list(shape), arrays, [1 / 300], cuts=[2])


def test_cross_entropy_reads_by_label(rng: np.random.Generator) -> None:
    """A p-level gather beside reductions: x[label] - max."""
    shape = (9, 10)
    x, label = load(0), load(1, "i64")
    nest = Nest(("p", "r"), (reads("float32", "s1"), reads("int64", "10"),
                reads("float32", "s1"), writes("float32", "10")), (),
                ((3, load(2, "f32", index(0), label) - reduce("max", x)),))  # fmt: skip
    data = draw(rng, shape, "float32", False)
    labels = np.broadcast_to(rng.integers(0, 10, (9, 1)), shape)
    check(nest, list(shape), [data, labels, data, output(shape, "float32", (0,))], cuts=[4])


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "all", "any"])
@pytest.mark.parametrize("shape", [(1, 5), (16, 40), (300, 33), (16500, 3)])
def test_strips(op: str, shape: tuple[int, int], rng: np.random.Generator) -> None:
    """Columns folded in the kernel of the rows, then combined: the bits of a reduction down the columns."""
    x = load(0)
    y = x - reduce("max", x)
    elements, dtype = {"all": (x < y + 1.5, "bool"), "any": (x > y + 2.0, "bool")}.get(op, (y * x, "float32"))
    rows = Nest(("p", "r"), (reads("float32", "s1"), writes("float32", "s1"), Operand(dtype, op, ("s", "1"))),
                (), ((1, y), (2, elements)))  # fmt: skip
    assert rows.schedule() == "strips"
    columns = Nest(("r", "p"), (reads(dtype, "s1"), writes(dtype, "01")), (),
                   ((1, reduce(op, load(0, elements.type))),))  # fmt: skip
    data = draw(rng, shape, "float32", shape[0] < 1000)
    (want_y,) = expected(rows._replace(stores=rows.stores[:1]), list(shape), [data, data])
    kept = Nest(("p", "r"), (reads("float32", "s1"), writes(dtype, "s1")), (), ((1, elements),))
    (points,) = expected(kept, list(shape), [data, data])
    (want,) = expected(columns, list(shape), [points, points])
    units = -(-shape[0] // 16384) * 16
    for level in LEVEL_NAMES:
        got, parts = output(shape, "float32"), np.ones((units, 2 * shape[1]), numpy_dtype(dtype))
        run(rows, list(shape), [data, got, parts], level=level, cuts=[1, 15, 16, 20])
        total = output((units, shape[1]), dtype, (1,))
        run(columns._replace(block=16), [units, shape[1]], [parts[:, : shape[1]], total], level=level)
        assert same(got, want_y) and same(total[:1], want), level


# -- memory ------------------------------------------------------------------------------------------------


def at_line(shape: tuple[int, ...], dtype: str, shift: int = 0) -> Array:
    """An output whose first element lies `shift` elements after the begin of a cache line."""
    kind = numpy_dtype(dtype)
    area = np.zeros(int(np.prod(shape)) * kind.itemsize + 128, np.uint8)
    start = -area.ctypes.data % 64 + shift * kind.itemsize
    return area[start : start + int(np.prod(shape)) * kind.itemsize].view(kind).reshape(shape)


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "bool"])
def test_outputs_that_pass_the_caches(dtype: str, shift: int, rng: np.random.Generator) -> None:
    """16 MB and more: at lines and beside them, cheap and costly bodies, cuts anywhere, rows, in place."""
    n = STREAM_FROM // numpy_dtype(dtype).itemsize + 7
    x = load(0, compute_type(dtype))
    for value in [x, rough_exp(x)] if dtype == "float32" else [x]:
        flat = Nest(("p",), (reads(dtype, "1"), writes(dtype, "1")), (), ((1, value),))
        assert "nontemporal" in nest_text(flat, host_target()) or not host_target().streams
        assert "nontemporal" not in nest_text(flat._replace(small=True), host_target())
        data = draw(rng, (n,), dtype, False)
        check(flat, [n], [data, at_line((n,), dtype, shift)], cuts=[16, 333, 100000])
    (want,) = expected(flat, [n], [data, data])
    same_memory = at_line((n,), dtype, shift)
    same_memory[...] = data
    run(flat, [n], [same_memory, same_memory])
    assert same(same_memory, want)
    shape = (n // 48 + 1, 48)
    for roles in ("pp", "pr"):
        value = x if roles == "pp" or x.type == "i1" else x + reduce("max", x)
        rows = Nest(tuple(roles), (reads(dtype, "s1"), writes(dtype, "s1")), (), ((1, value),))
        check(rows, list(shape), [draw(rng, shape, dtype, False), at_line(shape, dtype, shift)], cuts=[5])


def test_parts_of_a_large_array_pass_the_caches(rng: np.random.Generator) -> None:
    """The size of the whole decides, which is a number: below it, at it, and off the lines."""
    out = writes("float32", "s1")._replace(part=0)
    nest = Nest(("p", "p"), (reads("float32", "s1"), out), ("i64",), ((1, load(0, "f32")),))
    asked = nest_text(nest, host_target()).partition("icmp sge")[0]
    assert "ptr %arg, i64 6" in asked or not host_target().streams, "after 2 sizes and 4 strides"
    for whole in (1000, STREAM_FROM // 4):
        for shift in (0, 1):
            place = at_line((20, 128), "float32", shift)[:, 64:]
            check(nest, [20, 64], [draw(rng, (20, 64), "float32", False), place], [whole], [3])


def fenced(x: Array) -> Array:
    """x copied to the end of a page whose successor may not be touched."""
    page = mmap.PAGESIZE
    size = -(-max(1, x.nbytes) // page) * page
    area = mmap.mmap(-1, size + page)
    _FENCES.append(area)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + size), page, 0) == 0
    y = np.frombuffer(area, x.dtype, x.size, size - x.nbytes).reshape(x.shape)
    y[...] = x
    return y


_FENCES: list[mmap.mmap] = []


@pytest.mark.parametrize("dtype", ["float32", "float16", "bool", "int64"])
@pytest.mark.parametrize("n", [1, 7, 17, 100, 129])
def test_nothing_outside_is_touched(dtype: str, n: int, rng: np.random.Generator) -> None:
    """Every schedule on operands that end where the next byte would be a fault."""
    x = load(0, compute_type(dtype))
    value = Scalar("not", (x,), "i1") if dtype == "bool" else x + x
    flat = Nest(("p",), (reads(dtype, "1"), writes(dtype, "1")), (), ((1, value),))
    check(flat, [n], [fenced(draw(rng, (n,), dtype)), fenced(output((n,), dtype))])
    for roles, shape, classes, kept in (("pr", (3, n), "10", 0), ("rp", (n, 3), "01", 1)):
        nest = Nest(tuple(roles), (reads(dtype, "s1"), writes(dtype, classes)), (), ((1, reduce("max", x)),))
        out = fenced(np.zeros(3, numpy_dtype(dtype)))
        strides = [out.itemsize if d == kept else 0 for d in (0, 1)]
        view = np.lib.stride_tricks.as_strided(out, (3, 1) if kept == 0 else (1, 3), strides)
        check(nest, list(shape), [fenced(draw(rng, shape, dtype)), view])


@pytest.mark.parametrize("dtypes", [("float16", "bfloat16"), ("bfloat16", "float16")])
def test_elements_that_are_moved_and_converted(dtypes: tuple[str, str]) -> None:
    """The same elements as they are, and in the other dtype of 16 bits: not integers."""
    operands = [Operand("bfloat16", "in", ("1",)), *(Operand(dtype, "out", ("1",)) for dtype in dtypes)]
    stores = tuple((k, Scalar("round", (load(0),), "f32", dtype)) for k, dtype in enumerate(dtypes, 1))
    nest = Nest(("p",), tuple(operands), (), stores)
    assert moved(nest) is nest
    alone = Nest(("p",), (operands[0], operands[1 + dtypes.index("bfloat16")]), (), ((1, load(0)),))
    assert {operand.dtype for operand in moved(alone).operands} == {"int16"}


def test_rounded_once() -> None:
    """What is rounded to bfloat16 is stored with these bits, not rounded again; as float16 it is."""
    x = Scalar("round", (load(0) * load(0),), "f32", "bfloat16")
    operands = [Operand(dtype, mode, ("1",)) for dtype, mode in (("bfloat16", "in"), ("bfloat16", "out"))]
    once = Nest(("p",), tuple(operands), (), ((1, x),))
    unlike = once._replace(operands=(operands[0], operands[1]._replace(dtype="float16")))
    plain = once._replace(stores=((1, load(0) * load(0)),))
    steps = [nest_text(nest, host_target()).count("fcmp uno") for nest in (once, plain, unlike)]
    assert steps[0] == steps[1] == steps[2] > 0
    assert nest_text(unlike, host_target()).count("fptrunc") == steps[0]


def test_rounding_to_bfloat16(rng: np.random.Generator) -> None:
    """To nearest even, denormals too, NaN made quiet, whatever the other lanes hold."""
    edges = [0, 1, 0x7FFF, 0x8000, 0x8001, 0x7F7FFF, 0x7F8000, 0x7FFFFF, 0x800000, 0x807FFF, 0x808000]
    edges += [0x818000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FBFFFFF, 0x7FC00000]
    normal = rng.integers(0x00800000, 0x7F800000, 1 << 16, np.uint32)
    some = np.concatenate(
        [normal, np.uint32(edges), normal[:50], rng.integers(0, 1 << 32, 1 << 16, np.uint32)]
    )
    x = np.concatenate([some, some | np.uint32(1 << 31)]).view(np.float32)
    nest = Nest(("p",), (reads("float32", "1"), writes("bfloat16", "1")), (), ((1, load(0)),))
    check(nest, [x.size], [x, np.zeros(x.size, np.uint16)])
