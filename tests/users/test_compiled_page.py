"""`explain().html()`: what kiln.compile recorded, as a page that needs nothing else."""

from __future__ import annotations

import pickle
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from backend import kiln, needs_kiln

from kiln.viz.lives import Array, held_at_once

nn = kiln.nn

pytestmark = needs_kiln

VOID = {"meta", "br", "rect", "path", "img"}


class Page(HTMLParser):
    """The rows of tables, the texts of details and pictures; elements that are not closed are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [v for k, v in attrs if k in ("href", "src", "xlink:href") and v and v[:1] != "#"]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("style", "script"):
            return
        self.text.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def table(self, head: str) -> list[list[str]]:
        """The rows below the one that begins so."""
        at = next(k for k, row in enumerate(self.rows) if row[:1] == [head])
        width = len(self.rows[at])
        return [row for row in self.rows[at + 1 :] if len(row) == width]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.last = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.last(self.inner(x)).tanh()


def training() -> Any:
    """A compiled step of a net that was called, of two ranks."""
    model = Net()
    optimizer = kiln.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    @kiln.compile(wait=True)
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(3):
        step(kiln.randn(5, 6))
    step(kiln.randn(1, 6))
    return step


def test_a_page_of_a_step(tmp_path: Path) -> None:
    """It is whole, says what the text says, and has a row for each kernel with its lines, time and bytes."""
    step = training()
    told = step.explain()
    text = told.html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == text
    page = Page(text)
    assert not page.links and "http" not in re.sub(r"http://www\.w3\.org/\S+", "", text)
    assert page.table("times")[0] == ["4", "the call returned", ""]
    ((count, before, now, where),) = page.table("recordings")[:1]
    assert count == "1" and before != now and "float32[1, n]" in now and ".py:" in where
    assert before in told and now in told
    rows = page.table("#")
    assert len(rows) >= sum(r["kernels"] for r in step._region.describe(False)["recordings"])
    product = next(row for row in rows if row[1].startswith("product"))
    own = Net.forward.__code__.co_firstlineno + 1
    assert f"test_compiled_page.py:{own}" in product[1] and "loops" in product[1]
    assert re.search(r"\d us", product[2]) and re.match(r"[\d.]+ K?B", product[3]) and "% of" in product[5]
    # 2 m n k of the first product of 5 rows, by 6, by 8
    assert any(row[4] == "480" for row in rows if row[1].startswith("product"))
    joined = " ".join(page.text)
    assert "inner" in joined and "last" in joined, "modules are boxes"
    assert "temporaries" in joined


def test_a_notebook_shows_a_part_of_it() -> None:
    part = training().explain()._repr_html_()
    Page(part)
    assert part.startswith("<div") and "<html" not in part


def test_a_place_is_listed_once_with_its_count() -> None:
    @kiln.compile(wait=True)
    def f(x: Any, n: int) -> Any:
        for _ in range(n):
            x = x * 2
            if x.sum() > 0:  # read at this line
                x = x + 1
        return x

    for n in (1, 2, 3, 2):
        f(kiln.ones(3), n)
    page = Page(f.explain().html())
    ends = page.table("times")
    reads = [row for row in ends if row[1] == "a value was read"]
    assert len(reads) == 1 and reads[0][0] == "8"
    line = f.__wrapped__.__code__.co_firstlineno + 4
    assert reads[0][2].endswith(f"test_compiled_page.py:{line}")


def test_what_is_switched_off_says_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """With both times, in the text and on the page."""
    from kiln.capture import service

    why = "recording it was measured to cost more than it saves"
    monkeypatch.setitem(service._ANSWERS, "decide", lambda *known: (True, why))
    checked = kiln._core.set_check(False)  # which measures nothing
    try:
        step = kiln.compile(lambda x: (x + 1).tanh().sum())
        for _ in range(40):
            step(kiln.ones(64, 64))
            kiln.compiler.wait()
    finally:
        kiln._core.set_check(checked)
    assert step.stats()["off"]
    text = step.explain()
    page = " ".join(Page(text.html()).text)
    help_ = re.search(r"what would help: (.*)", text)
    assert help_ and help_[1] in page and f"Switched off: {why}" in re.sub(" +", " ", page)
    times = re.search(
        r"its program takes [\d.]+ us with recording, its ops [\d.]+ us: it runs op by op", text
    )
    assert times and times[0] in page


def test_a_function_that_was_not_called() -> None:
    page = Page(kiln.compile(lambda x: x).explain().html())
    assert "not called yet" in page.text


def test_names_of_tensors_are_those_that_are_given() -> None:
    weights = {"weight_in": kiln.randn(4, 4), "weight_out": kiln.randn(4, 4)}

    @kiln.compile(wait=True)
    def f(x: Any) -> Any:
        return (x @ weights["weight_in"]).relu() @ weights["weight_out"]

    f(kiln.randn(2, 4))
    told = f.explain()
    assert "weight_out" not in told.html() and "weight_out" in told.html(params=weights)


def test_a_pure_function_has_its_text_as_a_page() -> None:
    cell = kiln.compile(lambda x: x.tanh() * 2, pure=True)
    cell(kiln.ones(3))
    told = cell.explain()
    assert told.splitlines()[0] in " ".join(Page(told.html()).text)


def test_a_compiled_module_and_a_program_from_disk() -> None:
    """The page is planned anew, so it is there where nothing was compiled in this process."""
    model = kiln.compile(Net())
    for _ in range(4):
        model(kiln.randn(5, 6))
        kiln.compiler.wait()
    again = kiln.compile(Net())
    again(kiln.randn(5, 6))
    assert kiln.compiler.stats(again)["compiles"] == 0
    rows = Page(kiln.compiler.explain(again).html()).table("#")
    assert len(rows) == len(Page(kiln.compiler.explain(model).html()).table("#")) > 0


def test_looking_at_the_page_leaves_the_function_as_it_was() -> None:
    """Who tells parameters by their memory must not give it away: it would be copied at each call."""
    net = Net()
    step = kiln.compile(lambda x: net(x).sum())
    x = kiln.ones(3, 6)
    for _ in range(4):
        step(x)
        step.wait()
    step.explain().html()
    for _ in range(3):
        step(x)
    assert "copied" not in step.explain()


def test_an_explanation_is_copied_as_its_text() -> None:
    step = kiln.compile(lambda x: x + 1)
    step(kiln.ones(2))
    said = step.explain()
    copy = pickle.loads(pickle.dumps(said))
    assert type(copy) is str and copy == said


def test_what_the_machine_can_do_does_not_follow_the_default_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    from kiln.viz import machine

    made: list[Any] = []
    monkeypatch.setattr(
        machine, "ones", lambda *sizes, **how: made.append(kiln.ones(*sizes, **how)) or made[-1]
    )
    monkeypatch.setattr(machine, "_SIZES", (1 << 12,))
    kiln.set_default_dtype(kiln.float64)
    try:
        found = machine._measured.__wrapped__(1)
    finally:
        kiln.set_default_dtype(kiln.float32)
    assert {x.dtype for x in made} == {kiln.float32} and found.operations > 0
    assert all(bandwidth > 0 for _, bandwidth in found.bandwidth)


def test_temporaries_that_live_at_once() -> None:
    """Counted for each launch: from the one that writes them to the last that reads them, both included."""
    lives = [("temporary", 0, 2), ("temporary", 1, 1), ("temporary", 2, 3), ("input", 0, 3), ("output", 1, 3)]
    arrays = [Array("", kind, 10**k, "", first, last) for k, (kind, first, last) in enumerate(lives)]
    assert held_at_once(arrays, 4) == [1, 11, 101, 100]
    assert held_at_once([], 0) == []
