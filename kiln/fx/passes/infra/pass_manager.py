"""Lists of passes, run one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.absent import leave_out
from kiln.fx.passes.infra.pass_base import PassResult

__all__ = ["PassManager", "pass_result_wrapper"]


def pass_result_wrapper(fn: Callable[[Any], Any]) -> Callable[[Any], PassResult]:
    """A function of a module, which changes it and may return it, as one that gives a `PassResult`."""

    def wrapped(module: Any) -> PassResult:
        result = fn(module)
        if isinstance(result, PassResult):
            return result
        return PassResult(module if result is None else result, True)

    wrapped.__name__ = getattr(fn, "__name__", type(fn).__name__)
    return wrapped


class PassManager:
    """Runs `passes` in their order, `steps` times or until none changes anything."""

    def __init__(
        self,
        passes: list[Callable[[Any], PassResult | None]] | None = None,
        constraints: list[Callable[[Any, Any], bool]] | None = None,
        steps: int | None = None,
        run_checks_after_each_pass: bool = False,
        suppress_check_failures: bool = False,
    ) -> None:
        self.passes, self.constraints = passes or [], constraints or []
        self.steps = steps or 1
        self.run_checks_after_each_pass = run_checks_after_each_pass

    def add_pass(self, _pass: Callable[[Any], Any]) -> None:
        """Adds one at the end."""
        self.passes.append(_pass)

    def check(self, module: Any) -> None:
        """Called after each pass with `run_checks_after_each_pass`: to be overridden."""

    def __call__(self, module: Any) -> PassResult:
        overall = False
        for _ in range(self.steps):
            modified = False
            for one in self.passes:
                result = one(module)
                if not isinstance(result, PassResult):
                    name = getattr(one, "__name__", type(one).__name__)
                    raise TypeError(
                        f"The result of the pass {name} should be type PassResult. Please wrap it with "
                        "pass_result_wrapper()"
                    )
                module, modified = result.graph_module, modified or result.modified
                if hasattr(module, "recompile"):
                    module.recompile()
                if self.run_checks_after_each_pass:
                    self.check(module)
            overall = overall or modified
            if not modified:
                break
        return PassResult(module, overall)


_hint_missing(__name__)


leave_out(
    PassManager,
    "add_checks add_constraint solve_constraints steps validate_constraints",
    "passes run in the order in which they are given",
)
