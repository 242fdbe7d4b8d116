"""Optimizers and schedules, step by step against PyTorch's."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from backend import kiln, torch

START = [[0.5, -1.25, 2.0], [0.0, 3.5, -0.75]]
OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.05, "momentum": 0.9}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.02}),
    ("SGD", {"lr": 0.05, "momentum": 0.8, "nesterov": True, "weight_decay": 0.02}),
    ("SGD", {"lr": 0.05, "momentum": 0.8, "maximize": True}),
    ("Adam", {}),
    ("Adam", {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6}),
    ("Adam", {"lr": 0.05, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.05, "amsgrad": True, "maximize": True}),
    ("AdamW", {}),
    ("AdamW", {"lr": 0.05, "weight_decay": 0.2, "amsgrad": True}),
]


def loss_of(lib: Any, p: Any, q: Any, k: int) -> Any:
    """A loss whose gradients change sign and size from step to step."""
    return ((p * (k % 5 - 2.5)).tanh() * p).sum() + (q * q * 0.5 * (k + 1)).sum() + (p.sum() * q).sum()


def parameters(lib: Any, dtype: str = "float64") -> list[Any]:
    made = [lib.tensor(START, dtype=getattr(lib, dtype)), lib.tensor([1.0, -2.0], dtype=getattr(lib, dtype))]
    return [p.requires_grad_() for p in made]


def train(lib: Any, params: list[Any], optimizer: Any, steps: range) -> list[float]:
    losses = []
    for k in steps:
        optimizer.zero_grad()
        loss = loss_of(lib, *params, k)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def assert_close(got: list[Any], expected: list[Any], tolerance: float = 1e-12) -> None:
    for g, e in zip(got, expected, strict=True):
        assert g.shape == e.shape
        assert g.numpy().ravel().tolist() == pytest.approx(
            e.numpy().ravel().tolist(), rel=tolerance, abs=1e-14
        )


def trained(
    lib: Any, name: str, options: dict[str, Any], steps: range, dtype: str, program: list[Any]
) -> tuple[Any, Any]:
    """Parameters after the steps, and the losses as an array. `program`: what is run, for its text."""
    params = parameters(lib, dtype)
    losses = train(lib, params, getattr(lib.optim, name)(params, **options), steps)
    return params, np.array(losses)


PROGRAM = [loss_of, parameters, train, START]


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS, ids=str)
def test_follows_torch(name: str, options: dict[str, Any], answers: Any) -> None:
    (ours, losses), (theirs, wanted) = answers.both(trained, name, options, range(25), "float64", PROGRAM)
    assert losses.tolist() == pytest.approx(wanted.tolist(), rel=1e-11)
    assert_close(ours, theirs, 1e-11)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_float32_stays_close(name: str, answers: Any) -> None:
    of_lists = 2.0**29  # of float32, told as float64: PyTorch's steps round as the machine's vectors are wide
    given = name, {"lr": 0.01}, range(20), "float32", PROGRAM
    (ours, _), (theirs, _) = answers.both(trained, *given, factor=4 * of_lists)
    assert_close(ours, theirs, tolerance=1e-5)


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS, ids=str)
def test_resumes_from_a_saved_state(name: str, options: dict[str, Any]) -> None:
    whole = parameters(kiln)
    train(kiln, whole, getattr(kiln.optim, name)(whole, **options), range(12))
    params = parameters(kiln)
    first = getattr(kiln.optim, name)(params, **options)
    train(kiln, params, first, range(6))
    file = io.BytesIO()
    kiln.save(first.state_dict(), file)
    file.seek(0)
    second = getattr(kiln.optim, name)(params, lr=123.0)
    second.load_state_dict(kiln.load(file))
    train(kiln, params, second, range(6, 12))
    assert [p.tolist() for p in params] == [p.tolist() for p in whole]


def test_a_dict_that_is_no_state_dict_is_told_by_the_key() -> None:
    optimizer = kiln.optim.SGD([kiln.nn.Parameter(kiln.ones(1))], lr=0.1)
    for given, key in (({}, "param_groups"), ({"param_groups": []}, "state")):
        with pytest.raises(KeyError, match=f"^'{key}'$"):
            optimizer.load_state_dict(given)


def test_state_dict_has_torchs_layout(answers: Any) -> None:
    def layout(lib: Any, program: list[Any]) -> Any:
        params = parameters(lib)
        optimizer = lib.optim.Adam(params)
        train(lib, params, optimizer, range(2))
        state = optimizer.state_dict()
        assert state["state"][0]["step"] == 2
        return {n: sorted(s) for n, s in state["state"].items()}, state["param_groups"][0]["params"]

    ours, theirs = answers.both(layout, PROGRAM)
    assert ours == theirs


def saved(lib: Any, program: list[Any]) -> Any:
    """What Adam holds after five steps and the parameters, as arrays; the losses of four more steps."""
    params = parameters(lib)
    optimizer = lib.optim.Adam(params, lr=0.03)
    train(lib, params, optimizer, range(5))
    state = optimizer.state_dict()
    entries = {n: {k: np.array(float(v) if k == "step" else v.tolist()) for k, v in values.items()}
               for n, values in state["state"].items()}  # fmt: skip
    held = [np.array(p.tolist()) for p in params]
    return entries, state["param_groups"], held, np.array(train(lib, params, optimizer, range(5, 9)))


def test_loads_a_state_that_torch_saved(answers: Any) -> None:
    entries, groups, held, losses = answers([saved, PROGRAM], lambda: saved(torch, PROGRAM))
    ours = parameters(kiln)
    own = kiln.optim.Adam(ours)
    state = {n: {k: kiln.tensor(v, dtype=kiln.float64) for k, v in values.items()}
             for n, values in entries.items()}  # fmt: skip
    own.load_state_dict({"state": state, "param_groups": groups})
    with kiln.no_grad():
        for p, q in zip(ours, held, strict=True):
            p.copy_(kiln.tensor(q))
    assert train(kiln, ours, own, range(5, 9)) == pytest.approx(losses.tolist(), rel=1e-11)


def test_loading_checks_before_it_changes() -> None:
    params = parameters(kiln)
    optimizer = kiln.optim.Adam(params)
    train(kiln, params, optimizer, range(2))
    before = optimizer.state_dict()
    other = [kiln.zeros(2, 2, requires_grad=True), kiln.zeros(2, requires_grad=True)]
    wrong_shape = kiln.optim.Adam(other)
    with pytest.raises(ValueError, match=r"shape \(2, 2\)"):
        wrong_shape.load_state_dict(before)
    assert not wrong_shape.state
    with pytest.raises(ValueError, match="parameters"):
        kiln.optim.Adam(other[:1]).load_state_dict(before)
    rows, columns = ([kiln.ones(sizes, requires_grad=True)] for sizes in ((2, 3), (4, 3)))
    factored = kiln.optim.Adafactor(rows)  # a state of which no tensor has its parameter's shape
    rows[0].sum().backward()
    factored.step()
    with pytest.raises(ValueError, match=r"shape \(4, 1\)"):
        kiln.optim.Adafactor(columns).load_state_dict(factored.state_dict())


def test_groups_have_their_own_settings(answers: Any) -> None:
    def run(lib: Any, program: list[Any]) -> list[Any]:
        p, q = parameters(lib)
        optimizer = lib.optim.SGD([{"params": [p], "lr": 0.5}, {"params": q}], lr=0.01, momentum=0.5)
        train(lib, [p, q], optimizer, range(5))
        assert [g["lr"] for g in optimizer.param_groups] == [0.5, 0.01]
        return [p, q]

    assert_close(*answers.both(run, PROGRAM))


def test_named_parameters_are_accepted() -> None:
    model = kiln.nn.Linear(2, 3)
    optimizer = kiln.optim.Adam(model.named_parameters())
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]


def test_a_parameter_without_gradient_is_left_alone() -> None:
    p, q = parameters(kiln)
    optimizer = kiln.optim.Adam([p, q])
    p.sum().backward()
    before = q.tolist()
    optimizer.step()
    assert q.tolist() == before and not optimizer.state[q] and optimizer.state[p]["step"] == 1


def test_closure_runs_with_gradients_and_gives_the_loss() -> None:
    (p, _) = parameters(kiln)
    optimizer = kiln.optim.SGD([p], lr=0.1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with kiln.no_grad():
        first = optimizer.step(closure)
    assert optimizer.step(closure).item() < first.item()


def test_zero_grad() -> None:
    (p, _) = parameters(kiln)
    optimizer = kiln.optim.SGD([p], lr=0.1)
    (p * 2).sum().backward()
    held = p.grad
    optimizer.zero_grad(set_to_none=False)
    assert held.tolist() == [[0.0] * 3] * 2
    optimizer.zero_grad()
    assert p.grad is None


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda p: kiln.optim.SGD([], lr=0.1), ValueError, "empty parameter list"),
        (lambda p: kiln.optim.SGD(p, lr=0.1), TypeError, "iterable"),
        (lambda p: kiln.optim.SGD([p], lr=-1.0), ValueError, "Invalid learning rate: -1.0"),
        (lambda p: kiln.optim.SGD([p], lr=float("nan")), ValueError, "Invalid learning rate: nan"),
        (lambda p: kiln.optim.SGD([p], lr=p), ValueError, "Tensor lr must be 1-element"),
        (lambda p: kiln.optim.SGD([p], lr="fast"), TypeError, "a number, got .*learning rate"),
        (lambda p: kiln.optim.SGD([p], nesterov=True), ValueError, "Nesterov"),
        (lambda p: kiln.optim.Adam([p], betas=(0.9, 1.0)), ValueError, "Invalid beta parameter at index 1"),
        (lambda p: kiln.optim.Adam([p], betas=0.9), ValueError, "betas"),
        (lambda p: kiln.optim.Adam([p], eps=-1.0), ValueError, "Invalid epsilon value: -1.0"),
        (lambda p: kiln.optim.Adam([{"params": p}, {"params": p}]), ValueError, "some parameters appear in"),
        (lambda p: kiln.optim.Adam([p, 3]), TypeError, "int 3"),
        (lambda p: kiln.optim.Adam([p * 2]), ValueError, "leaf"),
        (lambda p: kiln.optim.Adam({"params": {p}}.values()), TypeError, "set"),
        (lambda p: kiln.optim.Adam([{"params": {p}}]), TypeError, "ordered"),
    ],
)  # fmt: skip
def test_refuses(make: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make(parameters(kiln)[0])


def test_a_user_defined_optimizer_in_torchs_style() -> None:
    class Plain(kiln.optim.Optimizer):
        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr})

        @kiln.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    state = self.state[p]
                    state["count"] = state.get("count", 0) + 1
                    p.add_(p.grad, alpha=-group["lr"])

    p, _ = parameters(kiln)
    optimizer = Plain([p], 0.5)
    p.sum().backward()
    optimizer.step()
    assert p.tolist() == [[x - 0.5 for x in row] for row in START]
    assert optimizer.state_dict()["state"][0] == {"count": 1}
