"""Pictures of graphs: what they say, that nothing hides anything else, and that drawing changes nothing."""

from __future__ import annotations

import re
import stat
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kiln
from kiln import nn
from kiln.viz import dot, words
from kiln.viz.layout import Layout, Link, place
from kiln.viz.trace import Input

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True)
def own_layout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Graphviz is not asked, unless a test puts a program there."""
    monkeypatch.setenv("PATH", str(tmp_path))


def boxes(drawing: Any) -> dict[str, list[str]]:
    """What stands in each box, by its first line, from the SVG."""
    found: dict[str, list[str]] = {}
    for group in ElementTree.fromstring(drawing.svg).iter(f"{SVG}g"):
        if group.find(f"{SVG}rect") is not None and group.get("text-anchor") == "middle":
            title, *lines = [text.text or "" for text in group.findall(f"{SVG}text")]
            found[title] = lines
    return found


def tips(drawing: Any) -> list[str]:
    groups = ElementTree.fromstring(drawing.svg).iter(f"{SVG}g")
    return [g.findtext(f"{SVG}title") or "" for g in groups if g.get("text-anchor") == "middle"]


def test_a_polynomial() -> None:
    x = kiln.tensor(2.0, requires_grad=True)
    drawing = kiln.viz.graph(x * x + 3 * x + 1, {"x": x})
    line = f"test_viz.py:{sys._getframe().f_lineno - 1}"
    found = boxes(drawing)
    assert found == {
        "mul": ["float32 ()", f"saves 4 B, {line}"],
        "mul(3, ·)": ["float32 ()", line],
        "add": ["float32 ()", line],
        "add(1)": ["float32 ()", line],
        "x": ["float32 ()"],
        "result": ["float32 ()"],
    }
    assert drawing._repr_svg_() == drawing.svg
    assert [(a.source, a.target) for a in drawing._picture.arrows].count((4, 0)) == 2  # x * x reads x twice


def test_names_come_from_a_module_or_a_dict() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    x = kiln.ones(5, 4)
    hidden = model[1](model[0](x))
    loss = model[2](hidden).sum()
    found = boxes(kiln.viz.graph({"loss": loss}, model))
    assert {"0.weight", "0.bias", "2.weight", "2.bias", "loss", "data"} <= set(found)
    assert found["0.weight"] == ["float32 (3, 4)"]
    named = {**dict(model.named_parameters()), "x": x, "hidden": hidden}
    found = boxes(kiln.viz.graph(loss, named))
    assert {"x", "hidden = tanh", "0.weight"} <= set(found) and "data" not in found
    assert "x" not in boxes(kiln.viz.graph(loss, named, data=False))


def test_every_call_shows_the_shape_of_its_result() -> None:
    x = kiln.randn(4, 6, requires_grad=True)
    first, second = (x * 2).split(3, 1)
    y = nn.functional.layer_norm(first @ second.t(), (4,)).softmax(-1).unsqueeze(0).expand(2, 4, 4)
    y = kiln.cat([y, y.max(1, keepdim=True).values], 1).transpose(0, 1)[1:3, :, ::2]
    for part in (y, y.grad_fn):
        calls = kiln.viz.trace.trace(part).calls
        assert len(calls) > 9 and all(None not in call.shapes.values() and call.shapes for call in calls[1:])
    shown = boxes(kiln.viz.graph(y))
    assert shown["mul(2)"][0] == "float32 (4, 6)" and shown["softmax(dim=-1)"][0] == "float32 (4, 4)"
    assert shown["[1:3]"][0] == "float32 (2, 2, 4)" and shown["[:, :, ::2]"][0] == "float32 (2, 2, 2)"


def first_call(op: Any) -> list[Any]:
    """The results that require gradients of an op's first sample."""

    def lifted(value: Any) -> Any:
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], np.ndarray):
            return [lifted(v) for v in value]
        if not isinstance(value, np.ndarray):
            return value
        x = kiln.tensor(value)
        return x.requires_grad_() if x.dtype.is_floating_point else x

    sample = op.samples(np.random.default_rng(0), "float32")[0]
    given = [lifted(v) for v in sample.args]
    result = op.handle(*given, **{k: lifted(v) for k, v in sample.kwargs.items()})
    results = result if isinstance(result, (tuple, list)) else [result]
    return [y for y in results if y.requires_grad]


def test_arguments_of_every_op_have_their_names() -> None:
    """Each argument a node has is one of its op's parameters, whatever its kind; all can be drawn."""
    pytest.importorskip("scipy", reason="some are of kiln.linalg")
    drawn = 0
    for op in kiln.ops.table():
        if not (op.differentiable and op.samples) or not (results := first_call(op)):
            continue
        drawn += 1
        for call in kiln.viz.trace.trace(results).calls:
            known = [value for _, value in words.arguments(call)]
            inputs = [i for v in known for i in (v if type(v) is tuple else [v]) if isinstance(i, Input)]
            assert inputs == call.inputs, (op.name, call.name)
        ElementTree.fromstring(kiln.viz.graph(results).svg)
    assert drawn > 200


def test_writes_views_and_functions_of_the_user() -> None:
    class Double(kiln.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    x = kiln.ones(2, 3, requires_grad=True)
    y = Double.apply(x)
    z = y.clone()
    z[0].mul_(y[1])
    assert {"Double", "write to a view", "clone", "[0]"} <= set(boxes(kiln.viz.graph(z)))


def test_saved_tensors_and_what_backward_frees() -> None:
    x = kiln.ones(3, requires_grad=True)
    y = x.exp().sum()
    assert boxes(kiln.viz.graph(y, saved=True))["saved result"] == ["float32 (3,)", "12 B"]
    y.backward()
    assert boxes(kiln.viz.graph(y))["exp"][1].startswith("freed, ")
    assert "freed by backward" in "".join(tips(kiln.viz.graph(y)))
    with kiln.autograd.graph.saved_tensors_hooks(lambda t: t.tolist(), kiln.tensor):
        y = x.exp()
    assert any("12 B, with hooks" in tip for tip in tips(kiln.viz.graph(y)))


def test_memory_saved_twice_counts_once() -> None:
    x = kiln.ones(100, requires_grad=True)
    assert "saves 400 B" in repr(kiln.viz.graph((x * x).sum() + (x * x).mean()))


def test_results_of_every_kind() -> None:
    x = kiln.ones(2, requires_grad=True)
    plain = kiln.ones(3)
    assert set(boxes(kiln.viz.graph(x, {"x": x}))) == {"x", "result"}
    assert set(boxes(kiln.viz.graph(plain))) == {"result"}
    found = boxes(kiln.viz.graph({"a": x * 2, "b": [x.exp(), plain]}))
    assert {"a", "b[0]", "b[1]"} <= set(found)
    assert set(boxes(kiln.viz.graph((x * 2).grad_fn))) == {"mul(2)", "leaf"}
    for wrong in (None, 3, "x", [x, 2.0]):
        with pytest.raises(TypeError, match="viz.graph: expected a tensor"):
            kiln.viz.graph(wrong)
    with pytest.raises(TypeError, match="params"):
        kiln.viz.graph(x, [x])
    with pytest.raises(ValueError, match="max_nodes"):
        kiln.viz.graph(x, max_nodes=0)


HOSTILE = [
    'a "b" <c> & \\ d',
    "名前 ü",
    "</title><script>x</script>]]>",
    "\0\x1b[31m\n\ud800\u202e",
    "\\N&lt;%s",
]


@pytest.mark.parametrize("name", [*HOSTILE, "x" * 10_000], ids=range(6))
def test_names_stay_text(name: str, tmp_path: Path) -> None:
    x = kiln.ones(2, requires_grad=True)
    drawing = kiln.viz.graph({name: x * 2}, {name: x})
    shown = words.printable(name.replace("\n", " "), words.LONGEST)
    assert shown in boxes(drawing) and len(shown) <= words.LONGEST
    assert all(tag.tag != f"{SVG}script" for tag in ElementTree.fromstring(drawing.svg).iter())
    assert "�" in shown if "\0" in name else name.startswith("x") or shown == name
    drawing.save(tmp_path / "graph.svg")
    assert (tmp_path / "graph.svg").read_text("utf-8") == drawing.svg
    assert len(drawing.svg) < 10_000 and len(repr(drawing)) < 300
    string = r'"(?:[^"\\]|\\.)*"'
    statement = rf"  n\d+ \[label={string}, tooltip={string}, fillcolor={string}, color={string}\];"
    lines = [line for line in drawing.dot.splitlines() if line.startswith("  n") and "->" not in line]
    assert len(lines) == 4 and all(re.fullmatch(statement, line) for line in lines[1:])


def test_saving(tmp_path: Path) -> None:
    drawing = kiln.viz.graph(kiln.ones(2, requires_grad=True) * 2)
    drawing.save(str(tmp_path / "g.dot"))
    assert (tmp_path / "g.dot").read_text() == drawing.dot and drawing.dot.startswith("digraph")
    with pytest.raises(ValueError, match="ends in .svg"):
        drawing.save(tmp_path / "g.png")
    assert [p.name for p in tmp_path.iterdir()] == ["g.dot"]


def test_large_graphs_say_what_is_left_out() -> None:
    c = kiln.ones(2, requires_grad=True)
    y = c
    for _ in range(3000):
        y = (y * 1.01).tanh()
    drawing = kiln.viz.graph(y, {"c": c})
    assert set(boxes(drawing)) == {"c", "6,000 ops", "result"}
    assert "6,000 ops; chains of ops are drawn as one box; max_nodes=300" in drawing.svg
    for _ in range(100):
        y = y * y.exp()
    drawing = kiln.viz.graph(y, max_nodes=50)
    assert "6,200 ops" in drawing.svg and "6,150 earlier ops left out" in drawing.svg
    assert "…" in boxes(drawing) and drawing.svg.count("<rect") < 70
    assert repr(drawing).startswith("graph of 6,200 ops (mul 3100, tanh 3000, exp 100) and 1 leaf")


def test_drawing_keeps_nothing_alive_and_computes_nothing() -> None:
    x = kiln.ones(1000, requires_grad=True)
    before = kiln.memory_stats()["allocated_bytes"]
    y = x.exp().exp()
    drawing = kiln.viz.graph(y, {"x": x})
    del y
    assert kiln.memory_stats()["allocated_bytes"] == before
    assert "exp" in boxes(drawing)


def test_inside_a_recorded_region() -> None:
    drawn = []

    @kiln.compile(wait=True)
    def step(x: Any) -> Any:
        y = (x * 2).exp().sum()
        drawn.append(kiln.viz.graph(y, {"x": x}))
        return y * 3

    x = kiln.ones(4, requires_grad=True)
    for _ in range(3):
        step(x)
    assert "1 different recordings" in step.explain()
    assert "value was read" not in step.explain()
    for drawing in drawn:
        assert boxes(drawing)["exp"][0] == "float32 (4,)" and "x" in boxes(drawing)


def test_drawing_does_not_touch_the_graph() -> None:
    x = kiln.ones(3, requires_grad=True)
    y = (x * x).exp().sum()
    kiln.viz.graph(y, {"x": x}, saved=True)
    y.backward()
    assert x.grad.tolist() == pytest.approx([2 * 2.718281828] * 3) and y.grad_fn is not None


# -- layout -------------------------------------------------------------------------------------------


@st.composite
def dags(draw: Any) -> tuple[list[tuple[float, float]], list[Link]]:
    count = draw(st.integers(1, 25))
    size = st.tuples(st.sampled_from([30.0, 80.0, 160.0]), st.sampled_from([20.0, 50.0]))
    sizes = draw(st.lists(size, min_size=count, max_size=count))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    chosen = [p for p in draw(st.lists(pairs, max_size=50)) if p[0] < p[1]]
    return sizes, [Link(a, b, k, draw(st.integers(0, 1))) for k, (a, b) in enumerate(chosen)]


def on_curve(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points on cubic curves."""
    found = []
    for k in range(0, len(points) - 3, 3):
        for step in range(9):
            t = step / 8
            w = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
            near = points[k : k + 4]
            found.append((sum(a * p[0] for a, p in zip(w, near)), sum(a * p[1] for a, p in zip(w, near))))
    return found


def inside(point: tuple[float, float], centre: tuple[float, float], size: tuple[float, float]) -> bool:
    return all(abs(p - c) < s / 2 - 0.5 for p, c, s in zip(point, centre, size))


@settings(max_examples=60)
@given(dags())
def test_boxes_stand_apart_and_arrows_go_round_them(case: Any) -> None:
    sizes, links = case
    layout = place(sizes, links)
    assert len(layout.centres) == len(sizes) and len(layout.curves) == len(links)
    for (x, y), (w, h) in zip(layout.centres, sizes):
        assert w / 2 - 0.1 <= x <= layout.width - w / 2 + 0.1 and h / 2 - 0.1 <= y <= layout.height
    for a, ca in enumerate(layout.centres):
        for b, cb in enumerate(layout.centres[:a]):
            apart = [abs(p - q) - (s + t) / 2 for p, q, s, t in zip(ca, cb, sizes[a], sizes[b])]
            assert max(apart) > 5.0, (a, b)
    for link, curve in zip(links, layout.curves):
        (_, start), (_, end) = curve[0], curve[-1]
        assert start == pytest.approx(layout.centres[link.source][1] + sizes[link.source][1] / 2)
        assert end == pytest.approx(layout.centres[link.target][1] - sizes[link.target][1] / 2)
        assert all(a[1] <= b[1] + 1e-6 for a, b in zip(curve, curve[1:]))  # downwards
        for point in on_curve(curve):
            assert not any(map(inside, [point] * len(sizes), layout.centres, sizes))


def test_arguments_stand_in_order() -> None:
    layout = place([(60.0, 40.0)] * 4, [Link(2, 3, 0, 0), Link(0, 3, 1, 0), Link(1, 3, 2, 0)])
    assert layout.centres[2][0] < layout.centres[0][0] < layout.centres[1][0]


def test_a_chain_is_straight_and_a_trunk_is_shared() -> None:
    """Ten steps, one weight for all."""
    links = [Link(k, k + 1, 0, 0) for k in range(1, 10)] + [Link(0, k, 1, 0) for k in range(2, 11)]
    layout = place([(60.0, 40.0)] * 11, links)
    steps = [layout.centres[k][0] for k in range(2, 11)]
    assert max(steps) - min(steps) < 20
    pieces = {tuple(c[k : k + 4]) for c in layout.curves[9:] for k in range(0, len(c) - 3, 3)}
    assert len(pieces) < 40  # of 9 separate arrows: over 80


@pytest.mark.parametrize(
    "program",
    ["print('graph 1 2')", "raise SystemExit(1)", "print('edge 0 1 x')"],
    ids=["short", "fails", "wrong"],
)
def test_graphviz_that_does_not_manage_is_done_without(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_program(tmp_path, program)
    assert dot.layout([(10.0, 10.0)] * 2, [Link(0, 1, 0, 0)]) is None
    assert "exp" in boxes(kiln.viz.graph(kiln.ones(2, requires_grad=True).exp()))


def test_graphviz_is_given_numbers_alone(tmp_path: Path) -> None:
    """A stand-in for its program that keeps what it is told and puts boxes below each other."""
    told = tmp_path / "told"
    put_program(
        tmp_path,
        f"""
import re, sys
text = sys.stdin.read()
open({str(told)!r}, "w").write(text)
boxes = re.findall(r"^(\\d+) \\[width=(\\S+), height=(\\S+),", text, re.M)
print("graph 1 9", len(boxes))
for k, w, h in boxes:
    print("node", k, 2, len(boxes) - int(k) - 0.5, w, h, "x solid box black lightgrey")
for a, b in re.findall(r"^(\\d+) -> (\\d+);", text, re.M):
    print("edge", a, b, 4, 2, 3, 2, 2, 2, 1, 2, 0.5, "solid black")
print("stop")
""",
    )
    x = kiln.ones(2, requires_grad=True)
    drawing = kiln.viz.graph(x.exp(), {"secret": x})
    assert set(boxes(drawing)) == {"exp", "secret", "result"}
    assert "secret" not in told.read_text() and "exp" not in told.read_text()
    assert "M144.0 0.0 C144.0 72.0 144.0 144.0 144.0 180.0" in drawing.svg  # 2 inches from the left, y turned
    found = dot.layout([(72.0, 36.0)] * 2, [Link(0, 1, 0, 0)])
    assert isinstance(found, Layout) and found.centres == [(144.0, 36.0), (144.0, 108.0)]


def put_program(folder: Path, text: str) -> None:
    """A program `dot` written in Python."""
    path = folder / "dot"
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


class Block(nn.Module):
    """A residual block: its sums read no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.mlp = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def forward(self, x: Any) -> Any:
        x = x * 2
        return x + self.mlp(self.norm(x))


class Stack(nn.Module):
    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.inp = nn.Linear(3, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(count))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def test_modules_fold() -> None:
    """Every block is one box, with what its forward computes without parameters."""
    model = Stack()
    loss = model(kiln.ones(5, 3)).sum()
    found = boxes(kiln.viz.graph(loss, model, depth=1))
    assert set(found) == {
        "data", "inp Linear", "blocks.0 Block", "blocks.1 Block", "blocks.2 Block", "head Linear", "sum",
        "result",
    }  # fmt: skip
    assert found["blocks.1 Block"][1].startswith("6 ops") and found["blocks.1 Block"][2] == "48 parameters"
    deeper = boxes(kiln.viz.graph(loss, model, depth=2))
    assert {"blocks.1.norm LayerNorm", "blocks.1.mlp Sequential", "mul(2)", "add"} <= set(deeper)
    assert "blocks.1.mlp.0.weight" not in deeper and "blocks.1 Block" not in deeper
    unfolded = boxes(kiln.viz.graph(loss, model))
    assert "tanh" in unfolded and "blocks.1.mlp.0.weight" in unfolded
    with pytest.raises(ValueError, match="depth of at least 1"):
        kiln.viz.graph(loss, model, depth=0)


def test_large_models_fold_as_far_as_they_must() -> None:
    model = Stack(12)
    drawing = kiln.viz.graph(model(kiln.ones(5, 3)).sum(), model, max_nodes=20)
    found = boxes(drawing)
    assert len([title for title in found if title.endswith(" Block")]) == 12 and "chain" not in drawing.svg


def test_folded_arrows_make_no_circle() -> None:
    """A module that is used before and after another has a box for each time."""
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = a, b

        def forward(self, x: Any) -> Any:
            return self.a(self.b(self.a(x)))

    model = Twice()
    drawing = kiln.viz.graph(model(kiln.ones(2, 3)).sum(), model, depth=1)
    titles = [box.title for box in drawing._picture.boxes]
    assert titles.count("a Linear") == 2 and titles.count("b Linear") == 1
    order = {k: place for place, k in enumerate(range(len(titles)))}
    calls = [k for k, box in enumerate(drawing._picture.boxes) if box.kind == "module"]
    arrows = [
        (x.source, x.target) for x in drawing._picture.arrows if x.source in calls and x.target in calls
    ]
    assert all(order[source] < order[target] for source, target in arrows) and len(arrows) == 2


def test_a_page_opens_modules(tmp_path: Path) -> None:
    model = Stack()
    drawing = kiln.viz.graph(model(kiln.ones(5, 3)).sum(), model)
    drawing.save(tmp_path / "graph.html")
    page = (tmp_path / "graph.html").read_text(encoding="utf-8")
    links = re.findall(r'<a href="#([\w-]+)">', page)
    assert len(set(links)) == len(links) == 6  # blocks, and what is in each
    assert all(page.count(f'<details id="{link}">') == 1 for link in links)
    assert page.count("<details") == page.count("</details>") == len(links)
    assert "blocks.1.mlp Sequential" in page and "light-dark(" in page
    inner = drawing._folded.inside
    titles = {box.title for picture in inner.values() for box in picture.boxes}
    assert {"input", "output", "add"} <= titles
    assert not kiln.viz.graph(kiln.ones(2, requires_grad=True) * 2)._folded.inside
    assert drawing._repr_html_() is None
    folded = kiln.viz.graph(model(kiln.ones(5, 3)).sum(), model, depth=1)
    assert "<details" in (folded._repr_html_() or "")
