"""The kinds of strands that items of `kiln.batching.map` run in: a fixture, by which tests run with both."""

from __future__ import annotations

from typing import Any

import pytest

KINDS = ("greenlets", "threads")


@pytest.fixture(params=KINDS, autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kind of strands: each test runs with both."""
    if request.param == "greenlets":
        pytest.importorskip("greenlet")
    else:
        monkeypatch.setattr("kiln.batching.strands.greenlet", lambda: None)
    return str(request.param)


def bump(x: Any) -> float:
    """A value that has to be computed when it is read."""
    return float((x + 1).item())
