"""Gradient clipping: no value is read, so a clipped training step still records whole."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from typing import Union

from kiln import ops
from kiln._core import Tensor
from kiln.autograd import no_grad
from kiln.errors import describe, message, warn
from kiln.table.callables import name_all as _name_all

Parameters = Union[Tensor, Iterable[Tensor]]


@no_grad()
def get_total_norm(
    tensors: Parameters,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The norm of all tensors taken as one vector: a tensor of shape (); zero for no tensors.

    `norm_type` is p of the p-norm, infinity for the largest absolute value. `error_if_nonfinite` reads
    the result and raises RuntimeError if it is not finite. `foreach` chooses nothing.
    """
    held = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    p = float(norm_type)
    if not held:
        zero: Tensor = ops.tensor(0.0)
        return zero
    total = _norm(ops.stack([_norm(t.detach(), p) for t in held]), p)
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(
            f"The total norm of order {p} for gradients from `parameters` is {total.item()}: it is "
            "non-finite, so "
            "it cannot be clipped. Look for the first loss that is not finite, or set "
            "`error_if_nonfinite=False`"
        )
    return total


@no_grad()
def clip_grad_norm_(
    parameters: Parameters,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale the parameters' gradients so that their common norm is at most `max_norm`; gives the norm before.

    Every gradient is multiplied by min(1, max_norm / (norm + 1e-6)); parameters without one are skipped.
    `foreach` chooses nothing.
    """
    grads = _grads(parameters)
    total = get_total_norm(grads, norm_type, error_if_nonfinite)
    _scale(grads, max_norm, total)
    return total


@no_grad()
def clip_grads_with_norm_(
    parameters: Parameters, max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scale the parameters' gradients, whose common norm is `total_norm`, so that it is at most `max_norm`.

    Every gradient is multiplied by min(1, max_norm / (total_norm + 1e-6)). `foreach` chooses nothing.

    >>> import kiln
    >>> w = kiln.nn.Parameter(kiln.ones(2))
    >>> (w * kiln.tensor([3.0, 4.0])).sum().backward()
    >>> kiln.nn.utils.clip_grads_with_norm_(w, 1.0, kiln.nn.utils.get_total_norm([w.grad]))
    >>> w.grad
    tensor([0.6000, 0.8000])
    """
    _scale(_grads(parameters), max_norm, total_norm)


def clip_grad_norm(
    parameters: Parameters,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """`clip_grad_norm_` under its old name, which a FutureWarning says."""
    warn(
        "`kiln.nn.utils.clip_grad_norm` is now deprecated in favor of `kiln.nn.utils.clip_grad_norm_`.",
        FutureWarning,
    )
    total: Tensor = clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
    return total


@no_grad()
def clip_grad_value_(parameters: Parameters, clip_value: float, foreach: bool | None = None) -> None:
    """Clamp every gradient into [-clip_value, clip_value]. `foreach` chooses nothing."""
    bound = float(clip_value)
    for grad in _grads(parameters):
        grad.copy_(ops.clamp(grad, min=-bound, max=bound))


def _scale(grads: list[Tensor], max_norm: float, total: Tensor) -> None:
    scale = ops.clamp(float(max_norm) / (total + 1e-6), max=1.0)
    for grad in grads:
        grad.mul_(scale.to(grad.dtype))


def _grads(parameters: Parameters) -> list[Tensor]:
    """The gradients that exist."""
    held = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    if not held and isinstance(parameters, Generator):
        warn("`parameters` is an empty generator, no gradient clipping will occur.")
    for value in held:
        if not isinstance(value, Tensor):
            raise TypeError(message("clip_grad", "parameters", describe(value)))
    return [value.grad for value in held if value.grad is not None]


def _norm(x: Tensor, p: float) -> Tensor:
    """The p-norm of all elements of x, of shape ()."""
    if p == math.inf:
        y: Tensor = ops.amax(ops.abs(x)) if x.numel() else ops.zeros((), dtype=x.dtype)
    elif p == 2.0:
        y = ops.sqrt(ops.sum(x * x))
    elif p == 1.0:
        y = ops.sum(ops.abs(x))
    else:
        y = ops.pow(ops.sum(ops.pow(ops.abs(x), p)), 1.0 / p)
    return y


_name_all(globals(), __name__)
