"""Backward hooks of modules: functions called with the gradients of a call's results and of its arguments.

Both ends of a call pass through a node that changes nothing: the one behind the results sees their gradients
first, the one before the arguments sees theirs when the engine has passed all of the module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kiln import _core
from kiln._core import Tensor
from kiln.autograd import Function
from kiln.errors import warn

Grads = tuple[Tensor | None, ...]


class BackwardHookFunction(Function):
    """Its tensors, unchanged; `then` is given their gradients and returns those that go on.

    One that is not defined is None behind a module, zeros before it.
    """

    @staticmethod
    def forward(ctx: Any, zeros: bool, then: Callable[[Grads], Any], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.then = then
        ctx.set_materialize_grads(zeros)
        needed = ctx.needs_input_grad[2:]
        ctx.mark_non_differentiable(*[x for x, needs in zip(tensors, needed) if not needs])
        return tensors

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return (None, None, *ctx.then(grads))


class Call:
    """One call of a module that has backward hooks."""

    def __init__(
        self, module: Any, before: Iterable[Callable[..., Any]], after: Iterable[Callable[..., Any]]
    ) -> None:
        self.module, self.before, self.after = module, list(before), list(after)
        self.inputs = 0
        self.ends = False  # whether the arguments' gradients will come
        self.grad_outputs: Any = None

    def enter(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments forward is to get."""
        self.inputs = len(args)
        args, self.ends = _through(args, True, self._at_inputs)
        return args

    def leave(self, result: Any) -> Any:
        """The result the caller is to get: a tensor, or a tuple of some; others are not watched."""
        if isinstance(result, tuple):
            results, _ = _through(result, False, self._at_outputs)
            return type(result)(*results) if hasattr(result, "_fields") else results
        if not isinstance(result, Tensor):
            warn(
                "For backward hooks to be called, module output should be a Tensor or a tuple of Tensors but "
                f"received {type(result)}"
            )
            return result
        return _through((result,), False, self._at_outputs)[0][0]

    def _at_outputs(self, grads: Any) -> Any:
        for hook in self.before:
            grads = _replaced(grads, hook(self.module, grads), "pre hook", "grad_output")
        if self.ends:
            self.grad_outputs = grads
            return grads
        if self.after:
            warn(
                "Full backward hook is firing when gradients are computed with respect to module outputs "
                "since no inputs require gradients: it is given None for them"
            )
        for hook in self.after:
            came = hook(self.module, (None,) * self.inputs, grads)
            if came is not None and any(g is not None for g in came):
                raise RuntimeError(
                    "Backward hook for Modules where no input requires gradient should always return None or "
                    "None for all gradients."
                )
        return grads

    def _at_inputs(self, grads: Any) -> Any:
        outputs, self.grad_outputs = self.grad_outputs, None
        if outputs is None:  # the gradient came another way than through the results
            return grads
        for hook in self.after:
            grads = _replaced(grads, hook(self.module, grads, outputs), "hook", "grad_input")
        return grads


def _through(
    values: tuple[Any, ...], zeros: bool, then: Callable[[Any], Any]
) -> tuple[tuple[Any, ...], bool]:
    """`values`, the tensors of them through a node, if any of them is watched; and whether one is."""
    places = [k for k, x in enumerate(values) if isinstance(x, Tensor)]
    if not _core.grad_enabled() or not any(values[k].requires_grad for k in places):
        return values, False

    def beside(grads: Grads) -> Any:
        all_: list[Any] = [None] * len(values)
        for k, g in zip(places, grads):
            all_[k] = g
        found = then(tuple(all_))
        return [found[k] for k in places]

    out = list(values)
    for k, x in zip(places, BackwardHookFunction.apply(zeros, beside, *[values[k] for k in places])):
        out[k] = x
    return tuple(out), True


def _replaced(grads: Any, came: Any, who: str, what: str) -> Any:
    """What a hook returned in place of `grads`, as a tuple of as many; `grads` if that was None."""
    if came is None:
        return grads
    came = came if isinstance(came, tuple) else (came,)
    if len(came) != len(grads):
        raise RuntimeError(
            f"Backward {who} returned an invalid number of {what}, got {len(came)}, but expected {len(grads)}"
        )
    return came


def watch_node(module: Any, hooks: Iterable[Callable[..., Any]], args: tuple[Any, ...], result: Any) -> None:
    """Calls hooks with the gradients of the node of a result, the first of several. It may be a part of what
    the module computes: a FutureWarning says so.
    """
    first = result
    while not isinstance(first, Tensor):
        first = (
            next(v for v in first.values() if isinstance(v, Tensor)) if isinstance(first, dict) else first[0]
        )
    node = first.grad_fn
    if node is None:
        return
    for hook in hooks:
        node.register_hook(lambda inside, outside, hook=hook: hook(module, inside, outside))
    ends = {x.grad_fn for x in args if isinstance(x, Tensor)} - {None}
    if ends != {n for n, _ in node.next_functions}:
        warn(
            "Using a non-full backward hook when the forward contains multiple autograd Nodes is deprecated "
            "and will be removed in future versions. This hook will be missing some grad_input. Please use "
            "register_full_backward_hook to get the documented behavior.",
            FutureWarning,
        )
