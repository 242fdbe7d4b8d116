"""Meta's accelerators: what a program asks before it chooses a device; they are not there."""
# ruff: isort: skip_file

from __future__ import annotations

import typing as _typing

from kiln.absent import hint_missing as _hint_missing
from kiln.no_device import (
    device_count as device_count,
    empty_cache as empty_cache,
    get_rng_state_all as get_rng_state_all,
    is_available as is_available,
    is_bf16_supported as is_bf16_supported,
    is_initialized as is_initialized,
    manual_seed as manual_seed,
    manual_seed_all as manual_seed_all,
    max_memory_allocated as max_memory_allocated,
    max_memory_reserved as max_memory_reserved,
    memory_allocated as memory_allocated,
    memory_reserved as memory_reserved,
    set_rng_state_all as set_rng_state_all,
    refusals as _refusals,
)

globals().update(_refusals("mtia"))

if _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> _typing.Any: ...  # what refuses

else:
    _hint_missing(__name__)
