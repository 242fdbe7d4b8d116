"""Kernels along one dim, with the arguments of their launches: scatter, scan, sort, search, compact,
windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kiln.codegen.along.along import Along, AlongSpec, blocks
from kiln.codegen.along.compact import Compact
from kiln.codegen.along.scan import Scan
from kiln.codegen.along.scatter import Scatter
from kiln.codegen.along.search import Search
from kiln.codegen.along.sort import Sort
from kiln.codegen.along.windows import DIMS, Geometry, Windows
from kiln.codegen.compile import Part, whole
from kiln.codegen.target import Target
from kiln.graph.graph import Node, Shape, Value
from kiln.graph.size import Dim
from kiln.passes.explore import Array, Read
from kiln.passes.group import Fusion, Group
from kiln.passes.launch import Kernel, Lowered, Memory, array_of, grain_of, stride_class
from kiln.passes.layout import Layout


class AlongKernel(Kernel):
    """An algorithm along one dim as a kernel."""

    def parts(self, target: Target) -> list[Part]:
        algorithm, _ = _ALGORITHMS[self.spec.algorithm]
        return [whole(algorithm(self.spec, target).emit())]


class Job(NamedTuple):
    """A launch in the making: operands with their layouts over `shape`, the dim gone along, what is done."""

    operands: tuple[Operand, ...]
    shape: Shape
    dim: int
    what: str
    numbers: dict[str, Dim]  # the algorithm's own
    cost: float  # nanoseconds per element along the dim


class Operand(NamedTuple):
    """Memory and how it lies."""

    value: Value
    array: Array | None
    layout: Layout


def lower_along(fusion: Fusion, group: Group) -> Lowered:
    """The launch of a group that goes along one dim."""
    node = group.node
    assert node is not None
    algorithm, make = _ALGORITHMS[node.op.algorithm]
    job = make(fusion, node)
    layouts = tuple(o.layout for o in job.operands)
    columns = _columns(job.shape, job.dim, layouts)
    strides = [(x.strides[job.dim], *(x.strides[d] if d >= 0 else 0 for d in columns.last)) for x in layouts]
    classes = tuple("".join(map(stride_class, s)) for s in strides)
    dtypes = tuple(o.value.dtype for o in job.operands)
    spec = AlongSpec(node.op.algorithm, job.what, dtypes, classes)
    pointers = tuple(Memory(o.value, o.array, o.layout.offset) for o in job.operands)
    args = algorithm.arguments(spec).words(number=job.numbers, size=columns.sizes, stride=strides)
    units = blocks(columns.sizes, algorithm.block)
    elements = job.shape[job.dim] * min(algorithm.block, 16)
    scratch = algorithm.scratch_words(spec, job.shape[job.dim])
    return Lowered(AlongKernel(spec), pointers, args, units, grain_of(job.cost, elements), scratch)


def _out(fusion: Fusion, node: Node) -> Operand:
    array = fusion.explorer.arrays[id(node.out)]
    return Operand(node.out, array, array.layout)


def _in(fusion: Fusion, value: Value) -> Operand:
    read = fusion.explorer.strided(value, None)
    assert isinstance(read, Read)
    return Operand(read.value, array_of(fusion, read), read.layout)


def _scatter(fusion: Fusion, node: Node) -> Job:
    """Into an array that holds the base already."""
    dim, shape = node.attrs[0], node.inputs[1].shape
    operands = (_out(fusion, node), *(_in(fusion, v) for v in node.inputs[1:]))
    numbers = {"along": shape[dim], "bound": node.out.shape[dim]}
    return Job(operands, shape, dim, node.op.name, numbers, 1.0)


def _scan(fusion: Fusion, node: Node) -> Job:
    dim, dtype, reverse = node.attrs
    what = f"{node.op.name} {dtype} {'reverse' if reverse else 'forward'}"
    shape = node.out.shape
    operands = (_out(fusion, node), _in(fusion, node.inputs[0]))
    return Job(operands, shape, dim, what, {"along": shape[dim]}, 1.0)


def _sort(fusion: Fusion, node: Node) -> Job:
    dim, descending, (first, count) = node.attrs
    shape = node.inputs[0].shape
    what = "sort descending" if descending else "sort ascending"
    operands = (_out(fusion, node), _in(fusion, node.inputs[0]))
    numbers = {"along": shape[dim], "first": first, "wanted": count}
    return Job(operands, shape, dim, what, numbers, 10.0)


def _search(fusion: Fusion, node: Node) -> Job:
    """The values have no part in the dim."""
    values, rows = node.inputs
    shape = rows.shape
    flat = [
        o._replace(layout=Layout(shape, (0, *o.layout.strides), o.layout.offset))
        for o in (_out(fusion, node), _in(fusion, values))
    ]
    operands = (*flat, _in(fusion, rows))
    return Job(operands, shape, 0, f"search {node.attrs[0]}", {"along": shape[0]}, 0.1)


def _compact(fusion: Fusion, node: Node) -> Job:
    shape = node.inputs[0].shape
    operands = (_out(fusion, node), _in(fusion, node.inputs[0]))
    numbers = {"count": node.out.shape[0], "along": shape[0]}
    return Job(operands, shape, 0, "compact", numbers, 1.0)


def _windows(fusion: Fusion, node: Node) -> Job:
    """The dims before the windows' are columns; the result's last dim stands for the dim gone along."""
    source, taps = node.inputs
    shape, counts, *settings, adds = node.attrs
    lead, out = len(shape) - len(counts), _out(fusion, node)
    steps = out.layout.strides
    own = Layout(source.shape, (*steps[:lead], steps[-1]), out.layout.offset)
    operands = (out._replace(layout=own), _in(fusion, taps), _in(fusion, source))
    numbers: dict[str, Dim] = {}
    for d in range(DIMS):
        k, given = d - DIMS, DIMS - d <= len(counts)
        numbers[f"count {d}"] = counts[k] if given else 1
        numbers[f"size {d}"] = shape[k] if given else 1
        numbers[f"step {d}"] = steps[k] if given else 0
    what = f"{'add' if adds else 'set'} {Geometry.of(*settings).text()}"
    return Job(operands, source.shape, lead, what, numbers, 1.5)


_ALGORITHMS: dict[str, tuple[type[Along], Callable[[Fusion, Node], Job]]] = {
    "scatter": (Scatter, _scatter),
    "scan": (Scan, _scan),
    "sort": (Sort, _sort),
    "search": (Search, _search),
    "compact": (Compact, _compact),
    "windows": (Windows, _windows),
}


def _columns(shape: Shape, dim: int, layouts: tuple[Layout, ...]) -> _Columns:
    """The dims other than `dim`, merged where every operand allows it; at least one."""
    found = _Columns()
    for d in range(len(shape)):
        if d == dim or shape[d] == 1:
            continue
        before = found.last[-1] if found.last else -1
        if before >= 0 and all(x.strides[before] == x.strides[d] * shape[d] for x in layouts):
            found.last[-1], found.sizes[-1] = d, found.sizes[-1] * shape[d]
        else:
            found.last.append(d)
            found.sizes.append(shape[d])
    if not found.last:
        found.last, found.sizes = [-1], [1]  # along which nothing moves
    return found


class _Columns:
    """Merged dims: the last frame dim of each, and its size."""

    def __init__(self) -> None:
        self.last: list[int] = []
        self.sizes: list[Dim] = []
