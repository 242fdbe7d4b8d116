"""Steps of the optimizers that divide by running sizes of the gradient, and of Rprop and ASGD.

    rmsprop_step    s' = alpha s + (1 - alpha) g g;  q = g / (sqrt(s' - a' a') + eps)
                    p' = p - lr (q or b' = momentum b + q); a', the gradient's running mean, where centered
    adagrad_step    s' = s + g g;  p' = p - lr g / (sqrt(s') + eps)
    adadelta_step   s' = rho s + (1 - rho) g g;  u = sqrt(d + eps) / sqrt(s' + eps) g
                    d' = rho d + (1 - rho) u u;  p' = p - lr u
    adamax_step     m' = m + w1 (g - m);  n' = max(beta2 n, |g| + eps);  p' = p - step_size m' / n'
    nadam_step      m' and v' of Adam;  p' = p - (grad_size g + mean_size m') / (sqrt(v' / correction) + eps)
    radam_step      m' and v' of Adam;  p' = p - step_size m', over (sqrt(v') + eps) where rectified
    rprop_step      t' = t times eta_plus, eta_minus or 1 as g prev is above, below or 0, clipped;
                    p' = p - sign(g) t', but where below
    asgd_step       p' = shrink p - eta g;  a' = p' - rest (p' - a)

What numbers and structure are, and what weight decay does, is as in optimizer_steps.py.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln.ops.elementwise.arithmetic import maximum, minimum, where
from kiln.ops.elementwise.elementary import abs, sign, sqrt
from kiln.ops.nn.optimizer_step_parts import (
    BETA1,
    BETA2,
    EPS,
    LR,
    STEP,
    arrays,
    direction,
    downhill,
    papers,
    shrunk,
    two_samples,
    write_over,
)
from kiln.table import drawn as d
from kiln.table.record import Number, Structure, Tensor, composite

_MOMENTUM, _ALPHA, _RHO = 0.9, 0.6, 0.7
_MU, _MU_NEXT, _PRODUCT = 0.5, 0.6, 0.3  # of NAdam's schedule, with the product of the steps so far
_ETA_MINUS, _ETA_PLUS, _LEAST, _MOST = 0.5, 1.2, 0.3, 1.5
_SHRINK, _REST = 0.9, 0.6  # of ASGD


def _rmsprop_of_the_paper(
    np: ModuleType, param: Any, grad: Any, square: Any, mean: Any, velocity: Any
) -> tuple[Any, ...]:
    """Tieleman and Hinton, 2012; centered as in Graves, 2013."""
    square = _ALPHA * square + (1 - _ALPHA) * np.square(grad)
    given = [x for x in (mean, velocity) if x is not None]
    spread = square
    if mean is not None:
        given[0] = mean = _ALPHA * mean + (1 - _ALPHA) * grad
        spread = square - np.square(mean)
    step = grad / (np.sqrt(spread) + EPS)
    if velocity is not None:
        given[-1] = step = _MOMENTUM * velocity + step
    return param - LR * step, square, *given


@composite(
    samples=d.samples(
        lambda rng, dtype: (
            (*arrays(rng, (3, 5), dtype, "+"), None, None, LR, _ALPHA, 1 - _ALPHA, EPS),
            {},
        ),
        lambda rng, dtype: (
            (*_rmsprop_arrays(rng, dtype), LR, _ALPHA, 1 - _ALPHA, EPS, _MOMENTUM, 0.2, "l2"),
            {"maximize": True},
        ),
    ),
    reference=papers(_rmsprop_of_the_paper, 5, 5),
    differentiable=False,
    public=False,
)
def rmsprop_step(
    param: Tensor,
    grad: Tensor,
    square_avg: Tensor,
    grad_avg: Tensor | None,
    momentum_buffer: Tensor | None,
    lr: Number,
    alpha: Number,
    weight: Number,
    eps: Number,
    momentum: Number = 0.0,
    weight_decay: Number = 0.0,
    decay: Structure = "none",
    maximize: Structure = False,
) -> Any:
    """The new param, square_avg, and what is given of grad_avg and momentum_buffer; weight is 1 - alpha."""
    grad = direction(param, grad, weight_decay, decay, maximize)
    square_avg = square_avg * alpha + weight * grad * grad
    spread, more = square_avg, []
    if grad_avg is not None:
        grad_avg = grad_avg + weight * (grad - grad_avg)
        spread = square_avg - grad_avg * grad_avg
        more.append(grad_avg)
    step = grad / (sqrt(spread) + eps)
    if momentum_buffer is not None:
        step = momentum_buffer * momentum + step
        more.append(step)
    return (param - lr * step, square_avg, *more)


def _rmsprop_arrays(rng: Any, dtype: str) -> tuple[Any, ...]:
    """A centered step's, whose mean square is above the square of the mean."""
    param, grad, mean, velocity = arrays(rng, (37,), dtype, "--")
    return param, grad, mean * mean + 0.5, mean, velocity


def _rprop_arrays(rng: Any, dtype: str) -> tuple[Any, ...]:
    """A step's, in which some gradients were 0 and some are."""
    param, grad, prev, size = arrays(rng, (37,), dtype, "-+")
    prev[::5], grad[1::5] = 0, 0
    return param, grad, prev, size


def _adagrad_of_the_paper(np: ModuleType, param: Any, grad: Any, total: Any) -> tuple[Any, ...]:
    """Duchi and others, 2011."""
    total = total + np.square(grad)
    return param - LR * grad / (np.sqrt(total) + EPS), total


@composite(
    samples=two_samples("+", (LR, EPS)),
    reference=papers(_adagrad_of_the_paper, 3, 2),
    differentiable=False,
    public=False,
)
def adagrad_step(
    param: Tensor,
    grad: Tensor,
    sum: Tensor,
    lr: Number,
    eps: Number,
    weight_decay: Number = 0.0,
    decay: Structure = "none",
    maximize: Structure = False,
) -> tuple[Any, Any]:
    """The new (param, sum); lr is the user's over 1 + lr_decay times the steps before."""
    grad = direction(param, grad, weight_decay, decay, maximize)
    sum = sum + grad * grad
    return param - lr * (grad / (sqrt(sum) + eps)), sum


def _adadelta_of_the_paper(np: ModuleType, param: Any, grad: Any, square: Any, moved: Any) -> tuple[Any, ...]:
    """Zeiler, 2012, algorithm 1."""
    square = _RHO * square + (1 - _RHO) * np.square(grad)
    update = np.sqrt(moved + EPS) / np.sqrt(square + EPS) * grad
    return param - LR * update, square, _RHO * moved + (1 - _RHO) * np.square(update)


@composite(
    samples=two_samples("++", (LR, _RHO, 1 - _RHO, EPS)),
    reference=papers(_adadelta_of_the_paper, 4, 4),
    differentiable=False,
    public=False,
)
def adadelta_step(
    param: Tensor,
    grad: Tensor,
    square_avg: Tensor,
    acc_delta: Tensor,
    lr: Number,
    rho: Number,
    weight: Number,
    eps: Number,
    weight_decay: Number = 0.0,
    decay: Structure = "none",
    maximize: Structure = False,
) -> tuple[Any, Any, Any]:
    """The new (param, square_avg, acc_delta); weight is 1 - rho."""
    grad = direction(param, grad, weight_decay, decay, maximize)
    square_avg = square_avg * rho + weight * grad * grad
    update = sqrt(acc_delta + eps) / sqrt(square_avg + eps) * grad
    return param - lr * update, square_avg, acc_delta * rho + weight * update * update


def _adamax_of_the_paper(np: ModuleType, param: Any, grad: Any, first: Any, norm: Any) -> tuple[Any, ...]:
    """Kingma and Ba, 2015, algorithm 2, with eps as PyTorch has it."""
    first = BETA1 * first + (1 - BETA1) * grad
    norm = np.maximum(BETA2 * norm, np.abs(grad) + EPS)
    return param - LR / (1 - np.power(BETA1, STEP)) * first / norm, first, norm


@composite(
    samples=two_samples("-+", (LR / (1 - BETA1**STEP), 1 - BETA1, BETA2, EPS)),
    reference=papers(_adamax_of_the_paper, 4, 4),
    differentiable=False,
    public=False,
)
def adamax_step(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_inf: Tensor,
    step_size: Number,
    weight1: Number,
    beta2: Number,
    eps: Number,
    weight_decay: Number = 0.0,
    decay: Structure = "none",
    maximize: Structure = False,
) -> tuple[Any, Any, Any]:
    """The new (param, exp_avg, exp_inf); step_size is lr / (1 - beta1**t), weight1 is 1 - beta1."""
    grad = direction(param, grad, weight_decay, decay, maximize)
    exp_avg = exp_avg + weight1 * (grad - exp_avg)
    exp_inf = maximum(exp_inf * beta2, abs(grad) + eps)
    return param - step_size * (exp_avg / exp_inf), exp_avg, exp_inf


def _nadam_of_the_paper(np: ModuleType, param: Any, grad: Any, first: Any, second: Any) -> tuple[Any, ...]:
    """Dozat, 2016, with a schedule of momenta."""
    first = BETA1 * first + (1 - BETA1) * grad
    second = BETA2 * second + (1 - BETA2) * np.square(grad)
    first_hat = _MU_NEXT * first / (1 - _PRODUCT * _MU_NEXT) + (1 - _MU) * grad / (1 - _PRODUCT)
    second_hat = second / (1 - np.power(BETA2, STEP))
    return param - LR * first_hat / (np.sqrt(second_hat) + EPS), first, second


@composite(
    samples=two_samples(
        "-+",
        (
            LR * (1 - _MU) / (1 - _PRODUCT),
            LR * _MU_NEXT / (1 - _PRODUCT * _MU_NEXT),
            1 - BETA1,
            BETA2,
            1 - BETA2,
            1 - BETA2**STEP,
            EPS,
        ),
        "decoupled",
    ),
    reference=papers(_nadam_of_the_paper, 4, 7),
    differentiable=False,
    public=False,
)
def nadam_step(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad_size: Number,
    mean_size: Number,
    weight1: Number,
    beta2: Number,
    weight2: Number,
    correction: Number,
    eps: Number,
    weight_decay: Number = 0.0,
    decay: Structure = "none",
    maximize: Structure = False,
) -> tuple[Any, Any, Any]:
    """The new (param, exp_avg, exp_avg_sq).

    With mu and mu_next of this step and the next, and P the product of all mu so far:
    grad_size = lr (1 - mu) / (1 - P), mean_size = lr mu_next / (1 - P mu_next); correction = 1 - beta2**t.
    """
    grad = direction(param, grad, weight_decay, decay, maximize)
    param = shrunk(param, weight_decay, decay)
    exp_avg = exp_avg + weight1 * (grad - exp_avg)
    exp_avg_sq = exp_avg_sq * beta2 + weight2 * grad * grad
    denominator = sqrt(exp_avg_sq / correction) + eps
    return param - (grad_size * grad + mean_size * exp_avg) / denominator, exp_avg, exp_avg_sq


def _radam_of_the_paper(
    np: ModuleType, param: Any, grad: Any, first: Any, second: Any, rectified: bool = False
) -> tuple[Any, ...]:
    """Liu and others, 2020, algorithm 2; the size of the step is the caller's."""
    first = BETA1 * first + (1 - BETA1) * grad
    second = BETA2 * second + (1 - BETA2) * np.square(grad)
    step = first / (np.sqrt(second) + EPS) if rectified else first
    return param - LR * step, first, second


@composite(
    samples=two_samples("-+", (LR, 1 - BETA1, BETA2, 1 - BETA2, EPS), rectified=True),
    reference=papers(_radam_of_the_paper, 4, 5, "rectified"),
    differentiable=False,
    public=False,
)
def radam_step(
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
    rectified: Structure = False,
) -> tuple[Any, Any, Any]:
    """The new (param, exp_avg, exp_avg_sq).

    step_size is lr / (1 - beta1**t); rectified, times r sqrt(1 - beta2**t), r the paper's rectification.
    """
    grad = direction(param, grad, weight_decay, decay, maximize)
    param = shrunk(param, weight_decay, decay)
    exp_avg = exp_avg + weight1 * (grad - exp_avg)
    exp_avg_sq = exp_avg_sq * beta2 + weight2 * grad * grad
    step = exp_avg / (sqrt(exp_avg_sq) + eps) if rectified else exp_avg
    return param - step_size * step, exp_avg, exp_avg_sq


def _rprop_of_the_paper(
    np: ModuleType, param: Any, grad: Any, before: Any, size: Any, *numbers: Any, maximize: bool = False
) -> tuple[Any, ...]:
    """Igel and Huesken, 2000: Rprop without weight backtracking, whose step rests where the sign changed."""
    grad = np.negative(grad) if maximize else grad
    product = np.sign(grad) * np.sign(before)
    size = np.where(product > 0, size * _ETA_PLUS, np.where(product < 0, size * _ETA_MINUS, size))
    size = np.clip(size, _LEAST, _MOST)
    grad = np.where(product < 0, 0, grad)
    return param - np.sign(grad) * size, grad, size


@composite(
    samples=d.samples(
        lambda rng, dtype: (
            (*_rprop_arrays(rng, dtype), _ETA_MINUS, _ETA_PLUS, _LEAST, _MOST),
            {"maximize": True},
        ),
    ),
    reference=d.reference(_rprop_of_the_paper),
    differentiable=False,
    public=False,
)
def rprop_step(
    param: Tensor,
    grad: Tensor,
    prev: Tensor,
    step_size: Tensor,
    eta_minus: Number,
    eta_plus: Number,
    least: Number,
    most: Number,
    maximize: Structure = False,
) -> tuple[Any, Any, Any]:
    """The new (param, prev, step_size); `prev` is the gradient, and 0 where it changed sign."""
    grad = downhill(grad, maximize)
    flipped, kept = grad * prev < 0, grad * prev > 0
    larger, smaller = step_size * eta_plus, step_size * eta_minus
    step_size = minimum(maximum(where(kept, larger, where(flipped, smaller, step_size)), least), most)
    grad = where(flipped, 0.0, grad)
    return param - sign(grad) * step_size, grad, step_size


def _asgd_of_the_paper(np: ModuleType, param: Any, grad: Any, mean: Any) -> tuple[Any, ...]:
    """Polyak and Juditsky, 1992, as in Bottou's `asgd`."""
    param = _SHRINK * param - LR * grad
    return param, mean + (1 - _REST) * (param - mean)


@composite(
    samples=two_samples("-", (_SHRINK, LR, _REST)),
    reference=papers(_asgd_of_the_paper, 3, 3),
    differentiable=False,
    public=False,
)
def asgd_step(
    param: Tensor,
    grad: Tensor,
    ax: Tensor,
    shrink: Number,
    eta: Number,
    rest: Number,
    weight_decay: Number = 0.0,
    decay: Structure = "none",
    maximize: Structure = False,
) -> tuple[Any, Any]:
    """The new (param, ax); rest is 1 - mu: 0, so that ax is the parameter, until averaging begins."""
    grad = direction(param, grad, weight_decay, decay, maximize)
    param = param * shrink - eta * grad
    return param, param - rest * (param - ax)


write_over(rmsprop_step, 0, 2, 3, 4)
write_over(adagrad_step, 0, 2)
write_over(adadelta_step, 0, 2, 3)
write_over(adamax_step, 0, 2, 3)
write_over(nadam_step, 0, 2, 3)
write_over(radam_step, 0, 2, 3)
write_over(rprop_step, 0, 2, 3)
write_over(asgd_step, 0, 2)
