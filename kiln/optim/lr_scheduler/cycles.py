"""Rates up and down, with momenta against them: Smith, 2017; Smith and Topin, 2019."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Union

from kiln.optim.lr_scheduler.base import (
    LRScheduler,
    checked_optimizer,
    function_states,
    load_functions,
    per_group,
    write,
)
from kiln.optim.optimizer import Group, Optimizer

Some = Union[float, list[float]]  # for all groups, or one for each


class _WithMomentum(LRScheduler):
    """A schedule that may write momenta, or the first of two betas."""

    def _check_momentum(self) -> None:
        """ValueError where the optimizer has none."""
        defaults = self.optimizer.defaults
        if "momentum" not in defaults and "betas" not in defaults:
            raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")
        self.use_beta1 = "betas" in defaults

    def _begin_momentum(self, base: list[float], peak: list[float]) -> None:
        """Both ends stand in the groups."""
        for low, high, group in zip(base, peak, self.optimizer.param_groups, strict=True):
            self._write_momentum(group, high)
            group["max_momentum"], group["base_momentum"] = high, low

    def _write_momentum(self, group: Group, momentum: float) -> None:
        if self.use_beta1:
            group["betas"] = (momentum, *group["betas"][1:])
        else:
            group["momentum"] = momentum


class CyclicLR(_WithMomentum):
    """Between `base_lr` and `max_lr` on straight lines: up in `step_size_up` steps, down in `step_size_down`.

    mode        "triangular"; "triangular2": each cycle half as high; "exp_range": gamma ** step as high
    scale_fn    the height as a function of the cycle (from 1) or of the step, as `scale_mode` says
                ("cycle", "iterations"); `mode` is then not looked at

    With `cycle_momentum` momenta go the other way between their ends. ValueError for an unknown mode, and for
    an optimizer without momentum.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: Some,
        max_lr: Some,
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: Some = 0.8,
        max_momentum: Some = 0.9,
        last_epoch: int = -1,
    ) -> None:
        self.optimizer = checked_optimizer(type(self).__name__, optimizer)
        base_lrs = per_group("base_lr", optimizer, base_lr)
        if last_epoch == -1:
            for rate, group in zip(base_lrs, optimizer.param_groups, strict=True):
                write(group, "lr", rate)
        self.max_lrs = per_group("max_lr", optimizer, max_lr)
        up = float(step_size_up)
        self.total_size = up + (up if step_size_down is None else float(step_size_down))
        self.step_ratio = up / self.total_size
        if scale_fn is None:
            if mode not in ("triangular", "triangular2", "exp_range"):
                raise ValueError(
                    f"{type(self).__name__}: mode is invalid and scale_fn is None: expected 'triangular', "
                    f"'triangular2' or 'exp_range', got {mode!r}"
                )
            scale_mode = "iterations" if mode == "exp_range" else "cycle"
        self.mode = mode
        self.gamma = gamma
        self.scale_mode = scale_mode
        self._scale_fn_custom = scale_fn
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._check_momentum()
            self.base_momentums = per_group("base_momentum", optimizer, base_momentum)
            self.max_momentums = per_group("max_momentum", optimizer, max_momentum)
            if last_epoch == -1:
                self._begin_momentum(self.base_momentums, self.max_momentums)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = base_lrs

    def scale_fn(self, x: float) -> float:
        """How high a cycle or a step is, as part of the whole height."""
        if self._scale_fn_custom is not None:
            return float(self._scale_fn_custom(x))
        if self.mode == "triangular2":
            return float(1 / 2.0 ** (x - 1))
        return float(self.gamma**x) if self.mode == "exp_range" else 1.0

    def get_lr(self) -> list[Any]:
        self._present()
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        part = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        scale = self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            ends = zip(self.base_momentums, self.max_momentums, self.optimizer.param_groups, strict=True)
            for low, high, group in ends:
                self._write_momentum(group, high - (high - low) * part * scale)
        return [
            low + (high - low) * part * scale for low, high in zip(self.base_lrs, self.max_lrs, strict=True)
        ]

    def state_dict(self) -> dict[str, Any]:
        function = self._scale_fn_custom
        state = None if function is None else function_states([function])[0]
        return self._state_with("_scale_fn_custom", state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        state = state_dict["_scale_fn_custom"]
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_scale_fn_custom"})
        load_functions([self._scale_fn_custom], [state])


_Phase = dict[str, Any]  # a part of one cycle: its last step, between which settings rates and momenta go


class OneCycleLR(_WithMomentum):
    """One cycle over all steps: from max_lr / div_factor up to max_lr, then down to that / final_div_factor.

    total_steps, or epochs and steps_per_epoch    how long it is; step() after each batch
    pct_start                                     the part in which rates rise
    anneal_strategy                               "cos" or "linear"
    three_phase                                   down as slowly as up first, then to the end

    With `cycle_momentum` momenta go the other way. ValueError for lengths that are no positive integers, for
    a part outside of 0 to 1, for an optimizer without momentum, and for a step past the last.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: Some,
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: Some = 0.85,
        max_momentum: Some = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        name = type(self).__name__
        self.optimizer = checked_optimizer(name, optimizer)
        if total_steps is not None:
            self.total_steps = _positive("total_steps", total_steps)
        elif epochs is not None and steps_per_epoch is not None:
            self.total_steps = _positive("epochs", epochs) * _positive("steps_per_epoch", steps_per_epoch)
        else:
            raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
        if not isinstance(pct_start, float) or not 0 <= pct_start <= 1:
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        self._schedule_phases = _phases(self.total_steps, pct_start, three_phase)
        self._anneal_func_type = anneal_strategy
        if last_epoch == -1:
            for group, peak in zip(
                optimizer.param_groups, per_group("max_lr", optimizer, max_lr), strict=True
            ):
                group["initial_lr"] = peak / div_factor
                group["max_lr"] = peak
                group["min_lr"] = group["initial_lr"] / final_div_factor
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._check_momentum()
            low, high = (
                per_group(end, optimizer, value)
                for end, value in (("base_momentum", base_momentum), ("max_momentum", max_momentum))
            )
            if last_epoch == -1:
                self._begin_momentum(low, high)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._present()
        step = self.last_epoch
        if step > self.total_steps:
            raise ValueError(
                f"Tried to step {step} times. The specified number of total steps is {self.total_steps}"
            )
        start, phase = 0.0, self._schedule_phases[0]
        for phase in self._schedule_phases:
            if step <= phase["end_step"] or phase is self._schedule_phases[-1]:
                break
            start = phase["end_step"]
        part = (step - start) / (phase["end_step"] - start)
        groups = self.optimizer.param_groups
        if self.cycle_momentum:
            for group in groups:
                self._write_momentum(group, self._between(group, phase, "momentum", part))
        return [self._between(group, phase, "lr", part) for group in groups]

    def _between(self, group: Group, phase: _Phase, name: str, part: float) -> Any:
        """A rate or a momentum that far into a phase."""
        start, end = (group[phase[f"{side}_{name}"]] for side in ("start", "end"))
        if self._anneal_func_type == "linear":
            return (end - start) * part + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * part) + 1)


def _phases(steps: int, rise: float, three: bool) -> list[_Phase]:
    """Up, then down; or down as slowly as up, then to the end."""

    def phase(end: float, rates: tuple[str, str], momenta: tuple[str, str]) -> _Phase:
        names = ("end_step", "start_lr", "end_lr", "start_momentum", "end_momentum")
        return dict(zip(names, (end, *rates, *momenta)))

    high, low = "max_momentum", "base_momentum"
    up = phase(float(rise * steps) - 1, ("initial_lr", "max_lr"), (high, low))
    if not three:
        return [up, phase(steps - 1, ("max_lr", "min_lr"), (low, high))]
    down = phase(float(2 * rise * steps) - 2, ("max_lr", "initial_lr"), (low, high))
    return [up, down, phase(steps - 1, ("initial_lr", "min_lr"), (high, high))]


def _positive(name: str, value: int) -> int:
    """A positive integer, or ValueError."""
    if not isinstance(value, int) or value <= 0:
        raise ValueError(f"Expected positive integer {name}, but got {value}")
    return value
