"""Softmax and layer_norm: mathematics over other ops, chosen so that each is few kernels, forward and
backward.

float16 and bfloat16 are computed in float32 and rounded once at the end.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise.elementary import exp, log, neg, rsqrt
from kiln.ops.elementwise.precision import floating, narrow, wide
from kiln.ops.reductions.core_reductions import reduce_max, reduce_sum
from kiln.table import drawn as d
from kiln.table.arguments import count_of, dtype_name
from kiln.table.kinds import normalize_dims
from kiln.table.public import public
from kiln.table.record import Number, Structure, Tensor, composite

# Softmax


def shares(np: ModuleType, x: Any, dim: Any = None, dtype: Any = None) -> Any:
    """softmax in NumPy."""
    x = x if dtype is None else x.astype(dtype)
    e = np.exp(x - x.max(dim, keepdims=True, initial=-np.inf))
    return e / e.sum(dim, keepdims=True)


_ROWS = d.samples(
    lambda rng, t: ((d.array(rng, (3, 5), t), 1), {}),
    lambda rng, t: ((d.array(rng, (4, 3, 5), t), -2), {}),
    lambda rng, t: ((d.array(rng, (3, 300), t), -1), {"dtype": "float64"}),
    lambda rng, t: ((d.array(rng, (), t), 0), {}),
)


def _shifted(input: Tensor, dim: int, dtype: Any, op: str) -> tuple[Any, tuple[int, ...], str]:
    """input less its largest along dim (a constant of the derivative), wide; the dims; the result's dtype."""
    name = input.dtype if dtype is None else dtype_name(dtype)
    x = floating(narrow(input, name), f"{op}_lastdim_kernel_impl")
    dims = normalize_dims(dim, x.ndim, op)
    return x - p.detach(reduce_max(x, dims, True)), dims, name


@composite(
    samples=_ROWS,
    differs="nn.functional's needs a dim",
    reference=d.reference(shares),
    failures=d.failures(
        ((d.Zeros(2, 3), 5), {}, IndexError, "Dimension out of range"),
        ((d.Zeros(2, dtype="int64"), 0), {}, NotImplementedError, "not implemented for 'Long'"),
    ),
    tests=d.Tests(kinks=lambda np: (np.array([[-np.inf, 0.0], [1e4, -1e4]]), 1)),
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
def _(g: Tensor, y: Tensor, dim: Any) -> Tensor:
    # reads only the result; what follows from the body would read the input, two row values and exp again
    return y * (g - reduce_sum(g * y, normalize_dims(dim, y.ndim, "softmax"), True))


@composite(
    samples=_ROWS,
    reference=d.reference(lambda np, x, dim=None, dtype=None: np.log(shares(np, x, dim, dtype))),
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
def _(g: Tensor, y: Tensor, dim: Any) -> Tensor:
    return g - exp(y) * reduce_sum(g, normalize_dims(dim, y.ndim, "log_softmax"), True)


def first_of_last(
    input: Tensor,
    normalized_shape: Any,
    op: str,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    few: Any = RuntimeError,
) -> int:
    """Where the dims of these sizes begin; PyTorch's error unless they are the input's last and the shape of
    `weight` and `bias`. `few`: the type of error for an input of fewer dims.
    """
    sizes = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not sizes:
        raise RuntimeError(f"{op}: Expected normalized_shape to be at least 1-dimensional, got {sizes}")
    first: int = input.ndim - len(sizes)
    if first < 0:
        raise few(f"Input tensor must have at least {len(sizes)} dimensions, but got {input.ndim}")
    for have, want in zip(input.shape[first:], sizes):
        if want < 0 or (isinstance(have, int) and have != want):
            raise RuntimeError(
                f"Given normalized_shape={list(sizes)}, expected input with shape "
                f"[{', '.join(['*', *map(str, sizes)])}], but got input of size{list(input.shape)}"
            )
        input.graph.require_equal(have, want, op)
    for name, value in (("weight", weight), ("bias", bias)):
        _check_affine(name, value, input, sizes, op)
    return first


def _check_affine(name: str, value: Any, input: Tensor, sizes: tuple[Any, ...], op: str) -> None:
    """PyTorch's error unless a weight or a bias, if there is one, has the sizes of the last dims."""
    if value is None:
        return
    known = [(have, want) for have, want in zip(value.shape, sizes) if isinstance(have, int)]
    if value.ndim != len(sizes) or any(have != want for have, want in known):
        got = f"{value.ndim} dims" if value.ndim != len(sizes) else f"shape {list(value.shape)}"
        raise RuntimeError(
            f"Expected {name} to be of same shape as normalized_shape, but got {name} of {got} and "
            f"normalized_shape = {list(sizes)}"
        )
    for have, want in zip(value.shape, sizes):
        input.graph.require_equal(have, want, op)


def _normalized(
    np: ModuleType, x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
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
    failures=d.failures(
        ((d.Zeros(2, 3), (4,)), {}, RuntimeError, "Given normalized_shape"),
        ((d.Zeros(2, 3), (-1,)), {}, RuntimeError, "Given normalized_shape"),
        ((d.Zeros(), (3,)), {}, RuntimeError, "at least 1 dimensions"),
        ((d.Zeros(2, 3), (3,), d.Zeros(1)), {}, RuntimeError, "Expected weight to be of same shape"),
        ((d.Zeros(2, 3), (3,), None, d.Zeros(2, 3)), {}, RuntimeError, "Expected bias to be of same shape"),
    ),
    tests=d.Tests(rounding=8.0, history="the bias' gradient leads to zeros; PyTorch's leads nowhere"),
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
    first = first_of_last(input, normalized_shape, "layer_norm", weight, bias)
    x, dims = floating(input, "LayerNormKernelImpl"), tuple(range(first, input.ndim))
    count = count_of(x, dims)
    centered = x - reduce_sum(x, dims, True) / count
    scale = rsqrt(reduce_sum(centered * centered, dims, True) / count + eps)
    y = centered * scale
    y = y if weight is None else y * wide(weight)
    return narrow(y if bias is None else y + wide(p.by_steps(bias)), input.dtype)


@public(
    "softmin",
    layer=True,
    method=False,
    samples=d.samples(lambda rng, t: ((d.array(rng, (3, 5), t), 1), {})),
    dtypes="float",
    failures=d.failures(((d.Zeros(2, 3), 5), {}, IndexError, "Dimension out of range")),
)
def softmin(input: Any, dim: int, dtype: Any = None) -> Any:
    """`softmax(-input, dim)`; floats, or converted to `dtype` first. IndexError for a dim out of range.

    >>> kiln.nn.functional.softmin(kiln.tensor([1.0, 1.0]), 0)
    tensor([0.5000, 0.5000])
    """
    return softmax(neg(input), dim, dtype)
