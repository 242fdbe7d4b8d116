"""cuDNN's flags. The library is for GPUs: it is not there, and convolutions are the same whatever they say.

>>> import kiln
>>> kiln.backends.cudnn.benchmark = True
>>> kiln.backends.cudnn.benchmark, kiln.backends.cudnn.is_available()
(True, False)
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

from kiln.backends.flags import flags_of, keep_kinds

enabled = True
benchmark = False
benchmark_limit: int | None = None
deterministic = False
allow_tf32 = True
fp32_precision = "none"
conv = SimpleNamespace(fp32_precision="tf32")
rnn = SimpleNamespace(fp32_precision="tf32")


def is_available() -> bool:
    """False: kiln runs on the CPU."""
    return False


def version() -> int | None:
    """None: the library is not there."""
    return None


def is_acceptable(tensor: Any) -> bool:
    """Whether cuDNN could compute with a tensor: False."""
    return False


def flags(
    enabled: bool = False,
    benchmark: bool = False,
    benchmark_limit: int | None = 10,
    deterministic: bool = False,
    allow_tf32: bool = True,
    fp32_precision: str = "none",
) -> AbstractContextManager[None]:
    """Inside, the flags have these values.

    >>> with kiln.backends.cudnn.flags(enabled=False):
    ...     kiln.backends.cudnn.enabled
    False
    """
    return flags_of(
        __name__,
        enabled=enabled,
        benchmark=benchmark,
        benchmark_limit=benchmark_limit,
        deterministic=deterministic,
        allow_tf32=allow_tf32,
        fp32_precision=fp32_precision,
    )


keep_kinds(
    __name__,
    enabled=bool,
    benchmark=bool,
    benchmark_limit=(int, type(None)),
    deterministic=bool,
    allow_tf32=bool,
    fp32_precision=str,
)
