"""Averages of a model's weights over its training, and the schedule that goes with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from itertools import chain
from typing import Any, Union

from kiln import ops
from kiln._core import Tensor, int64
from kiln.autograd import no_grad
from kiln.nn import Module
from kiln.nn.normalisations import _BatchNorm
from kiln.optim.lr_scheduler.base import LRScheduler, per_group
from kiln.optim.optimizer import Optimizer
from kiln.table.callables import name_all

__all__ = [
    "SWALR", "AveragedModel", "get_ema_avg_fn", "get_ema_multi_avg_fn", "get_swa_avg_fn",
    "get_swa_multi_avg_fn", "update_bn",
]  # fmt: skip

Count = Union[Tensor, int]
Average = Callable[[Tensor, Tensor, Count], Tensor]
Averages = Callable[[Sequence[Tensor], Sequence[Tensor], Count], None]


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """An `avg_fn`: decay * average + (1 - decay) * weight.

    >>> average = kiln.optim.swa_utils.get_ema_avg_fn(0.75)
    >>> average(kiln.tensor(4.0), kiln.tensor(8.0), 1)
    tensor(5.)
    """

    @no_grad()
    def ema_update(ema_param: Tensor, current_param: Tensor, num_averaged: Count) -> Tensor:
        return decay * ema_param + (1 - decay) * current_param

    return ema_update


def get_ema_multi_avg_fn(decay: float = 0.999) -> Averages:
    """The same in place over lists of tensors, a `multi_avg_fn`. ValueError for a decay outside of [0, 1]."""
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"Invalid decay value {decay} provided. Please provide a value in [0,1] range.")

    @no_grad()
    def ema_update(
        ema_param_list: Sequence[Tensor], current_param_list: Sequence[Tensor], num_averaged: Count
    ) -> None:
        for average, weight in zip(ema_param_list, current_param_list, strict=True):
            if average.dtype.is_floating_point:
                average.lerp_(weight, 1 - decay)
            else:
                average.copy_(average * decay + weight * (1 - decay))

    return ema_update


def get_swa_avg_fn() -> Average:
    """An `avg_fn`: the mean of all weights, of which `num_averaged` are in the average.

    >>> average = kiln.optim.swa_utils.get_swa_avg_fn()
    >>> average(kiln.tensor(4.0), kiln.tensor(10.0), 2)
    tensor(6.)
    """

    @no_grad()
    def swa_update(averaged_param: Tensor, current_param: Tensor, num_averaged: Count) -> Tensor:
        mean: Tensor = averaged_param + (current_param - averaged_param) / (num_averaged + 1)
        return mean

    return swa_update


def get_swa_multi_avg_fn() -> Averages:
    """The same in place over lists of tensors, a `multi_avg_fn`."""

    @no_grad()
    def swa_update(
        averaged_param_list: Sequence[Tensor], current_param_list: Sequence[Tensor], num_averaged: Count
    ) -> None:
        weight = 1.0 / (float(num_averaged) + 1)
        for average, current in zip(averaged_param_list, current_param_list, strict=True):
            if average.dtype.is_floating_point:
                average.lerp_(current, weight)
            else:
                average.copy_(average + (current - average) * weight)

    return swa_update


class AveragedModel(Module):
    """A copy of `model` whose weights become averages of those that `update_parameters(model)` is given.

    The first of these calls copies them. `avg_fn(average, weight, n_averaged)` gives a new average,
    `multi_avg_fn(averages, weights, n_averaged)` writes all in place (AssertionError for both); without
    either it is the mean of all. `use_buffers` averages buffers too; else they are copied. Neither function
    is in the state_dict, `n_averaged` is a buffer.

    >>> model = kiln.nn.Linear(1, 1, bias=False)
    >>> averaged = kiln.optim.swa_utils.AveragedModel(model)
    >>> for weight in (1.0, 2.0, 6.0):
    ...     _ = model.weight.data.fill_(weight)
    ...     averaged.update_parameters(model)
    >>> averaged.module.weight.item()
    3.0
    """

    n_averaged: Tensor

    def __init__(
        self,
        model: Module,
        device: Any = None,
        avg_fn: Average | None = None,
        multi_avg_fn: Averages | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise AssertionError("Only one of avg_fn and multi_avg_fn should be provided")
        self.module = deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", ops.tensor(0, dtype=int64, device=device))
        self.avg_fn = avg_fn
        self.multi_avg_fn = multi_avg_fn
        self.use_buffers = use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the averaged module gives."""
        return self.module(*args, **kwargs)

    def _tensors(self, module: Module) -> list[Tensor]:
        """What is averaged."""
        buffers = module.buffers() if self.use_buffers else ()
        return [x.detach() for x in chain(module.parameters(), buffers)]

    def update_parameters(self, model: Module) -> None:
        """Take the weights of `model` into the averages."""
        averages, weights = self._tensors(self.module), self._tensors(model)
        if self.n_averaged == 0:
            for average, weight in zip(averages, weights, strict=False):
                average.copy_(weight)
        elif self.avg_fn is not None:
            for average, weight in zip(averages, weights, strict=False):
                average.copy_(self.avg_fn(average, weight, self.n_averaged.clone()))
        else:
            update = self.multi_avg_fn or get_swa_multi_avg_fn()
            kinds = {x.dtype: None for x in averages}  # PyTorch gives each dtype its own lists
            for kind in kinds:
                pairs = [(a, w) for a, w in zip(averages, weights, strict=False) if a.dtype == kind]
                update([a for a, _ in pairs], [w for _, w in pairs], self.n_averaged.clone())
        if not self.use_buffers:
            for own, buffer in zip(self.module.buffers(), model.buffers(), strict=True):
                own.detach().copy_(buffer.detach())
        self.n_averaged += 1


@no_grad()
def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Computes the running statistics of a model's batch norms anew: means over the batches of `loader`.

    Of a batch that is a list or tuple the first element is the input; `device` is where it is moved to.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    if not norms:
        return
    momenta, was_training = [m.momentum for m in norms], model.training
    model.train()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    for batch in loader:
        given = batch[0] if isinstance(batch, (list, tuple)) else batch
        model(given if device is None else given.to(device))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.train(was_training)


class SWALR(LRScheduler):
    """The rate goes to `swa_lr`, one for all groups or a list, in `anneal_epochs` epochs and stays there.

    `anneal_strategy` is "cos" or "linear" (ValueError for others, and for epochs below 0).
    """

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: Union[float, Sequence[float]],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"SWALR: {type(optimizer).__name__} is not an Optimizer")
        rates = per_group("swa_lr", optimizer, swa_lr)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["swa_lr"] = rate
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        self._anneal_strategy = anneal_strategy
        self.anneal_epochs = anneal_epochs
        super().__init__(optimizer, last_epoch)

    def anneal_func(self, part: float) -> float:
        """How much of the way is gone after that part of the epochs."""
        return part if self._anneal_strategy == "linear" else (1 - math.cos(math.pi * part)) / 2

    def _gone(self, step: int) -> float:
        return self.anneal_func(max(0.0, min(1.0, step / max(1, self.anneal_epochs))))

    def get_lr(self) -> list[Any]:
        rates = self._present()
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._gone(step - 1), self._gone(step)
        made = []
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            last = group["swa_lr"]
            first = last if before == 1 else (rate - before * last) / (1 - before)
            made.append(last * now + first * (1 - now))
        return made


name_all(globals(), "kiln.optim.swa_utils")
