"""AdamW: Adam whose weight decay is apart from the gradient."""

from __future__ import annotations

from typing import Any, Union

from kiln._core import Tensor
from kiln.optim.adam import Adam, Beta
from kiln.optim.functional import form
from kiln.optim.optimizer import ParamsT


class AdamW(Adam):
    """Adam with decoupled weight decay: p shrinks by 1 - lr * weight_decay, the moments never see it."""

    def __init__(
        self,
        params: ParamsT,
        lr: Union[float, Tensor] = 1e-3,
        betas: tuple[Beta, Beta] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: Union[float, Tensor] = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # also after a state of Adam's
            group["decoupled_weight_decay"] = True


adamw = form(
    AdamW,
    "exp_avg exp_avg_sq max_exp_avg_sq step",
    "foreach capturable differentiable fused grad_scale found_inf has_complex",
    "amsgrad beta1 beta2 lr weight_decay eps maximize",
    lists="exp_avgs exp_avg_sqs max_exp_avg_sqs state_steps",
)
