"""oneDNN's flags: the library is not used, as kernels are kiln's own; they are kept."""

from contextlib import AbstractContextManager
from types import SimpleNamespace

from kiln.backends.flags import flags_of, keep_kinds

enabled = True
deterministic = False
allow_tf32 = True
fp32_precision = "none"
conv = SimpleNamespace(fp32_precision="none")
matmul = SimpleNamespace(fp32_precision="none")
rnn = SimpleNamespace(fp32_precision="none")


def is_available() -> bool:
    """False: layers are computed by kernels of kiln's own."""
    return False


def flags(
    enabled: bool = False, deterministic: bool = False, allow_tf32: bool = True, fp32_precision: str = "none"
) -> AbstractContextManager[None]:
    """Inside, the flags have these values."""
    return flags_of(
        __name__,
        enabled=enabled,
        deterministic=deterministic,
        allow_tf32=allow_tf32,
        fp32_precision=fp32_precision,
    )


keep_kinds(__name__, enabled=bool, deterministic=bool, allow_tf32=bool, fp32_precision=str)
