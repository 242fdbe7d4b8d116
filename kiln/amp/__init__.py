"""Automatic mixed precision: autocast, and a scaler of losses for float16."""
# ruff: isort: skip_file

from kiln.absent import hint_missing as _hint_missing
from kiln.amp.autocast_mode import (
    autocast as autocast,
    custom_bwd as custom_bwd,
    custom_fwd as custom_fwd,
    is_autocast_available as is_autocast_available,
)
from kiln.amp.grad_scaler import GradScaler as GradScaler

_hint_missing(__name__)
