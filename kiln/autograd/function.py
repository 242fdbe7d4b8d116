"""Functions with a derivative of the user's own: `Function`, what its methods see, and `once_differentiable`.

forward runs without recording; one node of the core stands for the call in the graph, and the engine hands it
the gradients of the results. Whatever forward and backward do is ops, recorded in a compiled region as any.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from kiln import _core, ops
from kiln._core import Tensor
from kiln.absent import leave_out
from kiln.autograd.grad_mode import no_grad
from kiln.errors import warn
from kiln.table.arguments import follower_here

_without_grad = _core.ModeSwitch(False)


class FunctionCtx:
    """What forward tells backward: `save_for_backward`, the marks below, and attributes of any name."""

    of_one_call = True  # what is kept in it outlives no call (kiln/capture/pure/surroundings.py)
    needs_input_grad: tuple[bool, ...] = ()
    _kept: tuple[Any, ...] = ()
    _dirty: tuple[Any, ...] = ()
    _constant: tuple[Any, ...] = ()
    _materialize = True
    _materialize_non_diff_grads = True  # whether that holds for results without derivative
    _node: Any = None  # while backward runs
    _places: Any = None  # where the node keeps each tensor of `_kept`, None for None
    _function: Any = None  # the class
    _tensors: tuple[bool, ...] = ()  # which arguments are tensors
    _results: tuple[Any, ...] = ()  # of each result: its place in the node, None, or (shape, dtype) of zeros

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def save_for_backward(self, *tensors: Any) -> None:
        """Keeps tensors (or None) for backward, which finds them in `saved_tensors`; the last call counts.

        TypeError for anything else, which may be an attribute of the context.
        """
        for k, x in enumerate(tensors):
            if x is not None and not isinstance(x, Tensor):
                raise TypeError(
                    f"save_for_backward can only save variables, but argument {k} is of type "
                    f"{type(x).__name__}; keep it as an attribute of ctx"
                )
        self._kept = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """What a `jvp` of the function would read: taken, as programs say it, and not kept."""

    @property
    def saved_variables(self) -> tuple[Tensor, ...]:
        """The old name of saved_tensors."""
        warn("'saved_variables' is deprecated; use 'saved_tensors'", DeprecationWarning)
        return self.saved_tensors

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]:
        """The tensors saved, while backward runs. RuntimeError if one was changed in place or freed."""
        if self._places is None:
            return self._kept
        if self._node is None:
            raise RuntimeError("saved_tensors: there while backward runs, and as an attribute of grad_fn")
        kept: Any = self.saved_in(self._node)  # with None where that was saved
        found: tuple[Tensor, ...] = kept
        return found

    def saved_in(self, node: Any) -> tuple[Tensor | None, ...]:
        """The tensors saved, from the node that has this context."""
        return tuple([p and node.saved(*p) for p in self._places])

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Says that forward changes these inputs in place; each must also be returned."""
        _expect_tensors("mark_dirty can only accept variables, but argument is of type", tensors)
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Says that these results have no derivative; backward still gets a gradient, of zeros, for each."""
        _expect_tensors("mark_non_differentiable only accepts variable arguments, but got", tensors)
        self._constant = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether a gradient that is not defined comes to backward as zeros (as at first) or as None."""
        self._materialize = value

    def __call__(self, node: Any, grads: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        """The gradients of the tensors among the arguments: what the engine calls."""
        given = [self._undefined(*r) if g is None else g for r, g in self._beside(grads)]
        before, self._node = self._node, node
        try:
            found = self._function._derivative()(self, *given)
        finally:
            self._node = before
        return self._checked(found if isinstance(found, tuple) else (found,))

    def _beside(self, grads: tuple[Tensor | None, ...]) -> list[tuple[Any, Tensor | None]]:
        """Each result (its place, and what zeros of it are like) with its gradient."""
        return [(r, None if r[0] is None else grads[r[0]]) for r in self._results]

    def _undefined(self, place: int | None, like: Any) -> Tensor | None:
        """What stands for a gradient that is not defined."""
        wanted = self._materialize and (place is not None or self._materialize_non_diff_grads)
        if not wanted or like is None:
            return None
        zeros: Tensor = ops.zeros(like[0], dtype=like[1])
        return zeros

    def _checked(self, found: tuple[Any, ...]) -> list[Tensor | None]:
        """Those of the gradients that belong to tensors; RuntimeError unless there is one per argument."""
        name, count = f"{self._function.__name__}Backward", len(self._tensors)
        if len(found) > count and all(g is None for g in found[count:]):
            found = found[:count]
        if len(found) != count:
            raise RuntimeError(
                f"function {name} returned an incorrect number of gradients (expected {count}, got "
                f"{len(found)})"
            )
        for k, (g, is_tensor) in enumerate(zip(found, self._tensors)):
            if g is not None and not is_tensor:
                raise RuntimeError(
                    f"function {name} returned a gradient different than None at position {k + 1}, but the "
                    "corresponding forward input was not a Variable"
                )
            if g is not None and not isinstance(g, Tensor):
                raise RuntimeError(
                    f"expected Variable or None (got {type(g).__name__}) as gradient {k} of {name}"
                )
        return [g for g, is_tensor in zip(found, self._tensors) if is_tensor]


def _expect_tensors(what: str, given: tuple[Any, ...]) -> None:
    """RuntimeError, which begins with `what`, for one that is no tensor."""
    for x in given:
        if not isinstance(x, Tensor):
            raise RuntimeError(f"{what} {type(x).__name__}")


class Function:
    """A function with a derivative of its own: a subclass says `forward` and `backward`, calls go to `apply`.

    `forward(ctx, *args)` (or `forward(*args)` and `setup_context(ctx, inputs, output)`) computes the result,
    a tensor or a tuple; `backward(ctx, *grads)` gets one gradient per result and gives one, or None, per
    argument. What backward computes can be differentiated again.

    >>> import kiln
    >>> class Cube(kiln.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x**3
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         (x,) = ctx.saved_tensors
    ...         return 3 * x**2 * g
    >>> x = kiln.tensor(2.0, requires_grad=True)
    >>> Cube.apply(x).backward()
    >>> x.grad
    tensor(12.)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warn(
            f"{type(self)} should not be instantiated. Methods on autograd functions are all "
            f"static: call {type(self).__name__}.apply(...)",
            DeprecationWarning,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = type(self).__name__
        raise RuntimeError(
            "Legacy autograd function with non-static forward method is deprecated. Please use new-style "
            f"autograd function with static forward method: make forward and backward of {name} static "
            f"methods, and call {name}.apply(...)"
        )

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """The result, from the context (unless there is a setup_context) and the arguments."""
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        """Fills the context, where forward does not take one."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any, **kwargs: Any) -> Any:
        """The gradients of the arguments, from those of the results."""
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom autograd.Function to use "
            "it with backward mode AD."
        )

    vjp = backward
    generate_vmap_rule = False  # whether forward and backward may be run on samples, inside kiln.vmap

    @classmethod
    def _derivative(cls) -> Callable[..., Any]:
        """backward, or vjp, which is another name for it; RuntimeError if a class has both."""
        if cls.vjp is Function.vjp:
            return cls.backward
        if cls.backward is not Function.backward:
            raise RuntimeError(
                "Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You should "
                "only implement one of them."
            )
        return cls.vjp

    @classmethod
    @_core.Function
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """The function of these arguments, with its derivative; gradients go to tensors among them alone."""
        ctx = FunctionCtx()
        split = cls.setup_context is not Function.setup_context
        if split or kwargs:
            args = _in_order(cls.forward, args, kwargs, split)
        for x in args:
            if hasattr(type(x), "applied"):  # a sample of a batch (kiln.func)
                return type(x).applied(cls, args)
        follower = follower_here()
        if follower is not None:  # (kiln.tracing)
            return follower.applied(cls, args)
        ctx._function = cls
        ctx._tensors = tuple([isinstance(x, Tensor) for x in args])
        ctx.needs_input_grad = tuple([isinstance(x, Tensor) and x.requires_grad for x in args])
        if split:
            output = _without_grad.call(cls.forward, *args)
            _without_grad.call(cls.setup_context, ctx, args, output)
        else:
            output = _without_grad.call(cls.forward, ctx, *args)
        inputs = [x for x, is_tensor in zip(args, ctx._tensors) if is_tensor]
        several = isinstance(output, tuple)
        results = _recorded(ctx, inputs, output if several else (output,), _core.grad_enabled())
        return tuple(results) if several else results[0]


def _in_order(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], split: bool) -> tuple[Any, ...]:
    """The arguments by position: those named, and where forward is `split` the defaults."""
    code = function.__code__
    names = code.co_varnames[hasattr(function, "__self__") : code.co_argcount]  # not a class method's class
    known = (dict(zip(reversed(names), reversed(function.__defaults__ or ()))) if split else {}) | kwargs
    rest = names[len(args) + (not split) :]
    for name in kwargs:
        if name not in rest:
            raise TypeError(f"{function.__qualname__}() got an unexpected or repeated argument '{name}'")
    if not split:
        rest = rest[: 1 + max(map(rest.index, kwargs))]
    for name in rest:
        if name not in known:
            raise TypeError(f"{function.__qualname__}() missing required argument: '{name}'")
    return (*args, *[known[name] for name in rest])


def _among(x: Any, list_: Any) -> bool:
    return any(x is y for y in list_)


def _takes_its_own(y: Tensor, inputs: list[Any], differs: bool) -> bool:
    """Whether a result must not share its history with what forward was given or recorded itself. One
    without derivative that is a view stays the view it is, as where no function is called.
    """
    if _among(y, inputs):
        return differs or y.requires_grad
    return y.requires_grad and (differs or not y._is_view())


def _recorded(ctx: FunctionCtx, inputs: list[Any], outputs: tuple[Any, ...], recording: bool) -> list[Any]:
    """The results with their place in the graph, if any input has one."""
    if not all(_among(x, outputs) for x in ctx._dirty):
        raise RuntimeError(
            "Some elements marked as dirty during the forward method were not returned as output. The inputs "
            "that are modified inplace must all be outputs of the Function."
        )
    if not all(_among(x, inputs) for x in ctx._dirty):
        warn(
            "Only input Tensors should be given to ctx.mark_dirty(). If a Tensor is not an input, there is "
            "no need to pass it to mark_dirty()."
        )
        ctx._dirty = tuple([x for x in ctx._dirty if _among(x, inputs)])
    for x in ctx._dirty:
        _core.increment_version(x)  # whatever forward wrote it by
    node = next((x for x in inputs if hasattr(type(x), "recorder")), None)
    if node is not None:  # a tensor whose sizes vary, or a node of a graph
        node.recorder.refuse("calls an autograd.Function, whose backward is Python")
    recording = recording and True in ctx.needs_input_grad
    if not recording and True not in ctx.needs_input_grad:
        return [y.view_as(y) if _among(y, inputs) and not _among(y, ctx._dirty) else y for y in outputs]
    for x in ctx._dirty if recording else ():
        if x.requires_grad and x.is_leaf and not _among(x, ctx._constant):
            raise RuntimeError(
                "a leaf Variable that requires grad has been used in an in-place operation: mark_dirty in "
                f"{ctx._function.__name__}; call it under no_grad(), or on a clone()"
            )
        if x._is_view() and len(outputs) > 1:
            raise RuntimeError(
                "If your Function modifies inplace an input that is a view of another Tensor, your Function "
                "cannot return more than one Tensor: split it, or clone() the view first"
            )
    results: list[Any] = []
    places: list[tuple[int | None, Any]] = []
    made: list[Any] = []
    for y in outputs:
        if not isinstance(y, Tensor):
            results.append(y)
            places.append((None, None))
            continue
        like = (tuple(y.shape), y.dtype.name)
        differs = recording and y.dtype.is_floating_point and not _among(y, ctx._constant)
        if (not differs or not _among(y, ctx._dirty)) and _takes_its_own(y, inputs, differs):
            y = y.detach()  # what was given keeps its own history
        results.append(y)
        places.append((len(made) if differs else None, like))
        if differs:
            made.append(y)
    saved, dirty = ctx._kept, ctx._dirty
    ctx._kept = ctx._dirty = ctx._constant = ()  # first: hooks of what is saved may raise
    if recording:
        ctx._results = tuple(places)
        kept = [x for x in saved if x is not None]
        where = iter(_core.record_user(ctx._function.__name__, ctx, inputs, made, kept, dirty))
        ctx._places = [x if x is None else next(where) for x in saved]
    return results


class InplaceFunction(Function):
    """The old name of functions that change their inputs: `ctx.mark_dirty` is what says so."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace


class _Once(Function):
    """Passes gradients on and refuses to be differentiated."""

    @staticmethod
    def forward(ctx: Any, *grads: Any) -> Any:
        return grads

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(
            "trying to differentiate twice a function that was marked with @once_differentiable"
        )


def once_differentiable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a `backward` whose result cannot be differentiated again: it runs without recording, and a second
    derivative raises RuntimeError.
    """

    @wraps(fn)
    def backward(ctx: Any, *grads: Any) -> Any:
        with no_grad():
            found = fn(ctx, *grads)
        if not _core.grad_enabled() or not any(isinstance(g, Tensor) and g.requires_grad for g in grads):
            return found
        several = isinstance(found, tuple)
        marked = [
            g.detach().requires_grad_() if isinstance(g, Tensor) and g.dtype.is_floating_point else g
            for g in (found if several else (found,))
        ]
        refusing = _Once.apply(*marked)
        return refusing if several else refusing[0]

    backward.once_differentiable = True  # type: ignore[attr-defined]
    return backward


leave_out(
    Function,
    "dirty_tensors mark_dirty mark_non_differentiable mark_shared_storage materialize_grads needs_input_grad "
    "non_differentiable save_for_backward save_for_forward saved_for_forward saved_tensors saved_variables "
    "set_materialize_grads to_save",
    "it is of `ctx`, which forward and backward are given",
)
leave_out(
    Function,
    "metadata name next_functions register_hook register_prehook requires_grad",
    "it is of the node, a result's grad_fn",
)
leave_out(Function, "jvp", "kiln has no forward mode; func.jvp gives the same numbers by backward passes")
leave_out(Function, "vmap", "kiln.vmap maps what says `generate_vmap_rule = True`")
leave_out(
    Function,
    "boxed_grads_call clear_saved_tensors_on_access maybe_clear_saved_tensors",
    "saved tensors live until backward has used them",
)
leave_out(FunctionCtx, "mark_shared_storage", "PyTorch removed it; kiln knows which tensors share memory")
