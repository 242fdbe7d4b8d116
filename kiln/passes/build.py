"""The scalars of a group: every inline value as an expression over loads, numbers and positions.

value                       scalar
array, input                load k                   (k: an operand of the nest, by strides)
number, size                number k
constant                    const
pointwise                   the op's body on its operands, rounded once
iota                        offset + sum of stride * index d
reduction of the frame      sum, max, ... of its operand
gather                      load k at (index, .., clamp(i), ..)
"""

from __future__ import annotations

from typing import NamedTuple

from kiln.codegen.nests.nest import NOWHERE, TURN, within
from kiln.graph.graph import Node, Shape, Value
from kiln.graph.size import Dim, Size, symbol
from kiln.passes.explore import Array, Explorer, Frame, Read
from kiln.passes.group import Fusion, Group, Part, Root
from kiln.passes.layout import Chain, Layout, index_maps, input_layout, resolve
from kiln.scalars.scalar import Scalar, const, convert, round_to, select
from kiln.table.apply import apply_pointwise, convert_dtype
from kiln.table.kinds import COMPUTE


class Use(NamedTuple):
    """An operand of a kernel: an array (or an input's own memory), from an offset, by strides.

    `own`: the strides are over dims of its own (a computed load), not the frame's.
    """

    value: Value
    array: Array | None
    dtype: str
    mode: str
    layout: Layout
    own: bool


def reduction(node: Node) -> str:
    """The scalar op of a reduction."""
    return node.op.name.rpartition("_")[2]


class Builder:
    """The operands, numbers and scalars of one kernel; loads are numbered from `first`."""

    def __init__(self, explorer: Explorer, frame: Frame, first: int = 0) -> None:
        self.explorer = explorer
        self.frame = frame
        self.first = first
        self.uses: list[Use] = []
        self.numbers: list[tuple[str, Dim]] = []
        self._numbers: dict[tuple[str, Dim], int] = {}
        self._members: dict[int, Scalar] = {}  # by id of the value
        self._operands: dict[Use, int] = {}
        self._made: dict[tuple[int, int], Scalar] = {}

    def beside(self, frame: Frame, uses: list[Use]) -> Builder:
        """Another part of the same kernel, in a frame of its own: operands after `uses`, the same numbers."""
        other = Builder(self.explorer, frame, self.first + len(uses))
        other.numbers, other._numbers = self.numbers, self._numbers
        return other

    def operand(self, use: Use) -> int:
        """The number of an operand, new or known."""
        found = self._operands.get(use)
        if found is None:
            found = self._operands[use] = self.first + len(self.uses)
            self.uses.append(use)
        return found

    def number(self, kind: str, value: Dim) -> Scalar:
        """A number argument; one per run-time integer, in order of first use."""
        place = self._numbers.setdefault((kind, value), len(self.numbers))
        if place == len(self.numbers):
            self.numbers.append((kind, value))
        return Scalar("number", (), kind, place)

    def member(self, value: Value) -> None:
        """Computes a value that the kernel's own arrays hold: others read it at the same point."""
        if id(value) not in self._members:
            chain = self.explorer.chain_to(value.shape, self.frame)
            self._members[id(value)] = self._definition(value, chain)

    def product(self, value: Value, scalar: Scalar) -> None:
        """Says what a value is that the kernel does not compute by its definition."""
        self._members[id(value)] = scalar

    def scalar(self, value: Value, chain: Chain) -> Scalar:
        """A value read through a chain."""
        key = (id(value), id(chain))
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._value(value, chain)
        return found

    def _value(self, value: Value, chain: Chain) -> Scalar:
        known = self._members.get(id(value))
        if known is not None:
            return known
        if value.weak and value.node is None:
            if value.dtype == "float64":
                return self.number("f64", symbol(value.slot))
            whole = self.number("i64", symbol(value.slot))
            return whole.ne(0) if value.dtype == "bool" else whole
        array = self.explorer.arrays.get(id(value))
        if array is None and value.node is not None:
            return self._definition(value, chain)
        return self._load(value, array, chain)

    def _load(self, value: Value, array: Array | None, chain: Chain) -> Scalar:
        layout = resolve(input_layout(value) if array is None else array.layout, chain)
        assert isinstance(layout, Layout)
        k = self.operand(Use(value, array, value.dtype, "in", layout, False))
        return Scalar("load", (), COMPUTE[value.dtype], k)

    def _definition(self, value: Value, chain: Chain) -> Scalar:
        node = value.node
        if node is None:
            return self._load(value, None, chain)
        kind = node.op.kind
        if kind == "pointwise":
            return apply_pointwise(node, [self._operand_of(node, v, chain) for v in node.inputs])
        if kind == "constant":
            number = node.attrs[0]
            return self.size(number) if isinstance(number, Size) else const(number, COMPUTE[value.dtype])
        if kind == "full":
            filled = self._operand_of(node, node.inputs[0], chain)
            return convert_dtype(filled, node.inputs[0].dtype, value.dtype)
        if kind == "iota":
            return self._position(node.out.shape, chain, node.attrs[1])
        if kind == "reduce":
            return self._reduce(node, chain)
        if kind == "gather":
            return self._gather(node, chain)
        return self.scalar(node.inputs[0], self.explorer.links.of_node(node, chain))

    def _operand_of(self, node: Node, value: Value, chain: Chain) -> Scalar:
        return self.scalar(value, self.explorer.links.broadcast(value, node.out.shape, chain))

    def _reduce(self, node: Node, chain: Chain) -> Scalar:
        """A reduction over the frame's reduced dims; over dims of size 1 it is the element itself."""
        name, whole = reduction(node), id(node.out) in self.explorer.rows
        x = self.reduced(node, self.frame.dims if whole else node.out.shape, None if whole else chain)
        if name in ("argmax", "argmin"):
            return Scalar(name, (x,), "i64") if whole else const(0, "i64")
        return round_to(Scalar(name, (x,), x.type), node.out.dtype) if whole else x

    def reduced(self, node: Node, shape: Shape, chain: Chain = None) -> Scalar:
        """The elements a reduction reduces, seen as of `shape`."""
        source = node.inputs[0]
        x = self.scalar(source, self.explorer.links.make("reshape", shape, source, chain))
        return convert_dtype(x, source.dtype, "bool") if reduction(node) in ("all", "any") else x

    def partial(self, node: Node) -> Scalar:
        """The partial results of a reduction of everything: not rounded."""
        x = self.reduced(node, self.frame.dims)
        return Scalar(reduction(node), (x,), x.type)

    def fold(self, part: Part) -> list[tuple[int, Scalar]]:
        """The stores that fold a reduction's elements into its accumulators."""
        mode = reduction(part.node)
        stores = [(self._part(part.array, mode, part.left), self.reduced(part.node, self.frame.dims))]
        if part.turns is not None:
            stores.append((self._part(part.turns, mode, part.left), TURN))
        return stores

    def combine(self, part: Part) -> None:
        """Says what a reduction is whose accumulators are known."""
        x = self._accumulator(part.array, part.taken)
        if part.turns is None:
            total = round_to(Scalar(reduction(part.node), (x,), x.type), part.node.out.dtype)
        else:
            total = self._first(reduction(part.node), x, self._accumulator(part.turns, part.taken))
        self.product(part.node.out, total)

    def _first(self, name: str, x: Scalar, turn: Scalar) -> Scalar:
        """The first position of the best of a row's accumulators, which won in that turn of their chains."""
        best = Scalar(name.removeprefix("arg"), (x,), x.type)
        wins = x.eq(best) | (x.ne(x) & best.ne(best))
        index = Scalar("index", (), "i64", len(self.frame.dims) - 1)
        at = (index >> 4 << 7) + (convert(turn, "i64") << 4) + (index & 15)
        return Scalar("min", (select(wins, at, const(NOWHERE, "i64")),), "i64")

    def _accumulator(self, array: Array, layout: Layout) -> Scalar:
        return Scalar("load", (), COMPUTE[array.value.dtype], self._part(array, "in", layout))

    def _part(self, array: Array, mode: str, layout: Layout) -> int:
        value = array.value
        return self.operand(Use(value, array, value.dtype, mode, layout, False))

    def size(self, dim: Dim) -> Scalar:
        """A size as an i64."""
        return const(dim, "i64") if isinstance(dim, int) else self.number("i64", dim)

    def _position(self, shape: Shape, chain: Chain, dim: int) -> Scalar:
        """The index along a dim of a value, as i64 over the positions in the nest."""
        maps = index_maps(shape, chain)
        assert maps is not None
        return self._linear(maps[dim])

    def _linear(self, layout: Layout) -> Scalar:
        total: Scalar | None = None
        for d, stride in enumerate(layout.strides):
            if stride != 0:
                index = Scalar("index", (), "i64", d)
                term = index if stride == 1 else index * self.size(stride)
                total = term if total is None else total + term
        if total is None:
            return self.size(layout.offset)
        return total if layout.offset == 0 else total + self.size(layout.offset)

    def _gather(self, node: Node, chain: Chain) -> Scalar:
        """A load at computed places; an index out of range (the caller has raised) reads the nearest one."""
        source, index, dim = *node.inputs, node.attrs[0]
        read = self.explorer.strided(source, None)
        assert isinstance(read, Read)
        places = [
            const(0, "i64") if d == dim else self._position(node.out.shape, chain, d)
            for d in range(index.ndim)
        ]
        chosen = convert_dtype(self.scalar(index, chain), index.dtype, "int64")
        last = self.size(source.shape[dim]) - const(1, "i64")
        places[dim] = within(chosen, last)
        array = None if read.raw else self.explorer.arrays[id(read.value)]
        k = self.operand(Use(read.value, array, source.dtype, "in", read.layout, True))
        return Scalar("load", tuple(places), COMPUTE[source.dtype], k)


def stores_of(fusion: Fusion, group: Group, builder: Builder) -> list[tuple[int, Scalar]]:
    """Operand and scalar of every root."""
    found: list[tuple[Root, Scalar]] = []
    for part in group.parts:
        builder.combine(part)
    for value in group.members if group.frame.mode != "blocks" else ():
        builder.member(value)
    for root in group.roots:
        if group.frame.mode == "blocks":
            assert root.value.node is not None
            scalar = builder.partial(root.value.node)
        else:
            scalar = builder.scalar(root.value, fusion.explorer.chain_to(root.value.shape, group.frame))
        found.append((root, scalar))
    stores = [(builder.operand(_target(fusion, group, root)), scalar) for root, scalar in found]
    return stores + [store for part in group.folds for store in builder.fold(part)]


def _target(fusion: Fusion, group: Group, root: Root) -> Use:
    """Where a root is stored, as an operand."""
    return Use(root.value, root.array, root.value.dtype, "out", fusion.stored(group, root), False)
