"""Checkpoints: what a function saves for backward is not kept but computed again when backward asks for it.

    forward    function(*args)   saves nothing but places, in order: p0 p1 p2 ...
    backward   asks for some p   function(*args) runs again, up to the last thing it saved; the k-th is pk's

That is `use_reentrant=False`. With True (`CheckpointFunction`) nothing is recorded at first; backward runs
the function again with recording, and a backward of its own through that.

The arguments are kept, by the hooks around where there are some: of checkpoints inside a checkpoint only the
outermost keeps anything. The random state is put back to where it was. Recorded by kiln.compile, what came
before a recomputation is run before it starts: it is neither merged with the first computation nor moved up
to it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary, ref

from kiln import _core
from kiln._core import Tensor
from kiln.autograd import Function, backward, enable_grad
from kiln.autograd.graph import saved_tensors_hooks
from kiln.errors import describe, message, warn
from kiln.table.callables import helper, hide_frames
from kiln.utils.selective import (
    CheckpointPolicy as CheckpointPolicy,
)
from kiln.utils.selective import (
    SelectiveCheckpointContext as SelectiveCheckpointContext,
)
from kiln.utils.selective import (
    create_selective_checkpoint_contexts as create_selective_checkpoint_contexts,
)


class CheckpointError(RuntimeError):
    """The function did not do the same when it was run again."""


class _Place:
    """Stands in the graph for a tensor that was saved; its value lives as long as it does."""

    __slots__ = ("__weakref__",)


_Values = WeakKeyDictionary[_Place, tuple[Tensor, int]]  # of places: the tensor and its version


class _Stop(BaseException):
    """Everything that was saved is there again: the rest need not run."""


def _version(tensor: Tensor) -> int:
    """How often the memory of a tensor was written; of one made in inference mode nothing is counted."""
    return 0 if tensor.is_inference() else tensor._version


def _expect_unchanged(tensor: Tensor, version: int) -> None:
    """RuntimeError if a tensor was written since it had this version."""
    if _version(tensor) != version:
        raise RuntimeError(
            "checkpoint: one of the variables needed for gradient computation has been modified by an "
            f"inplace operation: {describe(tensor)}; change a clone() instead"
        )


class _Kept:
    """An argument that is a tensor, as the hooks around the checkpoint keep it."""

    def __init__(self, tensor: Tensor) -> None:
        hooks = _core.saved_tensors_hooks()
        self.requires_grad = tensor.requires_grad
        self.unpack = hooks[1] if hooks else None
        self.value = hooks[0](tensor) if hooks else tensor
        self.version = _version(tensor)

    def tensor(self) -> Tensor:
        if self.unpack is None:
            found: Tensor = self.value
            _expect_unchanged(found, self.version)
            return found
        found = self.unpack(self.value).detach()
        return found.requires_grad_(self.requires_grad)


class _Run:
    """One call of a checkpointed function."""

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
        preserve_rng_state: bool, check: bool, context: Any, early_stop: bool, debug: bool,
    ) -> None:  # fmt: skip
        def keep(value: Any) -> Any:
            return _Kept(value) if isinstance(value, Tensor) else value

        self.function = function
        self.args = tuple(map(keep, args))
        self.kwargs = {name: keep(value) for name, value in kwargs.items()}
        self.random = _core.random_state() if preserve_rng_state else None
        self.check = check
        self.autocast = _core.ModeSwitch(None, None, _core.modes()[2] or False)
        self.context = context  # for running again
        self.early_stop = early_stop
        self.debug = debug
        self.complete = False  # the forward is over: nothing more will be saved
        self.places: list[tuple[ref[_Place], str, str]] = []  # of each, what it looked like, and its line
        self.values: dict[int, _Values] = {}  # by the backward pass that asked for them

    def pack(self, tensor: Tensor) -> _Place:
        """Keeps the place only."""
        place = _Place()
        self.places.append((ref(place), describe(tensor), self.line()))
        return place

    def line(self) -> str:
        """Where in the user's program this is, if it was asked for: " at file:line"."""
        if not self.debug:
            return ""
        frame: Any = sys._getframe()
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
            frame = frame.f_back
        return f" at {frame.f_code.co_filename}:{frame.f_lineno}"

    def unpack(self, place: _Place) -> Tensor:
        """The value of a place; in each backward pass, and outside at each call, all are computed again."""
        number = _core.current_run()
        values = self.values.get(number)
        if values is None:
            self.values = {k: found for k, found in self.values.items() if found and k < number}
            values = self.values[number] = self.recompute()
        if place not in values:
            raise CheckpointError(
                "checkpoint: Unpack is being triggered for a tensor that was already unpacked once: a "
                "backward must read ctx.saved_tensors only once, as what was computed again is not kept"
            )
        tensor, version = values.pop(place)
        if number == 0:
            del self.values[number]
        _expect_unchanged(tensor, version)
        return tensor

    def recompute(self) -> _Values:
        """Runs the function again and gives what it saves."""
        _core.flush()  # what is recorded so far neither merges with what follows nor waits for it
        count = 0
        values: _Values = WeakKeyDictionary()

        def pack(tensor: Tensor) -> Tensor:
            nonlocal count
            if count == len(self.places):
                self.refuse_count(f"more than {count} (trying to save more tensors during recomputation)")
            place, was, line = self.places[count]
            if self.check and describe(tensor) != was:
                came = f"{describe(tensor)}{self.line()}"
                raise CheckpointError(
                    f"{self.told()}checkpoint: Recomputed values for the following tensors have different "
                    f"metadata than during the forward pass: saved tensor {count} was {was}{line} and is "
                    f"{came}; {_HINT}"
                )
            tensor = tensor.detach() if tensor.requires_grad else tensor
            if (alive := place()) is not None:
                values[alive] = tensor, _version(tensor)
            count += 1
            if count == len(self.places) and (self.early_stop or not self.complete):
                raise _Stop
            return tensor

        def get(value: Any) -> Any:
            return value.tensor() if isinstance(value, _Kept) else value

        args, kwargs = tuple(map(get, self.args)), {name: get(v) for name, v in self.kwargs.items()}
        random = _core.random_state()
        try:
            if self.random is not None:
                _core.set_random_state(*self.random)
            with enable_grad(), self.autocast, self.context, saved_tensors_hooks(pack, lambda tensor: tensor):
                self.function(*args, **kwargs)
        except _Stop:
            return values
        finally:
            if self.random is not None:
                _core.set_random_state(*random)
        if count < len(self.places):
            self.refuse_count(str(count))
        return values

    def told(self) -> str:
        """Why the message has lines."""
        return "You are seeing this error because you passed `debug=True` to " * self.debug

    def refuse_count(self, came: str) -> None:
        """Raises CheckpointError."""
        raise CheckpointError(
            f"{self.told()}checkpoint: A different number of tensors was saved during the original forward "
            f"and recomputation: {len(self.places)} at first, then {came}; {_HINT}"
        )


_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_HINT = "the function must do the same each time it is called with the same arguments"


class _Setting:
    """What a context manager may say in the place of an argument of checkpoint."""

    def __init__(self) -> None:
        self.said: bool | None = None

    def get(self, given: bool) -> bool:
        return given if self.said is None else self.said

    @contextmanager
    def during(self, said: bool | None) -> Generator[None, None, None]:
        found, self.said = self.said, said
        try:
            yield
        finally:
            self.said = found


_early_stop, _debug = _Setting(), _Setting()


def set_checkpoint_early_stop(enable: bool) -> Any:
    """A context manager: inside, what checkpoints run again ends early, or not, whatever they are told.

    >>> import kiln
    >>> with kiln.utils.checkpoint.set_checkpoint_early_stop(False):
    ...     y = kiln.utils.checkpoint.checkpoint(kiln.exp, kiln.ones(2), use_reentrant=False)
    """
    return _early_stop.during(enable)


def set_checkpoint_debug_enabled(enabled: bool | None) -> Any:
    """A context manager: inside, checkpoints are made with this `debug`; None: with what they are told."""
    return _debug.during(enabled)


def get_device_states(*args: Any) -> tuple[list[int], list[Tensor]]:
    """The random states of the accelerators that tensors in `args` are on: none.

    >>> kiln.utils.checkpoint.get_device_states(kiln.ones(2))
    ([], [])
    """
    return [], []


def set_device_states(
    devices: Iterable[Any], states: Iterable[Any], *, device_type: str | None = None
) -> None:
    """Puts back what `get_device_states` gave."""
    for device in devices:
        raise ValueError(message("set_device_states", "no devices", describe(device), "kiln runs on the CPU"))


def noop_context_fn() -> tuple[Any, Any]:
    """What context_fn is if it is not given: two context managers that do nothing."""
    return nullcontext(), nullcontext()


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Callable[[], tuple[Any, Any]] = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """`function(*args, **kwargs)`, whose intermediate values backward computes again instead of keeping.

    Gradients have the same bits as without. The function must do the same when it is called again:
    `preserve_rng_state` puts the random state back for that, `determinism_check="none"` drops the comparison
    of the shapes and dtypes it saves. `context_fn` gives two context managers, for the call and for calling
    again, which ends where nothing more is needed unless `early_stop` is false. With `debug` what did not do
    the same is named by its lines. Raises CheckpointError, in backward, where the function did something
    else.

    With `use_reentrant=True` backward runs the function from its arguments alone, with a backward pass of its
    own: gradients come out only if one of `args` itself requires them (else there is a warning), and only in
    a full `.backward()`: `grad` and `inputs=` are a RuntimeError. Not said it is False, with a warning.

    >>> import kiln
    >>> x = kiln.ones(3, requires_grad=True)
    >>> kiln.utils.checkpoint.checkpoint(lambda t: (t * t).exp().sum(), x, use_reentrant=False).backward()
    >>> x.grad
    tensor([5.4366, 5.4366, 5.4366])
    """
    if determinism_check not in ("default", "none"):
        raise ValueError(
            message("checkpoint", 'determinism_check "default" or "none"', repr(determinism_check))
        )
    if use_reentrant is None:
        _warn_of_kind("checkpoint")
    if use_reentrant and kwargs:
        raise ValueError(f"Unexpected keyword arguments: {','.join(kwargs)}")
    if use_reentrant and (context_fn is not noop_context_fn or debug):
        raise ValueError("Passing `context_fn` or `debug` is only supported when use_reentrant=False.")
    if use_reentrant:
        return CheckpointFunction.apply(function, preserve_rng_state, *args)
    if not _core.grad_enabled():
        return function(*args, **kwargs)
    first, again = context_fn()
    check = determinism_check == "default"
    stop, told = _early_stop.get(early_stop), _debug.get(debug)
    run = _Run(function, args, kwargs, preserve_rng_state, check, again, stop, told)
    with saved_tensors_hooks(run.pack, run.unpack), first:
        result = function(*args, **kwargs)
    run.complete = True
    return result


def _warn_of_kind(name: str) -> None:
    """That `use_reentrant` should be said."""
    warn(
        f"{name}: the use_reentrant parameter should be passed explicitly, use_reentrant=False for most "
        "programs: it is what is taken now. What needs a backward pass of its own inside backward says True.",
    )


def check_backward_validity(inputs: Iterable[Any]) -> None:
    """Warns if none of the arguments is a tensor that requires gradients.

    >>> import kiln
    >>> kiln.utils.checkpoint.check_backward_validity([kiln.ones(2, requires_grad=True), "text"])
    """
    if not any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
        warn("None of the inputs have requires_grad=True. Gradients will be None")


def detach_variable(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with tensors cut from their history; those that required gradients do so again.

    >>> import kiln
    >>> x, word = kiln.utils.checkpoint.detach_variable((kiln.ones(2, requires_grad=True) * 2, "text"))
    >>> x.is_leaf, x.requires_grad, word
    (True, True, 'text')
    """
    if not isinstance(inputs, tuple):
        raise RuntimeError(
            f"Only tuple of tensors is supported. Got Unsupported input type: {type(inputs).__name__}"
        )

    def cut(x: Any) -> Any:
        return x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x

    return tuple(map(cut, inputs))


class CheckpointFunction(Function):
    """The checkpoint of `use_reentrant=True`: forward records nothing, backward runs everything again."""

    @staticmethod
    def forward(ctx: Any, run_function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        """What the function gives."""
        check_backward_validity(args)
        ctx.run_function = run_function
        ctx.random = _core.random_state() if preserve_rng_state else None
        ctx.autocast = _core.ModeSwitch(None, None, _core.modes()[2] or False)
        ctx.inputs = tuple([None if isinstance(x, Tensor) else x for x in args])
        ctx.places = tuple([k for k, x in enumerate(args) if isinstance(x, Tensor)])
        ctx.save_for_backward(*[args[k] for k in ctx.places])
        return run_function(*args)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """The gradients of the arguments, by a backward pass through a second run."""
        if not _core.passes_to_all_leaves():
            raise RuntimeError(
                "When use_reentrant=True, torch.utils.checkpoint is incompatible with autograd.grad() and "
                "with `inputs` of backward(): the pass inside reaches all leaves. Use use_reentrant=False."
            )
        _core.flush()  # as before the other kind's recomputation
        inputs = list(ctx.inputs)
        for k, x in zip(ctx.places, ctx.saved_tensors):
            inputs[k] = x
        again, random = detach_variable(tuple(inputs)), _core.random_state()
        try:
            if ctx.random is not None:
                _core.set_random_state(*ctx.random)
            with enable_grad(), ctx.autocast:
                outputs = ctx.run_function(*again)
        finally:
            if ctx.random is not None:
                _core.set_random_state(*random)
        several = outputs if isinstance(outputs, tuple) else (outputs,)
        wanted = [(y, g) for y, g in zip(several, grads) if isinstance(y, Tensor) and y.requires_grad]
        if not wanted:
            raise RuntimeError("none of output has requires_grad=True, this checkpoint() is not necessary")
        backward(*map(list, zip(*wanted)))  # type: ignore[arg-type]
        return (None, None, *[x.grad if isinstance(x, Tensor) else None for x in again])


def checkpoint_sequential(
    functions: Iterable[Callable[[Any], Any]],
    segments: int,
    input: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
) -> Any:
    """The functions (or a Sequential's modules) in turn, in segments: all but the last a checkpoint.

    >>> import kiln
    >>> x = kiln.ones(2, requires_grad=True)
    >>> stages = [kiln.tanh, kiln.exp, kiln.sin]
    >>> kiln.utils.checkpoint.checkpoint_sequential(stages, 2, x, use_reentrant=False).sum().backward()
    >>> x.grad
    tensor([-0.4860, -0.4860])
    """
    if use_reentrant is None:
        _warn_of_kind("checkpoint_sequential")
        use_reentrant = False
    stages = list(functions)
    if not 1 <= segments <= max(len(stages), 1):
        raise ValueError(
            message(
                "checkpoint_sequential", f"1 to {len(stages)} segments, as many as functions", str(segments)
            )
        )

    def run(part: list[Callable[[Any], Any]], value: Any) -> Any:
        for stage in part:
            value = stage(value)
        return value

    size = len(stages) // segments
    for k in range(segments - 1):
        part = stages[k * size : (k + 1) * size]
        input = checkpoint(
            run, part, input, use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state
        )
    return run(stages[(segments - 1) * size :], input)


hide_frames(globals(), ("checkpoint", "checkpoint_sequential"))
for _name in ("check_backward_validity", "detach_variable", "set_device_states"):
    globals()[_name] = helper(_name, globals()[_name])
