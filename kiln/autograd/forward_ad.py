"""Forward mode's names: programs that import them run, and are told at the first use that there is none."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

from kiln._core import Tensor
from kiln.absent import hint_missing as _hint_missing
from kiln.table.callables import name_helpers as _name_helpers

__all__ = [
    "UnpackedDualTensor",
    "dual_level",
    "enter_dual_level",
    "exit_dual_level",
    "make_dual",
    "unpack_dual",
]


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"autograd.forward_ad.{name}: kiln has no forward mode; func.jvp and autograd.functional.jvp give "
        "the same numbers by backward passes"
    )


class UnpackedDualTensor(NamedTuple):
    """A tensor and its tangent, which is None: nothing here has one."""

    primal: Tensor
    tangent: Tensor | None


class dual_level:
    """Where tensors would have tangents. NotImplementedError.

    >>> import kiln
    >>> kiln.autograd.forward_ad.dual_level()
    Traceback (most recent call last):
        ...
    NotImplementedError: autograd.forward_ad.dual_level: kiln has no forward mode; func.jvp and ...
    """

    def __init__(self) -> None:
        _refuse("dual_level")


def enter_dual_level() -> NoReturn:
    """NotImplementedError."""
    _refuse("enter_dual_level")


def exit_dual_level(*, level: int | None = None) -> NoReturn:
    """NotImplementedError."""
    _refuse("exit_dual_level")


def make_dual(tensor: Any, tangent: Any, *, level: int | None = None) -> NoReturn:
    """NotImplementedError."""
    _refuse("make_dual")


def unpack_dual(tensor: Tensor, *, level: int | None = None) -> UnpackedDualTensor:
    """The tensor, without a tangent: libraries ask whether there is one.

    >>> kiln.autograd.forward_ad.unpack_dual(kiln.ones(1)).tangent is None
    True
    """
    return UnpackedDualTensor(tensor, None)


_name_helpers(globals(), __name__)
_hint_missing(__name__)
