"""Flags of the libraries that PyTorch computes with, under their paths: they are kept, and choose nothing.

What they choose between in PyTorch is speed, or float32 products of fewer digits; here there is one way to
compute, in full precision, with the same bits in every run. `is_available()` says which of them kiln uses:
none, as its kernels are its own.
"""

from kiln.backends import (
    cpu,
    cuda,
    cudnn,
    cusparselt,
    kleidiai,
    mha,
    mkl,
    mkldnn,
    mps,
    nnpack,
    openmp,
    opt_einsum,
    quantized,
)
from kiln.backends.flags import keep_kinds as _keep_kinds

__all__ = [
    "cpu", "cuda", "cudnn", "cusparselt", "kleidiai", "mha", "mkl", "mkldnn", "mps", "nnpack", "openmp",
    "opt_einsum", "quantized",
]  # fmt: skip

fp32_precision = "none"

_keep_kinds(__name__, fp32_precision=str)
