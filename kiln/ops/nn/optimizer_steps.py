"""Optimizer steps: each update of one parameter as one composite, in the operation order of PyTorch's
single-tensor formulas.

    sgd_step             p' = p - lr g
    sgd_momentum_step    b' = momentum b + weight g;  p' = p - lr (b' or g + momentum b')
    adam_step            m' = m + w1 (g - m);  v' = beta2 v + w2 g g
                         p' = p - step_size m' / (sqrt(v') + eps)
    amsgrad_step         adam_step with the running maximum of v' in the denominator

A composite returns new values; its underscore form (`adam_step_`) writes them over the tensors of the
same names. All arithmetic among numbers (1 - beta, bias corrections, lr / correction) is the caller's,
in double precision: here a number only ever meets a tensor. What a step is made of (which kind of weight
decay, nesterov, maximize) is structure; every number is a run-time argument.

    decay == "none"        weight_decay is not read
    decay == "l2"          g += weight_decay p
    decay == "decoupled"   p *= weight_decay  (the caller passes 1 - lr * weight_decay)

float16 and bfloat16 are computed in float32 and each result rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from kiln.ops.elementwise.arithmetic import maximum
from kiln.ops.elementwise.elementary import sqrt
from kiln.ops.elementwise.precision import narrow, wide
from kiln.table import drawn as d
from kiln.table import registry
from kiln.table.record import Number, Op, Samples, Structure, Tensor, composite

# Samples are of one step in the terms of the papers, from which their references compute. No term is so small
# that a sample does not show it.
_LR, _BETA1, _BETA2, _EPS, _STEP = 0.3, 0.8, 0.7, 0.05, 3
_MOMENTUM, _DAMPENING = 0.9, 0.25
_DECAY = 0.2
# what a caller makes of them: step_size, weight1, beta2, weight2, eps
_ADAM_NUMBERS = (
    _LR * (1 - _BETA2**_STEP) ** 0.5 / (1 - _BETA1**_STEP),
    1 - _BETA1,
    _BETA2,
    1 - _BETA2,
    _EPS * (1 - _BETA2**_STEP) ** 0.5,
)


def _direction(param: Any, grad: Tensor, weight_decay: Any, decay: str, maximize: bool) -> Any:
    """The gradient to descend along: negated to maximize, with the L2 penalty's gradient added."""
    if maximize:
        grad = -grad
    return grad + weight_decay * param if decay == "l2" else grad


def _adam(tensors: tuple[Any, ...], numbers: tuple[Any, ...], decay: str, maximize: bool) -> tuple[Any, ...]:
    """Adam's formula on (param, grad, exp_avg, exp_avg_sq[, max_exp_avg_sq]); gives all but grad anew."""
    param, grad, exp_avg, exp_avg_sq, *peak = tensors
    step_size, weight1, beta2, weight2, eps, weight_decay = numbers
    grad = _direction(param, grad, weight_decay, decay, maximize)
    if decay == "decoupled":
        param = param * weight_decay
    exp_avg = exp_avg + weight1 * (grad - exp_avg)
    exp_avg_sq = exp_avg_sq * beta2 + weight2 * grad * grad
    peak = [maximum(v, exp_avg_sq) for v in peak]
    denominator = sqrt(peak[0] if peak else exp_avg_sq) + eps
    return (param - step_size * exp_avg / denominator, exp_avg, exp_avg_sq, *peak)


# References: the algorithms of PyTorch's documentation, with numbers of their own.


def _papers(
    update: Callable[..., tuple[Any, ...]], count: int, numbers: int, *flags: str
) -> Callable[..., Any]:
    """The NumPy reference of a step on `count` arrays: weight decay and maximizing, the same for all, before
    `update(np, param, grad, *others)`, which is told of `flags` by keyword.
    """

    def run(np: ModuleType, *args: Any, **kwargs: Any) -> Any:
        param, grad, *others = args[:count]
        given = dict(zip(("weight_decay", "decay"), args[count + numbers :]), **kwargs)
        if given.get("maximize", False):
            grad = np.negative(grad)
        if given.get("decay") == "l2":
            grad = np.add(grad, np.multiply(param, _DECAY))
        if given.get("decay") == "decoupled":
            param = np.subtract(param, _LR * _DECAY * param)
        return update(np, param, grad, *others, **{flag: given.get(flag, False) for flag in flags})

    return d.reference(run)


def _sgd_of_the_paper(np: ModuleType, param: Any, grad: Any) -> Any:
    return np.subtract(param, np.multiply(grad, _LR))


def _momentum_of_the_paper(
    np: ModuleType, param: Any, grad: Any, buffer: Any, nesterov: bool = False
) -> tuple[Any, Any]:
    """Sutskever and others, 2013, in the form that PyTorch has it."""
    velocity = _MOMENTUM * buffer + (1 - _DAMPENING) * grad
    step = grad + _MOMENTUM * velocity if nesterov else velocity
    return np.subtract(param, _LR * step), velocity


def _adam_of_the_paper(
    np: ModuleType, param: Any, grad: Any, first: Any, second: Any, *peak: Any
) -> tuple[Any, ...]:
    """Kingma and Ba, 2015, algorithm 1; with a peak of Reddi and others, 2018, corrected as PyTorch does."""
    first = _BETA1 * first + (1 - _BETA1) * grad
    second = _BETA2 * second + (1 - _BETA2) * np.square(grad)
    peak = tuple(np.maximum(old, second) for old in peak)
    first_hat = first / (1 - np.power(_BETA1, _STEP))
    second_hat = (*peak, second)[0] / (1 - np.power(_BETA2, _STEP))
    return param - _LR * first_hat / (np.sqrt(second_hat) + _EPS), first, second, *peak


def _samples(moments: str, numbers: tuple[float, ...], **flags: Any) -> Samples:
    """Steps of a parameter, its gradient and moments ("+": no negative values): plain, with an L2 penalty,
    with decoupled decay and maximizing; `flags` are set in the last two.
    """

    def arrays(rng: Any, shape: tuple[int, ...], dtype: str) -> tuple[Any, ...]:
        return tuple(d.array(rng, shape, dtype, 0.1 if m == "+" else -2.0, 2.0) for m in "--" + moments)

    decoupled = 1 - _LR * _DECAY
    return d.samples(
        lambda rng, dtype: ((*arrays(rng, (3, 5), dtype), *numbers), {}),
        lambda rng, dtype: ((*arrays(rng, (37,), dtype), *numbers, _DECAY, "l2"), flags),
        lambda rng, dtype: (
            (*arrays(rng, (37,), dtype), *numbers, decoupled, "decoupled"),
            {"maximize": True, **flags},
        ),
    )


@composite(
    samples=_samples("", (_LR,)),
    reference=_papers(_sgd_of_the_paper, 2, 1),
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
    return narrow(_sgd(wide(param), wide(grad), lr, weight_decay, decay, maximize), param.dtype)


def _sgd(
    param: Any, grad: Tensor, lr: Any, weight_decay: Any = 0.0, decay: str = "none", maximize: bool = False
) -> Tensor:
    if decay == "decoupled":
        param = param * weight_decay
    return param - lr * _direction(param, grad, weight_decay, decay, maximize)


@composite(
    samples=_samples("-", (_LR, _MOMENTUM, 1 - _DAMPENING), nesterov=True),
    reference=_papers(_momentum_of_the_paper, 3, 3, "nesterov"),
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
    tensors = (wide(param), wide(grad), wide(momentum_buffer))
    new = _momentum(*tensors, lr, momentum, weight, weight_decay, decay, nesterov, maximize)
    return narrow(new[0], param.dtype), narrow(new[1], momentum_buffer.dtype)


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
    if decay == "decoupled":
        param = param * weight_decay
    grad = _direction(param, grad, weight_decay, decay, maximize)
    buffer = buffer * momentum + weight * grad
    return param - lr * (grad + momentum * buffer if nesterov else buffer), buffer


@composite(
    samples=_samples("-+", _ADAM_NUMBERS),
    reference=_papers(_adam_of_the_paper, 4, 5),
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
    tensors = (wide(param), wide(grad), wide(exp_avg), wide(exp_avg_sq))
    numbers = (step_size, weight1, beta2, weight2, eps, weight_decay)
    new = _adam(tensors, numbers, decay, maximize)
    return narrow(new[0], param.dtype), narrow(new[1], exp_avg.dtype), narrow(new[2], exp_avg_sq.dtype)


@composite(
    samples=_samples("-++", _ADAM_NUMBERS),
    reference=_papers(_adam_of_the_paper, 5, 5),
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
    tensors = (wide(param), wide(grad), wide(exp_avg), wide(exp_avg_sq), wide(max_exp_avg_sq))
    numbers = (step_size, weight1, beta2, weight2, eps, weight_decay)
    new = _adam(tensors, numbers, decay, maximize)
    moments = zip(new[1:], (exp_avg, exp_avg_sq, max_exp_avg_sq), strict=True)
    first, second, peak = (narrow(value, old.dtype) for value, old in moments)
    return narrow(new[0], param.dtype), first, second, peak


def _written(op: Op, written: tuple[int, ...]) -> Any:
    """The step that writes its results over the tensors it read: `written` are their positions among the
    arguments.
    """

    def step(*args: Any, **kwargs: Any) -> Any:
        return op.handle(*args, **kwargs, out=tuple([args[k] for k in written]))

    step.__name__ = step.__qualname__ = f"{op.name}_"
    step.__doc__ = f"`{op.name}` with its results written over the parameter and its moments."
    return step


registry.FUNCTIONS.update(
    sgd_step_=_written(sgd_step, (0,)),
    sgd_momentum_step_=_written(sgd_momentum_step, (0, 2)),
    adam_step_=_written(adam_step, (0, 2, 3)),
    amsgrad_step_=_written(amsgrad_step, (0, 2, 3, 4)),
)
