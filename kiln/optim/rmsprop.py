"""RMSprop: steps over the root of a running mean of squared gradients."""

from __future__ import annotations

from typing import Union

from kiln._core import Tensor
from kiln.optim.functional import form
from kiln.optim.optimizer import Group, ParamsT, in_range
from kiln.optim.stepping import State, Stepping, begun, counter, l2, written


class RMSprop(Stepping):
    """s = alpha * s + (1 - alpha) * g * g; p -= lr * g / (sqrt(s) + eps).

    centered subtracts the square of the gradient's running mean from s; momentum steps along
    b = momentum * b + g / (sqrt(s) + eps). weight_decay adds weight_decay * p to g; maximize climbs.
    `foreach`, `capturable` choose nothing; with `differentiable` gradients flow through a step.
    """

    moments = ("square_avg", "momentum_buffer", "grad_avg")

    def __init__(
        self,
        params: ParamsT,
        lr: Union[float, Tensor] = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        in_range("Invalid learning rate", lr)
        in_range("Invalid epsilon value", eps)
        in_range("Invalid momentum value", momentum)
        in_range("Invalid weight_decay value", weight_decay)
        in_range("Invalid alpha value", alpha)
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "alpha": alpha,
            "eps": eps,
            "centered": centered,
            "weight_decay": weight_decay,
            "capturable": capturable,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def init_state(self, param: Tensor, group: Group) -> State:
        state = {"step": counter(), "square_avg": begun(param)}
        if group["momentum"] > 0:
            state["momentum_buffer"] = begun(param)
        if group["centered"]:
            state["grad_avg"] = begun(param)
        return state

    def update(self, group: Group) -> None:
        lr, alpha, eps, momentum, decay = self.numbers(
            group, "lr", "alpha", "eps", "momentum", "weight_decay"
        )
        numbers = (lr, alpha, 1 - alpha, eps, momentum, *l2(decay), bool(group["maximize"]))
        step, centered, moves = written("rmsprop_step"), group["centered"], group["momentum"] > 0
        for param, grad, state in self.each(group):
            self.count(state)
            mean = self.moment(state, "grad_avg", param) if centered else None
            velocity = self.moment(state, "momentum_buffer", param) if moves else None
            step(param, grad, state["square_avg"], mean, velocity, *numbers)


rmsprop = form(
    RMSprop,
    "square_avg grad_avg momentum_buffer step",
    "foreach maximize differentiable capturable has_complex",
    "lr alpha eps weight_decay momentum centered",
    lists="square_avgs grad_avgs momentum_buffer_list state_steps",
)
