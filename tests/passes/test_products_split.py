"""Products cut along k: segments summed alone, then added, have the bits of one launch, and of the chains.

Every part ends where readable memory does, and memory is full of NaN before it is written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from codegen_peer import numpy_dtype
from hypothesis import given
from hypothesis import strategies as st
from matmul_peer import TARGETS as LEVELS
from matmul_peer import Guarded, draw, multiply, run
from plan_runner import product as chains
from test_codegen_matmul import bias_relu
from test_codegen_windows import Look
from test_codegen_windows import run as run_window
from test_products_proof import COLUMNS, CUTS, LAYOUTS, Layout, drawn, lay, places, same

import kiln
from kiln.codegen.gemm.element import element_of
from kiln.codegen.gemm.grid import TILED
from kiln.codegen.gemm.spec import product
from kiln.codegen.target import Target
from kiln.ops.windows.products import convolve_weight

DEPTHS = st.sampled_from([1, 511, 512, 513, 1024, 1500, 2049, 3700])
DTYPES = ["float32", "float32", "float64", "float16", "int64"]
TARGETS = [t for t in LEVELS if not t.tiles]  # those dtypes have the same kernels with AMX


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@drawn(6)
@given(
    dtype=st.sampled_from(DTYPES), batch=st.sampled_from([1, 1, 3]),
    m=st.sampled_from([1, 2, 10, 17, 26, 50, 70]), n=COLUMNS, k=DEPTHS, a_lies=LAYOUTS, b_lies=LAYOUTS,
    at_once=st.integers(1, 5), cuts=CUTS, seed=st.integers(0, 99),
)  # fmt: skip
def test_cut(
    target: Target, dtype: str, batch: int, m: int, n: int, k: int, a_lies: Layout, b_lies: Layout,
    at_once: int, cuts: list[float], seed: int,
) -> None:  # fmt: skip
    """Plain, one row, and with an epilogue; any number of segments at a time, any cut of their units."""
    n = min(n, 2_000_000 // (k * batch * m) + 2)
    rng, guarded = np.random.default_rng(seed), Guarded()
    a = lay(guarded, draw(rng, dtype, batch, m, k), a_lies)
    b = lay(guarded, draw(rng, dtype, batch, k, n), b_lies)
    spec, out = product(dtype), np.empty((batch, m, n), numpy_dtype(dtype))
    at = places(cuts, spec.units(batch, m, n))
    run(spec, a, b, [out], target=target, cuts=at, at_once=at_once)
    whole = multiply(a.copy(), b.copy(), dtype, target)
    assert same(out, whole)
    row = np.empty((batch, 1, n), out.dtype)
    run(spec._replace(row=True), a[:, :1], b, [row], target=target, at_once=at_once)
    assert same(row, whole[:, :1])
    if dtype in ("float32", "float64"):
        bias = np.broadcast_to(draw(rng, dtype, 1, 1, n), (batch, m, n))
        pre, act = (np.empty((batch, m, n), out.dtype) for _ in range(2))
        run(bias_relu(("0", "1"), dtype), a, b, [pre, act, bias], [0.75], target, at, at_once)
        assert same(pre, whole * whole.dtype.type(0.75) + bias)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_chains_written_out(dtype: str, rng: np.random.Generator) -> None:
    """One chain from zero per 512 k, the segments added ascending; no sum of -0.0 becomes +0.0."""
    a, b = draw(rng, dtype, 1, 13, 2600), draw(rng, dtype, 1, 2600, 40)
    if dtype != "int32":
        a[0, 3], b[0, :, 5] = -0.0, 1
    expected = chains(a, b, element_of(dtype).summed)
    for target in TARGETS:
        for at_once in (1, 2, 4, 6):
            got = np.empty((1, 13, 40), a.dtype)
            run(product(dtype), a, b, [got], target=target, at_once=at_once)
            assert same(got, expected), (target.name, at_once)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_window(target: Target, rng: np.random.Generator) -> None:
    """A weight's gradient: k is (image, places); and images side by side."""
    x, a = draw(rng, "float32", 1, 9000), draw(rng, "float32", 20, 1444)
    for look, images in (
        (Look(9000, ((4, 400), (19, 20), (19, 1)), ((3, 20), (3, 1))), 1),
        (Look(9000, ((4, 400), (19, 20), (19, 1)), ((2, 20), (31, 2))), 3),
    ):
        columns = int(np.prod([size for size, _ in look.n]))
        whole, cut = (np.empty((images, 20, columns), np.float32) for _ in range(2))
        run_window(a, x, look, images, 1500, whole, "float32", target)
        for at_once in (1, 2, 3):
            run_window(a, x, look, images, 1500, cut, "float32", target, (1,), at_once)
            assert same(cut, whole)


CASES: dict[str, Callable[[Any], Any]] = {
    "weight gradient": lambda x: x(60_000, 10).mT @ x(60_000, 128),
    "one row": lambda x: x(1, 40_000) @ x(40_000, 100),
    "one column": lambda x: x(30, 9_000) @ x(9_000, 1),
    "batch": lambda x: x(2, 20, 7_000) @ x(2, 7_000, 130),
    "transposed": lambda x: x(9, 30_000) @ x(70, 30_000).mT,
    "computed": lambda x: kiln.relu(x(40, 9_000)) @ x(9_000, 100),
    "convolution": lambda x: convolve_weight.handle(
        x(16, 32, 26, 26), x(16, 1, 28, 28), (1,), (3, 3), (1, 1), (0, 0), (1, 1), (1, 0)
    ),
    "rounds": lambda x: x(64, 40_000) @ x(40_000, 100),
}


@pytest.fixture
def threads() -> Any:
    """Sets the number of threads; as before at the end."""
    before = kiln.get_num_threads()
    yield kiln.set_num_threads
    kiln.set_num_threads(before)


@pytest.mark.parametrize("name", CASES)
def test_bits_at_any_thread_count(name: str, threads: Callable[[int], None]) -> None:
    """Eager and recorded, alone and with what follows fused into it."""
    made: dict[tuple[int, ...], Any] = {}

    def given(*shape: int) -> Any:
        if shape not in made:
            values = np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)
            made[shape] = kiln.tensor(values)
        return made[shape]

    functions = [lambda: CASES[name](given), lambda: kiln.relu(CASES[name](given) * 0.5 + 1.0)]
    functions += [kiln.compile(f) for f in functions]
    seen: list[list[bytes]] = [[] for _ in functions]
    for count in (1, 2, 3, 8):
        threads(count)
        for results, function in zip(seen, functions):
            results += [function().numpy().tobytes() for _ in range(2)]
    assert len(set(seen[0] + seen[2])) == len(set(seen[1] + seen[3])) == 1


def test_from_several_threads_of_python(threads: Callable[[int], None]) -> None:
    """Launches that are cut, from threads at once: whoever does not get the pool does all of its own."""
    threads(3)
    a, b = (kiln.tensor(np.random.default_rng(0).normal(size=s)) for s in ((12, 40_000), (40_000, 30)))
    expected, wrong = (a @ b).numpy().tobytes(), []

    def work() -> None:
        wrong.extend(1 for _ in range(8) if (a @ b).numpy().tobytes() != expected)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_order_of_tiles_has_no_segments() -> None:
    """Of bfloat16 and 8-bit integers nothing is cut: where there is AMX a sum is one chain over all k."""
    assert all(product(dtype).segments(60_000) == 1 for dtype in TILED)
    assert product("float32").segments(60_000) == 118


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_few_rows_by_a_transposed_factor(dtype: str, target: Target) -> None:
    """Numbers of rows that end in a short panel, on every machine's; plain, cut, and with an epilogue."""
    rng = np.random.default_rng(3)
    for m in (5, 9, 10, 17, 18, 19, 33, 34, 35, 49, 65, 67, 129, 257):
        a, b = draw(rng, dtype, 1, m, 530), draw(rng, dtype, 1, 530, 272)
        transposed = np.ascontiguousarray(b.swapaxes(1, 2)).swapaxes(1, 2)
        whole = multiply(a, b, dtype, target)
        assert same(multiply(a, transposed, dtype, target), whole), m
        out = np.empty_like(whole)
        run(product(dtype), a, transposed, [out], target=target, at_once=2)
        assert same(out, whole), m
        if dtype.startswith("float"):
            outs = [np.empty_like(whole) for _ in range(4)]
            ones = np.ones_like(whole)
            for (x, factor, cut), (pre, relu) in zip(
                ((a, b, 0), (a, transposed, 2)), ((outs[0], outs[1]), (outs[2], outs[3]))
            ):
                run(
                    bias_relu(("s", "1"), dtype),
                    x,
                    factor,
                    [pre, relu, ones],
                    [2.0],
                    target,
                    at_once=cut,
                )
            assert same(outs[0], outs[2]) and same(outs[1], outs[3]), m
