"""Adam and AdamW: steps scaled by running moments of the gradient."""

from __future__ import annotations

from typing import Any

from kiln import ops
from kiln._core import Tensor
from kiln.errors import describe, message
from kiln.optim.optimizer import Group, Optimizer, Params, checked
from kiln.table import registry


class Adam(Optimizer):
    """m and v run after g and g*g; p -= lr * (m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + eps).

    weight_decay adds weight_decay * p to g, or with decoupled_weight_decay first shrinks p by
    1 - lr * weight_decay (then this is AdamW). amsgrad divides by the largest v so far; maximize climbs.
    The count t is a Python int, the moments have their parameter's dtype.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, defaults)

    def check(self, group: Group) -> None:
        for name in ("lr", "eps", "weight_decay"):
            checked(name, group[name], 0.0)
        betas = group["betas"]
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            raise ValueError(message("Adam", "betas of two numbers", describe(betas)))
        for k, beta in enumerate(betas):
            checked(f"betas[{k}]", beta, 0.0, 1.0)

    def init_state(self, param: Tensor, group: Group) -> dict[str, Any]:
        names = ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * bool(group["amsgrad"])
        return {"step": 0, **{name: ops.zeros_like(param.detach()) for name in names}}

    def update(self, group: Group) -> None:
        lr, (beta1, beta2), eps = group["lr"], group["betas"], group["eps"]
        decay, weight_decay = _decay(group)
        amsgrad, maximize = group["amsgrad"], group["maximize"]
        corrected, step_size, scaled_eps = -1, 0.0, 0.0  # the numbers of the last count met
        for param in group["params"]:
            grad = param.grad
            if grad is None:
                continue
            state = self.state[param]
            state["step"] = t = state["step"] + 1
            if t != corrected:
                correction = (1 - beta2**t) ** 0.5
                corrected, step_size, scaled_eps = t, lr * correction / (1 - beta1**t), eps * correction
            numbers = (step_size, 1 - beta1, beta2, 1 - beta2, scaled_eps, weight_decay, decay, maximize)
            if amsgrad:
                if "max_exp_avg_sq" not in state:  # amsgrad was switched on after the group was added
                    state["max_exp_avg_sq"] = ops.zeros_like(param.detach())
                moments = (state["exp_avg"], state["exp_avg_sq"], state["max_exp_avg_sq"])
                registry.function("amsgrad_step_")(param, grad, *moments, *numbers)
            else:
                registry.function("adam_step_")(param, grad, state["exp_avg"], state["exp_avg_sq"], *numbers)


class AdamW(Adam):
    """Adam with decoupled weight decay: p shrinks by 1 - lr * weight_decay, the moments never see it."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, decoupled_weight_decay=True
        )


def _decay(group: Group) -> tuple[str, float]:
    """The kind of weight decay and the number that goes with it (see kiln/ops/nn/optimizer_steps.py)."""
    weight_decay = group["weight_decay"]
    if weight_decay == 0:
        return "none", 0.0
    if group["decoupled_weight_decay"]:
        return "decoupled", 1 - group["lr"] * weight_decay
    return "l2", weight_decay
