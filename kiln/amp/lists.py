"""Which functions autocast changes, on the CPU: PyTorch's lists, by kiln's names.

Source: the CPU lists of PyTorch's documentation of autocast. Functions that PyTorch writes with those of the
first list, and that are one op here, stand beside them; `unrolled` runs recurrent layers. A function that
stands nowhere runs in the dtypes it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

# computed in autocast's dtype
LOW = frozenset(
    "addbmm addmm baddbmm bmm linear linalg.vecdot matmul mm prelu scaled_dot_product_attention "
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d "
    "affine_grid chain_matmul corrcoef cov einsum inner linalg.matrix_power linalg.multi_dot matrix_power "
    "rnn_relu_cell rnn_tanh_cell tensordot unrolled".split()
)
# computed in float32
FLOAT32 = frozenset(
    "prod trace quantile nanquantile cdist grid_sample "
    "avg_pool3d adaptive_avg_pool3d adaptive_max_pool3d adaptive_max_pool3d_with_indices "
    "max_pool3d max_unpool2d max_unpool3d fractional_max_pool2d fractional_max_pool2d_with_indices "
    "fractional_max_pool3d fractional_max_pool3d_with_indices "
    "binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy ctc_loss "
    "hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss multi_margin_loss "
    "multilabel_margin_loss nll_loss poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss "
    "cholesky cholesky_inverse cholesky_solve geqrf inverse lu_solve orgqr ormqr pinverse qr svd "
    "triangular_solve linalg.cholesky linalg.cholesky_ex linalg.cond linalg.eigh linalg.eigvalsh "
    "linalg.householder_product linalg.inv linalg.inv_ex linalg.lstsq linalg.matrix_rank linalg.qr "
    "linalg.solve linalg.svd linalg.svdvals linalg.tensorinv linalg.tensorsolve "
    "local_response_norm pad".split()
)
# computed in the widest dtype of the arguments; others that PyTorch lists there promote by themselves
WIDEST = frozenset({"index_copy"})
# ... only in calls of which this holds
IF: dict[str, Callable[..., bool]] = {
    "chain_matmul": lambda *matrices, **kwargs: len(matrices) > 1,
    "einsum": lambda equation, *operands: len(operands) > 1 or isinstance(operands[0], (list, tuple)),
    "inner": lambda input, other, **kwargs: input.ndim * other.ndim > 1,  # not of scalars, not a dot product
    "local_response_norm": lambda input, *args, **kwargs: input.ndim > 3,  # by avg_pool3d
    "pad": lambda input, pad, mode="constant", value=None: (
        mode == "replicate" or (mode == "reflect" and len(pad) < 6)
    ),
}


def dtype_of_call(name: str, low: Any, wide: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the arguments of a call are cast to: `low`, `wide`, or None if they are not."""
    with suppress(TypeError, AttributeError, IndexError):  # a wrong call, of which the function tells
        if name in IF and not IF[name](*args, **kwargs):
            return None
    if name in WIDEST:
        given = (*args, *kwargs.values())
        return wide if any(getattr(value, "dtype", None) is wide for value in given) else low
    if name == "unrolled" and args[0] == "GRU":
        return wide
    return low if name in LOW else wide
