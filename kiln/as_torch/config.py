"""`torch.__config__`: how this was built, in words."""

from __future__ import annotations

import kiln
from kiln.backends import cpu


def show() -> str:
    """What computes here, as text."""
    return f"kiln {kiln.__version__}, with kernels of its own for {cpu.get_cpu_capability()}, without CUDA\n"


def parallel_info() -> str:
    """How many threads compute, as text."""
    return f"kiln.get_num_threads() : {kiln.get_num_threads()}\n"
