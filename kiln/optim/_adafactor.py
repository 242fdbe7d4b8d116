"""Adafactor: the mean squares of a matrix's rows and columns in the place of those of its elements."""

from __future__ import annotations

from typing import Union

from kiln._core import Tensor
from kiln.ops.creation.dtypes import finfo
from kiln.optim.optimizer import Group, ParamsT, in_range
from kiln.optim.stepping import State, Stepping, begun, counter, number, written


class Adafactor(Stepping):
    """p -= alpha * u / max(1, rms(u) / d), u = g / sqrt(v) (Shazeer and Stern, 2018).

    v runs after g * g by 1 - t**beta2_decay; of parameters of two dims and more it is made of means over
    their last two. alpha = max(eps[1], rms(p)) * min(lr, 1 / sqrt(t)); eps[0], None: that of the dtype, is
    the least root of v. weight_decay shrinks p by 1 - lr * weight_decay; maximize climbs. `foreach`
    chooses nothing.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: Union[float, Tensor] = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        in_range("Learning rate should be >= 0 but is", lr)
        if not 0.0 >= beta2_decay:
            raise ValueError(f"beta2_decay should be <= 0 but is: {beta2_decay}")
        if eps[0] is not None:
            in_range("epsilon1 should be >= 0 but is", eps[0])
        in_range("epsilon2 should be >= 0 but is", eps[1])
        in_range("Clipping threshold d should be >= 1 but is", d, 1.0)
        in_range("weight_decay should be >= 0 but is", weight_decay)
        defaults = {
            "lr": lr,
            "beta2_decay": beta2_decay,
            "eps": eps,
            "d": d,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def shapes(self, param: Tensor) -> dict[str, tuple[int, ...]]:
        if param.dim() < 2:
            return {"variance": tuple(param.shape)}
        *batch, rows, columns = param.shape
        return {"row_var": (*batch, rows, 1), "col_var": (*batch, 1, columns)}

    def init_state(self, param: Tensor, group: Group) -> State:
        zeros = {name: begun(param, shape=shape) for name, shape in self.shapes(param).items()}
        return {"step": counter(), **zeros}

    def update(self, group: Group) -> None:
        lr, beta2_decay, clip, weight_decay = self.numbers(group, "lr", "beta2_decay", "d", "weight_decay")
        vector, matrix = written("adafactor_step"), written("adafactor_matrix_step")
        least, floor = group["eps"]
        for param, grad, state in self.each(group):
            t = self.count(state)
            if not param.numel():
                continue
            eps = finfo(param.dtype).eps if least is None else number(least)
            size = min(lr, 1 / t**0.5)
            numbers = (t**beta2_decay, size, floor, eps, clip, 1 - lr * weight_decay, bool(group["maximize"]))
            if grad.dim() > 1:
                matrix(param, grad, state["row_var"], state["col_var"], *numbers)
            else:
                vector(param, grad, state["variance"], *numbers)
