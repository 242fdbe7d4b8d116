"""Rows of a few elements, and few columns side by side: the bits that any other layout gives.

Their kernels go element by element, or 16 rows at a time; a transposed copy goes as everything else does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kiln

SIZES = (1, 2, 3, 4, 5)  # the last one is not short any more
ROWS = {
    "sum": lambda x: x.sum(-1), "prod": lambda x: x.prod(-1), "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(-1), "argmax": lambda x: x.argmax(-1), "argmin": lambda x: x.argmin(-1),
    "any": lambda x: (x > 0).any(-1), "softmax": lambda x: x.softmax(-1), "norm": lambda x: x.norm(dim=-1),
    "var": lambda x: x.var(-1), "logsumexp": lambda x: x.logsumexp(-1),
}  # fmt: skip
MAPS = {
    "flip": lambda x: x.flip(-1), "broadcast": lambda x: x * x[:, :1] - x[0],
    "gather": lambda x: x.gather(1, x.argmax(-1, True)),
}  # fmt: skip
COLUMNS = {
    "sum": lambda x: x.sum(-2), "squares": lambda x: (x * x).sum(-2), "amax": lambda x: x.amax(-2),
    "argmax": lambda x: x.argmax(-2), "weighted": lambda x: (x * x[..., :1]).sum(-2),
    "norm": lambda x: x.norm(dim=-2),
}  # fmt: skip


def hard(rng: Any, *shape: int) -> Any:
    """Values with ties, both zeros, infinities and NaN."""
    x = rng.normal(size=shape).round(1)
    for value in (0.0, -0.0, np.inf, -np.inf, np.nan):
        x[rng.random(shape) < 0.06] = value
    return x


def same(a: Any, b: Any) -> bool:
    """The same bits; a NaN is a NaN."""
    a, b = (np.asarray(x.double().numpy() if x.dtype != kiln.int64 else x.numpy()) for x in (a, b))
    return bool(np.all((a == b) & (np.signbit(a) == np.signbit(b)) | (a != a) & (b != b)))


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", [*ROWS, *MAPS])
def test_rows_of_a_few_elements(name: str, dtype: str, rng: Any) -> None:
    """In rows, and transposed in memory."""
    f = ROWS.get(name) or MAPS[name]
    for n in SIZES:
        x = kiln.tensor(hard(rng, 70, n), dtype=getattr(kiln, dtype))
        assert same(f(x), f(x.t().contiguous().t())), n


def test_the_order_of_four(rng: Any) -> None:
    """The first and the third, the second and the fourth, then these."""
    x = rng.normal(size=(50, 4)).astype(np.float32)
    want = (x[:, 0] + x[:, 2]) + (x[:, 1] + x[:, 3])
    np.testing.assert_array_equal(kiln.tensor(x).sum(1).numpy(), want)
    np.testing.assert_array_equal(kiln.tensor(x[:, :3].copy()).sum(1).numpy(), (x[:, 0] + x[:, 2]) + x[:, 1])
    assert kiln.zeros(3, 0).sum(1).tolist() == [0.0] * 3 and kiln.zeros(3, 0).prod(1).tolist() == [1.0] * 3


@pytest.mark.parametrize("name", COLUMNS)
def test_few_columns(name: str, rng: Any) -> None:
    """One after the other in memory, with room between rows, of a batch, and with the rows as columns."""
    f = COLUMNS[name]
    for n in (2, 3, 15, 16):
        for rows in (1, 16, 37, 128, 300):
            x = kiln.tensor(hard(rng, 2, rows, n), dtype=kiln.float32)
            wide = kiln.cat([x, x], -1)
            want = f(wide)[..., :n]
            assert same(f(x), want) and same(f(wide[..., :n]), want) and same(f(x[1]), want[1]), (n, rows)
            assert same(f(x.transpose(1, 2).contiguous().transpose(1, 2)), want), (n, rows)


def test_more_rows_than_a_block(rng: Any) -> None:
    """Blocks of 16384 rows, the last one of a few."""
    x = kiln.tensor(rng.normal(size=(2 * 16384 + 21, 3)), dtype=kiln.float32)
    assert same(x.sum(0), x.t().contiguous().sum(1)) and same(x.amax(0), x.t().contiguous().amax(1))


def test_recorded_and_in_place(rng: Any) -> None:
    """A recorded program and an update in place give the same."""
    x = kiln.tensor(rng.normal(size=(40, 3)), dtype=kiln.float32)

    def step(x: Any) -> Any:
        y = x / x.norm(dim=-1, keepdim=True)
        y += x[:, :1]
        y.sub_(y.mean(-1, keepdim=True))
        return y, (y * y).sum(0)

    want = [t.tolist() for t in step(x)]
    recorded = kiln.compile(step)
    for _ in range(3):
        assert [t.tolist() for t in recorded(x)] == want
