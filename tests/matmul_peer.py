"""Kernels of products called directly: what their tests share."""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from codegen_peer import load_object, numpy_dtype

from kiln.codegen.compile import compile_parts
from kiln.codegen.gemm.arguments import BATCH
from kiln.codegen.gemm.kernel import gemm_parts
from kiln.codegen.gemm.spec import GemmSpec, product
from kiln.codegen.target import LEVELS, Target, host_target

Array = np.ndarray[Any, Any]
HOST = host_target()
# what machines of 128 bits run, as far as this one can: no masks, the tallest tiles
NARROW = LEVELS["x86-64-v3"]._replace(name="128 bits", vector_bits=128, fma=LEVELS["aarch64"].fma)
TARGETS = [t for t in (*LEVELS.values(), NARROW) if HOST.includes(t)]
DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8"]
_built: dict[tuple[str, str], Any] = {}


def kernel(spec: GemmSpec, target: Target = HOST) -> Any:
    """The compiled pattern."""
    key = spec.text(), target.name
    if key not in _built:
        _built[key] = load_object(compile_parts(gemm_parts(spec, target), target))
    return _built[key]


class Guarded:
    """Arrays that end (or begin) where readable memory does."""

    def __init__(self) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.rooms: list[Array] = []

    def room(self, nbytes: int) -> Array:
        """Bytes, whole pages, between two pages that may not be touched."""
        page = mmap.PAGESIZE
        inside = max(-(-nbytes // page) * page, page)
        memory = mmap.mmap(-1, inside + 2 * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for wall in (start, start + page + inside):
            assert self.libc.mprotect(ctypes.c_void_p(wall), ctypes.c_size_t(page), 0) == 0
        self.rooms.append(np.frombuffer(memory, np.uint8, inside, page))
        return self.rooms[-1]

    def place(self, x: Array, at_end: bool) -> Array:
        """A contiguous copy of x between two pages that may not be touched."""
        room = self.room(x.nbytes)
        offset = room.size - x.nbytes if at_end else 0
        copy = np.ndarray(x.shape, x.dtype, room.data, offset)
        copy[...] = x
        return copy


@cache
def _scratch_room(nbytes: int) -> Array:
    return Guarded().room(nbytes)


@cache
def _parts_room(nbytes: int) -> Array:
    return Guarded().room(nbytes)


def scratch_after(spec: GemmSpec) -> Array:
    """What the last launch left in the thread's own memory."""
    room = _scratch_room(spec.scratch * 8)
    return room[(room.size - spec.scratch * 8) // 64 * 64 :]


@contextmanager
def scratch_of(spec: GemmSpec) -> Iterator[int]:
    """The address of a thread's own memory, as aligned as the core's: NaN everywhere, or -1, where nothing
    was written; no page before or after it may be touched, no byte between it and them changes.
    """
    nbytes = spec.scratch * 8
    room = _scratch_room(nbytes)
    room.fill(0xFF)
    before = (room.size - nbytes) // 64 * 64
    yield room.ctypes.data + before
    assert np.all(room[:before] == 0xFF) and np.all(room[before + nbytes :] == 0xFF)


def run(
    spec: GemmSpec,
    a: Array,
    b: Array,
    operands: Sequence[Array],
    numbers: Sequence[int | float] = (),
    target: Target = HOST,
    cuts: Sequence[int] = (),
    at_once: int = 0,
    in_stretches: bool = False,
) -> None:
    """Launch on arrays of one to BATCH dims and matrices; the units are done in pieces that end at `cuts`,
    last first. With `at_once`, the launch is cut along k, in rounds of so many segments. `in_stretches`: the
    rows of `a` are two dims.
    """
    stretch = (a.shape[-2], a.strides[-3] // a.itemsize) if in_stretches else ()
    a = a[..., 0, :, :] if in_stretches else a
    missing = (0,) * (BATCH + 2 - a.ndim)
    strides = [s // x.itemsize for x in (a, b, *operands) for s in (*missing, *x.strides)]
    words = [np.float64(x).view(np.int64) if isinstance(x, float) else x for x in numbers]
    batch, m, k, n = a.shape[:-2], operands[0].shape[-2], a.shape[-1], b.shape[-1]
    assert not spec.row or m == 1
    arg = np.array([*(1 for _ in missing), *batch, m, n, k, *(stretch or (m, 0)), *strides, *words], np.int64)
    sizes = [math.prod(batch), m, n, k]
    launch(spec, target, [x.ctypes.data for x in (a, b, *operands)], arg, sizes, cuts, at_once)


def launch(
    spec: GemmSpec,
    target: Target,
    addresses: Sequence[int],
    arg: Array,
    sizes: Sequence[int],
    cuts: Any,
    at_once: int = 0,
) -> None:
    """Call the kernel for its units in pieces that end at `cuts`, last first; `sizes` are batch, m, n and k.

    Each piece finds the thread's memory as if it were the first. With `at_once`, see `run`.
    """
    batch, m, n, k = sizes
    units, rows, segments = spec.units(batch, m, n), batch * m, spec.segments(k)
    steps: list[tuple[int, int, int, Sequence[int]]] = [(0, 0, units, cuts)]
    if at_once:
        rounds = [(first, min(at_once, segments - first)) for first in range(0, segments, at_once)]
        steps = []
        for first, count in rounds:
            steps += [(first, count, units * count, cuts), (first, -count, rows, (rows // 3,))]
    parts = _parts_of(spec.part(batch, m, n) * (at_once + 1))
    for first, count, many, pieces in steps:
        whole = np.array([*arg, first, count], np.int64)
        places = [0, *sorted({c * max(count, 1) for c in pieces}), many]
        for begin, end in reversed(list(itertools.pairwise(places))):
            with scratch_of(spec) as scratch:
                pointers = (ctypes.c_void_p * (len(addresses) + 2))(*addresses, parts, scratch)
                kernel(spec, target)(pointers, whole.ctypes.data, begin, end)


def _parts_of(words: int) -> int:
    """The address of memory for the sums of segments, full of NaN, that ends where readable memory does."""
    room = _parts_room(1 << max(words * 8 - 1, 4095).bit_length())
    room.fill(0xFF)
    return room.ctypes.data + room.size - words * 8 // 64 * 64


def multiply(
    a: Array, b: Array, dtype: str = "float32", target: Target = HOST, cuts: Sequence[int] = ()
) -> Array:
    """The plain product of 3-d arrays."""
    out = np.empty((a.shape[0], a.shape[1], b.shape[2]), numpy_dtype(dtype))
    out.view(np.uint8).fill(0x5A)
    run(product(dtype), a, b, [out], target=target, cuts=cuts)
    return out


def draw(rng: np.random.Generator, dtype: str, *shape: int) -> Array:
    """Values of a dtype: normal floats (bfloat16 as bits), any integers."""
    if dtype == "bfloat16":
        return (rng.normal(size=shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    kind = numpy_dtype(dtype)
    if kind.kind == "f":
        return rng.normal(size=shape).astype(kind)
    info = np.iinfo(kind)
    return rng.integers(info.min, info.max, size=shape, dtype=kind, endpoint=True)
