"""Adagrad: steps over the root of the sum of all squared gradients."""

from __future__ import annotations

from typing import Union

from kiln._core import Tensor
from kiln.optim.functional import form
from kiln.optim.optimizer import Group, ParamsT, in_range
from kiln.optim.stepping import State, Stepping, begun, counter, l2, written


class Adagrad(Stepping):
    """s += g * g; p -= lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps).

    s begins as initial_accumulator_value, and is there before the first step. weight_decay adds
    weight_decay * p to g; maximize climbs. `foreach`, `fused` choose nothing; with `differentiable` gradients
    flow through a step.
    """

    moments = ("sum",)

    def __init__(
        self,
        params: ParamsT,
        lr: Union[float, Tensor] = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        in_range("Invalid learning rate", lr)
        in_range("Invalid lr_decay value", lr_decay)
        in_range("Invalid weight_decay value", weight_decay)
        in_range("Invalid initial_accumulator_value value", initial_accumulator_value)
        in_range("Invalid epsilon value", eps)
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults)
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param] = self.init_state(param, group)

    def init_state(self, param: Tensor, group: Group) -> State:
        value = group["initial_accumulator_value"]
        return {"step": counter(), "sum": begun(param, value)}

    def share_memory(self) -> None:
        """Moves the states to memory that processes share."""
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param]["sum"].share_memory_()

    def update(self, group: Group) -> None:
        lr, lr_decay, eps, weight_decay = self.numbers(group, "lr", "lr_decay", "eps", "weight_decay")
        step, numbers = written("adagrad_step"), (eps, *l2(weight_decay), bool(group["maximize"]))
        for param, grad, state in self.each(group):
            rate = lr / (1 + (self.count(state) - 1) * lr_decay)
            step(param, grad, state["sum"], rate, *numbers)


adagrad = form(
    Adagrad,
    "sum step",
    "fused grad_scale found_inf has_sparse_grad foreach differentiable has_complex",
    "lr weight_decay lr_decay eps maximize",
    lists="state_sums state_steps",
)
