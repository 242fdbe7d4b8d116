"""Which kernel writes each array.

From the first to the last, each array joins a kernel that it reads from or shares an input with, if the
frames agree, no other kernel would have to run in between, and what it reads of the kernel's own arrays is
the point just computed. Opaque results are written in parts: a base that fills the array, then what is put
into it.

    concat(a, b)            a -> [..na..], b -> [..nb..]
    embed, write(base, x..) base -> all, then each x -> its places
    scatter_add(base, ..)   base -> all, then the scatter kernel adds
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

from kiln.graph.graph import Node, Value
from kiln.passes.demand import Demand
from kiln.passes.explore import ALONE, PARTS, Array, Frame, Look, Read, Scan
from kiln.passes.factors import factors_of
from kiln.passes.group import Fusion, Group, Root
from kiln.passes.layout import Layout, concat_places, numel, resolve, squeeze

TRIES = 6  # kernels an array is offered to
WHOLE = ("blocks", "sequence")  # of reductions of everything: those of one length go together


def join(demand: Demand) -> Fusion:
    """Groups for the arrays there are."""
    fusion = Fusion(demand.graph, demand.explorer, demand.outputs)
    _Joining(fusion).arrays(demand)
    return fusion


class _Joining:
    """The groups as they grow."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self.explorer = fusion.explorer
        self._framed: dict[Frame, list[Group]] = {}  # those that reduce everything
        self._sharing: dict[tuple[Any, ...], Group] = {}  # by what they read and how

    def arrays(self, demand: Demand) -> None:
        """Takes array after array, then what outputs need copies of."""
        order = self.explorer.order
        for array in [*self.explorer.arrays.values(), *demand.outputs]:
            array.writers = 0
        for array in sorted(self.explorer.arrays.values(), key=lambda a: order.get(id(a.value), -1)):
            self._array(array)
        for j, array in enumerate(demand.outputs):
            if not demand.is_own(array):
                after = (1 << len(self.fusion.groups)) - 1 if j in demand.late else 0
                self._place(Root(array.value, array, True, None, after))

    def _array(self, array: Array) -> None:
        """The groups that write an array."""
        node = array.value.node
        kind = node.op.kind if node is not None else ""
        if node is not None and kind == "matmul":
            self._matmul(node, array)
        elif node is not None and kind in PARTS:
            self._parts(node, array)
        elif node is not None and kind == "along":
            self._along(node, array)
        elif node is not None and kind in ("layer", "control"):
            self._layer(node, array)
        else:
            self._place(Root(array.value, array))

    def _new(self, kind: str, frame: Frame, node: Node | None = None) -> Group:
        group = self.fusion.new(kind, frame, node)
        if frame.mode in WHOLE or not frame.dims:
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
        self.fusion.follow(group, self.fusion.needs([read]))
        self.fusion.note_reader(read, group)

    def _parts(self, node: Node, array: Array) -> None:
        """The stores that a result is made of."""
        links = self.explorer.links
        if node.op.kind == "concat":
            for value, place in concat_places(links, node):
                self._place(Root(value, array, True, place))
            return
        self._place(Root(node.inputs[0], array, True))
        filled = array.writers
        if node.op.kind == "embed":
            dim, (_, start, step) = node.attrs
            place = links.make("slice", (dim, (start, node.inputs[1].shape[dim], step)), None, None)
            self._place(Root(node.inputs[1], array, True, place, filled))
        else:
            for x, (strides, offset) in zip(node.inputs[1:], node.attrs):
                place = links.make("as_strided", (x.shape, strides, offset), None, None)
                self._place(Root(x, array, True, place, array.writers))

    def _along(self, node: Node, array: Array) -> None:
        """A kernel along one dim; a scatter's goes over an array that holds its base already."""
        operands = node.inputs
        if node.op.algorithm == "scatter":
            self._place(Root(operands[0], array, True))
            operands = operands[1:]
        self._alone(node, array, operands, array.writers)

    def _alone(self, node: Node, array: Array, operands: Iterable[Value], after: int) -> None:
        """A kernel that nothing joins, a group of its own."""
        group = self._new(
            node.op.kind, Frame(squeeze((node.inputs or [node.out])[-1].shape), (), "map"), node
        )
        for operand in operands:
            read = self.explorer.strided(operand, None)
            assert isinstance(read, Read)
            self._read(group, read)
        self.fusion.follow(group, after)
        array.writers |= group.bit

    def _layer(self, node: Node, array: Array) -> None:
        """A kernel of its own, or that of another result of the same operands."""
        called = node.op.kind == "control"  # whose results differ in the first attribute
        key = (*map(id, node.inputs), *node.attrs[called:], node.op if called else None)
        group = self._sharing.get(key)
        if group is None or not called and any(n.op is node.op for n in group.nodes):
            self._alone(node, array, [v for v in node.inputs if not v.weak], 0)
            self._sharing[key] = self.fusion.groups[-1]
        else:
            group.nodes.append(node)
            array.writers |= group.bit

    def _place(self, root: Root) -> None:
        """Lets a root join a group, or makes one for it."""
        update = root.array.update
        if update >= 0 and root.place is None and root.value is self.fusion.graph.inputs[update]:
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
            self.fusion.note_reader(read, group)
        self.fusion.follow(group, root.after | self.fusion.needs(scan.reads))
        root.array.writers |= group.bit

    def _candidates(self, alone: Look) -> list[Group]:
        """Groups that write what a root reads, the latest first; then those that read it too."""
        found = dict.fromkeys(
            g for g in self.fusion.members(self.fusion.needs(alone.scan.reads)) if g.kind not in ALONE
        )
        shared: list[list[Group]] = [self._framed.get(alone.frame, [])]
        for read in reversed(alone.scan.reads):
            if any(s != 0 for s in read.layout.strides):
                shared.append(self.fusion.readers.get(id(read.value), []))
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
        if not self.fusion.has_room(group, scan.reads, scan.inline, 1) or not self._worthwhile(
            group, scan, joint
        ):
            return None
        needs = root.after | self.fusion.needs(scan.reads)
        if needs & group.bit or any(other.before & group.bit for other in self.fusion.members(needs)):
            return None
        group.widen(joint)
        return scan

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

    def _worthwhile(self, group: Group, scan: Scan, joint: Frame) -> bool:
        """Whether a root reads what the group computes or reads as well."""
        if scan.own or joint.mode in WHOLE or not joint.dims:
            return True
        shared = {id(read.value) for read in group.reads if any(s != 0 for s in read.layout.strides)}
        return group.kind == "nest" and any(id(read.value) in shared for read in scan.reads)

    def _tells(self, frame: Frame, root: Root) -> bool:
        """Whether strides over the frame's dims say where the root lies: not if a row is cut in two."""
        found = resolve(root.target(), self.explorer.chain_to(root.value.shape, frame))
        return isinstance(found, Layout)
