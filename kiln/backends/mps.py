"""Apple's GPUs, as a program asks before it chooses a device: not there.

>>> import kiln
>>> kiln.device("mps" if kiln.backends.mps.is_available() else "cpu")
device(type='cpu')
"""

from kiln.absent import hint_missing as _hint_missing

__all__ = ["is_available", "is_built"]


def is_available() -> bool:
    """False: kiln runs on the CPU."""
    return False


def is_built() -> bool:
    """False: kiln was not built with it."""
    return False


_hint_missing(__name__)
