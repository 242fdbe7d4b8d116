"""Forms of composites: ops of kiln that are one operator of ONNX, or a few. What has none is written out.

A form is given the builder, the node's result and its arguments by name, arrays as values of the graph; it
gives the name of the result, or None where these arguments have no form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln.onnx.builder import Builder

Form = Callable[..., Any]

FORMS: dict[str, Form] = {}


def form(*names: str) -> Callable[[Form], Form]:
    """Registers the form of some ops."""

    def register(function: Form) -> Form:
        for name in names:
            FORMS[name] = function
        return function

    return register


@form("softmax")
def _softmax(b: Builder, y: Any, input: Any, dim: int, dtype: Any) -> Any:
    return b.in_wide("Softmax", y.dtype, b.cast(b.of(input), input.dtype, y.dtype), axis=dim)


@form("log_softmax")
def _log_softmax(b: Builder, y: Any, input: Any, dim: int, dtype: Any) -> Any:
    return b.in_wide("LogSoftmax", y.dtype, b.cast(b.of(input), input.dtype, y.dtype), axis=dim)
