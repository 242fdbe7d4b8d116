"""Gradients on demand: the grad-mode switches, `backward` and `grad`, over the core's engine.

no_grad, enable_grad, set_grad_enabled   context managers and decorators over one flag of the core
inference_mode                           the same, and what is made inside never takes part in backward
backward(tensors, ...)                   accumulates into the `.grad` of the leaves
grad(outputs, inputs, ...)               returns gradients, accumulates nothing
gradcheck, gradgradcheck                 derivatives against differences
Function                                 a function with a derivative of the user's own
graph                                    nodes, edges, hooks on several, what becomes of saved tensors
functional                               jacobian, hessian, ...: derivatives of a function at a point
detect_anomaly, set_detect_anomaly       where what fails in backward was computed
"""

from __future__ import annotations

import typing as _typing
from importlib import import_module as _import_module

from kiln.absent import hidden as _hidden
from kiln.absent import no_attribute as _no_attribute
from kiln.autograd import function, grad_mode, graph
from kiln.autograd.engine import backward, grad
from kiln.autograd.function import Function
from kiln.autograd.grad_mode import (
    enable_grad,
    inference_mode,
    is_multithreading_enabled,
    no_grad,
    set_grad_enabled,
    set_multithreading_enabled,
)
from kiln.autograd.gradcheck import gradcheck, gradgradcheck
from kiln.autograd.graph import _unsafe_preserve_version_counter as _unsafe_preserve_version_counter

if _typing.TYPE_CHECKING:
    from kiln.autograd import anomaly_mode, functional, profiler, variable
    from kiln.autograd import forward_ad as forward_ad
    from kiln.autograd.anomaly_mode import detect_anomaly, set_detect_anomaly
    from kiln.autograd.variable import Variable

__all__ = [
    "Function", "Variable", "anomaly_mode", "backward", "detect_anomaly", "enable_grad", "forward_ad",
    "function", "functional", "grad", "grad_mode", "gradcheck", "gradgradcheck", "graph", "inference_mode",
    "is_multithreading_enabled", "no_grad", "profiler", "set_detect_anomaly", "set_grad_enabled",
    "set_multithreading_enabled", "variable",
]  # fmt: skip

# What few programs need, imported when it is first asked for: name -> its module.
_LATER = {
    "anomaly_mode": "anomaly_mode",
    "detect_anomaly": "anomaly_mode",
    "forward_ad": "forward_ad",
    "functional": "functional",
    "profiler": "profiler",
    "set_detect_anomaly": "anomaly_mode",
    "Variable": "variable",
    "variable": "variable",
}


def _found(name: str) -> _typing.Any:
    """`__getattr__`, which type checkers do not see."""
    if name not in _LATER:
        _no_attribute(__name__, name)
    module = _import_module(f"kiln.autograd.{_LATER[name]}")
    return module if name == _LATER[name] else getattr(module, name)


if not _typing.TYPE_CHECKING:
    __getattr__ = _hidden(_found)
