"""`kiln.viz.curves` and `kiln.progress`: what they take, what they show, and that they are quiet."""

from __future__ import annotations

import io
import math
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import kiln

SVG = "{http://www.w3.org/2000/svg}"


def points(chart: Any) -> list[list[tuple[float, float]]]:
    """The points of each curve, thick lines alone."""
    paths = [p for p in ElementTree.fromstring(chart.svg).iter(f"{SVG}path") if p.get("stroke-width") == "2"]
    return [
        [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", p.get("d") or "")]
        for p in paths
    ]


def texts(chart: Any) -> list[str]:
    return [t.text or "" for t in ElementTree.fromstring(chart.svg).iter(f"{SVG}text")]


def test_every_form_of_a_series_draws_the_same() -> None:
    ys = [3.0, 1.0, 2.0]
    forms: list[Any] = [
        ys,
        np.array(ys),
        kiln.tensor(ys, requires_grad=True),
        [kiln.tensor(y) for y in ys],
        {"y": ys},
        {"y": dict(enumerate(ys))},
        {"y": list(enumerate(ys))},
        [{"y": y, "name": "no number"} for y in ys],
        [{"step": k, "y": y} for k, y in enumerate(ys)],
    ]
    unnamed = [points(kiln.viz.curves(form)) for form in forms[:4]]
    named = [points(kiln.viz.curves(form)) for form in forms[4:]]
    assert all(found == unnamed[0] for found in unnamed) and all(found == named[0] for found in named)
    (curve,) = named[0]
    assert len(curve) == 3 and curve[0][0] < curve[1][0] < curve[2][0]
    assert curve[0][1] < curve[2][1] < curve[1][1]  # down the page the values fall
    both = kiln.viz.curves({"a": ys, "<b>": [1, 2]}, title="x & y", ylabel="loss")
    assert {"a", "<b>", "x & y", "loss", "step"} <= set(texts(both))
    assert repr(both) == "curves of 2 series (a, <b>), 3 steps" and both._repr_svg_() == both.svg


def test_a_logarithmic_axis_and_gaps() -> None:
    values = [1.0, 0.1, 0.01, 0.001]
    (curve,) = points(kiln.viz.curves(values, log=True))
    steps = [b[1] - a[1] for a, b in zip(curve, curve[1:])]
    assert max(steps) - min(steps) < 0.2 and steps[0] > 10
    assert {"1", "0.1", "0.01", "0.001"} <= set(texts(kiln.viz.curves(values, log="y")))
    gaps = kiln.viz.curves([1.0, math.nan, 2.0, 3.0, math.inf, 0.0, 4.0], log="y")
    path = next(
        p for p in ElementTree.fromstring(gaps.svg).iter(f"{SVG}path") if p.get("stroke-width") == "2"
    )
    assert (path.get("d") or "").count("M") == 3 and len(points(gaps)[0]) == 4
    dots = [p for p in ElementTree.fromstring(gaps.svg).iter(f"{SVG}path") if p.get("stroke-width") == "6"]
    assert len(dots) == 1 and (dots[0].get("d") or "").count("h0") == 2
    assert points(kiln.viz.curves([5.0, 5.0]))  # one value has a place too


def test_smoothing_is_a_running_mean() -> None:
    """Half of each value and half of what came before, beside an axis that says where 0 and 8 are."""
    raw = [0.0, 8.0, 0.0, 8.0]
    means = [0.0, 8 * 2 / 3, 8 * 2 / 7, 8 * 10 / 15]
    (_, smooth) = points(kiln.viz.curves({"ends": [0.0, 8.0, 8.0, 8.0], "y": raw}, smooth=0.5))
    (_, plain) = points(kiln.viz.curves({"ends": [0.0, 8.0, 8.0, 8.0], "y": raw}))
    zero, eight = plain[0][1], plain[1][1]
    found = [8 * (y - zero) / (eight - zero) for _, y in smooth]
    assert found == pytest.approx(means, abs=0.05)
    # a sparse series is a mean of fewer values
    series = {"y": [float(k) for k in range(100)], "z": {0: 0.0, 99: 99.0}}
    (dense, sparse), (plain, _) = (points(kiln.viz.curves(series, smooth=w)) for w in (0.9, 0.0))
    assert sparse[1][1] == pytest.approx(plain[-1][1], abs=1) and dense[-1][1] > plain[-1][1] + 10


def test_long_series_stay_small_and_keep_their_peaks() -> None:
    values = [0.0] * 50_000
    values[31_234] = 1.0
    chart = kiln.viz.curves(values)
    (curve,) = points(chart)
    assert len(curve) < 4 * 720 and len(chart.svg) < 100_000
    assert min(y for _, y in curve) < max(y for _, y in curve) - 200


def test_pages_light_and_dark_and_saving(tmp_path: Path) -> None:
    chart = kiln.viz.curves([1, 2])
    assert "light-dark(" in chart.svg and "prefers" not in chart.svg
    chart.save(tmp_path / "loss.svg")
    assert (tmp_path / "loss.svg").read_text(encoding="utf-8") == chart.svg
    with pytest.raises(ValueError, match="ends in .svg"):
        chart.save(tmp_path / "loss.png")
    names = {re.findall(r'class="(kiln-\d+)"', kiln.viz.curves([1]).svg)[0] for _ in range(3)}
    assert len(names) == 3  # several stand on a page


def test_what_curves_refuse() -> None:
    for wrong in ("text", 3, {"a": ["x"]}):
        with pytest.raises(TypeError, match="viz.curves"):
            kiln.viz.curves(wrong)
    for wrong in ([], {"a": []}, [math.nan]):
        with pytest.raises(ValueError, match="viz.curves"):
            kiln.viz.curves(wrong)
    for options in ({"log": "z"}, {"smooth": 1.0}, {"x": [1]}):
        with pytest.raises(ValueError):
            kiln.viz.curves([1, 2], **options)


def test_bars_without_tqdm(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with kiln.progress([1, 2, 3], "epoch", unit="batch") as bar:
        seen = []
        for k in bar:
            seen.append(k)
            bar.set_postfix(loss=k)
            bar.set_description("next")
    assert seen == [1, 2, 3] and len(bar) == bar.n == 3 and bar.desc == "next"
    open_end = kiln.progress(iter([1]))
    assert list(open_end) == [1] and open_end.total is None
    with pytest.raises(TypeError, match="total="):
        len(open_end)
    by_hand = kiln.progress(total=5)
    by_hand.update(2)
    assert by_hand.n == 2 and len(by_hand) == 5
    assert capsys.readouterr() == ("", "")


def test_bars_of_tqdm_show_where_somebody_watches(capsys: Any) -> None:
    pytest.importorskip("tqdm")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    watched = Terminal()
    assert list(kiln.progress(range(3), "epoch", file=watched)) == [0, 1, 2]
    assert "epoch: 100%" in watched.getvalue()
    assert list(kiln.progress(range(3), file=io.StringIO())) == [0, 1, 2]
    assert list(kiln.progress(range(3))) == [0, 1, 2]
    assert capsys.readouterr().err == ""
