"""The framework a test runs on: kiln, or PyTorch standing in for it.

Everything in kiln/testing takes the framework as a value, so a program text runs unchanged on both. The
stand-in adds the few names that only kiln has, with their plainest meaning: `compile` is the function itself.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

BACKENDS = ("kiln", "torch")


class Recorded:
    """What the stand-in's `compile` returns: the function itself, with kiln's extra method."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.fn(*args, **kwargs)

    def explain(self) -> str:
        """One sentence: nothing was recorded."""
        return f"{self.fn.__name__}: {self.calls} calls, run eagerly by the stand-in"


def _compile(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """The stand-in's `compile`, usable bare and with options as a decorator."""
    return Recorded(fn) if fn is not None else Recorded


def _pointwise(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """The stand-in's `pointwise`: tensors already have every operator a scalar body uses."""
    return fn if fn is not None else lambda f: f


class Framework(ModuleType):
    """A module of PyTorch's names, imported at the first attribute that is asked for.

    Being lazy keeps collection alive while a part of kiln is missing: the test that needs it fails, no other.
    """

    def __init__(self, name: str) -> None:
        if name not in BACKENDS:
            raise ValueError(f"backend: expected one of {BACKENDS}, got {name!r}")
        super().__init__(name)
        self.name = name
        self._extra: dict[str, Any] = {}
        if name == "torch":
            self._extra = {"compile": _compile, "pointwise": _pointwise, "profile": contextlib.nullcontext}

    def __getattr__(self, name: str) -> Any:
        extra = self.__dict__["_extra"]
        if name in extra:
            return extra[name]
        value = getattr(importlib.import_module(self.__dict__["name"]), name)
        self.__dict__[name] = value
        return value

    @property
    def is_kiln(self) -> bool:
        """Whether this is kiln itself and not its stand-in."""
        return self.name == "kiln"


def load(name: str | None = None) -> Framework:
    """The framework `name`, by default what KILN_TEST_BACKEND says, else kiln."""
    return Framework(name or os.environ.get("KILN_TEST_BACKEND", "kiln"))


def peer() -> Framework | None:
    """PyTorch as the independent second opinion, or None where it is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    return Framework("torch")
