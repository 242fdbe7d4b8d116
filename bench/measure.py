"""Timing two frameworks in turn, and what the machine could do at best.

Samples alternate A B A B and the order is swapped every round, so a drifting clock or a busy neighbour meets
both. A sample repeats its statement until it takes about a millisecond; the collector is off.
"""

from __future__ import annotations

import ctypes
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


def interleaved(works: list[Work], seconds: float) -> list[Times]:
    """Times of several works, sampled in turn for about `seconds` in all."""
    runs = [timer(w) for w in works]
    counts = [repeats(r) for r in runs]
    samples: list[list[float]] = [[] for _ in runs]
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        ends, rounds = time.perf_counter() + seconds, 0
        while rounds < MIN_ROUNDS or time.perf_counter() < ends:
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


PEAK_IR = """
define void @peak(float* %out, i64 %n) "target-features"="{features}" "prefer-vector-width"="{bits}" {{
entry:
  %x = load <{w} x float>, ptr %out, align 4
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
{phis}
{fmas}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %end
end:
{sum}
  store <{w} x float> %s{last}, ptr %out, align 4
  ret void
}}
declare <{w} x float> @llvm.fma.v{w}f32(<{w} x float>, <{w} x float>, <{w} x float>)
"""

CHAINS = 12


def peak_flops(seconds: float = 0.3) -> float:
    """Float32 operations per second of one core: independent chains of fused multiply-adds in registers.

    loop: a0 = fma(a0, x, x); a1 = fma(a1, x, x); ... a11 = fma(a11, x, x)
    """
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    width = 16 if features.get("avx512f") else 8 if features.get("avx2") else 4
    vector = f"<{width} x float>"
    text = PEAK_IR.replace("float* %out", "ptr %out").format(
        w=width,
        bits=32 * width,
        features=features.flatten(),
        last=CHAINS - 1,
        phis="\n".join(f"  %a{k} = phi {vector} [%x, %entry], [%b{k}, %loop]" for k in range(CHAINS)),
        fmas="\n".join(
            f"  %b{k} = call {vector} @llvm.fma.v{width}f32({vector} %a{k}, {vector} %x, {vector} %x)"
            for k in range(CHAINS)
        ),
        sum=f"  %s0 = fadd {vector} %b0, %x\n"
        + "\n".join(f"  %s{k} = fadd {vector} %s{k - 1}, %b{k}" for k in range(1, CHAINS)),
    )
    module = llvm.parse_assembly(text)
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(engine.get_function_address("peak"))
    buffer = np.zeros(64, np.float32)
    steps, best, ends = 200_000, 0.0, time.perf_counter() + seconds
    while time.perf_counter() < ends:
        started = time.perf_counter()
        run(buffer.ctypes.data, steps)
        best = max(best, 2.0 * width * CHAINS * steps / (time.perf_counter() - started))
    return best
