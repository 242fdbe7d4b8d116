"""Losses of classes: the target is picked by comparing positions with it, not by a gather, so that the whole
row, its derivative too, is one nest.

input [N, C, d1, ...] or [C], target [N, d1, ...] or [].
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln.graph.size import product
from kiln.ops.creation.constants import positions
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise import comparison
from kiln.ops.elementwise.precision import floating, narrow, wide
from kiln.ops.nn.losses.common import BAD_REDUCTION, check_reduction, everything
from kiln.ops.nn.softmax_and_layer_norm import log_softmax, shares
from kiln.ops.reductions.core_reductions import reduce_sum
from kiln.ops.views.core_views import expand, reshape
from kiln.table import drawn as d
from kiln.table import kinds
from kiln.table.arguments import dtype_name, is_value, number, type_name
from kiln.table.public import public
from kiln.table.record import IndexCheck, Number, Structure, Tensor, composite


def _class_dim(input: Tensor) -> int:
    return 1 if input.ndim > 1 else 0


def _check_classes(input: Tensor, target: Tensor) -> None:
    """PyTorch's errors for a target of class indices that does not fit."""
    name = dtype_name(target.dtype)
    if name not in ("int64", "uint8"):
        raise RuntimeError(f"expected target dtype to be Long or Byte, but got {type_name(name)}")
    if target.ndim == input.ndim > 1 and tuple(target.shape) == tuple(input.shape):
        raise RuntimeError(
            f"Expected floating point type for target with class probabilities, got {type_name(name)}"
        )
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
                f"size mismatch (got input: {list(input.shape)} , target: {list(target.shape)}): Expected "
                f"target size {rest}, got {list(target.shape)}"
            )
        if is_value(input):
            input.graph.require_equal(a, b, "cross_entropy")


def _per_class(weight: Tensor, like: Any, dim: int) -> Tensor:
    """A weight per class laid along the class dim of `like`."""
    classes = like.shape[dim]
    if isinstance(classes, int) and tuple(weight.shape) != (classes,):
        raise RuntimeError(
            f"weight tensor should be defined either for all {classes} classes or no classes but got weight "
            f"tensor of shape: {list(weight.shape)}"
        )
    shape = (*(1,) * dim, like.shape[dim], *(1,) * (like.ndim - dim - 1))
    return wide(reshape(weight, shape))


def _chosen(values: Any, mask: Tensor, dim: int) -> Tensor:
    """The one element of each row where the mask holds; 0 where it holds nowhere."""
    return reduce_sum(p.where(mask, values, 0), (dim,), False)


def class_loss(
    logs: Any, target: Tensor, weight: Tensor, ignore_index: Any, smoothing: Any, reduction: str
) -> Any:
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
        loss = (1 - smoothing) * loss + (smoothing / number(logs, logs.shape[dim])) * spread
    if reduction == "none":
        return loss
    total = reduce_sum(loss, everything(loss), False)
    return total if reduction == "sum" else total / reduce_sum(per_row, everything(loss), False)


def _class_reference(
    np: ModuleType,
    x: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    given_logs: bool = False,
) -> Any:
    dim = 1 if x.ndim > 1 else 0
    logs = x if given_logs else np.log(shares(np, x, dim))
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


def _distribution_reference(
    np: ModuleType,
    x: Any,
    target: Any,
    weight: Any = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Any:
    dim = 1 if x.ndim > 1 else 0
    w = 1 if weight is None else weight.reshape([-1 if k == dim else 1 for k in range(x.ndim)])
    mixed = target * (1 - label_smoothing) + label_smoothing / x.shape[dim]
    loss = -(np.log(shares(np, x, dim)) * mixed * w).sum(dim)
    count = x.size // x.shape[dim]
    return np.asarray(
        loss if reduction == "none" else loss.sum() / (count if reduction == "mean" else 1)
    ).astype(x.dtype)


def _check_probabilities(input: Tensor, target: Tensor) -> None:
    """PyTorch's errors for probabilities of another shape than the input's."""
    sizes, given = list(input.shape), list(target.shape)
    if is_value(input) or sizes == given:
        return
    if len(sizes) > 1 and sizes[0] != given[0]:
        raise ValueError(f"Expected input batch_size ({sizes[0]}) to match target batch_size ({given[0]}).")
    why = f"probabilities of shape {given} for an input of shape {sizes}"
    if len(sizes) == 2:
        raise RuntimeError(f"0D or 1D target tensor expected, multi-target not supported: {why}")
    raise RuntimeError(f"Expected target size {sizes[:1] + sizes[2:]}, got {given}: {why}")


@composite(
    samples=d.samples(
        _distributions,
        lambda rng, t: (_distributions(rng, t)[0], {"label_smoothing": 0.1, "reduction": "sum"}),
    ),
    reference=d.reference(_distribution_reference),
    failures=BAD_REDUCTION,
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
    classes = number(input, logs.shape[dim])
    terms = logs * (wide(target) * (1 - label_smoothing) + label_smoothing / classes)
    terms = terms if weight is None else terms * _per_class(weight, logs, dim)
    loss = -reduce_sum(terms, (dim,), False)
    if reduction != "none":
        loss = reduce_sum(loss, everything(loss), False)
    if reduction == "mean":
        rows = product(tuple(s for k, s in enumerate(input.shape) if k != dim))
        loss = loss / number(input, rows)
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
    tests=d.Tests(peer_gradient=False),
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
    x = p.by_steps(floating(input, "nll_loss_out_frame"))
    return narrow(class_loss(x, target, weight, ignore_index, None, reduction), input.dtype)


@public(
    "cross_entropy",
    method=False,
    dtypes="float",
    differs="a derivative by `weight` too; backward reads `input`, so that this may not be written before it",
)
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
    if dtype_name(target.dtype) in kinds.FLOATS and target.ndim == input.ndim:
        if ignore_index >= 0:
            raise RuntimeError("ignore_index is not supported for floating point target")
        _check_probabilities(input, target)
        return cross_entropy_probabilities(input, target, weight, label_smoothing, reduction)
    _check_classes(input, target)
    if label_smoothing == 0:
        return cross_entropy_classes(input, target, weight, ignore_index, reduction)
    return cross_entropy_smoothed(input, target, weight, ignore_index, label_smoothing, reduction)
