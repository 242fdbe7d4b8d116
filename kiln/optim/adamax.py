"""Adamax: Adam with the largest gradient in the place of the root of the mean square."""

from __future__ import annotations

from typing import Union

from kiln._core import Tensor
from kiln.optim.adam import Beta, checked_betas
from kiln.optim.functional import form
from kiln.optim.optimizer import Group, ParamsT, in_range
from kiln.optim.stepping import State, Stepping, begun, counter, l2, number, written


class Adamax(Stepping):
    """m runs after g; n = max(beta2 * n, |g| + eps); p -= lr / (1 - beta1**t) * m / n.

    weight_decay adds weight_decay * p to g; maximize climbs. `foreach`, `capturable` choose nothing; with
    `differentiable` gradients flow through a step.
    """

    moments = ("exp_avg", "exp_inf")

    def __init__(
        self,
        params: ParamsT,
        lr: Union[float, Tensor] = 2e-3,
        betas: tuple[Beta, Beta] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
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
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    def init_state(self, param: Tensor, group: Group) -> State:
        return {"step": counter(), "exp_avg": begun(param), "exp_inf": begun(param)}

    def update(self, group: Group) -> None:
        lr, eps, weight_decay = self.numbers(group, "lr", "eps", "weight_decay")
        beta1, beta2 = map(number, group["betas"])
        step, decay, maximize = written("adamax_step"), l2(weight_decay), bool(group["maximize"])
        for param, grad, state in self.each(group):
            step_size = lr / (1 - beta1 ** self.count(state))
            numbers = (step_size, 1 - beta1, beta2, eps)
            step(param, grad, state["exp_avg"], state["exp_inf"], *numbers, *decay, maximize)


adamax = form(
    Adamax,
    "exp_avg exp_inf step",
    "foreach maximize differentiable capturable has_complex",
    "eps beta1 beta2 lr weight_decay",
    lists="exp_avgs exp_infs state_steps",
)
