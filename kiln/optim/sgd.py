"""Stochastic gradient descent, with momentum."""

from __future__ import annotations

from typing import Union

from kiln._core import Tensor
from kiln.optim.functional import form
from kiln.optim.optimizer import Group, ParamsT, in_range
from kiln.optim.stepping import State, Stepping, begun, l2, written


class SGD(Stepping):
    """p -= lr * g, or with momentum b = momentum * b + (1 - dampening) * g and p -= lr * b.

    The first step takes b = g. nesterov descends along g + momentum * b and needs momentum and no
    dampening (ValueError). weight_decay adds weight_decay * p to g; maximize climbs. `foreach`, `fused`
    choose nothing; with `differentiable` gradients flow through a step.
    """

    counters = ()
    moments = ("momentum_buffer",)

    def __init__(
        self,
        params: ParamsT,
        lr: Union[float, Tensor] = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: Union[float, Tensor] = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        in_range("Invalid learning rate", lr)
        in_range("Invalid momentum value", momentum)
        in_range("Invalid weight_decay value", weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "foreach": foreach,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults)

    def init_state(self, param: Tensor, group: Group) -> State:
        return {"momentum_buffer": None}

    def update(self, group: Group) -> None:
        lr, momentum, weight_decay = self.numbers(group, "lr", "momentum", "weight_decay")
        decay, nesterov, maximize = l2(weight_decay), bool(group["nesterov"]), bool(group["maximize"])
        if group["momentum"] == 0:
            plain = written("sgd_step")
            for param, grad in self.given(group):
                plain(param, grad, lr, *decay, maximize)
            return
        step, later = written("sgd_momentum_step"), 1.0 - group["dampening"]
        for param, grad, state in self.each(group):
            weight, buffer = later, state.get("momentum_buffer")
            if buffer is None:  # the first step takes the gradient undamped
                weight, buffer = 1.0, begun(param)
            step(param, grad, buffer, lr, momentum, weight, *decay, nesterov, maximize)
            state["momentum_buffer"] = buffer


sgd = form(
    SGD,
    "momentum_buffer",
    "has_sparse_grad foreach fused grad_scale found_inf",
    "weight_decay momentum lr dampening nesterov maximize",
    grads="d_p_list",
    lists="momentum_buffer_list",
)
