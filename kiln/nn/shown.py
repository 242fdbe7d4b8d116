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
# names of nodes and targets that are not the functions' own
OTHERWISE = {
    "nn.functional.logsigmoid": "_C._nn.log_sigmoid", "nn.functional.threshold": "nn.functional._threshold",
    "lobpcg": "_lobpcg.lobpcg", "pca_lowrank": "_lowrank.pca_lowrank", "svd_lowrank": "_lowrank.svd_lowrank",
    "linear": "_C._nn.linear", "sym_sqrt": "_sym_sqrt",
}  # fmt: skip
# functions that are written in Python there: a call is recorded with what has a default by name
IN_PYTHON = frozenset(
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d affine_grid alpha_dropout batch_norm "
    "binary_cross_entropy binary_cross_entropy_with_logits celu cosine_embedding_loss cross_entropy "
    "ctc_loss dropout dropout1d dropout2d dropout3d elu embedding embedding_bag feature_alpha_dropout fold "
    "fractional_max_pool2d fractional_max_pool3d gaussian_nll_loss glu grid_sample group_norm "
    "gumbel_softmax hardsigmoid hardswish hardtanh hinge_embedding_loss huber_loss instance_norm "
    "interpolate kl_div l1_loss layer_norm leaky_relu linear_cross_entropy local_response_norm log_softmax "
    "lp_pool1d lp_pool2d lp_pool3d margin_ranking_loss max_pool1d max_pool2d max_pool3d max_unpool1d "
    "max_unpool2d max_unpool3d mish mse_loss multi_margin_loss multilabel_margin_loss "
    "multilabel_soft_margin_loss nll_loss normalize pad poisson_nll_loss relu relu6 rms_norm rrelu selu "
    "silu smooth_l1_loss soft_margin_loss softmax softmin threshold triplet_margin_loss "
    "triplet_margin_with_distance_loss unfold".split()
)
# the same of functions that are found in the top module
OF_FUNCTIONAL = frozenset(
    "cdist lu norm pca_lowrank split svd_lowrank tensordot unique unique_consecutive".split()
)
# how many of the arguments go by place, where it is not those without a default
BY_PLACE = {"split": 2}
