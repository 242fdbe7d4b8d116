"""Gradients on demand: the grad-mode switches, `backward` and `grad`, over the core's engine.

no_grad, enable_grad, set_grad_enabled   context managers and decorators over one flag of the core
inference_mode                           the same, and what is made inside never takes part in backward
backward(tensors, ...)                   accumulates into the `.grad` of the leaves
grad(outputs, inputs, ...)               returns gradients, accumulates nothing
gradcheck, gradgradcheck                 derivatives against differences
Function                                 a function with a derivative of the user's own
graph                                    nodes, edges, hooks on several, what becomes of saved tensors
detect_anomaly, set_detect_anomaly       where what fails in backward was computed
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kiln._core import Tensor as Variable
from kiln.autograd import function, grad_mode, graph
from kiln.autograd.engine import backward, grad
from kiln.autograd.function import Function
from kiln.autograd.grad_mode import (
    enable_grad,
    inference_mode,
    no_grad,
    set_grad_enabled,
    set_multithreading_enabled,
)
from kiln.autograd.gradcheck import gradcheck, gradgradcheck

if TYPE_CHECKING:
    from kiln.autograd import anomaly_mode
    from kiln.autograd.anomaly_mode import detect_anomaly, set_detect_anomaly

__all__ = [
    "Function", "Variable", "anomaly_mode", "backward", "detect_anomaly", "enable_grad", "function", "grad",
    "grad_mode", "gradcheck", "gradgradcheck", "graph", "inference_mode", "no_grad", "set_detect_anomaly",
    "set_grad_enabled", "set_multithreading_enabled",
]  # fmt: skip

_ANOMALY = ("detect_anomaly", "set_detect_anomaly")


def __getattr__(name: str) -> Any:
    if name not in ("anomaly_mode", *_ANOMALY):
        raise AttributeError(f"module 'kiln.autograd' has no attribute '{name}'")
    module = import_module("kiln.autograd.anomaly_mode")  # which few programs need
    return module if name == "anomaly_mode" else getattr(module, name)
