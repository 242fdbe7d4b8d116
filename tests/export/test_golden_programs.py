"""The texts of programs' files, beside those of before: a change of the format is seen, and meant.

`KILN_WRITE_GOLDEN=1` writes them anew.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kiln
import kiln.nn.functional as F
from kiln import nn
from kiln.export import Dim

GOLDEN = Path(__file__).parents[1] / "golden"
x, y = kiln.arange(6.0).reshape(2, 3), kiln.ones(2, 3)
n = Dim("n", min=2)


class Cube(kiln.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * 3 * x * x


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", kiln.zeros(()))

    def forward(self, x: Any) -> Any:
        self.count += 1
        return x * self.count


def _linear(*sizes: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])))


def _written(x: Any, y: Any) -> Any:
    x[0] += y[0]
    return {"sum": x.sum(), "both": (x, y)}


def _summed(x: Any) -> Any:
    total = kiln.graph.while_loop(
        lambda k, s: k < 3, lambda k, s: (k + 1, s + x.sum()), (kiln.tensor(0), x.sum())
    )
    return total[1]


class Case(NamedTuple):
    function: Callable[..., Any]
    args: tuple[Any, ...]
    dims: Any = None
    on_data: str = "refuse"


CASES = {
    "pointwise": Case(lambda x, y: x * 2.0 + y.exp() / 3, (x, y)),
    "broadcast": Case(lambda x, y: x + y[0], (x, y)),
    "product": Case(lambda x, y: x @ y.T, (x, y)),
    "reduced": Case(lambda x: (x.sum(0), x.mean(1, keepdim=True), x.amax()), (x,)),
    "softmax": Case(lambda x: F.softmax(x, 1), (x,)),
    "views": Case(lambda x: x.reshape(3, 2).t()[:, 1:].unsqueeze(0).expand(4, -1, -1), (x,)),
    "joined": Case(lambda x, y: kiln.cat([x, kiln.stack([y, y]).flatten(0, 1)]), (x, y)),
    "several": Case(lambda x: x.max(1), (x,)),
    "indexed": Case(lambda x, i: x[:, i], (x, kiln.tensor([2, 0]))),
    "layers": Case(_linear(3, 4, 2), (x,)),
    "normed": Case(nn.LayerNorm(3), (x,)),
    "trained": Case(nn.BatchNorm1d(3), (x,)),
    "counting": Case(Counting(), (x,)),
    "dropped": Case(nn.Dropout(0.5), (x,)),
    "written": Case(_written, (x, y)),
    "sized": Case(lambda x: x.reshape(-1) * x.shape[0], (x,), {"x": {0: n}}),
    "derived": Case(lambda x, y: (x.sum(), y.shape[0] // 2), (y, y.T), {"x": {0: n}, "y": {0: n + 1}}),
    "custom": Case(Cube.apply, (x,)),
    "branch": Case(lambda x: kiln.graph.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)), (x,)),
    "loop": Case(_summed, (x,)),
    "asking": Case(lambda x, y: x + y if x.is_contiguous() and x is not y else x - y, (x, y)),
    "reading": Case(lambda x: x * 2 if x.sum() > 0 else x, (x,), None, "check"),
    "attention": Case(lambda x, y: F.scaled_dot_product_attention(x, y, y), (x[None], y[None])),
}  # fmt: skip


def _texts(case: Case) -> str:
    export = kiln.export.draft_export if case.on_data == "check" else kiln.export.export
    file = io.BytesIO()
    kiln.export.save(export(case.function, case.args, dynamic_shapes=case.dims), file)
    held = file.getvalue()
    header = json.loads(held[8 : 8 + int.from_bytes(held[:8], "little")])
    told = header["__metadata__"]
    signature = json.loads(told["kiln.signature"])
    lines = [told["kiln.graph"].rstrip("\n"), "", *(f"{k}: {json.dumps(v)}" for k, v in signature.items())]
    looks = [f"{k}: {v['dtype']} {v['shape']}" for k, v in sorted(header.items()) if k != "__metadata__"]
    here = re.compile(r"[^\s\"]*test_golden_programs\.py:\d+")
    return here.sub("here", "\n".join([f"format {told['kiln.program']}", *lines, "", *looks, ""]))


@pytest.mark.filterwarnings("ignore:draft_export")
@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    """The texts are those of before."""
    kept = GOLDEN / f"program_{name}.txt"
    found = _texts(CASES[name])
    if os.environ.get("KILN_WRITE_GOLDEN"):
        kept.write_text(found)
    assert found == kept.read_text()
