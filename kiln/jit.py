"""TorchScript's names: `trace` makes a program of what a function or a module does for its example, `script`
one that has all its branches and loops; both are kept in files by `save`.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeVar, get_origin

from kiln.absent import hint_missing as _hint_missing
from kiln.scripting import frozen as _frozen  # noqa: F401  (what `freeze` does of scripts)
from kiln.scripting.context import current as _current
from kiln.scripting.saved import load as _load
from kiln.scripting.saved import save as _save
from kiln.scripting.scripted import RecursiveScriptModule, script
from kiln.scripting.units import CompilationUnit
from kiln.table.arguments import is_traced as _is_traced
from kiln.table.callables import hide_frames as _hide_frames
from kiln.table.callables import name_helpers as _name_helpers
from kiln.tracing.modules import (
    Future,
    TopLevelTracedModule,
    TracerWarning,
    fork,
    freeze,
    optimize_for_inference,
    trace_module,
    wait,
)
from kiln.tracing.recorder import TracingError as TracingCheckError
from kiln.tracing.scripts import ScriptFunction, ScriptModule, TracedModule, trace

__all__ = [
    "Attribute", "CompilationUnit", "Error", "Final", "Future", "RecursiveScriptModule", "ScriptFunction",
    "ScriptModule", "TopLevelTracedModule", "TracedModule", "TracerWarning", "TracingCheckError", "annotate",
    "enable_onednn_fusion", "export", "fork", "freeze", "fuser", "ignore", "interface", "is_scripting",
    "is_tracing", "isinstance", "load", "onednn_fusion_enabled", "optimize_for_inference",
    "optimized_execution", "save", "script", "script_if_tracing", "script_method", "set_fusion_strategy",
    "trace", "trace_module", "unused", "wait",
]  # fmt: skip

_F = TypeVar("_F", bound=Callable[..., Any])


class Error(RuntimeError):
    """What TorchScript raises of a script."""


class Attribute:
    """A value with its type, for attributes of a ScriptModule."""

    def __init__(self, value: Any, type: Any) -> None:
        self.value, self.type = value, type


def is_scripting() -> bool:
    """Whether what runs is made a script.

    >>> kiln.jit.is_scripting()
    False
    """
    return _current() is not None


def is_tracing() -> bool:
    """Whether what runs is being traced."""
    return _is_traced() and not is_scripting()


def script_method(fn: _F) -> _F:
    """A method of a ScriptModule, as it is."""
    return fn


def script_if_tracing(fn: _F) -> _F:
    """A function that is a script where something is traced, and Python's elsewhere.

    >>> @kiln.jit.script_if_tracing
    ... def positive(x):
    ...     return x if x.sum() > 0 else -x
    >>> kiln.jit.trace(lambda x: positive(x) * 2, kiln.ones(2))(kiln.tensor([-1.0, -2.0]))
    tensor([2., 4.])
    """

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return script(fn)(*args, **kwargs) if _is_traced() else fn(*args, **kwargs)

    return call  # type: ignore[return-value]


def save(m: Any, f: Any, _extra_files: Any = None) -> None:
    """Writes a program into a file, which `kiln.export.load` reads too: of a script the one that ran last,
    for arguments that look like those of that call.
    """
    _save(m, f, _extra_files)


def load(f: Any, map_location: Any = None, _extra_files: Any = None, _restore_shapes: bool = False) -> Any:
    """The program of a file that `save` wrote, as a module. A file of `torch.jit.save` holds a program for
    TorchScript, which is refused.
    """
    return _load(f, extra_files=_extra_files)


def ignore(drop: Any = False, **kwargs: Any) -> Any:
    """`@ignore` or `@ignore(drop=True)`: a function that scripts run as it is, when they are made."""

    def marked(fn: Any) -> Any:
        fn._kiln_ignored = True
        return fn

    if not callable(drop) and not builtins.isinstance(drop, bool):
        raise RuntimeError(f"Argument to @torch.jit.ignore must be a bool or a function but got {drop}")
    return marked(drop) if callable(drop) else marked


def unused(fn: _F) -> _F:
    """A method that scripts leave out, as it is."""
    return fn


def export(fn: _F) -> _F:
    """A method that a script of a module has besides `forward`."""
    fn._kiln_exported = True  # type: ignore[attr-defined]
    return fn


def interface(obj: Any) -> Any:
    """A class that scripts may call through, as it is. RuntimeError for anything else."""
    if not builtins.isinstance(obj, type):
        raise RuntimeError("interface must be applied to a class")
    return obj


def annotate(the_type: Any, the_value: Any) -> Any:
    """The value.

    >>> kiln.jit.annotate(list, [])
    []
    """
    return the_value


def isinstance(obj: Any, target_type: Any) -> bool:
    """Whether an object is of a type, of which generic ones count by their class.

    >>> kiln.jit.isinstance([1], list[int])
    True
    """
    types = target_type if builtins.isinstance(target_type, tuple) else (target_type,)
    kinds: list[Any] = [get_origin(kind) or kind for kind in types]
    return builtins.isinstance(obj, tuple(kinds))


def _overload(func: _F) -> _F:
    """A further form of a function, to TorchScript."""
    return func


_overload_method = _script_if_tracing = _overload


def optimized_execution(should_optimize: bool) -> AbstractContextManager[None]:
    """Inside, scripts would be optimised or not."""
    return nullcontext()


def fuser(name: str) -> AbstractContextManager[None]:
    """Inside, scripts would be fused by the named pass."""
    return nullcontext()


def set_fusion_strategy(strategy: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """How scripts would be specialised; what was said comes back."""
    return strategy


def enable_onednn_fusion(enabled: bool) -> None:
    """Whether scripts would be fused by oneDNN: there are none."""


def onednn_fusion_enabled() -> bool:
    """False: there are no scripts."""
    return False


_hint_missing(__name__)

_hide_frames(globals(), ("ignore", "interface", "load", "save"))
_name_helpers(globals(), __name__, "jit.")
