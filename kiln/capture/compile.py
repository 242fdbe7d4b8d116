"""`kiln.compile`: a function whose ops are recorded and run as programs.

    call -> begin -> Python runs, ops are appended -> a value is read, or the call returns -> the program runs

What was recorded is what runs, so there is nothing a guard could miss: the recording, hashed, finds its
program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import copy, deepcopy
from functools import WRAPPER_ASSIGNMENTS, update_wrapper
from types import MethodType
from typing import TYPE_CHECKING, Any, overload

from kiln import _core
from kiln.capture import service
from kiln.capture.batched import Batching
from kiln.capture.explain import Explanation, explain
from kiln.capture.objects import Recorded, recorded
from kiln.capture.suspend import suspended, written
from kiln.errors import message, shorten, writable
from kiln.late import free_imports

if TYPE_CHECKING:
    from kiln.capture.callables import CompiledFunction, Decorator, HasForward, Model, P, Result

_BACKENDS = ("inductor", "eager", "aot_eager", "cudagraphs")
_MODES = ("default", "lite", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
# what `inspect` asks of a function before it believes its code
_FUNCTION_LIKE = ("__name__", "__code__", "__defaults__", "__kwdefaults__", "__annotations__")
_OWN = frozenset(
    (*WRAPPER_ASSIGNMENTS, *_FUNCTION_LIKE, "__wrapped__")
    + ("_binds", "_cell", "_function", "_name", "_region", "_suspended", "_wait")
)


class Compiled(_core.Recorder):
    """A callable that records its ops; see `compile`. Other attributes, read or set, are the function's."""

    def __init__(
        self, function: Callable[..., Any], wait: bool, name: str | None = None, region: Any = None
    ) -> None:
        self._function, self._wait = function, wait
        self._name = name or writable(str(getattr(function, "__qualname__", type(function).__name__)))
        self._region = region or _core.Region(self._name, wait)
        self._suspended = suspended(function)
        # whether an instance becomes the first argument: not of a bound method, nor of most objects
        self._binds = hasattr(type(function), "__get__") and not isinstance(function, MethodType)
        update_wrapper(self, function, updated=())
        if self._suspended and not hasattr(function, "__code__"):  # a partial of one
            body = written(function)
            for own in _FUNCTION_LIKE:
                setattr(self, own, getattr(body, own))

    def _failed(self, error: BaseException) -> None:
        """What the core tells of a call that raised."""
        if isinstance(error, Exception):
            shorten(error)
        elif isinstance(error, KeyboardInterrupt):
            free_imports()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method, where the function would be one: the instance is the first argument."""
        if instance is None or not self._binds:
            return self
        return MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._function, name, value)

    def __delattr__(self, name: str) -> None:
        if name in _OWN:
            object.__delattr__(self, name)
        else:
            delattr(self._function, name)

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        """The function's: what `vars` shows and `functools.wraps` copies."""
        return self._function.__dict__

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self._function)})

    def __copy__(self) -> Any:
        return self._over(copy(self._function))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self._over(deepcopy(self._function, memo))

    def _over(self, function: Callable[..., Any]) -> Any:
        """The same for a copy of the function: a function is its own copy, a method's instance is not."""
        return self if function is self._function else type(self)(function, self._wait, self._name)

    def _beside(self, function: Callable[..., Any]) -> Compiled:
        """Another function, recorded in the same region."""
        return type(self)(function, self._wait, self._name, self._region)

    def __reduce__(self) -> Any:
        """By name if it is found under its function's, as the function would be; else what it was made of."""
        path = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(self.__module__)
        for name in path.split("."):
            found = getattr(found, name, None)
        if found is self:
            return path
        return type(self), (self._function, self._wait, self._name)

    def __repr__(self) -> str:
        return f"<compiled {self._function!r}>"

    def stats(self) -> dict[str, Any]:
        """Counts: runs of programs, compiles, replays op by op, recordings remembered and forgotten;
        whether the region is switched off."""
        found: dict[str, Any] = self._region.stats()
        return found

    def wait(self) -> None:
        """Returns when no program is being compiled any more, for this function or another."""
        service.wait()

    def explain(self) -> Explanation:
        """In plain words: what was recorded and why anew, what ended each recording and where, what it
        costs. `.html(path)` of it is a page with pictures of its programs.
        """
        return explain(self._name, self._region, self._function)


@overload
def compile(
    model: Model,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "inductor",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    shapes_spec: Any = None,
    wait: bool = False,
    pure: bool = False,
    batch: bool = False,
) -> Model: ...
@overload
def compile(
    model: Callable[P, Result],
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "inductor",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    shapes_spec: Any = None,
    wait: bool = False,
    pure: bool = False,
    batch: bool = False,
) -> CompiledFunction[P, Result]: ...
@overload
def compile(
    model: None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "inductor",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    shapes_spec: Any = None,
    wait: bool = False,
    pure: bool = False,
    batch: bool = False,
) -> Decorator: ...
def compile(
    model: Callable[..., Any] | HasForward[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "inductor",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    shapes_spec: Any = None,
    wait: bool = False,
    pure: bool = False,
    batch: bool = False,
) -> Any:
    """The callable with its ops recorded and run as programs; also a decorator. Results are the same bits.

    A module, or another object that can be called, gives one of the same class over the same state: what
    is asked of either or written to either is so of both. `_orig_mod` is the module itself.

    Any Python may run inside. A recording seen once runs op by op on ready kernels, or by its program if the
    disk has it. One seen again is compiled by another thread while calls go on op by op; `wait()` of a
    compiled function, or `kiln.compiler.wait()`, returns when that is done. With `wait=True` the first call
    compiles. Sizes are run-time arguments whatever `dynamic` says. With `fullgraph=True` a call that reads a
    value (`.item()`, `if x > 0`, `print(x)`) raises RuntimeError with the line, whether the value was there
    already or not: one program was not enough. The names that PyTorch has for `backend` and `mode` are taken
    and choose nothing, as do `options`, `name`, `recompile_limit`, `isolate_recompiles` and `shapes_spec`:
    kiln has one way to compile. With `disable=True` the callable comes back as it is.

    A `backend` of the program's own is a callable: it gets what the function computes as a
    `kiln.fx.GraphModule`, with the tensors it is called with, and returns what runs instead; so is a name
    that `kiln.compiler.register_backend` was told. Python runs at each call, and a call that does with its
    tensors what an earlier one did runs what that one was given. Where a value is read, what was done so far
    runs and another graph begins; with `fullgraph=True` that raises RuntimeError with the line. With
    `dynamic=True` one graph serves all sizes: those of its inputs are placeholders of their own, of type
    `kiln.SymInt`, equal ones one, and what the program computes with sizes are nodes. Sizes of 0 and 1,
    which broadcast, and those of parameters and buffers are numbers. Ints among the arguments are as sizes.

    With `pure=True` you say that what the callable does depends on its arguments and on the parameters and
    buffers it meets alone. Then its Python runs at the first calls of a kind only, and a call is one
    operation: one node of autograd, one program forward, one backward. What is not pure is refused with its
    line, or noticed later: one of every 256 calls is compared with the Python (`kiln.compiler.PurityError`).
    Attributes of modules, numbers and buffers are part of it: what changes in them is seen at the next call.
    So is what is asked of tensors and modes that is no value (`is_leaf`, `x.grad is None`, attributes that
    the program gave a tensor); `_version`, `data_ptr` and storages are refused.

    With `batch=True` a call is a block of `kiln.batching()` instead: nothing is recorded, and calls of ops
    that are alike run together. It takes a function, or a decorator's place; TypeError for a module.

    >>> @kiln.compile
    ... def f(x):
    ...     return (x * 2 + 1).sum()
    >>> f(kiln.ones(3))
    tensor(9.)
    >>> cell = kiln.compile(lambda x, h: (x + h).tanh(), pure=True)
    >>> cell(kiln.zeros(2), kiln.zeros(2))
    tensor([0., 0.])
    """
    kind = _kind(backend, mode, options, fullgraph, pure, bool(dynamic))
    if model is None:
        return lambda function: compile(
            function, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options,
            disable=disable, wait=wait, pure=pure, batch=batch,
        )  # fmt: skip
    if disable:
        return model
    if batch:
        if hasattr(model, "forward"):
            raise TypeError(
                "compile: batch=True takes a function, got a module: call it in a function, or in a block of "
                "kiln.batching()"
            )
        return Batching()(model)
    if isinstance(model, (staticmethod, classmethod)):  # in a class's body: what they hold is called
        return type(model)(
            compile(
                model.__func__, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode,
                options=options, wait=wait, pure=pure,
            )
        )  # fmt: skip
    if isinstance(model, (Compiled, Recorded)):  # again: not one region in another
        model = model._function if isinstance(model, Compiled) else model._orig_mod
    if not callable(model):
        raise TypeError(f"compile: expected a callable, got {type(model).__name__}")
    found = recorded(model, kind, wait)
    return kind(model, wait) if found is None else found


# backends of the program's own, by name: see kiln.compiler.register_backend
REGISTERED: dict[str, Callable[..., Any]] = {}


def _kind(
    backend: Any, mode: str | None, options: Any, fullgraph: bool, pure: bool, dynamic: bool
) -> type[Compiled]:
    """What calls the function; what few programs use is imported when one does."""
    own = REGISTERED.get(backend, backend) if isinstance(backend, str) else backend
    if mode is not None and options is not None:
        raise RuntimeError(
            "Either mode or options can be specified, but both can't be specified at the same time."
        )
    if callable(own):
        from kiln.fx.backends import backed

        if pure:
            raise ValueError(message("compile", "a backend, or pure=True", "both"))
        more = {"mode": mode if mode != "default" else None, "options": options}
        return backed(own, fullgraph, dynamic, {name: value for name, value in more.items() if value})
    _check(backend, mode)
    if pure:
        from kiln.capture.pure.cell import Pure

        return Pure
    if fullgraph:
        from kiln.capture.whole import InOne

        return InOne
    return Compiled


def in_place(
    function: Callable[..., Any],
    name: str,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "inductor",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    shapes_spec: Any = None,
    wait: bool = False,
) -> Compiled:
    """What `Module.compile` keeps: the function that takes the module, recorded under the module's name."""
    return _kind(backend, mode, options, fullgraph, False, bool(dynamic))(function, wait, name)


class InvalidBackend(RuntimeError):
    """A backend of no name that is known."""


def _check(backend: Any, mode: str | None) -> None:
    """Errors of what chooses between ways to compile in PyTorch."""
    if backend not in _BACKENDS:
        expected = message("compile", f"backend {', '.join(_BACKENDS)}", repr(backend))
        raise InvalidBackend(f"Invalid backend: {backend!r}: {expected}")
    if mode is not None and mode not in _MODES:
        raise RuntimeError(f"Unrecognized mode={mode}, should be one of: {', '.join(_MODES)}")
