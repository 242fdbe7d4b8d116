"""NAdam: Adam with Nesterov's momentum."""

from __future__ import annotations

from typing import Union

from kiln._core import Tensor
from kiln.optim.adam import Beta, checked_betas
from kiln.optim.functional import form
from kiln.optim.optimizer import Group, ParamsT, in_range
from kiln.optim.stepping import State, Stepping, begun, counter, decay_of, number, written


class NAdam(Stepping):
    """Adam that steps along the gradient and the moment of the next step (Dozat, 2016).

    mu = beta1 * (1 - 0.96**(t * momentum_decay) / 2) is the momentum of step t. weight_decay adds
    weight_decay * p to g, or with decoupled_weight_decay first shrinks p by 1 - lr * weight_decay; maximize
    climbs. `foreach`, `capturable` choose nothing; with `differentiable` gradients flow through a step.
    """

    counters = ("step", "mu_product")
    moments = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: ParamsT,
        lr: Union[float, Tensor] = 2e-3,
        betas: tuple[Beta, Beta] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        in_range("Invalid learning rate", lr)
        in_range("Invalid epsilon value", eps)
        betas = checked_betas(betas)
        in_range("Invalid weight_decay value", weight_decay)
        in_range("Invalid momentum_decay value", momentum_decay)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def init_state(self, param: Tensor, group: Group) -> State:
        counts = {"step": counter(), "mu_product": counter(1.0)}
        return {**counts, "exp_avg": begun(param), "exp_avg_sq": begun(param)}

    def update(self, group: Group) -> None:
        lr, eps, weight_decay, slower = self.numbers(group, "lr", "eps", "weight_decay", "momentum_decay")
        beta1, beta2 = map(number, group["betas"])
        decay, maximize = decay_of(group, lr, weight_decay), bool(group["maximize"])
        step = written("nadam_step")
        for param, grad, state in self.each(group):
            t, product = self.count(state), self.cell(state, "mu_product")
            mu, mu_next = (beta1 * (1.0 - 0.5 * 0.96 ** (k * slower)) for k in (t, t + 1))
            before, product[()] = product[()], float(mu)  # which rounds mu to the product's dtype
            product[()] *= before
            grad_size = lr * (1.0 - mu) / (1.0 - product[()])
            mean_size = lr * mu_next / (1.0 - product[()] * mu_next)
            numbers = (grad_size, mean_size, 1 - beta1, beta2, 1 - beta2, 1 - beta2**t, eps)
            step(param, grad, state["exp_avg"], state["exp_avg_sq"], *numbers, *decay, maximize)


nadam = form(
    NAdam,
    "exp_avg exp_avg_sq mu_product step",
    "decoupled_weight_decay foreach capturable differentiable has_complex maximize",
    "beta1 beta2 lr weight_decay momentum_decay eps",
    lists="exp_avgs exp_avg_sqs mu_products state_steps",
)
