"""Schedules of schedules: one after the other, and several at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from kiln.absent import leave_out
from kiln.errors import describe
from kiln.optim.lr_scheduler.base import LRScheduler, write
from kiln.optim.lr_scheduler.plateau import ReduceLROnPlateau
from kiln.optim.optimizer import Optimizer


class _OfSchedules(LRScheduler):
    """Schedules of one optimizer, which are part of the state."""

    _schedulers: list[Any]

    def _take(self, schedulers: Sequence[Any], optimizer: Optimizer | None) -> None:
        """ValueError for no schedules, those of several optimizers, or one that waits for a measure."""
        name = type(self).__name__
        if len(schedulers) < 1:
            raise ValueError(f"{name} expects at least one scheduler to be chained, but got no scheduler.")
        optimizer = optimizer or getattr(schedulers[0], "optimizer", None)
        for k, schedule in enumerate(schedulers):
            if not hasattr(schedule, "optimizer"):
                raise TypeError(
                    f"{name} at index {k} should have `optimizer` as its attribute: expected a schedule, got "
                    f"{describe(schedule)}"
                )
            if isinstance(schedule, ReduceLROnPlateau):
                raise ValueError(
                    f"{name} does not support `ReduceLROnPlateau` (at index {k}), whose step takes a measure"
                )
            if schedule.optimizer is not optimizer:
                raise ValueError(
                    f"{name} expects all schedulers to belong to the same optimizer; that of "
                    f"{type(schedule).__name__} at index {k} is another"
                )
        assert optimizer is not None
        self._schedulers = list(schedulers)
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        return self._state_with("_schedulers", [s.state_dict() for s in self._schedulers])

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_schedulers"})
        for schedule, state in zip(self._schedulers, state_dict["_schedulers"]):
            schedule.load_state_dict(state)


class SequentialLR(_OfSchedules):
    """Schedules one after the other: `milestones` are the epochs at which the next begins, at its epoch 0."""

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        self._take(schedulers, optimizer)
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                "Sequential Schedulers expects number of schedulers provided to be one more than the number "
                f"of milestone points, but got {len(schedulers)} schedulers and {len(milestones)} milestones"
            )
        self._milestones = list(milestones)
        self.last_epoch = last_epoch + 1
        for group in optimizer.param_groups:  # each schedule has written its first rates: as if none had
            write(group, "lr", group["initial_lr"])
        _undo(self._schedulers)
        first = self._schedulers[bisect_right(self._milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    def step(self) -> None:  # type: ignore[override]
        """The next epoch, of the schedule that it belongs to."""
        self.last_epoch += 1
        index = bisect_right(self._milestones, self.last_epoch)
        schedule = self._schedulers[index]
        if index > 0 and self._milestones[index - 1] == self.last_epoch:
            schedule._update_lr(0)
        else:
            schedule.step()
        self._last_lr = schedule.get_last_lr()


def _undo(schedulers: Sequence[Any]) -> None:
    """Takes back the first step that schedules make when they are made."""
    for schedule in schedulers:
        if hasattr(schedule, "_schedulers"):
            _undo(schedule._schedulers)
        else:
            schedule.last_epoch -= 1


class ChainedScheduler(_OfSchedules):
    """Schedules at once: each step is one of all of them, in order."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        self._take(schedulers, optimizer)
        self._last_lr = self._rates()

    def step(self) -> None:  # type: ignore[override]
        """The next epoch of each."""
        for schedule in self._schedulers:
            schedule.step()
        self._last_lr = self._rates()


leave_out(SequentialLR, "recursive_undo", "its constructor does that itself")
