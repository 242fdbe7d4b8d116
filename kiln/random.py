"""Random state under PyTorch's names: `kiln.random.fork_rng` and what kiln's own namespace has of it."""

from kiln.absent import hint_missing as _hint_missing
from kiln.ops import get_rng_state, initial_seed, manual_seed, seed, set_rng_state
from kiln.ops.random.generator import default_generator, fork_rng

__all__ = [
    "default_generator",
    "fork_rng",
    "get_rng_state",
    "initial_seed",
    "manual_seed",
    "seed",
    "set_rng_state",
]

_hint_missing(__name__)
