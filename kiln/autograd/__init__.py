"""Gradients on demand: the grad-mode switches, `backward` and `grad`, over the core's engine.

no_grad, enable_grad, set_grad_enabled   context managers and decorators over one flag of the core
backward(tensors, ...)                   accumulates into the `.grad` of the leaves
grad(outputs, inputs, ...)               returns gradients, accumulates nothing
gradcheck, gradgradcheck                 derivatives against differences
Function                                 a function with a derivative of the user's own
graph.saved_tensors_hooks(pack, unpack)  what becomes of the tensors that ops save for backward
"""

from kiln.autograd import function, graph
from kiln.autograd.engine import backward, grad
from kiln.autograd.function import Function
from kiln.autograd.gradcheck import gradcheck, gradgradcheck
from kiln.autograd.mode import enable_grad, no_grad, set_grad_enabled

__all__ = [
    "Function", "backward", "enable_grad", "function", "grad", "gradcheck", "gradgradcheck", "graph", "no_grad",
    "set_grad_enabled",
]  # fmt: skip
