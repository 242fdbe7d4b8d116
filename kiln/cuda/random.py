"""PyTorch's path of CUDA's random states."""

from kiln.absent import hint_missing as _hint_missing
from kiln.cuda import get_rng_state_all, manual_seed, manual_seed_all, seed, seed_all, set_rng_state_all

__all__ = ["get_rng_state_all", "manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state_all"]

_hint_missing(__name__)
