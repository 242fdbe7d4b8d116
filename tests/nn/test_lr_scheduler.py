"""Learning-rate schedules, epoch by epoch against PyTorch's."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import kiln

Made = tuple[Any, Any]


class Height:
    """A function that is an object, whose attributes are part of a state."""

    def __init__(self, base: float) -> None:
        self.base = base

    def __call__(self, x: float) -> float:
        return float(self.base**x)


def optimizer_of(lib: Any, kind: str = "SGD") -> Any:
    """Two groups of different rates."""
    p, q = (lib.nn.Parameter(lib.ones(2)) for _ in range(2))
    groups = [{"params": [p], "lr": 0.3}, {"params": [q]}]
    if kind == "Adam":
        return lib.optim.Adam(groups, lr=0.1, betas=(0.85, 0.99))
    return lib.optim.SGD(groups, lr=0.1, momentum=0.9)


def warmup_then(lib: Any, optimizer: Any, *later: tuple[str, dict[str, Any]]) -> list[Any]:
    """Schedules of one optimizer, a linear one first."""
    made = lib.optim.lr_scheduler
    first = made.LinearLR(optimizer, start_factor=0.1, total_iters=4)
    return [first, *(getattr(made, name)(optimizer, **options) for name, options in later)]


def sequential(lib: Any, optimizer: Any) -> Any:
    later = ("CosineAnnealingLR", {"T_max": 9}), ("ExponentialLR", {"gamma": 0.8})
    return lib.optim.lr_scheduler.SequentialLR(optimizer, warmup_then(lib, optimizer, *later), [4, 15])


def sequential_from_the_second(lib: Any, optimizer: Any) -> Any:
    schedules = warmup_then(lib, optimizer, ("StepLR", {"step_size": 2}))
    return lib.optim.lr_scheduler.SequentialLR(optimizer, schedules, [0])


def sequential_of_sequential(lib: Any, optimizer: Any) -> Any:
    made = lib.optim.lr_scheduler
    inner = made.SequentialLR(optimizer, warmup_then(lib, optimizer, ("ConstantLR", {})), [3])
    return made.SequentialLR(optimizer, [inner, made.PolynomialLR(optimizer, total_iters=9)], [7])


def chained(lib: Any, optimizer: Any) -> Any:
    schedules = warmup_then(lib, optimizer, ("MultiStepLR", {"milestones": [3, 8]}))
    return lib.optim.lr_scheduler.ChainedScheduler(schedules, optimizer=optimizer)


# name of a schedule or a function that makes one, its options, the optimizer
SCHEDULES: list[tuple[Any, dict[str, Any], str]] = [
    ("LambdaLR", {"lr_lambda": lambda epoch: 0.9**epoch}, "SGD"),
    ("LambdaLR", {"lr_lambda": [lambda epoch: 1 / (1 + epoch), lambda epoch: 0.5 * epoch]}, "SGD"),
    ("LambdaLR", {"lr_lambda": Height(0.8)}, "SGD"),
    ("MultiplicativeLR", {"lr_lambda": lambda epoch: 0.95 if epoch % 2 else 1.02}, "SGD"),
    ("MultiplicativeLR", {"lr_lambda": (Height(0.99), Height(0.98))}, "SGD"),
    ("StepLR", {"step_size": 3}, "SGD"),
    ("StepLR", {"step_size": 1, "gamma": 0.5}, "SGD"),
    ("MultiStepLR", {"milestones": [3, 7, 7, 20]}, "SGD"),
    ("MultiStepLR", {"milestones": (0, 5), "gamma": 0.3}, "SGD"),
    ("ConstantLR", {}, "SGD"),
    ("ConstantLR", {"factor": 0.25, "total_iters": 9}, "SGD"),
    ("LinearLR", {}, "SGD"),
    ("LinearLR", {"start_factor": 1.0, "end_factor": 0.2, "total_iters": 13}, "SGD"),
    ("ExponentialLR", {"gamma": 0.93}, "SGD"),
    ("PolynomialLR", {}, "SGD"),
    ("PolynomialLR", {"total_iters": 17, "power": 2.5}, "SGD"),
    ("CosineAnnealingLR", {"T_max": 7}, "SGD"),
    ("CosineAnnealingLR", {"T_max": 4, "eta_min": 0.01}, "SGD"),
    ("CosineAnnealingLR", {"T_max": 1, "eta_min": 0.01}, "SGD"),
    ("CosineAnnealingWarmRestarts", {"T_0": 5}, "SGD"),
    ("CosineAnnealingWarmRestarts", {"T_0": 3, "T_mult": 2, "eta_min": 0.02}, "SGD"),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.2, "step_size_up": 4}, "SGD"),
    ("CyclicLR", {"base_lr": [0.1, 0.2], "max_lr": [1, 0.3], "step_size_up": 3, "step_size_down": 5}, "Adam"),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.2, "step_size_up": 4, "mode": "triangular2"}, "SGD"),
    ("CyclicLR", {"base_lr": 0.1, "max_lr": 1, "step_size_up": 4, "mode": "exp_range", "gamma": 0.97}, "SGD"),
    (
        "CyclicLR",
        {"base_lr": 0.1, "max_lr": 0.2, "step_size_up": 4, "scale_fn": Height(0.9), "cycle_momentum": False},
        "SGD",
    ),
    (
        "CyclicLR",
        {
            "base_lr": 0.1, "max_lr": 0.2, "step_size_up": 4, "scale_fn": lambda x: 1 / (1 + x),
            "scale_mode": "iterations", "base_momentum": 0.5,
        },
        "SGD",
    ),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 60}, "SGD"),
    (
        "OneCycleLR", {"max_lr": [5, 2], "epochs": 6, "steps_per_epoch": 9, "anneal_strategy": "linear"},
        "Adam",
    ),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 55, "three_phase": True, "pct_start": 0.25}, "SGD"),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 51, "cycle_momentum": False, "div_factor": 10.0}, "SGD"),
    (sequential, {}, "SGD"),
    (sequential_from_the_second, {}, "SGD"),
    (sequential_of_sequential, {}, "SGD"),
    (chained, {}, "SGD"),
]  # fmt: skip
IDS = [f"{s if isinstance(s, str) else s.__name__} {k}" for k, (s, _, _) in enumerate(SCHEDULES)]


def make(lib: Any, number: int) -> Made:
    """An optimizer and its schedule."""
    schedule, options, kind = SCHEDULES[number]
    optimizer = optimizer_of(lib, kind)
    if not isinstance(schedule, str):
        return optimizer, schedule(lib, optimizer)
    return optimizer, getattr(lib.optim.lr_scheduler, schedule)(optimizer, **options)


def settings(optimizer: Any) -> list[Any]:
    """Rates and momenta of the groups."""
    return [[group["lr"], group.get("momentum"), group.get("betas")] for group in optimizer.param_groups]


def seen(lib: Any, number: int, epochs: int, resume_at: int = -1) -> list[Any]:
    """The settings of all epochs; with `resume_at`, the schedule is made anew there from saved states."""
    optimizer, schedule = make(lib, number)
    found = []
    for epoch in range(epochs):
        found.append(settings(optimizer))
        assert schedule.get_last_lr() == [group["lr"] for group in optimizer.param_groups]
        optimizer.step()
        schedule.step()
        if epoch == resume_at:
            states = optimizer.state_dict(), schedule.state_dict()
            optimizer, schedule = make(lib, number)
            optimizer.load_state_dict(states[0])
            schedule.load_state_dict(states[1])
    return found


@pytest.mark.parametrize("number", range(len(SCHEDULES)), ids=IDS)
def test_schedules_are_torchs_to_the_bit(number: int, answers: Any) -> None:
    ours, theirs = answers.both(seen, number, 50)
    assert ours == theirs
    assert ours == seen(kiln, number, 50, resume_at=8)


@pytest.mark.parametrize("number", range(len(SCHEDULES)), ids=IDS)
def test_states_of_torchs_go_on_here_and_ours_there(number: int) -> None:
    torch: Any = pytest.importorskip("torch")

    def after(lib: Any, steps: int) -> Made:
        optimizer, schedule = make(lib, number)
        for _ in range(steps):
            optimizer.step()
            schedule.step()
        return optimizer, schedule

    expected = seen(torch, number, 30)
    for source, target in ((torch, kiln), (kiln, torch)):
        optimizer, schedule = after(source, 9)
        groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        taken, going_on = make(target, number)
        for own, saved in zip(taken.param_groups, groups, strict=True):
            own.update(saved)
        assert list(going_on.state_dict()) == list(schedule.state_dict()), "in another order"
        going_on.load_state_dict(schedule.state_dict())
        for epoch in range(9, 30):
            assert settings(taken) == expected[epoch], (source.__name__, epoch)
            taken.step()
            going_on.step()


MEASURES = [
    1.0,
    0.9,
    0.91,
    0.9,
    0.90001,
    0.9,
    0.5,
    0.6,
    0.6,
    0.6,
    0.6,
    0.6,
    0.6,
    0.2,
    0.3,
    0.3,
    0.3,
    0.3,
    0.3,
]
PLATEAUS: list[dict[str, Any]] = [
    {"patience": 2},
    {"patience": 0, "cooldown": 2, "factor": 0.5},
    {"patience": 1, "mode": "max", "threshold": 0.05, "threshold_mode": "abs"},
    {"patience": 1, "mode": "max", "min_lr": [0.05, 0.02]},
    {"patience": 1, "threshold_mode": "abs", "threshold": 0.2, "eps": 0.04},
]


def plateau(lib: Any, options: dict[str, Any], resume_at: int = -1) -> list[Any]:
    """Rates and counts after each measure."""
    optimizer = optimizer_of(lib)
    schedule = lib.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **options)
    found = []
    for k, measure in enumerate(MEASURES):
        schedule.step(lib.tensor(measure, dtype=lib.float64) if k % 2 else measure)
        counts = schedule.best, schedule.num_bad_epochs, schedule.cooldown_counter, schedule.in_cooldown
        found.append([schedule.get_last_lr(), *counts, schedule.last_epoch])
        if k == resume_at:
            state = schedule.state_dict()
            schedule = lib.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            schedule.load_state_dict(state)
    return found


@pytest.mark.parametrize("options", PLATEAUS, ids=[str(k) for k in range(len(PLATEAUS))])
def test_plateaus_are_torchs(options: dict[str, Any], answers: Any) -> None:
    ours, theirs = answers.both(plateau, options)
    assert ours == theirs
    assert ours == plateau(kiln, options, resume_at=6)


def test_a_plateau_takes_a_group_that_is_added() -> None:
    optimizer = optimizer_of(kiln)
    schedule = kiln.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    optimizer.add_param_group({"params": [kiln.nn.Parameter(kiln.ones(1))], "lr": 1.0})
    for _ in range(2):
        schedule.step(1.0)
    assert schedule.get_last_lr() == pytest.approx([0.03, 0.01, 0.1])
    schedule = kiln.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, min_lr=[0.0] * 3)
    optimizer.add_param_group({"params": [kiln.nn.Parameter(kiln.ones(1))], "lr": 1.0})
    schedule.step(1.0)
    with pytest.raises(RuntimeError, match="min_lrs"):
        schedule.step(1.0)


CLOSED = [
    ("StepLR", {"step_size": 3}), ("MultiStepLR", {"milestones": [3, 7, 7]}), ("ConstantLR", {}),
    ("LinearLR", {}), ("ExponentialLR", {"gamma": 0.9}), ("PolynomialLR", {"total_iters": 12, "power": 2.0}),
    ("CosineAnnealingLR", {"T_max": 7}), ("CosineAnnealingWarmRestarts", {"T_0": 3, "T_mult": 2}),
    ("LambdaLR", {"lr_lambda": lambda epoch: 0.9**epoch}),
]  # fmt: skip


def jumps(lib: Any, name: str, options: dict[str, Any]) -> list[Any]:
    """The rates at epochs that are given."""
    optimizer = optimizer_of(lib)
    schedule = getattr(lib.optim.lr_scheduler, name)(optimizer, **options)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for epoch in (5, 2, 9, 0, 4.5, 11) if "Restarts" in name else (5, 2, 9, 0, 11):
            schedule.step(epoch)
            found.append(schedule.get_last_lr())
    return found


@pytest.mark.parametrize(("name", "options"), CLOSED, ids=[name for name, _ in CLOSED])
def test_any_epoch_may_be_given(name: str, options: dict[str, Any], answers: Any) -> None:
    ours, theirs = answers.both(jumps, name, options)
    assert ours == theirs


def test_a_step_says_what_is_deprecated_and_out_of_order() -> None:
    optimizer = optimizer_of(kiln)
    schedule = kiln.optim.lr_scheduler.StepLR(optimizer, 3)
    with pytest.warns(UserWarning, match=r"`lr_scheduler.step\(\)` before `optimizer.step\(\)`"):
        schedule.step()
    with pytest.warns(UserWarning, match="epoch parameter"):
        schedule.step(4)
    with pytest.warns(UserWarning, match="get_last_lr"):
        schedule.get_lr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule = kiln.optim.lr_scheduler.StepLR(optimizer, 3)
        optimizer.step()
        schedule.step()


def test_rates_that_are_tensors_are_written_in_place() -> None:
    optimizer = optimizer_of(kiln)
    rate = optimizer.param_groups[0]["lr"] = kiln.tensor(0.5)
    schedule = kiln.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.param_groups[0]["lr"] = rate
    before = schedule.get_last_lr()[0]
    schedule._step_count = 2
    schedule.step()
    assert optimizer.param_groups[0]["lr"] is rate and rate.item() == 0.25
    assert before.item() == 0.5  # a copy


REFUSED: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("LambdaLR", {"lr_lambda": [abs]}, ValueError, "Expected 2 lr_lambdas"),
    ("LambdaLR", {"lr_lambda": 3}, TypeError, "function"),
    ("StepLR", {"step_size": 3, "last_epoch": 4}, KeyError, "initial_lr"),
    ("ConstantLR", {"factor": 1.5}, ValueError, "between 0 and 1"),
    ("LinearLR", {"start_factor": 0.0}, ValueError, "greater than 0"),
    ("LinearLR", {"end_factor": -1.0}, ValueError, "between 0 and 1"),
    ("CosineAnnealingWarmRestarts", {"T_0": 0}, ValueError, "positive integer"),
    ("CosineAnnealingWarmRestarts", {"T_0": 2, "T_mult": 1.5}, ValueError, "T_mult"),
    ("CosineAnnealingWarmRestarts", {"T_0": 2, "eta_min": "a"}, ValueError, "eta_min"),
    ("CyclicLR", {"base_lr": 0.1, "max_lr": 0.2, "mode": "square"}, ValueError, "mode"),
    ("CyclicLR", {"base_lr": [0.1], "max_lr": 0.2}, ValueError, "same length"),
    ("OneCycleLR", {"max_lr": 0.1}, ValueError, "total_steps OR"),
    ("OneCycleLR", {"max_lr": 0.1, "total_steps": 0}, ValueError, "positive integer total_steps"),
    ("OneCycleLR", {"max_lr": 0.1, "total_steps": 5, "pct_start": 2.0}, ValueError, "pct_start"),
    ("OneCycleLR", {"max_lr": 0.1, "total_steps": 5, "anneal_strategy": "x"}, ValueError, "anneal_strategy"),
    ("ReduceLROnPlateau", {"factor": 1.0}, ValueError, "Factor should be"),
    ("ReduceLROnPlateau", {"mode": "up"}, ValueError, "mode up is unknown"),
    ("ReduceLROnPlateau", {"threshold_mode": "up"}, ValueError, "threshold mode up is unknown"),
    ("ReduceLROnPlateau", {"min_lr": [0.1]}, ValueError, "same length"),
    ("SequentialLR", {"schedulers": [], "milestones": []}, ValueError, "no scheduler"),
]


@pytest.mark.parametrize(
    ("name", "options", "kind", "words"), REFUSED, ids=[f"{r[0]} {k}" for k, r in enumerate(REFUSED)]
)
def test_schedules_refuse(name: str, options: dict[str, Any], kind: type[Exception], words: str) -> None:
    schedule = getattr(kiln.optim.lr_scheduler, name)
    with pytest.raises(kind, match=words):
        schedule(optimizer_of(kiln), **options)


@pytest.mark.parametrize("number", [k for k, (name, _, _) in enumerate(SCHEDULES) if isinstance(name, str)])
def test_schedules_want_an_optimizer(number: int) -> None:
    name, options, _ = SCHEDULES[number]
    with pytest.raises(TypeError, match="an Optimizer"):
        getattr(kiln.optim.lr_scheduler, name)(None, **options)
    with pytest.raises(TypeError, match="an Optimizer"):
        kiln.optim.lr_scheduler.ReduceLROnPlateau(kiln.nn.Linear(1, 1))


def test_schedules_of_schedules_refuse() -> None:
    made = kiln.optim.lr_scheduler
    optimizer, other = optimizer_of(kiln), optimizer_of(kiln)
    good = made.StepLR(optimizer, 2)
    for wrong, kind, words in (
        (made.StepLR(other, 2), ValueError, "same optimizer"),
        (made.ReduceLROnPlateau(optimizer), ValueError, "ReduceLROnPlateau"),
        (3, TypeError, "ChainedScheduler at index 1"),
    ):
        with pytest.raises(kind, match=words):
            made.ChainedScheduler([good, wrong])
    with pytest.raises(ValueError, match="1 schedulers and 2 milestones"):
        made.SequentialLR(optimizer, [good], [1, 2])
    with pytest.raises(ValueError, match="momentum"):
        plain = kiln.optim.AdamW([kiln.nn.Parameter(kiln.ones(1))])
        del plain.defaults["betas"]
        made.OneCycleLR(plain, 0.1, total_steps=5)
    schedule = made.OneCycleLR(optimizer, 0.1, total_steps=2)
    with pytest.raises(ValueError, match="total steps is 2"):
        for _ in range(3):
            optimizer.step()
            schedule.step()
