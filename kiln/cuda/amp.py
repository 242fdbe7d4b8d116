"""Mixed precision under CUDA's name: deprecated, and off on this machine."""
# ruff: isort: skip_file

from kiln._core import float16 as _float16
from kiln.absent import hint_missing as _hint_missing
from kiln.amp.by_device import autocast_of as _autocast_of, custom_of as _custom_of, scaler_of as _scaler_of
from kiln.table.callables import name_helpers as _name_helpers

autocast, GradScaler = _autocast_of("cuda", _float16), _scaler_of("cuda")
custom_fwd, custom_bwd = _custom_of("cuda")
_name_helpers(globals(), __name__)
_hint_missing(__name__)
