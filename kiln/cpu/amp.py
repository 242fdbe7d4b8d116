"""Mixed precision under the CPU's name: deprecated."""
# ruff: isort: skip_file

from kiln._core import bfloat16 as _bfloat16
from kiln.absent import hint_missing as _hint_missing
from kiln.amp.by_device import autocast_of as _autocast_of, scaler_of as _scaler_of
from kiln.table.callables import name_helpers as _name_helpers

autocast, GradScaler = _autocast_of("cpu", _bfloat16), _scaler_of("cpu")
_name_helpers(globals(), __name__)
_hint_missing(__name__)
