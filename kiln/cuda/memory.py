"""PyTorch's path of what is asked about CUDA's memory."""

from kiln.absent import hint_missing as _hint_missing
from kiln.cuda import (
    empty_cache,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_stats,
)

__all__ = [
    "empty_cache", "max_memory_allocated", "max_memory_cached", "max_memory_reserved", "memory_allocated",
    "memory_cached", "memory_reserved", "memory_stats",
]  # fmt: skip

_hint_missing(__name__)
