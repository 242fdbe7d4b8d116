"""Rule 2: positions that are in range by what they are (those argmax, sorts, draws give) do not end a
recording to be looked at; they are looked at once anyone may have written them, or the range is another.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from backend import WAYS, check_same, kiln, needs_kiln, normal, tensor, values

KNOWN: dict[str, Any] = {
    "gather": lambda x: x.gather(1, x.argmax(1, keepdim=True)),
    "gather along dim -2": lambda x: x.gather(-2, x.argmin(-2, keepdim=True)),
    "max along a dim": lambda x: tuple(x.max(1)),
    "min along a dim": lambda x: x.min(0)[0],
    "rows": lambda x: kiln.nn.functional.embedding(x.argmax(1), x.t()),
    "in the flat array": lambda x: x.reshape(-1).gather(0, x.argmax().reshape(1)),
    "a longer dim": lambda x: kiln.cat([x, x], 1).gather(1, x.argmax(1, keepdim=True)),
    "through views": lambda x: x.gather(1, x.argmax(1)[:, None].expand(-1, 3)),
    "scatter": lambda x: kiln.zeros_like(x).scatter_add(1, x.argmax(1, keepdim=True), x[:, :1]),
    "argsort": lambda x: x.gather(1, x.argsort(1)),
    "sort": lambda x: x.gather(0, x.sort(0, descending=True)[1]),
    "topk": lambda x: x.gather(-1, x.topk(2)[1]),
    "kthvalue": lambda x: x.gather(1, x.kthvalue(2, 1, keepdim=True)[1]),
    "median": lambda x: x.gather(1, x.median(1, keepdim=True)[1]),
    "mode": lambda x: x.gather(0, x.mode(0, keepdim=True)[1]),
    "randint": lambda x: x.gather(1, _drawn(lambda: kiln.randint(0, 5, (4, 2)))),
    "randint of a smaller range": lambda x: x[_drawn(lambda: kiln.randint(1, 3, (7,)))],
    "randint as rows": lambda x: kiln.nn.functional.embedding(_drawn(lambda: kiln.randint(4, (3, 2))), x),
    "randint as classes": lambda x: kiln.nn.functional.cross_entropy(
        x, _drawn(lambda: kiln.randint(0, 5, (4,)))
    ),
    "randperm": lambda x: x[_drawn(lambda: kiln.randperm(4))],
}


def _drawn(draw: Any) -> Any:
    """The same numbers at every call."""
    kiln.manual_seed(3)
    return draw()


@needs_kiln
@pytest.mark.parametrize("name", KNOWN)
def test_positions_that_are_in_range(name: str) -> None:
    """One region, one program, eager's bits."""

    def program(x: Any) -> Any:
        y = kiln.tanh(x * 2)
        return KNOWN[name](y), y + 1

    check_same(program, lambda: (normal(4, 5),))
    run = kiln.compile(program, wait=True)
    for _ in range(3):
        run(normal(4, 5))
    assert (run.stats()["programs"], run.stats()["runs"]) == (1, 3), run.explain()


def _through_numpy(i: Any) -> Any:
    i.numpy()[:] += 3
    return i


# positions below 3, changed so that they no longer are
CHANGED: dict[str, Any] = {
    "another dim": lambda i: i,
    "computed": lambda i: i * 1 + 3,
    "added to": lambda i: i.add_(3),
    "written through a view": lambda i: (i[:1].fill_(9), i)[1],
    "written through .data": lambda i: (i.data.add_(3), i)[1],
    "negative": lambda i: i.sub_(9),
    "copied into": lambda i: i.copy_(i.clone() + 5),
    "written through out=": lambda i: kiln.add(i, 7, out=i),
    "written through NumPy": _through_numpy,
    "drawn from further on": lambda i: kiln.randint(3, 9, (2,)),
    "drawn from below 0 on": lambda i: kiln.randint(-9, 0, (2,)),
    "drawn and added to": lambda i: kiln.randint(0, 3, (2,)).add_(3),
    "drawn and computed with": lambda i: kiln.randint(0, 3, (2,)) + 3,
    "drawn as floats, seen as ints": lambda i: kiln.randint(1, 3, (2,), dtype=kiln.float32).view(kiln.int32),
    "drawn as bytes, seen as ints": lambda i: kiln.randint(1, 3, (16,), dtype=kiln.uint8).view(kiln.int64),
    "drawn into it": lambda i: kiln.randint(3, 9, (1,), out=i),
    "sorted along another dim": lambda i: kiln.zeros(9).argsort(0)[4:],
}


@WAYS
@pytest.mark.parametrize("name", CHANGED)
def test_positions_that_may_be_out_of_range(way: Any, name: str) -> None:
    """They raise on their line, with all that was done before it."""

    def program(x: Any, w: Any, wide: Any) -> Any:
        w.add_(1)
        i = (wide if name == "another dim" else x).argmax(0, keepdim=True)
        x.gather(0, CHANGED[name](i))
        w.mul_(100)

    run = way(program)
    for _ in range(3):
        x, w, wide = tensor(1, 3, 2), tensor(1, 2), tensor(0, 0, 0, 1)
        with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
            run(x, w, wide)
        assert values(w) == [2.0, 3.0]


@WAYS
def test_a_bound_goes_with_its_memory(way: Any) -> None:
    """Positions in memory that held others before are not taken for those."""

    def program(x: Any, n: int) -> Any:
        i = x.argmax(0, keepdim=True)
        i = kiln.full((1,), n, dtype=kiln.int64) * 1
        return x.gather(0, i)

    run = way(program)
    for _ in range(3):
        assert values(run(tensor(1, 3, 2), 2)) == [2.0]
        with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
            run(tensor(1, 3, 2), 3)


# -- values that someone writes while the call waits, or asks the compiler ---------------------------------

LOOKED_AT = {
    "index_select": ("x.index_select(1, i)", 99),
    "gather": ("x.gather(1, i.expand(4, 3))", 99),
    "embedding": ("kiln.nn.functional.embedding(i, x)", -1),
    "classes": ("kiln.nn.functional.cross_entropy(x[:3], i)", 99),
    "index_add_": ("x.index_add_(1, i, kiln.ones(4, 3))", 99),
    "floor_divide": ("x.long()[:, :3] // i", 0),
    "remainder": ("x.long()[:, :3] % i", 0),
    "recorded": ("kiln.compile(lambda: x.index_select(1, i))()", 99),
}


@needs_kiln
@pytest.mark.parametrize("name", LOOKED_AT)
def test_values_written_while_the_call_is_away(name: str) -> None:
    """They are checked on the line, then the compiler is asked, and other threads may run: here the function
    that is asked writes what such a thread would. The kernel does not run on what nobody looked at.
    """
    call, bad = LOOKED_AT[name]
    code = f"""
import kiln
from kiln.capture import service
x, i = kiln.arange(20.0).reshape(4, 5), kiln.tensor([1, 2, 3])
found, done = service._kept, []
def kept(request, arguments):
    if request in ("program", "pointwise") and not done:
        done.append(request)
        i.fill_({bad})
    return found(request, arguments)
if "long" in {call!r}:
    x.long()
service._kept = kept
try:
    print("result", {call})
except (IndexError, RuntimeError) as error:
    print(type(error).__name__, bool(done), x.tolist() == kiln.arange(20.0).reshape(4, 5).tolist())
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1:] == ["True", "True"], done.stdout
