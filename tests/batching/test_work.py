"""What gains nothing by waiting runs at once or by itself; launches that are alike are passed as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_kiln

from kiln import _core
from kiln.table.record import find
from kiln.testing.compare import same_bits, to_array

pytestmark = needs_kiln


@pytest.fixture(autouse=True)
def counts_anew() -> Iterator[None]:
    """Nothing is left on the list, and counts begin anew."""
    _core.clear_batching_statistics()
    yield
    _core.run_pending()


def same(a: Any, b: Any) -> bool:
    return same_bits(to_array(a), to_array(b))


def drawn(*shape: int, seed: int = 0, grad: bool = False) -> Any:
    values = np.random.default_rng(seed).normal(size=shape).astype("float32")
    return kiln.tensor(values / np.sqrt(shape[-1]).astype("float32"), requires_grad=grad)


def listed() -> dict[str, int]:
    """Calls that were put on the list, by function."""
    return {name: calls for name, calls, _, _, _ in _core.batching_statistics()[1]}


def at_once() -> dict[str, int]:
    """Calls that ran on their line because they are as quick alone."""
    return {name: n for name, why, n in _core.batching_statistics()[2] if why == "is as quick alone"}


@pytest.mark.parametrize("rows, waits", [(1, True), (15, True), (16, False)])
def test_products_of_many_rows_do_not_wait(rows: int, waits: bool) -> None:
    weight = drawn(256, 128, grad=True)
    xs = [drawn(rows, 128, seed=k) for k in range(3)]
    with kiln.batching():
        ys = [kiln.nn.functional.linear(x, weight) for x in xs]
    assert (listed(), at_once()) == (({"linear": 3}, {}) if waits else ({}, {"linear": 3}))
    assert all(same(y, kiln.nn.functional.linear(x, weight)) for x, y in zip(xs, ys))


@pytest.mark.parametrize("grad", [False, True])
def test_small_matrices_wait_for_backward_alone(grad: bool) -> None:
    weight, xs = drawn(8, 8, grad=grad), [drawn(1, 8, seed=k) for k in range(3)]

    def steps(k: int) -> Any:
        y = kiln.nn.functional.linear(xs[k], weight).tanh()
        return y.sum().item()

    assert kiln.batching.map(steps, range(3)) == [steps(k) for k in range(3)]
    names = {"linear": 3, "tanh": 3, "sum": 3}
    assert (listed(), at_once()) == ((names, {}) if grad else ({}, names))


def test_large_calls_that_had_to_wait_run_by_themselves() -> None:
    """Behind a product of few rows, chains of large arrays that meet."""
    weight = drawn(64, 64, grad=True)

    factor = drawn(64, 256)

    def chain(x: Any) -> Any:
        small = kiln.nn.functional.linear(x, weight)  # it waits, and so does what it is read by
        large = (small.reshape(1, 256) * factor).tanh()
        return (large.exp() + large.relu()).sum() + small.sum()

    xs = [drawn(4, 64, seed=k) for k in range(4)]
    want = [chain(x) for x in xs]
    gradient = kiln.autograd.grad(sum(want), weight)[0]
    with kiln.batching():
        got = [chain(x) for x in xs]
        total = sum(got)
    assert all(same(a, b) for a, b in zip(got, want))
    assert same(kiln.autograd.grad(total, weight)[0], gradient)
    alone = {name: apart for name, _, _, apart, why in _core.batching_statistics()[1] if "quick" in why}
    assert {name: alone.get(name) for name in ("tanh", "exp", "relu")} == {"tanh": 4, "exp": 4, "relu": 4}


Leaves = dict[str, Any]


def model() -> Leaves:
    shapes = {"w": (16, 4), "b": (16,), "v": (16, 16), "out": (2, 16), "scale": (16,)}
    return {name: drawn(*shape, seed=i, grad=True) for i, (name, shape) in enumerate(shapes.items())}


def scores(p: Leaves, x: Any) -> Any:
    linear = kiln.nn.functional.linear
    h = linear(x, p["w"], p["b"]).relu()
    h = (linear(h, p["v"]) * p["scale"]).tanh() + h
    return kiln.log_softmax(linear(h, p["out"]), 1)


def episode(p: Leaves, length: int, leaves: Callable[[Any], Any] = lambda x: x) -> Any:
    """Steps that read what they computed, and are apart for backward."""
    chosen, state = [], 0.1 * length
    for t in range(length):
        found = leaves(scores(p, kiln.tensor([[state, float(t), 1.0, -state]])))
        right = int(found[0, 1].item() > found[0, 0].item())
        chosen.append(found[0, right])
        state = 0.9 * state + found[0, 1].item()
    return kiln.stack(chosen).sum() * length


LENGTHS = (2, 7, 5, 7, 3)


def gradients(p: Leaves, gains: list[Any], **options: Any) -> list[Any]:
    kiln.stack(gains).mean().backward(**options)
    return [x.grad for x in p.values()]


def run(mapped: bool, **options: Any) -> list[Any]:
    p = model()
    f = lambda n: episode(p, n)  # noqa: E731
    found = gradients(p, kiln.batching.map(f, LENGTHS) if mapped else [f(n) for n in LENGTHS], **options)
    return [to_array(x) for x in found]


def test_steps_of_episodes_are_passed_as_one() -> None:
    for a, b in zip(run(True), run(False)):
        assert same_bits(a, b)


def test_alike_launches_can_be_passed_twice() -> None:
    """With what was saved kept, and refused where it was not."""
    p = model()
    gains = kiln.batching.map(lambda n: episode(p, n), LENGTHS)
    once = [to_array(x) for x in gradients(p, gains, retain_graph=True)]
    for x in p.values():
        x.grad = None
    again = [to_array(x) for x in gradients(p, gains)]
    assert all(same_bits(a, b) for a, b in zip(once, again))
    with pytest.raises(RuntimeError, match="second time"):
        gradients(p, gains)


def test_hooks_at_rows_see_what_they_see_in_the_loop() -> None:
    seen: dict[bool, list[Any]] = {}
    for mapped in (False, True):
        p, own = model(), seen.setdefault(mapped, [])

        def watched(found: Any, own: list[Any] = own) -> Any:
            found.register_hook(lambda g: own.append(g.tolist()))
            return found

        f = lambda n, p=p, watched=watched: episode(p, n, watched)  # noqa: E731
        gains = kiln.batching.map(f, LENGTHS) if mapped else [f(n) for n in LENGTHS]
        own.append([to_array(x).tolist() for x in gradients(p, gains)])
    assert sorted(map(repr, seen[True])) == sorted(map(repr, seen[False]))


@pytest.mark.parametrize(
    "sizes, parts",
    [
        ([(3, 0, 1)], []),
        ([(0, 2, 1)], []),
        ([], [("leaf", 1)]),
        ([], [("leaf", -1)]),
        ([], [("argument", 0)]),
    ],
)
def test_a_part_that_no_call_has_is_refused(sizes: list[Any], parts: list[Any]) -> None:
    """What the core is told of a cell's calls is checked when it is told."""
    cell, none = _core.Cell(lambda *_: None), _core.Guards([])
    given = [(drawn(1, 4),), {}, none, none, sizes, parts, 0, find("tanh").handle, (), True, None, [], {}]
    with pytest.raises(ValueError, match="Cell: a (size|part) .*that the call has not"):
        cell.add(*given, set(), [])
    given[4:6] = [(0, 1, 4)], [("leaf", 0)]
    assert cell.add(*given, set(), [])
