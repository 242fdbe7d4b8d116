"""Lists of functions of a module, each of which gives the next one its module."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.fx.passes.infra.pass_manager import ConstrainedPasses, this_before_that_pass_constraint

__all__ = [
    "PassManager", "inplace_wrapper", "log_hook", "loop_pass", "these_before_those_pass_constraint",
    "this_before_that_pass_constraint",
]  # fmt: skip

logger = logging.getLogger(__name__)
_Pass = Callable[..., Any]
_Constraint = Callable[[_Pass, _Pass], bool]


def inplace_wrapper(fn: _Pass) -> _Pass:
    """A function that changes its first argument, as one that returns that."""

    @functools.wraps(fn)
    def wrapped(gm: Any, *args: Any, **kwargs: Any) -> Any:
        fn(gm, *args, **kwargs)
        return gm

    return wrapped


def log_hook(fn: _Pass, level: int = logging.INFO) -> _Pass:
    """The function, whose result is logged."""

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        logger.log(level, "Ran pass %s\n Return value: %s", fn, result)
        return result

    return wrapped


def loop_pass(
    base_pass: _Pass, n_iter: int | None = None, predicate: Callable[[Any], bool] | None = None
) -> _Pass:
    """The function `n_iter` times in a row, or as long as `predicate(module)` holds: one of them is given."""
    if (n_iter is None) == (predicate is None):
        raise AssertionError("Exactly one of `n_iter`or `predicate` must be specified.")

    @functools.wraps(base_pass)
    def wrapped(source: Any) -> Any:
        count = 0
        while count < n_iter if n_iter is not None else predicate(source):  # type: ignore[misc]
            source, count = base_pass(source), count + 1
        return source

    return wrapped


def these_before_those_pass_constraint(these: _Pass, those: _Pass) -> _Constraint:
    """A constraint of two functions, also as `inplace_wrapper` and the others gave them."""
    return lambda a, b: _bare(a) != _bare(those) or _bare(b) != _bare(these)


def _bare(function: _Pass) -> _Pass:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


class PassManager(ConstrainedPasses):
    """Calls `passes` in a row, after it asked that each `constraint(earlier, later)` holds."""

    @classmethod
    def build_from_passlist(cls, passes: list[_Pass]) -> PassManager:
        """One with these passes."""
        return cls(passes)

    def remove_pass(self, _passes: list[str]) -> None:
        """Takes out those of these names."""
        self.passes = [one for one in self.passes if one.__name__ not in _passes]
        self._validated = False

    def replace_pass(self, _target: _Pass, _replacement: _Pass) -> None:
        """Puts another in the place of one, which it finds by its name."""
        self.passes = [_replacement if p.__name__ == _target.__name__ else p for p in self.passes]
        self._validated = False

    def validate(self) -> None:
        """RuntimeError if a constraint does not hold."""
        self._validate()

    def __call__(self, source: Any) -> Any:
        self.validate()
        for one in self.passes:
            source = one(source)
        return source


_hint_missing(__name__)
