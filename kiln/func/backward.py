"""Backward for a batch of gradients of one graph: what is not pointwise is done here, an op per derivative.

    seeds [B, *shape of y]  ->  engine  ->  gradients [B, *shape of x]

The graph was recorded without a batch. A derivative is a graph of gradients and saved values; done for a
batch of gradients (the saved values are the same for all) it is an op made like that of a composite
(composite.py). The engine runs pointwise derivatives itself: they broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kiln import _core, ops
from kiln.capture.function import Derivative
from kiln.capture.handle import Handle
from kiln.capture.make import function_of
from kiln.func.batched import Batched, everywhere
from kiln.func.levels import mapping
from kiln.func.rules import Operand, batched, in_batch
from kiln.graph.graph import Graph, Value
from kiln.graph.size import Dim, substitute, symbol
from kiln.passes.rewrite import substitute_attr
from kiln.table.record import REQUIRED, Op, Param, constant


class BatchedDerivative(Op):
    """A derivative as an op of a batch of gradients, of saved values and of numbers."""

    __slots__ = ("derived",)

    def __init__(self, handle: Handle) -> None:
        derived = function_of(handle)
        assert isinstance(derived, Derivative)
        self.derived = derived
        params = tuple(
            Param(f"x{k}", "N" if value.weak else "T", REQUIRED)
            for k, value in enumerate(derived.contiguous.inputs)
        )
        super().__init__(f"vmap_{derived.name}", "composite", params, self._of_batch, listed=False)
        self.identity = None if handle.identity is None else f"vmap({handle.identity.hex()})"
        self.public = False

    def _of_batch(self, *args: Value) -> Any:
        """The derivative's nodes, each for the batch, in the sizes of the arguments."""
        source, outer = self.derived.contiguous, args[0].graph
        operands = [Operand(x, kind == "grad") for x, (kind, _) in zip(args, self.derived.sources)]
        if any(v.ndim != x.value.ndim - x.batched for v, x in zip(source.inputs, operands)):
            raise RuntimeError(f"{self.name}: it was made for operands of other ranks")
        replace = _sizes_of(source, operands)
        for a, b in source.checks:
            outer.require_equal(substitute(a, replace), substitute(b, replace), self.name)
        size, *others = [x.value.shape[0] for x in operands if x.batched]
        for other in others:
            outer.require_equal(size, other, self.name)
        known = {id(v): x for v, x in zip(source.inputs, operands)}
        for node in source.nodes:
            attrs = tuple(substitute_attr(a, replace) for a in node.attrs)
            known[id(node.out)] = _done(outer, node, [known[id(v)] for v in node.inputs], attrs, size)
        return [in_batch(known[id(y)], size) for y in source.outputs]


def _sizes_of(source: Graph, operands: list[Operand]) -> Callable[[int], Dim]:
    """What the slots of a derivative's graph are in the sizes of the operands."""
    place: dict[int, Dim] = {}
    first = 0
    for value, x in zip(source.inputs, operands):
        sizes: Sequence[Dim] = (symbol(x.value.slot),) if value.weak else x.shape
        place.update({first + k: size for k, size in enumerate(sizes)})
        first += len(sizes)
    return place.__getitem__


def _done(outer: Graph, node: Any, operands: list[Operand], attrs: tuple[Any, ...], size: Any) -> Operand:
    """A node of the derivative, for the batch if it depends on the gradients."""
    if node.op.kind == "constant":
        made = constant(outer, attrs[0])
    elif not any(x.batched for x in operands):
        made = outer.add(node.op, tuple(x.value for x in operands), attrs)
    else:
        return Operand(batched(node.op, operands, list(attrs), size), True)
    made.weak = node.out.weak
    return Operand(made, False)


_made: dict[Handle, BatchedDerivative] = {}


def _derivative(handle: Handle, operands: tuple[Any, ...]) -> Any:
    """What the engine asks for: the gradients of a derivative."""
    found = _made.get(handle)
    if found is None:
        found = _made[handle] = BatchedDerivative(handle)
    result = found.handle(*operands)
    return result if isinstance(result, (tuple, list)) else (result,)


def _sum_to(gradient: Any, sizes: tuple[int, ...]) -> Any:
    """Each gradient summed over the dims along which what it belongs to was broadcast."""
    shape = tuple(gradient.shape)
    lead = len(shape) - 1 - len(sizes)
    wide = (*[1] * lead, *sizes)
    dims = tuple(d + 1 for d, (have, want) in enumerate(zip(shape[1:], wide)) if have != want)
    if dims:
        gradient = ops.sum(gradient, dims, True)
    return gradient if not lead else ops.reshape(gradient, (shape[0], *sizes))


def _call(function: Any, args: tuple[Any, ...]) -> Any:
    """A hook, or the derivative of a user's function, called with one gradient standing for the batch: `args`
    are gradients, tuples of them, or none of these.
    """
    flat = [x for arg in args for x in (arg if isinstance(arg, tuple) else (arg,))]
    size = next(x.shape[0] for x in flat if isinstance(x, _core.Tensor))
    with mapping(size, "different") as level:

        def one(x: Any) -> Any:
            return Batched(x, level) if isinstance(x, _core.Tensor) else x

        found = function(*[tuple(map(one, x)) if isinstance(x, tuple) else one(x) for x in args])
        if isinstance(found, (tuple, list)):
            return tuple([None if g is None else everywhere(g, level) for g in found])
        return None if found is None else everywhere(found, level)


def gradients_of_batch(
    roots: Sequence[Any], inputs: Sequence[Any], seeds: Sequence[Any], retain_graph: bool, create_graph: bool
) -> tuple[Any, ...]:
    """The gradients of `roots` for a batch of seeds each, [B, *shape]: per input [B, *shape], or None."""
    found: tuple[Any, ...] = _core.run_backward(
        tuple(roots), tuple(seeds), retain_graph, create_graph, tuple(inputs), False, True
    )
    return found


_core.set_batched(_derivative, _sum_to, _call)
