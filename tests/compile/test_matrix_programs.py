"""Random programs whose matrices are multiplied several times, as they are and transposed: the gradients have
the same bits however the program runs.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from backend import kiln, needs_kiln

pytestmark = needs_kiln

COUNT = int(os.environ.get("KILN_RANDOM_PROGRAMS", "60"))
BATCH = 10
PRODUCTS = (
    "{x} @ {m}",
    "{x} @ {m}.t()",
    "K.nn.functional.linear({x}, {m})",
    "({m} @ {x}.t()).t()",
    "{x}[0] @ {m} + {x}",
)
ROWS = ("x[0]", "x[1]", "x[2, :1]", "x[:, 0]", "x.flatten(0, 1)")
ARRAYS = ("{m}.sin().sum()", "{m}[0].sum()", "({m} * {m}[:, 1:2]).sum()", "{m}[[1, 0]].cos().sum()")
WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "recorded": lambda fn, given: kiln.compile(fn, wait=True),
    "pure": lambda fn, given: kiln.compile(fn, pure=True),
    "traced": lambda fn, given: kiln.jit.trace(fn, given),
}


def text_of(seed: int, again: bool) -> str:
    """The program of a seed. With `again`, one value may be multiplied several times too."""
    rng = random.Random(seed)
    matrices, rows, lines = ["w", "u"], list(ROWS), ["def program(K, x, w, u):", "    total = w.sum() * 0.5"]
    for k in range(rng.randint(4, 12)):
        m = rng.choice(matrices)
        drawn = rng.random()
        if drawn < 0.25:
            lines.append(f"    m{k} = {m}.{rng.choice(['t()', 'T', 'transpose(0, 1)'])}")
            matrices.append(f"m{k}")
        elif drawn < 0.4:
            lines.append(f"    total = total + {rng.choice(ARRAYS).format(m=m)}")
        else:
            x = rng.choice(rows)
            lines.append(f"    y{k} = K.tanh({rng.choice(PRODUCTS).format(x=x, m=m)})")
            if not again and x not in ROWS:
                rows.remove(x)
            if rng.random() < 0.5:
                rows.append(f"y{k}")
            if again or rows[-1] != f"y{k}":
                lines.append(f"    total = total + (y{k} * y{k}).sum()")
    left = [y for y in rows if y not in ROWS]
    return "\n".join([*lines, f"    return total{''.join(f' + {y}.sum()' for y in left)}"])


def arguments(seed: int) -> list[Any]:
    size = 5 if seed % 4 == 3 else 24  # of small matrices the rows are not kept
    kiln.manual_seed(seed)
    x = kiln.randn(3, 2, size)
    return [x, *((kiln.randn(size, size) * 0.3).requires_grad_() for _ in range(2))]


def bits(fn: Any, given: list[Any], twice: bool) -> list[bytes | None]:
    """The bits of the gradients of the matrices; `twice`: of those of their gradients too."""
    leaves = given[1:]
    found = kiln.autograd.grad(fn(*given), leaves, create_graph=twice, allow_unused=True)
    if twice:
        total = sum(((g * g).sum() for g in found if g is not None), kiln.zeros(()))
        found = (*found, *kiln.autograd.grad(total, leaves, allow_unused=True))
    return [None if g is None else g.detach().numpy().tobytes() for g in found]


def differences(seed: int, again: bool, ways: tuple[str, ...], twice: bool = False) -> list[str]:
    """The ways in which the program of a seed has other gradients than eagerly."""
    text = text_of(seed, again)
    space: dict[str, Any] = {}
    exec(text, space)

    def fn(x: Any, w: Any, u: Any) -> Any:
        return space["program"](kiln, x, w, u)

    want = bits(fn, arguments(seed), twice)
    found = []
    for way in ways:
        run = WAYS[way](fn, tuple(arguments(seed)))
        for _ in range(2):
            got = bits(run, arguments(seed), twice)
        if got != want:
            found.append(f"seed {seed}, {way}, twice={twice}:\n{text}")
    return found


@pytest.mark.parametrize("first", range(0, COUNT, BATCH))
def test_matrices_that_are_multiplied_several_times(first: int) -> None:
    found: list[str] = []
    for seed in range(first, first + BATCH):
        found += differences(seed, False, ("recorded", "pure", "traced"))
        found += differences(seed, False, ("recorded",), twice=True) if seed % 5 == 0 else []
    assert not found, "\n\n".join(found)


NARROW_PRODUCTS = (
    "F.linear({h}, n)", "{h} @ n.t()", "F.linear({h}, m)", "F.linear(m, {h}).t()", "{h} @ m[0]",
    "F.linear({h}, m[:1])", "(n @ {h}.t())",
)  # fmt: skip
PICKED = (
    "{h}[[0, 1, 1, 2, 0]]", "F.embedding(K.tensor([2, 2, 1, 0]), {h})", "{h}[1:3]", "{h}[:, :2]",
    "{h}.split(2)[0]", "{h}.index_select(0, K.tensor([1, 1]))", "{h}.gather(0, K.tensor([[0, 1], [1, 1]]))",
    "{h}[K.tensor([3, 3]), K.tensor([1, 1])]", "{h} * 3", "{h} * {h}", "{h}.t() * 0.3",
)  # fmt: skip


def between(seed: int) -> tuple[str, Callable[..., Any]]:
    """A program whose values feed several products with matrices of few rows, and are picked and sliced; it
    gives its total and one of the values, which goes on outside.
    """
    rng = random.Random(seed)
    lines, values = ["def program(x, w, u, n, m):", "    h0 = x.sin()", "    total = h0.sum()"], ["h0"]
    for k in range(1, rng.randint(5, 11)):
        h, drawn = rng.choice(values), rng.random()
        if drawn < 0.15:
            lines.append(f"    h{k} = K.tanh({h} @ {rng.choice('wu')})")
            values.append(f"h{k}")
            continue
        part = rng.choice(NARROW_PRODUCTS if drawn < 0.55 else PICKED).format(h=h)
        lines.append(f"    total = total + (({part}) ** 2).cos().sum()")
    text = "\n".join([*lines, f"    return total, {rng.choice(values)}"])
    space: dict[str, Any] = {"K": kiln, "F": kiln.nn.functional}
    exec(text, space)
    return text, space["program"]


def bits_between(program: Any, given: list[Any]) -> list[bytes | None]:
    total, h = program(*given)
    outside = kiln.nn.functional.linear(h, given[3]).tanh().sum() + (h @ given[4].t()).cos().sum()
    found = kiln.autograd.grad(total + outside + h[[1, 1, 0]].sin().sum(), given, allow_unused=True)
    return [None if g is None else g.numpy().tobytes() for g in found]


@pytest.mark.parametrize("first", range(0, COUNT, BATCH))
def test_values_between_that_feed_products_and_picks(first: int) -> None:
    found = []
    for seed in range(first, first + BATCH):
        kiln.manual_seed(seed)
        shapes = ((40 if seed % 3 else 5, 24), (24, 24), (24, 24), (2, 24), (1 + seed % 3, 24))
        given = [(kiln.randn(*shape) * 0.3).requires_grad_() for shape in shapes]
        text, program = between(seed)
        want = bits_between(program, given)
        for way, made in WAYS.items():
            run = made(program, tuple(given))
            if any(bits_between(run, given) != want for _ in range(2)):
                found.append(f"seed {seed}, {way}:\n{text}")
    assert not found, "\n\n".join(found)


@pytest.mark.parametrize("first", range(0, COUNT, BATCH))
def test_values_that_are_multiplied_several_times(first: int) -> None:
    found: list[str] = []
    for seed in range(first, first + BATCH):
        found += differences(seed, True, ("recorded", "pure", "traced"))
    assert not found, "\n\n".join(found)
