"""What calls take while programs are compiled, all on one core: python bench/beside.py

A compiled step is called again and again. Meanwhile a large function is seen a second time, so that the
compiling thread works on its program, with an empty cache. The median of the calls should not move; the
longest may, by the interpreter's switch interval.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from typing import Any

os.environ["KILN_CACHE_DIR"] = tempfile.mkdtemp()
os.environ["KILN_PACK"] = "0"

import kiln


def large(seed: int) -> Any:
    """A function of some hundred ops that nobody has compiled yet."""

    def f(x: Any) -> Any:
        parts = []
        for k in range(24 + seed):
            y = (x * (1 + seed + k)).tanh() + x.roll(k + 1, 0)
            parts.append((y - y.mean(-1, keepdim=True)).softmax(-1) @ x[: x.shape[1]])
        return sum(parts)

    return kiln.compile(f)


def calls(step: Any, x: Any, go_on: Any) -> list[float]:
    """Seconds of each call, as long as `go_on()`."""
    found = []
    while go_on():
        begun = time.perf_counter()
        step(x)
        found.append(time.perf_counter() - begun)
    return found


def waits(compiled: Any) -> bool:
    """Whether its program is being compiled."""
    return any(r["pending"] for r in compiled._region.describe(False)["recordings"])


def main() -> None:
    """Prints medians and tails, in microseconds."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    kiln.set_num_threads(1)
    w = kiln.randn(128, 128)
    step = kiln.compile(lambda x: ((x @ w).relu() @ w).tanh().sum())
    x = kiln.randn(64, 128)
    for _ in range(200):
        step(x)
        kiln.compiler.wait()
    for seed in range(5):
        begun = time.perf_counter()
        alone = calls(step, x, lambda begun=begun: time.perf_counter() < begun + 1)
        other = large(seed)
        big = kiln.randn(64, 32)
        other(big)
        other(big)
        beside = calls(step, x, lambda other=other: waits(other))
        a, b = statistics.median(alone) * 1e6, statistics.median(beside) * 1e6 if beside else float("nan")
        tail = sorted(beside)[int(len(beside) * 0.99)] * 1e6 if beside else float("nan")
        told = f"{b:.1f} us ({b / a:.2f}x), 99 % below {tail:.0f} us, {len(beside)} calls"
        print(f"alone {a:.1f} us; while compiling {told}")


if __name__ == "__main__":
    main()
