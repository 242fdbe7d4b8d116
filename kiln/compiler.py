"""What can be asked about compiled functions and modules; a module may have attributes of these names.

>>> import kiln
>>> double = kiln.compile(kiln.nn.Linear(2, 2))
>>> _ = double(kiln.ones(1, 2))
>>> kiln.compiler.stats(double)["programs"]
1
"""

from __future__ import annotations

from functools import wraps
from types import MethodType
from typing import Any

from kiln import _core
from kiln.absent import hint_missing as _hint_missing
from kiln.capture import service
from kiln.capture.capturing import STATE
from kiln.capture.compile import REGISTERED, Compiled, compile
from kiln.capture.objects import Recorded
from kiln.capture.pure.errors import PurityError
from kiln.errors import describe, message
from kiln.table.callables import name_helpers as _name_helpers

__all__ = [
    "PurityError", "allow_in_graph", "assume_constant_result", "compile", "cudagraph_mark_step_begin",
    "disable", "explain", "is_compiling", "is_dynamo_compiling", "is_exporting", "list_backends",
    "register_backend", "reset", "set_stance", "stats", "wait",
]  # fmt: skip


@_core.Function
def explain(compiled: Any) -> str:
    """In plain words: what was recorded and why anew, what ended each recording and where, what it costs.

    Of what `kiln.compile` returned, a method compiled in its class, or a module after `module.compile()`.
    """
    return _calls(compiled, "explain").explain()


@_core.Function
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


# -- PyTorch's names; what they tell its compiler, a recording of what runs does not need --


def is_compiling() -> bool:
    """Whether a function runs to be captured for a backend of the program's own; else what runs is Python,
    compiled or not.

    >>> import kiln
    >>> kiln.compiler.is_compiling()
    False
    """
    return STATE.capturing


def is_exporting() -> bool:
    """False: nothing is being exported."""
    return False


is_dynamo_compiling = is_compiling


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """The function itself, or a decorator: what it runs is recorded with the rest, and gives the same.

    >>> import kiln
    >>> kiln.compiler.disable(abs)(-1)
    1
    """
    if fn is not None and not callable(fn):
        raise AssertionError("disable: fn must be callable")
    return fn if fn is not None else lambda function: function


def allow_in_graph(fn: Any) -> Any:
    """The function itself: nothing needs a permission."""
    if not callable(fn):
        raise AssertionError("allow_in_graph expects a callable")
    return fn


def assume_constant_result(fn: Any) -> Any:
    """The function itself, which is called each time."""
    return fn


def cudagraph_mark_step_begin() -> None:
    """Tells of a new step: a recording sees it."""


def list_backends(exclude_tags: Any = ()) -> list[str]:
    """The names of other compilers: those that `register_backend` was told."""
    return sorted(REGISTERED)


@_core.Function
def register_backend(compiler_fn: Any = None, name: str | None = None, tags: Any = ()) -> Any:
    """Gives a backend for `kiln.compile` a name, its own if none is given; also a decorator.

    >>> import kiln
    >>> @kiln.compiler.register_backend
    ... def as_it_is(graph_module, example_inputs):
    ...     return graph_module.forward
    >>> kiln.compile(lambda x: x + 1, backend="as_it_is")(kiln.ones(1))
    tensor([2.])
    """
    if compiler_fn is None:
        return lambda function: register_backend(function, name, tags)
    if not callable(compiler_fn):
        raise TypeError(message("compiler.register_backend", "a callable", describe(compiler_fn)))
    REGISTERED[name or compiler_fn.__name__] = compiler_fn
    return compiler_fn


class set_stance:
    """What compiled functions do from now on in this thread, in a block (`with`), or in a function that it
    decorates. With "force_eager" the functions that were given a backend run as they are; others have
    the bits of their Python anyway. "default", "eager_on_recompile" and the like choose nothing.
    RuntimeError for other names, NotImplementedError for "fail_on_recompile" and for `force_backend`.

    >>> with kiln.compiler.set_stance("force_eager"):
    ...     kiln.compile(lambda x: x + 1)(kiln.ones(1))
    tensor([2.])
    """

    _STANCES = (
        "default",
        "force_eager",
        "eager_on_recompile",
        "eager_then_compile",
        "aot_eager_then_compile",
    )

    def __init__(
        self, stance: str = "default", *, skip_guard_eval_unsafe: bool = False, force_backend: Any = None
    ) -> None:
        if stance == "fail_on_recompile" or force_backend is not None:
            raise NotImplementedError(
                "compiler.set_stance: a call that looks new is compiled, by its own backend"
            )
        if stance not in self._STANCES:
            raise RuntimeError(f"compiler.set_stance: invalid stance {stance!r}; there are {self._STANCES}")
        self._stance, self._before = stance, STATE.stance
        STATE.stance = stance

    def __enter__(self) -> None:
        STATE.stance = self._stance

    def __exit__(self, *error: object) -> None:
        STATE.stance = self._before

    def __call__(self, function: Any) -> Any:
        STATE.stance = self._before

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with type(self)(self._stance):
                return function(*args, **kwargs)

        return called


def reset() -> None:
    """Returns when no program is being compiled: what was compiled stays, as it stays right."""
    service.wait()


_name_helpers(globals(), __name__)
_hint_missing(__name__)
