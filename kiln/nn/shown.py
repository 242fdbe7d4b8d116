"""How PyTorch shows functions of `nn.functional` in graphs."""

from __future__ import annotations

# functions that are found in kiln itself too, in PyTorch in nn.functional alone
FUNCTIONAL = frozenset(
    "adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool1d_with_indices "
    "adaptive_max_pool2d adaptive_max_pool2d_with_indices adaptive_max_pool3d "
    "adaptive_max_pool3d_with_indices affine_grid avg_pool2d avg_pool3d batch_norm elu_ embedding_bag "
    "fold fractional_max_pool2d fractional_max_pool2d_with_indices fractional_max_pool3d "
    "fractional_max_pool3d_with_indices gaussian_nll_loss glu grid_sample group_norm hardtanh_ "
    "instance_norm interpolate leaky_relu_ local_response_norm logsigmoid lp_pool1d lp_pool2d "
    "lp_pool3d max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d "
    "max_pool3d_with_indices max_unpool1d max_unpool2d max_unpool3d normalize pad rms_norm "
    "scaled_dot_product_attention softplus softshrink softsign tanhshrink upsample".split()
)
# functions that PyTorch shows as those of its own core: `torch._C._nn.linear`
NATIVE = frozenset(
    "avg_pool2d avg_pool3d elu_ gelu hardtanh_ leaky_relu_ linear one_hot "
    "scaled_dot_product_attention softplus softshrink".split()
)
