"""Losses with a margin: what is far enough on the right side costs nothing.

Each is one composite, so that forward and backward are few kernels. At the margin itself the gradient is
PyTorch's, which mostly lets it pass.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln.ops.creation.constants import positions
from kiln.ops.elementwise import comparison
from kiln.ops.elementwise.arithmetic import by_steps, clamp_min, minimum, where
from kiln.ops.elementwise.elementary import exp, log1p, sqrt
from kiln.ops.elementwise.precision import floating, narrow, wide
from kiln.ops.nn.losses.common import check_reduction, reduced
from kiln.ops.nn.smooth_activations import logsigmoid
from kiln.ops.reductions.core_reductions import reduce_any, reduce_sum
from kiln.ops.reductions.norms import norm_over
from kiln.ops.views.core_views import reshape
from kiln.table import drawn as d
from kiln.table import kinds
from kiln.table.arguments import count_of, default_float, dtype_name, numel, type_name
from kiln.table.public import public
from kiln.table.record import IndexCheck, Number, Sample, Structure, Tensor, composite


def _loss(formula: Any) -> Any:
    """The reference of a loss from its formula, which gives the loss of each."""

    def call(np: ModuleType, *args: Any, reduction: str = "mean", **options: Any) -> Any:
        loss = np.asarray(formula(np, *args, **options)).astype(args[0].dtype)
        return np.asarray({"none": loss, "sum": loss.sum(), "mean": loss.mean()}[reduction]).astype(
            loss.dtype
        )

    return d.reference(call)


def _signs(rng: Any, shape: tuple[int, ...], t: str) -> Any:
    return (rng.integers(0, 2, (*shape, 1)) * 2 - 1).astype(d.held(t)).reshape(shape)


def _bad_reduction(*shapes: tuple[int, ...]) -> Any:
    return d.failures(
        (
            tuple(d.Zeros(*s) for s in shapes),
            {"reduction": "x"},
            ValueError,
            "not a valid value for reduction",
        )
    )


def _line(x: Tensor) -> tuple[int, ...]:
    return (x.ndim - 1,)


@composite(
    samples=d.samples(
        lambda rng, t: (
            (d.array(rng, (7,), t), d.array(rng, (7,), t), _signs(rng, (7,), t)),
            {"margin": 0.5},
        ),
        lambda rng, t: (
            (d.array(rng, (2, 3), t), d.array(rng, (2, 3), t), _signs(rng, (2, 3), t)),
            {"reduction": "none"},
        ),
    ),
    reference=_loss(lambda np, a, b, y, margin=0: np.maximum(0, -y * (a - b) + margin)),
    failures=_bad_reduction((3,), (3,), (3,)),
    method=False,
    tests=d.Tests(keeps_less="differences"),
)
def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: Number = 0, reduction: Structure = "mean"
) -> Any:
    """max(0, margin - target * (input1 - input2)): target 1 wants the first above, -1 the second.

    RuntimeError for different numbers of dims, ValueError for another `reduction`.

    >>> x, y = kiln.tensor([1.0]), kiln.tensor([3.0])
    >>> kiln.nn.functional.margin_ranking_loss(x, y, kiln.tensor([1.0]))
    tensor(2.)
    """
    check_reduction(reduction)
    if not input1.ndim == input2.ndim == target.ndim:
        raise RuntimeError(
            "margin_ranking_loss : All input tensors should have same dimension but got sizes: "
            f"input1: {input1.shape}, input2: {input2.shape}, target: {target.shape}"
        )
    dtype = kinds.result_type((input1, input2, target))
    dtype = dtype if dtype in kinds.FLOATS else default_float()  # of the margin
    apart = wide(input1) - wide(input2)
    return narrow(reduced(clamp_min(-wide(target) * apart + margin, 0), reduction), dtype)


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 5), t), _signs(rng, (2, 5), t)), {"margin": 0.5}),
        lambda rng, t: ((d.array(rng, (7,), t), _signs(rng, (7,), t)), {"reduction": "sum"}),
    ),
    reference=_loss(lambda np, x, y, margin=1.0: np.where(y == 1, x, np.maximum(0, margin - x))),
    failures=_bad_reduction((3,), (3,)),
    method=False,
    tests=d.Tests(keeps_less="differences"),
)
def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: Number = 1.0, reduction: Structure = "mean"
) -> Any:
    """`input` where `target` is 1, max(0, margin - input) where it is -1. ValueError for another `reduction`.

    >>> kiln.nn.functional.hinge_embedding_loss(kiln.tensor([0.25, 0.25]), kiln.tensor([1.0, -1.0]))
    tensor(0.5000)
    """
    x = wide(input)
    below = where(comparison.ne(target, 1), clamp_min(margin - x, 0), 0)
    above = where(comparison.ne(target, -1), x, 0)
    return narrow(reduced(below + above, reduction), input.dtype)


def _cosine(a: Tensor, b: Tensor, dims: tuple[int, ...]) -> Tensor:
    tiny = 1e-12
    sizes = (reduce_sum(a * a, dims, False) + tiny) * (reduce_sum(b * b, dims, False) + tiny)
    return reduce_sum(a * b, dims, False) / sqrt(sizes)


def _cosines(np: ModuleType, a: Any, b: Any, y: Any, margin: float = 0) -> Any:
    cosine = (a * b).sum(-1) / np.sqrt(((a * a).sum(-1) + 1e-12) * ((b * b).sum(-1) + 1e-12))
    return np.where(y == 1, 1 - cosine, np.maximum(0, cosine - margin))


@composite(
    samples=d.samples(
        lambda rng, t: (
            (d.array(rng, (4, 3), t), d.array(rng, (4, 3), t), _signs(rng, (4,), t)),
            {"margin": 0.25},
        ),
        lambda rng, t: (
            (d.array(rng, (5,), t), d.array(rng, (5,), t), _signs(rng, (), t)),
            {"reduction": "none"},
        ),
    ),
    reference=_loss(_cosines),
    failures=d.failures(
        ((d.Zeros(2, 2),) * 3, {}, RuntimeError, "0D or 1D target tensor expected"),
        (
            (d.Zeros(2, 2), d.Zeros(2, 2), d.Zeros(2)),
            {"reduction": "x"},
            ValueError,
            "not a valid value for reduction",
        ),
    ),
    method=False,
    tests=d.Tests(keeps_less="masks of the target"),
)
def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: Number = 0, reduction: Structure = "mean"
) -> Any:
    """1 - cos(input1, input2) where `target` is 1, max(0, cos - margin) where it is -1.

    Rows (n, k) with a target (n), or (k) with one of no dims. RuntimeError for others, ValueError for another
    `reduction`.

    >>> x, y = kiln.tensor([1.0, 0.0]), kiln.tensor([0.0, 2.0])
    >>> kiln.nn.functional.cosine_embedding_loss(x, y, kiln.tensor(1))
    tensor(1.)
    """
    check_reduction(reduction)
    if target.ndim > 1:
        raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
    if not input1.ndim == input2.ndim == target.ndim + 1:
        raise RuntimeError(
            f"{target.ndim}D target tensor expects {target.ndim + 1}D input tensors, but found "
            f"{input1.ndim}D and {input2.ndim}D inputs"
        )
    dtype = kinds.result_type((input1, input2))
    if dtype not in kinds.FLOATS:
        dtype = default_float()
    input1, input2 = narrow(input1, dtype), narrow(input2, dtype)
    cosine = _cosine(wide(input1), wide(input2), (target.ndim,))
    alike = where(comparison.eq(target, 1), 1 - cosine, 0)
    apart = where(comparison.eq(target, -1), clamp_min(cosine - margin, 0), 0)
    return narrow(reduced(alike + apart, reduction), dtype)


def _distance(np: ModuleType, a: Any, b: Any, p: float, eps: float) -> Any:
    return (np.abs(a - b + eps) ** p).sum(-1) ** (1 / p)


def _triplets(
    np: ModuleType,
    a: Any,
    b: Any,
    c: Any,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
) -> Any:
    far = _distance(np, a, c, p, eps)
    far = np.minimum(far, _distance(np, b, c, p, eps)) if swap else far
    return np.maximum(0, margin + _distance(np, a, b, p, eps) - far)


@composite(
    samples=d.samples(
        lambda rng, t: (tuple(d.array(rng, (4, 3), t) for _ in range(3)), {"reduction": "none"}),
        lambda rng, t: (tuple(d.array(rng, (4, 3), t) for _ in range(3)), {"p": 3.0, "swap": True}),
    ),
    reference=_loss(_triplets),
    failures=d.failures(
        ((d.Zeros(2, 2), d.Zeros(2, 2), d.Zeros(2)), {}, RuntimeError, "same number of dimensions"),
        ((d.Zeros(2, 2),) * 3, {"margin": -1.0}, ValueError, "margin must be greater than 0"),
    ),
    method=False,
    tests=d.Tests(keeps_less="differences"),
)
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: Structure = 1.0,
    p: Structure = 2,
    eps: Number = 1e-6,
    swap: Structure = False,
    reduction: Structure = "mean",
) -> Any:
    """max(0, margin + |anchor - positive| - |anchor - negative|) of rows, by the `p`-norm.

    `swap`: the nearer of anchor and positive is held against the negative. RuntimeError for different numbers
    of dims, ValueError for a margin that is not positive or another `reduction`.

    >>> x, y, z = kiln.tensor([[0.0]]), kiln.tensor([[3.0]]), kiln.tensor([[1.0]])
    >>> kiln.nn.functional.triplet_margin_loss(x, y, z)
    tensor(3.)
    """
    check_reduction(reduction)
    if not margin > 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    if not anchor.ndim == positive.ndim == negative.ndim:
        raise RuntimeError(
            "The anchor, positive, and negative tensors are expected to have the same number of dimensions, "
            f"but got: anchor {anchor.ndim}D, positive {positive.ndim}D, and negative {negative.ndim}D inputs"
        )
    dtype = kinds.result_type((anchor, positive, negative))
    dtype = dtype if dtype in kinds.FLOATS else default_float()  # of the distances
    a, b, c = wide(anchor), wide(positive), wide(negative)

    def distance(x: Tensor, y: Tensor) -> Any:
        apart = x - y + eps
        return norm_over(apart, float(p), _line(apart), False)

    far = distance(a, c)
    far = minimum(far, distance(b, c)) if swap else far
    return narrow(reduced(clamp_min(margin + distance(a, b) - far, 0), reduction), dtype)


def _multi_margins(
    np: ModuleType, x: Any, y: Any, p: int = 1, margin: float = 1.0, weight: Any = None
) -> Any:
    rows = np.arange(len(x))
    terms = np.maximum(0, margin - x[rows, y][:, None] + x) ** p
    terms = terms if weight is None else terms * weight[y][:, None]
    terms[rows, y] = 0
    return terms.sum(1) / x.shape[1]


def _check_rows(input: Tensor) -> None:
    if input.ndim > 2 or any(size == 0 for size in tuple(input.shape)[-1:]):
        raise RuntimeError(
            "Expected non-empty vector or matrix with optional 0-dim batch size, but got: "
            f"{list(input.shape)}"
        )


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (4, 5), t), rng.integers(0, 5, (4,))), {}),
        lambda rng, t: (
            (d.array(rng, (4, 5), t), rng.integers(0, 5, (4,)), 2, 0.5, d.array(rng, (5,), t, 0.5, 2)),
            {"reduction": "none"},
        ),
    ),
    reference=_loss(_multi_margins),
    failures=d.failures(
        ((d.Zeros(2, 3), d.Zeros(2, dtype="int64", value=5)), {}, RuntimeError, "target out of range"),
    ),
    checks=IndexCheck("target", "input", "class", RuntimeError, "target out of range"),
    public=False,
)
def class_margins(
    input: Tensor,
    target: Tensor,
    p: Structure = 1,
    margin: Number = 1.0,
    weight: Tensor | None = None,
    reduction: Structure = "mean",
) -> Any:
    """`multi_margin_loss` of arrays that fit: input (.., c) and class indices (..).

    >>> kiln.nn.functional.multi_margin_loss(kiln.tensor([[0.5, 0.0]]), kiln.tensor([0]))
    tensor(0.2500)
    """
    x, dims = by_steps(floating(input, "multi_margin_loss")), _line(input)
    own = comparison.eq(positions(x, dims[0]), reshape(target, (*target.shape, 1)))
    right = reduce_sum(where(own, x, 0), dims, True)
    short = margin - right + x
    terms = where(comparison.gt(short, 0), short, 0)
    terms = where(own, 0, terms * terms if p == 2 else terms)
    loss = reduce_sum(terms, dims, False) / count_of(x, dims)
    if weight is not None:
        loss = loss * reduce_sum(where(own, wide(weight), 0), dims, False)
    return narrow(reduced(loss, reduction), input.dtype)


@public(
    "multi_margin_loss",
    method=False,
    layer=True,
    differs="a derivative by `weight` too",
    dtypes="float",
    samples=lambda rng, t: [
        Sample((d.array(rng, (), t), rng.integers(0, 1, ())), {"reduction": "none"}),
        Sample((d.array(rng, (5,), t), rng.integers(0, 5, (1,))), {"reduction": "none"}),
    ],
    failures=d.failures(
        ((d.Zeros(2, 3), d.Zeros(2, dtype="int64"), 3), {}, ValueError, "only p == 1 and p == 2 supported"),
        ((d.Zeros(2, 3), d.Zeros(3, dtype="int64")), {}, RuntimeError, "inconsistent target size"),
        ((d.Zeros(2, 0), d.Zeros(2, dtype="int64")), {}, RuntimeError, "Expected non-empty vector or matrix"),
        ((d.Zeros(2, 3), d.Zeros(2)), {}, RuntimeError, "expected scalar type Long but found Float"),
        (
            (d.Zeros(2, 3), d.Zeros(2, dtype="int64"), 1, 1.0, d.Zeros()),
            {},
            ValueError,
            "weight must be one-dimensional",
        ),
    ),
    tests=d.Tests(peer_gradient=False),
)
def multi_margin_loss(
    input: Any, target: Any, p: int = 1, margin: float = 1.0, weight: Any = None, reduction: str = "mean"
) -> Any:
    """The sum over classes other than the target's of max(0, margin - input[target] + input)**p, over the
    number of classes: input (n, c) and class indices (n), or (c) and one.

    RuntimeError for a class out of range, sizes that do not fit or another dtype of `target`; ValueError for
    a `p` that is neither 1 nor 2, a weight that is no vector, or another `reduction`.

    >>> kiln.nn.functional.multi_margin_loss(kiln.tensor([[0.5, 0.0]]), kiln.tensor([0]))
    tensor(0.2500)
    """
    check_reduction(reduction)
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    if weight is not None and weight.ndim != 1:
        raise ValueError("weight must be one-dimensional")
    _check_rows(input)
    batch = tuple(input.shape[:-1])
    if numel(target.shape) != numel(batch) or target.ndim > 1:
        raise RuntimeError(
            "multi_margin_loss: inconsistent target size: target tensor should be 1-D with size equal to the "
            f"number of input samples (batch size). Expected target size {list(batch)}, but got "
            f"{list(target.shape)}. Input has shape {list(input.shape)}."
        )
    if weight is not None and numel(weight.shape) != input.shape[-1]:
        raise RuntimeError(
            f"inconsistent weight size, expected {input.shape[-1]} but got {list(weight.shape)}"
        )
    if dtype_name(target.dtype) != "int64":
        raise RuntimeError(f"expected scalar type Long but found {type_name(dtype_name(target.dtype))}")
    rows = input if input.ndim else reshape(input, (1,))
    places = target if target.ndim == len(batch) else reshape(target, batch)
    loss = class_margins.handle(rows, places, p, margin, weight, reduction)
    return reshape(loss, (1,)) if reduction == "none" and target.ndim > len(batch) else loss


def _label_margins(np: ModuleType, x: Any, y: Any, *end: int) -> Any:
    loss = np.zeros(x.shape[:-1], x.dtype)
    for place in np.ndindex(*loss.shape):
        labels = y[place].tolist()
        labels = labels[: labels.index(-1)] if -1 in labels else labels
        others = [k for k in range(x.shape[-1]) if k not in labels]
        loss[place] = sum(max(0, 1 - x[place][j] + x[place][k]) for j in labels for k in others)
    return loss / x.shape[-1]


def _labels(rng: Any) -> Any:
    """Rows of labels 0 to 3 with an end among them."""
    return rng.permuted(rng.integers(0, 1, (3, 5)) + [0, 1, 2, 3, -1], axis=1)


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t), _labels(rng)), {}),
        lambda rng, t: ((d.array(rng, (3, 5), t), _labels(rng)), {"reduction": "none"}),
    ),
    reference=_loss(_label_margins),
    failures=d.failures(
        ((d.Zeros(2, 3), d.Zeros(2, 3, dtype="int64", value=5)), {}, RuntimeError, "is out of range")
    ),
    checks=IndexCheck(
        "target", "input", -1, RuntimeError, "argument #2 'target' is out of range", ignore="end"
    ),
    public=False,
)
def label_margins(input: Tensor, target: Tensor, end: Number = -1, reduction: Structure = "mean") -> Any:
    """`multilabel_margin_loss` with what ends a row's labels.

    >>> x, y = kiln.tensor([[0.5, 0.0]]), kiln.tensor([[0, -1]])
    >>> kiln.nn.functional.multilabel_margin_loss(x, y)
    tensor(0.2500)
    """
    check_reduction(reduction)
    x, last = floating(input, "multilabel_margin_loss"), input.ndim - 1
    size, batch = input.shape[last], tuple(input.shape[:last])
    ended = comparison.eq(target, end)
    # dims (.., label j, k): whether one of the labels up to the j-th ends the row
    grid = reshape(ended, (*batch, 1, size))
    along, row = (reshape(positions(x, last), (*batch, *s)) for s in ((1, size), (size, 1)))
    over = reduce_any(where(comparison.le(along, row), grid, False), (last + 1,), True)
    label = reshape(target, (*batch, size, 1))
    hit = where(over, False, comparison.eq(along, label))
    mine = reduce_any(hit, (last,), True)  # (.., 1, class): whether the class is one of the labels
    values = reshape(x, (*batch, 1, size))
    right = reduce_sum(where(hit, values, 0), (last + 1,), True)  # (.., label, 1)
    short = 1 - right + values
    terms = where(over, 0, where(mine, 0, where(comparison.gt(short, 0), short, 0)))
    loss = reduce_sum(terms, (last, last + 1), False) / count_of(x, (last,))
    return narrow(reduced(loss, reduction), input.dtype)


@public("multilabel_margin_loss", method=False, layer=True, dtypes="float")
def multilabel_margin_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """The sum of max(0, 1 - input[j] + input[k]) over labels j and classes k that are none, over the number
    of classes: input and target (n, c) or (c), target the labels' classes up to the first -1.

    RuntimeError for a class out of range or sizes that differ, ValueError for another `reduction`.

    >>> x, y = kiln.tensor([[0.5, 0.0]]), kiln.tensor([[0, -1]])
    >>> kiln.nn.functional.multilabel_margin_loss(x, y)
    tensor(0.2500)
    """
    check_reduction(reduction)
    _check_rows(input)
    if tuple(input.shape) != tuple(target.shape):
        raise RuntimeError(
            f"inconsistent target size: {list(target.shape)} for input of size: {list(input.shape)}"
        )
    if dtype_name(target.dtype) != "int64":
        raise RuntimeError(f"expected scalar type Long but found {type_name(dtype_name(target.dtype))}")
    if input.ndim == 0:
        input, target = (reshape(x, (1,)) for x in (input, target))
    return label_margins.handle(input, target, -1, reduction)


@composite(
    differs="a derivative by `target` too",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t), _signs(rng, (3, 5), t)), {}),
        lambda rng, t: ((d.array(rng, (7,), t), _signs(rng, (7,), t)), {"reduction": "none"}),
    ),
    reference=_loss(lambda np, x, y: np.log1p(np.exp(-y * x))),
    failures=_bad_reduction((3,), (3,)),
    method=False,
    tests=d.Tests(peer_gradient=False),
)
def soft_margin_loss(input: Tensor, target: Tensor, reduction: Structure = "mean") -> Any:
    """log(1 + exp(-target * input)) for targets of 1 and -1; infinite where exp is, as in PyTorch.

    ValueError for another `reduction`.

    >>> kiln.nn.functional.soft_margin_loss(kiln.tensor([0.0]), kiln.tensor([1.0]))
    tensor(0.6931)
    """
    check_reduction(reduction)
    dtype = kinds.result_type((input, target))
    return narrow(reduced(log1p(exp(wide(input) * -wide(target))), reduction), dtype)


@composite(
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 5), t), rng.integers(0, 2, (3, 5)).astype(d.held(t))), {}),
        lambda rng, t: (
            (
                d.array(rng, (3, 5), t),
                rng.integers(0, 2, (3, 5)).astype(d.held(t)),
                d.array(rng, (5,), t, 0.5, 2),
            ),
            {"reduction": "none"},
        ),
    ),
    reference=_loss(
        lambda np, x, y, w=1: (w * (y * np.logaddexp(0, -x) + (1 - y) * np.logaddexp(0, x))).mean(-1)
    ),
    failures=_bad_reduction((2, 3), (2, 3)),
    method=False,
)
def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: Structure = "mean"
) -> Any:
    """The mean over classes of the cross entropy of sigmoid(input) and `target` (0 or 1), each class times
    `weight`. ValueError for another `reduction`.

    >>> kiln.nn.functional.multilabel_soft_margin_loss(kiln.tensor([[0.0]]), kiln.tensor([[1.0]]))
    tensor(0.6931)
    """
    check_reduction(reduction)
    x, y = floating(input, "log_sigmoid"), wide(target)
    loss = -(y * logsigmoid(x) + (1 - y) * logsigmoid(-x))
    loss = loss if weight is None else loss * wide(weight)
    return narrow(reduced(reduce_sum(loss, _line(loss), False) / count_of(loss, _line(loss)), reduction),
                  input.dtype)  # fmt: skip
