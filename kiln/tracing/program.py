"""A captured function as a callable: arguments checked by name, one op, results in their containers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln import _core
from kiln.errors import describe
from kiln.graph.size import Size, evaluate
from kiln.tracing.capture import Captured
from kiln.tracing.inside import inside, is_symbolic
from kiln.tracing.trees import alike, build, constants

MOST = 64  # operands of one call that may have gradients


def _many_need_gradients(tensors: list[Any]) -> bool:
    return any(x.requires_grad for x in tensors[MOST:])


class Program:
    """What runs a `Captured`: `state` gives the tensors it has, in the order of `captured.state`."""

    def __init__(self, captured: Captured, state: Callable[[], list[Any]]) -> None:
        self.captured = captured
        self.state = state
        self._is_one = captured.out_tree.kind == "leaf"
        positional, named = captured.in_tree.items
        self._is_flat = not named.items and all(item.kind == "leaf" for item in positional.items)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the function gives of these arguments."""
        found = self.captured
        if is_symbolic(args) or (kwargs and is_symbolic(kwargs)):
            return inside(found, self.state(), args, kwargs)
        leaves = self.leaves(args, kwargs)
        operands = [*leaves, *self.state()]
        numbers = found.draw(operands)
        for check in found.checks:
            check.before(operands)
        results: tuple[Any, ...] = ()
        if found.op is not None:
            tensors = [*operands, *(operands[k] for k in found.steps.again)]
            if len(tensors) > MOST and _core.grad_enabled() and _many_need_gradients(tensors):
                results = found.replay(tensors, numbers)
            else:
                results = _core.call_op(found.op.handle, found.op.structure, (*tensors, *numbers))
        for check in found.checks:
            check.after(operands, results)
        return self._given(operands, results)

    def _given(self, operands: list[Any], results: tuple[Any, ...]) -> Any:
        found = self.captured
        count = len(found.inputs)
        outputs: list[Any] = []
        first = len(found.history) - len(found.mutated)
        for k, history in enumerate(found.history[:first]):
            if k in found.same:
                kind, which = found.same[k]
                outputs.append(operands[which if kind == "input" else count + which])
                continue
            y = results[k]
            flows = not y.requires_grad or any(operands[j].requires_grad for j in history)
            outputs.append(y if flows else y.detach())
        for k, (kind, which) in enumerate(found.mutated, first):
            target = operands[which if kind == "input" else count + which]
            y = results[k]
            flows = not y.requires_grad or any(operands[j].requires_grad for j in found.history[k])
            _write(target, y if flows else y.detach())
        if self._is_one:
            return outputs[0]
        tree = found.out_tree
        if found.gives_sizes:
            sizes = [n for x in operands for n in x.shape]
            tree = constants(tree, lambda x: evaluate(x, sizes.__getitem__) if isinstance(x, Size) else x)
        return build(tree, iter(outputs))

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The tensors among the arguments, checked; TypeError or RuntimeError in the input's own name."""
        found = self.captured
        given: list[Any] = []
        plain = self._is_flat and not kwargs and len(args) == len(found.aliases)
        if plain and all(isinstance(x, _core.Tensor) for x in args):
            given = list(args)
        elif not alike(tree := found.tree_of(args, kwargs, given), found.in_tree):
            raise TypeError(f"{found.name}: {found.difference(args, kwargs, tree)}")
        leaves = [given[k] for k in found.distinct]
        if len(leaves) < len(given):
            found.check_aliases(given)
        sizes: list[int] = []
        for x, own in zip(leaves, found.inputs):
            if x.dtype.name != own.dtype:
                raise RuntimeError(f"{own.name}: expected {own.dtype}, got {describe(x)}")
            came = tuple(x.shape)
            if came != own.shape and (len(came) != len(own.shape) or not found.dims):
                raise RuntimeError(_other_shape(own, came))
            sizes += came
        if found.dims:
            self._check_dims(sizes)
        return leaves

    def _check_dims(self, sizes: list[int]) -> None:
        """RuntimeError, in the input's own name, for sizes that are none of those declared."""
        found = self.captured

        def of(slot: int) -> int:
            return sizes[slot]

        at = 0
        for own in found.inputs:
            for d, size in enumerate(own.shape):
                expected = size if isinstance(size, int) else evaluate(size, of)
                if expected != sizes[at]:
                    told = found.size_text(size)
                    more = "" if isinstance(size, int) else f" = {expected}"
                    raise RuntimeError(f"{own.name}: dim {d} must be {told}{more}, got {sizes[at]}")
                at += 1
        for dim in found.dims.values():
            n = evaluate(dim.symbol, of)
            if n < dim.min or (dim.max is not None and n > dim.max):
                most = "any" if dim.max is None else dim.max
                raise RuntimeError(
                    f"{found.place_of(dim)} is {n}, {dim.name} must be from {dim.min} to {most}"
                )
        for guard in found.guards:
            if not guard.holds(of):
                asked = f"{found.size_text(guard.left)} {guard.sign} {found.size_text(guard.right)}"
                raise RuntimeError(
                    f"{found.name}: was made where {asked} is {guard.answer} ({guard.line}), which it is not "
                    f"here"
                )


def _other_shape(own: Any, came: tuple[int, ...]) -> str:
    if len(came) != len(own.shape):
        return f"{own.name}: must have {len(own.shape)} dims, got {len(came)}: {list(came)}"
    dim = next(d for d, (a, b) in enumerate(zip(own.shape, came)) if a != b)
    return f"{own.name}: dim {dim} must be {own.shape[dim]}, got {came[dim]}"


def program_of(captured: Captured) -> Program:
    """A program whose state is what was captured."""
    tensors = [s.tensor for s in captured.state]
    return Program(captured, lambda: tensors)


def _write(target: Any, value: Any) -> None:
    """Puts a value where a buffer or an argument is, without history where it has none."""
    if value.requires_grad:
        target.copy_(value)
        return
    before = _core.set_grad_enabled(False)
    try:
        target.copy_(value)
    finally:
        _core.set_grad_enabled(before)
