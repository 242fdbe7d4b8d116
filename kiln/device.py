"""Devices: where a tensor's memory is. There is one, the CPU."""

from __future__ import annotations

from typing import Any


class device:
    """A device by its type ("cpu") and index. RuntimeError for a type that does not exist here.

    >>> kiln.device("cpu").type
    'cpu'
    """

    __slots__ = ("index", "type")

    type: str
    index: int | None

    def __init__(self, type: str | device, index: int | None = None) -> None:
        if isinstance(type, device):
            type, index = type.type, type.index  # type: ignore[assignment]
        if not isinstance(type, str):
            raise TypeError(f"device: expected a string or a device, got {type.__class__.__name__}")
        name, _, number = type.partition(":")
        if name != "cpu" or (number and number != "0") or index not in (None, 0):
            raise RuntimeError(f"device: expected 'cpu', got {type!r}: kiln has no other device yet")
        self.type = name
        self.index = int(number) if number else index

    def __repr__(self) -> str:
        index = "" if self.index is None else f", index={self.index}"
        return f"device(type='{self.type}'{index})"

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))


CPU = device("cpu")


def get_default_device() -> device:
    """Where new tensors are: on the CPU.

    >>> kiln.get_default_device()
    device(type='cpu')
    """
    return CPU


def set_default_device(device: Any) -> None:
    """Says where new tensors are: "cpu", or None for that too. RuntimeError for what is not there.

    >>> kiln.set_default_device("cpu")
    """
    if device is not None:
        Device(device)


Device = device
