"""Groups: kernels in the making, and which of them runs before which.

group   := frame, what it stores (roots), what it reads, what it computes inline
fusion  := groups, what each array is read by, and an order: `before` of each, closed, as bits
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kiln.graph.graph import Graph, Node, Shape, Value
from kiln.passes.explore import MOST_REDUCTIONS, Array, Explorer, Frame, Read, Scan, reductions
from kiln.passes.layout import Chain, Layout, contiguous, resolve

MOST_OPERANDS = 30  # arrays one kernel reads and writes
MOST_NODES = 400  # nodes computed in one kernel


class Part(NamedTuple):
    """One reduction in two kernels: its accumulators, as the one that leaves them sees them, and the other;
    of argmax and argmin also where in its chain each is.
    """

    node: Node
    array: Array
    left: Layout
    taken: Layout
    turns: Array | None = None


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
    """One kernel in the making; `kind`: nest, matmul, along, layer or control; `node`: the opaque one,
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
    """The groups of a prepared graph; `outputs`: the array of each output, `readers`: groups by what they
    read.
    """

    def __init__(self, graph: Graph, explorer: Explorer, outputs: list[Array]) -> None:
        self.graph = graph
        self.explorer = explorer
        self.outputs = outputs
        self.groups: list[Group] = []
        self.readers: dict[int, list[Group]] = {}

    def new(self, kind: str, frame: Frame, node: Node | None = None) -> Group:
        """Another group, the last so far."""
        group = Group(len(self.groups), kind, frame, node)
        self.groups.append(group)
        return group

    def members(self, bits: int) -> list[Group]:
        """The groups of a set, the latest first."""
        found: list[Group] = []
        while bits:
            number = bits.bit_length() - 1
            found.append(self.groups[number])
            bits ^= 1 << number
        return found

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

    def note_reader(self, read: Read, group: Group) -> None:
        """States that a group reads an array."""
        readers = self.readers.setdefault(id(read.value), [])
        if not readers or readers[-1] is not group:
            readers.append(group)

    def has_room(self, group: Group, reads: dict[Read, None], inline: dict[int, Value], stores: int) -> bool:
        """Whether a kernel stays of a size that is compiled well."""
        operands = len(group.reads.keys() | reads.keys()) + len(group.roots) + stores
        if operands > MOST_OPERANDS or len(group.inline) + len(inline) > MOST_NODES:
            return False
        return reductions(group.inline) + reductions(inline) <= MOST_REDUCTIONS

    def stored(self, group: Group, root: Root) -> Layout:
        """Where a root goes, over the dims of its group's frame (for blocks: over the partial results)."""
        target = root.target()
        if group.frame.mode == "blocks":
            return target
        found = resolve(target, self.explorer.chain_to(root.value.shape, group.frame))
        assert isinstance(found, Layout)
        return found
