"""What the computation of one value reads, seen from the dims of the nest it would run in.

    frame := dims, the reduced ones among them, mode
             map        no reduced dims
             lanes      reduced in the fixed order of 16 lanes
             strips     accumulators of 16 lanes of each block, combined (strips.py)
             chains     accumulators of 16 lanes of each 128, combined (statistics.py)
             sequence   reduced one after the other (partial results, ascending)
             blocks     everything reduced, per block of 16384
             matmul     *batch, m, n of a product; what follows it happens at its store

A value is *inline* (computed where it is read) unless it is an array: an input, an opaque result, or a value
that was demanded. Exploring follows inline values through views, which are only collected (layout.py), down
to arrays. What cannot be inline in this frame is demanded: it becomes an array of its own.

A *row value* is a reduction's result or pointwise work on such results, of the same shape: it is inline in
its reduction's frame and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kiln.graph.graph import Graph, Node, Shape, Value
from kiln.passes.layout import (
    Chain,
    Layout,
    Link,
    Links,
    before_reshape,
    contiguous,
    index_maps,
    input_layout,
    is_contiguous,
    resolve,
    squeeze,
)  # fmt: skip
from kiln.table.kinds import VIEWS

ALONE = ("along", "layer", "control")  # kernels that nothing joins
PARTS = ("concat", "embed", "write")  # results that are stored in parts
OPAQUE = frozenset({"matmul", *ALONE, *PARTS, "blocks"})
MOST_REDUCTIONS = 24  # in one kernel, which keeps their accumulators on the stack
DEEPEST = 48  # inline values nested deeper than this are cut by an array


class Frame(NamedTuple):
    """The dims of a nest; `reduced` are positions in `dims`."""

    dims: Shape
    reduced: tuple[int, ...]
    mode: str

    @property
    def kept(self) -> Shape:
        """The sizes of the dims that are not reduced."""
        return tuple(n for d, n in enumerate(self.dims) if d not in self.reduced)

    @property
    def trailing(self) -> bool:
        """Whether the reduced dims are the last ones."""
        first = len(self.dims) - len(self.reduced)
        return bool(self.reduced) and self.reduced == tuple(range(first, len(self.dims)))

    def row_strides(self) -> Shape:
        """The strides of a row value along the dims."""
        inner = iter(contiguous(self.kept).strides)
        return tuple(0 if d in self.reduced else next(inner) for d in range(len(self.dims)))


class Array:
    """A value in memory: who writes it and how it lies there; `update`: in the memory of that input."""

    __slots__ = ("layout", "update", "value", "writers")

    def __init__(self, value: Value) -> None:
        self.value = value
        self.layout = input_layout(value) if value.node is None else contiguous(value.shape)
        self.update = -1
        self.writers = 0  # groups that write it, as bits


class Read(NamedTuple):
    """An array read through strides: `layout` over the frame's dims; `elsewhere`: over its own, at any place.

    `raw`: the memory of an input, not that of a copy of it.
    """

    value: Value
    layout: Layout
    elsewhere: bool
    raw: bool


class Scan:
    """What exploring one value found."""

    def __init__(self) -> None:
        self.reads: dict[Read, None] = {}
        self.demands: list[Value] = []
        self.rows: list[tuple[Value, Chain, Frame]] = []  # row values that are not inline here
        self.own: set[int] = set()  # arrays of the group itself, read at the point they are written at
        self.inline: dict[int, Value] = {}  # what is not memory: computed, or a view that was passed through
        self.indexed = False  # positions along dims are used
        self.clash = False  # an array of the group itself is read at another point

    def demand(self, value: Value) -> None:
        """Asks for a value as an array."""
        if all(v is not value for v in self.demands):
            self.demands.append(value)

    def inside(self, own: dict[int, Shape]) -> Scan:
        """The same inside a kernel of this frame that writes arrays at each point by the strides in `own`."""
        if all(id(read.value) not in own for read in self.reads):
            return self
        scan = Scan()
        scan.demands, scan.rows, scan.inline = self.demands, self.rows, self.inline
        scan.indexed = self.indexed
        for read in self.reads:
            if id(read.value) in own:
                at_point = read.layout.strides == own[id(read.value)] and read.layout.offset == 0
                scan.clash |= read.elsewhere or not at_point
                scan.own.add(id(read.value))
            else:
                scan.reads[read] = None
        return scan


class Look(NamedTuple):
    """The frame a value runs in by itself, and what it reads there."""

    frame: Frame
    scan: Scan


Key = tuple[int, bool]  # of a look: id of the value, and whether an array of its own is read or written


class Explorer:
    """Exploring the values of one graph; `arrays` grows as values are demanded.

    A look holds until a value that it computes becomes an array: it is forgotten, its key `stale`.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.links = Links()
        self.arrays: dict[int, Array] = {}
        self.order = {id(n.out): k for k, n in enumerate(graph.nodes)}
        self.rows: dict[int, Frame] = {}
        self.stale: dict[Key, None] = {}
        self._looks: dict[Key, Look] = {}
        self._chains: dict[tuple[Shape, Frame], Chain] = {}
        self._users: dict[int, list[Key]] = {}  # by what a look takes for no array, or for an input's memory
        self._readers: dict[int, int] = {}
        depth: dict[int, int] = {}
        for node in graph.nodes:
            self._note(node, depth)
        for value in (*(v for node in graph.nodes for v in node.inputs), *graph.outputs):
            self._readers[id(value)] = self._readers.get(id(value), 0) + 1

    def _note(self, node: Node, depth: dict[int, int]) -> None:
        """Row frame and depth of a node's value; opaque and deep values become arrays."""
        out, kind = node.out, node.op.kind
        deep = 1 + max((depth.get(id(v), 0) for v in node.inputs), default=0)
        if kind in OPAQUE or deep > DEEPEST:
            self.arrays[id(out)] = Array(out)
            deep = 0
        depth[id(out)] = deep
        if kind == "reduce":
            frame = reduced_frame(node)
            if frame.reduced:
                self.rows[id(out)] = frame
        elif kind in ("pointwise", "reshape", "expand"):
            size = squeeze(out.shape)
            for value in node.inputs:
                found = self.rows.get(id(value))
                if found is not None and id(value) not in self.arrays and squeeze(value.shape) == size:
                    self.rows[id(out)] = found
                    return

    def readers(self, value: Value) -> int:
        """How many operands of nodes, and outputs, a value is."""
        return self._readers.get(id(value), 0)

    def array(self, value: Value) -> Array:
        """The array of a value, made if there is none."""
        found = self.arrays.get(id(value))
        if found is None:
            found = Array(value)
            found.layout = contiguous(value.shape)
            self.give(found)
        return found

    def give(self, array: Array) -> None:
        """Makes an array, contiguous, the one that its value is read from."""
        key = id(array.value)
        self.arrays[key] = array
        for user in self._users.pop(key, ()):
            self._looks.pop(user, None)
            self.stale[user] = None

    def depend(self, user: Key, values: Iterable[int]) -> None:
        """States what must not become an array without `user` being looked at anew."""
        for key in values:
            self._users.setdefault(key, []).append(user)

    # -- frames -------------------------------------------------------------------------------------

    def chain_to(self, shape: Shape, frame: Frame) -> Chain | None:
        """From a value of `shape` to the frame's dims: as it is, or as a row value. None if it is neither."""
        key = (shape, frame)
        if key not in self._chains:
            self._chains[key] = self._chain_to(shape, frame)
        return self._chains[key]

    def _chain_to(self, shape: Shape, frame: Frame) -> Chain | None:
        links = self.links
        if frame.mode == "matmul" or squeeze(shape) == frame.dims:
            return links.make("reshape", frame.dims, None, None)
        if frame.reduced and squeeze(shape) == squeeze(frame.kept):
            ones = tuple(1 if d in frame.reduced else n for d, n in enumerate(frame.dims))
            return links.make("reshape", ones, None, links.make("expand", frame.dims, None, None))
        return None

    def look(self, value: Value, again: bool = False) -> Look:
        """A value in the frame it runs in by itself. `again`: an array that is stored elsewhere too is read,
        not computed.
        """
        key = (id(value), again)
        found = self._looks.get(key)
        if found is None:
            found = self._look(value, again)
            if not found.scan.demands:
                self._looks[key] = found
                self.depend(key, found.scan.inline)
                self.depend(key, [id(read.value) for read in found.scan.reads if read.raw])
        return found

    def _look(self, value: Value, again: bool) -> Look:
        """In the value's own row frame, else in that of the first row value it needs, else as a map."""
        plain = Frame(squeeze(value.shape), (), "map")
        if again and id(value) in self.arrays:
            return Look(plain, self.scan(value, plain, None, True))
        if value.node is not None and value.node.op.kind == "blocks":
            dims = squeeze(value.node.inputs[0].shape)
            frame = Frame(dims, tuple(range(len(dims))), "blocks")
            return Look(frame, self.scan(value, frame))
        own = self.rows.get(id(value))
        if own is not None:
            scan = self.scan(value, own)
            if any(v.node is not None and v.node.op.kind == "reduce" for v in scan.inline.values()):
                return Look(own, scan)
        scan = self.scan(value, plain)
        for row, chain, frame in scan.rows:
            if frame.dims == plain.dims and frame.kept and self.matches(row, chain, frame):
                return Look(frame, self.scan(value, frame))
        return Look(plain, scan)

    def matches(self, row: Value, chain: Chain, frame: Frame) -> bool:
        """Whether a row value is read at each point's own row."""
        found = resolve(contiguous(row.shape), chain)
        return isinstance(found, Layout) and found.strides == frame.row_strides() and found.offset == 0

    # -- exploring ----------------------------------------------------------------------------------

    def scan(
        self, value: Value, frame: Frame, own: dict[int, Shape] | None = None, again: bool = False
    ) -> Scan:
        """Explores the definition of `value` in a frame; `own`: strides of arrays written at each point."""
        scan = Scan()
        visit = _Visit(self, scan, frame, own or {})
        if frame.mode == "blocks":
            assert value.node is not None
            source = value.node.inputs[0]
            visit.value(source, self.chain_to(source.shape, frame))
            if not _one_dim(scan, frame):
                scan.demand(source)
            return scan
        chain = self.chain_to(value.shape, frame)
        assert chain is not None, f"a value of shape {value.shape} has no place in {frame}"
        if again and id(value) in self.arrays:
            visit.value(value, chain)
        else:
            visit.definition(value, chain, True)
        return scan

    def base(self, value: Value, chain: Chain, passed: dict[int, Value] | None = None) -> tuple[Value, Chain]:
        """The value below the views of `value`, and the chain from there; arrays are not looked into.

        `passed` takes the views.
        """
        while id(value) not in self.arrays and value.node is not None and value.node.op.kind in VIEWS:
            if passed is not None:
                passed[id(value)] = value
            chain = self.links.of_node(value.node, chain)
            kind, value = value.node.op.kind, value.node.inputs[0]
            if kind == "as_strided":  # places in the memory of what is below: that must be memory
                break
        return value, chain

    def strided(self, value: Value, chain: Chain, passed: dict[int, Value] | None = None) -> Read | Value:
        """A value as strided memory, or the value that must become an array for that."""
        below, through = self.base(value, chain, passed)
        array = self.arrays.get(id(below))
        if array is None and (below.node is not None or below.weak):
            return below
        layout = array.layout if array is not None else input_layout(below)
        if through is not None and through.kind == "as_strided" and not is_contiguous(layout):
            return below
        found = resolve(layout, through)
        if isinstance(found, Layout):
            return Read(below, found, True, array is None)
        return found.source if found.source is not None else value

    def spread(self, value: Value, chain: Chain, passed: dict[int, Value] | None = None) -> Read | None:
        """A value as strided memory of more dims than it has: before reshapes that strides cannot express.

        None if it has none, or must become an array first.
        """
        below, through = self.base(value, chain, passed)
        array = self.arrays.get(id(below))
        if array is None and (below.node is not None or below.weak):
            return None
        layout = array.layout if array is not None else input_layout(below)
        if through is not None and through.kind == "as_strided" and not is_contiguous(layout):
            return None
        found = before_reshape(layout, through)
        return None if found is None else Read(below, found, True, array is None)


def reduced_frame(node: Node) -> Frame:
    """The frame of a reduction."""
    shape, dims = node.inputs[0].shape, node.attrs[0]
    kept = [d for d, n in enumerate(shape) if n != 1]
    reduced = tuple(k for k, d in enumerate(kept) if d in dims)
    mode = "sequence" if node.op.name.startswith("sequence_") else "lanes"
    return Frame(squeeze(shape), reduced, mode)


def _one_dim(scan: Scan, frame: Frame) -> bool:
    """Whether everything a scan reads can be seen as one flat dim."""
    if scan.indexed or any(read.elsewhere for read in scan.reads):
        return False
    return all(mergeable(read.layout.strides, frame.dims, d) for read in scan.reads
               for d in range(len(frame.dims) - 1))  # fmt: skip


def mergeable(strides: Shape, sizes: Shape, d: int) -> bool:
    """Whether dims d and d + 1 are one dim for an operand."""
    return strides[d] == strides[d + 1] * sizes[d + 1]


def reductions(inline: dict[int, Value]) -> int:
    """How many of the values computed where they are read are reductions."""
    return sum(v.node is not None and v.node.op.kind == "reduce" for v in inline.values())


class _Visit:
    """One exploration."""

    def __init__(self, explorer: Explorer, scan: Scan, frame: Frame, own: dict[int, Shape]) -> None:
        self.explorer = explorer
        self.scan = scan
        self.frame = frame
        self.own = own
        self.seen: set[tuple[int, int]] = set()

    def value(self, value: Value, chain: Chain) -> None:
        """A value read through a chain."""
        key = (id(value), id(chain))
        if key in self.seen or (value.weak and value.node is None):
            return
        self.seen.add(key)
        array = self.explorer.arrays.get(id(value))
        if array is None and value.node is not None:
            self.definition(value, chain, False)
            return
        if id(value) in self.own:
            found = resolve(contiguous(value.shape), chain)
            same = isinstance(found, Layout) and found.strides == self.own[id(value)] and found.offset == 0
            self.scan.clash |= not same
            self.scan.own.add(id(value))
            return
        self.read(value, array, chain)

    def read(self, value: Value, array: Array | None, chain: Chain) -> None:
        """An array, or an input's own memory, read through strides."""
        found = resolve(input_layout(value) if array is None else array.layout, chain)
        if isinstance(found, Link):
            self.scan.demand(found.source if found.source is not None else value)
        else:
            self.scan.reads[Read(value, found, False, array is None)] = None

    def definition(self, value: Value, chain: Chain, top: bool) -> None:
        """Looks into how an inline value is computed."""
        node = value.node
        if node is None:  # a copy of an input
            self.read(value, None, chain)
            return
        kind = node.op.kind
        row = self.explorer.rows.get(id(value))
        if row is not None and not top:
            inside = row == self.frame and self.explorer.matches(value, chain, row)
            if not inside:
                self.scan.rows.append((value, chain, row))
                self.scan.demand(value)
                return
        if kind == "reduce" and not top and reductions(self.scan.inline) == MOST_REDUCTIONS:
            self.scan.demand(value)
            return
        self.scan.inline[id(value)] = value
        getattr(self, f"_{kind}", self._views)(node, chain)

    def _constant(self, node: Node, chain: Chain) -> None:
        pass

    def _pointwise(self, node: Node, chain: Chain) -> None:
        for operand in node.inputs:
            self.value(operand, self.explorer.links.broadcast(operand, node.out.shape, chain))

    def _full(self, node: Node, chain: Chain) -> None:
        self._pointwise(node, chain)

    def _iota(self, node: Node, chain: Chain) -> None:
        self.scan.indexed = True
        if index_maps(node.out.shape, chain) is None:
            self.scan.demand(node.out)

    def _reduce(self, node: Node, chain: Chain) -> None:
        source = node.inputs[0]
        if id(node.out) in self.explorer.rows:
            self.value(source, self.explorer.links.make("reshape", self.frame.dims, source, None))
        else:  # over dims of size 1
            self.value(source, self.explorer.links.make("reshape", node.out.shape, source, chain))

    def _gather(self, node: Node, chain: Chain) -> None:
        self.scan.indexed = True
        source = self.explorer.strided(node.inputs[0], None, self.scan.inline)
        if isinstance(source, Value):
            self.scan.demand(source)
        elif id(source.value) in self.own:
            self.scan.clash = True
        else:
            self.scan.reads[source] = None
        if index_maps(node.out.shape, chain) is None:
            self.scan.demand(node.out)
        self.value(node.inputs[1], chain)

    def _views(self, node: Node, chain: Chain) -> None:
        source = node.inputs[0]
        if node.op.kind == "as_strided":
            found = self.explorer.strided(source, None, self.scan.inline)
            if isinstance(found, Value) or not is_contiguous(found.layout):
                self.scan.demand(source)
                return
        self.value(source, self.explorer.links.of_node(node, chain))
