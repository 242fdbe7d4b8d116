"""Half a cosine down: up and down again, or from the top again after each."""

from __future__ import annotations

import math
from typing import Any

from kiln.errors import describe, message
from kiln.optim.lr_scheduler.base import LRScheduler
from kiln.optim.optimizer import Optimizer


class CosineAnnealingLR(LRScheduler):
    """From the first rate down to `eta_min` along half a cosine over `T_max` epochs, and up again after.

    eta_min + (base - eta_min) (1 + cos(pi epoch / T_max)) / 2

    Loshchilov and Hutter, 2017.
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        rates = self._present()
        epoch, period, low = self.last_epoch, self.T_max, self.eta_min
        if self._is_initial:
            return rates
        if self._step_count == 1 and epoch > 0:  # resumed: no present rate to go on from
            return self._get_closed_form_lr()
        if (epoch - 1 - period) % (2 * period) == 0:  # the last was eta_min: the ratio below would be 0 / 0
            return [
                rate + (base - low) * (1 - math.cos(math.pi / period)) / 2
                for rate, base in zip(rates, self.base_lrs, strict=True)
            ]
        ratio = (1 + math.cos(math.pi * epoch / period)) / (1 + math.cos(math.pi * (epoch - 1) / period))
        return [ratio * (rate - low) + low for rate in rates]

    def _get_closed_form_lr(self) -> list[Any]:
        height = 1 + math.cos(math.pi * self.last_epoch / self.T_max)
        return [self.eta_min + (base - self.eta_min) * height / 2 for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine down in `T_0` epochs, then from the first rate again, each time `T_mult` times as long.

    `step(epoch)` goes to any epoch, also between two whole ones. ValueError for periods that are no positive
    integers. Loshchilov and Hutter, 2017.
    """

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        for name, value in (("T_0", T_0), ("T_mult", T_mult)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(message(type(self).__name__, f"a positive integer for {name}", repr(value)))
        if not isinstance(eta_min, (int, float)):
            raise ValueError(message(type(self).__name__, "a number for eta_min", describe(eta_min)))
        self.T_0 = T_0
        self.T_i = T_0  # epochs of the present period, and those of it that have passed
        self.T_mult = T_mult
        self.eta_min = eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._present()
        height = 1 + math.cos(math.pi * self.T_cur / self.T_i)
        return [self.eta_min + (base - self.eta_min) * height / 2 for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Go to the next epoch, or to any."""
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur -= self.T_i
                self.T_i *= self.T_mult
        elif epoch < 0:
            raise ValueError(message(type(self).__name__, "an epoch of 0 or more", repr(epoch)))
        else:
            self._go_to(epoch)
        self._update_lr(math.floor(epoch))

    def _go_to(self, epoch: float) -> None:
        """Settles the period that an epoch is in."""
        if epoch < self.T_0:
            self.T_i, self.T_cur = self.T_0, epoch
        elif self.T_mult == 1:
            self.T_cur = epoch % self.T_0
        else:
            periods = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            self.T_i = self.T_0 * self.T_mult**periods
            self.T_cur = epoch - self.T_0 * (self.T_mult**periods - 1) / (self.T_mult - 1)
