"""ASGD: averaged stochastic gradient descent."""

from __future__ import annotations

from typing import Union

from kiln._core import Tensor
from kiln.optim.functional import form
from kiln.optim.optimizer import Group, ParamsT, in_range
from kiln.optim.stepping import State, Stepping, begun, counter, l2, number, written


class ASGD(Stepping):
    """p = (1 - lambd * eta) * p - eta * g, with eta = lr / (1 + lambd * lr * t)**alpha, and the mean of p
    from step t0 on in state[p]["ax"] (Polyak and Juditsky, 1992).

    weight_decay adds weight_decay * p to g; maximize climbs. `foreach`, `capturable` choose nothing; with
    `differentiable` gradients flow through a step.
    """

    counters = ("step", "eta", "mu")
    moments = ("ax",)

    def __init__(
        self,
        params: ParamsT,
        lr: Union[float, Tensor] = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        in_range("Invalid learning rate", lr)
        in_range("Invalid weight_decay value", weight_decay)
        defaults = {
            "lr": lr,
            "lambd": lambd,
            "alpha": alpha,
            "t0": t0,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    def init_state(self, param: Tensor, group: Group) -> State:
        counts = {"step": counter(), "eta": counter(float(group["lr"])), "mu": counter(1.0)}
        return {**counts, "ax": begun(param)}

    def update(self, group: Group) -> None:
        lr, lambd, alpha, t0 = (float(number(group[name])) for name in ("lr", "lambd", "alpha", "t0"))
        step, decay = written("asgd_step"), l2(number(group["weight_decay"]))
        for param, grad, state in self.each(group):
            t, eta, mu = self.count(state), self.cell(state, "eta"), self.cell(state, "mu")
            numbers = (1 - lambd * eta[()], eta[()], 1 - mu[()])
            step(param, grad, state["ax"], *numbers, *decay, bool(group["maximize"]))
            eta[()] = lr / (1 + lambd * lr * t) ** alpha
            mu[()] = 1 / max(1.0, t - t0)


asgd = form(
    ASGD,
    "ax mu eta step",
    "foreach maximize differentiable capturable has_complex",
    "lambd lr t0 alpha weight_decay",
    lists="axs mus etas state_steps",
)
