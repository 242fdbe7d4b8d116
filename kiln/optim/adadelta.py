"""Adadelta: steps of the size of those before."""

from __future__ import annotations

from typing import Union

from kiln._core import Tensor
from kiln.optim.functional import form
from kiln.optim.optimizer import Group, ParamsT, in_range
from kiln.optim.stepping import State, Stepping, begun, counter, l2, written


class Adadelta(Stepping):
    """s = rho * s + (1 - rho) * g * g; u = sqrt(d + eps) / sqrt(s + eps) * g; p -= lr * u, and d runs after
    u * u as s after g * g.

    weight_decay adds weight_decay * p to g; maximize climbs. `foreach`, `capturable` choose nothing; with
    `differentiable` gradients flow through a step.
    """

    moments = ("square_avg", "acc_delta")

    def __init__(
        self,
        params: ParamsT,
        lr: Union[float, Tensor] = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        in_range("Invalid learning rate", lr)
        in_range("Invalid rho value", rho, 0.0, 1.0, closed=True)
        in_range("Invalid epsilon value", eps)
        in_range("Invalid weight_decay value", weight_decay)
        defaults = {
            "lr": lr,
            "rho": rho,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "capturable": capturable,
            "foreach": foreach,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def init_state(self, param: Tensor, group: Group) -> State:
        return {"step": counter(), "square_avg": begun(param), "acc_delta": begun(param)}

    def update(self, group: Group) -> None:
        lr, rho, eps, weight_decay = self.numbers(group, "lr", "rho", "eps", "weight_decay")
        step = written("adadelta_step")
        numbers = (lr, rho, 1 - rho, eps, *l2(weight_decay), bool(group["maximize"]))
        for param, grad, state in self.each(group):
            self.count(state)
            step(param, grad, state["square_avg"], state["acc_delta"], *numbers)


adadelta = form(
    Adadelta,
    "square_avg acc_delta step",
    "capturable foreach differentiable has_complex",
    "lr rho eps weight_decay maximize",
    lists="square_avgs acc_deltas state_steps",
)
