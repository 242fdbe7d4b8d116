"""A program computes a value once: its operations and accesses beside the sum of its ops', at any length."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

import kiln
from kiln.capture import programs
from kiln.nn import functional as F
from kiln.passes import pipeline
from kiln.passes.inline import scalar_cost
from kiln.passes.plan import Launch, Plan
from kiln.scalars.scalar import LEAVES

Step = Callable[[], Any]

ROWS, WIDTH = 3, 5
LENGTHS = range(1, 41) if os.environ.get("KILN_TEST_FULL") else (1, 2, 3, 5, 8, 13, 24)
AGAIN = 2  # times the operations of all nodes: a gradient computes cheap values of the forward again
LEAF = re.compile(rf"= ({'|'.join(sorted(LEAVES))})\b")


def weight(*sizes: int) -> Any:
    return kiln.ones(sizes, requires_grad=True)


def lstm(length: int) -> Step:
    """Cells written by hand, with one product each."""
    inner, outer, bias = weight(WIDTH, 4 * WIDTH), weight(WIDTH, 4 * WIDTH), weight(4 * WIDTH)
    inputs = [kiln.ones(ROWS, WIDTH) for _ in range(length)]

    def run() -> Any:
        h, c = kiln.zeros(ROWS, WIDTH), kiln.zeros(ROWS, WIDTH)
        for x in inputs:
            i, f, o, u = (x @ inner + h @ outer + bias).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * u.tanh()
            h = o.sigmoid() * c.tanh()
        return h

    return run


def gru(length: int) -> Step:
    """The state goes on both through the gate and around it."""
    gates, new = weight(2 * WIDTH, 2 * WIDTH), weight(2 * WIDTH, WIDTH)
    inputs = [kiln.ones(ROWS, WIDTH) for _ in range(length)]

    def run() -> Any:
        h = kiln.zeros(ROWS, WIDTH)
        for x in inputs:
            r, z = (kiln.cat([x, h], 1) @ gates).sigmoid().chunk(2, 1)
            h = (1 - z) * (kiln.cat([x, r * h], 1) @ new).tanh() + z * h
        return h

    return run


def tree(length: int) -> Step:
    """A binary tree over so many leaves, cut at random places."""
    gates = weight(2 * WIDTH, 5 * WIDTH)
    leaves = [weight(1, WIDTH) for _ in range(length)]
    cut = random.Random(length)

    def node(first: int, last: int) -> Any:
        if last - first == 1:
            return leaves[first].tanh(), leaves[first]
        middle = cut.randrange(first + 1, last)
        (hl, cl), (hr, cr) = node(first, middle), node(middle, last)
        i, f, g, o, u = (kiln.cat([hl, hr], 1) @ gates).chunk(5, 1)
        c = i.sigmoid() * u.tanh() + f.sigmoid() * cl + g.sigmoid() * cr
        return o.sigmoid() * c.tanh(), c

    return lambda: node(0, length)[0]


def residual(length: int) -> Step:
    """What every block reads is the sum of all before it."""
    up, down, x = weight(WIDTH, 2 * WIDTH), weight(2 * WIDTH, WIDTH), kiln.ones(ROWS, WIDTH)

    def run() -> Any:
        y = x
        for _ in range(length):
            y = y + F.gelu(F.layer_norm(y, (WIDTH,)) @ up) @ down
        return y

    return run


def cells(length: int) -> Step:
    """Cells without products: all of them are one chain of pointwise work, and every state is used again."""
    inputs = [weight(ROWS, 4 * WIDTH) for _ in range(length)]

    def run() -> Any:
        h = c = kiln.zeros(ROWS, WIDTH)
        for x in inputs:
            i, f, o, u = x.chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * u.tanh()
            h = h + o.sigmoid() * c.tanh()
        return h

    return run


def chain(length: int) -> Step:
    """Every link reads two of the values before it, most often late ones; some are reduced on the way."""
    x = weight(ROWS, WIDTH)

    def run() -> Any:
        draw = random.Random(length)
        values = [x * 2, x + 1]
        for _ in range(length):
            a, b = (values[-1 - min(int(draw.expovariate(0.7)), len(values) - 1)] for _ in range(2))
            kind = draw.randrange(5)
            y = a * b if kind == 0 else (a + b).tanh() if kind == 1 else a.exp() - b
            values.append(y if kind != 4 else y / (1 + y.abs().sum(1, keepdim=True)))
        return values[-1] + values[len(values) // 2]

    return run


def trained(step: Step) -> Step:
    """With the gradients of all that requires them."""

    def run() -> Any:
        y = step()
        y.sum().backward()
        return y

    return run


PROGRAMS = {f.__name__: f for f in (lstm, gru, tree, residual, cells, chain)}


def plan_of(step: Step, patch: pytest.MonkeyPatch) -> tuple[Plan, int, int]:
    """The plan of all that a step records; scalar operations, and arrays read and written, of its nodes."""
    found: list[tuple[Plan, int, int]] = []

    original = programs.program

    def planned(graph: Any, *pointer: Any, **more: Any) -> Any:
        if not pointer:  # of one function, not of the recording
            return original(graph, **more)
        plan = pipeline.program(graph)
        nodes = [n for n in graph.nodes if n.op.kind in ("pointwise", "reduce", "matmul", "gather")]
        cost = sum(scalar_cost(n) if n.op.kind == "pointwise" else 1 for n in nodes)
        found.append((plan, cost, sum(1 + sum(not v.weak for v in n.inputs) for n in nodes)))
        raise RuntimeError("planned")  # nothing is generated: the step runs op by op

    step()  # its ops have what they need: the next thing planned is the recording
    with patch.context() as inner:
        inner.setattr(programs, "program", planned)
        try:
            kiln.compile(step, wait=True)()
        except RuntimeError as error:
            assert "planned" in str(error)
    ((plan, cost, accesses),) = found
    return plan, cost, accesses


def counted(plan: Plan) -> tuple[int, int]:
    """Scalar operations of all launches, and the arrays they read and write."""
    each = [
        sum(bool(re.match(r"\s*%\d+:", line)) and not LEAF.search(line) for line in k.text().split("\n"))
        for k in plan.kernels
    ]
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    return sum(each[x.kernel] for x in launches), sum(len(x.pointers) for x in launches)


@pytest.mark.op_by_op
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "trained"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_little_again(name: str, backward: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the length, so no kernel sums up what those before it have."""
    for length in LENGTHS:
        step = PROGRAMS[name](length)
        plan, cost, accesses = plan_of(trained(step) if backward else step, monkeypatch)
        operations, pointers = counted(plan)
        told = f"{name} of {length}: {operations} operations of {cost}, {pointers} accesses"
        assert operations <= AGAIN * cost and pointers <= accesses, told
