"""The machines kernels are made for: levels, what each level may execute, and which level this host has.

A kernel is compiled for a *level*, never for a CPU name, so the same pattern gives the same object on
every machine of that level. Nothing here imports LLVM: a warm process asks for the host's level to
find a cached object and never needs a compiler.

    level           vectors         masked loads   tails run through     second cache
    x86-64-v4-amx   zmm, 512 bits   yes            a lane mask           2 MB
    x86-64-v4       zmm, 512 bits   yes            a lane mask           1 MB
    x86-64-v3       ymm, 256 bits   no             a copy on the stack   512 KB
    aarch64         q, 128 bits     no             a copy on the stack   512 KB

Of the first, products of bfloat16 and of 8-bit integers go by AMX. The second cache of a core is what most
machines of the level have at least: blocks of products are cut to it.

``KILN_TARGET_FEATURES`` lowers the level: a level's name, or a list of ``-feature``. The system must permit
AMX to each process: it is asked once, and where it refuses, a line in the log of ``kiln.compile`` says so.
"""

from __future__ import annotations

import os
from functools import cache

from kiln import _core
from kiln.codegen.blocking import AmxBlocking, FmaBlocking
from kiln.scalars.scalar import ARITHMETIC, COMPARE, FLOAT_ONLY, FLOATS, INTS, LOGIC, REDUCE, SHIFT, WIDTH
from kiln.tuples import NamedTuple

V3 = ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sse4.1", "sse4.2", "ssse3")
V4 = (*V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
AMX = ("amx-bf16", "amx-int8", "amx-tile", "avx512bf16")
# Kernel names of features that LLVM spells otherwise.
LINUX_NAMES = {"abm": "lzcnt", "bmi1": "bmi", "sse4_1": "sse4.1", "sse4_2": "sse4.2",
               "amx_bf16": "amx-bf16", "amx_int8": "amx-int8", "amx_tile": "amx-tile",
               "avx512_bf16": "avx512bf16"}  # fmt: skip


class Target(NamedTuple):
    """One level: how LLVM is asked for it and what the emitter may assume about it."""

    name: str
    triple: str
    cpu: str
    features: str
    vector_bits: int
    masks: bool  # masked loads and stores of any elements are single instructions
    second_cache: int  # bytes of a core's second cache
    fma: FmaBlocking  # how products by vectors are cut
    amx: AmxBlocking | None = None  # products of bfloat16 and of 8-bit integers run on AMX, cut so
    layout: str = ""  # sizes and alignments, where they are not those that LLVM assumes
    relocation: str = "pic"  # how code names addresses: "pic" relative to itself, "static" as numbers
    fuses: bool = True  # an instruction multiplies and adds with one rounding
    halves: bool = True  # instructions convert float16
    relaxed: bool = False  # products of matrices round once or twice a step, as the engine likes

    @property
    def word_masks(self) -> bool:
        """Whether masked loads of elements of 4 and 8 bytes are single instructions."""
        return self.masks or self.vector_bits == 256

    @property
    def narrow(self) -> bool:
        """Whether the 16 lanes of kernels are several of its vectors, of elements of 16 bits and more."""
        return self.vector_bits == 128

    @property
    def tiles(self) -> bool:
        """Whether there are tiles of AMX; where there are, bfloat16 has instructions."""
        return self.amx is not None

    @property
    def streams(self) -> bool:
        """Whether stores can bypass the caches, and a fence orders them."""
        return self.triple.startswith("x86_64")

    def includes(self, other: Target) -> bool:
        """Whether a machine of this level runs kernels made for the other."""
        return self.triple == other.triple and (self.vector_bits, self.tiles) >= (
            other.vector_bits,
            other.tiles,
        )

    def head(self) -> str:
        """The first lines of a module for this level, as LLVM text."""
        layout = f'target datalayout = "{self.layout}"\n' if self.layout else ""
        return f'{layout}target triple = "{self.triple}"'

    def attributes(self) -> str:
        """Function attributes of every kernel, as LLVM text."""
        width = f' "prefer-vector-width"="{self.vector_bits}" "min-legal-vector-width"="{self.vector_bits}"'
        return "nounwind" + (width if self.vector_bits > 128 else "")


# Two registers a row of sums, two for B and one for A: of 32 registers, or of 16.
TALL, LOW = FmaBlocking((14, 12, 8, 4)), FmaBlocking((6, 4), narrow=12, panel_rows=4, transposed=4)
WHOLE = TALL._replace(squares=True, swap_panels=4)  # a vector is a cache line

# Where multiplying and adding are two instructions and an address is several, a tile is wide: eight registers
# of sums, four for B, one for A, one between.
WIDE = FmaBlocking((2, 1), vectors=4, narrow=12, panel_rows=4, transposed=2)

LEVELS = {
    "x86-64-v4-amx": Target("x86-64-v4-amx", "x86_64-unknown-linux-gnu", "x86-64-v4",
                            "+fast-gather,+avx512bf16,+amx-tile,+amx-bf16,+amx-int8", 512,
                            True, 2 << 20, WHOLE, AmxBlocking(1 << 20)),
    "x86-64-v4": Target("x86-64-v4", "x86_64-unknown-linux-gnu", "x86-64-v4",
                        "+fast-gather", 512, True, 1 << 20, WHOLE),
    "x86-64-v3": Target("x86-64-v3", "x86_64-unknown-linux-gnu", "x86-64-v3", "", 256, False, 512 << 10, LOW),
    "aarch64": Target("aarch64", "aarch64-unknown-linux-gnu", "generic", "+neon", 128, False,
                      512 << 10, TALL),
}  # fmt: skip

WASM = Target("wasm32", "wasm32-unknown-unknown", "generic", "+simd128", 128, False, 256 << 10, WIDE,
              layout="e-m:e-p:32:32-p10:8:8-p20:8:8-i64:64-i128:128-n32:64-S128-ni:1:10:20",
              relocation="static", fuses=False, halves=False)  # fmt: skip

RELAXED = WASM._replace(name="wasm32-relaxed", features="+simd128,+relaxed-simd", relaxed=True)

# Every intrinsic a kernel may name: each is instructions on every level, never a call to a library.
INTRINSICS = frozenset({
    "llvm.fma", "llvm.sqrt", "llvm.floor", "llvm.ceil", "llvm.trunc", "llvm.roundeven", "llvm.fabs",
    "llvm.masked.load", "llvm.masked.store", "llvm.masked.gather", "llvm.masked.scatter", "llvm.prefetch",
})  # fmt: skip
X86_INTRINSICS = frozenset({
    "llvm.x86.avx512.mask.cvttps2dq.512", "llvm.x86.avx.cvtt.ps2dq.256", "llvm.x86.avx512.mask.scalef.ps.512",
    "llvm.x86.avx512.mask.scalef.pd.512", "llvm.x86.sse.sfence",
})  # fmt: skip

AMX_INTRINSICS = frozenset({
    "llvm.x86.ldtilecfg", "llvm.x86.tilerelease", "llvm.x86.tilezero", "llvm.x86.tileloadd64",
    "llvm.x86.tileloaddt164", "llvm.x86.tilestored64", "llvm.x86.tdpbf16ps", "llvm.x86.tdpbssd",
    "llvm.x86.tdpbuud", "llvm.x86.avx512bf16.cvtne2ps2bf16.512", "llvm.x86.avx512bf16.cvtneps2bf16.512",
    "llvm.x86.avx512.fpclass.ps.512",
})  # fmt: skip


def intrinsic_allowed(name: str, target: Target) -> bool:
    """Whether a kernel for `target` may call the intrinsic `name` (with or without its type suffix)."""
    if name.startswith("llvm.x86."):
        if name in AMX_INTRINSICS:
            return target.tiles
        wide = ".avx512." in name
        return target.vector_bits >= (512 if wide else 256) and name in X86_INTRINSICS
    parts = name.split(".")
    if parts[:2] == ["llvm", "fma"] and not target.fuses:
        return False
    if parts[:2] == ["llvm", "fmuladd"]:
        return target.relaxed
    return any(".".join(parts[:n]) in INTRINSICS for n in range(2, len(parts) + 1))


def legal(op: str, type: str, target: Target) -> bool:
    """Whether scalars may apply `op` to operands of `type`; the table LLVM never has to refuse.

    i1 takes logic, comparison, select and conversion; a target's width never matters, because LLVM
    splits vectors.
    """
    del target  # what a level has no instruction for is written in others
    if type not in WIDTH:
        return False
    if op in ARITHMETIC:
        return type != "i1"
    if op in SHIFT:
        return type in INTS
    if op in FLOAT_ONLY or op == "bits":
        return type in FLOATS
    if op == "round":
        return type == "f32"
    if op in LOGIC:
        return type not in FLOATS
    if op == "from_bits":
        return type in {"i32", "i64"}
    if op in {"sum", "prod"}:
        return type != "i1"
    if op in {"all", "any"}:
        return type == "i1"
    return op in COMPARE or op in REDUCE or op in {"select", "convert", "const", "load", "number", "index"}


def _cpuinfo() -> dict[str, str]:
    """The first processor of /proc/cpuinfo as a dictionary; empty where there is none."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            text = file.read(16384)
    except OSError:
        return {}
    fields = {}
    for line in text.split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    return fields


def _x86_level(have: frozenset[str], asked: str) -> Target:
    """The highest x86 level with every feature present and none taken away by `asked`."""
    removed = {token[1:] for token in asked.replace(" ", "").split(",") if token.startswith("-")}
    removed |= {
        name for name in (*V4, *AMX) if any(r.endswith("*") and name.startswith(r[:-1]) for r in removed)
    }
    if "avx512f" in removed or not set(V4) <= have - removed:
        if not set(V3) <= have - removed:
            lacking = ", ".join(sorted(set(V3) - (have - removed)))
            raise RuntimeError(
                f"kiln: this CPU lacks {lacking}; kiln needs x86-64-v3 (AVX2 and FMA) or aarch64"
            )
        return LEVELS["x86-64-v3"]
    return LEVELS["x86-64-v4-amx" if set(AMX) <= have - removed and _permitted() else "x86-64-v4"]


def _permitted() -> bool:
    """Whether the system lets this process use AMX; it is asked, and a refusal said, once."""
    permitted = _core.ask_for_tiles()
    if not permitted:
        import logging  # 10 ms, and seldom needed

        logging.getLogger("kiln.compile").warning(
            "this CPU has AMX, but the system does not permit it to this process (a thread with a small "
            "signal stack, or a sandbox): products of bfloat16 run in float32 and those of int8 in int32, "
            "several times slower"
        )
    return permitted


def host_target() -> Target:
    """The level of this machine, lowered by ``KILN_TARGET_FEATURES``.

    Raises RuntimeError on a CPU below x86-64-v3 / aarch64, and ValueError for an unknown or
    unavailable level in the variable.
    """
    return _find_target(os.environ.get("KILN_TARGET_FEATURES", ""))


@cache
def _find_target(asked: str) -> Target:
    machine = os.uname().machine
    if machine in {"aarch64", "arm64"}:
        best = LEVELS["aarch64"]
    elif machine in {"x86_64", "AMD64"}:
        flags = _cpuinfo().get("flags", "").split()
        have = frozenset(LINUX_NAMES.get(name, name) for name in flags)
        without = "-amx*" if asked in LEVELS and not LEVELS[asked].tiles else ""
        best = _x86_level(have, asked if asked.startswith("-") else without)
    else:
        raise RuntimeError(f"kiln: no kernels for {machine}; kiln needs x86-64-v3 (AVX2 and FMA) or aarch64")
    if not asked or asked.startswith("-"):
        return best
    chosen = LEVELS.get(asked)
    if chosen is None or not best.includes(chosen):
        raise ValueError(
            f"KILN_TARGET_FEATURES: expected a level up to {best.name} or -feature, got {asked!r}"
        )
    return chosen
