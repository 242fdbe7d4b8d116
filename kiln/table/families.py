"""Which names a family of the table registers. Written by `make docs`: do not edit it.

Family -> its functions, methods of tensors, functions of kiln.nn.functional, and ops.
"""

FAMILIES: dict[str, tuple[str, str, str, str]] = {
    "creation.dtypes": (
        "is_complex is_floating_point is_nonzero is_signed result_type",
        "is_complex is_floating_point is_nonzero is_signed",
        "",
        "",
    ),
    "creation.legacy": (
        "get_device typename",
        "apply_ get_device map2_ map_ new type",
        "",
        "",
    ),
    "creation.ranges": (
        "asarray bartlett_window blackman_window empty_permuted empty_strided hamming_window hann_window "
        "kaiser_window logspace range scalar_tensor tril_indices triu_indices",
        "new_empty_strided new_tensor",
        "",
        "",
    ),
    "elementwise.aliases": (
        "absolute absolute_ clip clip_ conj conj_physical conj_physical_ detach detach_ divide fix fix_ "
        "greater greater_equal is_conj is_neg less less_equal multiply negative negative_ not_equal real "
        "resolve_conj resolve_neg sgn sgn_ subtract true_divide",
        "absolute absolute_ clip clip_ conj conj_physical conj_physical_ divide divide_ fix fix_ greater "
        "greater_ greater_equal greater_equal_ is_conj is_neg less less_ less_equal less_equal_ multiply "
        "multiply_ negative negative_ not_equal not_equal_ resolve_conj resolve_neg sgn sgn_ subtract "
        "subtract_ true_divide true_divide_",
        "",
        "",
    ),
    "elementwise.polynomials": (
        "special.chebyshev_polynomial_t special.chebyshev_polynomial_u special.chebyshev_polynomial_v "
        "special.chebyshev_polynomial_w special.hermite_polynomial_h special.hermite_polynomial_he "
        "special.laguerre_polynomial_l special.legendre_polynomial_p "
        "special.shifted_chebyshev_polynomial_t special.shifted_chebyshev_polynomial_u "
        "special.shifted_chebyshev_polynomial_v special.shifted_chebyshev_polynomial_w",
        "",
        "",
        "chebyshev",
    ),
    "elementwise.special": (
        "digamma digamma_ erfc erfc_ erfinv erfinv_ i0 i0_ igamma igammac lgamma lgamma_ mvlgamma "
        "polygamma special.bessel_j0 special.bessel_j1 special.bessel_y0 special.bessel_y1 special.entr "
        "special.erfcx special.i0e special.i1 special.i1e special.log_ndtr special.modified_bessel_i0 "
        "special.modified_bessel_i1 special.modified_bessel_k0 special.modified_bessel_k1 special.ndtr "
        "special.ndtri special.scaled_modified_bessel_k0 special.scaled_modified_bessel_k1 "
        "special.spherical_bessel_j0 special.xlog1py special.zeta",
        "digamma digamma_ erfc erfc_ erfinv erfinv_ i0 i0_ igamma igamma_ igammac igammac_ lgamma lgamma_ "
        "mvlgamma mvlgamma_ polygamma polygamma_",
        "",
        "bessel_j0 bessel_j1 bessel_y0 bessel_y1 digamma entr erfc erfcx erfinv i0 i0e i1 i1e igamma "
        "igammac lgamma log_ndtr modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 "
        "modified_bessel_k1 mvlgamma ndtr ndtri polygamma_of scaled_modified_bessel_k0 "
        "scaled_modified_bessel_k1 spherical_bessel_j0 zeta",
    ),
    "elementwise.transcendental": (
        "acos acos_ acosh acosh_ arccos arccos_ arccosh arccosh_ arcsin arcsin_ arcsinh arcsinh_ arctan "
        "arctan2 arctan_ arctanh arctanh_ asin asin_ asinh asinh_ atan atan2 atan_ atanh atanh_ cosh "
        "cosh_ deg2rad deg2rad_ float_power hypot log10 log10_ logaddexp logaddexp2 logit logit_ rad2deg "
        "rad2deg_ sinc sinc_ sinh sinh_ tan tan_ xlogy xlogy_",
        "acos acos_ acosh acosh_ arccos arccos_ arccosh arccosh_ arcsin arcsin_ arcsinh arcsinh_ arctan "
        "arctan2 arctan2_ arctan_ arctanh arctanh_ asin asin_ asinh asinh_ atan atan2 atan2_ atan_ atanh "
        "atanh_ cosh cosh_ deg2rad deg2rad_ float_power float_power_ hypot hypot_ log10 log10_ logaddexp "
        "logaddexp2 logit logit_ rad2deg rad2deg_ sinc sinc_ sinh sinh_ tan tan_ xlogy xlogy_",
        "",
        "acos acosh asin asinh atan atan2 atanh cosh deg2rad hypot log10 logaddexp logaddexp2 logit_open "
        "logit_within rad2deg sinc sinh tan xlog1py xlogy",
    ),
    "elementwise.user_functions": (
        "pointwise",
        "",
        "",
        "",
    ),
    "indexing.along_dim": (
        "index_add index_copy index_fill index_reduce",
        "index_add index_add_ index_copy index_copy_ index_fill index_fill_ index_reduce index_reduce_",
        "",
        "add_at copy_at",
    ),
    "indexing.bags": (
        "embedding_bag embedding_renorm_ segment_reduce",
        "",
        "embedding_bag",
        "",
    ),
    "linalg.decompositions": (
        "cholesky cholesky_inverse cholesky_solve det linalg.cholesky linalg.cholesky_ex linalg.det "
        "linalg.eigh linalg.eigvalsh linalg.qr linalg.slogdet linalg.svd linalg.svdvals logdet qr slogdet "
        "svd",
        "cholesky cholesky_inverse cholesky_solve det logdet qr slogdet svd",
        "",
        "",
    ),
    "linalg.factors": (
        "geqrf linalg.diagonal linalg.ldl_factor linalg.ldl_factor_ex linalg.ldl_solve linalg.matmul lu "
        "ormqr pca_lowrank svd_lowrank",
        "geqrf lu ormqr",
        "",
        "",
    ),
    "linalg.matrices": (
        "linalg.householder_product linalg.lstsq linalg.lu linalg.lu_factor linalg.lu_factor_ex "
        "linalg.lu_solve linalg.matrix_exp linalg.matrix_power linalg.matrix_rank linalg.pinv lu_solve "
        "lu_unpack matrix_exp matrix_power orgqr pinverse triangular_solve",
        "lu_solve matrix_exp matrix_power orgqr pinverse triangular_solve",
        "",
        "",
    ),
    "linalg.matrix_norms": (
        "linalg.cond linalg.matrix_norm linalg.norm linalg.tensorinv linalg.tensorsolve linalg.vander "
        "linalg.vecdot linalg.vector_norm",
        "",
        "",
        "norm_along",
    ),
    "linalg.systems": (
        "inverse linalg.LinAlgError linalg.inv linalg.inv_ex linalg.solve linalg.solve_ex "
        "linalg.solve_triangular",
        "inverse",
        "",
        "",
    ),
    "nn.attention.functions": (
        "scaled_dot_product_attention",
        "",
        "scaled_dot_product_attention",
        "",
    ),
    "nn.attention.primitives": (
        "",
        "",
        "",
        "attend attend_key attend_query attend_value attend_written",
    ),
    "nn.batch_norms": (
        "batch_norm",
        "",
        "batch_norm",
        "normalize_batch",
    ),
    "nn.grids": (
        "affine_grid grid_sample",
        "",
        "affine_grid grid_sample",
        "affine_places sampled",
    ),
    "nn.group_norms": (
        "group_norm instance_norm local_response_norm rms_norm",
        "",
        "group_norm instance_norm local_response_norm rms_norm",
        "local_response_norm normalize_by normalize_groups rms_norm",
    ),
    "nn.interpolation": (
        "interpolate upsample",
        "",
        "interpolate upsample",
        "resample resample_cubic",
    ),
    "nn.losses.classes": (
        "cross_entropy nll_loss",
        "",
        "nll_loss",
        "cross_entropy_classes cross_entropy_probabilities cross_entropy_smoothed nll_loss",
    ),
    "nn.losses.margins": (
        "cosine_embedding_loss hinge_embedding_loss margin_ranking_loss multi_margin_loss "
        "multilabel_margin_loss multilabel_soft_margin_loss soft_margin_loss triplet_margin_loss",
        "",
        "cosine_embedding_loss hinge_embedding_loss margin_ranking_loss multi_margin_loss "
        "multilabel_margin_loss multilabel_soft_margin_loss soft_margin_loss triplet_margin_loss",
        "class_margins cosine_embedding_loss hinge_embedding_loss label_margins margin_ranking_loss "
        "multilabel_soft_margin_loss soft_margin_loss triplet_margin_loss",
    ),
    "nn.losses.probabilities": (
        "binary_cross_entropy binary_cross_entropy_with_logits kl_div",
        "",
        "binary_cross_entropy binary_cross_entropy_with_logits kl_div",
        "binary_cross_entropy binary_cross_entropy_with_logits binary_entropy kl_div",
    ),
    "nn.losses.values": (
        "gaussian_nll_loss huber_loss l1_loss mse_loss poisson_nll_loss smooth_l1_loss",
        "",
        "gaussian_nll_loss huber_loss l1_loss mse_loss poisson_nll_loss smooth_l1_loss",
        "gaussian_losses huber_loss l1_loss mse_loss poisson_nll_loss smooth_l1_loss",
    ),
    "nn.more_activations": (
        "celu celu_ glu hardshrink hardsigmoid hardsigmoid_ hardswish hardswish_ hardtanh hardtanh_ mish "
        "mish_ prelu relu6 relu6_ rrelu rrelu_ selu selu_ softmin softshrink softsign tanhshrink "
        "threshold threshold_",
        "hardshrink prelu",
        "celu celu_ glu hardsigmoid hardsigmoid_ hardswish hardswish_ hardtanh hardtanh_ mish mish_ prelu "
        "relu6 relu6_ rrelu rrelu_ selu selu_ softmin softshrink softsign tanhshrink threshold threshold_",
        "bounded exponential_unit gated hardshrink hardsigmoid hardswish mish relu6 selu shrunk sloped "
        "softsign tanhshrink threshold",
    ),
    "nn.optimizer_steps": (
        "adam_step_ amsgrad_step_ sgd_momentum_step_ sgd_step_",
        "",
        "",
        "adam_step amsgrad_step sgd_momentum_step sgd_step",
    ),
    "nn.recurrent_cells": (
        "gru_cell lstm_cell rnn_relu_cell rnn_tanh_cell",
        "",
        "",
        "cell_gates gru_back gru_gates gru_step lstm_back lstm_gates lstm_step rnn_back rnn_step",
    ),
    "nn.recurrent_layers": (
        "",
        "",
        "",
        "recurrent_cell recurrent_hidden recurrent_kept recurrent_layer",
    ),
    "nn.softmax_and_layer_norm": (
        "layer_norm log_softmax softmax",
        "log_softmax softmax",
        "layer_norm",
        "layer_norm log_softmax softmax",
    ),
    "products.addends": (
        "addbmm addmm addmv addmv_ addr baddbmm ger inner outer vdot",
        "addbmm addbmm_ addmm addmm_ addmv addmv_ addr addr_ baddbmm baddbmm_ ger inner outer vdot",
        "",
        "addbmm addmm addmv addr baddbmm",
    ),
    "products.contractions": (
        "chain_matmul einsum kron linalg.multi_dot tensordot",
        "kron",
        "",
        "",
    ),
    "products.distances": (
        "bilinear cdist cosine_similarity pairwise_distance pdist",
        "",
        "bilinear cosine_similarity pairwise_distance pdist",
        "bilinear cosine_similarity euclidean_distances pairwise_distance row_distances",
    ),
    "random.distributions": (
        "binomial multinomial poisson randperm",
        "multinomial",
        "",
        "binomial_inverse binomial_round draw_stream poisson_inverse poisson_round",
    ),
    "random.draws": (
        "",
        "",
        "",
        "bernoulli_values cauchy_values chance_values draw_below draw_normal draw_open draw_uniform "
        "exponential_values geometric_values integer_values log_normal_values normal_values "
        "uniform_values",
    ),
    "random.dropouts": (
        "alpha_dropout alpha_dropout_ dropout dropout_ feature_alpha_dropout feature_alpha_dropout_ "
        "feature_dropout feature_dropout_",
        "",
        "",
        "alpha_dropout_values dropout_values",
    ),
    "random.generator": (
        "get_rng_state initial_seed manual_seed seed set_rng_state",
        "",
        "",
        "",
    ),
    "random.sampling": (
        "bernoulli normal rand rand_like randint randint_like randn randn_like",
        "bernoulli bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ random_ uniform_",
        "",
        "",
    ),
    "rearranging.joining": (
        "block_diag cartesian_prod column_stack combinations dstack hstack meshgrid row_stack vstack",
        "combinations",
        "",
        "",
    ),
    "rearranging.padding": (
        "constant_pad_nd pad",
        "",
        "pad",
        "extend surround",
    ),
    "rearranging.reorder": (
        "channel_shuffle flip fliplr flipud pixel_shuffle pixel_unshuffle repeat repeat_interleave roll "
        "rot90 tile tril tril_ triu triu_",
        "flip fliplr flipud repeat repeat_interleave roll rot90 tile tril tril_ triu triu_",
        "channel_shuffle pixel_shuffle pixel_unshuffle",
        "flip roll tril triu",
    ),
    "reductions.differences": (
        "cross cumulative_trapezoid diff gradient linalg.cross trace trapezoid trapz unravel_index vander",
        "cross diff trace",
        "",
        "",
    ),
    "reductions.extrema": (
        "amax amin argmax argmin max min",
        "amax amin argmax argmin max min",
        "",
        "",
    ),
    "reductions.norms": (
        "dist norm normalize renorm",
        "dist norm renorm renorm_",
        "normalize",
        "dist norm normalize renorm",
    ),
    "reductions.statistics": (
        "aminmax corrcoef count_nonzero cov nanmean nansum std std_mean var var_mean",
        "aminmax corrcoef count_nonzero cov nanmean nansum std var",
        "",
        "corrcoef count_nonzero covariance nanmean nansum std_mean_of var_mean_of",
    ),
    "sorting.counts": (
        "bincount histc histogram histogramdd isin unique unique_consecutive",
        "bincount histc histogram unique unique_consecutive",
        "",
        "",
    ),
    "sorting.quantiles": (
        "median mode nanmedian nanquantile quantile",
        "median mode nanmedian nanquantile quantile",
        "",
        "median_place middle mode_place nanmedian_place",
    ),
    "sorting.sorts": (
        "argsort bucketize kthvalue msort searchsorted sort topk",
        "argsort kthvalue msort sort topk",
        "",
        "search sort_positions",
    ),
    "views.shapes": (
        "alias_copy as_strided_ as_strided_copy atleast_1d atleast_2d atleast_3d broadcast_shapes "
        "broadcast_tensors clone detach_copy diagonal_copy expand_copy is_same_size narrow_copy numel "
        "permute_copy ravel reshape_as select_copy slice_copy split_copy split_with_sizes_copy "
        "squeeze_copy sum_to_size t_copy transpose_copy unbind_copy unfold_copy unsqueeze_copy view_copy",
        "as_strided_ clone contiguous is_same_size narrow_copy numel ravel reshape_as squeeze_ "
        "sum_to_size swapaxes_ swapdims_ t_ transpose_ unsqueeze_",
        "",
        "",
    ),
    "views.storage": (
        "is_storage resize_as_",
        "is_set_to resize_ resize_as_ set_ storage untyped_storage",
        "",
        "",
    ),
    "views.strided": (
        "adjoint as_strided as_strided_scatter diag diag_embed diagflat diagonal diagonal_scatter "
        "select_scatter slice_scatter unfold",
        "adjoint as_strided as_strided_scatter diag diag_embed diagflat diagonal diagonal_scatter "
        "fill_diagonal_ select_scatter slice_scatter unfold",
        "",
        "diagonal placed unfold",
    ),
    "windows.adaptive_pools": (
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d "
        "adaptive_max_pool1d_with_indices adaptive_max_pool2d adaptive_max_pool2d_with_indices "
        "adaptive_max_pool3d adaptive_max_pool3d_with_indices",
        "",
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d "
        "adaptive_max_pool1d_with_indices adaptive_max_pool2d adaptive_max_pool2d_with_indices "
        "adaptive_max_pool3d adaptive_max_pool3d_with_indices",
        "adaptive_max adaptive_mean",
    ),
    "windows.average_pools": (
        "avg_pool1d avg_pool2d avg_pool3d lp_pool1d lp_pool2d lp_pool3d",
        "",
        "avg_pool1d avg_pool2d avg_pool3d lp_pool1d lp_pool2d lp_pool3d",
        "pool_mean",
    ),
    "windows.convolution": (
        "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
        "",
        "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
        "",
    ),
    "windows.folds": (
        "fold im2col",
        "",
        "fold",
        "add_windows window_taps",
    ),
    "windows.max_pools": (
        "max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d "
        "max_pool3d_with_indices",
        "",
        "max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d "
        "max_pool3d_with_indices",
        "pool_max pool_places",
    ),
    "windows.products": (
        "",
        "",
        "",
        "convolve convolve_input convolve_weight multiply_add",
    ),
    "windows.unpools": (
        "max_unpool1d max_unpool2d max_unpool3d",
        "",
        "max_unpool1d max_unpool2d max_unpool3d",
        "",
    ),
}
