"""A user's `autograd.Function` on samples: its forward and backward run on samples too, as one node.

`generate_vmap_rule = True` says that they are made of ops that can be mapped; else the class states a `vmap`
static method, which gets the whole batch: vmap(info, in_dims, *args) -> (output, out_dims).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kiln import _core, ops
from kiln.autograd.function import Function, FunctionCtx
from kiln.func.batched import Batched, everywhere, innermost, unwrapped
from kiln.func.levels import Level, mapping


class Info(NamedTuple):
    """What a `vmap` static method is told: the size of the batch, what random numbers are."""

    batch_size: int
    randomness: str


def applied(cls: Any, args: tuple[Any, ...]) -> Any:
    """`cls.apply(*args)` where some arguments are samples."""
    level = innermost(list(args))
    assert level is not None
    own = cls.__dict__.get("vmap") or getattr(cls, "vmap", None)
    if getattr(cls, "generate_vmap_rule", False):
        return _generated(cls, args, level)
    if own is None:
        raise RuntimeError(
            f"You tried to vmap over {cls.__name__}, but it does not have vmap support. Please override and "
            "implement the vmap staticmethod or set generate_vmap_rule=True."
        )
    dims = tuple(0 if type(x) is Batched and x.level is level else None for x in args)
    info = Info(level.size, level.randomness)
    output, places = cls.vmap(info, dims, *(unwrapped(x, level) for x in args))
    several = isinstance(output, tuple)
    outputs = output if several else (output,)
    places = places if isinstance(places, tuple) else (places,) * len(outputs)
    made = tuple(y if d is None else Batched(ops.movedim(y, d, 0), level) for y, d in zip(outputs, places))
    return made if several else made[0]


def _generated(cls: Any, args: tuple[Any, ...], level: Level) -> Any:
    flags = [type(x) is Batched and x.level is level for x in args]
    result = _of_batch(cls, flags, level).apply(*(unwrapped(x, level) for x in args))
    if isinstance(result, tuple):
        return tuple(Batched(y, level) if isinstance(y, _core.Tensor) else y for y in result)
    return Batched(result, level)


def _of_batch(cls: Any, flags: list[bool], level: Level) -> Any:
    """The function of whole batches that runs `cls` on samples."""

    class OfBatch(Function):
        @staticmethod
        def forward(ctx: Any, *wholes: Any) -> Any:
            samples = tuple(Batched(x, level) if flag else x for x, flag in zip(wholes, flags))
            ctx.inner, output = _forward(cls, samples, ctx.needs_input_grad)
            kept = ctx.inner._kept
            ctx.saved = [type(x) is Batched and x.level is level for x in kept]
            ctx.save_for_backward(*(unwrapped(x, level) for x in kept))
            several = isinstance(output, tuple)
            outputs = output if several else (output,)
            made = tuple(everywhere(y, level) if isinstance(y, _core.Tensor) else y for y in outputs)
            constant = ctx.inner._constant
            ctx.mark_non_differentiable(*(m for m, y in zip(made, outputs) if any(y is c for c in constant)))
            ctx.set_materialize_grads(ctx.inner._materialize)
            ctx.inner._kept = ()
            return made if several else made[0]

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            with mapping(level.size, level.randomness) as here:
                ctx.inner._kept = tuple(
                    Batched(x, here) if flag else x for x, flag in zip(ctx.saved_tensors, ctx.saved)
                )
                given = [Batched(g, here) if isinstance(g, _core.Tensor) else g for g in grads]
                found = cls._derivative()(ctx.inner, *given)
                ctx.inner._kept = ()
                found = found if isinstance(found, tuple) else (found,)
                wholes = [None if g is None else everywhere(g, here) for g in found]
            return tuple(
                g if g is None or flag else ops.sum(g, 0)
                for g, flag in zip(wholes, [*flags, *[True] * len(wholes)])
            )

    OfBatch.__name__ = cls.__name__
    return OfBatch


def _forward(cls: Any, samples: tuple[Any, ...], needs: tuple[bool, ...]) -> tuple[FunctionCtx, Any]:
    """What forward gives for samples, and its context."""
    ctx = FunctionCtx()
    ctx.needs_input_grad = needs
    if cls.setup_context is Function.setup_context:
        return ctx, cls.forward(ctx, *samples)
    output = cls.forward(*samples)
    cls.setup_context(ctx, samples, output)
    return ctx, output
