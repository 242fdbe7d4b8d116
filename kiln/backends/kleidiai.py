"""KleidiAI: not used."""

from kiln.absent import hint_missing as _hint_missing

__all__ = ["is_available"]


def is_available() -> bool:
    """False: products are computed by kernels of kiln's own."""
    return False


_hint_missing(__name__)
