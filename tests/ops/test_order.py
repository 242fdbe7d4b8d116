"""Sorts, top k, searches, scans where they are hard: NaN, infinities, both zeros, ties, extremes, sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kiln

DTYPES = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
SIZES = (0, 1, 2, 31, 32, 33, 255, 300, 5000)


def hard(rng: Any, size: int, dtype: str) -> Any:
    """Values with ties, extremes and, of floats, NaN, infinities and both zeros."""
    if dtype == "bool":
        return rng.integers(0, 2, size).astype(bool)
    if not dtype.startswith("float"):
        info = np.iinfo(dtype)
        x = rng.integers(max(info.min, -9), 9, size).astype(dtype)
        x[rng.random(size) < 0.1] = info.min
        x[rng.random(size) < 0.1] = info.max
        return x
    x = (rng.normal(size=size).round(1) * 3).astype(dtype)
    for value in (np.nan, np.inf, -np.inf, 0.0, -0.0, np.finfo(dtype).smallest_subnormal):
        x[rng.random(size) < 0.08] = value
    return x


def order(x: Any, descending: bool) -> Any:
    """NumPy's stable order, with the largest first."""
    if not descending:
        return np.argsort(x, kind="stable")
    return len(x) - 1 - np.argsort(x[::-1], kind="stable")[::-1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("descending", [False, True])
def test_argsort(dtype: str, descending: bool, rng: Any) -> None:
    """Stable, whatever the size; the values are the elements themselves."""
    for size in SIZES:
        x = hard(rng, size, dtype)
        values, indices = kiln.sort(kiln.tensor(x), descending=descending)
        np.testing.assert_array_equal(indices.numpy(), order(x, descending))
        np.testing.assert_array_equal(values.numpy(), x[order(x, descending)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [False, True])
def test_topk_is_the_head_of_the_order(dtype: str, largest: bool, rng: Any) -> None:
    """For every k: few of many (found by digits), and nearly all."""
    for size in (5, 40, 300, 5000):
        x = hard(rng, size, dtype)
        for k in sorted({0, 1, 2, 7, size // 5, size - 1, size}):
            if k <= size:
                found = kiln.topk(kiln.tensor(x), k, largest=largest).indices
                np.testing.assert_array_equal(found.numpy(), order(x, largest)[:k])


@pytest.mark.parametrize("transposed", [False, True])
def test_topk_of_long_rows_in_any_order(transposed: bool, rng: Any) -> None:
    """Rows whose elements are all, seldom or never among the largest so far; side by side or far apart."""
    random, size = rng.permutation(5000).astype(np.float32), 5000
    late = np.where(np.arange(size) < 4900, random // 100, random + size)  # the largest are the last
    rows = np.stack([random, np.sort(random), np.sort(random)[::-1], random // 100, late, np.roll(random, 8)])
    rows[5, [3, 4000, 4999]] = np.nan
    x = kiln.tensor(rows.T.copy()).t() if transposed else kiln.tensor(rows.copy())
    for k in (1, 5, 6, 7, 50, 300, 1300):
        for largest in (True, False):
            values, indices = x.topk(k, largest=largest)
            want = np.stack([order(row, largest)[:k] for row in rows])
            np.testing.assert_array_equal(indices.numpy(), want)
            np.testing.assert_array_equal(values.numpy(), np.take_along_axis(rows, want, 1))


def test_topk_is_the_same_compiled_batched_and_its_gradient_one_of_the_chosen(rng: Any) -> None:
    x = kiln.tensor(rng.permutation(3000).astype(np.float32).reshape(2, 1500), requires_grad=True)
    values, indices = x.topk(4)
    (values * kiln.arange(1.0, 5)).sum().backward()
    expected = np.zeros((2, 1500), np.float32)
    np.put_along_axis(expected, indices.numpy(), np.arange(1, 5, dtype=np.float32)[None], 1)
    np.testing.assert_array_equal(x.grad.numpy(), expected)
    compiled = kiln.compile(lambda x: x.topk(4))
    for _ in range(3):
        assert all(kiln.equal(a, b) for a, b in zip(compiled(x.detach()), (values, indices)))
    with kiln.batching():
        rows = [row.topk(4) for row in x.detach()]
    assert kiln.equal(kiln.stack([row.indices for row in rows]), indices)
    assert kiln.equal(kiln.func.vmap(lambda row: row.topk(4).values)(x.detach()), values)


def test_equal_keys_of_many(rng: Any) -> None:
    """One value everywhere, or but for one bit: no digit tells them apart."""
    x = np.full(4000, 2.0, np.float32)
    assert kiln.topk(kiln.tensor(x), 3).indices.tolist() == [0, 1, 2]
    x[3777] = np.nextafter(np.float32(2), np.float32(3))
    assert kiln.topk(kiln.tensor(x), 2).indices.tolist() == [3777, 0]
    assert kiln.argsort(kiln.tensor(x))[-1] == 3777


@pytest.mark.parametrize("shape, dim", [((7, 40, 3), 1), ((50, 6), 0), ((3, 1, 64), 2), ((2, 0, 3), 1)])
def test_every_dim_and_thread_count(shape: tuple[int, ...], dim: int, rng: Any) -> None:
    """Along any dim, transposed or not, on any number of threads."""
    x = rng.integers(-5, 5, shape).astype(np.float32)
    want = np.argsort(x, dim, kind="stable")
    before = kiln.get_num_threads()
    try:
        for threads in (1, 2, 4):
            kiln.set_num_threads(threads)
            np.testing.assert_array_equal(kiln.argsort(kiln.tensor(x), dim).numpy(), want)
            transposed = kiln.tensor(x).permute(2, 0, 1)[..., :] if x.ndim == 3 else kiln.tensor(x).t()
            axes = (2, 0, 1) if x.ndim == 3 else (1, 0)
            np.testing.assert_array_equal(
                kiln.argsort(transposed, axes.index(dim)).numpy(), want.transpose(axes)
            )
    finally:
        kiln.set_num_threads(before)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "uint8"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted(dtype: str, side: str, rng: Any) -> None:
    """As NumPy, for rows of every length, each value and each element itself."""
    for size in (0, 1, 2, 3, 17, 100):
        rows = np.sort(rng.integers(0, 40, size).astype(dtype))
        wanted = np.concatenate([rows, np.arange(0, 42, 3).astype(dtype)])
        found = kiln.searchsorted(
            kiln.tensor(rows, dtype=getattr(kiln, dtype)), kiln.tensor(wanted), side=side
        )
        np.testing.assert_array_equal(found.numpy(), np.searchsorted(rows, wanted, side))


@pytest.mark.parametrize("shape, dim", [((5,), 0), ((3, 50), 1), ((50, 3), 0), ((4, 33, 20), 1), ((0, 3), 0)])
def test_scans(shape: tuple[int, ...], dim: int, rng: Any) -> None:
    """Few and many columns, rows and columns: sums in float64 between positions, rounded where stored."""
    x = rng.normal(size=shape).astype(np.float32)
    want = np.cumsum(x.astype(np.float64), dim).astype(np.float32)
    np.testing.assert_array_equal(kiln.cumsum(kiln.tensor(x), dim).numpy(), want)
    transposed = kiln.tensor(np.ascontiguousarray(x.T)).permute(*reversed(range(x.ndim)))
    np.testing.assert_array_equal(kiln.cumsum(transposed, dim).numpy(), want)
    np.testing.assert_array_equal(
        kiln.cummax(kiln.tensor(x), dim).values.numpy(), np.maximum.accumulate(x, dim) if x.size else x
    )


def test_scan_in_place_and_recorded(rng: Any) -> None:
    """cumsum_ of a view of its own memory; a sum that reads what it wrote; the same recorded."""

    def run(x: Any) -> Any:
        x[::2].cumsum_(0)
        x[1:] += x[:-1].cumsum(0)
        return x.sort(descending=True).values + x.cumprod(0)

    data = rng.normal(size=41)
    want = run(kiln.tensor(data))
    inside = kiln.compile(run)
    for _ in range(3):
        assert inside(kiln.tensor(data)).tolist() == want.tolist()


def test_nan_in_running_extrema() -> None:
    """A NaN stays; the position is the latest NaN's, as in PyTorch."""
    values, indices = kiln.tensor([1.0, float("nan"), 3.0, float("nan"), 2.0]).cummax(0)
    assert indices.tolist() == [0, 1, 1, 3, 3]
    assert values[0] == 1 and kiln.isnan(values[1:]).all()
