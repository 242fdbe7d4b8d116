"""Branches and loops as ONNX models, beside kiln: every way of a branch, loops of no, one and many steps."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import pytest
from onnx_models import Model, compared, look
from script_calls import arguments
from scripted_programs import CASES

import kiln
from kiln import nn
from kiln.export import Dim
from kiln.graph import cond, map, scan, while_loop
from kiln.testing.script_programs import check

FULL = bool(os.environ.get("KILN_TEST_FULL"))
SCRIPTS = [name for name in CASES if name != "falls_off_the_end"]  # which gives nothing


@pytest.mark.parametrize("name", SCRIPTS if FULL else SCRIPTS[::3])
def test_scripts(name: str) -> None:
    """Scripts with if, while, for, break, continue, return, recursion, in every call of their cases."""
    function, calls = CASES[name]
    script, models = kiln.jit.script(function), dict[str, Model]()
    for call in calls:
        args = tuple(x.detach() if isinstance(x, kiln.Tensor) else x for x in arguments(kiln, call))
        if look(args) not in models:
            models[look(args)] = Model(kiln.export.export(script, args))
        model = models[look(args)]
        model.compare(args, {}, model.program(*args), 2e-3 if name == "half_precision" else 2e-5)


@pytest.mark.parametrize("first", range(0, 100, 10))
def test_random_scripts(first: int) -> None:
    """More by `python -m kiln.testing.script_programs --by onnx --count 10000`."""
    assert [told for seed in range(first, first + 10) if (told := check(seed, "onnx"))] == []


class Doubled(kiln.autograd.Function):
    """A function with a derivative of its own."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * 2 + x.softmax(0)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * x


class Gate(nn.Module):
    """A layer on one side of a branch, with a buffer that is written there."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(3, 3), kiln.nn.Buffer(kiln.zeros(()))

    def forward(self, x: Any) -> Any:
        if x.sum() > 0:
            self.calls += 1
            return self.layer(x).relu()
        return x


@kiln.jit.script
def rows_until(x: Any, limit: Any) -> Any:
    """The sum of rows, and how many, until it is above a limit."""
    total, count = kiln.zeros(x.shape[1]), 0
    for row in x:
        if total.sum() > limit:
            break
        total, count = total + row, count + 1
    return total, count


@kiln.jit.script
def triangle(n: Any) -> Any:
    """Nested loops, each as long as a value says."""
    total = 0
    for i in range(int(n)):
        for j in range(i):
            if (i + j) % 3 == 0:
                continue
            total += i * j
    return total


def collatz(n: Any) -> Any:
    """A loop whose body branches; how many steps there were, and the largest number."""

    def step(k: Any, n: Any, most: Any) -> Any:
        n = cond(n % 2 == 0, lambda n: n // 2, lambda n: 3 * n + 1, (n,))
        return k + 1, n, kiln.maximum(n, most)

    return while_loop(lambda k, n, most: n > 1, step, (kiln.tensor(0), n, n))


def recurrent(h: Any, x: Any, w: Any) -> Any:
    """A cell along a sequence; its state and outputs."""

    def step(h: Any, x: Any) -> Any:
        h = (x @ w + h).tanh()
        return h, (h * 2, h.sum(1))

    return scan(step, h, x)


def sums(x: Any) -> Any:
    return scan(lambda s, v: (s + v, s), kiln.tensor(0.0), x)[1]


def halved(x: Any) -> Any:
    return while_loop(lambda x: x.abs().max() > 1, lambda x: (x / 2,), (x,))


def gradient(function: Any, *args: Any) -> Any:
    """The graph of a function's gradients; that of a while_loop is a scan as long as the loop was."""
    return kiln.graph.from_function(function, *args).gradient()


@kiln.jit.script
def doubled_above(x: Any) -> Any:
    return Doubled.apply(x) if x[0] > 0 else x


class Program(NamedTuple):
    """A function or module, calls of it, sizes that vary."""

    make: Any
    calls: list[tuple[Any, ...]]
    shapes: Any = None


def r(*shape: int) -> Any:
    return kiln.randn(shape, generator=DRAWS)


DRAWS = kiln.Generator().manual_seed(5)
N, M = Dim("n", min=0), Dim("m", min=0)
t = kiln.tensor
PROGRAMS: dict[str, Program] = {
    "cond": Program(
        lambda x, y: cond(x.sum() > 0, lambda x, y: (x + y, y), lambda x, y: (x * y, x), (x, y)),
        [(kiln.ones(3), r(3)), (-kiln.ones(3), r(3))],
    ),
    "cond of sizes that vary": Program(
        lambda x: cond(
            x.sum() > 0, lambda x: (x.sort(0)[0], x.t() @ x), lambda x: (x * 2, x.t() @ -x), (x,)
        ),
        [(kiln.ones(3, 2),), (-kiln.ones(5, 2),), (r(0, 2),)],
        ({0: N},),
    ),
    "while of sizes that vary": Program(
        halved, [(r(3) * 9,), (r(7) * 0.1,), (kiln.full((1,), 1e9),)], ({0: Dim("n", min=1)},)
    ),
    "collatz": Program(collatz, [(t(27),), (t(1),), (t(2),)]),
    "triangle": Program(lambda n: triangle(n), [(t(7),), (t(0),), (t(1),), (t(2),)]),
    "rows until": Program(
        lambda x, limit: rows_until(x, limit),
        [(kiln.ones(5, 2), t(3.0)), (kiln.ones(4, 2), t(99.0)), (r(2, 2), t(-9.0)), (r(0, 2), t(1.0))],
        ({0: N}, None),
    ),
    "scan": Program(recurrent, [(r(2, 3), r(4, 2, 3), r(3, 3))]),
    "scan of sizes that vary": Program(
        recurrent,
        [(r(m, 3), r(n, m, 3), r(3, 3)) for m, n in ((2, 4), (5, 1), (2, 0), (0, 2))],
        ({0: M}, {0: N, 1: M}, None),
    ),
    "scan from the back": Program(
        lambda s, x: scan(lambda s, x: (s * 0.5 + x, s - x), s, x, reverse=True),
        [(r(2), r(4, 2)), (r(2), r(1, 2)), (r(2), r(0, 2))],
        (None, {0: N}),
    ),
    "scan along another dim": Program(
        lambda s, x: scan(lambda s, x: (s + x, s > x), s, x, dim=1),
        [(r(3), r(3, 4)), (r(3), r(3, 0))], (None, {1: N}),
    ),
    "scan of nothing": Program(lambda s: scan(lambda s, x: (s * 2, s), s, None, length=5), [(r(2),)]),
    "map": Program(
        lambda x, y: map(lambda x, y: (x.sum() * y, x.flip(0)), x, y),
        [(r(3, 2), r(4)), (r(0, 2), r(5)), (r(1, 2), r(0))],
        ({0: N}, {0: M}),
    ),
    "scan in a branch in a loop": Program(
        lambda x: while_loop(
            lambda k, x: k < 3,
            lambda k, x: (k + 1, cond(k > 0, sums, lambda x: x * 2, (x,))),
            (t(0), x),
        ),
        [(r(4),), (r(1),), (r(0),)],
        ({0: N},),
    ),
    "custom": Program(lambda x: Doubled.apply(x) + 1, [(r(3),)]),
    "custom in a branch": Program(lambda x: doubled_above(x), [(t([1.0, 2.0]),), (t([-1.0, 2.0]),)]),
    "gradient of a loop": Program(
        gradient(lambda x: halved(x)[0].pow(2).sum(), t([5.0, 0.5])),
        [(t([5.0, 0.5]),), (t([0.5, 0.5]),), (t([-9.0, 17.0]),)],
    ),
    "dtypes": Program(
        lambda x: while_loop(
            lambda i, h, b: i < 4, lambda i, h, b: (i + 1, h * 2, ~b),
            (x.to(kiln.int8), x.to(kiln.float16), x > 2),
        ),
        [(t(0.0),), (t(3.0),), (t(4.0),)],
    ),
    "scans of ops": Program(
        lambda x: (x.logcumsumexp(0), x.cummax(0)[0], x.cumprod(1)),
        [(r(3, 2),), (r(1, 2),), (r(0, 2),)], ({0: N},),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    """One model of a program is right in all its calls."""
    make, calls, shapes = PROGRAMS[name]
    model = Model(kiln.export.export(make, calls[0], dynamic_shapes=shapes))
    for args in calls:
        model.compare(args, {}, make(*args), 2e-5)


@pytest.mark.parametrize("name", ["cond", "collatz", "rows until", "scan from the back", "map"])
def test_older_operators(name: str) -> None:
    """The oldest version of the operators has branches and loops too."""
    make, calls, shapes = PROGRAMS[name]
    model = Model(kiln.export.export(make, calls[0], dynamic_shapes=shapes), opset=18)
    for args in calls:
        model.compare(args, {}, make(*args), 2e-5)


def test_layers_and_buffers_in_a_branch() -> None:
    """What a branch writes goes out under another name."""
    made = kiln.jit.script(Gate())
    program = kiln.export.export(made, (kiln.ones(3),))
    model = Model(program, input_names=["x"])
    assert [x.name for x in model.session.get_outputs()] == ["output", "calls.after"]
    for sign, count in ((1.0, 4.0), (-1.0, 3.0)):
        x, wanted = sign * kiln.ones(3), program(sign * kiln.ones(3))
        came = model.session.run(None, {"x": x.numpy(), "calls": kiln.tensor(3.0).numpy()})
        assert came[1] == count and kiln.allclose(kiln.from_numpy(came[0]), wanted, rtol=1e-5)


def test_graphs_of_placeholders() -> None:
    """A defined graph is a model too."""
    x = kiln.graph.placeholder("x", (3,))
    graph = kiln.graph.Graph([x], [cond(x.sum() > 0, lambda x: x * 2, lambda x: -x, (x,))])
    for sign in (1.0, -1.0):
        given = (sign * kiln.ones(3),)
        compared(graph.program(), given, {}, graph(*given), 0.0)
