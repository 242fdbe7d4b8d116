"""Calls written as text, run with kiln or with PyTorch: k is the framework, F its nn.functional."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from backend import kiln, torch


def shown(x: Any) -> Any:
    """A result as plain data: dtype, shape, values to 5 digits."""
    if hasattr(x, "requires_grad"):
        flat = x.detach().to(kiln.float64 if isinstance(x, kiln.Tensor) else torch.float64).reshape(-1)
        values = [round(v, 5) + 0.0 for v in flat.tolist()]
        return str(x.dtype).rpartition(".")[2], tuple(x.shape), values, x.requires_grad
    if isinstance(x, (tuple, list)):
        return tuple(map(shown, x))
    return x


def outcome(call: str, framework: Any) -> Any:
    """What the call gives, or the type of what it raises."""
    names = {"k": framework, "F": framework.nn.functional, "np": np}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return shown(eval(call, names))
        except Exception as error:
            return type(error)
