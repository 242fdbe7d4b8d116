"""`kiln.compile(fn, backend=callable, dynamic=True)`: sizes are symbols of graphs."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import kiln


class Backend:
    """Keeps the graphs that it was given, and what they were run with."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []
        self.examples: list[Any] = []
        self.given: list[Any] = []

    def __call__(self, gm: Any, example_inputs: Any) -> Any:
        self.graphs.append(gm)
        self.examples.append(example_inputs)

        def run(*given: Any) -> Any:
            self.given.append(given)
            return gm(*given)

        return run


def rows(x: Any, y: Any) -> Any:
    both = kiln.cat([x, y])
    return both.reshape(x.shape[0] * 3 + y.shape[0] * 3).view(-1, both.size(0)) + x.size(1)


def test_placeholders_have_symbolic_sizes() -> None:
    seen = Backend()
    compiled = kiln.compile(rows, backend=seen, dynamic=True, fullgraph=True)
    for m, n in ((4, 5), (6, 5), (5, 5), (2, 9), (4, 5)):
        x, y = kiln.randn(m, 3), kiln.randn(n, 3)
        assert kiln.equal(compiled(x, y), rows(x, y))
    assert len(seen.graphs) == 1
    graph = seen.graphs[0].graph
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    assert [n.name for n in placeholders] == ["s0", "s1", "l_x_", "s2", "l_y_"]
    assert [n.type for n in placeholders] == [kiln.SymInt, kiln.SymInt, None, kiln.SymInt, None]
    looks = {n.name: n.meta["example_value"] for n in placeholders}
    assert str(tuple(looks["l_x_"].shape)) == "(s0, s1)" and str(tuple(looks["l_y_"].shape)) == "(s2, s1)"
    assert all(isinstance(looks[s], kiln.SymInt) and str(looks[s]) == s for s in ("s0", "s1", "s2"))
    joined = next(n for n in graph.nodes if n.target is kiln.cat)
    assert str(tuple(joined.meta["example_value"].shape)) == "(s0 + s2, s1)"
    assert [x if isinstance(x, int) else tuple(x.shape) for x in seen.examples[0]] == [
        4,
        3,
        (4, 3),
        5,
        (5, 3),
    ]
    assert kiln.equal(seen.graphs[0](*seen.examples[0])[0], rows(seen.examples[0][2], seen.examples[0][4]))
    assert [given[0] for given in seen.given] == [4, 6, 5, 2, 4]
    assert all(type(n) is int for given in seen.given for n in given if not isinstance(n, kiln.Tensor))


def test_sizes_that_were_equal_are_one_symbol() -> None:
    """So a graph is for sizes that are equal again, as in PyTorch, and one of unequal sizes for all."""
    seen = Backend()
    compiled = kiln.compile(lambda x, y: kiln.cat([x, y]) * 2, backend=seen, dynamic=True)
    for m, n in ((4, 4), (6, 6), (5, 7), (7, 5), (8, 8)):
        assert compiled(kiln.ones(m), kiln.ones(n)).shape[0] == m + n
    assert len(seen.graphs) == 2
    assert [len(example) for example in seen.examples] == [3, 4]
    for m in (1, 0):  # which broadcast, and are sizes of their own
        compiled(kiln.ones(m), kiln.ones(5))
    assert len(seen.graphs) == 4


def test_python_compares_sizes_at_each_call() -> None:
    seen = Backend()

    def halves(x: Any) -> Any:
        if x.shape[0] > 5:
            return x[: x.shape[0] // 2] * len(x.shape)
        return x.new_zeros(-x.shape[0] + 7, x.numel() % 5 + 1) + 1

    compiled = kiln.compile(halves, backend=seen, dynamic=True)
    for n in (4, 8, 9, 3, 30, 5):
        x = kiln.randn(n, 3)
        assert kiln.equal(compiled(x), halves(x))
    assert len(seen.graphs) == 2
    targets = [n.target for n in seen.graphs[0].graph.nodes if n.op == "call_function"]
    assert [getattr(t, "__name__", t) for t in targets] == ["neg", "add", "mul", "mod", "add", "add"]


def test_sizes_are_numbers_behind_the_call_and_in_what_it_keeps() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        n = x.shape[0]
        kept.append(n)
        kept.append(copy.deepcopy(pickle.loads(pickle.dumps(n + 1))))
        if kept:
            kept[0] += n
        return x * n, n, {"all": x.shape}, f"{n}"

    compiled = kiln.compile(f, backend=Backend(), dynamic=True)
    for n in (3, 4):
        y, m, found, text = compiled(kiln.ones(n))
        assert (y[0], type(m), m, found["all"], text) == (n, int, n, (n,), str(n))
        assert type(found["all"]) is kiln.Size and type(found["all"][0]) is int
    assert kept == [3 + 3 + 4, 4, 4, 5] and type(kept[0] * 2) is int and type(kept[3]) is int


def test_a_size_that_was_read_before_a_value_is_an_input_of_the_next_graph() -> None:
    seen = Backend()

    def f(x: Any) -> Any:
        n, wide = (x * 2).shape[0], kiln.cat([x, x]).shape[0]
        if x.sum() > 0:
            x = x + 1
        return kiln.arange(n) * 2 + wide + n, x[: n - 1]

    compiled = kiln.compile(f, backend=seen, dynamic=True)
    for n in (3, 5, 12, 7, 11, 13, 17, 19, 23, 29, 31):
        x = kiln.ones(n)
        assert all(map(kiln.equal, compiled(x), f(x)))
    assert len(seen.graphs) == 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_modules_and_gradients(dynamic: bool) -> None:
    seen = Backend()
    model = kiln.nn.Sequential(kiln.nn.Linear(3, 4), kiln.nn.Flatten(0), kiln.nn.ReLU())
    compiled = kiln.compile(model, backend=seen, dynamic=dynamic)
    for n in (2, 3, 4, 5, 6):  # also sizes that the weights have
        x, z = kiln.randn(n, 3, requires_grad=True), None
        compiled(x).sum().backward()
        grads = [x.grad, *(p.grad for p in model.parameters())]
        model.zero_grad()
        z = x.detach().clone().requires_grad_()
        model(z).sum().backward()
        assert all(map(kiln.equal, grads, [z.grad, *(p.grad for p in model.parameters())]))
        model.zero_grad()
    assert len(seen.graphs) == (1 if dynamic else 5)


def windows(x: Any, n: int, *, more: int = 3) -> Any:
    y = kiln.zeros(n, x.shape[0]) + x * n
    return y.reshape(-1)[: n * more - 2] + kiln.arange(n * more - 2), x**n


def test_ints_among_arguments_are_placeholders() -> None:
    seen = Backend()
    compiled = kiln.compile(windows, backend=seen, dynamic=True, fullgraph=True)
    for length, n, more in ((11, 4, 3), (11, 6, 3), (13, 7, 5), (12, 3, 4), (11, 4, 3)):
        x = kiln.randn(length)
        for found, expected in zip(compiled(x, n, more=more), windows(x, n, more=more)):
            assert kiln.equal(found, expected)
    assert len(seen.graphs) == 1
    placeholders = [n for n in seen.graphs[0].graph.nodes if n.op == "placeholder"]
    assert [n.type for n in placeholders].count(kiln.SymInt) == 3
    assert [x for x in seen.given[-1] if isinstance(x, int)] == [11, 4, 3]


def test_ints_of_0_and_1_and_below_are_of_a_graph_of_their_own() -> None:
    seen = Backend()
    compiled = kiln.compile(lambda x, n: x * n + n, backend=seen, dynamic=True)
    x = kiln.randn(5)
    for n in (3, 0, 1, -2, 7, True):
        assert kiln.equal(compiled(x, n), x * n + n)
    assert len(seen.graphs) == 5  # of 3 and 7, 0, 1, -2, True


def test_python_sees_ints_among_arguments_as_ints() -> None:
    kept: list[Any] = []

    def branches(x: Any, n: int, sizes: Any) -> Any:
        kept.append(n)
        table = {int: 2, float: 3}
        y = x * table[type(n)] + (10 if n > 4 else 20)
        for _ in range(n):
            y = y + 1
        return y.view(sizes), n + 1, f"{n}", [n, n * 2]

    compiled = kiln.compile(branches, backend=Backend(), dynamic=True)
    for n in (3, 5, 6):
        sizes = [2, 6]
        found, *rest = compiled(kiln.arange(12), n, sizes)
        expected, *others = branches(kiln.arange(12), n, sizes)
        assert kiln.equal(found, expected) and rest == others and sizes == [2, 6]
        assert all(type(x) is int for x in (rest[0], *rest[2], *sizes))
    assert pickle.loads(pickle.dumps(kept)) == [3, 3, 5, 5, 6, 6]


def test_code_that_asks_whether_a_number_is_an_int_is_answered() -> None:
    def asks(x: Any, n: Any) -> Any:
        return x * 2 if type(n) is int else x * 3

    def asks_of_size(x: Any, n: Any) -> Any:
        size = x.shape[0]
        return x * 2 if type(size) is int else x * 3

    for function in (asks, asks_of_size):
        compiled = kiln.compile(function, backend=Backend(), dynamic=True)
        for n in (4, 5, 2.5):
            x = kiln.randn(6)
            assert kiln.equal(compiled(x, n), function(x, n))


def test_ints_that_equal_sizes_are_checked() -> None:
    seen = Backend()
    compiled = kiln.compile(lambda x, n: x + n * x.shape[0], backend=seen, dynamic=True)
    for length, n in ((4, 4), (5, 5), (5, 7), (8, 3)):
        x = kiln.randn(length)
        assert kiln.equal(compiled(x, n), x + n * length)
    assert len(seen.graphs) == 2
