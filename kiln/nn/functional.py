"""The layers' mathematics as functions, under PyTorch's names.

What is written here is what the table does not say by itself: another default, an embedding's padding.
An op of the table that is a function and no method is here under its own name, and so is a function declared
a layer's; with an in-place form it takes `inplace`.
Reductions are "mean", "sum" or "none".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kiln import ops
from kiln._core import Op, Tensor
from kiln.absent import hidden as _hidden
from kiln.absent import no_attribute as _no_attribute
from kiln.autograd import no_grad
from kiln.errors import describe, message, warn
from kiln.nn import _reduction as _flags
from kiln.nn.ctc import ctc_loss as ctc_loss
from kiln.nn.dropouts import alpha_dropout as alpha_dropout
from kiln.nn.dropouts import dropout as dropout
from kiln.nn.dropouts import dropout1d as dropout1d
from kiln.nn.dropouts import dropout2d as dropout2d
from kiln.nn.dropouts import dropout3d as dropout3d
from kiln.nn.dropouts import feature_alpha_dropout as feature_alpha_dropout
from kiln.nn.linear_cross_entropy import linear_cross_entropy as linear_cross_entropy
from kiln.nn.multihead import multi_head_attention_forward as multi_head_attention_forward
from kiln.nn.similarity import gumbel_softmax as gumbel_softmax
from kiln.nn.similarity import triplet_margin_with_distance_loss as triplet_margin_with_distance_loss
from kiln.ops.elementwise.infinities_and_nan import all_within
from kiln.table import arguments as _arguments
from kiln.table import callables as _callables
from kiln.table import registry

Numbers = int | Sequence[int]
_REDUCTIONS = ("none", "mean", "sum")
_FLAGGED = frozenset(
    "cosine_embedding_loss hinge_embedding_loss margin_ranking_loss multi_margin_loss multilabel_margin_loss "
    "multilabel_soft_margin_loss poisson_nll_loss soft_margin_loss triplet_margin_loss".split()
)
_METHODS = ("relu", "hardshrink")  # methods of tensors, and still layers


def _with_inplace(name: str, function: Any, written: Any) -> Any:
    """The function `name` with PyTorch's last argument, `inplace`."""
    count = registry.places_of(function)

    def call(input: Tensor, *args: Any, inplace: bool = False, **kwargs: Any) -> Any:
        if len(args) == count:  # `inplace` by its place
            *args, inplace = args  # type: ignore[assignment]
        return (written if inplace else function)(input, *args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"{function.__doc__ or ''}\n\n    `inplace`: the result is written into `input`.\n    "
    call._kiln_more = (function, ((count, "inplace", False),))  # type: ignore[attr-defined]
    return function.form(call) if isinstance(function, Op) else _callables.named(name, call)


if TYPE_CHECKING:
    from kiln._typed.functional import *  # noqa: F403
    from kiln._typed.words import DType


def _found(name: str) -> Any:
    """`__getattr__`, which type checkers do not see."""
    if name == "__all__":  # what `import *` takes: functions, those that are made when asked for among them
        own = {n for n, x in globals().items() if str(getattr(x, "__module__", "")).startswith("kiln.nn.")}
        return [n for n in sorted({*own, *_later_names()}) if not n.startswith("_")]
    try:
        function = registry.function(name) if name.removesuffix("_") in _METHODS else registry.layer(name)
    except KeyError:
        function = None
    if function is None:
        _no_attribute(__name__, name)
    if name in _FLAGGED:
        function = _with_flags(name, function)
    written = registry.INPLACE.get(name)
    globals()[name] = function if written is None else _with_inplace(name, function, written)
    return globals()[name]


if not TYPE_CHECKING:
    __getattr__ = _hidden(_found)


def _later_names() -> set[str]:
    """The functions that are made when they are asked for."""
    return {*registry.layer_names(), *_METHODS, "relu_"}


def __dir__() -> list[str]:
    return sorted({*globals(), *_later_names()})


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input @ weight.T + bias: (..., in), (out, in), (out) -> (..., out)."""
    y: Tensor = ops.linear(input, weight, bias)
    return y


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """input times the normal distribution function at input; approximate="tanh" takes the tanh formula."""
    y: Tensor = ops.gelu(input, approximate=approximate)
    return y


def tanh(input: Tensor) -> Tensor:
    """The hyperbolic tangent, elementwise."""
    y: Tensor = input.tanh()
    return y


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(-input)), elementwise."""
    y: Tensor = input.sigmoid()
    return y


def softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    """exp(input) over its sum along `dim` (None: 0 or 1, with a warning); `dtype` is the result's."""
    y: Tensor = ops.softmax(_as(input, dtype), _dim("softmax", input, dim))
    return y


def log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    """The logarithm of softmax, computed without overflow."""
    y: Tensor = ops.log_softmax(_as(input, dtype), _dim("log_softmax", input, dim))
    return y


def softmin(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    """softmax(-input)."""
    y: Tensor = ops.softmin(input, _dim("softmin", input, dim), dtype)
    return y


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Zero mean and unit variance over the trailing dims `normalized_shape`, then times weight plus bias."""
    if input.ndim > 1 and input.stride(-1) != 1:
        input = input.contiguous()  # rows are read three times: once across lines is enough
    y: Tensor = ops.layer_norm(input, tuple(normalized_shape), weight, bias, eps)
    return y


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of `weight` (num, dim) at the integers `input` (...) -> (..., dim).

    No gradient flows to row `padding_idx`. Rows looked up whose norm is above `max_norm` are made shorter
    first, in place. With `scale_grad_by_freq` a row's gradient is divided by how often `input` names it.
    Raises IndexError for an index outside [0, num), NotImplementedError for `sparse` gradients.
    """
    if sparse:
        raise NotImplementedError(message("embedding", "dense gradients", "sparse=True"))
    num = weight.shape[0]
    if padding_idx is not None and not -num <= padding_idx < num:
        raise AssertionError(message("embedding", f"padding_idx within {num} rows", describe(padding_idx)))
    if max_norm is not None:
        with no_grad():
            ops.embedding_renorm_(weight, input, max_norm, norm_type)
    rows: Tensor = ops.embedding(input, weight)
    if scale_grad_by_freq and rows.requires_grad:
        times = ops.bincount(input.flatten(), minlength=num)[input]
        rows.register_hook(lambda g: g if g is None else g / times.unsqueeze(-1).to(g.dtype))
    if padding_idx is None:
        return rows
    padding = (input == padding_idx % num).unsqueeze(-1)
    masked: Tensor = ops.where(padding, rows.detach(), rows)
    return masked


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Minus the log-probability of `target` under the logits `input`.

    input (N, C), (C) or (N, C, d...); target: class indices, or probabilities of input's shape. "mean"
    divides by the targets' weight, ignored ones left out.
    """
    reduction = _flagged(size_average, reduce, reduction, "cross_entropy")
    options: dict[str, Any] = {"weight": weight, "ignore_index": ignore_index, "reduction": reduction}
    loss: Tensor = ops.cross_entropy(input, target, **options, label_smoothing=label_smoothing)
    return loss


def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """(input - target)**2, averaged, summed or elementwise."""
    reduction = _flagged(size_average, reduce, reduction, "mse_loss")
    _warn_of_broadcast(input, target)
    _weights(input, weight)
    loss: Tensor = ops.mse_loss(input, target, reduction, weight)
    return loss


def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """|input - target|, averaged, summed or elementwise."""
    reduction = _flagged(size_average, reduce, reduction, "l1_loss")
    _warn_of_broadcast(input, target)
    _weights(input, weight)
    loss: Tensor = ops.l1_loss(input, target, reduction, weight)
    return loss


def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """The difference squared over 2 beta where it is below `beta`, else its size less beta / 2."""
    reduction = _flagged(size_average, reduce, reduction)
    _warn_of_broadcast(input, target)
    loss: Tensor = ops.smooth_l1_loss(input, target, reduction, beta)
    return loss


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """Half the difference squared where it is below `delta`, beyond it a line; times `weight`."""
    _warn_of_broadcast(input, target)
    _weights(input, weight)
    loss: Tensor = ops.huber_loss(input, target, reduction, delta, weight)
    return loss


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Minus the log-probability that `input` (N, C), (C) or (N, C, d...) gives the classes `target`.

    "mean" divides by the targets' weight, ignored ones left out.
    """
    reduction = _flagged(size_average, reduce, reduction, "nll_loss")
    loss: Tensor = ops.nll_loss(input, target, weight, ignore_index, reduction)
    return loss


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """The cross entropy of sigmoid(input) and `target` in [0, 1], of one shape; computed without overflow.

    `weight` scales every term, `pos_weight` those of the positive class; both broadcast.
    """
    reduction = _flagged(size_average, reduce, reduction, "binary_cross_entropy_with_logits")
    _same_sizes(input, target)
    loss: Tensor = ops.binary_cross_entropy_with_logits(input, target, weight, reduction, pos_weight)
    return loss


def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The cross entropy of probabilities `input` and `target`, of one shape and dtype; finite at 0 and 1.

    `weight` scales every term and broadcasts. RuntimeError for what is no probability: the values are looked
    at, which ends a recording.
    """
    reduction = _flagged(size_average, reduce, reduction, "binary_cross_entropy")
    if input.shape != target.shape:
        raise ValueError(
            f"Using a target size ({target.shape}) that is different to the input size ({input.shape}) is "
            "deprecated. Please ensure they have the same size."
        )
    names = [_arguments.type_name(_arguments.dtype_name(x.dtype)) for x in (target, input)]
    if names[0] != names[1]:
        raise RuntimeError("Found dtype {} but expected {}".format(*names))
    for name, x in (("input", input), ("target", target)):
        if _arguments.may_expect(x):
            text = f"all elements of {name} should be between 0 and 1"
            _arguments.expect(all_within(x, 0.0, 1.0), RuntimeError, text)
    loss: Tensor = ops.binary_cross_entropy(input, target, weight, reduction)
    return loss


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """The divergence of probabilities `target` from those whose logarithms `input` holds.

    "batchmean" is the sum over the size of dim 0; `log_target`: the target holds logarithms too.
    """
    reduction = _flagged(size_average, reduce, reduction)
    if reduction == "mean":
        warn(
            "reduction: 'mean' divides the total loss by both the batch size and the support size. "
            "'batchmean' divides only by the batch size, and aligns with the KL div math definition."
        )
    loss: Tensor = ops.kl_div(input, target, reduction, log_target)
    return loss


def unfold(
    input: Tensor, kernel_size: Numbers, dilation: Numbers = 1, padding: Numbers = 0, stride: Numbers = 1
) -> Tensor:
    """Windows of [N, C, H, W] as columns [N, C * taps, windows], or without N; zeros around the image.

    RuntimeError for sizes or settings that do not fit.
    """
    columns: Tensor = ops.im2col(input, kernel_size, dilation, padding, stride)
    return columns


def upsample_nearest(
    input: Tensor, size: Numbers | None = None, scale_factor: Numbers | None = None
) -> Tensor:
    """`interpolate` of mode "nearest" by its old name, which a warning says."""
    warn("`nn.functional.upsample_nearest` is deprecated. Use `nn.functional.interpolate` instead.")
    y: Tensor = ops.interpolate(input, size, scale_factor, "nearest")
    return y


def upsample_bilinear(
    input: Tensor, size: Numbers | None = None, scale_factor: Numbers | None = None
) -> Tensor:
    """`interpolate` of mode "bilinear" with aligned corners by its old name, which a warning says."""
    warn("`nn.functional.upsample_bilinear` is deprecated. Use `nn.functional.interpolate` instead.")
    y: Tensor = ops.interpolate(input, size, scale_factor, "bilinear", True)
    return y


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """int64 (...) -> (..., num_classes): 1 at the index, 0 elsewhere; -1 takes the largest index + 1."""
    hot: Tensor = ops.one_hot(tensor, num_classes)
    return hot


def _as(input: Tensor, dtype: DType | None) -> Tensor:
    """`input` as `dtype`, or as it is."""
    converted: Tensor = input if dtype is None else input.to(dtype)
    return converted


def _dim(op: str, input: Tensor, dim: int | None) -> int:
    """The dim to normalise along; without one PyTorch's choice, with its warning."""
    if dim is not None:
        return dim
    warn(
        f"Implicit dimension choice for {op} has been deprecated. Change the call to include dim=X as an "
        "argument."
    )
    return 0 if input.ndim in (0, 1, 3) else 1


def _warn_of_broadcast(input: Tensor, target: Tensor) -> None:
    if input.shape != target.shape:
        warn(
            f"Using a target size ({target.shape}) that is different to the input size ({input.shape}). "
            "This will likely lead to incorrect results due to broadcasting. Please ensure they have the "
            "same size."
        )


def _weights(input: Tensor, weight: Tensor | None) -> None:
    if weight is not None and weight.shape != input.shape:
        raise ValueError("Weights and input must have the same size.")


def _same_sizes(input: Tensor, target: Tensor) -> None:
    if input.shape != target.shape:
        raise ValueError(
            f"Target size ({list(target.shape)}) must be the same as input size ({list(input.shape)})"
        )


def _flagged(size_average: bool | None, reduce: bool | None, reduction: str, op: str = "") -> str:
    """The reduction, or what the flags before it mean; of an `op`, ValueError for any but the three."""
    if size_average is not None or reduce is not None:
        return _flags.legacy_get_string(size_average, reduce)
    if op and reduction not in _REDUCTIONS:
        try:
            return _REDUCTIONS[_flags.get_enum(reduction)]
        except ValueError as error:
            raise ValueError(f"{op}: {error}, which is one of {_REDUCTIONS}") from None
    return reduction


def _with_flags(name: str, function: Any) -> Any:
    """A loss of the table with PyTorch's flags `size_average` and `reduce`, before `reduction`."""
    reduce_at = registry.places_of(function)
    average_at = reduce_at - (2 if name == "poisson_nll_loss" else 1)  # there `eps` is between them

    def call(*args: Any, size_average: bool | None = None, reduce: bool | None = None, **kwargs: Any) -> Any:
        if len(args) > reduce_at:
            reduce, args = args[reduce_at], (*args[:reduce_at], *args[reduce_at + 1 :])
        if len(args) > average_at:
            size_average, args = args[average_at], (*args[:average_at], *args[average_at + 1 :])
        if size_average is not None or reduce is not None:
            kwargs["reduction"] = _flags.legacy_get_string(size_average, reduce)
        return function(*args, **kwargs)

    call.__doc__ = function.__doc__
    call.__name__ = call.__qualname__ = name
    flags = ((average_at, "size_average", None), (reduce_at, "reduce", None))
    call._kiln_more = (function, flags)  # type: ignore[attr-defined]
    return _callables.named(name, call)


for _through in (tanh, sigmoid):  # a program that is traced calls the methods
    _through._kiln_helper = True  # type: ignore[attr-defined]
_callables.name_all(globals(), "kiln.nn")
