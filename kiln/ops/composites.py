"""Normalisations and losses: mathematics over other ops, chosen so that each is few kernels, forward and
backward.

float16 and bfloat16 are computed in float32 and rounded once at the end. A loss over classes picks the target
by comparing positions with it, not by a gather: then the whole row, its derivative too, is one nest.
"""

from __future__ import annotations

from typing import Any

from kiln.graph.size import product
from kiln.ops import comparison, kinds
from kiln.ops import declare as d
from kiln.ops import pointwise as p
from kiln.ops.activations import floating, logsigmoid, narrow, wide
from kiln.ops.creation import positions
from kiln.ops.kinds import normalize_dim
from kiln.ops.record import IndexCheck, Number, Structure, Tensor, composite
from kiln.ops.reduce import reduce_max, reduce_sum
from kiln.ops.unary import abs, exp, log, rsqrt, square
from kiln.ops.views import expand, reshape

# Softmax


def _rows(np: Any, x: Any, dim: Any = None, dtype: Any = None) -> Any:
    x = x if dtype is None else x.astype(dtype)
    e = np.exp(x - x.max(dim, keepdims=True, initial=-np.inf))
    return e / e.sum(dim, keepdims=True)


_ROWS = d.samples(
    lambda rng, t: ((d.array(rng, (3, 5), t), 1), {}),
    lambda rng, t: ((d.array(rng, (4, 3, 5), t), -2), {}),
    lambda rng, t: ((d.array(rng, (3, 300), t), -1), {"dtype": "float64"}),
    lambda rng, t: ((d.array(rng, (), t), 0), {}),
)


def _shifted(input: Any, dim: int, dtype: Any, op: str) -> tuple[Any, tuple[int, ...], str]:
    """input minus its largest element along dim (a constant of the derivative), wide; the dims; the result's
    dtype.
    """
    name = input.dtype if dtype is None else d.dtype_name(dtype)
    x = floating(narrow(input, name), f"{op}_lastdim_kernel_impl")
    dims = (normalize_dim(dim, x.ndim, op),) if x.ndim else ()
    return x - p.detach(reduce_max(x, dims, True)), dims, name


@composite(
    samples=_ROWS,
    differs="nn.functional's needs a dim",
    reference=d.reference(_rows),
    onnx="Softmax",
    failures=d.failures(
        ((d.Zeros(2, 3), 5), {}, IndexError, "Dimension out of range"),
        ((d.Zeros(2, dtype="int64"), 0), {}, NotImplementedError, "not implemented for 'Long'"),
    ),
)
def softmax(input: Tensor, dim: Structure, dtype: Structure = None) -> Any:
    """exp(input) / sum(exp(input)) along `dim`, without overflow; floats, or converted to `dtype` first.

    IndexError for a dim out of range, NotImplementedError for integers.

    >>> kiln.softmax(kiln.tensor([0.0, 0.0]), 0)
    tensor([0.5000, 0.5000])
    """
    z, dims, name = _shifted(input, dim, dtype, "softmax")
    e = exp(z)
    return narrow(e / reduce_sum(e, dims, True), name)


@softmax.derivative
def _(g: Any, y: Any, dim: Any) -> Any:
    # reads only the result; what follows from the body would read the input, two row values and exp again
    return y * (g - reduce_sum(g * y, (normalize_dim(dim, y.ndim, "softmax"),)[: y.ndim], True))


@composite(
    samples=_ROWS,
    reference=d.reference(lambda np, x, dim=None, dtype=None: np.log(_rows(np, x, dim, dtype))),
    onnx="LogSoftmax",
    failures=d.failures(
        ((d.Zeros(2, 3), 5), {}, IndexError, "Dimension out of range"),
        ((d.Zeros(2, dtype="int64"), 0), {}, NotImplementedError, "not implemented for 'Long'"),
    ),
)
def log_softmax(input: Tensor, dim: Structure, dtype: Structure = None) -> Any:
    """log(softmax(input)) along `dim`, without overflow; floats, or converted to `dtype` first.

    IndexError for a dim out of range, NotImplementedError for integers.

    >>> kiln.log_softmax(kiln.tensor([0.0, 0.0]), 0)
    tensor([-0.6931, -0.6931])
    """
    z, dims, name = _shifted(input, dim, dtype, "log_softmax")
    return narrow(z - log(reduce_sum(exp(z), dims, True)), name)


@log_softmax.derivative
def _(g: Any, y: Any, dim: Any) -> Any:
    return g - exp(y) * reduce_sum(g, (normalize_dim(dim, y.ndim, "log_softmax"),)[: y.ndim], True)


def first_of_last(input: Any, normalized_shape: Any, op: str) -> int:
    """Where the dims of these sizes begin; PyTorch's error unless they are the input's last."""
    sizes = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    first: int = input.ndim - len(sizes)
    for have, want in zip(input.shape[max(first, 0) :], sizes):
        if first < 0 or want < 0 or (isinstance(have, int) and have != want):
            raise RuntimeError(
                f"Given normalized_shape={list(sizes)}, expected input with shape "
                f"[{', '.join(['*', *map(str, sizes)])}], but got input of size{list(input.shape)}"
            )
        input.graph.require_equal(have, want, op)
    return first


def _normalized(np: Any, x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    y = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias).astype(x.dtype)


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t), (5,), d.array(rng, (5,), t), d.array(rng, (5,), t)), {}),
        lambda rng, t: ((d.array(rng, (4, 3, 5), t), (3, 5)), {"eps": 1e-3}),
        lambda rng, t: ((d.array(rng, (2, 300), t), (300,), d.array(rng, (300,), t)), {}),
    ),
    reference=d.reference(_normalized),
    method=False,
    onnx="LayerNormalization",
    failures=d.failures(
        ((d.Zeros(2, 3), (4,)), {}, RuntimeError, "Given normalized_shape"),
        ((d.Zeros(2, 3), (-1,)), {}, RuntimeError, "Given normalized_shape"),
    ),
)
def layer_norm(
    input: Tensor,
    normalized_shape: Structure,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: Number = 1e-5,
) -> Any:
    """(input - mean) / sqrt(variance + eps) * weight + bias over the last dims, whose sizes are
    `normalized_shape`.

    The variance is the mean square distance from the mean, in a second pass. RuntimeError for other sizes.

    >>> kiln.nn.functional.layer_norm(kiln.tensor([[1.0, 3.0]]), (2,))
    tensor([[-1.0000,  1.0000]])
    """
    first = first_of_last(input, normalized_shape, "layer_norm")
    x, dims = floating(input, "LayerNormKernelImpl"), tuple(range(first, input.ndim))
    count = d.count_of(x, dims)
    centered = x - reduce_sum(x, dims, True) / count
    scale = rsqrt(reduce_sum(centered * centered, dims, True) / count + eps)
    y = centered * scale
    y = y if weight is None else y * wide(weight)
    return narrow(y if bias is None else y + wide(bias), input.dtype)


# Losses of values


def check_reduction(reduction: str) -> None:
    """ValueError unless a reduction is one of the three."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")


def _everything(x: Any) -> tuple[int, ...]:
    return tuple(range(x.ndim))


def reduced(loss: Any, reduction: str) -> Any:
    """A loss per element as it was asked for."""
    check_reduction(reduction)
    if reduction == "none":
        return loss
    total = reduce_sum(loss, _everything(loss), False)
    return total if reduction == "sum" else total / d.count_of(loss, _everything(loss))


def weighted(loss: Any, weight: Any, reduction: str) -> Any:
    """A loss per element times its weight, as it was asked for: the mean is over the weights."""
    if weight is None:
        return reduced(loss, reduction)
    check_reduction(reduction)
    w = wide(weight)
    if reduction != "mean":
        return reduced(loss * w, reduction)
    return reduce_sum(loss * w, _everything(loss), False) / reduce_sum(w, _everything(w), False)


def _elements(formula: Any) -> Any:
    """The reference of a loss of two arrays from its formula."""

    def call(np: Any, x: Any, y: Any, reduction: str = "mean", **more: Any) -> Any:
        loss = np.asarray(formula(np, x, y, **more))
        return loss if reduction == "none" else np.asarray(loss.mean() if reduction == "mean" else loss.sum())

    return d.reference(call)


def _pairs(low: float = -3.0, high: float = 3.0) -> Any:
    def make(reduction: str) -> Any:
        return lambda rng, t: (
            (d.array(rng, (3, 5), t), d.array(rng, (3, 5), t, low, high)),
            {"reduction": reduction},
        )

    return d.samples(*map(make, ("mean", "sum", "none")))


_BAD_LOSS = d.failures(
    ((d.Zeros(2), d.Zeros(2)), {"reduction": "x"}, ValueError, "not a valid value for reduction")
)


_BAD_DIFFERENCE = d.failures(
    ((d.Zeros(2), d.Zeros(2)), {"reduction": "x"}, ValueError, "not a valid value for reduction"),
    ((d.Zeros(2), d.Zeros(3)), {}, RuntimeError, "must match the size"),
)


@composite(
    samples=_pairs(),
    reference=_elements(lambda np, x, y: (x - y) ** 2),
    failures=_BAD_DIFFERENCE,
    method=False,
)
def mse_loss(
    input: Tensor, target: Tensor, reduction: Structure = "mean", weight: Tensor | None = None
) -> Any:
    """(input - target)^2, broadcast; its "mean", "sum", or each ("none"), times `weight` if there is one.

    ValueError for another `reduction`.

    >>> kiln.nn.functional.mse_loss(kiln.tensor([1.0, 2.0]), kiln.tensor([1.0, 4.0]))
    tensor(2.)
    """
    dtype = kinds.result_type((input, target))
    return narrow(weighted(square(wide(input) - wide(target)), weight, reduction), dtype)


@composite(
    samples=_pairs(),
    reference=_elements(lambda np, x, y: np.abs(x - y)),
    failures=_BAD_DIFFERENCE,
    method=False,
)
def l1_loss(
    input: Tensor, target: Tensor, reduction: Structure = "mean", weight: Tensor | None = None
) -> Any:
    """|input - target|, broadcast; its "mean", "sum", or each ("none"), times `weight` if there is one.

    ValueError for another `reduction`.

    >>> kiln.nn.functional.l1_loss(kiln.tensor([1.0, 2.0]), kiln.tensor([1.0, 4.0]))
    tensor(1.)
    """
    dtype = kinds.result_type((input, target))
    return narrow(weighted(abs(wide(input) - wide(target)), weight, reduction), dtype)


def _logits(np: Any, x: Any, y: Any, weight: Any = None, pos_weight: Any = None) -> Any:
    rise = 1 if pos_weight is None else (pos_weight - 1) * y + 1
    loss = (1 - y) * x + rise * np.logaddexp(0, -x)
    return (loss if weight is None else loss * weight).astype(x.dtype)


@composite(
    samples=_pairs(0, 1),
    differs="a derivative by `weight` too",
    reference=_elements(_logits),
    failures=_BAD_LOSS,
    method=False,
)
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: Structure = "mean",
    pos_weight: Tensor | None = None,
) -> Any:
    """The cross entropy of sigmoid(input) and `target` (in [0, 1]), each element times `weight`, positives
    times `pos_weight`. ValueError for shapes that differ or another `reduction`.

    >>> kiln.nn.functional.binary_cross_entropy_with_logits(kiln.tensor([0.0]), kiln.tensor([1.0]))
    tensor(0.6931)
    """
    check_reduction(reduction)
    if len(input.shape) != len(target.shape):
        raise ValueError(
            f"Target size ({list(target.shape)}) must be the same as input size ({list(input.shape)})"
        )
    for a, b in zip(input.shape, target.shape):
        input.graph.require_equal(a, b, "binary_cross_entropy_with_logits")
    x, y = floating(input, "binary_cross_entropy"), wide(target)
    below = logsigmoid(x)
    loss = (1 - y) * x - (below if pos_weight is None else ((wide(pos_weight) - 1) * y + 1) * below)
    return narrow(reduced(loss if weight is None else loss * wide(weight), reduction), input.dtype)


# Losses of classes: input [N, C, d1, ...] or [C], target [N, d1, ...] or []


def _class_dim(input: Any) -> int:
    return 1 if input.ndim > 1 else 0


def _check_classes(input: Any, target: Any) -> None:
    """PyTorch's errors for a target of class indices that does not fit."""
    name = d.dtype_name(target.dtype)
    if name not in ("int64", "uint8"):
        raise RuntimeError(f"expected target dtype to be Long or Byte, but got {d.type_name(name)}")
    if target.ndim != input.ndim - 1:
        raise ValueError(
            f"Expected target of {input.ndim - 1} dims for an input of {input.ndim}, got {target.ndim}: "
            f"input {list(input.shape)}, target {list(target.shape)}"
        )
    rest = [s for k, s in enumerate(input.shape) if k != _class_dim(input)]
    for k, (a, b) in enumerate(zip(rest, target.shape)):
        if isinstance(a, int) and isinstance(b, int) and a != b:
            if k == 0:
                raise ValueError(f"Expected input batch_size ({a}) to match target batch_size ({b}).")
            raise RuntimeError(
                f"size mismatch (got input: {list(input.shape)} , target: {list(target.shape)})"
            )
        if d.is_value(input):
            input.graph.require_equal(a, b, "cross_entropy")


def _per_class(weight: Any, like: Any, dim: int) -> Any:
    """A weight per class laid along the class dim of `like`."""
    shape = (*(1,) * dim, like.shape[dim], *(1,) * (like.ndim - dim - 1))
    return wide(reshape(weight, shape))


def _chosen(values: Any, mask: Any, dim: int) -> Any:
    """The one element of each row where the mask holds; 0 where it holds nowhere."""
    return reduce_sum(p.where(mask, values, 0), (dim,), False)


def class_loss(logs: Any, target: Any, weight: Any, ignore_index: Any, smoothing: Any, reduction: str) -> Any:
    """The loss of log-probabilities against class indices; `smoothing` None or a number."""
    check_reduction(reduction)
    dim = _class_dim(logs)
    place = reshape(target, (*target.shape[:dim], 1, *target.shape[dim:]))
    mask = comparison.eq(positions(logs, dim), place)
    counted = comparison.ne(target, ignore_index)
    w = None if weight is None else _per_class(weight, logs, dim)
    per_row = p.convert(counted, logs.dtype)
    if w is not None:
        per_row = p.where(counted, _chosen(expand(w, tuple(logs.shape)), mask, dim), 0)
    loss = p.where(counted, -_chosen(logs if w is None else logs * w, mask, dim), 0)
    if smoothing is not None:
        spread = p.where(counted, -reduce_sum(logs if w is None else logs * w, (dim,), False), 0)
        loss = (1 - smoothing) * loss + (smoothing / d.number(logs, logs.shape[dim])) * spread
    if reduction == "none":
        return loss
    total = reduce_sum(loss, _everything(loss), False)
    return total if reduction == "sum" else total / reduce_sum(per_row, _everything(loss), False)


def _class_reference(
    np: Any,
    x: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    given_logs: bool = False,
) -> Any:
    dim = 1 if x.ndim > 1 else 0
    logs = x if given_logs else np.log(_rows(np, x, dim))
    w = np.ones(x.shape[dim], x.dtype) if weight is None else weight
    laid = w.reshape([-1 if k == dim else 1 for k in range(x.ndim)])
    counted = target != ignore_index
    safe = np.where(counted, target, 0)
    picked = np.take_along_axis(logs * laid, np.expand_dims(safe, dim), dim).squeeze(dim)
    loss = -picked * (1 - label_smoothing) - (logs * laid).sum(dim) * (label_smoothing / x.shape[dim])
    loss = np.where(counted, loss, 0)
    if reduction == "none":
        return loss.astype(x.dtype)
    return np.asarray(
        loss.sum() if reduction == "sum" else loss.sum() / np.where(counted, w[safe], 0).sum()
    ).astype(x.dtype)


def _targets(rng: Any) -> Any:
    target = rng.integers(0, 5, (4,))
    target[1] = -100
    return target


def _bad_class(name: str) -> Any:
    return d.failures(
        ((d.Zeros(2, 3), d.Zeros(2, dtype="int64", value=5)), {}, IndexError, "Target 5 is out of bounds"),
        ((d.Zeros(2, 3), d.Zeros(1, dtype="int64")), {}, ValueError, "to match target batch_size"),
        (
            (d.Zeros(2, 3), d.Zeros(2, dtype="int64")),
            {"reduction": "x"},
            ValueError,
            "not a valid value for reduction",
        ),
    )


_TARGET = IndexCheck(
    "target", "input", "class", IndexError, "Target {index} is out of bounds.", ignore="ignore_index"
)


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (4, 5), t), _targets(rng)), {}),
        lambda rng, t: (
            (d.array(rng, (4, 5), t), _targets(rng), d.array(rng, (5,), t, 0.5, 2)),
            {"reduction": "sum"},
        ),
        lambda rng, t: ((d.array(rng, (2, 5, 3), t), rng.integers(0, 5, (2, 3))), {"reduction": "none"}),
    ),
    reference=d.reference(_class_reference),
    checks=_TARGET,
    failures=_bad_class("cross_entropy"),
    public=False,
)
def cross_entropy_classes(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: Number = -100,
    reduction: Structure = "mean",
) -> Any:
    """The cross entropy of softmax(input) and class indices.

    >>> kiln.nn.functional.cross_entropy(kiln.zeros(1, 2), kiln.tensor([1]))
    tensor(0.6931)
    """
    _check_classes(input, target)
    logs = log_softmax(floating(input, "log_softmax_lastdim_kernel_impl"), _class_dim(input))
    return narrow(class_loss(logs, target, weight, ignore_index, None, reduction), input.dtype)


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (4, 5), t), _targets(rng)), {"label_smoothing": 0.1}),
        lambda rng, t: (
            (d.array(rng, (4, 5), t), _targets(rng), d.array(rng, (5,), t, 0.5, 2)),
            {"label_smoothing": 0.2},
        ),
    ),
    reference=d.reference(_class_reference),
    checks=_TARGET,
    failures=_bad_class("cross_entropy"),
    public=False,
)
def cross_entropy_smoothed(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: Number = -100,
    label_smoothing: Number = 0.0,
    reduction: Structure = "mean",
) -> Any:
    """The cross entropy of softmax(input) and class indices mixed with the uniform distribution.

    >>> kiln.nn.functional.cross_entropy(kiln.zeros(1, 2), kiln.tensor([1]), label_smoothing=0.5)
    tensor(0.6931)
    """
    _check_classes(input, target)
    logs = log_softmax(floating(input, "log_softmax_lastdim_kernel_impl"), _class_dim(input))
    return narrow(class_loss(logs, target, weight, ignore_index, label_smoothing, reduction), input.dtype)


def _distributions(rng: Any, t: str) -> Any:
    target = d.array(rng, (4, 5), t, 0.1, 1)
    return (d.array(rng, (4, 5), t), target / target.sum(1, keepdims=True)), {}


def _distribution_reference(np: Any, x: Any, target: Any, weight: Any = None, label_smoothing: float = 0.0,
                            reduction: str = "mean") -> Any:  # fmt: skip
    dim = 1 if x.ndim > 1 else 0
    w = 1 if weight is None else weight.reshape([-1 if k == dim else 1 for k in range(x.ndim)])
    mixed = target * (1 - label_smoothing) + label_smoothing / x.shape[dim]
    loss = -(np.log(_rows(np, x, dim)) * mixed * w).sum(dim)
    count = x.size // x.shape[dim]
    return np.asarray(
        loss if reduction == "none" else loss.sum() / (count if reduction == "mean" else 1)
    ).astype(x.dtype)


@composite(
    samples=d.samples(
        _distributions,
        lambda rng, t: (_distributions(rng, t)[0], {"label_smoothing": 0.1, "reduction": "sum"}),
    ),
    reference=d.reference(_distribution_reference),
    failures=_BAD_LOSS,
    public=False,
)
def cross_entropy_probabilities(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    label_smoothing: Number = 0.0,
    reduction: Structure = "mean",
) -> Any:
    """The cross entropy of softmax(input) and probabilities of its shape.

    >>> kiln.nn.functional.cross_entropy(kiln.zeros(1, 2), kiln.tensor([[0.5, 0.5]]))
    tensor(0.6931)
    """
    check_reduction(reduction)
    for a, b in zip(input.shape, target.shape):
        input.graph.require_equal(a, b, "cross_entropy")
    dim = _class_dim(input)
    logs = log_softmax(floating(input, "log_softmax_lastdim_kernel_impl"), dim)
    classes = d.number(input, logs.shape[dim])
    terms = logs * (wide(target) * (1 - label_smoothing) + label_smoothing / classes)
    terms = terms if weight is None else terms * _per_class(weight, logs, dim)
    loss = -reduce_sum(terms, (dim,), False)
    if reduction != "none":
        loss = reduce_sum(loss, _everything(loss), False)
    if reduction == "mean":
        rows = product(tuple(s for k, s in enumerate(input.shape) if k != dim))
        loss = loss / d.number(input, rows)
    return narrow(loss, input.dtype)


@composite(
    differs="a derivative by `weight` too",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (4, 5), t, -3, 0), _targets(rng)), {}),
        lambda rng, t: ((d.array(rng, (4, 5), t, -3, 0), _targets(rng), d.array(rng, (5,), t, 0.5, 2)), {}),
        lambda rng, t: (
            (d.array(rng, (2, 5, 3), t, -3, 0), rng.integers(0, 5, (2, 3))),
            {"reduction": "none"},
        ),
    ),
    reference=d.reference(lambda *args, **kwargs: _class_reference(*args, **{**kwargs, "given_logs": True})),
    checks=_TARGET,
    failures=_bad_class("nll_loss"),
    method=False,
    onnx="NegativeLogLikelihoodLoss",
)
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: Number = -100,
    reduction: Structure = "mean",
) -> Any:
    """Minus the log-probability `input` [N, C, ...] gives each class index in `target` [N, ...], weighted per
    class.

    IndexError for a class out of range (`ignore_index` apart), ValueError for sizes that differ or another
    `reduction`.

    >>> kiln.nn.functional.nll_loss(kiln.tensor([[-1.0, -2.0]]), kiln.tensor([1]))
    tensor(2.)
    """
    _check_classes(input, target)
    x = floating(input, "nll_loss_out_frame")
    return narrow(class_loss(x, target, weight, ignore_index, None, reduction), input.dtype)


@d.public("cross_entropy", method=False, dtypes="float", differs="a derivative by `weight` too")
def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """The cross entropy of softmax(input) along the classes [N, C, ...] and `target`: class indices [N, ...]
    or probabilities of input's shape. "mean" is over the targets not ignored, weighted.

    IndexError for a class out of range (`ignore_index` apart); ValueError for sizes that differ or another
    `reduction`; RuntimeError for a target dtype that is neither, or a smoothing outside [0, 1].

    >>> kiln.nn.functional.cross_entropy(kiln.zeros(1, 2), kiln.tensor([1]))
    tensor(0.6931)
    """
    check_reduction(reduction)
    if not 0 <= label_smoothing <= 1:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    if d.dtype_name(target.dtype) in kinds.FLOATS and target.ndim == input.ndim:
        return cross_entropy_probabilities(input, target, weight, label_smoothing, reduction)
    _check_classes(input, target)
    if label_smoothing == 0:
        return cross_entropy_classes(input, target, weight, ignore_index, reduction)
    return cross_entropy_smoothed(input, target, weight, ignore_index, label_smoothing, reduction)
