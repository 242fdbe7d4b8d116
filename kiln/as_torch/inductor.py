"""`torch._inductor.config` as programs set it: flags of PyTorch's compiler, kept without a meaning."""

from types import SimpleNamespace

from kiln.absent import hint_missing as _hint_missing

__all__ = ["config"]

config = SimpleNamespace(
    coordinate_descent_tuning=False,
    epilogue_fusion=True,
    force_fuse_int_mm_with_mul=False,
    fx_graph_cache=True,
    triton=SimpleNamespace(cudagraphs=False, unique_kernel_names=True),
)

_hint_missing(__name__, "_inductor")
