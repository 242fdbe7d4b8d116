"""Kernels of products, drawn: sizes on both sides of every block, factors that lie anyhow, any cut of units.

Every array ends where readable memory does, and so does the thread's own memory, of which nothing is known.
KILN_TEST_FULL=1 draws a hundred times as many, each time others.
"""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple

import numpy as np
import pytest
from codegen_peer import numpy_dtype
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matmul_peer import DTYPES, TARGETS, Array, Guarded, draw, multiply, run
from plan_runner import best_of, chains_of
from test_codegen_matmul import bias_relu, widened
from test_codegen_prologues import factors, scaled
from test_codegen_windows import Look, seen
from test_codegen_windows import run as run_window

from kiln.codegen.gemm.arguments import DIMS
from kiln.codegen.gemm.element import element_of
from kiln.codegen.gemm.grid import TILED
from kiln.codegen.gemm.spec import GemmSpec, product
from kiln.codegen.nests.nest import TURN, Operand
from kiln.codegen.target import Target
from kiln.scalars.scalar import Scalar, convert, round_to
from kiln.table.kinds import ROUNDED

FULL = os.environ.get("KILN_TEST_FULL") == "1"


def drawn(count: int) -> Any:
    """The settings of a drawn test: `count` cases, the same ones every time."""
    return settings(
        max_examples=count * 100 if FULL else count,
        derandomize=not FULL,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def near(*edges: int) -> Any:
    """Sizes at and around edges."""
    return st.builds(lambda edge, off: max(edge + off, 0), st.sampled_from(edges), st.integers(-1, 1))


ROWS = near(0, 1, 2, 6, 14, 24, 48, 96, 264, 528, 1056)
COLUMNS = near(0, 1, 2, 8, 16, 32, 64, 128, 256, 512, 1024) | st.integers(1000, 1100)
DEPTHS = near(0, 1, 2, 4, 16, 32, 64, 256, 512, 1024) | st.integers(0, 100)
WORK = 4_000_000  # multiply-adds of a case at most
HUGE = 1 << 26  # bytes


class Layout(NamedTuple):
    """How an array lies: its dims from the one nearest in memory; for each, its stride by what is inside it.

    A way that would take too much memory is "dense" instead.
    """

    order: tuple[int, int, int]
    ways: tuple[str, str, str]
    at_end: bool

    def strides(self, shape: tuple[int, ...], itemsize: int) -> list[int]:
        """In elements."""
        strides, extent, left = [0, 0, 0], 1, math.prod(max(n, 1) for n in shape)
        for dim, way in zip(self.order, self.ways):
            step = {
                "dense": extent,
                "spaced": 3 * extent,
                "page": -(-extent * itemsize // 4096) * 4096 // itemsize,
                "line": -(-extent * itemsize // 64) * 64 // itemsize,
                "huge": HUGE // itemsize if dim == self.order[-1] else extent,
                "reversed": -extent,
                "same": 0,
                "overlapping": max(extent // 2, 1),
            }[way]
            # the dims outside this one take as many times its memory
            if abs(step) * left * itemsize > (16 * HUGE if way == "huge" else HUGE):
                step = extent
            strides[dim] = step
            left //= max(shape[dim], 1)
            extent = max(extent, extent + abs(step) * (shape[dim] - 1))
        return strides


WAYS = st.sampled_from(
    ["dense", "dense", "dense", "line", "spaced", "page", "huge", "reversed", "same", "overlapping"]
)
LAYOUTS = st.builds(Layout, st.permutations((2, 1, 0)).map(tuple), st.tuples(WAYS, WAYS, WAYS), st.booleans())
APART = st.sampled_from(["dense", "line", "spaced"])
OUTS = st.builds(Layout, st.just((2, 1, 0)), st.tuples(st.just("dense"), APART, APART), st.booleans())


def lay(guarded: Guarded, values: Array, layout: Layout) -> Array:
    """An array in memory that ends with it, and holds the values where its places are its own."""
    strides = layout.strides(values.shape, values.itemsize)
    reach = [(n - 1) * s for n, s in zip(values.shape, strides) if n]
    below, above = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach)
    room = guarded.room((above - below + 1) * values.itemsize)
    first = room.size - (above - below + 1) * values.itemsize if layout.at_end else 0
    start = first - below * values.itemsize
    view = np.ndarray(values.shape, values.dtype, room.data, start, [s * values.itemsize for s in strides])
    view[...] = values
    return view


def check(a: Array, b: Array, got: Array, dtype: str) -> None:
    """A product is as near the exact one as its chain of k roundings, and one to its dtype, allow."""
    x, y = widened(a, dtype), widened(b, dtype)
    if x.dtype == np.int64:
        assert np.array_equal(got, np.matmul(x, y).astype(got.dtype))
        return
    unit = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    chain = (x.shape[2] + 2) * (2.0**-53 if dtype == "float64" else 2.0**-24)
    exact, bound = x @ y, np.abs(x) @ np.abs(y)
    assert np.all(
        np.abs(widened(got, dtype) - exact) <= chain * bound + unit * np.abs(exact) + 1e-7 * (unit > 1e-4)
    )


def same(x: Array, y: Array) -> bool:
    """Bit by bit."""
    return x.tobytes() == y.tobytes()


CUTS = st.lists(st.floats(0, 1, exclude_min=True, exclude_max=True), max_size=4)


def places(cuts: list[float], units: int) -> list[int]:
    """Where units are cut."""
    return sorted({int(c * units) for c in cuts} - {0, units})


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@drawn(12)
@given(
    dtype=st.sampled_from([*DTYPES, "float32", "float32", "bfloat16", "bfloat16"]),
    batch=st.sampled_from([1, 1, 2, 3, 0]), m=ROWS, n=COLUMNS, k=DEPTHS, a_lies=LAYOUTS, b_lies=LAYOUTS,
    out_lies=OUTS, cuts=CUTS, seed=st.integers(0, 99),
)  # fmt: skip
def test_products(
    target: Target, dtype: str, batch: int, m: int, n: int, k: int, a_lies: Layout, b_lies: Layout,
    out_lies: Layout, cuts: list[float], seed: int,
) -> None:  # fmt: skip
    """Near the exact product; the bits of contiguous factors in one go, and of one row alone."""
    m, k = min(m, WORK // max(n * batch, 1)), min(k, WORK // max(m * n * batch, 1))
    rng, guarded = np.random.default_rng(seed), Guarded()
    a = lay(guarded, draw(rng, dtype, batch, m, k), a_lies)
    b = lay(guarded, draw(rng, dtype, batch, k, n), b_lies)
    out = lay(guarded, np.full((batch, m, n), 0x5A, numpy_dtype(dtype)), out_lies)
    memory = guarded.rooms[-1]
    before = memory.copy()
    spec = product(dtype)
    run(spec, a, b, [out], target=target, cuts=places(cuts, spec.units(batch, m, n)))
    got = out.copy()
    check(a, b, got, dtype)
    assert same(got, multiply(a.copy(), b.copy(), dtype, target))
    out[...] = np.full((), 0x5A, out.dtype)
    assert same(memory, before), "written beside the output"
    if batch and m and n:
        row = np.empty((batch, 1, n), out.dtype)
        at = int(rng.integers(m))
        run(spec._replace(row=True), a[:, at : at + 1], b, [row], target=target)
        assert same(row, got[:, at : at + 1])


ORDERS = st.permutations(range(5)).map(tuple)  # of a factor's dims in memory


def lay_batch(values: Array, order: tuple[int, ...], repeated: tuple[int, ...]) -> Array:
    """A factor whose dims lie in any order; along those in `repeated` its first part is repeated."""
    first = values[tuple(slice(0, 1) if d in repeated else slice(None) for d in range(5))]
    lying = np.ascontiguousarray(first.transpose(order)).transpose(np.argsort(order))
    return np.broadcast_to(lying, values.shape)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@drawn(8)
@given(
    dtype=st.sampled_from(["float32", "float32", "float64", "bfloat16", "int8"]),
    batch=st.tuples(*[st.sampled_from([1, 2, 3])] * 3), m=ROWS, n=COLUMNS, k=DEPTHS, a_order=ORDERS,
    b_order=ORDERS, repeated=st.sets(st.sampled_from([0, 1, 2])), of_a=st.booleans(), cuts=CUTS,
    at_once=st.sampled_from([0, 1, 2]), seed=st.integers(0, 99),
)  # fmt: skip
def test_batches_of_several_dims(
    target: Target, dtype: str, batch: tuple[int, int, int], m: int, n: int, k: int, a_order: tuple[int, ...],
    b_order: tuple[int, ...], repeated: set[int], of_a: bool, cuts: list[float], at_once: int, seed: int,
) -> None:  # fmt: skip
    """Dims of a batch have any strides, in factors, operands and outputs: bits of the batch written out."""
    many, rng = math.prod(batch), np.random.default_rng(seed)
    m, k = min(m, WORK // max(n * many, 1)), min(k, WORK // max(m * n * many, 1))
    at_once = 0 if dtype in TILED or not k else at_once
    a = lay_batch(draw(rng, dtype, *batch, m, k), a_order, tuple(repeated) if of_a else ())
    b = lay_batch(draw(rng, dtype, *batch, k, n), b_order, () if of_a else tuple(repeated))
    expected = multiply(a.reshape(many, m, k), b.reshape(many, k, n), dtype, target)
    units = product(dtype).units(many, m, n)
    out = np.zeros((m, *batch, n), expected.dtype).transpose(1, 2, 3, 0, 4)  # rows of all batches
    run(product(dtype), a, b, [out], target=target, cuts=places(cuts, units), at_once=at_once)
    assert same(out.reshape(many, m, n), expected)
    if m:
        row = np.zeros((*batch[::-1], 1, n), expected.dtype).transpose(2, 1, 0, 3, 4)
        run(product(dtype)._replace(row=True), a[..., :1, :], b, [row], target=target)
        assert same(row.reshape(many, 1, n), expected[:, :1])
    if dtype in ("float32", "float64"):
        bias = lay_batch(draw(rng, dtype, *batch, m, n), (0, 1, 2, 3, 4), tuple(repeated))
        pre = np.zeros_like(out)
        run(
            bias_relu(("s", "1"), dtype), a, b, [pre, out, bias], [0.75], target, places(cuts, units), at_once
        )
        plain = expected * expected.dtype.type(0.75) + bias.reshape(many, m, n)
        assert same(pre.reshape(many, m, n), plain)
        assert same(out.reshape(many, m, n), np.where(plain < 0, plain.dtype.type(0), plain))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@drawn(8)
@given(
    dtype=st.sampled_from(["float32", "float64", "bfloat16", "int8"]), batch=st.sampled_from([1, 2]),
    groups=st.sampled_from([1, 2, 3, 5, 40]), m=ROWS, n=COLUMNS, k=DEPTHS, order=st.permutations(range(4)),
    b_transposed=st.booleans(), at_end=st.booleans(), cuts=CUTS, at_once=st.sampled_from([0, 0, 1, 2]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_rows_of_two_dims(
    target: Target, dtype: str, batch: int, groups: int, m: int, n: int, k: int, order: tuple[int, ...],
    b_transposed: bool, at_end: bool, cuts: list[float], at_once: int, seed: int,
) -> None:  # fmt: skip
    """A first factor whose rows are two dims in any order of memory has the bits of its copy."""
    m = min(m, WORK // max(n * batch * groups, 1))
    k, rng, guarded = min(k, WORK // max(m * n * batch * groups, 1)), np.random.default_rng(seed), Guarded()
    at_once = 0 if dtype in TILED or not k else at_once
    values = guarded.place(draw(rng, dtype, batch, groups, m + 1, k).transpose(order), at_end)
    a = values.transpose(np.argsort(order))[:, :, int(at_end) :][:, :, :m]
    b = draw(rng, dtype, batch, k, n)
    b = np.asfortranarray(b) if b_transposed else b
    rows = groups * m
    expected = multiply(np.ascontiguousarray(a).reshape(batch, rows, k), b, dtype, target)
    out = guarded.place(np.zeros((batch, rows, n), expected.dtype), at_end)
    units = product(dtype).units(batch, rows, n)
    run(product(dtype), a, b, [out], (), target, places(cuts, units), at_once, in_stretches=True)
    assert same(out, expected)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@drawn(4)
@given(
    dtype=st.sampled_from(["float32", "float32", "float64", "bfloat16"]), batch=st.sampled_from([1, 2]),
    m=ROWS, n=COLUMNS, k=DEPTHS, lies=LAYOUTS, classes=st.sampled_from(["001", "010", "000", "ss1", "sss"]),
    taken=st.sampled_from([None, 1, 2]), cuts=CUTS, seed=st.integers(0, 99),
)  # fmt: skip
def test_fused(
    target: Target, dtype: str, batch: int, m: int, n: int, k: int, lies: Layout, classes: str,
    taken: int | None, cuts: list[float], seed: int,
) -> None:  # fmt: skip
    """A scale, a bias and relu have the bits of the same done to the product; in bfloat16, to its sums."""
    m, k = min(m, WORK // max(n * batch, 1)), min(k, WORK // max(m * n * batch, 1))
    rng, guarded = np.random.default_rng(seed), Guarded()
    a = lay(guarded, draw(rng, dtype, batch, m, k), lies)
    b = lay(guarded, draw(rng, dtype, batch, k, n), lies)
    shape = tuple(1 if c == "0" else size for c, size in zip(classes, (batch, m, n)))
    bias = draw(rng, dtype, *shape)
    bias = np.asfortranarray(bias) if classes == "sss" else bias
    bias = np.broadcast_to(bias, (batch, m, n))
    pre, out = (np.empty((batch, m, n), numpy_dtype(dtype)) for _ in range(2))
    spec = bias_relu((classes[1], classes[2]), dtype)._replace(
        accumulator=None if dtype == "bfloat16" else taken
    )
    run(spec, a, b, [pre, out, bias], [0.75], target, places(cuts, spec.units(batch, m, n)))
    plain = multiply(a.copy(), b.copy(), dtype, target)
    if dtype == "bfloat16":
        check_fused(a, b, bias, pre)
        assert same(out, np.where(pre >> 15 == 1, np.uint16(0), pre))
        return
    expected = plain * plain.dtype.type(0.75) + bias
    assert same(pre, expected)
    assert same(out, np.where(expected < 0, expected.dtype.type(0), expected))


def reduced(dtype: str, kept: bool) -> GemmSpec:
    """A product's rows summed, and the places of their greatest elements; the product too, or not."""
    element, wide = element_of(dtype), "float32" if dtype in ROUNDED else dtype
    value = convert(Scalar("load", (), element.summed, 0), element.compute)
    value = round_to(value, dtype) if dtype in ROUNDED else value
    modes = [(wide, "sum", value), (wide, "argmax", value), ("uint8", "argmax", TURN), (dtype, "out", value)]
    modes = modes if kept else modes[:3]
    operands = tuple(Operand(d, mode, ("s", "1")) for d, mode, _ in modes)
    return GemmSpec(dtype, operands, (), tuple((k + 1, x) for k, (_, _, x) in enumerate(modes)))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@drawn(6)
@given(
    dtype=st.sampled_from(["float32", "float32", "float64", "float16", "bfloat16", "int64", "int32"]),
    batch=st.sampled_from([1, 2]), m=ROWS, n=COLUMNS, k=DEPTHS, lies=LAYOUTS, kept=st.booleans(),
    special=st.booleans(), cuts=CUTS, seed=st.integers(0, 99),
)  # fmt: skip
def test_reduced_rows(
    target: Target, dtype: str, batch: int, m: int, n: int, k: int, lies: Layout, kept: bool, special: bool,
    cuts: list[float], seed: int,
) -> None:  # fmt: skip
    """Accumulators are the chains of the product's elements, NaN and infinities too; nothing else changes."""
    m, k = min(m, WORK // max(n * batch, 1)), min(k, WORK // max(m * n * batch, 1))
    rng, guarded = np.random.default_rng(seed), Guarded()
    a = lay(guarded, draw(rng, dtype, batch, m, k), lies)
    b = lay(guarded, draw(rng, dtype, batch, k, n), lies)
    if special and a.dtype.kind == "f" and a.size and b.size:
        a[:, rng.integers(m, size=m // 3)] = rng.choice([np.nan, -np.inf, 0.0])
        b[:, :, rng.integers(n, size=n // 3)] = rng.choice([np.inf, 1.0, 0.0])
    plain = multiply(a.copy(), b.copy(), dtype, target)
    x = widened(plain, dtype).astype(np.float32) if dtype in ROUNDED else plain
    with np.errstate(all="ignore"):
        expected = [chains_of("sum", x), *best_of("argmax", x), plain]
    spec = reduced(dtype, kept)
    outs = [guarded.place(np.full(y.shape, 0x5A, y.dtype), True) for y in expected[: 3 + kept]]
    run(spec, a, b, outs, target=target, cuts=places(cuts, spec.units(batch, m, n)))
    for y, out in zip(expected, outs):
        assert np.array_equal(out, y, equal_nan=y.dtype.kind == "f")
        assert y.dtype.kind != "f" or same(np.signbit(out) & (y == 0), np.signbit(y) & (y == 0))


def check_fused(a: Array, b: Array, bias: Array, got: Array) -> None:
    """The scaled product of bfloat16 and a bias, rounded once."""
    x, y, z = (widened(v, "bfloat16") for v in (a, b, bias))
    exact, bound = x @ y * 0.75 + z, np.abs(x) @ np.abs(y) + np.abs(z)
    chain = (a.shape[2] + 4) * 2.0**-24
    assert np.all(np.abs(widened(got, "bfloat16") - exact) <= chain * bound + 2.0**-8 * np.abs(exact) + 1e-30)


DEEP = st.sampled_from([0, 1, 31, 63, 64, 512, 513, 1025, 2048, 2049, 2100, 4200]) | DEPTHS
OUTER = st.tuples(st.just("dense"), WAYS, WAYS)  # neighbours are side by side, all else lies anyhow


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@drawn(40)
@given(
    dtype=st.sampled_from([*DTYPES, "bfloat16", "bfloat16", "bfloat16", "int8"]),
    batch=st.sampled_from([1, 1, 2, 3]), m=ROWS, n=COLUMNS, k=DEEP, transposed=st.booleans(),
    sides=st.sampled_from([(True, False), (False, True), (True, True)]), ways=st.tuples(OUTER, OUTER),
    at_end=st.booleans(), cuts=CUTS, seed=st.integers(0, 99),
)  # fmt: skip
def test_computed_factors(
    target: Target, dtype: str, batch: int, m: int, n: int, k: int, transposed: bool,
    sides: tuple[bool, bool], ways: tuple[Any, Any], at_end: bool, cuts: list[float], seed: int,
) -> None:  # fmt: skip
    """Factors computed where they are packed have the bits of arrays of them; nothing else is touched."""
    m, k = min(m, WORK // max(n * batch, 1)), min(k, WORK // max(m * n * batch, 1))
    rng, guarded = np.random.default_rng(seed), Guarded()
    x, w, scale = (draw(rng, dtype, *s) for s in ((batch, m, k), (batch, k, n), (1, k, 1)))
    lying = [v.swapaxes(1, 2) if transposed else v for v in (x, w, scale)]
    held = [lay(guarded, v, Layout((2, 1, 0), way, at_end)) for v, way in zip(lying, ways)]
    held.append(np.broadcast_to(guarded.place(lying[2], at_end), lying[1].shape))
    x, w = (v.swapaxes(1, 2) if transposed else v for v in held[:2])
    # what a way lays over itself is not what was drawn
    a, b = (v if own else u for v, u, own in zip(factors(dtype, x, w, scale), (x, w), sides))
    nowhere = np.full((1, 1, 1), 0x5A, a.dtype)
    read = [np.broadcast_to(nowhere, v.shape) if own else v for v, own in zip((a, b), sides)]
    spec, expected = scaled(dtype, *sides, transposed), multiply(a.copy(), b.copy(), dtype, target)
    out = guarded.place(np.full_like(expected, 0x5A), at_end)
    run(spec, *read, [out, *held], target=target, cuts=places(cuts, spec.units(batch, m, n)))
    assert same(out, expected)


LARGE = [
    (4230, 70, 20), (4224, 130, 3), (529, 1050, 40), (1060, 1100, 9), (60, 1024, 1030), (49, 1037, 515),
    (26, 600, 2100), (8500, 33, 2),
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", DTYPES if FULL else ["float32", "bfloat16"])
def test_large(dtype: str, target: Target, rng: np.random.Generator) -> None:
    """Several groups of rows, runs of several units of columns, several segments; cut anywhere."""
    for m, n, k in LARGE:
        a, b = draw(rng, dtype, 1, m, k), draw(rng, dtype, 1, k, n)
        got = multiply(a, b, dtype, target)
        if FULL or np.dtype(got.dtype).kind == "f":
            check(a, b, got, dtype)
        units = product(dtype).units(1, m, n)
        for _ in range(20 if FULL else 1):
            cuts = sorted(set((rng.choice(units - 1, 5) + 1).tolist()))
            assert same(multiply(a, b, dtype, target, cuts), got), (m, n, k, cuts)
        rows, columns = (np.sort(rng.choice(size, 20)) for size in (m, n))
        part = multiply(a[:, rows], b[:, :, columns], dtype, target)
        assert same(part, got[:, rows][:, :, columns]), (m, n, k)


STEPS = st.sampled_from([1, 1, 1, 2, 3, 5, 9, 30, 64, 0, -1, -7])
KERNEL = st.lists(st.tuples(st.integers(1, 5), STEPS), min_size=1, max_size=DIMS)
IMAGE = st.lists(st.tuples(near(1, 3, 8, 16, 30).filter(bool), STEPS), min_size=1, max_size=DIMS - 1)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@drawn(10)
@given(
    dtype=st.sampled_from([*DTYPES, "float32", "bfloat16"]), kernel=KERNEL, image=IMAGE,
    deep=st.sampled_from([1, 1, 3, 40, 300]), m=st.sampled_from([1, 2, 5, 13, 25, 50]),
    images=st.sampled_from([1, 1, 2, 5]), cuts=CUTS, at_end=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_windows(
    target: Target, dtype: str, kernel: list[tuple[int, int]], image: list[tuple[int, int]], deep: int,
    m: int, images: int, cuts: list[float], at_end: bool, seed: int,
) -> None:  # fmt: skip
    """The product over any window has the bits of the product with the window written out."""
    k, n = ((deep * kernel[0][0], kernel[0][1]), *kernel[1:]), tuple(image)
    depth, columns = (int(np.prod([size for size, _ in dims])) for dims in (k, n))
    if m * depth * columns * images > WORK:
        images, k = 1, (kernel[0], *kernel[1:])
        depth = int(np.prod([size for size, _ in k]))
    if m * depth * columns * images > 4 * WORK:
        n = n[:1]
        columns = n[0][0]
    reach = [(size - 1) * step for size, step in (*k, *n)]
    first, size = -sum(min(r, 0) for r in reach), sum(abs(r) for r in reach) + 1
    rng, guarded = np.random.default_rng(seed), Guarded()
    look = Look(size, k, n, first)
    x = guarded.place(draw(rng, dtype, images * size), at_end)
    a = guarded.place(draw(rng, dtype, m, depth), at_end)
    out = guarded.place(np.zeros((images, m, columns), numpy_dtype(dtype)), at_end)
    units = product(dtype).units(1, m, images * columns)
    run_window(a, x, look, images, size, out, dtype, target, places(cuts, units))
    expected = multiply(np.broadcast_to(a, (images, *a.shape)), seen(x, look, images, size), dtype, target)
    assert same(out, expected)
