"""PyTorch's forward mode, as far as a library asks whether it is on: it never is.

`kiln.func.jvp` has directional derivatives, by two passes of reverse mode.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

from kiln._core import Tensor
from kiln.absent import hint_missing as _hint_missing

__all__ = ["UnpackedDualTensor", "dual_level", "make_dual", "unpack_dual"]


def _forward(name: str) -> NoReturn:
    raise NotImplementedError(f"forward_ad.{name}: kiln.func.jvp has directional derivatives")


class UnpackedDualTensor(NamedTuple):
    """A tensor and its directional derivative, None where there is none."""

    primal: Tensor
    tangent: Tensor | None


def unpack_dual(tensor: Tensor, *, level: int | None = None) -> UnpackedDualTensor:
    """The tensor, without a directional derivative.

    >>> kiln.autograd.forward_ad.unpack_dual(kiln.ones(1)).tangent is None
    True
    """
    return UnpackedDualTensor(tensor, None)


def make_dual(tensor: Tensor, tangent: Tensor, *, level: int | None = None) -> NoReturn:
    """NotImplementedError: `kiln.func.jvp` has directional derivatives."""
    _forward("make_dual")


class dual_level:
    """`with` it, functions would carry directional derivatives along. NotImplementedError."""

    def __enter__(self) -> NoReturn:
        _forward("dual_level")

    def __exit__(self, *error: Any) -> None:
        return None


def enter_dual_level() -> NoReturn:
    """NotImplementedError, as `dual_level`."""
    _forward("enter_dual_level")


def exit_dual_level(*, level: int | None = None) -> NoReturn:
    """NotImplementedError, as `dual_level`."""
    _forward("exit_dual_level")


_hint_missing(__name__)
