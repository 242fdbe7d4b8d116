"""Lists of passes, run one after another."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.fx.passes.infra.pass_base import PassResult

__all__ = ["PassManager", "pass_result_wrapper", "this_before_that_pass_constraint"]

_Pass = Callable[[Any], PassResult | None]
_Constraint = Callable[[_Pass, _Pass], bool]


def pass_result_wrapper(fn: Callable[[Any], Any]) -> Callable[[Any], PassResult]:
    """A function of a module, which changes it and may return it, as one that gives a `PassResult`."""

    def wrapped(module: Any) -> PassResult:
        result = fn(module)
        if isinstance(result, PassResult):
            return result
        return PassResult(module if result is None else result, True)

    wrapped.__name__ = getattr(fn, "__name__", type(fn).__name__)
    return wrapped


def this_before_that_pass_constraint(this: Callable[..., Any], that: Callable[..., Any]) -> _Constraint:
    """A constraint: `this` runs before `that`."""
    return lambda a, b: a != that or b != this


def expect_order(passes: Sequence[Callable[..., Any]], constraints: Iterable[Callable[..., bool]]) -> None:
    """RuntimeError if a constraint does not hold for the passes as they stand."""
    for constraint in constraints:
        for k, first in enumerate(passes):
            for at, later in enumerate(passes[k + 1 :], k + 1):
                if not constraint(first, later):
                    raise RuntimeError(
                        f"pass schedule constraint violated. Expected {later} before {first} but found "
                        f"{first} at index {k} and {later} at index{at} in pass list."
                    )


class ConstrainedPasses:
    """A list of passes, in which each `constraint(earlier, later)` is to hold."""

    passes: list[Callable[..., Any]]
    constraints: list[Callable[..., bool]]

    def __init__(
        self,
        passes: list[Callable[..., Any]] | None = None,
        constraints: list[Callable[..., bool]] | None = None,
    ) -> None:
        self.passes, self.constraints = passes or [], constraints or []
        self._validated = False

    def add_pass(self, _pass: Callable[..., Any]) -> None:
        """Adds one at the end."""
        self.passes.append(_pass)
        self._validated = False

    def add_constraint(self, constraint: Callable[..., bool]) -> None:
        """Adds a condition on every two passes."""
        self.constraints.append(constraint)
        self._validated = False

    def _validate(self) -> None:
        """RuntimeError if a constraint does not hold for the passes as they stand."""
        if not self._validated:
            expect_order(self.passes, self.constraints)
        self._validated = True


class PassManager(ConstrainedPasses):
    """Runs `passes`, `steps` times or until none changes anything: in an order in which each
    `constraint(earlier, later)` holds, which is their own if it does.

    `run_checks_after_each_pass`: the module is checked (`check`) behind each pass too.
    """

    steps: int = 1

    def __init__(
        self,
        passes: list[_Pass] | None = None,
        constraints: list[_Constraint] | None = None,
        steps: int | None = None,
        run_checks_after_each_pass: bool = False,
        suppress_check_failures: bool = False,
    ) -> None:
        super().__init__(passes, constraints)
        self.steps = steps or 1
        self.run_checks_after_each_pass = run_checks_after_each_pass
        self.suppress_check_failures = suppress_check_failures

    def validate_constraints(self) -> None:
        """RuntimeError if a constraint does not hold for the passes as they stand."""
        self._validate()

    def solve_constraints(self) -> None:
        """Puts the passes in an order in which the constraints hold. RuntimeError if there is none."""
        waiting, order = list(self.passes), list[_Pass]()
        while waiting:
            ready = next((p for p in waiting if self._may_come(p, waiting)), None)
            if ready is None:
                raise RuntimeError(f"Circular dependency detected within the following passes: {waiting}")
            waiting.remove(ready)
            order.append(ready)
        self.passes = order
        self._validated = True

    def _may_come(self, first: _Pass, waiting: list[_Pass]) -> bool:
        others = [other for other in waiting if other is not first]
        return all(constraint(first, other) for constraint in self.constraints for other in others)

    def add_checks(self, check: Callable[[Any], None]) -> None:
        """Has `check(module)` called instead of the method. TypeError if it takes other arguments."""
        if len(inspect.signature(check).parameters) != 1:
            raise TypeError("PassManager check function should only take in one variable, a module")
        self.check = check  # type: ignore[method-assign, assignment]

    def check(self, module: Any) -> None:
        """Called before the first pass, and after each if they are checked: to be overridden."""

    def _checked(self, module: Any) -> None:
        try:
            self.check(module)
        except Exception:
            if not self.suppress_check_failures:
                raise

    def __call__(self, module: Any) -> PassResult:
        if not self._validated:
            self.solve_constraints()
        self._checked(module)
        overall = False
        for _ in range(self.steps):
            modified = False
            for k, one in enumerate(self.passes):
                result = self._result(one, k, module)
                module, modified = result.graph_module, modified or result.modified
                if hasattr(module, "recompile"):
                    module.recompile()
                if self.run_checks_after_each_pass:
                    self._checked(module)
            overall = overall or modified
            if not modified:
                break
        return PassResult(module, overall)

    def _result(self, one: _Pass, k: int, module: Any) -> PassResult:
        name = getattr(one, "__name__", type(one).__name__)
        try:
            result = one(module)
        except Exception as error:
            before = [getattr(p, "__name__", type(p).__name__) for p in self.passes[:k]]
            raise Exception(
                f"An error occurred when running the '{name}' pass after the following passes: {before}"
            ) from error
        if not isinstance(result, PassResult):
            raise TypeError(
                f"The result of the pass {name} should be type PassResult. Please wrap it with "
                "pass_result_wrapper()"
            )
        return result


_hint_missing(__name__)
