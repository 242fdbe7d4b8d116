"""Gradients on demand: the grad-mode switches, `backward` and `grad`, over the core's engine.

no_grad, enable_grad, set_grad_enabled   context managers and decorators over one flag of the core
backward(tensors, ...)                   accumulates into the `.grad` of the leaves
grad(outputs, inputs, ...)               returns gradients, accumulates nothing
Function                                 a function with a derivative of the user's own
functional.jacobian(f, x), hessian ...   derivatives of a function at a point, imported when asked for
graph.saved_tensors_hooks(pack, unpack)  what becomes of the tensors that ops save for backward
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from kiln.autograd import function, graph
from kiln.autograd.engine import backward, grad
from kiln.autograd.function import Function
from kiln.autograd.mode import enable_grad, no_grad, set_grad_enabled

if _TYPE_CHECKING:
    from kiln.autograd import functional

__all__ = [
    "Function",
    "backward",
    "enable_grad",
    "function",
    "functional",
    "grad",
    "graph",
    "no_grad",
    "set_grad_enabled",
]


def __getattr__(name: str) -> _Any:
    if name != "functional":
        raise AttributeError(f"module 'kiln.autograd' has no attribute '{name}'")
    return _import_module("kiln.autograd.functional")
