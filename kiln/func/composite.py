"""Composites for a batch: the graph of one sample, every node done for all samples, as an op of its own.

    softmax [n]   max - exp sum /           one sample: what the body traces
    vmap(softmax) [B, n]                    each node by its rule (rules.py): one graph, so one program

Such an op is a composite like any other: it fuses, it is recorded, its derivative is derived (or the stated
one of the sample's op, done for the batch in the same way), and it can be mapped again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kiln.func.rules import Operand, batched, in_batch
from kiln.graph.graph import Graph, Value, building
from kiln.table.record import IndexCheck, Op, Param, constant

Flags = tuple[Any, ...]  # per parameter: None, whether it is batched, or of a list one per item


class Look(NamedTuple):
    """Which arguments are batched, and how many dims a sample of each has (-1: no array)."""

    flags: Flags
    ranks: tuple[int, ...]


class BatchedOp(Op):
    """A composite for operands some of which are batched."""

    __slots__ = ("base", "look")

    def __init__(self, base: Op, look: Look) -> None:
        self.base, self.look = base, look
        params = tuple(
            p._replace(kind="T") if p.kind in "NVO" and flag is True else p
            for p, flag in zip(base.params, look.flags)
        )
        super().__init__(f"vmap_{base.name}", "composite", params, self._of_batch, listed=False)
        self.identity = None if base.identity is None else f"vmap({base.identity}{look!r})"
        self.gradient = base.gradient
        self.differentiable = base.differentiable
        self.public = False
        self.checks = None if base.checks is None else self._check(base.checks)

    def _flag(self, name: str) -> bool:
        return bool(next(f for p, f in zip(self.params, self.look.flags) if p.name == name))

    def _check(self, check: IndexCheck) -> IndexCheck:
        """The check of one sample's positions, for all; the dim of a batched source is one further."""
        further = self._flag(check.source)
        if isinstance(check.dim, int):
            return check._replace(dim=check.dim + (further and check.dim >= 0))
        if check.dim != "class":
            return check._replace(along=int(further))
        rank = self.look.ranks[next(k for k, p in enumerate(self.params) if p.name == check.source)]
        return check._replace(dim=min(rank - 1, 1) + further)

    def _of_batch(self, *args: Any) -> Any:
        """The body: the sample's op traced, and every node done for the batch."""
        params, flags = self.base.params, self.look.flags
        sample = _Sample(_size(args, flags))
        inner = [a if p.kind in "SZ" else sample.declare(a, flag) for p, a, flag in zip(params, args, flags)]
        if any(r >= 0 and x.ndim != r for r, x in zip(self.look.ranks, inner) if isinstance(x, Value)):
            raise RuntimeError(f"{self.name}: it was made for operands of other ranks")
        assert self.base.body is not None
        return sample.run(lambda: self.base.body(*self.base.lifted(inner)))  # type: ignore[misc]

    def gradients(
        self,
        grads: tuple[Any, ...],
        inputs: tuple[Any, ...],
        outputs: tuple[Any, ...],
        attrs: tuple[Any, ...],
    ) -> tuple[Any, ...]:
        """The stated derivative of the sample's op, for the batch."""
        flags = list(_flat_flags(self.base.params, self.look.flags, inputs))
        sample = _Sample(next(g for g in grads if g is not None).shape[0])
        given = [
            tuple(sample.declare(x, flag) for x, flag in zip(xs, marks))
            for xs, marks in ((grads, [True] * len(grads)), (inputs, flags), (outputs, [True] * len(outputs)))
        ]
        found = sample.run(lambda: list(self.base.gradients(given[0], given[1], given[2], attrs)))
        return tuple(found)


def _size(args: tuple[Any, ...], flags: Flags) -> Any:
    """The size of the batch, of the first argument that is batched."""
    for a, flag in zip(args, flags):
        if flag is True:
            return a.shape[0]
        if isinstance(flag, tuple) and True in flag:
            return a[flag.index(True)].shape[0]
    raise AssertionError("no argument is batched")


def _flat_flags(params: tuple[Param, ...], flags: Flags, inputs: tuple[Any, ...]) -> Iterator[bool]:
    """Which of a node's inputs are batched."""
    for p, flag in zip(params, flags):
        if p.kind == "L":
            yield from flag
        elif p.kind not in "SZ" and flag is not None:
            yield flag


class _Sample:
    """A graph of one sample inside the graph of the batch, in the same sizes."""

    def __init__(self, size: Any) -> None:
        self.size = size
        self.graph = Graph()
        self.outer: Graph | None = None
        self.known: dict[int, Operand] = {}  # id of a sample's value -> what it is in the batch

    def declare(self, x: Any, flag: Any) -> Any:
        """An argument as the sample has it."""
        if isinstance(x, (list, tuple)):
            return [self.declare(v, f) for v, f in zip(x, flag)]
        if not isinstance(x, Value):
            return x
        if self.outer is None:
            self.outer = x.graph
            self.graph.slots, self.graph.checks, self.graph.equal = (
                x.graph.slots, x.graph.checks, x.graph.equal,
            )  # fmt: skip
        if flag:
            x.graph.require_equal(x.shape[0], self.size, "vmap")
        own = Value(self.graph, None, x.dtype, tuple(x.shape)[bool(flag) :])
        own.weak, own.slot, own.scalar = x.weak, x.slot, x.scalar
        self.graph.inputs.append(own)
        self.known[id(own)] = Operand(x, bool(flag))
        return own

    def run(self, body: Callable[[], Any]) -> Any:
        """What the body gives for one sample, for the batch."""
        with building(self.graph):
            result = body()
        assert self.outer is not None
        self.outer.slots = max(self.outer.slots, self.graph.slots)
        for node in self.graph.nodes:
            operands = [self.known[id(v)] for v in node.inputs]
            self.known[id(node.out)] = self._done(node, operands)
        if isinstance(result, (tuple, list)):
            return [None if y is None else self._whole(y) for y in result]
        return self._whole(result)

    def _done(self, node: Any, operands: list[Operand]) -> Operand:
        assert self.outer is not None
        if node.op.kind == "constant":
            made = constant(self.outer, node.attrs[0])
        elif not any(x.batched for x in operands):
            made = self.outer.add(node.op, tuple(x.value for x in operands), node.attrs)
        else:
            return Operand(batched(node.op, operands, list(node.attrs), self.size), True)
        made.weak = node.out.weak
        return Operand(made, False)

    def _whole(self, y: Value) -> Value:
        """A result with the batch in front, whether or not it depends on the batch."""
        found: Value = in_batch(self.known[id(y)], self.size)
        return found


_made: dict[tuple[int, Look], BatchedOp] = {}


def batched_op(base: Op, look: Look) -> BatchedOp:
    """The op that does `base` for a batch."""
    found = _made.get((id(base), look))
    if found is None:
        found = _made[id(base), look] = BatchedOp(base, look)
    return found
