"""Timing two frameworks in turn, and a plain copy.

Samples alternate A B A B and the order is swapped every round, so a drifting clock or a busy neighbour meets
both. A sample repeats its statement until it takes about a millisecond; the collector is off.
"""

from __future__ import annotations

import gc
import statistics
import time
import timeit
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

SAMPLE_SECONDS = 2e-3
MIN_ROUNDS = 11


class Work(NamedTuple):
    """Something to time: a statement over names, and an expression whose value shows that it computes the
    right thing.
    """

    statement: str
    names: dict[str, Any]
    result: str = ""


class Times(NamedTuple):
    """Seconds per execution of a statement."""

    median: float
    minimum: float


def timer(work: Work) -> Callable[[int], float]:
    """A function that runs the statement n times and returns the seconds it took."""
    return timeit.Timer(work.statement, globals=dict(work.names)).timeit


def repeats(run: Callable[[int], float]) -> int:
    """How many executions make a sample, after warming up (first and second sight, caches, clocks)."""
    run(3)
    started, count = time.perf_counter(), 1
    while time.perf_counter() - started < 0.2:
        took = run(count)
        if took > SAMPLE_SECONDS / 2:
            return max(1, int(count * SAMPLE_SECONDS / took))
        count *= 2
    return count


def interleaved(works: list[Work], seconds: float, least: int = MIN_ROUNDS) -> list[Times]:
    """Times of several works, sampled in turn for about `seconds` in all, and at least so many times."""
    runs = [timer(w) for w in works]
    counts = [repeats(r) for r in runs]
    samples: list[list[float]] = [[] for _ in runs]
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        ends, rounds = time.perf_counter() + seconds, 0
        while rounds < least or time.perf_counter() < ends:
            order = range(len(runs)) if rounds % 2 == 0 else reversed(range(len(runs)))
            for k in order:
                samples[k].append(runs[k](counts[k]) / counts[k])
            rounds += 1
    finally:
        if enabled:
            gc.enable()
    return [Times(statistics.median(s), min(s)) for s in samples]


def copy_work(nbytes: int) -> Work:
    """A plain copy of `nbytes`, the machine's memory bandwidth as everybody can reach it."""
    source, target = np.ones(nbytes // 4, np.float32), np.zeros(nbytes // 4, np.float32)
    return Work("copyto(target, source)", {"copyto": np.copyto, "source": source, "target": target})


def most_memory(framework: Any, step: Callable[[], Any]) -> int:
    """The most bytes that the tensors of a step take beyond those that are there before it."""
    if framework.is_kiln:
        framework.reset_peak_memory_stats()
        before = framework.memory_stats()["allocated_bytes"]
        step()
        return int(framework.memory_stats()["peak_allocated_bytes"] - before)
    profiler = framework.profiler
    with profiler.profile(profile_memory=True, activities=[profiler.ProfilerActivity.CPU]) as profile:
        step()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most
