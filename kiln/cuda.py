"""What a program asks before it chooses a device; the answers are those of a machine without CUDA."""

from kiln.absent import hint_missing as _hint_missing


def is_available() -> bool:
    """False: kiln runs on the CPU.

    >>> import kiln
    >>> kiln.device("cuda" if kiln.cuda.is_available() else "cpu")
    device(type='cpu')
    """
    return False


def device_count() -> int:
    """0: kiln runs on the CPU."""
    return 0


_hint_missing(__name__)
