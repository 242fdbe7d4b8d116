"""Every optimizer in every combination of options beside PyTorch's: parameters and states after three steps,
gradients that flow through a step, states that go from one to the other.
"""

from __future__ import annotations

import copy
import itertools
import os
import warnings
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_torch, torch

FULL = os.environ.get("KILN_TEST_FULL") == "1"
NO, OFF = (0.0, 0.1), (False, True)
# the values of each option; every combination is asked
OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "SGD": {"lr": (0.1,), "momentum": (0, 0.9), "dampening": (0, 0.3), "weight_decay": NO, "nesterov": OFF,
            "maximize": OFF},
    "Adam": {"lr": (0.1,), "betas": ((0.8, 0.9),), "weight_decay": NO, "amsgrad": OFF, "maximize": OFF,
             "decoupled_weight_decay": OFF},
    "AdamW": {"lr": (0.1,), "eps": (1e-3,), "weight_decay": NO, "amsgrad": OFF, "maximize": OFF},
    "RMSprop": {"lr": (0.1,), "alpha": (0.8,), "weight_decay": NO, "momentum": (0, 0.9), "centered": OFF,
                "maximize": OFF},
    "Adagrad": {"lr": (0.1,), "lr_decay": (0.5,), "weight_decay": NO, "initial_accumulator_value": (0, 0.2),
                "maximize": OFF},
    "Adadelta": {"lr": (0.5,), "rho": (0.7,), "weight_decay": NO, "maximize": OFF},
    "Adamax": {"lr": (0.1,), "weight_decay": NO, "maximize": OFF},
    "NAdam": {"lr": (0.1,), "momentum_decay": (0.1,), "weight_decay": NO, "decoupled_weight_decay": OFF,
              "maximize": OFF},
    "RAdam": {"lr": (0.1,), "betas": ((0.9, 0.999), (0.5, 0.9)), "weight_decay": NO,
              "decoupled_weight_decay": OFF, "maximize": OFF},
    "Rprop": {"lr": (0.1,), "etas": ((0.4, 1.3),), "step_sizes": ((1e-6, 50), (0.08, 0.11)), "maximize": OFF},
    "ASGD": {"lr": (0.1,), "lambd": (0.2,), "t0": (1e6, 1), "weight_decay": NO, "maximize": OFF},
    "Adafactor": {"lr": (0.1,), "eps": ((None, 1e-3), (0.5, 2.0)), "d": (1.0, 1.1), "weight_decay": NO,
                  "maximize": OFF},
    "Muon": {"lr": (0.1,), "weight_decay": NO, "nesterov": OFF,
             "adjust_lr_fn": (None, "match_rms_adamw")},
}  # fmt: skip
NAMES = list(OPTIONS)
SHAPES = ((3, 4), (5,))
STEPS = 6 if FULL else 3


def combinations(name: str) -> list[dict[str, Any]]:
    """Every combination of an optimizer's options that is allowed."""
    table = OPTIONS[name]
    made = [dict(zip(table, values, strict=True)) for values in itertools.product(*table.values())]
    allowed = [
        o for o in made if not o.get("nesterov") or name == "Muon" or (o["momentum"] and not o["dampening"])
    ]
    return [o for o in allowed if not o.get("decoupled_weight_decay") or o["weight_decay"]]


def drawn(k: int, dtype: str) -> list[Any]:
    """The parameters (k = 0) or the gradients of step k: signs turn, one element is 0."""
    rng = np.random.default_rng(k)
    arrays = [rng.normal(size=shape) for shape in SHAPES]
    arrays[0][0, 0] *= k % 2
    return [a.astype(dtype) for a in arrays]


def parameters(lib: Any, name: str, dtype: str) -> list[Any]:
    made = [lib.from_numpy(a).clone().requires_grad_() for a in drawn(0, dtype)]
    return made[:1] if name == "Muon" else made


def advance(lib: Any, params: list[Any], optimizer: Any, steps: range, dtype: str) -> None:
    for k in steps:
        for p, g in zip(params, drawn(k + 1, dtype)):
            p.grad = lib.from_numpy(g).clone()
        optimizer.step()


def held(lib: Any, optimizer: Any) -> list[Any]:
    """A state: of each parameter the names, shapes, dtypes and values."""

    def told(value: Any) -> Any:
        if not isinstance(value, lib.Tensor):
            return value
        return [str(value.dtype).rpartition(".")[2], list(value.shape), np.array(value.tolist())]

    states = optimizer.state_dict()["state"]
    return [{name: told(value) for name, value in states[k].items()} for k in states]


def trained(lib: Any, name: str, dtype: str, options: list[dict[str, Any]], steps: int, program: Any) -> Any:
    """For each combination the parameters after the steps, and the state of the last one."""
    found = []
    for chosen in options:
        params = parameters(lib, name, dtype)
        optimizer = getattr(lib.optim, name)(params, **chosen)
        advance(lib, params, optimizer, range(steps), dtype)
        found.append([p.detach().numpy().copy() for p in params])
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.state_dict()["param_groups"]]
    return found, held(lib, optimizer), groups


PROGRAM = [parameters, advance, drawn, held, SHAPES]


def assert_near(ours: Any, theirs: Any, dtype: str, name: str = "", where: str = "") -> None:
    """Within rounding: a few units of the dtype; Muon's products are of bfloat16."""
    tolerance = {"float64": 1e-13, "float32": 3e-6}[dtype] if name != "Muon" else 0.02
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    assert ours.shape == theirs.shape, where
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance, err_msg=where)


def assert_states(ours: Any, theirs: Any, dtype: str) -> None:
    assert [list(s) for s in ours] == [list(s) for s in theirs]  # the names, in PyTorch's order
    for own, other in zip(ours, theirs, strict=True):
        for name, value in other.items():
            assert own[name][:2] == value[:2], name
            assert_near(own[name][2], value[2], dtype, where=name)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", NAMES)
def test_every_combination_of_options(name: str, dtype: str, answers: Any) -> None:
    options = combinations(name)
    options = options if FULL or dtype == "float64" else options[-1::-5]
    factor = 2.0**46 if name == "Muon" else 2.0**30  # PyTorch's steps round as the machine's vectors are wide
    given = (name, dtype, options, STEPS, PROGRAM)
    (ours, state, groups), (theirs, wanted, named) = answers.both(trained, *given, factor=factor)
    for chosen, own, other in zip(options, ours, theirs, strict=True):
        for p, q in zip(own, other, strict=True):
            assert_near(p, q, dtype, name, str(chosen))
    assert_states(state, wanted, dtype)
    assert groups == named


@pytest.mark.parametrize("name", NAMES)
def test_keywords_that_choose_a_form_change_no_bit(name: str) -> None:
    """`foreach`, `fused` and `capturable`, and settings that are tensors."""
    chosen = combinations(name)[-1]
    defaults = getattr(kiln.optim, name)([kiln.ones(1, 1)]).defaults
    forms = [{**chosen, key: True} for key in ("foreach", "fused", "capturable") if key in defaults]
    forms += [{**chosen, "lr": kiln.tensor(chosen["lr"], dtype=kiln.float64)}]
    if "betas" in chosen:
        forms += [{**chosen, "betas": tuple(kiln.tensor([b], dtype=kiln.float64) for b in chosen["betas"])}]
    expected = trained(kiln, name, "float64", [chosen], 2, PROGRAM)[0]
    for form in forms:
        got = trained(kiln, name, "float64", [form], 2, PROGRAM)[0]
        assert all((p == q).all() for p, q in zip(got[0], expected[0], strict=True)), form


# ---- gradients through a step ----

DIFFERENTIABLE = [n for n in NAMES if n not in ("Adafactor", "Muon")]


def stepped(lib: Any, name: str, options: dict[str, Any], inputs: list[list[Any]]) -> Any:
    """The sum of squares of the parameters, the first of `inputs`, after steps along the others."""
    params = [p.clone() for p in inputs[0]]
    optimizer = getattr(lib.optim, name)(params, differentiable=True, **options)
    for grads in inputs[1:]:
        for p, g in zip(params, grads):
            p.grad = g
        optimizer.step()
    return sum((p * p).sum() for p in params)


def through(lib: Any, name: str, options: dict[str, Any], steps: int, program: Any) -> list[Any]:
    """The gradients of that to the parameters, the gradients, and the rate where it may be a tensor."""
    inputs = [
        [lib.from_numpy(a).clone().requires_grad_() for a in drawn(k, "float64")] for k in range(steps + 1)
    ]
    chosen = dict(options)
    if name in ("SGD", "Adam", "AdamW"):
        chosen["lr"] = lib.tensor(options["lr"], dtype=lib.float64, requires_grad=True)
    stepped(lib, name, chosen, inputs).backward()
    leaves = [x for group in inputs for x in group] + [chosen["lr"]] * (name in ("SGD", "Adam", "AdamW"))
    return [np.zeros(tuple(x.shape)) if x.grad is None else x.grad.numpy() for x in leaves]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_gradients_flow_through_a_step(name: str, answers: Any) -> None:
    # PyTorch computes bias corrections in float32 there; from 1 - 0.999 little is left
    rough = 5e-4 if name in ("Adam", "AdamW", "NAdam") else 1e-10
    for chosen in combinations(name)[:: 1 if FULL else -7]:
        if chosen.get("momentum") and name == "SGD":
            continue  # whose first buffer is detached in PyTorch: see the next test
        program = [drawn, stepped, SHAPES]
        ours, theirs = answers.both(through, name, chosen, 1, program, factor=2.0**12)
        for own, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(own, other, rtol=rough, atol=rough, err_msg=str(chosen))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_flow_through_several_steps(name: str) -> None:
    """Against differences along a direction; PyTorch's steps are not made for more than one."""
    chosen = combinations(name)[-1]
    ways = [drawn(k + 20, "float64") for k in range(4)]

    def at(length: float) -> float:
        inputs = [
            [kiln.from_numpy(a + length * w).clone() for a, w in zip(drawn(k, "float64"), ways[k])]
            for k in range(4)
        ]
        return float(stepped(kiln, name, chosen, inputs).item())

    slopes = through(kiln, name, chosen, 3, None)
    expected = sum((s * w).sum() for s, w in zip(slopes, itertools.chain.from_iterable(ways)))
    assert (at(1e-5) - at(-1e-5)) / 2e-5 == pytest.approx(expected, rel=1e-5)


def test_a_rate_is_learned_through_steps() -> None:
    """Meta-learning: the rate whose two steps bring a parabola lowest, by its gradient."""
    rate = kiln.tensor(0.1, requires_grad=True)
    for _ in range(40):
        p = kiln.tensor([3.0, -2.0], requires_grad=True).clone()
        optimizer = kiln.optim.SGD([p], lr=rate, differentiable=True)
        for _ in range(2):
            p.grad = 2 * p.detach() + 0 * p
            p.grad = kiln.autograd.grad((p * p).sum(), p, create_graph=True)[0]
            optimizer.step()
        loss = (p * p).sum()
        (slope,) = kiln.autograd.grad(loss, rate)
        with kiln.no_grad():
            rate -= 0.01 * slope
    assert loss.item() < 1e-3 and rate.item() == pytest.approx(0.5, abs=0.1)


# ---- states that go both ways ----

# their float32 counts are float64 after a load, in PyTorch too
LOADED = {"NAdam": "float32", "ASGD": "float32"}


def saved(lib: Any, name: str, options: dict[str, Any], program: Any) -> Any:
    """A state after two steps with its groups and parameters, and the parameters after two more."""
    params = parameters(lib, name, "float64")
    optimizer = getattr(lib.optim, name)(params, **options)
    advance(lib, params, optimizer, range(2), "float64")
    state, groups = held(lib, optimizer), optimizer.state_dict()["param_groups"]
    before = [p.detach().numpy().copy() for p in params]
    advance(lib, params, optimizer, range(2, 4), "float64")
    return state, groups, before, [p.detach().numpy().copy() for p in params]


def resumed(lib: Any, name: str, state: Any, groups: Any, before: Any) -> list[Any]:
    """The parameters two steps after a state was loaded."""
    params = parameters(lib, name, "float64")
    with lib.no_grad():
        for p, value in zip(params, before, strict=True):
            p.copy_(lib.from_numpy(value))
    optimizer = getattr(lib.optim, name)(params)

    def back(value: Any) -> Any:
        return lib.tensor(value[2], dtype=getattr(lib, value[0])) if isinstance(value, list) else value

    loaded = {k: {n: back(v) for n, v in s.items()} for k, s in enumerate(state)}
    optimizer.load_state_dict({"state": loaded, "param_groups": groups})
    advance(lib, params, optimizer, range(2, 4), "float64")
    return [p.detach().numpy() for p in params]


@pytest.mark.parametrize("name", NAMES)
def test_states_of_torchs_go_on_here(name: str, answers: Any) -> None:
    chosen = combinations(name)[-1]
    state, groups, before, after = answers(
        [saved, name, chosen, PROGRAM], lambda: saved(torch, name, chosen, PROGRAM), 2.0**46
    )
    for own, other in zip(resumed(kiln, name, state, groups, before), after, strict=True):
        assert_near(own, other, LOADED.get(name, "float64"), name)


@needs_torch
@pytest.mark.parametrize("name", NAMES)
def test_states_of_ours_go_on_there(name: str) -> None:
    state, groups, before, after = saved(kiln, name, combinations(name)[-1], PROGRAM)
    for own, other in zip(after, resumed(torch, name, state, groups, before), strict=True):
        assert_near(own, other, LOADED.get(name, "float64"), name)


@pytest.mark.parametrize("name", NAMES)
def test_copies_are_independent_and_go_on_alike(name: str) -> None:
    """A deep copy of optimizer and parameters makes the same steps, and its groups and state are its own."""
    params = parameters(kiln, name, "float64")
    optimizer = getattr(kiln.optim, name)(params, **combinations(name)[-1])
    advance(kiln, params, optimizer, range(2), "float64")
    other = copy.deepcopy(optimizer)
    copies = other.param_groups[0]["params"]
    before = [p.tolist() for p in params]
    advance(kiln, copies, other, range(2, 3), "float64")
    assert [p.tolist() for p in params] == before
    advance(kiln, params, optimizer, range(2, 3), "float64")
    assert [p.tolist() for p in params] == [p.tolist() for p in copies]
    other.param_groups[0]["lr"] = 7.0
    assert optimizer.param_groups[0]["lr"] != 7.0 and vars(other).keys() == vars(optimizer).keys()


def minimized(name: str, compiled: bool) -> list[Any]:
    """Four losses, the parameters and the state of a program that is compiled or not."""
    params = parameters(kiln, name, "float32")
    optimizer = getattr(kiln.optim, name)(params)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = sum(((p + 0.1) ** 2).sum() for p in params)
        loss.backward()
        return loss

    def whole() -> Any:
        if name == "LBFGS":
            return optimizer.step(closure)
        loss = closure()
        optimizer.step()
        return loss

    run = kiln.compile(whole, wait=True) if compiled else whole
    found = [[run().item() for _ in range(4)], [p.tolist() for p in params], held(kiln, optimizer)]
    if compiled and name != "LBFGS":  # which reads values
        assert run.stats()["programs"] == 1, run.explain()  # the first step is recorded as the others
    return found


@pytest.mark.parametrize("name", [*NAMES, "LBFGS"])
def test_a_recorded_step_is_the_eager_one(name: str) -> None:
    """The first step makes the state, the later ones only count: all inside a compiled function."""
    assert repr(minimized(name, False)) == repr(minimized(name, True))


@pytest.mark.parametrize("options", [{}, {"line_search_fn": "strong_wolfe"}, {"max_iter": 1}], ids=repr)
def test_what_lbfgs_keeps_is_saved_in_pytorch_s_order(options: dict[str, Any], answers: Any) -> None:
    def kept(backend: Any) -> list[list[str]]:
        param = backend.ones(2, requires_grad=True)
        optimizer = backend.optim.LBFGS([param], **options)
        found = []
        for _ in range(3):

            def closure() -> Any:
                optimizer.zero_grad()
                loss = ((param - 3) ** 4).sum()
                loss.backward()
                return loss

            optimizer.step(closure)
            found.append(list(optimizer.state_dict()["state"][0]))
        return found

    ours, theirs = answers.both(kept)
    assert ours == theirs


def test_empty_and_zero_dimensional_parameters_step() -> None:
    for name in NAMES:
        if name == "Muon":
            continue
        for shape in ((0,), (0, 3), ()):
            p = kiln.ones(shape, requires_grad=True)
            p.grad = kiln.ones(shape)
            optimizer = getattr(kiln.optim, name)([p])
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                optimizer.step()
            assert p.shape == shape and p.isfinite().all(), (name, shape)
            assert shape or p.item() != 1.0
