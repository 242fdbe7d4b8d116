"""What functions are called in graphs: as PyTorch shows them, where kiln goes by PyTorch's name."""

from __future__ import annotations

from typing import Any

import pytest
from backend import needs_torch, torch

import kiln
from kiln import fx
from kiln.fx import names

# one function with another, of which PyTorch has two: shown by the name of the other one
ALIKE = set(
    "sigmoid tanh logsigmoid threshold upsample upsample_bilinear upsample_nearest digamma erf erfc "
    "erfinv exp2 expit expm1 gammainc gammaincc gammaln i0 log1p log_softmax logit logsumexp "
    "multigammaln polygamma psi round sinc softmax xlogy det matrix_exp matrix_power".split()
)


def _shown(module: Any, function: Any) -> list[tuple[str, str]]:
    """Names and targets of the calls in a trace of the function, with as many arguments as it needs."""
    for count in range(1, 8):
        given = ", ".join("abcdefg"[:count])
        try:
            graph = module.fx.symbolic_trace(eval(f"lambda {given}: f({given})", {"f": function})).graph
        except Exception:  # so many it does not take
            continue
        nodes = [n for n in graph.nodes if n.op.startswith("call_")]
        return [(n.name, n.format_node().partition("[target=")[2].partition("]")[0]) for n in nodes]
    return []


@needs_torch
@pytest.mark.parametrize("place", ["nn.functional", "linalg", "special"])
def test_functions_are_shown_as_in_pytorch(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "root", lambda: "torch")
    ours, theirs = kiln, torch
    for part in place.split("."):
        ours, theirs = getattr(ours, part), getattr(theirs, part)
    compared = 0
    for name in dir(theirs):
        function = getattr(theirs, name)
        own = None if name.startswith("_") or isinstance(function, type) else getattr(ours, name, None)
        if not callable(own) or name in ALIKE:
            continue
        expected = _shown(torch, function)
        if expected and expected[0][1] != "__call__":
            assert _shown(kiln, own) == expected, name
            compared += 1
    assert compared > {"nn.functional": 80, "linalg": 30, "special": 25}[place]


def test_what_is_written_of_a_graph_is_found_again() -> None:
    """Source goes by kiln's own places, also of functions that PyTorch has in its core; losses have names."""

    def f(x: Any, y: Any) -> Any:
        y = kiln.nn.functional.soft_margin_loss(kiln.nn.functional.linear(x, x), y)
        return kiln.linalg.inv(kiln.nn.functional.gelu(x)) * kiln.einsum("ij,jk->ik", x, x) + y

    made = fx.symbolic_trace(f)
    x, y = kiln.randn(3, 3), kiln.ones(3, 3)
    assert kiln.equal(made(x, y), f(x, y))
    found = [n.name for n in made.graph.nodes if n.op == "call_function"]
    assert found == ["linear", "soft_margin_loss", "gelu", "linalg_inv", "einsum", "mul", "add"]
    assert "kiln.linalg.inv(" in made.code and "kiln.nn.functional.soft_margin_loss(" in made.code
