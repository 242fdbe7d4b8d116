"""Down when a measure stops getting better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, SupportsFloat, Union

from kiln.errors import message
from kiln.optim.lr_scheduler.base import LRScheduler, checked_optimizer, per_group, warn_of_epoch, write
from kiln.optim.optimizer import Optimizer


class ReduceLROnPlateau(LRScheduler):
    """The rate times `factor` after more than `patience` epochs in which the measure got no better.

    mode             "min": less is better; "max": more
    threshold        what counts as better: by this part of the best ("rel"), or by this much ("abs")
    cooldown         epochs after a reduction that count for nothing
    min_lr           rates stay above it; one for all groups, or a list
    eps              a smaller change is not made

    ValueError for a factor of 1 or more, an unknown mode, or a list that is not one number per group.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: Union[float, list[float]] = 0,
        eps: float = 1e-8,
    ) -> None:
        name = type(self).__name__
        if factor >= 1.0:
            raise ValueError(message(name, "Factor should be < 1.0", repr(factor)))
        if mode not in ("min", "max"):
            raise ValueError(f"mode {mode} is unknown! {name} knows 'min' and 'max'")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode {threshold_mode} is unknown! {name} knows 'rel' and 'abs'")
        self.optimizer = checked_optimizer(name, optimizer)
        self.factor = factor
        self.default_min_lr = None if isinstance(min_lr, (list, tuple)) else min_lr
        self.min_lrs = per_group("min_lr", optimizer, min_lr)
        self.patience = patience
        self.cooldown = cooldown
        self.eps = eps
        self.last_epoch = 0
        self._last_lr = self._rates()
        self.mode_worse = math.inf if mode == "min" else -math.inf
        self.mode, self.threshold, self.threshold_mode = mode, threshold, threshold_mode
        self._reset()

    def _reset(self) -> None:
        """Forgets what was best."""
        self.best: float = self.mode_worse
        self.cooldown_counter = 0
        self.num_bad_epochs = 0

    @property
    def in_cooldown(self) -> bool:
        """Whether epochs count for nothing."""
        return self.cooldown_counter > 0

    def step(self, metrics: SupportsFloat, epoch: int | None = None) -> None:  # type: ignore[override]
        """An epoch ends with a measure: a number, or a tensor of one element."""
        current = float(metrics)
        if epoch is not None:
            warn_of_epoch()
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(current, self.best):
            self.best = current
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce_lr(self.last_epoch)
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0
        self._last_lr = self._rates()

    def _is_better(self, a: float, best: float) -> bool:
        if self.threshold_mode == "rel":
            return (
                a < best * (1.0 - self.threshold) if self.mode == "min" else a > best * (self.threshold + 1.0)
            )
        return a < best - self.threshold if self.mode == "min" else a > best + self.threshold

    def _reduce_lr(self, epoch: int) -> None:
        """Writes smaller rates."""
        groups = self.optimizer.param_groups
        if len(groups) != len(self.min_lrs):
            if self.default_min_lr is None:
                raise RuntimeError(
                    f"{type(self).__name__}: {len(groups)} parameter groups, and min_lrs has "
                    f"{len(self.min_lrs)}: set it to one number for each group that the optimizer has now"
                )
            self.min_lrs = [self.default_min_lr] * len(groups)
        for group, low in zip(groups, self.min_lrs):
            before = float(group["lr"])
            rate = max(before * self.factor, low)
            if before - rate > self.eps:
                write(group, "lr", rate)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.mode_worse = math.inf if self.mode == "min" else -math.inf
