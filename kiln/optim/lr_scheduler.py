"""Learning-rate schedules: Python numbers written into an optimizer's groups, once per epoch.

Each schedule has its rule in `get_lr`: the next rates of the groups. StepLR and CosineAnnealingLR compute
them from the present ones, so that schedules chain and floats follow PyTorch's bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

from kiln.absent import hint_missing as _hint_missing
from kiln.errors import describe, message
from kiln.optim.optimizer import Optimizer

Factor = Callable[[int], float]


class LRScheduler:
    """Base of the schedules: writes `get_lr()` into the groups when made (epoch 0) and at every `step()`.

    `last_epoch` other than -1 resumes; the groups must then hold "initial_lr" (KeyError).
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(message(type(self).__name__, "an Optimizer", describe(optimizer)))
        self.optimizer = optimizer
        for k, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                hint = "load the optimizer's state_dict first"
                raise KeyError(
                    message(type(self).__name__, f"'initial_lr' in group {k} to resume", "none", hint)
                )
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._step_count = 0
        self._last_lr: list[float] = []
        self.step()

    def get_lr(self) -> list[float]:
        """The rates of the epoch `last_epoch`, one per group."""
        raise NotImplementedError(f"{type(self).__name__} defines no get_lr()")

    def get_last_lr(self) -> list[float]:
        """The rates written last."""
        return self._last_lr

    def step(self) -> None:
        """Go to the next epoch and write its rates; call it after the optimizer's step."""
        self._step_count += 1
        self.last_epoch += 1
        rates = self.get_lr()
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._last_lr = rates

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer and functions: numbers and lists."""
        return {k: v for k, v in self.__dict__.items() if k not in ("optimizer", "lr_lambdas")}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up a saved state."""
        self.__dict__.update(state_dict)

    def _rates(self) -> list[float]:
        """The groups' present rates."""
        return [group["lr"] for group in self.optimizer.param_groups]


class LambdaLR(LRScheduler):
    """Each group's first rate times `lr_lambda(epoch)`; one function, or a list of one per group.

    Functions are not part of state_dict: give them again when resuming.
    """

    def __init__(
        self, optimizer: Optimizer, lr_lambda: Union[Factor, Sequence[Factor]], last_epoch: int = -1
    ) -> None:
        groups = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * groups if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != groups:
            raise ValueError(
                message("LambdaLR", f"{groups} functions, one per group", str(len(self.lr_lambdas)))
            )
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        pairs = zip(self.base_lrs, self.lr_lambdas, strict=True)
        return [base * factor(self.last_epoch) for base, factor in pairs]


class StepLR(LRScheduler):
    """The rate times `gamma` every `step_size` epochs."""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0 or self.last_epoch % self.step_size != 0:
            return self._rates()
        return [rate * self.gamma for rate in self._rates()]


class CosineAnnealingLR(LRScheduler):
    """From the first rate down to `eta_min` along half a cosine over `T_max` epochs, and up again after.

    eta_min + (base - eta_min) (1 + cos(pi epoch / T_max)) / 2
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        epoch, period, low = self.last_epoch, self.T_max, self.eta_min
        if epoch == 0:
            return self._rates()
        if self._step_count == 1:  # resumed: no present rate to go on from
            return [
                low + (base - low) * (1 + math.cos(epoch * math.pi / period)) / 2 for base in self.base_lrs
            ]
        if (epoch - 1 - period) % (
            2 * period
        ) == 0:  # the last rate was eta_min: the ratio below would be 0 / 0
            rise = (1 - math.cos(math.pi / period)) / 2
            return [r + (b - low) * rise for r, b in zip(self._rates(), self.base_lrs, strict=True)]
        ratio = (1 + math.cos(math.pi * epoch / period)) / (1 + math.cos(math.pi * (epoch - 1) / period))
        return [ratio * (rate - low) + low for rate in self._rates()]


_hint_missing(__name__)
