"""Loops on values: written out, and as one call of graphs (kiln.graph).

    python bench/control.py

A line is one program: its time written out in Python, as `while_loop` or `scan`, and how many times as fast
that is, as a ratio of medians. Both reach the same bits. The exit code is 0: a benchmark never gates a test
run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.append(str(Path(__file__).parent.parent))  # behind the installed packages, as in run.py

import time
from statistics import median

import kiln
import kiln.graph


class Row(NamedTuple):
    """A program in both ways, and the repetitions a sample has."""

    name: str
    written: Callable[[], Any]
    called: Callable[[], Any]
    times: int


def counting(steps: int) -> Row:
    """A scalar that is changed in every one of so many steps."""
    x = kiln.tensor(0.5)

    def body(n: Any, x: Any) -> Any:
        return n + 1, x * 0.75 + 0.3

    def written() -> Any:
        n, y = kiln.tensor(0), x
        while n < steps:
            n, y = body(n, y)
        return y

    def called() -> Any:
        return kiln.graph.while_loop(lambda n, x: n < steps, body, (kiln.tensor(0), x))[1]

    return Row(f"while_loop of {steps} scalar steps", written, called, 1)


def bisection() -> Row:
    """A root found by halves: 12 reads."""
    low, high, target = kiln.tensor(0.0), kiln.tensor(2.0), kiln.tensor(1.2345)

    def body(a: Any, b: Any) -> Any:
        m = (a + b) * 0.5
        above = m * m * m > target
        return kiln.where(above, a, m), kiln.where(above, m, b)

    def go(a: Any, b: Any) -> Any:
        return b - a > 4e-4

    def written() -> Any:
        a, b = low, high
        while go(a, b):
            a, b = body(a, b)
        return a

    return Row("bisection, 12 reads", written, lambda: kiln.graph.while_loop(go, body, (low, high))[0], 20)


def newton() -> Row:
    """A square root."""
    x, two = kiln.tensor(1.0), kiln.tensor(2.0)

    def body(x: Any) -> Any:
        return (x + two / x) / 2

    def go(x: Any) -> Any:
        return (x * x - two).abs() > 1e-5

    def written() -> Any:
        y = x
        while go(y):
            y = body(y)
        return y

    return Row("Newton, 4 steps", written, lambda: kiln.graph.while_loop(go, body, x), 50)


def recurrence(gradient: bool) -> Row:
    """A small recurrence of 100 steps, forward or with its gradient."""
    h, w, xs = kiln.ones(4, 8), kiln.ones(8, 8) * 0.1, kiln.ones(100, 4, 8) * 0.01
    w.requires_grad_(gradient)

    def body(h: Any, x: Any) -> Any:
        h = kiln.tanh(h @ w + x)
        return h, None

    def written() -> Any:
        y = h
        for x in xs:
            y, _ = body(y, x)
        return kiln.autograd.grad(y.sum(), w)[0] if gradient else y

    def called() -> Any:
        y = kiln.graph.scan(body, h, xs)[0]
        return kiln.autograd.grad(y.sum(), w)[0] if gradient else y

    return Row(f"scan of 100 steps{' and its gradient' if gradient else ''}", written, called, 1)


def seconds(work: Callable[[], Any], times: int) -> float:
    """Of one repetition."""
    start = time.perf_counter()
    for _ in range(times):
        made = work()
    made.tolist()
    return (time.perf_counter() - start) / times


def main() -> None:
    """Measures every row, its two ways in turn."""
    kiln.set_num_threads(1)
    for row in (counting(1000), bisection(), newton(), recurrence(False), recurrence(True)):
        assert kiln.allclose(row.written(), row.called(), rtol=1e-5), row.name
        samples: tuple[list[float], list[float]] = ([], [])
        for _ in range(15):
            for found, work in zip(samples, (row.written, row.called)):
                found.append(seconds(work, row.times))
        written, called = map(median, samples)
        print(f"{row.name:36} {written * 1e6:10.1f} us {called * 1e6:10.1f} us {written / called:8.1f} x")


if __name__ == "__main__":
    main()
