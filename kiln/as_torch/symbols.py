"""`torch.onnx.symbolic_helper` and its like: how operators would be written to ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from kiln import absent

__all__ = ["parse_args"]


def parse_args(*arg_descriptors: str) -> Callable[[Any], Any]:
    """Says what the arguments of a function for the exporter are; the function stays as it is."""
    return lambda fn: fn


def __getattr__(name: str) -> NoReturn:
    absent.no_attribute(__name__, name, "onnx.symbolic_helper")
