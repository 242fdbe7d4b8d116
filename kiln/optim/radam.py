"""RAdam: Adam that waits until the variance of its step is known."""

from __future__ import annotations

from typing import Any, Union

from kiln._core import Tensor
from kiln.optim.adam import Beta, checked_betas
from kiln.optim.functional import form
from kiln.optim.optimizer import Group, ParamsT, in_range
from kiln.optim.stepping import State, Stepping, begun, counter, decay_of, number, written


class RAdam(Stepping):
    """Adam whose step is rectified by the variance of its size, and is along m alone while that is not known
    (Liu and others, 2020).

    weight_decay adds weight_decay * p to g, or with decoupled_weight_decay first shrinks p by
    1 - lr * weight_decay; maximize climbs. `foreach`, `capturable` choose nothing; with `differentiable`
    gradients flow through a step.
    """

    moments = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: ParamsT,
        lr: Union[float, Tensor] = 1e-3,
        betas: tuple[Beta, Beta] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        in_range("Invalid learning rate", lr)
        in_range("Invalid epsilon value", eps)
        betas = checked_betas(betas)
        in_range("Invalid weight_decay value", weight_decay)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "decoupled_weight_decay": decoupled_weight_decay,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def init_state(self, param: Tensor, group: Group) -> State:
        return {"step": counter(), "exp_avg": begun(param), "exp_avg_sq": begun(param)}

    def update(self, group: Group) -> None:
        lr, eps, weight_decay = self.numbers(group, "lr", "eps", "weight_decay")
        beta1, beta2 = map(number, group["betas"])
        decay, maximize = decay_of(group, lr, weight_decay), bool(group["maximize"])
        step = written("radam_step")
        for param, grad, state in self.each(group):
            t = self.count(state)
            size, rectified = lr / (1 - beta1**t), _rectification(beta2, t)
            step_size = size if rectified is None else size * rectified * (1 - beta2**t) ** 0.5
            numbers = (step_size, 1 - beta1, beta2, 1 - beta2, eps, *decay, maximize, rectified is not None)
            step(param, grad, state["exp_avg"], state["exp_avg_sq"], *numbers)


def _rectification(beta2: Any, t: float) -> Any:
    """The factor r of the paper; None while the variance is not known."""
    last = 2 / (1 - beta2) - 1
    rho = last - 2 * t * beta2**t / (1 - beta2**t)
    if rho <= 5.0:
        return None
    return ((rho - 4) * (rho - 2) * last / ((last - 4) * (last - 2) * rho)) ** 0.5


radam = form(
    RAdam,
    "exp_avg exp_avg_sq step",
    "decoupled_weight_decay foreach differentiable capturable has_complex maximize",
    "beta1 beta2 lr weight_decay eps",
    lists="exp_avgs exp_avg_sqs state_steps",
)
