"""What one core computes at best: multiply-adds in registers, of float32 and of bfloat16."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np

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
    features = _features()
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
    return _best(text, 2.0 * width * CHAINS, np.zeros(64, np.float32), seconds)


TILES_IR = """
define void @peak(ptr %config, i64 %n) "target-features"="{features}" {{
entry:
  call void @llvm.x86.ldtilecfg(ptr %config)
{zeros}
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
{products}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %end
end:
  call void @llvm.x86.tilerelease()
  ret void
}}
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilezero(i8 immarg)
declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)
declare void @llvm.x86.tilerelease()
"""

SUMS = 6  # tiles of sums; two more are factors
ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18


def peak_bfloat16(seconds: float = 0.3) -> float:
    """bfloat16 operations per second of one core, summed in float32: products of tiles of 16 x 32 numbers
    that stay where they are; float32's peak where there are no tiles.

    loop: t0 += t6 * t7; t1 += t6 * t7; ... t5 += t6 * t7
    """
    features = _features()
    if not features.get("amx-bf16") or ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA):
        return peak_flops(seconds)
    text = TILES_IR.format(
        features=features.flatten(),
        zeros="\n".join(f"  call void @llvm.x86.tilezero(i8 {k})" for k in range(SUMS + 2)),
        products="\n".join(
            f"  call void @llvm.x86.tdpbf16ps(i8 {k}, i8 {SUMS}, i8 {SUMS + 1})" for k in range(SUMS)
        ),
    )
    config = np.zeros(64, np.uint8)
    config[0], config[16:32:2], config[48:56] = 1, 64, 16  # palette; 64 bytes a row; 16 rows
    return _best(text, 2.0 * 16 * 16 * 32 * SUMS, config, seconds)


def _features() -> Any:
    import llvmlite.binding as llvm

    return llvm.get_host_cpu_features()


def _best(text: str, operations: float, data: Any, seconds: float) -> float:
    """Operations per second of the quickest run of a loop whose turn does so many."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(text)
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(engine.get_function_address("peak"))
    steps, best, ends = 100_000, 0.0, time.perf_counter() + seconds
    while time.perf_counter() < ends:
        started = time.perf_counter()
        run(data.ctypes.data, steps)
        best = max(best, operations * steps / (time.perf_counter() - started))
    return best


def peak_int8() -> float:
    """8-bit integer operations per second of one core: a tile takes twice as many k at a time."""
    return peak_bfloat16() * (2 if _features().get("amx-int8") else 1)


PEAKS = {"float32": peak_flops, "bfloat16": peak_bfloat16, "int8": peak_int8}
