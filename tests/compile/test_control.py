"""Control flow as calls of graphs: against the loops written out, to the bit."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kiln
import kiln.graph
from kiln.autograd import gradcheck, gradgradcheck
from kiln.graph import control
from kiln.graph.control import Attrs
from kiln.graph.graph import Graph, Value, building
from kiln.graph.interpret import interpret
from kiln.graph.text import Subgraph, TextError, parse, text
from kiln.graph.verify import VerifyError, verify
from kiln.table.record import CONTROL, find

GOLDEN = Path(__file__).parent.parent / "golden"
cond, while_loop, scan = kiln.graph.cond, kiln.graph.while_loop, kiln.graph.scan


def same(a: Any, b: Any) -> None:
    """Two trees of tensors with the same dtypes, shapes and bits."""
    if isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
        return
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    halves = a.dtype in (kiln.float16, kiln.bfloat16)  # which float32 holds
    one, two = (x.detach().float() if halves else x.detach() for x in (a, b))
    assert one.contiguous().numpy().tobytes() == two.contiguous().numpy().tobytes()


def numbers(*shape: int, seed: int = 0, dtype: Any = None) -> Any:
    """Numbers near 1, the same each time."""
    made = kiln.tensor(np.random.default_rng(seed).uniform(0.5, 1.5, shape))
    return made.to(dtype or kiln.float32)


# -- values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0.0, 1.0, 3.0, 1e30])
def test_while_loop(first: float) -> None:
    def go(x: Any, n: Any) -> Any:
        return x < 100.0

    def body(x: Any, n: Any) -> Any:
        return x * 1.7 + 0.3, n + 1

    x, n = kiln.tensor(first), kiln.tensor(0)
    got = while_loop(go, body, (x, n))
    while go(x, n):
        x, n = body(x, n)
    same(got, (x, n))


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize("length", [0, 1, 5])
@pytest.mark.parametrize("reverse", [False, True])
def test_scan(size: int, length: int, reverse: bool) -> None:
    init, xs = numbers(size), numbers(length, size, seed=1)

    def body(c: Any, x: Any) -> Any:
        return c * x + 0.25, {"sum": c + x, "product": c * x}

    carry, ys = scan(body, init, xs, reverse=reverse)
    own, found = init, []
    for k in range(length)[:: -1 if reverse else 1]:
        own, y = body(own, xs[k])
        found.insert(0 if reverse else length, y)
    same(carry, own)
    for name in ("sum", "product"):
        same(ys[name], kiln.stack([y[name] for y in found]) if found else kiln.zeros(0, size))


def test_scan_of_other_dims_and_of_nothing() -> None:
    xs = numbers(3, 4)
    same(
        scan(lambda c, x: (c + x, x), kiln.zeros(3), xs, dim=1)[0], xs[:, 0] + xs[:, 1] + xs[:, 2] + xs[:, 3]
    )
    same(scan(lambda c, x: (c * 2, c), 1, None, length=5), (kiln.tensor(32), kiln.tensor([1, 2, 4, 8, 16])))


@pytest.mark.parametrize("flag", [True, False])
def test_cond(flag: bool) -> None:
    x, y = numbers(3), numbers(3, seed=1)
    got = cond(kiln.tensor([flag]), lambda x, y: [x.exp(), x], lambda x, y: [x / y, y], (x, y))
    same(got, [x.exp(), x] if flag else [x / y, y])


def test_map() -> None:
    xs, w = numbers(4, 3), numbers(3, 2, seed=1)
    same(kiln.graph.map(lambda x, w: x @ w, xs, w), kiln.stack([x @ w for x in xs]))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float64"])
def test_states_of_every_dtype(dtype: str) -> None:
    own = getattr(kiln, dtype)
    x = kiln.tensor([0, 1, 3]).to(own)

    def step(c: Any) -> Any:
        return ~c if dtype == "bool" else c * c + c - c / c.exp() if own.is_floating_point else c * 3 + 1

    n, got = while_loop(lambda n, c: n < 4, lambda n, c: (n + 1, step(c)), (0, x))
    for _ in range(4):
        x = step(x)
    same(got, x)
    assert n.item() == 4


def test_softmax_of_halves_rounds_once() -> None:
    x = numbers(2, 5, dtype=kiln.bfloat16)
    got, _ = scan(lambda c, _: (kiln.softmax(c, -1), None), x, None, length=3)
    for _ in range(3):
        x = kiln.softmax(x, -1)
    same(got, x)


def test_closed_over_tensors_are_looked_up_at_every_call() -> None:
    w = kiln.tensor(2.0)

    def run(x: Any) -> Any:
        return scan(lambda c, x: (c * w, c), x, None, length=3)[0]

    same(run(kiln.tensor(1.0)), kiln.tensor(8.0))
    with kiln.no_grad():
        w += 1
    same(run(kiln.tensor(1.0)), kiln.tensor(27.0))
    w = kiln.tensor([1.0, 2.0])
    same(run(kiln.tensor([1.0, 1.0])), kiln.tensor([1.0, 8.0]))


class Cell(kiln.nn.Module):
    """A step with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = kiln.nn.Linear(3, 3)
        self.scale = 1.0

    def forward(self, h: Any, x: Any) -> Any:
        h = kiln.tanh(self.inner(h) * self.scale + x)
        return h, h.sum()


def test_modules_as_bodies() -> None:
    kiln.manual_seed(0)
    cell, h, xs = Cell(), numbers(2, 3), numbers(4, 2, 3, seed=1)
    for scale in (1.0, 0.5):
        cell.scale = scale
        got, sums = scan(cell, h, xs)
        own, found = h, []
        for x in xs:
            own, s = cell(own, x)
            found.append(s)
        same((got, sums), (own, kiln.stack(found)))
        for p, q in zip(
            kiln.autograd.grad(got.sum(), list(cell.parameters())),
            kiln.autograd.grad(own.sum(), list(cell.parameters())),
        ):
            assert kiln.allclose(p, q, rtol=1e-5)


def test_views_and_strides_come_in() -> None:
    x = numbers(4, 6)
    for view in (x.T, x[1:, ::2], x[:1].expand(3, 6)):
        same(scan(lambda c, y: (c + y, c), view[0], view)[0], sum((row for row in view), view[0]))


def nested(x: Any, calls: Any) -> Any:
    """cond in while in scan, by the functions that `calls` has."""

    def outer(c: Any, y: Any) -> Any:
        def inner(n: Any, z: Any) -> Any:
            z = calls.cond(z.sum() > 4.0, lambda z: z * 0.5, lambda z: z + y, (z,))
            return n + 1, z

        n, c = calls.while_loop(lambda n, z: (z.sum() < 3.5) & (n < 9), inner, (kiln.tensor(0), c))
        return c, n

    return calls.scan(outer, x[0], x)


class Written:
    """The loops written out."""

    @staticmethod
    def cond(flag: Any, yes: Any, no: Any, given: Any) -> Any:
        return (yes if flag else no)(*given)

    @staticmethod
    def while_loop(go: Any, body: Any, state: Any) -> Any:
        while go(*state):
            state = body(*state)
        return state

    @staticmethod
    def scan(body: Any, c: Any, xs: Any) -> Any:
        found = []
        for x in xs:
            c, y = body(c, x)
            found.append(y)
        return c, kiln.stack(found)


@pytest.mark.parametrize("seed", range(4))
def test_nested(seed: int) -> None:
    x = numbers(5, 2, seed=seed).requires_grad_()
    got, own = nested(x, kiln.graph), nested(x, Written)
    same(got, own)
    same(kiln.autograd.grad(got[0].sum(), x), kiln.autograd.grad(own[0].sum(), x))


# -- derivatives ------------------------------------------------------------------------------------


def f64(*shape: int, seed: int = 0) -> Any:
    return numbers(*shape, seed=seed, dtype=kiln.float64).requires_grad_()


def a_while_loop(x: Any, w: Any) -> Any:
    def body(n: Any, x: Any) -> Any:
        return n + 1, kiln.tanh(x * w) + x * x * 0.1

    return while_loop(lambda n, x: n < 3, body, (kiln.tensor(0), x))[1]


def a_scan(x: Any, w: Any) -> Any:
    def body(c: Any, v: Any) -> Any:
        c = kiln.tanh(c * v * w[0] + w[1])
        return c, c * c

    return scan(body, x, w)


def a_cond(x: Any, w: Any) -> Any:
    return cond(x.sum() > 1.0, lambda x, w: x.sin() * x, lambda x, w: w.exp(), (x, w))


def a_map(x: Any, w: Any) -> Any:
    return kiln.graph.map(lambda v: (v * x).sin(), w)


@pytest.mark.parametrize(
    "function, shapes",
    [
        (a_while_loop, ((2,), (2,))),
        (a_scan, ((2,), (3, 2))),
        (a_cond, ((2,), (2,))),
    ],
)
def test_gradients_to_second_order(function: Any, shapes: Any) -> None:
    given = tuple(f64(*shape, seed=k) for k, shape in enumerate(shapes))
    assert gradcheck(function, given)
    assert gradgradcheck(function, given)


def test_gradients_of_a_map() -> None:
    assert gradcheck(a_map, (f64(2), f64(2, 2, seed=1)))


def test_gradients_have_the_bits_of_the_loop() -> None:
    x, w, xs = (numbers(*s, seed=k).requires_grad_() for k, s in enumerate([(2, 3), (3,), (4, 2, 3)]))

    def body(c: Any, v: Any) -> Any:
        c = (c * w + v).tanh() * w  # w twice: its sums go contribution by contribution
        return c, c * 2

    got, own = kiln.graph.scan(body, x, xs), Written.scan(body, x, xs)
    same(got, own)
    for loss in (lambda r: r[0].sum(), lambda r: (r[1] * r[1]).sum() + r[0].sum()):
        made, found = (kiln.autograd.grad(loss(r), (x, w, xs), retain_graph=True) for r in (got, own))
        same(made, found)


def test_gradients_of_loops_that_never_run() -> None:
    x, w = numbers(2).requires_grad_(), numbers(2).requires_grad_()
    y = while_loop(lambda x: x.sum() < 0, lambda x: x * w, x)
    same(kiln.autograd.grad(y.sum(), (x, w)), (kiln.ones(2), kiln.zeros(2)))
    y = scan(lambda c, v: (c * w * v, c), x, kiln.zeros(0, 2))[0]
    same(kiln.autograd.grad(y.sum(), (x, w)), (kiln.ones(2), kiln.zeros(2)))


# -- batches ----------------------------------------------------------------------------------------


def test_vmap() -> None:
    x, w = numbers(3, 2), numbers(2, seed=1)

    def loop(x: Any) -> Any:
        return while_loop(lambda n, x: x.sum() < 9, lambda n, x: (n + 1, x * x + w), (kiln.tensor(0), x))

    def running(x: Any) -> Any:
        return scan(lambda c, v: (c * v, c + w), kiln.tensor(1.0), x)

    def branch(x: Any) -> Any:
        return cond(x.sum() > 2, lambda x: x * 2, lambda x: x - w, (x,))

    for function in (loop, running, branch):
        got = kiln.vmap(function)(x)
        own = [function(row) for row in x]
        if isinstance(got, tuple):
            own = tuple(kiln.stack(parts) for parts in zip(*own))
        same(got, own if isinstance(got, tuple) else kiln.stack(own))
    grad = kiln.func.grad(lambda x: running(x)[0])
    same(kiln.vmap(grad)(x), kiln.stack([grad(row) for row in x]))


# -- graphs -----------------------------------------------------------------------------------------


def built(function: Callable[..., Any], *looks: tuple[str, int]) -> Graph:
    """A graph of a function of arrays: dtype and number of dims of each."""
    graph = Graph()
    inputs = [graph.add_input(dtype, tuple(graph.new_symbol() for _ in range(ndim))) for dtype, ndim in looks]
    with building(graph):
        made = function(*inputs)
    return graph.finish(list(made) if isinstance(made, tuple) else [made])


def newton(x: Value, target: Value) -> Any:
    def body(n: Any, x: Any) -> Any:
        x = cond(x.sum() > 1e3, lambda x: x * 0.5, lambda x: (x + target / x) * 0.5, (x,))
        return n + 1, x

    return while_loop(lambda n, x: ((x * x - target).abs().sum() > 1e-3) & (n < 20), body, (0, x))


def sums(x: Value, xs: Value) -> Any:
    return scan(lambda c, v: (c + v * xs.shape[0], c), x, xs, reverse=True)


@pytest.mark.parametrize("name, function, looks", [
    ("control_newton", newton, [("float32", 1), ("float32", 1)]),
    ("control_sums", sums, [("float64", 1), ("float64", 2)]),
])  # fmt: skip
def test_text_is_golden_and_read_back(name: str, function: Any, looks: Any) -> None:
    graph = verify(built(function, *looks))
    made = text(graph)
    path = GOLDEN / f"{name}.txt"
    if not path.exists():
        path.write_text(made)
    assert made == path.read_text()
    again = verify(parse(made, find))
    assert text(again) == made


def test_interpreter_and_programs_agree() -> None:
    x, target = numbers(3).numpy() * 5, numbers(3, seed=1).numpy()
    n, root = interpret(built(newton, ("float32", 1), ("float32", 1)), [x, target])
    got = newton(kiln.tensor(x), kiln.tensor(target))  # type: ignore[arg-type]
    same(got, (kiln.tensor(n), kiln.tensor(root)))
    x, xs = numbers(2, dtype=kiln.float64).numpy(), numbers(4, 2, dtype=kiln.float64).numpy()
    got = sums(kiln.tensor(x), kiln.tensor(xs))  # type: ignore[arg-type]
    same(got, tuple(map(kiln.tensor, interpret(built(sums, ("float64", 1), ("float64", 2)), [x, xs]))))


def test_reader_and_verifier_find_what_is_wrong() -> None:
    made = text(built(newton, ("float32", 1), ("float32", 1)))
    for old, new in [
        ("called @0", "called @1"),
        ("(@0, @1)", "(@0, @7)"),
        ("(s0, s0), (@0, @1)): int64", "(s0, s0), (@1, @0)): int64"),
        ("(@0, @1)", "(@0)"),
        ("while_loop(", "scan("),
        ("(2, 0, 1)", "(9, 0, 1)"),
        ("float32[", "float64["),
        ("called @0 2", "called @0 3"),
        ("  return", "  back"),
    ]:
        assert old in made
        with pytest.raises(TextError):
            parse(made.replace(old, new, 1), find)
    deep = "graph 0\n" + "".join("  " * k + "called @0 0\n" for k in range(60))
    with pytest.raises(TextError, match="nested too deeply"):
        parse(deep, find)
    graph = built(sums, ("float64", 1), ("float64", 2))
    graph.nodes[-1].attrs[-1][0].graph.nodes[-1].out.dtype = "float32"
    with pytest.raises(VerifyError):
        verify(graph)


def test_nodes_that_do_not_fit_are_refused() -> None:
    def sub(function: Any, *dtypes: str) -> Subgraph:
        graph = Graph()
        inputs = [graph.add_input(d, ()) for d in dtypes]
        with building(graph):
            return Subgraph(graph.finish([function(*inputs)]))

    graph = Graph()
    x = graph.add_input("float32", ())
    go, step = sub(lambda x: x < 1, "float32"), sub(lambda x: x + 1, "float32")
    for graphs, error in [
        ((step, step), "no flag"),
        ((go, go), "state 0"),
        ((go, sub(lambda x: x + 1, "float64")), "input 0"),
        ((go, sub(lambda x, y: x + y, "float32", "float32")), "a graph of 2 arrays"),
        ((go,), "not the attributes"),
    ]:
        with pytest.raises(ValueError, match=error):
            control.add(graph, CONTROL["while_loop"], [x], Attrs(0, (1, 0, 0), (0, False), (), graphs))


# -- errors -----------------------------------------------------------------------------------------


def test_errors_name_the_value_and_the_line() -> None:
    x = numbers(3)
    with pytest.raises(RuntimeError, match=r"value 1 of the state .*body \(.*test_control.py:\d+\)"):

        def body(n: Any, x: Any) -> Any:
            return n + 1, x[:2]

        while_loop(lambda n, x: n < 3, body, (0, x))
    with pytest.raises(RuntimeError, match="value 0 of the state.*int64.*float32"):
        while_loop(lambda n: n < 3, lambda n: n * 0.5, 0)
    with pytest.raises(RuntimeError, match="result 0 of .* must look the same"):
        cond(x.sum() > 0, lambda x: x, lambda x: x[:1], (x,))
    with pytest.raises(RuntimeError, match="Expect operands to be a tuple"):
        cond(x.sum() > 0, lambda x: x, lambda x: x, x)
    with pytest.raises(RuntimeError, match="Expected pred to be bool or single-element tensor"):
        cond(x > 0, lambda x: x, lambda x: x, (x,))
    with pytest.raises(RuntimeError, match="leaves of one length"):
        scan(lambda c, x: (c, None), x, (numbers(2), numbers(3)))
    with pytest.raises(RuntimeError, match="draws random numbers"):
        scan(lambda c, x: (c + kiln.rand(3), None), x, x)
    with pytest.raises(TypeError, match="may not branch on a value"):
        while_loop(lambda x: x.sum() < 3, lambda x: x if x.sum() > 1 else -x, x)
    with pytest.warns(UserWarning, match="Pred is a Python constant"):
        same(cond(True, lambda x: x + 1, lambda x: x, (x,)), x + 1)


def test_an_endless_loop_is_interrupted() -> None:
    x = kiln.tensor(1.0)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        while_loop(lambda x: x < 2, lambda x: x * 1.0, x)
    timer.join()
    same(while_loop(lambda x: x < 2, lambda x: x + 1.0, x), kiln.tensor(2.0))


def test_an_error_inside_leaves_nothing_behind() -> None:
    x = numbers(3)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            scan(lambda c, v: (c / (1 // 0), c), x, x)
    same(scan(lambda c, v: (c + v, None), x, kiln.ones(2, 3))[0], x + 1 + 1)


# -- random programs --------------------------------------------------------------------------------


def random_program(pick: random.Random, depth: int, calls: Any) -> Callable[..., Any]:
    """A function of two vectors that gives two, by the control flow of `calls`."""
    kind = pick.choice(["ops", "ops", "cond", "while", "scan"]) if depth else "ops"
    if kind == "ops":
        op, number = pick.choice(["add", "mul", "tanh", "max"]), pick.choice([0.5, 0.75, 1.25])
        steps: dict[str, Any] = {
            "add": lambda a, b: (b * number, a + b),
            "mul": lambda a, b: (a * b * number, b),
            "tanh": lambda a, b: (b.tanh(), a - number),
            "max": lambda a, b: (kiln.maximum(a, b), a * number),
        }
        return steps[op]  # type: ignore[no-any-return]
    one, two = (random_program(pick, depth - 1, calls) for _ in range(2))
    count, bound = pick.randrange(4), pick.choice([0.5, 1.0, 2.0])
    if kind == "cond":
        return lambda a, b: calls.cond(a.sum() > bound, one, two, one(a, b))
    if kind == "while":

        def loop(a: Any, b: Any) -> Any:
            def body(n: Any, a: Any, b: Any) -> Any:
                return (n + 1, *one(a, b))

            state = calls.while_loop(
                lambda n, a, b: (n < count) & (a.sum() < 10 * bound), body, (kiln.tensor(0), a, b)
            )
            return two(*state[1:])

        return loop

    def scanned(a: Any, b: Any) -> Any:
        def body(c: Any, x: Any) -> Any:
            c = one(c[0], c[1] + x)
            return c, c[0] * x

        c, ys = calls.scan(body, (a, b), kiln.stack([a, b]))
        return c[0], ys[1] + c[1]

    return scanned


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed: int) -> None:
    a, b = (numbers(3, seed=seed + k).requires_grad_() for k in (0, 100))
    got = random_program(random.Random(seed), 2, kiln.graph)(a, b)
    own = random_program(random.Random(seed), 2, Written)(a, b)
    same(got, own)
    loss = [sum(y.sum() for y in r if y.requires_grad) for r in (got, own)]
    if any(y.requires_grad for y in own):
        for x, y in zip(*(kiln.autograd.grad(s, (a, b), allow_unused=True) for s in loss)):
            assert y is None or kiln.allclose(x, y, rtol=1e-5)


@pytest.mark.parametrize(
    "way", [lambda f: f, kiln.jit.script, kiln.compile], ids=["eager", "script", "compile"]
)
def test_a_branch_may_draw_where_values_can_be_read(way: Any) -> None:
    """The generator is where the branch that ran left it; gradients go through that."""

    def f(x: Any) -> Any:
        return cond(
            x.sum() > 0, lambda x: kiln.nn.functional.dropout(x) * kiln.rand(3), lambda x: x * 2, (x,)
        )

    def plain(x: Any) -> Any:
        return kiln.nn.functional.dropout(x) * kiln.rand(3) if x.sum() > 0 else x * 2

    call = way(f)
    for seed in range(6):
        found = []
        for g in (call, plain):
            x = kiln.full((3,), 1.0 if seed % 2 else -1.0, requires_grad=True)
            kiln.manual_seed(seed)
            y = g(x)
            y.sum().backward()
            found.append((y.tolist(), x.grad.tolist(), kiln.rand(1).item()))
        assert found[0] == found[1]
    kiln.manual_seed(0)
    with pytest.raises(RuntimeError, match="draws random numbers"):
        kiln.jit.trace(f, kiln.ones(3))
    after = kiln.rand(1)
    kiln.manual_seed(0)
    assert kiln.equal(after, kiln.rand(1))
