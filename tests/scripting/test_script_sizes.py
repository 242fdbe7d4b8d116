"""Scripts with sizes that vary: traced, saved and loaded they give, for other sizes, the function's bits."""

from __future__ import annotations

import io
from typing import Any

import pytest

import kiln
from kiln.export import Dim
from kiln.nn import Linear, Module

N = Dim("n")


def halved(x):
    while x.abs().max() > 0.1:
        x = x / 2
    return x


def numbers(x):
    s, k = 0.0, 0
    while s < 5.0 and k < 20:
        s = s + float(x.sum().abs())
        x = x * 1.5
        k += 1
    return x, s, k


def by_position(x):
    out = x.sum(0)
    for i in range(x.size(0)):
        out = out * 0.5 + x[i].tanh()
    i = 0
    while i < x.size(0):
        out = out + x[i] * i
        i += 1
    return out


def recurrent(x):
    outs = []
    h = x.sum(0) * 0
    for row in x:
        h = (h + row).tanh() if row.sum() > 0 else h - row
        outs.append(h)
    return kiln.stack(outs, 1), kiln.cat(outs), h, len(outs)


def after_others(x):
    outs = [x.sum(0)]
    for i, row in enumerate(x):
        outs.append(row * i)
    outs.append(x[0])
    return kiln.stack(outs), outs[0] + 1


def two_a_step(x):
    outs = ()
    for row, other in zip(x, reversed(range(x.size(0)))):
        outs = outs + (row.unsqueeze(0), x[other].unsqueeze(0) * 2)
    total = 0.0
    for v in outs:
        total = total + v
    return kiln.cat(outs, 1), total


def pairs(x):
    outs = [(row * 2, float(row.sum())) for row in x]
    return kiln.stack([a for a, _ in outs]), kiln.tensor([b for _, b in outs])


def ends_early(x):
    total = x.sum(0)
    for row in x:
        if row.sum() > 0.2:
            break
        total = total + row
    return total


def nested(x):
    rows = []
    for i in range(x.size(0)):
        total = 0.0
        for j in range(x.size(1)):
            total = total + x[i, j] * (i + j)
        rows.append(total)
    return kiln.stack(rows)


def written(x):
    y = kiln.zeros_like(x)
    for i in range(x.size(0)):
        y[i] = x[i] * 2
    if x.sum() > 0:
        y += 1
    return y, x * (x.size(0) if x.sum() > 0 else x.size(0) + 1)


def asks_sizes(x):
    if x.size(0) > 3:
        return x.sum(0)
    return x[0] * 2


def items_of_lists(x):
    outs = []
    for row in x:
        outs.append(row * 2)
    if not outs:
        return x
    t = x[0] * 0
    for i in range(len(outs)):
        t = t + outs[i] * i
    outs.append(x[0])
    return t, outs[-2], outs[-1], outs[0]


FUNCTIONS = [
    halved, numbers, by_position, recurrent, after_others, two_a_step, pairs, ends_early, nested, written,
    asks_sizes, items_of_lists,
]  # fmt: skip


def values(n: int, shift: float = 0.0) -> Any:
    return (kiln.arange(n * 3.0) * 1.7).sin().reshape(n, 3) + shift


def same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):
        return all(map(same, a, b)) and len(a) == len(b)
    if not isinstance(a, kiln.Tensor):
        return a == (b.item() if isinstance(b, kiln.Tensor) else b)
    a, b = a.detach(), b.detach()
    return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_other_sizes(f: Any) -> None:
    program = kiln.export.export(kiln.jit.script(f), (values(4),), dynamic_shapes={"x": {0: N}})
    file = io.BytesIO()
    program.save(file)
    file.seek(0)
    loaded = kiln.export.load(file)
    for x in (values(4), values(5, -0.5), values(1, 0.25), values(2, -2.0)):
        wanted = f(x)
        assert same(wanted, program(x))
        assert same(wanted, loaded(x))


@pytest.mark.parametrize("f", [by_position, recurrent, pairs], ids=lambda f: f.__name__)
def test_gradients_of_other_sizes(f: Any) -> None:
    program = kiln.export.export(kiln.jit.script(f), (values(4),), dynamic_shapes={"x": {0: N}})
    x = values(5, 0.1).requires_grad_()
    found = []
    for call in (f, program):
        made = call(x)
        parts = [y for y in (made if isinstance(made, tuple) else (made,)) if isinstance(y, kiln.Tensor)]
        found.append(kiln.autograd.grad(sum((y * y).sum() for y in parts if y.requires_grad), x)[0])
    assert kiln.allclose(*found, rtol=1e-5)


def reads_grown(x):
    outs = [x.sum(0)]
    for row in x:
        outs.append(outs[-1] + row)
    return kiln.stack(outs)


def pops_grown(x):
    outs = []
    for row in x:
        outs.append(row)
    outs.pop()
    return kiln.stack(outs)


def compares_grown(x):
    outs = []
    for row in x:
        outs.append(row)
    return x if outs == [] else x * 2


def returns_grown(x):
    outs = []
    for row in x:
        outs.append(row)
    return outs


def grows_at_times(x):
    outs = [x[0]]
    for row in x:
        if row.sum() > 0:
            outs.append(row)
    return kiln.stack(outs)


def unlike_items(x):
    outs = []
    for row in x:
        outs.append(row)
        outs.append(row.sum())
    return outs[0]


def writes_rows(x):
    y = x.clone()
    for row in y:
        row += 1
        if row.sum() > 3:
            break
    return y


def writes_views(x):
    y = x.clone()
    for i in range(y.size(0)):
        r = y[i]
        r += 1
    return y


def writes_what_it_adds(x):
    outs, total = [], x[0] * 0
    for row in x:
        total += row
        outs.append(total)
    return kiln.stack(outs)


def writes_what_it_added(x):
    y, outs = x.clone(), []
    for row in y:
        outs.append(row)
    y += 1
    return kiln.stack(outs)


def counts_beside(x):
    outs = []
    for row in x:
        outs.append(row)
    return x * len(tuple(1 for v in outs))


@pytest.mark.parametrize(
    ("f", "why"),
    [
        (writes_rows, "written by another name"),
        (writes_views, "written by another name"),
        (writes_what_it_adds, "writes in place"),
        (writes_what_it_added, "written by another name"),
        (counts_beside, "beside another loop"),
        (reads_grown, "reads a list while it grows|takes an item"),
        (pops_grown, "pop"),
        (compares_grown, "compares a list"),
        (returns_grown, "returns a list whose length is a size that varies"),
        (grows_at_times, "a list of 1 and a list of 2|a list in a branch"),
        (unlike_items, "cannot be stacked"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_lists_that_no_graph_holds(f: Any, why: str) -> None:
    with pytest.raises(RuntimeError, match=why):
        kiln.export.export(kiln.jit.script(f), (values(4),), dynamic_shapes={"x": {0: N}})


def writes_a_view(x):
    y = x.clone()
    q = y[int(x[0] > 0)]
    q += 1
    return y


@pytest.mark.filterwarnings("ignore::kiln.jit.TracerWarning")
def test_a_part_at_a_position_by_value_is_a_view() -> None:
    script = kiln.jit.script(writes_a_view)
    for x in (kiln.tensor([1.0, 2.0]), kiln.tensor([-1.0, 2.0])):
        assert same(writes_a_view(x), script(x))


def raises(x):
    for row in x:
        if row.sum() > 4:
            raise ValueError("a large row")
    return x * 2


def test_raises_and_stacks_nothing() -> None:
    program = kiln.export.export(kiln.jit.script(raises), (values(4),), dynamic_shapes={"x": {0: N}})
    assert same(program(values(6)), values(6) * 2)
    with pytest.raises(ValueError, match="a large row"):
        program(values(3, 5.0))
    stacked = kiln.export.export(kiln.jit.script(recurrent), (values(4),), dynamic_shapes={"x": {0: N}})
    with pytest.raises(RuntimeError, match="stack expects a non-empty TensorList"):
        stacked(kiln.zeros(0, 3))
    assert "equal bits" in str(stacked.verify(2))


@pytest.mark.parametrize("f", [halved, recurrent, numbers], ids=lambda f: f.__name__)
@pytest.mark.parametrize("rows", [4, None])
def test_nodes_of_graphs(f: Any, rows: int | None) -> None:
    x = kiln.graph.placeholder("x", (rows, 3))
    made = kiln.jit.script(f)(x)
    nodes = [y for y in (made if isinstance(made, tuple) else (made,)) if isinstance(y, kiln.Tensor)]
    found = kiln.graph.Graph([x], nodes)(values(4))
    wanted = f(values(4))
    wanted = (wanted if isinstance(wanted, tuple) else (wanted,))[: len(nodes)]
    assert same(wanted, tuple(found) if isinstance(found, (list, tuple)) else (found,))


class Chooses(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = Linear(3, 3)
        self.register_buffer("shift", kiln.ones(3))

    def forward(self, x):
        if x.sum() > 0:
            x = self.layer(x)
        return x + self.shift


def test_frozen(tmp_path: Any) -> None:
    model = Chooses().eval()
    scripted = kiln.jit.script(model)
    wanted = scripted(values(4))
    frozen = kiln.jit.freeze(scripted)
    assert not list(frozen.parameters()) and not list(frozen.buffers())
    kiln.jit.save(frozen, tmp_path / "frozen.kiln")
    with kiln.no_grad():
        model.layer.weight.zero_()
    assert same(wanted, frozen(values(4)))
    assert same(wanted, kiln.jit.load(tmp_path / "frozen.kiln")(values(4)))
    with pytest.raises(RuntimeError, match="eval mode"):
        kiln.jit.freeze(kiln.jit.script(Chooses()))


def test_scripts_in_traces_in_exports() -> None:
    script, model = kiln.jit.script(recurrent), Chooses()
    inner = kiln.jit.trace(lambda x: script(x)[1] * 2, (values(4),), dynamic_shapes={"x": {0: N}})
    scripted = kiln.jit.script(model)
    program = kiln.export.export(
        lambda x: inner(scripted(x)) + script(x)[1], (values(4),), dynamic_shapes={"x": {0: N}}
    )
    with pytest.raises(RuntimeError, match="stack expects a non-empty TensorList"):
        program(values(0))
    x = values(6)
    assert same(recurrent(model(x))[1] * 2 + recurrent(x)[1], program(x))


def deep(x):
    k = 0
    for a in range(3):
        if x[0] > a:
            k += 1
            if x[1] > a:
                x = x * 2
                if x[2] < a:
                    x, k = x - 1, k + 2
                    if x.sum() > a:
                        k, x = k - 1, x.sin()
                        if x[0] > 0:
                            x = x + k
    return x, k


def test_results_of_nested_branches_are_not_expanded_each() -> None:
    script = kiln.jit.script(deep)
    assert same(deep(values(1)[0]), script(values(1)[0]))
    seen: list[int] = []
    stack = [script.captured.graph]
    while stack:  # every graph that a call has is one object for all its results
        graph = stack.pop()
        for node in graph.nodes:
            if node.op.kind == "control":
                for sub in node.attrs[-1]:
                    if id(sub) not in seen:
                        seen.append(id(sub))
                        stack.append(sub.graph)
    assert len(seen) < 60
