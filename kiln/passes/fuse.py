"""Fusion: which values become arrays, and which arrays are written by one kernel.

    1. demand      outputs and what opaque ops read are arrays; exploring each (explore.py), from the last to
                   the first, demands what cannot be computed where it is read, until all looks hold
    2. group       from the first to the last, each array joins a kernel that it reads from or shares an input
                   with, if the frames agree, no other kernel would have to run in between, and what it reads
                   of the kernel's own arrays is the point just computed
    3. share       reductions down the columns leave their accumulators in a kernel of the rows (strips.py)
    4. promote     a costly inline value that two kernels would compute becomes an array; then again from 1
    5. drop        arrays that only their own kernel reads are never stored

Opaque results are written in parts: a base that fills the array, then what is put into it.

    concat(a, b)            a -> [..na..], b -> [..nb..]
    embed, write(base, x..) base -> all, then each x -> its places
    scatter_add(base, ..)   base -> all, then the scatter kernel adds
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import chain
from typing import Any

from kiln.graph.graph import Graph, Node, Shape, Value
from kiln.passes.explore import (
    ALONE,
    ALONG,
    MOST_REDUCTIONS,
    Array,
    Explorer,
    Frame,
    Look,
    Read,
    Scan,
    reductions,
)  # fmt: skip
from kiln.passes.factors import factors_of
from kiln.passes.inline import Inline, scalar_cost
from kiln.passes.layout import (
    Chain,
    Layout,
    concat_places,
    contiguous,
    input_layout,
    is_contiguous,
    numel,
    resolve,
    squeeze,
)  # fmt: skip
from kiln.passes.statistics import share_products
from kiln.passes.strips import Part, share_rows

MOST_OPERANDS = 30  # arrays one kernel reads and writes
MOST_NODES = 400  # nodes computed in one kernel
TRIES = 6  # kernels an array is offered to
COSTLY = 64  # scalar operations from which a value is not computed twice
PARTS = ("concat", "embed", "write", "scatter")  # opaque results that are stored in parts
WHOLE = ("blocks", "sequence")  # of reductions of everything: those of one length go together
MANY_READS = 4  # arrays read from which a value is not computed twice


class Root:
    """A value to be stored: into its array, or at a place of another's."""

    __slots__ = ("after", "again", "array", "place", "value")

    def __init__(
        self, value: Value, array: Array, again: bool = False, place: Chain = None, after: int = 0
    ) -> None:
        self.value = value
        self.array = array
        self.again = again  # the value may have another array: then it is read from there
        self.place = place
        self.after = after  # groups that must have run, as bits

    def target(self) -> Layout:
        """Where the elements of the value go."""
        found = resolve(self.array.layout, self.place)
        assert isinstance(found, Layout)
        return found


class Group:
    """One kernel in the making; `kind`: nest, matmul or one of ALONE; `node`: the opaque one,
    `nodes`: all that it computes.
    """

    def __init__(self, number: int, kind: str, frame: Frame, node: Node | None = None) -> None:
        self.number = number
        self.kind = kind
        self.frame = frame
        self.node = node
        self.nodes = [] if node is None else [node]
        self.roots: list[Root] = []
        self.members: list[Value] = []
        self.reads: dict[Read, None] = {}
        self.inline: dict[int, Value] = {}
        self.indexed = False  # positions along dims are used
        self.folds: list[Part] = []  # reductions down the columns whose accumulators it leaves
        self.parts: list[Part] = []  # those that it combines
        self.before = 0  # groups that run before, as bits
        self.next: list[Group] = []  # those that run after it, not through others
        self._own: dict[int, Shape] = {}

    @property
    def bit(self) -> int:
        """The group as a set."""
        return 1 << self.number

    def own(self, explorer: Explorer) -> dict[int, Shape]:
        """The strides, in the frame, of the values computed at each point that have arrays of their own."""
        if self.frame.mode != "blocks":
            for value in self.members[len(self._own) :]:
                layout = resolve(contiguous(value.shape), explorer.chain_to(value.shape, self.frame))
                assert isinstance(layout, Layout)
                self._own[id(value)] = layout.strides
        return self._own

    def widen(self, frame: Frame) -> None:
        """Takes another frame."""
        if frame != self.frame:
            self.frame, self._own = frame, {}

    def add(self, root: Root, scan: Scan) -> None:
        """Takes a root in."""
        self.roots.append(root)
        if not root.again:
            self.members.append(root.value)
        self.take(scan)

    def take(self, scan: Scan) -> None:
        """Takes in what is computed for a value."""
        self.reads.update(scan.reads)
        self.inline.update(scan.inline)
        self.indexed |= scan.indexed


class Fusion:
    """The groups of a prepared graph; the updates in `late` are copied in after everything else."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.late: set[int] = set()
        self.explorer = Explorer(graph)
        self.groups: list[Group] = []
        self.readers: dict[int, list[Group]] = {}
        self._framed: dict[Frame, list[Group]] = {}  # those that reduce everything
        self._sharing: dict[tuple[Any, ...], Group] = {}  # by what they read and how
        self._waiting: list[tuple[int, int, bool]] = []  # to explore, the last first: -order and key
        self._values = {id(v): v for v in (*graph.inputs, *(n.out for n in graph.nodes))}
        self.outputs = self._output_arrays()
        for key in self.explorer.arrays:
            self._wait(key, False)
        self.group()
        if promoted := self._promotable():
            self._want(promoted)
            self.group()

    def _output_arrays(self) -> list[Array]:
        """An array per output, which is also the value's own where it can be."""
        found: list[Array] = []
        taken: set[int] = set()
        for j, value in enumerate(self.graph.outputs):
            array = Array(value)
            array.layout = contiguous(value.shape)
            array.update = self.graph.updates.get(j, -1)
            if array.update >= 0:
                array.layout = input_layout(self.graph.inputs[array.update])
            if value.node is not None and is_contiguous(array.layout) and id(value) not in taken:
                taken.add(id(value))
                self.explorer.give(array)
            found.append(array)
        return found

    def _is_own(self, array: Array) -> bool:
        """Whether an output's array is the one its value is read from."""
        return self.explorer.arrays.get(id(array.value)) is array

    def postpone(self, updates: set[int]) -> None:
        """Copies updates in after everything else, from arrays of their own."""
        self.late |= updates
        for j in updates:
            array = self.outputs[j]
            if self._is_own(array):
                del self.explorer.arrays[id(array.value)]
            self._want([array.value])

    def hazards(self) -> set[int]:
        """Updates whose memory would be written before something else reads it; orders groups if it can."""
        found: set[int] = set()
        readers: dict[int, list[Group]] = {}
        for group in self.groups:
            for key in {id(read.value) for read in group.reads if read.raw}:
                readers.setdefault(key, []).append(group)
        for j, i in self.graph.updates.items():
            if j in self.late:
                continue
            array = self.outputs[j]
            writers, reading = self.members(array.writers), readers.get(id(self.graph.inputs[i]), ())
            if not all(self._may_overwrite(w, g, array) for w in writers for g in reading):
                found.add(j)
        return found

    def members(self, bits: int) -> list[Group]:
        """The groups of a set, the latest first."""
        found: list[Group] = []
        while bits:
            number = bits.bit_length() - 1
            found.append(self.groups[number])
            bits ^= 1 << number
        return found

    def _may_overwrite(self, writer: Group, reader: Group, array: Array) -> bool:
        """Whether every read of the overwritten input comes before the write, or at its very point."""
        if writer is not reader:
            if reader.before & writer.bit:
                return False
            if not writer.before & reader.bit:
                self.follow(writer, reader.bit)
            return True
        target = self.graph.inputs[array.update]
        places = {self.stored(writer, root) for root in writer.roots if root.array is array}
        reads = {(r.layout, r.elsewhere) for r in reader.reads if r.raw and r.value is target}
        return writer.kind not in ALONE and reads <= {(place, False) for place in places} and len(places) == 1

    def stored(self, group: Group, root: Root) -> Layout:
        """Where a root goes, over the dims of its group's frame (for blocks: over the partial results)."""
        target = root.target()
        if group.frame.mode == "blocks":
            return target
        found = resolve(target, self.explorer.chain_to(root.value.shape, group.frame))
        assert isinstance(found, Layout)
        return found

    # -- 1. demand ----------------------------------------------------------------------------------

    def _demand(self) -> None:
        """Explores arrays from the last to the first, then what is stale, until everything read is one."""
        for array in self.outputs:
            if not self._is_own(array):
                self._wait(id(array.value), True)
        while self._waiting or self.explorer.stale:
            if not self._waiting:
                for stale in self.explorer.stale:
                    self._wait(*stale)
                self.explorer.stale.clear()
            _, key, again = heappop(self._waiting)
            value = self._values[key]
            kind = value.node.op.kind if value.node is not None and not again else ""
            if kind == "matmul" or kind in PARTS or kind in ALONE:
                self._explore_parts(value)
            else:
                self._explore(value, again)

    def _wait(self, key: int, again: bool) -> None:
        heappush(self._waiting, (-self.explorer.order.get(key, -1), key, again))

    def _explore(self, value: Value, again: bool) -> None:
        """Demands what an inline computation cannot do; `again`: of a value that may be an array already."""
        while found := self.explorer.look(value, again).scan.demands:
            fresh = [v for v in found if id(v) not in self.explorer.arrays and v is not value]
            assert fresh, f"{value!r} cannot be computed: {found} cannot be read"
            self._want(fresh)

    def _explore_parts(self, value: Value) -> None:
        """Demands what an opaque op needs: the parts it is stored in, and operands as strided memory."""
        node = value.node
        assert node is not None
        inline = {"concat": len(node.inputs), "write": len(node.inputs), "embed": 2, "scatter": 1}.get(
            node.op.kind, 0
        )
        for part in node.inputs[:inline]:
            self._explore(part, True)
        while True:
            passed: dict[int, Value] = {}
            if node.op.kind == "matmul":
                reads = factors_of(self.explorer, node, passed).factors
            else:
                arrays = (v for v in node.inputs[inline:] if not v.weak)
                reads = [self.explorer.strided(v, None, passed) for v in arrays]
            missing = [r for r in reads if isinstance(r, Value)]
            if node.op.kind == "recurrence" and isinstance(reads[1], Read):
                if not is_contiguous(reads[1].layout):  # panels of weights are read as they were packed
                    missing.append(node.inputs[1])
            if not missing:
                break
            self._want(missing)
        for factor in [r for r in reads if isinstance(r, Inline)]:
            passed.update(factor.scan.inline)
            reads += factor.reads()
        raw = [id(r.value) for r in reads if isinstance(r, Read) and r.raw]
        self.explorer.depend((id(value), False), [*passed, *raw])

    def _want(self, demands: list[Value]) -> None:
        """Makes arrays of values, to be explored in their turn."""
        for value in demands:
            if id(value) not in self.explorer.arrays:
                self.explorer.array(value)
                self._wait(id(value), False)

    # -- 2. group -----------------------------------------------------------------------------------

    def group(self) -> None:
        """Demands, then groups arrays from the first to the last."""
        self._demand()
        self.groups, self.readers, self._framed, self._sharing = [], {}, {}, {}
        for array in [*self.explorer.arrays.values(), *self.outputs]:
            array.writers = 0
        order = self.explorer.order
        arrays = sorted(self.explorer.arrays.values(), key=lambda a: order.get(id(a.value), -1))
        for array in arrays:
            node = array.value.node
            kind = node.op.kind if node is not None else ""
            if node is not None and kind == "matmul":
                self._matmul(node, array)
            elif node is not None and kind in PARTS:
                self._parts(node, array)
            elif node is not None and kind in ALONG:
                self._along(node, array, node.inputs, 0)
            elif node is not None and kind in ALONE:
                self._several(node, array)
            else:
                self._place(Root(array.value, array))
        for j, array in enumerate(self.outputs):
            if not self._is_own(array):
                after = (1 << len(self.groups)) - 1 if j in self.late else 0
                self._place(Root(array.value, array, True, None, after))
        share_products(self)
        share_rows(self)

    def _new(self, kind: str, frame: Frame, node: Node | None = None) -> Group:
        group = Group(len(self.groups), kind, frame, node)
        self.groups.append(group)
        if frame.mode in WHOLE:
            self._framed.setdefault(frame, []).append(group)
        return group

    def _matmul(self, node: Node, array: Array) -> None:
        """A group of its own; what follows may join."""
        found = factors_of(self.explorer, node)
        group = self._new("matmul", Frame(found.frame, (), "matmul"), node)
        for factor in found.factors:
            assert not isinstance(factor, Value)
            for read in [factor] if isinstance(factor, Read) else factor.reads():
                self._read(group, read)
            group.inline.update({} if isinstance(factor, Read) else factor.scan.inline)
        group.roots.append(Root(node.out, array))
        group.members.append(node.out)
        array.writers |= group.bit

    def _read(self, group: Group, read: Read) -> None:
        """An operand of an opaque kernel."""
        group.reads[read] = None
        self.follow(group, self.needs([read]))
        self.note_reader(read, group)

    def note_reader(self, read: Read, group: Group) -> None:
        readers = self.readers.setdefault(id(read.value), [])
        if not readers or readers[-1] is not group:
            readers.append(group)

    def _parts(self, node: Node, array: Array) -> None:
        """The stores an opaque result is made of, then a scatter's kernel."""
        links = self.explorer.links
        if node.op.kind == "concat":
            for value, place in concat_places(links, node):
                self._place(Root(value, array, True, place))
            return
        self._place(Root(node.inputs[0], array, True))
        filled = array.writers
        if node.op.kind == "scatter":
            self._along(node, array, node.inputs[1:], filled)
        elif node.op.kind == "embed":
            dim, (_, start, step) = node.attrs
            place = links.make("slice", (dim, (start, node.inputs[1].shape[dim], step)), None, None)
            self._place(Root(node.inputs[1], array, True, place, filled))
        else:
            for x, (strides, offset) in zip(node.inputs[1:], node.attrs):
                place = links.make("as_strided", (x.shape, strides, offset), None, None)
                self._place(Root(x, array, True, place, array.writers))

    def _along(self, node: Node, array: Array, operands: Iterable[Value], after: int) -> None:
        """A kernel along one dim, a group of its own."""
        group = self._new(node.op.kind, Frame(squeeze(node.inputs[-1].shape), (), "map"), node)
        for operand in operands:
            read = self.explorer.strided(operand, None)
            assert isinstance(read, Read)
            self._read(group, read)
        self.follow(group, after)
        array.writers |= group.bit

    def _several(self, node: Node, array: Array) -> None:
        """A group of its own, or that of another result of the same operands."""
        key = (*map(id, node.inputs), *node.attrs)
        group = self._sharing.get(key)
        if group is None or any(n.op is node.op for n in group.nodes):
            self._along(node, array, [v for v in node.inputs if not v.weak], 0)
            self._sharing[key] = self.groups[-1]
        else:
            group.nodes.append(node)
            array.writers |= group.bit

    def needs(self, reads: Iterable[Read]) -> int:
        """The groups that write what is read."""
        needs = 0
        for read in reads:
            if not read.raw:
                needs |= self.explorer.arrays[id(read.value)].writers
        return needs

    def follow(self, group: Group, needs: int) -> None:
        """Puts groups, and all before them, before a group and all after it."""
        fresh = needs & ~group.before & ~group.bit
        if not fresh:
            return
        direct = fresh
        while direct:
            other = self.groups[direct.bit_length() - 1]
            other.next.append(group)
            fresh |= other.before
            direct &= ~(other.before | other.bit)
        group.before |= fresh
        behind = [group]
        while behind:
            for other in behind.pop().next:
                if fresh & ~other.before:
                    other.before |= fresh
                    behind.append(other)

    def _place(self, root: Root) -> None:
        """Lets a root join a group, or makes one for it."""
        update = root.array.update
        if update >= 0 and root.place is None and root.value is self.graph.inputs[update]:
            return  # the memory holds the value already
        alone = self.explorer.look(root.value, root.again)
        assert not alone.scan.demands, f"{root.value!r} still demands {alone.scan.demands}"
        for group in self._candidates(alone):
            scan = self._joins(group, root, alone)
            if scan is not None:
                break
        else:
            group, scan = self._new("nest", alone.frame), alone.scan
        group.add(root, scan)
        for read in scan.reads:
            self.note_reader(read, group)
        self.follow(group, root.after | self.needs(scan.reads))
        root.array.writers |= group.bit

    def _candidates(self, alone: Look) -> list[Group]:
        """Groups that write what a root reads, the latest first; then those that read it too."""
        found = dict.fromkeys(g for g in self.members(self.needs(alone.scan.reads)) if g.kind not in ALONE)
        shared: list[list[Group]] = [self._framed.get(alone.frame, [])]
        for read in reversed(alone.scan.reads):
            if any(s != 0 for s in read.layout.strides):
                shared.append(self.readers.get(id(read.value), []))
        for group in chain.from_iterable(map(reversed, shared)):
            if len(found) >= TRIES:
                break
            if group.kind not in ALONE:
                found[group] = None
        return list(found)[:TRIES]

    def _joins(self, group: Group, root: Root, alone: Look) -> Scan | None:
        """What a root reads inside a group, or None if it cannot be there."""
        if root.after & group.bit or group.frame.mode == "blocks" and alone.frame != group.frame:
            return None
        joint = self._joint_frame(group, root, alone.frame)
        if joint is None:
            return None
        own = group.own(self.explorer)
        if joint == alone.frame:
            scan = alone.scan.inside(own)
        else:
            scan = self.explorer.scan(root.value, joint, own, root.again)
        if scan.demands or scan.clash or (group.kind == "matmul" and scan.indexed):
            return None
        if not self.has_room(group, scan.reads, scan.inline, 1) or not self._worthwhile(group, scan, joint):
            return None
        needs = root.after | self.needs(scan.reads)
        if needs & group.bit or any(other.before & group.bit for other in self.members(needs)):
            return None
        group.widen(joint)
        return scan

    def has_room(self, group: Group, reads: dict[Read, None], inline: dict[int, Value], stores: int) -> bool:
        """Whether a kernel stays of a size that is compiled well."""
        operands = len(group.reads.keys() | reads.keys()) + len(group.roots) + stores
        if operands > MOST_OPERANDS or len(group.inline) + len(inline) > MOST_NODES:
            return False
        return reductions(group.inline) + reductions(inline) <= MOST_REDUCTIONS

    def _worthwhile(self, group: Group, scan: Scan, joint: Frame) -> bool:
        """Whether a root reads what the group computes or reads as well."""
        if scan.own or joint.mode in WHOLE:
            return True
        shared = {id(read.value) for read in group.reads if any(s != 0 for s in read.layout.strides)}
        return group.kind == "nest" and any(id(read.value) in shared for read in scan.reads)

    def _tells(self, frame: Frame, root: Root) -> bool:
        """Whether the place of a root is strided over the frame's dims: a row cut in two may not be."""
        found = resolve(root.target(), self.explorer.chain_to(root.value.shape, frame))
        return isinstance(found, Layout)

    def _joint_frame(self, group: Group, root: Root, frame: Frame) -> Frame | None:
        """The frame a group and a root can share."""
        have, shape = group.frame, root.value.shape
        if group.kind == "matmul":
            fits = frame.mode == "map" and numel(shape) == numel(have.dims) and self._tells(have, root)
            return have if fits else None
        if frame == have:
            return have
        if frame.mode == "map" and have.reduced:
            point = squeeze(shape) == have.dims and have.trailing
            return have if point or squeeze(shape) == have.kept else None
        rows = frame.mode == "lanes" and frame.trailing and frame.kept
        if have.mode == "map" and rows and have.dims == frame.dims:
            return frame if all(squeeze(r.value.shape) == have.dims for r in group.roots) else None
        return None

    # -- 4. promote, 5. drop ------------------------------------------------------------------------

    def _promotable(self) -> list[Value]:
        """Inline values of several groups that cost more to compute again than to store and read."""
        counts: dict[int, int] = {}
        for group in self.groups:
            for key in group.inline:
                counts[key] = counts.get(key, 0) + 1
        shared = {key for key, n in counts.items() if n > 1 and key not in self.explorer.arrays}
        found: list[Value] = []
        weights: dict[int, tuple[int, frozenset[int]]] = {}
        inner: set[int] = set()
        for node in self.graph.nodes if shared else ():
            if id(node.out) in shared and node.op.kind in ("pointwise", "gather", "reduce"):
                weights[id(node.out)] = self._weight(node, weights)
        for node in reversed(self.graph.nodes if weights else []):
            key = id(node.out)
            if key not in weights:
                continue
            cost, reads = weights[key]
            if (
                key not in inner
                and (cost >= COSTLY or len(reads) >= MANY_READS)
                and numel(node.out.shape) != 1
            ):
                found.append(node.out)
            inner |= {id(self.explorer.base(v, None)[0]) for v in node.inputs}
        return found

    def _weight(
        self, node: Node, weights: dict[int, tuple[int, frozenset[int]]]
    ) -> tuple[int, frozenset[int]]:
        """Scalar operations, and arrays of full size read, to compute an inline value."""
        cost = COSTLY if node.op.kind in ("gather", "reduce") else scalar_cost(node)
        reads: frozenset[int] = frozenset()
        for value in node.inputs:
            below, _ = self.explorer.base(value, None)
            more, others = weights.get(id(below), (0, frozenset()))
            if id(below) in self.explorer.arrays or below.node is None:
                others = (
                    frozenset({id(below)}) if numel(below.shape) == numel(node.out.shape) else frozenset()
                )
            cost, reads = cost + more, reads | others
        return min(cost, COSTLY), reads

    def drop(self) -> None:
        """Forgets roots that nothing but their own group reads."""
        read_by: dict[int, int] = {}
        for group in self.groups:
            for read in group.reads:
                if not read.raw:
                    read_by[id(read.value)] = read_by.get(id(read.value), 0) | group.bit
        kept = {id(a) for a in self.outputs}
        for group in self.groups:
            group.roots = [
                r for r in group.roots
                if r.place is not None or r.array.value is not r.value or id(r.array) in kept
                or read_by.get(id(r.value), 0)
            ]  # fmt: skip

    def order(self) -> list[Group]:
        """The groups in an order that runs; groups that store nothing are left out."""
        alive = [g for g in self.groups if g.roots or g.folds or g.kind in ALONE]
        alive.sort(key=lambda g: (g.before.bit_count(), g.number))
        waiting = sum(g.bit for g in alive)
        for group in alive:
            waiting ^= group.bit
            assert not group.before & (waiting | group.bit), f"kernel {group.number} runs before its operands"
        return alive


def fuse(graph: Graph) -> Fusion:
    """The groups of a prepared graph; an update that cannot be in place goes through a temporary."""
    fusion = Fusion(graph)
    while unsafe := fusion.hazards():
        fusion.postpone(unsafe)
        fusion.group()
    fusion.drop()
    return fusion
