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


@pytest.mark.parametrize("first", range(0, COUNT, BATCH))
def test_values_that_are_multiplied_several_times(first: int) -> None:
    found: list[str] = []
    for seed in range(first, first + BATCH):
        found += differences(seed, True, ("recorded", "pure", "traced"))
    assert not found, "\n\n".join(found)
