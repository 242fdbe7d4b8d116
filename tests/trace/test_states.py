"""Traces of programs with state of their own: none is silently wrong, no clean one is refused."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from traced_states import CLEAN, TRAPS, Pair, function

import kiln


def _arguments(seed: int) -> tuple[Any, ...]:
    kiln.manual_seed(seed)
    return kiln.randn(3, 4), kiln.randn(3, 4), kiln.tensor([seed % 3, 2, 1])


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, kiln.Tensor):
        if not isinstance(b, kiln.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
            return False
        return bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, Pair):
        return isinstance(b, Pair) and _same(a.tensor, b.tensor) and a.number == b.number
    if isinstance(a, dict):
        return type(a) is type(b) and a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, kiln.Tensor):
        return [value] if value.requires_grad else []
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [y for item in items for y in _tensors(item)]


def _calls(f: Any) -> list[Any]:
    """What a function gives for several arguments, one call after the other, and what it leaves of them."""
    found = []
    for seed in (1, 2, 3):
        given = _arguments(seed)
        kiln.manual_seed(seed + 50)
        random.seed(seed)
        np.random.seed(seed)
        found.append((f(*given), given))
    return found


_REFUSALS = (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError)


@pytest.mark.parametrize("body", TRAPS)
@pytest.mark.parametrize("on_data", ["refuse", "check"])
def test_a_trap_is_never_silent(body: str, on_data: str) -> None:
    """It is refused, a call of it raises, or it gives what the function gives."""
    try:
        traced = kiln.jit.trace(function(body), _arguments(0), on_data=on_data)
        came = _calls(traced)
    except _REFUSALS:
        return
    for before in range(3):
        f = function(body)
        for _ in range(before):
            f(*_arguments(0))
        if _same(_calls(f), came):
            return
    raise AssertionError(body)


@pytest.mark.parametrize("body", CLEAN)
def test_what_is_clean_is_traced(body: str) -> None:
    """The trace gives the function's bits for other values, and its gradients."""
    traced, f = kiln.jit.trace(function(body), _arguments(0)), function(body)
    for seed in (1, 2):
        given, again = _arguments(seed), _arguments(seed)
        for x in (*given[:2], *again[:2]):
            x.requires_grad_()
        kiln.manual_seed(7)
        expected = f(*given)
        kiln.manual_seed(7)
        came = traced(*again)
        assert _same(expected, came), body
        sums, theirs = ([y.double().sum() for y in _tensors(z)] for z in (expected, came))
        assert len(sums) == len(theirs), body
        if sums:
            sum(sums).backward()
            sum(theirs).backward()
        for a, b in zip(given[:2], again[:2]):
            assert (a.grad is None) == (b.grad is None), body
            assert a.grad is None or _same(a.grad, b.grad), body
