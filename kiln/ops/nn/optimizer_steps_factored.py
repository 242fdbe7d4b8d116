"""Steps of Adafactor, which keeps the mean squares of a matrix's rows and columns in the place of its own.

    adafactor_step          v' = v + weight (g g - v)
    adafactor_matrix_step   r' = r + weight (mean(g g, -1) - r);  c' = c + weight (mean(g g, -2) - c)
                            v' = r' c' / mean(r', -2)
    both                    u = g / sqrt(v');  p' = shrink p - alpha u / max(1, rms(u) / d)
                            alpha = size max(floor, rms(p))

What numbers and structure are is as in optimizer_steps.py.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln.ops.elementwise.arithmetic import maximum
from kiln.ops.elementwise.elementary import rsqrt, sqrt
from kiln.ops.nn.optimizer_step_parts import DECAY, LR, arrays, downhill, write_over
from kiln.ops.reductions.core_reductions import mean
from kiln.table import drawn as d
from kiln.table.record import Number, Structure, Tensor, composite

_WEIGHT, _SIZE, _FLOOR, _LEAST, _CLIP, _SHRINK = 0.4, 0.3, 0.2, 0.1, 1.05, 1 - LR * DECAY
_NUMBERS = (_WEIGHT, _SIZE, _FLOOR, _LEAST, _CLIP, _SHRINK)


def _moved(param: Any, grad: Any, variance: Any, numbers: tuple[Any, ...]) -> Any:
    """The parameter after its step, from the mean squares of the gradient."""
    size, floor, least, clip, shrink = numbers
    alpha = size * maximum(sqrt(mean(param * param)), floor)
    update = grad * rsqrt(maximum(variance, least * least))
    return param * shrink - update * (alpha / maximum(sqrt(mean(update * update)) / clip, 1.0))


def _of_the_paper(np: ModuleType, param: Any, grad: Any, variance: Any) -> Any:
    """Shazeer and Stern, 2018, algorithm 4."""

    def rms(x: Any) -> Any:
        return np.sqrt(np.mean(np.square(x)))

    update = grad / np.sqrt(np.maximum(variance, _LEAST**2))
    update = update / np.maximum(1.0, rms(update) / _CLIP)
    return param - LR * DECAY * param - np.maximum(_FLOOR, rms(param)) * _SIZE * update


def _vector(
    np: ModuleType, param: Any, grad: Any, variance: Any, *numbers: Any, maximize: bool = False
) -> Any:
    grad = np.negative(grad) if maximize else grad
    variance = (1 - _WEIGHT) * variance + _WEIGHT * np.square(grad)
    return _of_the_paper(np, param, grad, variance), variance


def _matrix(
    np: ModuleType, param: Any, grad: Any, row: Any, column: Any, *numbers: Any, maximize: bool = False
) -> Any:
    """Algorithm 2 of the paper for the variance."""
    grad = np.negative(grad) if maximize else grad
    row = (1 - _WEIGHT) * row + _WEIGHT * np.mean(np.square(grad), -1, keepdims=True)
    column = (1 - _WEIGHT) * column + _WEIGHT * np.mean(np.square(grad), -2, keepdims=True)
    return _of_the_paper(np, param, grad, row @ column / np.mean(row, -2, keepdims=True)), row, column


@composite(
    samples=d.samples(
        lambda rng, dtype: ((*arrays(rng, (37,), dtype, "+"), *_NUMBERS), {"maximize": True}),
    ),
    reference=d.reference(_vector),
    differentiable=False,
    public=False,
)
def adafactor_step(
    param: Tensor,
    grad: Tensor,
    variance: Tensor,
    weight: Number,
    size: Number,
    floor: Number,
    least: Number,
    clip: Number,
    shrink: Number,
    maximize: Structure = False,
) -> tuple[Any, Any]:
    """The new (param, variance) of a parameter of at most one dim.

    weight = t**beta2_decay, size = min(lr, 1 / sqrt(t)), (least, floor) = eps, clip = d,
    shrink = 1 - lr weight_decay.
    """
    grad = downhill(grad, maximize)
    variance = variance + weight * (grad * grad - variance)
    return _moved(param, grad, variance, (size, floor, least, clip, shrink)), variance


@composite(
    samples=d.samples(
        lambda rng, dtype: (
            (
                *arrays(rng, (2, 3, 5), dtype, ""),
                d.array(rng, (2, 3, 1), dtype, 0.1, 2.0),
                d.array(rng, (2, 1, 5), dtype, 0.1, 2.0),
                *_NUMBERS,
            ),
            {},
        ),
    ),
    reference=d.reference(_matrix),
    differentiable=False,
    public=False,
)
def adafactor_matrix_step(
    param: Tensor,
    grad: Tensor,
    row_var: Tensor,
    col_var: Tensor,
    weight: Number,
    size: Number,
    floor: Number,
    least: Number,
    clip: Number,
    shrink: Number,
    maximize: Structure = False,
) -> tuple[Any, Any, Any]:
    """The new (param, row_var, col_var) of a parameter of shape (..., n, m).

    row_var is (..., n, 1), col_var (..., 1, m); the numbers are adafactor_step's.
    """
    grad = downhill(grad, maximize)
    squares = grad * grad
    row_var = row_var + weight * (mean(squares, dim=-1, keepdim=True) - row_var)
    col_var = col_var + weight * (mean(squares, dim=-2, keepdim=True) - col_var)
    variance = row_var * col_var / maximum(mean(row_var, dim=-2, keepdim=True), least)
    return _moved(param, grad, variance, (size, floor, least, clip, shrink)), row_var, col_var


write_over(adafactor_step, 0, 2)
write_over(adafactor_matrix_step, 0, 2, 3)
