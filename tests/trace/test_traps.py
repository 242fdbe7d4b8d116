"""Traces: of programs that no trace can do again none is silently wrong, of all others none is refused."""

from __future__ import annotations

import copy
import datetime
import itertools
import math
import operator
import os
import pickle
import random
import statistics
import time
import uuid
from typing import Any

import numpy as np
import pytest
from traced_programs import CLEAN, TRAPS

import kiln
import kiln.nn.functional as F

CONSTANT = kiln.ones(4) * 1.5


def _function(body: str) -> Any:
    lines = body.replace("{case}", "\n  case True: return x\n  case False: return y").split("; ")
    last = lines[-1]
    if "return" not in body:
        lines.append("return x")
    elif last.startswith("try:"):
        lines = [last, "except ValueError: return x"]
    if body.startswith("with "):
        lines = ["with kiln.no_grad(): z = x * 2", "return z + x"]
    text = "def f(x, y, i):\n" + "\n".join("  " + part for line in lines for part in line.split("\n"))
    scope: dict[str, Any] = {
        "kiln": kiln, "F": F, "np": np, "random": random, "time": time, "datetime": datetime, "os": os,
        "uuid": uuid, "math": math, "pickle": pickle, "copy": copy, "operator": operator,
        "statistics": statistics, "CONSTANT": CONSTANT, "SCALE": 2.5, "COUNTER": [0], "STATE": {},
        "GROWS": [],
        "NUMBERS": itertools.count(), "ORDER": [0, 1, 2] * 50,
    }  # fmt: skip
    exec(text, scope)  # the body is one of this module's
    return scope["f"]


def _arguments(seed: int) -> tuple[Any, ...]:
    kiln.manual_seed(seed)
    x, y = kiln.randn(3, 4), kiln.randn(3, 4)
    return x, y, kiln.tensor([seed % 3, 2, 1])


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, kiln.Tensor):
        if not isinstance(b, kiln.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
            return False
        return bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


@pytest.mark.parametrize("body", TRAPS)
def test_a_trap_is_never_silent(body: str) -> None:
    """The trace is refused, or a call of it raises, or it gives what the function gives."""
    random.seed(1)
    f = _function(body)
    try:
        traced = kiln.jit.trace(f, _arguments(0))
    except (RuntimeError, TypeError, NotImplementedError, ValueError, OverflowError):
        return
    for seed in range(1, 5):
        kiln.manual_seed(seed)
        expected = f(*_arguments(seed))
        try:
            came = traced(*_arguments(seed))
        except (RuntimeError, TypeError, NotImplementedError):
            return
        assert _same(expected, came), body


@pytest.mark.parametrize("body", CLEAN)
def test_what_is_clean_is_traced(body: str) -> None:
    """The trace gives the function's bits for other values, and its gradients."""
    f = _function(body)
    traced = kiln.jit.trace(f, _arguments(0))
    for seed in (1, 2):
        given, again = _arguments(seed), _arguments(seed)
        for x in (*given[:2], *again[:2]):
            x.requires_grad_()
        kiln.manual_seed(7)
        expected = f(*given)
        kiln.manual_seed(7)
        came = traced(*again)
        assert _same(expected, came), body
        sums = [y.double().sum() for y in _tensors(expected) if y.requires_grad and y.dtype.is_floating_point]
        theirs = [y.double().sum() for y in _tensors(came) if y.requires_grad and y.dtype.is_floating_point]
        assert len(sums) == len(theirs), body
        if sums:
            sum(sums).backward()
            sum(theirs).backward()
            for a, b in zip(given[:2], again[:2]):
                assert (a.grad is None) == (b.grad is None), body
                assert a.grad is None or _same(a.grad, b.grad), body


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, kiln.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [y for item in items for y in _tensors(item)]


def test_a_written_input_may_not_lie_in_the_memory_of_another() -> None:
    """A program that was made of two tensors refuses two that are one, or views of one."""

    def f(x: Any, y: Any) -> Any:
        x.add_(1)
        return y * 2

    traced = kiln.jit.trace(f, (kiln.ones(3), kiln.ones(3)))
    both, apart = kiln.ones(4), kiln.ones(6)
    for x, y in ((both, both), (both[:3], both[1:])):
        with pytest.raises((RuntimeError, TypeError), match="memory|shape|dim"):
            traced(x, y)
    assert both.tolist() == [1.0] * 4
    assert traced(apart[:3], apart[3:]).tolist() == [2.0] * 3 and apart.tolist() == [2.0] * 3 + [1.0] * 3


def test_an_export_is_followed_twice() -> None:
    """What differs from run to run is refused there too."""
    for f in (lambda x: x * time.perf_counter(), lambda x: x * (id(x) % 9973 + 1)):
        with pytest.raises(RuntimeError, match="run twice"):
            kiln.export.export(f, (kiln.ones(3),))
