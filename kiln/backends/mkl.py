"""Intel's library of products: not used, as kernels are kiln's own."""

from __future__ import annotations

from types import TracebackType

from kiln.absent import hint_missing as _hint_missing

__all__ = ["VERBOSE_OFF", "VERBOSE_ON", "is_available", "verbose"]

VERBOSE_OFF, VERBOSE_ON = 0, 1


def is_available() -> bool:
    """False: products are computed by kernels of kiln's own."""
    return False


class verbose:
    """Inside, the library would report its calls: there are none."""

    def __init__(self, enable: int) -> None:
        self.enable = enable

    def __enter__(self) -> verbose:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


_hint_missing(__name__)
