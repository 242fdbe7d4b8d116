"""Derivatives against differences: the numerical Jacobian is the definition, the recorded one must match
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import kiln
from kiln.testing.compare import is_tensor

Array = npt.NDArray[np.float64]


class GradcheckError(AssertionError):
    """A derivative that does not match the differences of its function."""


def _outputs(result: Any) -> list[Any]:
    """The differentiable tensors of a result."""
    found = list(result) if isinstance(result, (tuple, list)) else [result]
    return [y for y in found if is_tensor(y) and "float" in str(y.dtype)]


def numerical_jacobian(fn: Callable[..., Any], inputs: Sequence[Any], k: int, eps: float) -> list[Array]:
    """Central differences of every output of `fn` by input `k`: one (output size, input size) array per
    output.

    The input's memory is written in place through its NumPy view and restored, so its layout is kept.
    """
    memory = inputs[k].detach().numpy()
    columns: list[list[Array]] = []
    for index in np.ndindex(*memory.shape):
        kept = memory[index].copy()
        sides = []
        for value in (kept + eps, kept - eps):
            memory[index] = value
            sides.append(
                [np.array(y.detach().numpy(), dtype=np.float64).ravel() for y in _outputs(fn(*inputs))]
            )
        memory[index] = kept
        columns.append([(up - down) / (2 * eps) for up, down in zip(*sides)])
    count = len(_outputs(fn(*inputs)))
    sizes = [y.numel() for y in _outputs(fn(*inputs))]
    return [
        np.stack([c[j] for c in columns], axis=1) if columns else np.zeros((sizes[j], 0))
        for j in range(count)
    ]


def analytical_jacobian(output: Any, x: Any, framework: Any) -> Array:
    """The Jacobian of `output` by `x` through backward, one row per output element; an unused input gives
    zeros.
    """
    rows = np.zeros((output.numel(), x.numel()))
    for i in range(output.numel()):
        seed = np.zeros(output.numel())
        seed[i] = 1.0
        g = framework.from_numpy(seed).reshape(output.shape)
        (grad,) = framework.autograd.grad(output, (x,), (g,), retain_graph=True, allow_unused=True)
        if grad is not None:
            if tuple(grad.shape) != tuple(x.shape):
                raise GradcheckError(f"gradcheck: a gradient of shape {grad.shape}, an input of {x.shape}")
            rows[i] = np.array(grad.detach().numpy()).ravel()
    return rows


def gradcheck(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    framework: Any = kiln,
) -> bool:
    """Check the first derivatives of `fn` at `inputs` against central differences.

    Inputs that require a gradient must be float64 and must not share memory; others are constants. Raises
    `GradcheckError` naming the output, the input and the worst entry; returns True otherwise.
    """
    for k, x in enumerate(inputs):
        if not (is_tensor(x) and x.requires_grad):
            continue
        if "float64" not in str(x.dtype):
            raise TypeError(f"gradcheck: input {k} must be float64 to be differenced, got {x.dtype}")
        with framework.no_grad():
            expected = numerical_jacobian(fn, inputs, k, eps)
        for j, output in enumerate(_outputs(fn(*inputs))):
            if not output.requires_grad:
                got = np.zeros_like(expected[j])
            else:
                got = analytical_jacobian(output, x, framework)
            _require_close(got, expected[j], atol, rtol, f"output {j} by input {k}")
    return True


def _require_close(got: Array, expected: Array, atol: float, rtol: float, what: str) -> None:
    """Raise a `GradcheckError` at the worst entry outside the tolerance; NaN on both sides agrees."""
    with np.errstate(invalid="ignore"):
        excess = np.abs(got - expected) - (atol + rtol * np.abs(expected))
    excess = np.where(np.isnan(got) & np.isnan(expected), -1.0, np.where(np.isnan(excess), np.inf, excess))
    if excess.size and excess.max() > 0:
        row, column = (int(i) for i in np.unravel_index(int(excess.argmax()), excess.shape))
        raise GradcheckError(
            f"gradcheck: {what}: d out[{row}] / d in[{column}] is {got[row, column]!r}, "
            f"differences give {expected[row, column]!r}"
        )


def gradgradcheck(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    seed: int = 0,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    framework: Any = kiln,
) -> bool:
    """Check the second derivatives: `gradcheck` of the function that maps inputs and output gradients to
    gradients.

    Output gradients are drawn from `seed`. Errors as `gradcheck`.
    """
    rng = np.random.default_rng(seed)
    wanted = [k for k, x in enumerate(inputs) if is_tensor(x) and x.requires_grad]
    outputs = [y for y in _outputs(fn(*inputs)) if y.requires_grad]
    seeds = [framework.from_numpy(rng.normal(size=tuple(y.shape))).requires_grad_() for y in outputs]

    def first(*arguments: Any) -> tuple[Any, ...]:
        values, gs = arguments[: len(inputs)], arguments[len(inputs) :]
        with framework.enable_grad():
            results = [y for y in _outputs(fn(*values)) if y.requires_grad]
            grads = framework.autograd.grad(
                tuple(results), tuple(values[k] for k in wanted), gs, create_graph=True, allow_unused=True
            )
        return tuple(g if g is not None else values[k] * 0 for g, k in zip(grads, wanted))

    return gradcheck(first, [*inputs, *seeds], eps=eps, atol=atol, rtol=rtol, framework=framework)
