"""`torch.fft`: names, so that what imports them is imported; kiln has no complex numbers to compute with."""

from __future__ import annotations

from kiln.absent import Refused, hint_missing

_NAMES = (
    "fft fft2 fftfreq fftn fftshift hfft hfft2 hfftn ifft ifft2 ifftn ifftshift ihfft ihfft2 ihfftn irfft "
    "irfft2 irfftn rfft rfft2 rfftfreq rfftn"
)
globals().update({name: Refused(f"fft.{name}") for name in _NAMES.split()})

hint_missing(__name__, "fft")
