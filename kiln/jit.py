"""TorchScript's names: `trace` makes a program of a function or a module; the rest is as PyTorch has it where
scripts are switched off (`PYTORCH_JIT=0`): Python runs as it is.

A function that is decorated stays that function, so modules that use `@torch.jit.script` are imported and
compute the same. Scripts of modules, and files of them, are refused when they are asked for.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeVar, get_origin

import kiln.export as _export
from kiln.absent import hint_missing as _hint_missing
from kiln.absent import refuse as _refuse
from kiln.nn import Module as _Module
from kiln.table.arguments import is_traced as _is_traced
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
    "Attribute", "Error", "Final", "Future", "RecursiveScriptModule", "ScriptFunction", "ScriptModule",
    "TopLevelTracedModule", "TracedModule", "TracerWarning", "TracingCheckError", "annotate",
    "enable_onednn_fusion", "export", "fork", "freeze", "fuser", "ignore", "interface", "is_scripting",
    "is_tracing", "isinstance", "load", "onednn_fusion_enabled", "optimize_for_inference",
    "optimized_execution", "save", "script", "script_if_tracing", "script_method", "set_fusion_strategy",
    "trace", "trace_module", "unused", "wait",
]  # fmt: skip

_F = TypeVar("_F", bound=Callable[..., Any])


class Error(RuntimeError):
    """What TorchScript raises of a script."""


class RecursiveScriptModule(ScriptModule):
    """What PyTorch makes of a module: nothing here is one."""


class Attribute:
    """A value with its type, for attributes of a ScriptModule."""

    def __init__(self, value: Any, type: Any) -> None:
        self.value, self.type = value, type


def is_scripting() -> bool:
    """False: what runs is Python.

    >>> kiln.jit.is_scripting()
    False
    """
    return False


def is_tracing() -> bool:
    """Whether what runs is being traced."""
    return _is_traced()


def script(obj: Any, optimize: Any = None, example_inputs: Any = None, **kwargs: Any) -> Any:
    """A function or class as it is. NotImplementedError for a module, of which a script would be saved.

    >>> @kiln.jit.script
    ... def twice(x: kiln.Tensor) -> kiln.Tensor:
    ...     return 2 * x
    >>> twice(kiln.ones(1))
    tensor([2.])
    """
    if builtins.isinstance(obj, _Module):
        _refuse("jit.script of a module")
    if not callable(obj):
        raise TypeError(f"jit.script: expected a function, a class or a module, got {type(obj).__name__}")
    return obj


def script_method(fn: _F) -> _F:
    """A method of a ScriptModule, as it is."""
    return fn


def script_if_tracing(fn: _F) -> _F:
    """A function as it is."""
    return fn


def save(m: Any, f: Any, _extra_files: Any = None) -> None:
    """Writes a program into a file, which `kiln.export.load` reads too."""
    if not builtins.isinstance(m, (ScriptFunction, TracedModule)):
        raise TypeError(f"jit.save: expected what jit.trace gives, got {type(m).__name__}")
    if builtins.isinstance(m, TopLevelTracedModule) and set(m._methods) != {"forward"}:
        raise NotImplementedError("jit.save: a file holds forward alone, not further methods")
    _export.save(_export.ExportedProgram(m.captured), f, extra_files=_extra_files)


def _save_method(self: Any, f: Any, _extra_files: Any = None) -> None:
    """Writes the program into a file, as `kiln.jit.save`."""
    save(self, f, _extra_files)


for _kind in (ScriptModule, ScriptFunction):
    setattr(_kind, "save", _save_method)  # noqa: B010


def load(f: Any, map_location: Any = None, _extra_files: Any = None, _restore_shapes: bool = False) -> Any:
    """The program of a file that `save` wrote, as a module. A file of `torch.jit.save` holds a program for
    TorchScript, which is refused.
    """
    return _export.load(f, extra_files=_extra_files)


def ignore(drop: Any = False, **kwargs: Any) -> Any:
    """`@ignore` or `@ignore(drop=True)`: a method that scripts leave out, as it is."""
    return drop if callable(drop) else lambda fn: fn


def unused(fn: _F) -> _F:
    """A method that scripts leave out, as it is."""
    return fn


def export(fn: _F) -> _F:
    """A method that scripts take in, as it is."""
    return fn


def interface(obj: Any) -> Any:
    """A class that scripts may call through, as it is."""
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
