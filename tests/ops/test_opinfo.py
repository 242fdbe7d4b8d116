"""The job that runs PyTorch's own samples on kiln (kiln/testing/opinfo.py): it finds what differs."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from backend import kiln, needs_torch


@pytest.fixture(scope="module")
def operations() -> dict[str, Any]:
    """PyTorch's table of samples by name."""
    found: dict[str, Any] = importlib.import_module("kiln.testing.opinfo").operations()
    return found


def differences(op: Any, function: Any = None) -> list[Any]:
    """What the checks report of an operation, with `function` for kiln's."""
    opinfo = importlib.import_module("kiln.testing.opinfo")
    found: list[Any] = []
    checks = opinfo.Checks(op, 3, found.append)
    checks.function = function or checks.function
    checks.run(["float32", "int64"])
    assert checks.calls > 20
    return [d for d in found if d.reason is None]


@needs_torch
@pytest.mark.parametrize("name", ["frexp", "unsqueeze"])
def test_no_difference(operations: dict[str, Any], name: str) -> None:
    assert not differences(operations[name])


@needs_torch
@pytest.mark.parametrize(
    "name, wrong, what",
    [
        ("unsqueeze", lambda x, dim: kiln.unsqueeze(x, dim).clone(), "memory of argument"),
        ("unsqueeze", lambda x, dim: kiln.unsqueeze(x, dim - 1), "shape"),
        ("unsqueeze", lambda x, dim: kiln.unsqueeze(x.detach(), dim), "requires_grad=False"),
        ("cummax", lambda x, dim: tuple(kiln.cummax(x, dim)), "no field"),
        ("cummax", lambda x, dim, out=None: kiln.cummin(x, dim), "values"),
        ("frexp", lambda x, out=None: kiln.frexp(x), "values"),
    ],
    ids=["a copy for a view", "another shape", "no gradient", "no names", "other values", "no out"],
)
def test_a_difference_is_found(operations: dict[str, Any], name: str, wrong: Any, what: str) -> None:
    assert any(d.what.startswith(what) for d in differences(operations[name], wrong))
