"""Steps of SGD, Adam and AdamW: each update of one parameter as one composite, in the operation order of
PyTorch's single-tensor formulas.

    sgd_step             p' = p - lr g
    sgd_momentum_step    b' = momentum b + weight g;  p' = p - lr (b' or g + momentum b')
    adam_step            m' = m + w1 (g - m);  v' = beta2 v + w2 g g
                         p' = p - step_size m' / (sqrt(v') + eps)
    amsgrad_step         adam_step with the running maximum of v' in the denominator

A composite returns new values; its underscore form (`adam_step_`) writes them over the tensors of the
same names. All arithmetic among numbers (1 - beta, bias corrections, lr / correction) is the caller's,
in double precision: here a number only ever meets a tensor. What a step is made of (which kind of weight
decay, nesterov, maximize) is structure; every number is a run-time argument. The steps of other optimizers
are in optimizer_steps_adaptive.py and optimizer_steps_factored.py, what all share in optimizer_step_parts.py.

float16 and bfloat16 are computed in float32 and each result rounded once, as in every composite.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln.ops.elementwise.arithmetic import maximum
from kiln.ops.elementwise.elementary import sqrt
from kiln.ops.nn.optimizer_step_parts import (
    BETA1,
    BETA2,
    DECAY,
    EPS,
    LR,
    STEP,
    arrays,
    direction,
    papers,
    shrunk,
    write_over,
)
from kiln.table import drawn as d
from kiln.table.record import Number, Samples, Structure, Tensor, composite

_MOMENTUM, _DAMPENING = 0.9, 0.25
# what a caller makes of Adam's numbers: step_size, weight1, beta2, weight2, eps
_ADAM_NUMBERS = (
    LR * (1 - BETA2**STEP) ** 0.5 / (1 - BETA1**STEP),
    1 - BETA1,
    BETA2,
    1 - BETA2,
    EPS * (1 - BETA2**STEP) ** 0.5,
)


def _adam(tensors: tuple[Any, ...], numbers: tuple[Any, ...], decay: str, maximize: bool) -> tuple[Any, ...]:
    """Adam's formula on (param, grad, exp_avg, exp_avg_sq[, max_exp_avg_sq]); gives all but grad anew."""
    param, grad, exp_avg, exp_avg_sq, *peak = tensors
    step_size, weight1, beta2, weight2, eps, weight_decay = numbers
    grad = direction(param, grad, weight_decay, decay, maximize)
    param = shrunk(param, weight_decay, decay)
    exp_avg = exp_avg + weight1 * (grad - exp_avg)
    exp_avg_sq = exp_avg_sq * beta2 + weight2 * grad * grad
    peak = [maximum(v, exp_avg_sq) for v in peak]
    denominator = sqrt(peak[0] if peak else exp_avg_sq) + eps
    return (param - step_size * exp_avg / denominator, exp_avg, exp_avg_sq, *peak)


# References: the algorithms of PyTorch's documentation, with numbers of their own.


def _sgd_of_the_paper(np: ModuleType, param: Any, grad: Any) -> Any:
    return np.subtract(param, np.multiply(grad, LR))


def _momentum_of_the_paper(
    np: ModuleType, param: Any, grad: Any, buffer: Any, nesterov: bool = False
) -> tuple[Any, Any]:
    """Sutskever and others, 2013, in the form that PyTorch has it."""
    velocity = _MOMENTUM * buffer + (1 - _DAMPENING) * grad
    step = grad + _MOMENTUM * velocity if nesterov else velocity
    return np.subtract(param, LR * step), velocity


def _adam_of_the_paper(
    np: ModuleType, param: Any, grad: Any, first: Any, second: Any, *peak: Any
) -> tuple[Any, ...]:
    """Kingma and Ba, 2015, algorithm 1; with a peak of Reddi and others, 2018, corrected as PyTorch does."""
    first = BETA1 * first + (1 - BETA1) * grad
    second = BETA2 * second + (1 - BETA2) * np.square(grad)
    peak = tuple(np.maximum(old, second) for old in peak)
    first_hat = first / (1 - np.power(BETA1, STEP))
    second_hat = (*peak, second)[0] / (1 - np.power(BETA2, STEP))
    return param - LR * first_hat / (np.sqrt(second_hat) + EPS), first, second, *peak


def _samples(moments: str, numbers: tuple[float, ...], **flags: Any) -> Samples:
    """Steps of a parameter, its gradient and moments ("+": no negative values): plain, with an L2 penalty,
    with decoupled decay and maximizing; `flags` are set in the last two.
    """

    decoupled = 1 - LR * DECAY
    return d.samples(
        lambda rng, dtype: ((*arrays(rng, (3, 5), dtype, moments), *numbers), {}),
        lambda rng, dtype: ((*arrays(rng, (37,), dtype, moments), *numbers, DECAY, "l2"), flags),
        lambda rng, dtype: (
            (*arrays(rng, (37,), dtype, moments), *numbers, decoupled, "decoupled"),
            {"maximize": True, **flags},
        ),
    )


@composite(
    samples=_samples("", (LR,)),
    reference=papers(_sgd_of_the_paper, 2, 1),
    differentiable=False,
    public=False,
)
def sgd_step(
    param: Tensor,
    grad: Tensor,
    lr: Number,
    weight_decay: Number = 0.0,
    decay: Structure = "none",
    maximize: Structure = False,
) -> Any:
    """The new parameter after a plain gradient step; all tensors of one shape and dtype."""
    return _sgd(param, grad, lr, weight_decay, decay, maximize)


def _sgd(
    param: Any, grad: Tensor, lr: Any, weight_decay: Any = 0.0, decay: str = "none", maximize: bool = False
) -> Tensor:
    param = shrunk(param, weight_decay, decay)
    return param - lr * direction(param, grad, weight_decay, decay, maximize)


@composite(
    samples=_samples("-", (LR, _MOMENTUM, 1 - _DAMPENING), nesterov=True),
    reference=papers(_momentum_of_the_paper, 3, 3, "nesterov"),
    differentiable=False,
    public=False,
)
def sgd_momentum_step(
    param: Tensor,
    grad: Tensor,
    momentum_buffer: Tensor,
    lr: Number,
    momentum: Number,
    weight: Number,
    weight_decay: Number = 0.0,
    decay: Structure = "none",
    nesterov: Structure = False,
    maximize: Structure = False,
) -> tuple[Any, Any]:
    """The new (param, momentum_buffer); `weight` is what the gradient enters the buffer with.

    That is 1 - dampening, and 1 in the first step, whose buffer is zero.
    """
    tensors = (param, grad, momentum_buffer)
    return _momentum(*tensors, lr, momentum, weight, weight_decay, decay, nesterov, maximize)


def _momentum(
    param: Any,
    grad: Tensor,
    buffer: Any,
    lr: Any,
    momentum: Any,
    weight: Tensor,
    weight_decay: Any = 0.0,
    decay: str = "none",
    nesterov: bool = False,
    maximize: bool = False,
) -> tuple[Any, Any]:
    param = shrunk(param, weight_decay, decay)
    grad = direction(param, grad, weight_decay, decay, maximize)
    buffer = buffer * momentum + weight * grad
    return param - lr * (grad + momentum * buffer if nesterov else buffer), buffer


@composite(
    samples=_samples("-+", _ADAM_NUMBERS),
    reference=papers(_adam_of_the_paper, 4, 5),
    differentiable=False,
    public=False,
)
def adam_step(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step_size: Number,
    weight1: Number,
    beta2: Number,
    weight2: Number,
    eps: Number,
    weight_decay: Number = 0.0,
    decay: Structure = "none",
    maximize: Structure = False,
) -> tuple[Any, Any, Any]:
    """The new (param, exp_avg, exp_avg_sq) of Adam and AdamW.

    weight1 = 1 - beta1, weight2 = 1 - beta2. The corrections of both moments for their start at zero are
    in the numbers: with c = sqrt(1 - beta2**t), step_size = lr c / (1 - beta1**t), and eps is the user's
    times c.
    """
    numbers = (step_size, weight1, beta2, weight2, eps, weight_decay)
    new: tuple[Any, Any, Any] = _adam((param, grad, exp_avg, exp_avg_sq), numbers, decay, maximize)
    return new


@composite(
    samples=_samples("-++", _ADAM_NUMBERS),
    reference=papers(_adam_of_the_paper, 5, 5),
    differentiable=False,
    public=False,
)
def amsgrad_step(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor,
    step_size: Number,
    weight1: Number,
    beta2: Number,
    weight2: Number,
    eps: Number,
    weight_decay: Number = 0.0,
    decay: Structure = "none",
    maximize: Structure = False,
) -> tuple[Any, Any, Any, Any]:
    """The new (param, exp_avg, exp_avg_sq, max_exp_avg_sq) of Adam's AMSGrad variant."""
    tensors = (param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq)
    numbers = (step_size, weight1, beta2, weight2, eps, weight_decay)
    new: tuple[Any, Any, Any, Any] = _adam(tensors, numbers, decay, maximize)
    return new


write_over(sgd_step, 0)
write_over(sgd_momentum_step, 0, 2)
write_over(adam_step, 0, 2, 3)
write_over(amsgrad_step, 0, 2, 3, 4)
