"""Stochastic gradient descent, with momentum."""

from __future__ import annotations

from typing import Any

from kiln import ops
from kiln._core import Tensor
from kiln.optim.optimizer import Group, Optimizer, Params, checked
from kiln.table import registry


class SGD(Optimizer):
    """p -= lr * g, or with momentum b = momentum * b + (1 - dampening) * g and p -= lr * b.

    The first step takes b = g. nesterov descends along g + momentum * b and needs momentum and no
    dampening (ValueError). weight_decay adds weight_decay * p to g; maximize climbs.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def check(self, group: Group) -> None:
        for name in ("lr", "momentum", "weight_decay"):
            checked(name, group[name], 0.0)
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")

    def init_state(self, param: Tensor, group: Group) -> dict[str, Any]:
        if group["momentum"] == 0:
            return {}
        return {"momentum_buffer": ops.zeros_like(param.detach()), "step": 0}

    def _load_state(self, param: Tensor, group: Group, saved: Any) -> dict[str, Any]:
        state = super()._load_state(param, group, saved)
        if "step" not in saved and saved.get("momentum_buffer") is not None:
            state["step"] = 1  # a state saved by PyTorch, which keeps no count
        return state

    def update(self, group: Group) -> None:
        lr, momentum, nesterov = group["lr"], group["momentum"], group["nesterov"]
        decay = "l2" if group["weight_decay"] != 0 else "none"
        options = (group["weight_decay"], decay)
        for param in group["params"]:
            grad = param.grad
            if grad is None:
                continue
            if momentum == 0:
                registry.function("sgd_step_")(param, grad, lr, *options, group["maximize"])
                continue
            state = self.state[param]
            if "momentum_buffer" not in state:  # momentum was raised from 0 after the group was added
                state.update(self.init_state(param, group))
            weight = 1.0 - group["dampening"] if state["step"] else 1.0
            state["step"] += 1
            buffer = state["momentum_buffer"]
            registry.function("sgd_momentum_step_")(
                param, grad, buffer, lr, momentum, weight, *options, nesterov, group["maximize"]
            )
