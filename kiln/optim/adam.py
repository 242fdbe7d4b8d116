"""Adam: steps scaled by running moments of the gradient."""

from __future__ import annotations

from typing import Any, Union

from kiln._core import Tensor
from kiln.errors import describe, message
from kiln.optim.functional import form
from kiln.optim.optimizer import Group, ParamsT, in_range
from kiln.optim.stepping import State, Stepping, begun, counter, decay_of, number, written

Beta = Union[float, Tensor]


class Adam(Stepping):
    """m and v run after g and g*g; p -= lr * (m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + eps).

    weight_decay adds weight_decay * p to g, or with decoupled_weight_decay first shrinks p by
    1 - lr * weight_decay (then this is AdamW). amsgrad divides by the largest v so far; maximize climbs.
    `foreach`, `capturable`, `fused` choose nothing; with `differentiable` gradients flow through a step.
    """

    moments = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")

    def __init__(
        self,
        params: ParamsT,
        lr: Union[float, Tensor] = 1e-3,
        betas: tuple[Beta, Beta] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: Union[float, Tensor] = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        if isinstance(lr, Tensor) and foreach and not capturable:
            raise ValueError("lr as a Tensor is not supported for capturable=False and foreach=True")
        in_range("Invalid learning rate", lr)
        in_range("Invalid epsilon value", eps)
        betas = checked_betas(betas)
        in_range("Invalid weight_decay value", weight_decay)
        if isinstance(betas[0], Tensor) and foreach and not capturable:
            raise ValueError("betas[0] as a Tensor is not supported for capturable=False and foreach=True")
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, defaults)

    def init_state(self, param: Tensor, group: Group) -> State:
        names = ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * bool(group["amsgrad"])
        return {"step": counter(), **{name: begun(param) for name in names}}

    def update(self, group: Group) -> None:
        lr, eps, weight_decay = self.numbers(group, "lr", "eps", "weight_decay")
        beta1, beta2 = map(number, group["betas"])
        decay, maximize = decay_of(group, lr, weight_decay), bool(group["maximize"])
        step, amsgrad_step = written("adam_step"), written("amsgrad_step")
        corrected, numbers = -1.0, (0.0,) * 5  # the numbers of the last count met
        for param, grad, state in self.each(group):
            t = self.count(state)
            if t != corrected:
                correction = (1 - beta2**t) ** 0.5
                step_size, scaled_eps = lr * correction / (1 - beta1**t), eps * correction
                corrected, numbers = t, (step_size, 1 - beta1, beta2, 1 - beta2, scaled_eps)
            first, second = state["exp_avg"], state["exp_avg_sq"]
            if not group["amsgrad"]:
                step(param, grad, first, second, *numbers, *decay, maximize)
                continue
            peak = self.moment(state, "max_exp_avg_sq", param)
            amsgrad_step(param, grad, first, second, peak, *numbers, *decay, maximize)


def checked_betas(betas: Any) -> tuple[Any, Any]:
    """Two numbers in [0, 1), or two tensors of one element, which become 0-d; else ValueError."""
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise ValueError(message("optimizer", "betas of two numbers", describe(betas)))
    for k, beta in enumerate(betas):
        if isinstance(beta, Tensor) and beta.numel() != 1:
            raise ValueError(f"Tensor betas[{k}] must be 1-element")
        in_range(f"Invalid beta parameter at index {k}", beta, 0.0, 1.0)
    if isinstance(betas[0], Tensor) != isinstance(betas[1], Tensor):
        raise ValueError("betas must be either both floats or both Tensors")
    first, second = (b.reshape(()) if isinstance(b, Tensor) and b.dim() else b for b in betas)
    return first, second


adam = form(
    Adam,
    "exp_avg exp_avg_sq max_exp_avg_sq step",
    "foreach capturable differentiable fused grad_scale found_inf has_complex decoupled_weight_decay",
    "amsgrad beta1 beta2 lr weight_decay eps maximize",
    lists="exp_avgs exp_avg_sqs max_exp_avg_sqs state_steps",
)
