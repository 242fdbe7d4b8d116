"""Calls of NumPy and SciPy with a derivative in ops.

The arguments' values are read (a recording runs what they need), the libraries compute, and one node of the
core, as a user's function leaves it, knows the derivative: a function of the gradients and of the tensors
that went in and came out, written in ops, so that it can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from kiln import _core
from kiln.table.arguments import is_value


class _LinAlgError(RuntimeError):
    """A matrix that is singular, not positive definite, or on which an algorithm does not converge."""


LinAlgError = _LinAlgError  # as programs name it; what is shown is PyTorch's name of the class


class _Call:
    """What the engine calls with the gradients of the results."""

    __slots__ = ("derivative", "places")

    def __init__(self, derivative: Callable[..., Any]) -> None:
        self.derivative = derivative
        self.places: list[tuple[str, int] | None] = []

    def __call__(self, node: Any, grads: tuple[Any, ...]) -> Any:
        """One gradient, or None, per argument."""
        if all(g is None for g in grads):
            return (None,) * len(node.next_functions)
        return self.derivative(grads, *[place and node.saved(*place) for place in self.places])


def outside(
    name: str,
    compute: Callable[..., Sequence[Any]],
    derivative: Callable[..., Any] | None,
    *inputs: Any,
) -> list[Any]:
    """The tensors of the arrays that `compute` gives for the arrays of `inputs`.

    `derivative(grads, *inputs, *results)`: `grads` one per float result, None where it is not defined. What
    its parameters name with a `_` in front it does not read: that is None, and may be overwritten before.
    """
    for x in inputs:
        if hasattr(type(x), "outside"):  # a sample of a batch
            found: list[Any] = type(x).outside(outside, name, compute, derivative, inputs)
            return found
        if is_value(x):
            raise TypeError(f"{name}: it looks at values, so it cannot be part of a graph that is traced")
    given = [(x.detach() if x.requires_grad else x).numpy() for x in inputs]
    try:
        arrays = _core.call_outside(lambda: compute(*given))
    except ValueError as error:
        if type(error).__name__ != "LinAlgError":  # NumPy's, which is one
            raise
        raise LinAlgError(f"{name}: {error}") from None
    results = [_core.from_buffer(a) for a in arrays]
    if derivative is not None and _core.grad_enabled() and any(x.requires_grad for x in inputs):
        call = _Call(derivative)
        floats = [y for y in results if y.dtype.is_floating_point]
        code = derivative.__code__
        read = [not n.startswith("_") for n in code.co_varnames[1 : code.co_argcount]]
        saved = [x for x, wanted in zip((*inputs, *results), read) if wanted]
        places = iter(_core.record_user(name, call, inputs, floats, saved, ()))
        call.places = [next(places) if wanted else None for wanted in read]
    return results


@cache
def scipy_linalg(name: str) -> Any:
    """The module scipy.linalg, for the function `name`. ImportError without SciPy."""
    try:
        return import_module("scipy.linalg")  # by its name: a user's type checker would ask for stubs
    except ImportError as error:
        raise ImportError(
            f"{name}: needs SciPy, whose LAPACK it calls; install it with: pip install 'kiln[linalg]'"
        ) from error
