"""Apple's GPUs: what a program asks before it chooses a device; they are not there."""

from __future__ import annotations

import typing as _typing

from kiln.absent import hint_missing as _hint_missing
from kiln.device import refusal as _refusal

_REFUSED = (
    "compile_shader current_allocated_memory driver_allocated_memory empty_cache get_rng_state load_metallib "
    "recommended_max_memory seed set_per_process_memory_fraction set_rng_state synchronize"
)

_ASKED = dict.fromkeys(("get_rng_state", "set_rng_state", "seed"), "getDefaultGenerator")


def is_available() -> bool:
    """False: kiln runs on the CPU."""
    return False


def device_count() -> int:
    """0: kiln runs on the CPU."""
    return 0


def manual_seed(seed: int) -> None:
    """Seeds the device there is: none."""


def _refused(name: str) -> _typing.NoReturn:
    said = f"Cannot execute {_ASKED.get(name, name)}() without MPS backend"
    if name in ("compile_shader", "load_metallib"):
        said = "MPS is not available"
    raise RuntimeError(f"{said}: {name}: kiln runs on the CPU; ask kiln.mps.is_available()")


globals().update({name: _refusal("mps", name, _refused) for name in _REFUSED.split()})

if _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> _typing.Any: ...  # what refuses

else:
    _hint_missing(__name__)
