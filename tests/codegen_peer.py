"""Running nests two ways: as kernels (loaded by LLVM's own linker) and as NumPy, in the documented order."""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from kiln.codegen.compile import compile_text
from kiln.codegen.nests.generate import nest_text
from kiln.codegen.nests.nest import Nest, Operand, reductions
from kiln.codegen.target import LEVELS, Target, host_target
from kiln.scalars.on_numpy import DTYPE, evaluate
from kiln.scalars.scalar import FLOATS, Scalar
from kiln.table.order import LANES, REDUCE_BLOCK

Array = np.ndarray[Any, Any]
NUMPY = {"bool": np.bool_, "float16": np.float16, "bfloat16": np.uint16}
HOST = host_target().name
_jit: Any = None
_kept: list[Any] = []
_built: dict[tuple[str, str], Any] = {}


def reads(dtype: str, classes: str) -> Operand:
    """An input operand; one letter per dim."""
    return Operand(dtype, "in", tuple(classes))


def writes(dtype: str, classes: str) -> Operand:
    """An output operand; one letter per dim."""
    return Operand(dtype, "out", tuple(classes))


def numpy_dtype(dtype: str) -> Any:
    """The NumPy dtype that holds a kiln dtype; bfloat16 by its bits."""
    return np.dtype(NUMPY.get(dtype, dtype))


def unbundled(data: bytes) -> list[bytes]:
    """The objects of a kernel."""
    if not data.startswith(b"KilnObjs"):
        return [data]
    (count,) = struct.unpack_from("<I", data, 8)
    sizes = struct.unpack_from(f"<{count}I", data, 12)
    ends = list(itertools.accumulate(sizes, initial=12 + 4 * count))
    assert ends[-1] == len(data)
    return [data[start:end] for start, end in itertools.pairwise(ends)]


def load_object(data: bytes) -> Any:
    """The kernel of an ELF object, or of several, as a ctypes function; by LLVM's linker, not the core's."""
    global _jit
    import llvmlite.binding as binding

    if _jit is None:
        binding.initialize_all_targets()
        binding.initialize_all_asmprinters()
        _jit = binding.create_lljit_compiler(binding.Target.from_default_triple().create_target_machine())
    builder = binding.JITLibraryBuilder().export_symbol("kernel")
    for part in unbundled(data):
        builder.add_object_img(part)
    library = builder.link(_jit, f"test{len(_kept)}")
    _kept.append(library)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    return kind(library["kernel"])


def kernel(nest: Nest, target: Target) -> Any:
    """The compiled nest."""
    key = (nest.text(), target.name)
    if key not in _built:
        _built[key] = load_object(compile_text(nest_text(nest, target), target))
    return _built[key]


def units(nest: Nest, sizes: list[int]) -> int:
    """How many units of work a nest has."""
    schedule = nest.schedule()
    p = [s for s, role in zip(sizes, nest.dims) if role == "p"]
    if schedule == "flat":
        return sizes[0] if sizes else 1
    if schedule == "map":
        return int(np.prod(p[:-1]))
    if schedule == "rows":
        return int(np.prod(p))
    if schedule == "strips":
        return -(-p[0] // REDUCE_BLOCK) * LANES
    return int(np.prod(p[:-1])) * -(-p[-1] // nest.column_block())


def run(
    nest: Nest,
    sizes: list[int],
    arrays: list[Array],
    numbers: Sequence[Any] = (),
    level: str = HOST,
    cuts: list[int] | None = None,
) -> None:
    """Run the kernel over all its units, cut at `cuts`; outputs are written in place."""
    function = kernel(nest, LEVELS[level])
    pointers = (ctypes.c_void_p * max(1, len(arrays)))(*[a.ctypes.data for a in arrays])
    strides = [s // a.itemsize for a in arrays for s in a.strides]
    bits = [
        int(np.float64(x).view(np.int64)) if t == "f64" else int(x) for x, t in zip(numbers, nest.numbers)
    ]
    arguments = np.array([*sizes, *strides, *bits, 0], np.int64)
    total = units(nest, sizes)
    edges = sorted({0, total, *[c for c in cuts or [] if 0 <= c <= total]})
    for begin, end in zip(edges, edges[1:]):
        function(ctypes.cast(pointers, ctypes.c_void_p), arguments.ctypes.data, begin, end)


# -- the specification ----------------------------------------------------------------------------------


def to_compute(array: Array, dtype: str) -> Array:
    """An array in memory as its compute type."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if dtype == "float16" else array


def to_memory(value: Array, dtype: str) -> Array:
    """A compute-type array as stored."""
    if dtype != "bfloat16":
        return value.astype(numpy_dtype(dtype))
    bits = np.ascontiguousarray(value).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(value), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def expected(nest: Nest, sizes: list[int], arrays: list[Array], numbers: Sequence[Any] = ()) -> list[Array]:
    """What every store of the nest writes, computed by NumPy over all points, reductions in order."""
    known: dict[int, Array] = {}

    def leaf(node: Scalar) -> Array:
        if id(node) in known:
            return known[id(node)]
        if node.op == "number":
            return np.array(numbers[node.data], DTYPE[node.type])
        if node.op == "index":
            shape = [1] * len(sizes)
            shape[node.data] = sizes[node.data]
            return np.arange(sizes[node.data], dtype=np.int64).reshape(shape)
        operand = nest.operands[node.data]
        read = tuple(slice(0, 1) if c == "0" else slice(None) for c in operand.strides)
        return to_compute(arrays[node.data][read], operand.dtype)

    def gather(node: Scalar, positions: list[Array]) -> Array:
        return to_compute(arrays[node.data][tuple(positions)], nest.operands[node.data].dtype)

    for node in reductions(nest):
        (x,) = evaluate([node.args[0]], leaf, gather)
        known[id(node)] = ordered(node, np.broadcast_to(x, sizes), nest.dims)
    results = evaluate([value for _, value in nest.stores], leaf, gather)
    out = []
    for (k, _), value in zip(nest.stores, results):
        operand = nest.operands[k]
        kept = [1 if c == "0" and r == "r" else s for c, r, s in zip(operand.strides, nest.dims, sizes)]
        out.append(to_memory(np.broadcast_to(value, kept), operand.dtype))
    return out


def ordered(node: Scalar, x: Array, roles: tuple[str, ...]) -> Array:
    """A reduction over the r dims in the documented order; the r dims are kept with size 1."""
    r = [d for d, role in enumerate(roles) if role == "r"]
    p = [d for d, role in enumerate(roles) if role == "p"]
    flat = np.transpose(x, [*r, *p]).reshape(-1, *[x.shape[d] for d in p])
    shape = [1 if role == "r" else x.shape[d] for d, role in enumerate(roles)]
    with np.errstate(all="ignore"):
        return fold(node, flat).reshape(shape)


def fold(node: Scalar, x: Array) -> Array:
    """x (n, ...) reduced over its first dim: blocks of 16384, groups of 128, 16 lanes, the tree."""
    if node.op in ("argmax", "argmin"):
        find = np.argmax if node.op == "argmax" else np.argmin
        return find(x, axis=0).astype(np.int64)
    identity, step = _step(node, x.dtype)
    total = None
    for start in range(0, len(x), 16384):
        block = x[start : start + 16384]
        missing = -len(block) % 128
        padded = np.concatenate([block, np.full((missing, *x.shape[1:]), identity, x.dtype)])
        groups = padded.reshape(-1, 8, 16, *x.shape[1:])
        lanes = np.full((16, *x.shape[1:]), identity, x.dtype)
        for group in groups:
            chain = group[0]
            for vector in group[1:]:
                chain = step(chain, vector)
            lanes = step(lanes, chain)
        for half in (8, 4, 2, 1):
            lanes = step(lanes[:half], lanes[half : 2 * half])
        total = lanes[0] if total is None else step(total, lanes[0])
    if total is None:
        total = np.full(x.shape[1:], 0 if node.op == "sum" else identity, x.dtype)
    return total


def _step(node: Scalar, dtype: Any) -> tuple[Any, Any]:
    op, floating = node.op, node.type in FLOATS
    if op in ("max", "min"):
        low = op == "max"
        compare = np.greater if low else np.less
        if floating:
            edge: Any = -np.inf if low else np.inf
        elif dtype == np.bool_:
            edge = not low
        else:
            edge = np.iinfo(dtype).min if low else np.iinfo(dtype).max
        return edge, lambda a, b: np.where(compare(b, a) | (b != b), b, a)
    if op in ("all", "any"):
        return op == "all", np.logical_and if op == "all" else np.logical_or
    return (-0.0 if floating else 0, np.add) if op == "sum" else (1, np.multiply)


def same(a: Array, b: Array) -> bool:
    """Equal bits, any NaN equal to any NaN."""
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    kind = f"u{a.dtype.itemsize}"
    equal = np.ascontiguousarray(a).view(kind) == np.ascontiguousarray(b).view(kind)
    return bool(np.all(equal | (np.isnan(a) & np.isnan(b))))
