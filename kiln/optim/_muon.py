"""Muon: momentum whose matrices are made orthogonal."""

from __future__ import annotations

from math import sqrt
from typing import Any, Union

from kiln import ops
from kiln._core import Tensor, bfloat16
from kiln.optim.optimizer import Group, ParamsT, in_range
from kiln.optim.stepping import State, Stepping, begun, written

Coefficients = tuple[float, float, float]


class Muon(Stepping):
    """b = momentum * b + (1 - momentum) * g; p -= lr * U V^T of b's singular vectors, nearly, by ns_steps of
    a Newton-Schulz iteration in bfloat16 (Jordan and others, 2024).

    For parameters of two dims (ValueError for others). nesterov takes a mean of g and b in the place of b;
    weight_decay shrinks p by 1 - lr * weight_decay. adjust_lr_fn: "original", the default, multiplies the
    rate by sqrt(max(1, rows / columns)), "match_rms_adamw" by 0.2 * sqrt(max(rows, columns)).
    """

    counters = ()
    moments = ("momentum_buffer",)

    def __init__(
        self,
        params: ParamsT,
        lr: Union[float, Tensor] = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: Coefficients = (3.4445, -4.7750, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        in_range("Learning rate should be >= 0 but is", lr)
        in_range("momentum should be >= 0 but is", momentum)
        in_range("weight decay should be >= 0 but is", weight_decay)
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(f"Adjust learning rate function {adjust_lr_fn} is not supported")
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        super().__init__(params, defaults)
        for group in self.param_groups:
            for param in group["params"]:
                if param.dim() != 2:
                    raise ValueError(
                        "Muon only supports 2D parameters whereas we found a parameter with size: "
                        f"{tuple(param.shape)}"
                    )

    def init_state(self, param: Tensor, group: Group) -> State:
        return {"momentum_buffer": begun(param)}

    def update(self, group: Group) -> None:
        lr, weight_decay, momentum, eps = self.numbers(group, "lr", "weight_decay", "momentum", "eps")
        step = written("sgd_step")
        for param, grad, state in self.each(group):
            buffer = state["momentum_buffer"]
            buffer.lerp_(grad, 1 - momentum)
            update = grad.lerp(buffer, momentum) if group["nesterov"] else buffer
            update = orthogonal(update, group["ns_coefficients"], group["ns_steps"], eps)
            rate = lr * _adjusted(group["adjust_lr_fn"], *param.shape)
            step(param, update.to(param.dtype), rate, 1 - lr * weight_decay, "decoupled")


def orthogonal(matrix: Tensor, coefficients: Coefficients, steps: int, eps: float) -> Tensor:
    """U S V^T of a matrix (n, m) with its singular values brought near 1, in bfloat16.

    x = a x + (b x x^T + c (x x^T)^2) x, from x of norm 1. ValueError for 100 steps and more, and for
    other than three coefficients.
    """
    if steps >= 100:
        raise ValueError("Number of steps must be less than 100 for computational efficiency")
    if len(coefficients) != 3:
        raise ValueError("Coefficients must be a tuple of exactly 3 values")
    a, b, c = coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    x: Any = matrix.to(bfloat16)
    x = x.t() if tall else x
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.t()
        x = ops.addmm(x, ops.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    made: Tensor = x.t() if tall else x
    return made


def _adjusted(how: str | None, rows: int, columns: int) -> float:
    """What the rate of a matrix is multiplied by."""
    if how == "match_rms_adamw":
        return 0.2 * sqrt(max(rows, columns))
    return sqrt(max(1.0, rows / columns))
