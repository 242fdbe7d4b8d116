"""`torch.fft`: what imports its functions is imported; kiln has no complex numbers to compute with.

from torch.fft import rfft      a name, whose use is refused
torch.fft.rfft                  AttributeError; `hasattr` says False, and a program takes its other way
"""

from __future__ import annotations

from opcode import opmap
from typing import Any

from kiln.absent import Refused, asking, hidden, no_attribute

_NAMES = (
    "fft fft2 fftfreq fftn fftshift hfft hfft2 hfftn ifft ifft2 ifftn ifftshift ihfft ihfft2 ihfftn irfft "
    "irfft2 irfftn rfft rfft2 rfftfreq rfftn"
).split()


def _found(name: str) -> Any:
    if name[:2] == "__":  # which an import asks for
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    frame = asking()
    if name in _NAMES and frame is not None and frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]:
        return Refused(f"fft.{name}")
    no_attribute("torch.fft", name, "fft")


__getattr__ = hidden(_found)
