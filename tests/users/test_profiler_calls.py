"""What profiles tell of each kernel: shapes, lines, modules; tables, folded stacks, traces and flame graphs
of them.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from backend import kiln, needs_kiln

nn = kiln.nn
F = kiln.nn.functional

pytestmark = needs_kiln

SVG = "{http://www.w3.org/2000/svg}"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 5)
        self.b = nn.Sequential(nn.Linear(5, 5), nn.ReLU())

    def forward(self, x: Any) -> Any:
        x = F.gelu(self.a(x))
        return self.b(x)


FIRST = Net.forward.__code__.co_firstlineno + 1
X = kiln.ones(2, 4)


def profiled(**options: Any) -> Any:
    """A step of the net, forward and backward."""
    model = Net()
    with kiln.profiler.profile(**options) as profile:
        model(X).sum().backward()
    return profile


def test_events_tell_shapes_lines_modules_and_operations() -> None:
    profile = profiled(record_shapes=True, with_stack=True, with_modules=True, with_flops=True)
    events = {}
    for event in profile.events():
        events.setdefault((event.name, event.modules[-1].name if event.modules else None), event)
    first, second = events["linear", "a"], events["linear", "b.0"]
    assert first.input_shapes == [[2, 4], [5, 4], [5]] and first.flops == 80 and second.flops == 100
    assert [str(layer) for layer in second.modules] == ["Net", "b (Sequential)", "b.0 (Linear)"]
    file = re.escape(__file__)
    assert re.fullmatch(rf"{file}\({FIRST}\): Net.forward", first.stack[0])
    assert re.fullmatch(rf"{file}\({FIRST + 1}\): Net.forward", second.stack[0])
    assert re.fullmatch(rf"{file}\(\d+\): profiled", first.stack[1])
    assert events["gelu", ""].modules[0].kind == "Net" and events["sum", None].stack[0].endswith(": profiled")
    # backward is told where the forward call was
    for name in ("b.0", "a"):
        back = events["linear backward", name]
        assert back.stack == events["linear", name].stack and back.calls[0].backward
    assert events["relu backward", "b.1"].input_shapes == [[2, 5], [2, 5]]
    flops = sum(event.flops for event in profile.events())
    assert flops == 80 + 80 + 100 + 200  # a call of several kernels counts once


def test_only_what_is_asked_for_is_told() -> None:
    plain = profiled().events()
    assert all(not e.calls and e.input_shapes is None and e.stack == [] and not e.modules for e in plain)
    shapes = profiled(record_shapes=True).events()
    assert any(e.input_shapes for e in shapes) and not any(e.stack or e.flops or e.modules for e in shapes)
    with kiln.autograd.profiler.profile(record_shapes=True) as old:
        X.exp()
    assert [e.input_shapes for e in old.function_events] == [[[2, 4]]]


def test_averages_by_shape_and_by_line() -> None:
    def names(events: Any) -> dict[Any, int]:
        return {(e.key, str(e.input_shapes), *e.stack): e.count for e in events}

    with kiln.profiler.profile(record_shapes=True, with_stack=True) as profile:
        for n in (2, 2, 3):
            kiln.ones(n).exp()
        kiln.ones(2).exp()
    exps = {key: n for key, n in names(profile.key_averages()).items() if key[0] == "exp"}
    assert exps == {("exp", "None"): 4}
    by_shape = names(profile.key_averages(group_by_input_shape=True))
    assert by_shape["exp", "[[2]]"] == 3 and by_shape["exp", "[[3]]"] == 1
    by_line = [n for key, n in names(profile.key_averages(group_by_stack_n=1)).items() if key[0] == "exp"]
    assert sorted(by_line) == [1, 3]
    table = profile.key_averages(group_by_input_shape=True, group_by_stack_n=2).table()
    assert "Input Shapes" in table and "Source Location" in table and "Total FLOPs" not in table
    lines = [line for line in table.splitlines() if line.lstrip().startswith("exp ")]
    assert any("[[3]]" in line and "test_profiler_calls.py(" in line for line in lines)
    assert len({len(line.rstrip()) for line in table.splitlines() if line.startswith("---")}) == 1


def test_folded_stacks(tmp_path: Path, answers: Any) -> None:
    path = tmp_path / "stacks.txt"
    profile = profiled(with_stack=True)
    for event in profile.events():
        event.end += 3  # microseconds, so that none is rounded to 0
    profile.export_stacks(str(path))
    lines = path.read_text().splitlines()
    assert len(lines) == len(profile.events())
    assert all(re.fullmatch(r"[^ ]+ \d+", line) for line in lines)
    stack = next(line for line in lines if f"({FIRST}):_Net.forward" in line).rpartition(" ")[0].split(";")
    assert stack[-1].endswith("_Net.forward") and stack[-2].endswith("_profiled")

    def refusals(library: Any) -> list[Any]:
        told = []
        for options, metric in (({"with_stack": True}, "no_metric"), ({}, "self_cpu_time_total")):
            with library.profiler.profile(**options) as p:
                library.ones(2).exp()
            try:
                p.export_stacks(os.devnull, metric)
            except (ValueError, AssertionError) as error:
                told.append([type(error).__name__, str(error)[:30]])
        return told

    ours, theirs = answers.both(refusals)
    assert ours == theirs


def test_a_trace_has_shapes_lines_and_spans_of_modules(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    profiled(record_shapes=True, with_stack=True, with_modules=True).export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    linear = next(e for e in events if e["name"] == "linear")
    assert linear["args"]["Input Dims"] == [[2, 4], [5, 4], [5]]
    assert linear["args"]["Input type"] == ["float32"] * 3
    assert linear["args"]["Call stack"].endswith(f"({FIRST}): Net.forward")
    assert linear["args"]["Module Hierarchy"] == "Net.a"
    spans = [e for e in events if e.get("cat") == "module"]
    names = [e["name"] for e in spans]
    assert names[:5] == ["Net", "a (Linear)", "b (Sequential)", "b.0 (Linear)", "b.1 (ReLU)"]
    assert names[5:7] == ["Net backward", "b (Sequential) backward"]
    net, inner = spans[0], spans[1]
    assert net["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= net["ts"] + net["dur"] + 1e-6
    assert net["ts"] <= linear["ts"] and net["tid"] != linear["tid"]


def test_programs_of_compiled_functions_tell_of_all_their_lines() -> None:
    model = Net()

    @kiln.compile
    def step(x: Any) -> Any:
        y = model(x)
        return y.sum()

    for _ in range(3):
        step(X)
    kiln.compiler.wait()
    with kiln.profile(detail=True) as profile:
        step(X)
    programs = [e for e in profile.events if e.name.startswith("region: ")]
    kernels = ["product add gelu_exact", "product add relu", "blocks_sum", "sequence_sum"]
    assert [e.name for e in programs] == [f"region: {ops}" for ops in kernels]
    assert [[call.name for call in e.calls] for e in programs] == [
        ["linear", "gelu"],
        ["linear", "relu"],
        ["sum"],
        ["sum"],
    ]
    own = [{line.number for call in e.calls for line in call.place.lines[:1]} for e in programs]
    last = step.__wrapped__.__code__.co_firstlineno + 3
    assert own == [{FIRST}, {FIRST + 1}, {last}, {last}]
    assert [e.modules[-1].name if e.modules else None for e in programs] == ["", "b", None, None]
    assert not any(" more in one" in line.name for line in profile.by("line"))
    assert any(g.get("data-t") == "kernel of 2 calls" for g in boxes_of(profile.flame_graph()))


def test_regions_go_on_being_chosen_as_without_a_profile() -> None:
    """What a profile costs is not measured as the region's."""
    checked = kiln._core.set_check(False)  # which runs the ops beside the program, and measures nothing
    try:
        step = kiln.compile(lambda x: (x * 2 + 1).exp().sum(), wait=True)
        for _ in range(40):
            with kiln.profile(detail=True) as profile:
                step(X)
            assert all(line.name.startswith("region: ") for line in profile.lines)
    finally:
        kiln._core.set_check(checked)


def boxes_of(graph: Any) -> list[Any]:
    return [g for g in ElementTree.fromstring(graph.svg).iter(f"{SVG}g") if g.get("data-x")]


def test_the_short_profile_by_module_line_and_shape(tmp_path: Path) -> None:
    model = Net()
    with kiln.profile(detail=True) as profile:
        model(X).sum().backward()
    for what in ("function", "shape", "line", "module"):
        lines = profile.by(what)
        assert sum(line.launches for line in lines) == profile.launches == len(profile.events)
        assert sum(line.seconds for line in lines) == pytest.approx(profile.seconds)
        assert repr(lines).splitlines()[0].startswith(what)
    modules = {line.name for line in profile.by("module")}
    assert {"Net", "Net.a (Linear)", "Net.b.0 (Linear)", "Net.b.1 (ReLU)", "no module"} <= modules
    shapes = {line.name for line in profile.by("shape")}
    assert "linear(float32[2, 4], float32[5, 4], float32[5])" in shapes
    assert f"{__file__}:{FIRST}" in {line.name for line in profile.by("line")}
    profile.chrome_trace(tmp_path / "trace.json")
    assert "Module Hierarchy" in (tmp_path / "trace.json").read_text()
    with kiln.profile() as short:
        model(X)
    for ask in (lambda: short.by("line"), short.flame_graph, lambda: short.chrome_trace("x")):
        with pytest.raises(RuntimeError, match="detail=True"):
            ask()
    with pytest.raises(ValueError, match="'module'"):
        profile.by("colour")
    with pytest.raises(ValueError, match="module"):
        profile.flame_graph(by="colour")


def test_a_flame_graph(tmp_path: Path) -> None:
    model = Net()
    with kiln.profile(detail=True) as profile:
        model(X).sum().backward()
    graph = profile.flame_graph(tmp_path / "flame.html")
    page = (tmp_path / "flame.html").read_text()
    assert (
        page.startswith("<!doctype html>") and graph.svg in page and "http" not in page.replace(SVG[1:-1], "")
    )
    boxes = boxes_of(graph)
    found = {(g.get("data-t"), int(g.get("data-d") or 0)): g for g in boxes}
    assert {("all", 0), ("forward", 1), ("backward", 1), ("Net", 2), ("a (Linear)", 3)} <= set(found)

    def span(key: Any) -> tuple[float, float]:
        left = float(found[key].get("data-x") or 0)
        return left, left + float(found[key].get("data-w") or 0)

    whole, forward, backward = span(("all", 0)), span(("forward", 1)), span(("backward", 1))
    assert whole == (0.0, 1200.0) and forward[0] == 0 and forward[1] == pytest.approx(backward[0], abs=0.01)
    assert backward[1] == pytest.approx(1200, abs=0.01)
    for box in boxes:  # each lies on one below it
        left, level = float(box.get("data-x") or 0), int(box.get("data-d") or 0)
        right = left + float(box.get("data-w") or 0)
        under = [b for b in boxes if int(b.get("data-d") or 0) == level - 1]
        assert not level or any(
            float(b.get("data-x") or 0) <= left + 0.01
            and right <= float(b.get("data-x") or 0) + float(b.get("data-w") or 0) + 0.01
            for b in under
        )
    by_line = profile.flame_graph(by="line")
    labels = {g.get("data-t") or "" for g in ElementTree.fromstring(by_line.svg).iter(f"{SVG}g")}
    assert any(label.startswith("Net.forward test_profiler_calls.py:") for label in labels)
    assert "light-dark(" in graph.svg and graph.svg in graph._repr_html_()
    with pytest.raises(ValueError, match=".svg or .html"):
        graph.save(tmp_path / "flame.png")


def test_modules_are_named_as_in_the_model_and_threads_apart() -> None:
    shared = nn.Linear(4, 4)
    stranger = nn.Tanh()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([shared, nn.ReLU()])
            self.again = shared

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return stranger(self.again(x))

    model = Outer()
    with kiln.profile(detail=True) as profile:
        model(X)
        thread = threading.Thread(target=lambda: X.log())
        thread.start()
        thread.join()
    names = [str(e.modules[-1]) for e in profile.events if e.modules]
    assert names == ["layers.0 (Linear)", "layers.1 (ReLU)", "again (Linear)", "Tanh (Tanh)"] or names == [
        "again (Linear)", "layers.1 (ReLU)", "again (Linear)", "Tanh (Tanh)",
    ]  # fmt: skip
    logs = [e for e in profile.events if e.name == "log"]
    assert len(logs) == 1 and logs[0].thread != profile.events[0].thread


def test_what_watches_ends_with_its_profile() -> None:
    from kiln.autograd import watch

    with pytest.raises(ZeroDivisionError), kiln.profile(detail=True):
        raise ZeroDivisionError
    assert not watch._watchers
    seen: list[str] = []
    watcher = lambda number, name, handle, operands, forward, recorded: seen.append(name)  # noqa: E731
    watch.begin(watcher)
    try:
        y = X * 2
        y += 1
        y[0] = 3
        y.view(-1).sum()
    finally:
        watch.end(watcher)
    X.exp()
    assert seen[:2] == ["mul", "add"] and seen[-1] == "sum" and "exp" not in seen
    assert sys.getrefcount(y) == 2
