"""A script that was called with a second set of sizes has one program for all, with its function's bits."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
from script_calls import arguments, assert_same, gradients
from scripted_programs import CASES

import kiln
from kiln.nn import BatchNorm1d, Linear, Module
from kiln.tracing.trees import flatten

FULL = bool(os.environ.get("KILN_TEST_FULL"))


def _longer(args: list[Any], times: int) -> list[Any]:
    """The same arguments with so many times the rows."""
    made = []
    for x in args:
        if isinstance(x, kiln.Tensor) and x.ndim:
            x = kiln.cat([x.detach() * (1 - 0.1 * k) if k else x.detach() for k in range(times)])
            x = x.requires_grad_(x.is_floating_point())
        made.append(x)
    return made


def _result(call: Any) -> Any:
    try:
        return call(), None
    except Exception as error:
        return None, type(error)


@pytest.mark.parametrize("name", CASES if FULL else list(CASES)[::4])
def test_every_program_at_more_sizes(name: str) -> None:
    function, calls = CASES[name]
    script = kiln.jit.script(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for times in (1, 2, 3, 2, 5):
            for call in calls:
                eager, given = (_longer(arguments(kiln, call), times) for _ in range(2))
                expected, raised = _result(lambda given=eager: function(*given))
                came, error = _result(lambda given=given: script(*given))
                assert raised == error, (name, times, call)
                if raised is None:
                    assert_same(came, expected, f"{name}{call}")
                    before, after = gradients(kiln, expected, eager), gradients(kiln, came, given)
                    for g, h in zip(before, after):
                        near = 1e-2 if name == "half_precision" else 1e-5
                        assert kiln.allclose(g, h, rtol=near, atol=near, equal_nan=True), (name, call)


def halves(x: Any, y: Any) -> Any:
    t = x @ y
    while t.abs().sum() > 10:
        t = t / 2
    return t.softmax(-1) if t.sum() > 0 else t - x.sum()


def _programs(script: Any) -> int:
    calls = script._calls
    return sum(map(len, calls.variants.values())) + sum(len(s.kept) for s in calls.sizes.values())


def test_the_second_sizes_make_one_program_for_all() -> None:
    script = kiln.jit.script(halves)
    for k, n in enumerate((3, 4, 5, 6, 30, 4, 3)):
        x, y = kiln.randn(n, n), kiln.randn(n, 4)
        assert kiln.equal(script(x, y), halves(x, y))
        assert _programs(script) == min(k + 1, 2)
    shapes = [[str(n) for n in x.shape] for x in script._calls.sizes.popitem()[1].kept[0].captured.inputs]
    assert shapes == [["s0", "s0"], ["s0", "4"]]

    script = kiln.jit.script(halves)
    sizes = [(3, 5, 2), (4, 5, 2), (4, 6, 3), (7, 8, 9), (1, 5, 2), (5, 1, 2), (2, 3, 0), (9, 4, 4)]
    counts = []
    for m, n, k in sizes:  # more sizes vary each time; those of 0 and 1 have programs of their own
        x, y = kiln.randn(m, n), kiln.randn(n, k)
        assert kiln.equal(script(x, y), halves(x, y)), (m, n, k)
        counts.append(_programs(script))
    assert counts == [1, 2, 2, 2, 3, 4, 5, 5]
    for bad in ((kiln.ones(3, 4), kiln.ones(5, 2)), (kiln.ones(4, 4, 4), kiln.ones(3, 3))):
        with pytest.raises(RuntimeError) as ours, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            script(*bad)
        with pytest.raises(RuntimeError) as theirs:
            halves(*bad)
        assert str(ours.value) == str(theirs.value)


class Net(Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.seen = Linear(3, 4), BatchNorm1d(4), 0

    def forward(self, x: Any, more: dict[str, Any], scale: float = 1.0) -> Any:
        y = self.norm(self.first(x)).relu()
        if y.sum() > 3:
            y = y * scale
        return y + more["shift"], x.shape[0], kiln.rand_like(y).sum(0) * 0


def test_modules_keywords_and_containers_of_any_size() -> None:
    net, other = Net(), Net()
    other.load_state_dict(net.state_dict())
    script = kiln.jit.script(net)
    for n in (2, 3, 4, 7, 3, 4):
        x, shift = kiln.randn(n, 3, requires_grad=True), {"shift": kiln.randn(n, 1)}
        z = x.detach().clone().requires_grad_()
        kiln.manual_seed(n)
        ours = script(x, more=shift, scale=2.0)
        kiln.manual_seed(n)
        theirs = other(z, shift, scale=2.0)
        assert_same(ours[0], theirs[0], str(n))
        assert ours[1] == theirs[1] == n and type(ours[1]) is int
        ours[0].sum().backward()
        theirs[0].sum().backward()
        assert kiln.allclose(x.grad, z.grad, atol=1e-6)
        assert all(map(kiln.equal, net.buffers(), other.buffers()))


def test_what_no_program_holds_for_all_sizes_has_one_for_each() -> None:
    def grows(x: Any) -> Any:
        text = f"{x.shape[0]}"  # the size itself
        parts = [x * int(c) for c in text]
        return kiln.stack(parts), text, (x > 0).sum() if x.sum() > 0 else x.sum().long()

    script = kiln.jit.script(grows)
    for n in (3, 14, 156, 14, 1, 3):
        x = kiln.randn(n)
        assert_same(script(x), grows(x), str(n))


@pytest.mark.parametrize("name", CASES if FULL else list(CASES)[2::6])
def test_every_program_under_vmap(name: str) -> None:
    """The calls of a program that look alike, as one batch; where that is refused, for a reason."""
    function, calls = CASES[name]
    looks: dict[Any, list[Any]] = {}
    for call in calls:
        given = arguments(kiln, call)
        if given and all(isinstance(x, kiln.Tensor) for x in given):
            given = [x.detach() for x in given]
            looks.setdefault(tuple((x.dtype, x.shape) for x in given), []).append(given)
    script = kiln.jit.script(function)
    for group in looks.values():
        batch = [kiln.stack(list(column)) for column in zip(*group)]
        expected = [_result(lambda given=given: function(*given)) for given in group]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            came, error = _result(lambda batch=batch: kiln.vmap(script)(*batch))
        raised = [e for _, e in expected if e is not None]
        if error is not None:
            assert error in raised or issubclass(error, (RuntimeError, ValueError)), (name, error)
            continue
        assert not raised, name
        leaves: list[Any] = []
        flatten(came, leaves)
        for k, (result, _) in enumerate(expected):
            own: list[Any] = []
            flatten(_tensors(result), own)
            assert len(own) == len(leaves)
            for x, y in zip(leaves, own):
                assert kiln.allclose(x[k].double(), y.double(), rtol=1e-5, atol=1e-6, equal_nan=True), name


def _tensors(value: Any) -> Any:
    """A result with tensors for numbers, as a batch has it."""
    if isinstance(value, (int, float)):
        return kiln.tensor(value)
    if isinstance(value, dict):
        return {k: _tensors(v) for k, v in value.items()}
    return type(value)(map(_tensors, value)) if type(value) in (list, tuple) else value


def test_branches_loops_and_errors_of_samples() -> None:
    @kiln.jit.script
    def f(x: Any) -> Any:
        n = 0
        while x.sum() > 1:
            x = x / 2
            n += 1
        if n > 2:
            x = x + 1
        assert x.sum() > -50, "far below"
        return x, n

    x = kiln.tensor([[1.0, 2.0], [-3.0, 0.5], [8.0, 9.0]], requires_grad=True)
    y, n = kiln.vmap(f)(x)
    assert [r.tolist() for r in y] == [f(row)[0].tolist() for row in x] and n.tolist() == [2, 0, 5]
    (g,) = kiln.autograd.grad(y.sum(), x)
    assert g[:, 0].tolist() == [0.25, 1.0, 1 / 32]
    assert kiln.equal(kiln.vmap(kiln.func.grad(lambda r: f(r)[0].sum()))(x.detach()), g)
    deep = kiln.stack([x.detach(), -x.detach()])
    assert kiln.equal(kiln.vmap(kiln.vmap(f))(deep)[0][1], kiln.vmap(f)(-x.detach())[0])
    with pytest.raises(AssertionError, match="far below"):
        kiln.vmap(f)(kiln.tensor([[1.0, 2.0], [-60.0, 1.0]]))
    sized = kiln.jit.script(lambda x: kiln.ones(int(x.sum())))
    with pytest.raises(RuntimeError, match="The script is no program for all samples: .*size"):
        kiln.vmap(sized)(kiln.ones(2, 2))


def test_programs_check_each_sample() -> None:
    taken = kiln.jit.trace(lambda x, i: x[i], (kiln.arange(4.0), kiln.tensor(1)))
    x, i = kiln.arange(12.0).reshape(3, 4), kiln.tensor([0, 3, 1])
    assert kiln.vmap(taken)(x, i).tolist() == [0.0, 7.0, 9.0]
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        kiln.vmap(taken)(x, kiln.tensor([0, 9, 1]))
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        kiln.vmap(kiln.vmap(taken, (None, 0)), (0, None))(x, kiln.tensor([0, 9]))
    noisy = kiln.jit.trace(lambda x: x + kiln.rand(3), (kiln.ones(3),))
    with pytest.raises(RuntimeError, match="randomness error mode"):
        kiln.vmap(noisy)(kiln.ones(2, 3))
    with pytest.raises(NotImplementedError, match="the same random numbers for every sample"):
        kiln.vmap(noisy, randomness="different")(kiln.ones(2, 3))
    same = kiln.vmap(noisy, randomness="same")(kiln.ones(2, 3))
    assert kiln.equal(same[0], same[1])
