"""What tensors look like: sizes, strides, dtype, history; and tensors that look like others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln import _core
from kiln.device import device
from kiln.fx import names

__all__ = ["Same", "copy_of", "hollow", "look"]

_PLAIN = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis), _core.dtype, device)


def look(x: Any) -> Any:
    """What must be the same of an input, or of an argument that is no tensor, for steps to be the same."""
    if isinstance(x, _core.Tensor):
        return (type(x), _core.place(x)[1:], x.dtype, x.requires_grad, x.is_leaf)
    if isinstance(x, _PLAIN):
        return (type(x), repr(x) if isinstance(x, (float, complex)) else x)
    if type(x) is range or (type(x).__module__ == "numpy" and hasattr(x, "dtype")):
        return (type(x), repr(x))
    return Same(x)


class Same:
    """An object as a key, by its identity."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __hash__(self) -> int:
        return id(self.held)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.held is self.held


def copy_of(tensor: Any) -> Any:
    """A tensor that looks the same and is none of the program's."""
    modes = _core.modes()
    _core.set_modes(True, False, None)
    try:
        plain = tensor.detach()
        made = plain.clone()
        if made.stride() != plain.stride():
            made = _laid(
                plain, lambda length: plain.as_strided((length,), (1,), plain.storage_offset()).clone()
            )
        if tensor.requires_grad:
            made.requires_grad_()
            made = made if tensor.is_leaf else made.clone()
        return made
    finally:
        _core.set_modes(*modes)


def _laid(tensor: Any, storage: Callable[[int], Any]) -> Any:
    length = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0
    return storage(max(length, 0)).as_strided(tuple(tensor.shape), tensor.stride(), 0)


def hollow(tensor: Any) -> Any:
    """A tensor that looks the same, whose memory nobody has touched."""
    if type(tensor) is not _core.Tensor or tensor.numel() < 1024:
        return tensor
    kiln, modes = names.root_module(), _core.modes()
    _core.set_modes(True, False, None)
    try:
        made = _laid(tensor, lambda length: kiln.empty(length, dtype=tensor.dtype))
        if tensor.requires_grad:
            made.requires_grad_()
            made = made if tensor.is_leaf else made.view(made.shape)
        return made if look(made)[2:] == look(tensor)[2:] else tensor
    finally:
        _core.set_modes(*modes)
