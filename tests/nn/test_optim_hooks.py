"""What programs do with optimizers besides stepping: hooks, subclasses of their own, states, groups, L-BFGS,
averages of weights.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np
import pytest
from backend import kiln

from kiln.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
    required,
)


def parameter(*values: float, grad: float | None = 1.0, dtype: Any = None) -> Any:
    p = kiln.nn.Parameter(kiln.tensor(values or (1.0, 2.0), dtype=dtype or kiln.float32))
    if grad is not None:
        p.grad = kiln.full_like(p.detach(), grad)
    return p


class Descent(Optimizer):
    """As programs written for PyTorch have it."""

    def __init__(self, params: Any, lr: Any = required) -> None:
        super().__init__(params, {"lr": lr})
        self.seen: list[Any] = []

    def step(self, closure: Any = None, scale: float = 1.0) -> Any:
        self.seen.append(scale)
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["mean"] = kiln.zeros_like(p.data)
                state["step"] += 1
                state["mean"].mul_(0.5).add_(p.grad.data, alpha=0.5)
                p.data.add_(state["mean"], alpha=-group["lr"] * scale)
        return loss


# ---- hooks ----


def test_hooks_of_steps_in_their_order() -> None:
    seen: list[str] = []

    def note(what: str) -> Any:
        return lambda optimizer, args, kwargs: seen.append(what)

    for make in (Descent, kiln.optim.SGD, kiln.optim.Adam):
        seen.clear()
        optimizer = make([parameter()], lr=0.1)
        handles = [
            register_optimizer_step_post_hook(note("all after")),
            optimizer.register_step_post_hook(note("after")),
            optimizer.register_step_pre_hook(note("before")),
            register_optimizer_step_pre_hook(note("all before")),
        ]
        optimizer.step(lambda: seen.append("step"))
        assert seen == ["all before", "before", "step", "after", "all after"]
        for handle in handles:
            handle.remove()
        optimizer.step()
        assert len(seen) == 5


def test_a_hook_changes_what_a_step_is_called_with() -> None:
    optimizer = Descent([parameter()], lr=0.1)
    optimizer.register_step_pre_hook(lambda own, args, kwargs: (args, {**kwargs, "scale": 0.0}))
    optimizer.step()
    assert optimizer.seen == [0.0] and optimizer.param_groups[0]["params"][0].tolist() == [1.0, 2.0]
    optimizer.register_step_pre_hook(lambda own, args, kwargs: 3)
    with pytest.raises(RuntimeError, match=r"must return None or a tuple of \(new_args, new_kwargs\)"):
        optimizer.step()


def test_a_class_is_hooked_once() -> None:
    class Wrapped(kiln.optim.Adam):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    counts = [0]
    made = [Wrapped([parameter()]) for _ in range(3)]
    for optimizer in made:
        optimizer.register_step_post_hook(lambda *given: counts.__setitem__(0, counts[0] + 1))
        optimizer.step()
    assert counts == [6]  # of its own step and of Adam's, as in PyTorch
    assert Wrapped.step.hooked and Optimizer.profile_hook_step is not None


def test_hooks_of_states() -> None:
    optimizer = kiln.optim.SGD([parameter()], lr=0.1)
    seen: list[Any] = []
    optimizer.register_state_dict_pre_hook(lambda own: seen.append("second"))
    optimizer.register_state_dict_pre_hook(lambda own: seen.append("first"), prepend=True)
    optimizer.register_state_dict_post_hook(lambda own, made: {**made, "more": 1})
    optimizer.register_load_state_dict_pre_hook(lambda own, made: seen.append(made.pop("more")))
    optimizer.register_load_state_dict_post_hook(lambda own: seen.append(own is optimizer))
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    assert seen == ["first", "second", 1, True] and state["more"] == 1
    handle = optimizer.register_load_state_dict_pre_hook(
        lambda own, made: {**made, "param_groups": [{**made["param_groups"][0], "lr": 9.0}]}
    )
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 9.0
    handle.remove()


# ---- subclasses ----


def test_an_adam_of_a_users_own_makes_its_state_at_its_first_step() -> None:
    class Own(kiln.optim.Adam):
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                beta1, _ = group["betas"]
                for p in group["params"]:
                    state = self.state[p]
                    if len(state) == 0:
                        state["step"] = 0
                        state["exp_avg"] = kiln.zeros_like(p.data)
                    state["step"] += 1
                    state["exp_avg"].mul_(beta1).add_(p.grad, alpha=1 - beta1)
                    p.data.add_(state["exp_avg"], alpha=-group["lr"])

    p = parameter()
    optimizer = Own([p], lr=0.5)
    assert not optimizer.state and len(optimizer.state[p]) == 0
    optimizer.step()
    assert optimizer.state[p]["step"] == 1 and p.tolist() == pytest.approx([0.95, 1.95])
    other = Own([parameter()])
    other.load_state_dict(optimizer.state_dict())
    assert other.state_dict()["state"][0]["step"] == 1


def test_a_setting_without_default_is_asked_for() -> None:
    with pytest.raises(ValueError, match="didn't specify a value of required optimization parameter lr"):
        Descent([parameter()])
    optimizer = Descent([{"params": [parameter()], "lr": 0.1}])
    assert repr(required) == "<required parameter>" and optimizer.param_groups[0]["lr"] == 0.1
    with pytest.raises(NotImplementedError):
        Optimizer([parameter()], {}).step()


def test_groups_are_shown_with_a_line_between() -> None:
    shown = repr(Descent([{"params": [parameter()], "lr": rate} for rate in (0.1, 0.2)]))
    assert shown == "Descent (\nParameter Group 0\n    lr: 0.1\n\nParameter Group 1\n    lr: 0.2\n)"


def test_a_gradient_is_passed_on_under_its_other_name() -> None:
    """Workers that share parameters hand them their own gradients: `shared._grad = own.grad`."""
    shared, own = parameter(1.0, grad=None), parameter(1.0, grad=3.0)
    shared._grad = own.grad
    assert shared.grad is own.grad and shared._grad is own.grad
    kiln.optim.SGD([shared], lr=0.5).step()
    assert shared.item() == -0.5


# ---- groups and states ----


def test_names_go_along() -> None:
    net = kiln.nn.Linear(2, 1)
    optimizer = kiln.optim.Adam(net.named_parameters())
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]
    plain = kiln.optim.Adam(net.parameters())
    plain.load_state_dict(optimizer.state_dict())
    assert plain.param_groups[0]["param_names"] == ["weight", "bias"]
    optimizer.load_state_dict(kiln.optim.Adam(net.parameters()).state_dict())
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    with pytest.raises(ValueError, match="Some param names are missing"):
        kiln.optim.Adam([("weight", net.weight), net.bias])
    with pytest.raises(ValueError, match="cannot add param group without names"):
        optimizer.add_param_group({"params": [parameter()]})


def test_a_dict_becomes_the_group_and_keeps_what_else_it_holds() -> None:
    group = {"params": parameter(), "name": "head", "lr": 0.5}
    optimizer = kiln.optim.SGD([group], lr=0.1)
    assert optimizer.param_groups[0] is group and group["momentum"] == 0
    other = kiln.optim.SGD([parameter()], lr=0.1)
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["name"] == "head" and other.param_groups[0]["lr"] == 0.5


def test_a_parameter_twice_in_a_group_warns() -> None:
    p = parameter()
    with pytest.warns(UserWarning, match="a parameter group with duplicate parameters"):
        optimizer = kiln.optim.SGD([p, p], lr=0.25)
    optimizer.step()
    assert p.tolist() == [0.5, 1.5]


def test_loaded_tensors_take_the_parameters_dtype_and_counts_keep_theirs() -> None:
    optimizer = kiln.optim.Adam([parameter(dtype=kiln.float64)], amsgrad=True)
    optimizer.step()
    state = optimizer.state_dict()
    p = parameter()
    other = kiln.optim.Adam([p])
    other.load_state_dict(state)
    own = other.state[p]
    assert {name: value.dtype for name, value in own.items()} == dict.fromkeys(own, kiln.float32)
    assert state["state"][0]["exp_avg"].dtype == kiln.float64
    other.step()
    assert own["step"].item() == 2.0 and state["state"][0]["step"].item() == 1.0


def test_older_states_load() -> None:
    p = parameter()
    optimizer = kiln.optim.AdamW([p])
    optimizer.step()
    state = optimizer.state_dict()
    state["state"] = {0: {**state["state"][0], "step": 1}}  # before counts were tensors
    group = state["param_groups"][0]
    for name in ("maximize", "foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay"):
        del group[name]
    other = kiln.optim.AdamW([parameter()])
    other.load_state_dict(state)
    other.step()
    assert other.state_dict()["state"][0]["step"].item() == 2.0
    assert other.param_groups[0]["decoupled_weight_decay"] is True


def test_counts_may_be_read_and_written() -> None:
    p = parameter()
    optimizer = kiln.optim.Adam([p])
    optimizer.step()
    count = optimizer.state[p]["step"]
    assert count.shape == () and count.dtype == kiln.float32
    count.fill_(9.0)
    optimizer.step()
    assert count.item() == 10.0 and optimizer.state[p]["step"] is count
    optimizer.state[p]["step"] = kiln.tensor(4)
    optimizer.step()
    assert optimizer.state[p]["step"].item() == 5.0


def test_settings_switched_on_between_steps() -> None:
    for name, change, made in (
        ("SGD", {"momentum": 0.5}, "momentum_buffer"), ("Adam", {"amsgrad": True}, "max_exp_avg_sq"),
        ("RMSprop", {"momentum": 0.5, "centered": True}, "grad_avg"),
    ):  # fmt: skip
        p = parameter()
        optimizer = getattr(kiln.optim, name)([p], lr=0.1)
        optimizer.step()
        optimizer.param_groups[0].update(change)
        optimizer.step()
        assert made in optimizer.state[p] and p.isfinite().all()


def test_zeroed_gradients_are_cut_from_their_history() -> None:
    p = parameter()
    p.grad = None
    (p**3).sum().backward(create_graph=True)
    optimizer = kiln.optim.SGD([p], lr=0.1)
    optimizer.zero_grad(set_to_none=False)
    assert p.grad.tolist() == [0.0, 0.0] and not p.grad.requires_grad
    assert kiln.optim.SGD([parameter(grad=None)], lr=0.1).step() is None


@pytest.mark.parametrize(
    ("name", "given", "kind", "words"),
    [
        ("SGD", {"fused": True, "differentiable": True}, RuntimeError, "`fused` does not support `differ"),
        ("Adam", {"fused": True, "foreach": True}, RuntimeError, "`fused` and `foreach` cannot be `True`"),
        ("Adagrad", {"fused": True, "differentiable": True}, RuntimeError, "`fused` does not support"),
        ("Adam", {"lr": [0.1], "foreach": True}, ValueError, "lr as a Tensor is not supported for captura"),
        ("Adam", {"lr": [0.1, 0.2]}, ValueError, "Tensor lr must be 1-element"),
        ("Adam", {"betas": (0.5, [0.5])}, ValueError, "betas must be either both floats or both Tensors"),
        ("Adam", {"betas": ([0.5, 0.5], [0.5])}, ValueError, r"Tensor betas\[0\] must be 1-element"),
        ("Adam", {"weight_decay": -1.0}, ValueError, "Invalid weight_decay value: -1.0"),
        ("RMSprop", {"momentum": -1.0}, ValueError, "Invalid momentum value: -1.0"),
        ("Adadelta", {"rho": 1.1}, ValueError, "Invalid rho value: 1.1"),
        ("Adagrad", {"lr_decay": -0.5}, ValueError, "Invalid lr_decay value: -0.5"),
        ("NAdam", {"momentum_decay": -0.2}, ValueError, "Invalid momentum_decay value: -0.2"),
        ("Rprop", {"etas": (1.0, 0.5)}, ValueError, "Invalid eta values: 1.0, 0.5"),
        ("Adamax", {"betas": (0.0, 1.0)}, ValueError, "Invalid beta parameter at index 1: 1.0"),
        ("Adafactor", {"d": 0.5}, ValueError, "Clipping threshold d should be >= 1 but is: 0.5"),
        ("Adafactor", {"beta2_decay": 0.8}, ValueError, "beta2_decay should be <= 0 but is: 0.8"),
        ("Muon", {}, ValueError, "Muon only supports 2D parameters"),
        ("Muon", {"adjust_lr_fn": "no"}, ValueError, "Adjust learning rate function no is not supported"),
        ("LBFGS", {"lr": -1}, ValueError, "Invalid learning rate: -1"),
    ],
)  # fmt: skip
def test_constructors_refuse(name: str, given: Any, kind: type[Exception], words: str) -> None:
    def made(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(made, value))
        return kiln.tensor(value) if isinstance(value, list) else value

    with pytest.raises(kind, match=words):
        getattr(kiln.optim, name)([parameter()], **{k: made(v) for k, v in given.items()})


def test_lists_of_tensors_do_not_differentiate() -> None:
    optimizer = kiln.optim.SGD([parameter().detach()], lr=0.1, foreach=True, differentiable=True)
    with pytest.raises(AssertionError, match="_foreach ops don't support autograd"):
        optimizer.step()


def test_modules_have_pytorchs_paths() -> None:
    for file, name in (
        ("adam", "Adam"), ("adamw", "AdamW"), ("sgd", "SGD"), ("rmsprop", "RMSprop"), ("adagrad", "Adagrad"),
        ("adadelta", "Adadelta"), ("adamax", "Adamax"), ("nadam", "NAdam"), ("radam", "RAdam"),
        ("rprop", "Rprop"), ("asgd", "ASGD"), ("lbfgs", "LBFGS"), ("_adafactor", "Adafactor"),
        ("_muon", "Muon"), ("optimizer", "Optimizer"), ("swa_utils", "AveragedModel"),
        ("lr_scheduler", "LRScheduler"),
    ):  # fmt: skip
        found = getattr(importlib.import_module(f"kiln.optim.{file}"), name)
        assert found is getattr(kiln.optim, name, found)


def test_a_schedule_wraps_the_step_that_an_object_has() -> None:
    optimizer = kiln.optim.SGD([parameter()], lr=0.1)
    calls: list[Any] = []
    optimizer.step = lambda *given: calls.append(given)
    schedule = kiln.optim.lr_scheduler.StepLR(optimizer, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
        schedule.step()
    assert calls == [()]


def test_schedules_write_rates_that_are_tensors() -> None:
    p = parameter()
    rate = kiln.tensor(0.5)
    optimizer = kiln.optim.SGD([p], lr=rate)
    schedule = kiln.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(2):
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["lr"] is rate and rate.item() == 0.125
    assert p.tolist() == [0.25, 1.25]


# ---- L-BFGS ----

FORMS = [
    {"line_search_fn": "strong_wolfe"},
    {"line_search_fn": "strong_wolfe", "history_size": 3, "max_iter": 7, "max_eval": 9},
    {"lr": 0.02, "history_size": 2, "max_iter": 5},
]


def valley(lib: Any, options: dict[str, Any], steps: int) -> Any:
    """Losses, calls, iterations and parameters of Rosenbrock's function in four dims."""
    x = lib.tensor([-1.2, 1.0, 0.3, 0.2], dtype=lib.float64, requires_grad=True)
    y = lib.tensor([[0.5], [0.2]], dtype=lib.float64, requires_grad=True)
    unused = lib.zeros(2, dtype=lib.float64, requires_grad=True)
    optimizer = lib.optim.LBFGS([x, y, unused], **options)
    calls = 0

    def closure() -> Any:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum() + (y * y).sum()
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(steps)]
    state = optimizer.state_dict()["state"][0]
    numbers = [calls, state["func_evals"], state["n_iter"], sorted(state)]
    return np.array(losses), numbers, np.array(x.tolist()), np.array(y.tolist())


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_lbfgs_is_torchs(options: dict[str, Any], answers: Any) -> None:
    ours, theirs = answers.both(valley, options, 2, factor=2.0**24)
    assert ours[1] == theirs[1]
    for k in (0, 2, 3):
        np.testing.assert_allclose(ours[k], theirs[k], rtol=1e-9, atol=1e-11)


def test_lbfgs_reaches_the_minimum_and_goes_on_from_a_state() -> None:
    p = parameter(-1.0, 2.0, grad=None, dtype=kiln.float64)
    optimizer = kiln.optim.LBFGS([p], line_search_fn="strong_wolfe", max_iter=4)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = ((p - 3.0) ** 2 + 0.1 * (p - 3.0) ** 4).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    state = optimizer.state_dict()
    optimizer = kiln.optim.LBFGS([p], line_search_fn="strong_wolfe")
    optimizer.load_state_dict(state)
    assert optimizer.state[p]["n_iter"] == 4
    first = optimizer.step(closure)
    assert isinstance(first, kiln.Tensor) and first.requires_grad and closure().item() < 1e-6
    with pytest.raises(TypeError):
        optimizer.step()
    with pytest.raises(ValueError, match="LBFGS doesn't support per-parameter options"):
        kiln.optim.LBFGS([{"params": parameter()}, {"params": parameter()}])
    with pytest.raises(RuntimeError, match="only 'strong_wolfe' is supported"):
        kiln.optim.LBFGS([p], line_search_fn="armijo").step(lambda: closure() + 1.0)


# ---- averages of weights ----


def averaged(lib: Any, kind: str, buffers: bool) -> Any:
    """What an average holds after each of four models, and the rates of its schedule."""
    swa = lib.optim.swa_utils
    functions = {
        "mean": {}, "ema": {"avg_fn": swa.get_ema_avg_fn(0.75)}, "swa": {"avg_fn": swa.get_swa_avg_fn()},
        "ema of lists": {"multi_avg_fn": swa.get_ema_multi_avg_fn(0.75)},
        "swa of lists": {"multi_avg_fn": swa.get_swa_multi_avg_fn()},
    }  # fmt: skip
    net = lib.nn.Sequential(lib.nn.Linear(2, 2), lib.nn.BatchNorm1d(2)).double()
    model = swa.AveragedModel(net, use_buffers=buffers, **functions[kind])
    found = []
    for k in range(4):
        with lib.no_grad():
            for n, x in enumerate([*net.parameters(), *net.buffers()]):
                x.fill_((n + 1) * (k + 1) ** 2)
        model.update_parameters(net)
        found.append([np.array(x.tolist(), np.float64) for x in model.state_dict().values()])
    return found, list(model.state_dict())


AVERAGES = [(kind, buffers) for kind in ("mean", "ema", "swa", "ema of lists") for buffers in (False, True)]


@pytest.mark.parametrize(("kind", "buffers"), [*AVERAGES, ("swa of lists", False)])
def test_averages_are_torchs(kind: str, buffers: bool, answers: Any) -> None:
    (ours, names), (theirs, wanted) = answers.both(averaged, kind, buffers, factor=16.0)
    assert names == wanted
    rough = 1e-7 if kind == "swa of lists" else 1e-13  # PyTorch divides by a count in float32 there
    for own, other in zip(ours, theirs, strict=True):
        for x, y in zip(own, other, strict=True):
            np.testing.assert_allclose(x, y, rtol=rough)


def annealed(lib: Any, options: dict[str, Any]) -> Any:
    p, q = (lib.nn.Parameter(lib.ones(1)) for _ in "pq")
    optimizer = lib.optim.SGD([{"params": [p]}, {"params": [q], "lr": 0.5}], lr=0.1)
    schedule = lib.optim.swa_utils.SWALR(optimizer, **options)
    rates = []
    for _ in range(8):
        optimizer.step()
        schedule.step()
        rates.append(schedule.get_last_lr())
    return np.array(rates)


@pytest.mark.parametrize(
    "options",
    [
        {"swa_lr": 0.05}, {"swa_lr": [0.05, 0.2], "anneal_epochs": 4, "anneal_strategy": "linear"},
        {"swa_lr": 0.05, "anneal_epochs": 0},
    ],
    ids=str,
)  # fmt: skip
def test_its_rates_are_torchs(options: dict[str, Any], answers: Any) -> None:
    ours, theirs = answers.both(annealed, options)
    np.testing.assert_allclose(ours, theirs, rtol=1e-14)


def test_averages_refuse_and_batch_norms_are_counted_anew() -> None:
    swa = kiln.optim.swa_utils
    net = kiln.nn.Sequential(kiln.nn.BatchNorm1d(2, momentum=0.3))
    net.eval()
    batches = [(kiln.tensor([[0.0, 2.0], [2.0, 2.0]]), 0), [kiln.tensor([[4.0, 4.0], [6.0, 4.0]]), 1]]
    swa.update_bn(batches, net)
    assert net[0].running_mean.tolist() == [3.0, 3.0] and net[0].momentum == 0.3 and not net.training
    swa.update_bn(batches, kiln.nn.Linear(2, 2))  # has none, so the loader is not read
    with pytest.raises(AssertionError, match="Only one of avg_fn and multi_avg_fn"):
        swa.AveragedModel(net, avg_fn=swa.get_swa_avg_fn(), multi_avg_fn=swa.get_swa_multi_avg_fn())
    with pytest.raises(ValueError, match="Invalid decay value 2"):
        swa.get_ema_multi_avg_fn(2.0)
    optimizer = kiln.optim.SGD([parameter()], lr=0.1)
    with pytest.raises(ValueError, match="anneal_strategy must be one of"):
        swa.SWALR(optimizer, 0.1, anneal_strategy="steps")
    with pytest.raises(ValueError, match="anneal_epochs must be equal or greater than 0"):
        swa.SWALR(optimizer, 0.1, anneal_epochs=-1)
    with pytest.raises(ValueError, match="same length"):
        swa.SWALR(optimizer, [0.1, 0.2])
