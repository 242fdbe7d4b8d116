"""`kiln.compile(fn, fullgraph=True)`: no value is read in silence, and what reads none runs."""

from __future__ import annotations

import math
from typing import Any

import pytest

import kiln
from kiln import nn

X = kiln.tensor([3.0])
READS: dict[str, Any] = {
    "str": str,
    "repr": repr,
    "format": lambda x: f"{x}",
    "format of an element": lambda x: f"{x[0]:.2f}",
    "print": print,
    "item": lambda x: x.item(),
    "tolist": lambda x: x.tolist(),
    "int": int,
    "float": float,
    "complex": complex,
    "bool": bool,
    "if": lambda x: 1 if x else 2,
    "not": lambda x: not x,
    "and": lambda x: x and 1,
    "while": lambda x: next(iter([1])) if x else 0,
    "compared": lambda x: x > 1 and x < 2,
    "max": lambda x: max(x, x + 1),
    "sorted": lambda x: sorted([x, x - 1]),
    "index": lambda x: [1, 2, 3, 4][x.long()],
    "range": lambda x: list(range(x.long())),
    "math": math.sqrt,
    "round": lambda x: round(float(x)),
    "in": lambda x: 3.0 in x,
    "is_nonzero": kiln.is_nonzero,
    "equal": lambda x: kiln.equal(x, x),
    "allclose": lambda x: kiln.allclose(x, x),
    "nonzero": kiln.nonzero,
    "mask": lambda x: x[x > 0],
    "assert": lambda x: exec("assert x", {"x": x}),
    "swallowed": lambda x: _swallowed(x),
}
_LAYER = nn.Linear(1, 1, bias=False)


def _swallowed(x: Any) -> float:
    try:
        return float(x)
    except RuntimeError:
        return 0.0


WHOSE: dict[str, Any] = {
    "input": lambda x: x,
    "result": lambda x: x * 2,
    "view": lambda x: x.view(1),
    "parameter": lambda x: _LAYER.weight.detach()[0],
    "lies about": lambda x: X,
}


@pytest.mark.parametrize("whose", WHOSE)
@pytest.mark.parametrize("read", READS)
def test_what_is_read_is_refused_with_its_line(read: str, whose: str) -> None:
    def f(x: Any) -> Any:
        READS[read](WHOSE[whose](x))
        return x + 1

    whole = kiln.compile(f, fullgraph=True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"fullgraph=True, but .* read a value at .*\w+.*:\d+"):
            whole(kiln.tensor([3.0]))
    assert kiln.compile(lambda x: x + 1, fullgraph=True)(X).item() == 4.0  # others go on
    assert X.item() == 3.0 and str(X) == "tensor([3.])"


def test_nested_calls_and_modules() -> None:
    """Inside another compiled function, in a module, in what kiln's own calls of the program read."""
    inner = kiln.compile(lambda x: x * float(x))
    with pytest.raises(RuntimeError, match="read a value"):
        kiln.compile(lambda x: inner(x), fullgraph=True)(X)
    assert inner(X).item() == 9.0

    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            return x if x else -x

    with pytest.raises(RuntimeError, match=r"read a value at .*test_fullgraph.py:\d+"):
        kiln.compile(nn.Sequential(nn.Identity(), Net()), fullgraph=True)(X)


_TARGETS = kiln.tensor([0, 1])


@pytest.mark.parametrize(
    "f",
    [
        lambda x: nn.functional.cross_entropy(x, _TARGETS),
        lambda x: nn.functional.embedding(_TARGETS, x),
        lambda x: kiln.full((2,), kiln.tensor(1.0)),
        lambda x: kiln.tensor([kiln.tensor(1), kiln.tensor(2)]),
        lambda x: [row.sum() for row in x],
        lambda x: x.reshape(x.shape[0], -1).sum(dim=len(x.shape) - 1),
        lambda x: x.detach().numpy().shape,
    ],
)
def test_what_kilns_functions_look_at_is_their_own(f: Any) -> None:
    """They check values of arguments that are there; NumPy is kept in one graph, as PyTorch does."""
    x = kiln.tensor([[1.0, 2.0], [3.0, 4.0]])
    for _ in range(2):
        kiln.compile(f, fullgraph=True)(x)


def test_a_training_step_is_whole() -> None:
    model = nn.Linear(2, 2)
    optimizer = kiln.optim.AdamW(model.parameters(), lr=kiln.tensor(0.1))

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), _TARGETS)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    whole = kiln.compile(step, fullgraph=True)
    losses = [whole(kiln.eye(2)).item() for _ in range(3)]
    assert losses[2] < losses[0]
