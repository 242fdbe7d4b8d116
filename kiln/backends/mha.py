"""The fast path of attention's layers: they have one path; what is told is kept."""

from kiln.absent import hint_missing as _hint_missing
from kiln.table.callables import name_helpers as _name_helpers

__all__ = ["get_fastpath_enabled", "set_fastpath_enabled"]

_enabled = [True]


def get_fastpath_enabled() -> bool:
    """What `set_fastpath_enabled` was told."""
    return _enabled[0]


def set_fastpath_enabled(value: bool) -> None:
    """Allows another way to the same values, or not; kept."""
    _enabled[0] = bool(value)


_name_helpers(globals(), __name__)
_hint_missing(__name__)
