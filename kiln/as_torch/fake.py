"""`torch._subclasses` and `torch.fx.experimental`: programs without values; in kiln what runs has values."""

from __future__ import annotations

from typing import Any

from kiln import Tensor
from kiln.absent import hint_missing as _hint_missing
from kiln.absent import refuse as _refuse

__all__ = ["FakeTensor", "FakeTensorMode", "is_fake"]


class FakeTensor(Tensor):
    """A tensor without values: no tensor is one."""


class FakeTensorMode:
    """`with` one, tensors would have no values. NotImplementedError."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("_subclasses.FakeTensorMode")


def is_fake(x: object) -> bool:
    """False: every tensor has values."""
    return False


_hint_missing(__name__, "_subclasses")
