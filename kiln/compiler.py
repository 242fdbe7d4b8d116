"""What can be asked about compiled functions and modules; a module may have attributes of these names.

>>> import kiln
>>> double = kiln.compile(kiln.nn.Linear(2, 2))
>>> _ = double(kiln.ones(1, 2))
>>> kiln.compiler.stats(double)["programs"]
1
"""

from __future__ import annotations

from types import MethodType
from typing import Any

from kiln.capture import service
from kiln.capture.compile import Compiled
from kiln.capture.objects import Recorded
from kiln.errors import describe, message

__all__ = ["explain", "stats", "wait"]


def explain(compiled: Any) -> str:
    """In plain words: what was recorded and why anew, what ended each recording and where, what it costs.

    Of what `kiln.compile` returned, a method compiled in its class, or a module after `module.compile()`.
    """
    return _calls(compiled, "explain").explain()


def stats(compiled: Any) -> dict[str, Any]:
    """Counts: runs of programs, compiles, replays op by op, recordings remembered and forgotten; whether the
    region is switched off.
    """
    return _calls(compiled, "stats").stats()


def wait() -> None:
    """Returns when no program is being compiled any more, for any function."""
    service.wait()


def _calls(compiled: Any, asked: str) -> Compiled:
    """What records the calls."""
    if isinstance(compiled, MethodType):
        compiled = compiled.__func__
    elif isinstance(compiled, Recorded):
        compiled = compiled._kiln_compiled
    elif not isinstance(compiled, Compiled):
        compiled = getattr(compiled, "_compiled_call_impl", None) or compiled
    if not isinstance(compiled, Compiled):
        raise TypeError(message(f"compiler.{asked}", "what kiln.compile returned", describe(compiled)))
    return compiled
