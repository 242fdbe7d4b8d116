"""OpenMP: not used. Kernels run on threads of kiln's own (`kiln.set_num_threads`)."""

from kiln.absent import hint_missing as _hint_missing

__all__ = ["is_available"]


def is_available() -> bool:
    """False: threads are kiln's own."""
    return False


_hint_missing(__name__)
