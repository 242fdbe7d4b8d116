"""CUDA's flags: of products (`matmul.allow_tf32`), of attention (`enable_flash_sdp`), of linear algebra.

>>> import kiln
>>> kiln.backends.cuda.matmul.allow_tf32 = False
>>> kiln.backends.cuda.is_built()
False
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.backends.precision import products as matmul
from kiln.errors import describe, message, warn
from kiln.table.callables import name_helpers as _name_helpers

__all__ = [
    "SDPAParams", "can_use_cudnn_attention", "can_use_efficient_attention", "can_use_flash_attention",
    "cudnn_sdp_enabled", "cufft_plan_cache", "enable_cudnn_sdp", "enable_flash_sdp", "enable_math_sdp",
    "enable_mem_efficient_sdp", "flash_sdp_enabled", "is_built", "is_flash_attention_available",
    "math_sdp_enabled", "matmul", "mem_efficient_sdp_enabled", "preferred_blas_library",
    "preferred_linalg_library", "sdp_kernel",
]  # fmt: skip

cufft_plan_cache = SimpleNamespace(size=0, max_size=0, clear=lambda: None)
_attention = {"flash": True, "mem_efficient": True, "math": True, "cudnn": True}
_preferred = {"linalg": "default", "blas": "default"}


def _allow(kind: str, enabled: bool) -> None:
    if not isinstance(enabled, bool):
        said = "cudnn" if kind == "cudnn" else "math"  # as PyTorch says it of all but one
        raise RuntimeError(
            f"set_sdp_use_{said} expects a bool, but got {type(enabled).__name__}: enable_{kind}_sdp"
        )
    _attention[kind] = enabled


def _prefer(of: str, backend: str | None, known: str) -> str:
    if backend is not None and not isinstance(backend, str):
        raise RuntimeError(f"Unknown input value type: preferred_{of}_library got {type(backend).__name__}")
    if backend is not None and backend not in known.split(", "):
        raise RuntimeError(
            f"Unknown input value. Choose from: {known}: preferred_{of}_library got {backend!r}"
        )
    _preferred[of] = backend or _preferred[of]
    return _preferred[of]


def is_built() -> bool:
    """Whether kiln was built with CUDA: False."""
    return False


def is_flash_attention_available() -> bool:
    """Whether there is that kernel for GPUs: False. Attention has one kernel of kiln's own."""
    return False


def flash_sdp_enabled() -> bool:
    """What `enable_flash_sdp` was told."""
    return _attention["flash"]


def enable_flash_sdp(enabled: bool) -> None:
    """Allows a kernel of attention for GPUs or not; kept."""
    _allow("flash", enabled)


def mem_efficient_sdp_enabled() -> bool:
    """What `enable_mem_efficient_sdp` was told."""
    return _attention["mem_efficient"]


def enable_mem_efficient_sdp(enabled: bool) -> None:
    """Allows a kernel of attention for GPUs or not; kept."""
    _allow("mem_efficient", enabled)


def math_sdp_enabled() -> bool:
    """What `enable_math_sdp` was told."""
    return _attention["math"]


def enable_math_sdp(enabled: bool) -> None:
    """Allows attention by products and a softmax or not; kept."""
    _allow("math", enabled)


def cudnn_sdp_enabled() -> bool:
    """What `enable_cudnn_sdp` was told."""
    return _attention["cudnn"]


def enable_cudnn_sdp(enabled: bool) -> None:
    """Allows cuDNN's attention or not; kept."""
    _allow("cudnn", enabled)


@contextmanager
def sdp_kernel(
    enable_flash: bool = True,
    enable_math: bool = True,
    enable_mem_efficient: bool = True,
    enable_cudnn: bool = True,
) -> Iterator[dict[str, Any]]:
    """Inside, attention may use these kernels: there is one, which is used."""
    warn(
        "torch.backends.cuda.sdp_kernel() is deprecated: torch.nn.attention.sdpa_kernel() is its successor",
        FutureWarning,
    )
    with attention_flags(enable_flash, enable_math, enable_mem_efficient, enable_cudnn):
        yield {}


@contextmanager
def attention_flags(flash: bool, math: bool, mem_efficient: bool, cudnn: bool) -> Iterator[None]:
    """Inside, the flags of attention are these."""
    before = dict(_attention)
    _attention.update(flash=flash, math=math, mem_efficient=mem_efficient, cudnn=cudnn)
    try:
        yield
    finally:
        _attention.update(before)


class SDPAParams:
    """What is asked whether a kernel for GPUs can compute: the arguments of an attention."""

    def __init__(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any,
        dropout: float,
        is_causal: bool,
        enable_gqa: bool,
    ) -> None:
        self.query, self.key, self.value, self.attn_mask = query, key, value, attn_mask
        self.dropout, self.is_causal, self.enable_gqa = dropout, is_causal, enable_gqa


def can_use_flash_attention(params: SDPAParams, debug: bool = False) -> bool:
    """Whether a kernel for GPUs can: False. Attention has one kernel of kiln's own."""
    if not isinstance(params, SDPAParams):
        raise TypeError(message("can_use_flash_attention", "SDPAParams", describe(params)))
    return False


can_use_efficient_attention = can_use_cudnn_attention = can_use_flash_attention


def preferred_linalg_library(backend: str | None = None) -> str:
    """The library for linear algebra on GPUs: what was told last, or "default"; kept."""
    return _prefer("linalg", backend, "default, cusolver, magma")


def preferred_blas_library(backend: str | None = None) -> str:
    """The library for products on GPUs: what was told last, or "default"; kept."""
    return _prefer("blas", backend, "default, cublas, hipblas, cublaslt, hipblaslt, ck")


_name_helpers(globals(), __name__)
_hint_missing(__name__)
