"""Rprop: steps by the sign of the gradient alone."""

from __future__ import annotations

from typing import Union

from kiln._core import Tensor
from kiln.errors import describe, message
from kiln.optim.functional import form
from kiln.optim.optimizer import Group, ParamsT, in_range
from kiln.optim.stepping import State, Stepping, begun, counter, number, written


class Rprop(Stepping):
    """p -= sign(g) * s, where s begins as lr and grows by etas[1] while g keeps its sign, shrinks by etas[0]
    where it changed sign (there p rests), within step_sizes.

    For whole batches. maximize climbs; `foreach`, `capturable` choose nothing; with `differentiable`
    gradients flow through a step.
    """

    moments = ("prev", "step_size")

    def __init__(
        self,
        params: ParamsT,
        lr: Union[float, Tensor] = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        in_range("Invalid learning rate", lr)
        if not isinstance(etas, (tuple, list)) or len(etas) != 2:
            raise ValueError(message("Rprop", "etas of two numbers", describe(etas)))
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ValueError(f"Invalid eta values: {etas[0]}, {etas[1]}")
        defaults = {
            "lr": lr,
            "etas": etas,
            "step_sizes": step_sizes,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    def init_state(self, param: Tensor, group: Group) -> State:
        first = begun(param, group["lr"])
        return {"step": counter(), "prev": begun(param), "step_size": first}

    def update(self, group: Group) -> None:
        numbers = (*map(number, group["etas"]), *map(number, group["step_sizes"]), bool(group["maximize"]))
        step = written("rprop_step")
        for param, grad, state in self.each(group):
            self.count(state)
            step(param, grad, state["prev"], state["step_size"], *numbers)


rprop = form(
    Rprop,
    "prev step_size step",
    "foreach capturable maximize differentiable has_complex",
    "step_size_min step_size_max etaminus etaplus",
    lists="prevs step_sizes state_steps",
)
