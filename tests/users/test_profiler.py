"""`kiln.profiler`, `kiln.autograd.profiler`: what ran, how long, inside what."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from backend import kiln, needs_kiln

pytestmark = needs_kiln

PLANS = (
    {"wait": 1, "warmup": 1, "active": 2},
    {"wait": 1, "warmup": 1, "active": 2, "repeat": 1},
    {"wait": 0, "warmup": 0, "active": 1, "repeat": 2},
    {"wait": 2, "warmup": 1, "active": 3, "repeat": 2, "skip_first": 3},
    {"wait": 2, "warmup": 0, "active": 1, "skip_first": 1, "skip_first_wait": 1},
)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_schedules(plan: dict[str, int], answers: Any) -> None:
    def steps(library: Any) -> list[str]:
        action = library.profiler.schedule(**plan)
        return [action(step).name for step in range(16)]

    ours, theirs = answers.both(steps)
    assert ours == theirs


def test_schedules_that_make_no_turn() -> None:
    for wrong in ({"active": 0}, {"wait": -1}, {"repeat": -1}):
        with pytest.raises(ValueError):
            kiln.profiler.schedule(**{"wait": 1, "warmup": 1, "active": 1, **wrong})


def test_what_is_recorded_in_steps(answers: Any) -> None:
    """on_trace_ready at PyTorch's steps, with what its steps ran."""

    def ready(library: Any) -> list[Any]:
        told: list[Any] = []

        def note(profile: Any) -> None:
            names = [e.key for e in profile.key_averages() if e.key.startswith(("ProfilerStep", "mine"))]
            told.append([profile.step_num, sorted(names)])

        plan = library.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
        activities = [library.profiler.ProfilerActivity.CPU]
        with library.profiler.profile(activities=activities, schedule=plan, on_trace_ready=note) as profile:
            for _ in range(10):
                with library.profiler.record_function("mine"):
                    library.ones(3).exp()
                profile.step()
        return told

    ours, theirs = answers.both(ready)
    assert ours == theirs


def test_times_nest() -> None:
    x = kiln.ones(64, 64)
    with kiln.profiler.profile(record_shapes=True) as profile:
        with kiln.profiler.record_function("outer"):
            with kiln.profiler.record_function("inner"):
                y = x.exp()
            y = y @ x
        y.log()
    events = {e.name: e for e in profile.events()}
    outer, inner = events["outer"], events["inner"]
    assert outer.is_user_annotation and inner.cpu_parent is outer and events["exp"].cpu_parent is inner
    assert events["matmul"].cpu_parent is outer and events["log"].cpu_parent is None
    assert [e.name for e in outer.cpu_children] == ["inner", "matmul"]
    inside = inner.cpu_time_total + events["matmul"].cpu_time_total
    assert outer.self_cpu_time_total == pytest.approx(outer.cpu_time_total - inside)
    assert outer.start <= inner.start < inner.end <= outer.end
    # no moment is counted twice
    assert profile.events().self_cpu_time_total == pytest.approx(
        outer.cpu_time_total + events["log"].cpu_time_total
    )


def test_the_table_and_the_trace(tmp_path: Path) -> None:
    x = kiln.ones(8)
    with kiln.autograd.profiler.profile() as profile:
        for _ in range(3):
            x.exp()
        x.log()
    averages = profile.key_averages()
    assert {e.key: e.count for e in averages} == {"exp": 3, "log": 1}
    assert profile.total_average().count == 4
    lines = averages.table(sort_by="count", row_limit=1, header="title").splitlines()
    assert lines[0] == "title" and lines[2].split()[:3] == ["Name", "Self", "CPU"]
    assert lines[4].split()[0] == "exp" and lines[4].split()[-1] == "3"
    assert len({len(line) for line in lines[1:6]}) == 1 and lines[-1].startswith("Self CPU time total: ")
    with pytest.raises(AttributeError):
        averages.table(sort_by="nothing")
    for name, opened in (("trace.json", open), ("trace.json.gz", gzip.open)):
        profile.export_chrome_trace(str(tmp_path / name))
        with opened(tmp_path / name, "rt") as file:
            events = json.load(file)["traceEvents"]
        assert [e["name"] for e in events] == ["exp", "exp", "exp", "log"]
        assert all(e["ph"] == "X" and e["dur"] > 0 for e in events)
        assert [e["ts"] for e in events] == sorted(e["ts"] for e in events)


def test_nothing_is_kept_while_nothing_profiles(tmp_path: Path) -> None:
    with kiln.profiler.record_function("before"):
        kiln.ones(2).exp()
    with kiln.profiler.profile() as profile:
        threads = [threading.Thread(target=_in_a_thread) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with pytest.raises(RuntimeError, match="one profiler at a time"), kiln.profiler.profile():
            pass
    assert [e.count for e in profile.key_averages() if e.is_user_annotation] == [2]
    handler = kiln.profiler.tensorboard_trace_handler(str(tmp_path / "runs"), worker_name="me")
    with kiln.profiler.profile(on_trace_ready=handler):
        kiln.ones(2).exp()
    (file,) = (tmp_path / "runs").iterdir()
    assert file.name.startswith("me.") and file.name.endswith(".pt.trace.json")
    with pytest.raises(AssertionError, match="nothing was recorded"):
        kiln.profiler.profile().key_averages()
    with kiln.autograd.profiler.profile(enabled=False) as off:
        kiln.ones(2).exp()
    assert not off.function_events
    with pytest.raises(TypeError, match="'no_such'"):
        kiln.autograd.profiler.profile(no_such=True)


@kiln.profiler.record_function("thread")
def _in_a_thread() -> None:
    kiln.ones(2).exp()


def test_the_short_form_counts_as_before() -> None:
    with kiln.profile() as profile:
        kiln.ones(2).exp().exp()
    assert [(line.launches, line.seconds > 0) for line in profile.lines if line.name == "exp"] == [(2, True)]


# ---- memory ----


def test_memory_that_comes_and_goes() -> None:
    """What a kernel makes is its own; what goes in between is the range's around it, or nobody's."""
    x = kiln.ones(1024)
    with kiln.profiler.profile(profile_memory=True) as p:
        with kiln.profiler.record_function("outer"):
            y = x * 2
            with kiln.profiler.record_function("inner"):
                z = y.exp()
            del y
        w = z + 1
        del z
        w.add_(1)
    own = {e.name: e.self_cpu_memory_usage for e in p.events() if e.name != "add"}
    whole = {e.name: e.cpu_memory_usage for e in p.events()}
    assert own == {"outer": -4096, "mul": 4096, "inner": 0, "exp": 4096, "[memory]": -4096}
    assert whole["outer"] == 4096 and whole["inner"] == 4096
    assert [e.cpu_memory_usage for e in p.events() if e.name == "add"] == [4096, 0]
    assert p.key_averages().total_average().self_cpu_memory_usage == 4096
    lines = p.key_averages().table(sort_by="self_cpu_memory_usage").splitlines()
    assert lines[1].split()[-8:-3] == ["CPU", "Mem", "Self", "CPU", "Mem"]
    assert lines[3].split()[-5:] == ["4.00", "KB", "4.00", "KB", "1"]
    assert any(line.split()[0] == "[memory]" and "-4.00 KB" in line for line in lines)


def test_memory_of_a_step(tmp_path: Path) -> None:
    """Events sum to what storages came to hold, compiled too; a trace has each moment."""
    model = kiln.nn.Sequential(kiln.nn.Linear(16, 16), kiln.nn.ReLU(), kiln.nn.Linear(16, 4))
    x = kiln.ones(8, 16)

    def step() -> Any:
        model.zero_grad()
        loss = model(x).sum()
        loss.backward()
        return loss

    def held() -> int:
        bytes_: int = kiln._core.memory_stats()["allocated_bytes"]
        return bytes_

    for run in (step, kiln.compile(step, wait=True)):
        for _ in range(3):
            run()
        for options in ({}, {"record_shapes": True, "with_stack": True}):
            before = held()
            with kiln.profiler.profile(profile_memory=True, **options) as p:
                loss = run()
            assert sum(e.self_cpu_memory_usage for e in p.events()) == held() - before
            assert any(e.self_cpu_memory_usage > 0 for e in p.events())
            del loss
    p.export_chrome_trace(str(tmp_path / "trace.json"))
    told = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "i"]
    assert all(e["name"] == "[memory]" and e["args"]["Bytes"] for e in told)
    levels = [e["args"]["Total Allocated"] for e in told]
    assert [b - a for a, b in zip(levels, levels[1:])] == [e["args"]["Bytes"] for e in told[1:]]


def test_memory_is_not_looked_at_unasked() -> None:
    with kiln.profiler.profile() as p:
        kiln.ones(3).exp()
    assert "Mem" not in p.key_averages().table()
    assert not any(e.cpu_memory_usage for e in p.events())
    with kiln.autograd.profiler.profile(profile_memory=True) as q:
        kiln.ones(3).exp()
    assert "CPU Mem" in q.table()
