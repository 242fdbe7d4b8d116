"""What the processor can do."""

from kiln.absent import hint_missing as _hint_missing
from kiln.codegen import target as _target

__all__ = ["get_cpu_capability"]


def get_cpu_capability() -> str:
    """The vectors that kernels are made for, in PyTorch's words: "AVX2", "AVX512", or "DEFAULT" elsewhere.

    >>> kiln.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512", "DEFAULT")
    True
    """
    return {256: "AVX2", 512: "AVX512"}.get(_target.host_target().vector_bits, "DEFAULT")


_hint_missing(__name__)
