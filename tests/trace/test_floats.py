"""Floats made of sizes that vary: the function's bits and gradients at every size, or a refusal."""

from __future__ import annotations

import math
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kiln
from kiln.export import Dim


def _by_root(x: Any) -> Any:
    return (x @ x.mT) / math.sqrt(x.shape[-1])


def _by_power(x: Any) -> Any:
    scale = x.size(-1) ** -0.5
    return (x * scale) @ x.mT, x.half() * scale, x.bfloat16() / (x.size(0) ** 0.5), scale * x.sum()


def _by_parts(x: Any) -> Any:
    n, m = x.shape
    part = 1 / n
    return (
        x.sum() * part,
        x * (n / 2 + 0.25 - m / 3),
        (x > 0) * part,
        x / (n / m),
        -part * x,
        x.long() + n / m,
    )


def _by_ops(x: Any) -> Any:
    part = 1 / math.sqrt(x.numel())
    return kiln.where(x > 0, x, part), kiln.clamp(x, -part, part), x.add(x, alpha=part), part - x, x > part


def _as_tensors(x: Any) -> Any:
    part = 1 / x.shape[0]
    mixed = kiln.tensor([part, 2, x.shape[1]])
    return x * kiln.tensor(part), mixed, kiln.tensor(part, dtype=kiln.float64), kiln.as_tensor(part).half()


def _as_content(x: Any) -> Any:
    n = x.shape[0]
    rows = kiln.zeros(n)
    rows.fill_(n / 7)
    y = x.clone()
    y[0] = n / 3
    like = kiln.full_like(x, n / 7)
    whole = kiln.full((2, n), n / 7, dtype=kiln.float64)
    return (
        kiln.full((2, n), n / 7),
        whole,
        like,
        x.new_full((n,), math.sqrt(n)),
        rows,
        y,
        x.clone().fill_(-n / 7),
    )


def _of_constants(x: Any) -> Any:
    return kiln.ones(3) * (x.shape[0] / 4), x.double() * (1 / x.shape[0]), x.double() / math.sqrt(x.shape[1])


def _beside_tensors(x: Any) -> Any:
    """On the left of an operator that a float has too."""
    half, y = x.shape[0] / 2, x.exp()
    return half > x, half == x, half <= x, half % y, half // y


def _by_negatives(x: Any) -> Any:
    n, m = x.shape
    return x * (n / -2), x / (m / -3), x * (1 / (n / 7) / -0.5)


def _with_numpy(x: Any) -> Any:
    """NumPy's numbers of 64 bits round as Python's."""
    n, m = x.shape
    third = np.float64(0.3)
    return (
        x * (third * (1 / n)),
        x.double() * (third * m - 1 / n * third),
        x.double() * (np.int64(3) / n + np.sqrt(1 / m)),
        x * (np.array([0.3, 0.7]) * (1 / n))[1] + np.multiply([0.1, n], 1 / m)[1],
        x.reshape(np.int64(1) * n, m - np.int64(0)),
    )


_BODIES = [
    _by_root, _by_power, _by_parts, _by_ops, _as_tensors, _as_content, _of_constants, _beside_tensors,
    _by_negatives, _with_numpy,
]  # fmt: skip


@pytest.mark.parametrize("f", _BODIES)
def test_every_size_has_the_bits_of_the_function(f: Any, tmp_path: Path) -> None:
    """Values and gradients; also those of a file."""
    kiln.manual_seed(0)
    shapes = {"x": {0: Dim("n", min=1, max=60), 1: Dim("m", min=1)}}
    traced = kiln.jit.trace(f, (kiln.randn(5, 4, requires_grad=True),), dynamic_shapes=shapes)

    class Model(kiln.nn.Module):
        def forward(self, x: Any) -> Any:
            return f(x)

    kiln.export.save(kiln.export.export(Model(), (kiln.randn(5, 4),), dynamic_shapes=shapes), tmp_path / "m")
    loaded = kiln.export.load(tmp_path / "m")
    for size in ((5, 4), (1, 1), (7, 3), (60, 11)):
        x, y, z = (
            kiln.randn(*size, generator=kiln.Generator().manual_seed(1)).requires_grad_() for _ in range(3)
        )
        found = [f(x), traced(y), loaded(z)]
        found = [r if isinstance(r, tuple) else (r,) for r in found]
        for a, b, c in zip(*found, strict=True):
            assert a.dtype == b.dtype == c.dtype
            assert a.tolist() == b.tolist() == c.tolist()
        for results in found:
            sum(r.float().sum() for r in results if r.requires_grad).backward()
        assert x.grad.tolist() == y.grad.tolist() == z.grad.tolist()


def test_math_is_as_it_was() -> None:
    """Behind a trace, and for numbers while one runs."""
    before, within = math.sqrt, []

    def f(x: Any) -> Any:
        within.append(math.sqrt(4))
        return x / math.sqrt(x.shape[0])

    kiln.jit.trace(f, kiln.ones(3), dynamic_shapes={"x": {0: Dim("n")}})
    with pytest.raises(ValueError, match="math domain error"):
        kiln.jit.trace(lambda x: x * math.sqrt(-1), kiln.ones(3), dynamic_shapes={"x": {0: Dim("n")}})
    assert math.sqrt is before and set(within) == {2.0}


@pytest.mark.parametrize(
    "body",
    [
        lambda x: x[: int(x.shape[0] * 0.5)],
        lambda x: x * math.log(x.shape[0]),
        lambda x: x.double() * x.shape[0] ** 0.3,
        lambda x: x if x.shape[0] / 2 > 1 else -x,
        lambda x: x * len(f"{x.shape[0] / 2}"),
        lambda x: x.pow(1 / x.shape[0]),
        lambda x: x * {1.5: 1}.get(x.shape[0] / 2, 2),
        lambda x: x * math.sqrt(x.shape[0] / 2 - 1),
        lambda x: x * ((1 / x.shape[0]) // 2),
        lambda x: (x, x.shape[0] / 2),
        lambda x: kiln.full((2,), x.shape[0] / 2, dtype=kiln.float16),
        lambda x: x.half().sum() * (1 / x.shape[0]),
        lambda x: x * (x.shape[0] ** 400.0),
        lambda x: x * round(x.shape[0] / 2),
        lambda x: x * kiln.tensor(x.shape[0] / 2, dtype=kiln.int32),
        lambda x: x * (np.float32(0.3) * (1 / x.shape[0])),
        lambda x: x * ((1 / x.shape[0]) * np.float32(0.3)),
        lambda x: x.double() * (np.float32(0.3) * x.shape[0]),
        lambda x: x * (x.shape[0] / np.int8(3)),
        lambda x: x * (np.array([0.3], np.float16) * (1 / x.shape[0]))[0],
        lambda x: x * np.log(1 / x.shape[0]),
        lambda x: x * np.log(x.shape[0]),
        lambda x: x * (x.shape[0] / 2 / 0.0),
        lambda x: x * sqrt(x.shape[0]),  # by a name from before the trace
    ],
)
def test_what_reads_one_is_refused_with_the_line(body: Any) -> None:
    with pytest.raises(
        RuntimeError, match=r"test_floats.py:\d+ has the size n re(ad|turned) as a (float|number)"
    ):
        kiln.jit.trace(body, kiln.ones(3), dynamic_shapes={"x": {0: Dim("n")}})


def test_what_looks_like_a_size_is_none() -> None:
    """The square root of an object with such attributes is Python's, also while a function is traced."""

    class Number:
        recorder, plain = None, None

        def __float__(self) -> float:
            return 9.0

    traced = kiln.jit.trace(
        lambda x: x * math.sqrt(Number()), kiln.ones(3), dynamic_shapes={"x": {0: Dim("n")}}
    )
    assert traced(kiln.ones(2)).tolist() == [3.0, 3.0]


def test_one_that_is_read_can_be_checked() -> None:
    traced = kiln.jit.trace(
        lambda x: x * int(x.shape[0] / 2), kiln.ones(4), dynamic_shapes={"x": {0: Dim("n")}}, on_data="check"
    )
    assert traced(kiln.ones(4)).tolist() == [2.0] * 4
    with pytest.raises(RuntimeError, match="was made where n == 4 is True"):
        traced(kiln.ones(5))


def test_a_size_of_zero_divides_nothing() -> None:
    """Where Python raises for it, the program says what it asks of the size."""
    traced = kiln.jit.trace(
        lambda x: x.sum() * (1 / x.shape[0]), kiln.ones(3), dynamic_shapes={"x": {0: Dim("n")}}
    )
    assert traced(kiln.ones(7)).item() == (kiln.ones(7).sum() * (1 / 7)).item()
    with pytest.raises(RuntimeError, match="was made where n > 0 is True"):
        traced(kiln.ones(0))
    rooted = kiln.jit.trace(
        lambda x: x.sum() + math.sqrt(x.shape[0]), kiln.ones(3), dynamic_shapes={"x": {0: Dim("n")}}
    )
    assert rooted(kiln.ones(0)).item() == 0
