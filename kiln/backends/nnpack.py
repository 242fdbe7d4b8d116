"""NNPACK: not used; its flag is kept."""

from contextlib import AbstractContextManager

from kiln.backends.flags import flags_of, keep_kinds

enabled = False


def is_available() -> bool:
    """False: convolutions are computed by kernels of kiln's own."""
    return False


def flags(enabled: bool = False) -> AbstractContextManager[None]:
    """Inside, the flag has this value."""
    return flags_of(__name__, enabled=enabled)


keep_kinds(__name__, enabled=bool)
