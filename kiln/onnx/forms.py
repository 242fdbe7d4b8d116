"""Forms of ops that are one operator of ONNX, or a few: what has none is written by its kind, or by its body.

A form is given the builder, the node's result and the op's arguments in their order, arrays as values of the
graph and numbers as Python has them, where they are known. It gives the name of the result, or None where
these arguments have no such form.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Any

from kiln.graph.graph import Value
from kiln.graph.size import Size
from kiln.onnx.builder import Builder
from kiln.table.kinds import FLOATS
from kiln.tracing.expand import literal

Form = Callable[..., "str | None"]

FORMS: dict[str, Form] = {}


def form(*names: str) -> Callable[[Form], Form]:
    """Registers the form of some ops."""

    def register(function: Form) -> Form:
        for name in names:
            FORMS[name] = function
        return function

    return register


def applied(builder: Builder, node: Any) -> str | None:
    """What a node's form gives; None where it has none."""
    found = FORMS.get(node.op.name)
    if found is None:
        return None
    known = node.op.known(node.inputs, node.attrs)
    given = [known[p.name] for p in node.op.params]
    return found(builder, node.out, *[literal(x) if isinstance(x, Value) else x for x in given])


def _wide_of(b: Builder, y: Value, input: Value) -> str:
    """An operand in the dtype that the result is computed in."""
    return b.cast(b.of(input), input.dtype, b.wide(y.dtype))


def _operator(b: Builder, y: Value, kind: str, *given: Value | str | None, **attributes: Any) -> str:
    """An operator of operands of the result's dtype, computed in a wide one."""
    names = [_wide_of(b, y, x) if isinstance(x, Value) else x or "" for x in given]
    while names and not names[-1]:
        names.pop()
    return b.cast(b.op(kind, *names, **attributes), b.wide(y.dtype), y.dtype)


def _one(b: Builder, y: Value, value: float) -> str:
    return b.constant(value, b.wide(y.dtype))


# -- products ---------------------------------------------------------------------------------------


@form("linear")
def _linear(b: Builder, y: Value, input: Value, weight: Value, bias: Value | None) -> str | None:
    if y.dtype not in FLOATS or weight.ndim != 2:
        return None
    if input.ndim == 2:
        return _operator(b, y, "Gemm", input, weight, bias, transB=1)
    columns = b.op("Transpose", _wide_of(b, y, weight), perm=[1, 0])
    found = b.op("MatMul", _wide_of(b, y, input), columns)
    if bias is not None:
        found = b.op("Add", found, _wide_of(b, y, bias))
    return b.cast(found, b.wide(y.dtype), y.dtype)


@form("matmul", "mm", "bmm")
def _matmul(b: Builder, y: Value, input: Value, other: Value) -> str | None:
    return _operator(b, y, "MatMul", input, other)


# -- convolutions and pools -------------------------------------------------------------------------


@form("convolve")
def _convolve(
    b: Builder, y: Value, input: Value, weight: Value, bias: Value | None, kernel: Any, stride: Any,
    padding: Any, dilation: Any, groups: Any,
) -> str | None:  # fmt: skip
    if y.dtype not in ("float32", "float16", "bfloat16"):
        return None
    settings = {"strides": stride, "pads": [*padding, *padding], "dilations": dilation, "group": groups[0]}
    return _operator(b, y, "Conv", input, weight, bias, kernel_shape=kernel, **settings)


@form("convolve_input")
def _convolve_input(
    b: Builder, y: Value, input: Value, weight: Value, bias: Value | None, sizes: Any, kernel: Any,
    stride: Any, padding: Any, dilation: Any, groups: Any,
) -> str | None:  # fmt: skip
    more = []
    for d, (k, s, p, r) in enumerate(zip(kernel, stride, padding, dilation)):
        count = input.shape[d - len(kernel)]
        more.append(sizes[d] - ((count - 1) * s - 2 * p + r * (k - 1) + 1))
    if y.dtype not in ("float32", "float16", "bfloat16") or any(
        isinstance(n, Size) or not 0 <= n < s for n, s in zip(more, stride)
    ):
        return None
    settings = {"strides": stride, "pads": [*padding, *padding], "dilations": dilation, "group": groups[0]}
    return _operator(
        b, y, "ConvTranspose", input, weight, bias, kernel_shape=kernel, output_padding=more, **settings
    )


def _pads(input: Value, out: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> list[int] | None:
    """What is padded before and after each dim so that there are so many windows; None if that varies."""
    after = []
    for d, (n, k, s, p, r) in enumerate(zip(out, kernel, stride, padding, dilation)):
        size = input.shape[d - len(kernel)]
        if n == (size + 2 * p - r * (k - 1) - 1) // s + 1:
            after.append(p)
        elif isinstance(n, Size) or isinstance(size, Size):
            return None
        else:
            after.append(max(0, (n - 1) * s + r * (k - 1) + 1 - size - p))
    return [*padding, *after]


@form("pool_max__0")
def _pool_max(
    b: Builder, y: Value, input: Value, out: Any, after: Any, kernel: Any, stride: Any, padding: Any,
    dilation: Any, padded: Any,
) -> str | None:  # fmt: skip
    pads = _pads(input, out, kernel, stride, padding, dilation)
    if pads is None or y.dtype not in FLOATS or input.ndim == len(kernel) + 1:
        return None
    if any(p >= k for p, k in zip(pads, (*kernel, *kernel))):
        return None
    settings = {"strides": stride, "pads": pads, "dilations": dilation}
    return _operator(b, y, "MaxPool", input, kernel_shape=kernel, **settings)


@form("pool_mean")
def _pool_mean(
    b: Builder, y: Value, input: Value, out: Any, after: Any, divisor: Any, kernel: Any, stride: Any,
    padding: Any, padded: Any, count: Any,
) -> str | None:  # fmt: skip
    pads = _pads(input, out, kernel, stride, padding, [1] * len(kernel))
    plain = pads == [*padding, *padding] and input.ndim == len(kernel) + 2
    if not plain or count not in ("window", "present") or y.dtype not in ("float32", "float16", "bfloat16"):
        return None
    includes = int(count == "window")
    return _operator(
        b, y, "AveragePool", input, kernel_shape=kernel, strides=stride, pads=pads, count_include_pad=includes
    )


# -- normalisation and activations ------------------------------------------------------------------


def _ones(b: Builder, y: Value, like: Any, weight: Value | None) -> Value | str:
    """A weight, or ones of its shape."""
    if weight is not None:
        return weight
    return b.op("Expand", _one(b, y, 1.0), b.shape(like))


@form("layer_norm")
def _layer_norm(
    b: Builder,
    y: Value,
    input: Value,
    normalized_shape: Any,
    weight: Value | None,
    bias: Value | None,
    eps: Any,
) -> str | None:
    if not isinstance(eps, float):
        return None
    scale = _ones(b, y, normalized_shape, weight)
    axis = -len(normalized_shape)
    return _operator(b, y, "LayerNormalization", input, scale, bias, axis=axis, epsilon=eps)


@form("normalize_by")
def _normalize_by(
    b: Builder,
    y: Value,
    input: Value,
    mean: Value,
    var: Value,
    weight: Value | None,
    bias: Value | None,
    eps: Any,
) -> str | None:
    if not isinstance(eps, float) or input.ndim < 2:
        return None
    scale, wide = _ones(b, y, [input.shape[1]], weight), b.wide(y.dtype)
    shift: Value | str = b.op("Expand", _one(b, y, 0.0), b.shape([input.shape[1]])) if bias is None else bias
    if mean.dtype != wide or var.dtype != wide:
        return None
    return _operator(b, y, "BatchNormalization", input, scale, shift, mean, var, epsilon=eps)


@form("normalize_by_root")
def _normalize_by_root(
    b: Builder, y: Value, input: Value, normalized_shape: Any, eps: Any, weight: Value | None
) -> str | None:
    if not isinstance(eps, float) or not b.has("RMSNormalization"):
        return None
    scale = _ones(b, y, normalized_shape, weight)
    return _operator(b, y, "RMSNormalization", input, scale, axis=-len(normalized_shape), epsilon=eps)


@form("softmax")
def _softmax(b: Builder, y: Value, input: Value, dim: int, dtype: Any) -> str | None:
    return _operator(b, y, "Softmax", input, axis=dim) if input.ndim else None


@form("log_softmax")
def _log_softmax(b: Builder, y: Value, input: Value, dim: int, dtype: Any) -> str | None:
    return _operator(b, y, "LogSoftmax", input, axis=dim) if input.ndim else None


@form("gelu")
def _gelu(b: Builder, y: Value, input: Value, approximate: str) -> str | None:
    return (
        _operator(b, y, "Gelu", input, approximate=approximate)
        if b.has("Gelu") and y.dtype != "float64"
        else None
    )


@form("silu")
def _silu(b: Builder, y: Value, input: Value) -> str | None:
    x = _wide_of(b, y, input)
    return b.cast(b.op("Mul", x, b.op("Sigmoid", x)), b.wide(y.dtype), y.dtype)


@form("gelu_exact")
def _gelu_exact(b: Builder, y: Value, input: Value) -> str | None:
    if y.dtype == "float64":
        return None
    if b.has("Gelu"):
        return _operator(b, y, "Gelu", input)
    x = _wide_of(b, y, input)
    flank = b.op("Erf", b.op("Mul", x, _one(b, y, 0.5**0.5)))
    half = b.op("Mul", x, _one(b, y, 0.5))
    return b.cast(b.op("Mul", half, b.op("Add", flank, _one(b, y, 1.0))), b.wide(y.dtype), y.dtype)


@form("log1p")
def _log1p(b: Builder, y: Value, input: Value) -> str | None:
    """log(u) * x / (u - 1) with u = 1 + x: the error of the sum cancels (Kahan)."""
    x, one = _wide_of(b, y, input), _one(b, y, 1.0)
    u = b.op("Add", x, one)
    rest = b.op("Sub", u, one)
    same = b.op("Or", b.op("Equal", rest, _one(b, y, 0.0)), b.op("IsInf", u))
    found = b.op("Mul", b.op("Log", u), b.op("Div", x, b.op("Where", same, one, rest)))
    found = b.op("Where", same, x, found)
    return b.cast(found, b.wide(y.dtype), y.dtype)


@form("expm1")
def _expm1(b: Builder, y: Value, input: Value) -> str | None:
    """(u - 1) * x / log(u) with u = exp(x), the same way; -1 and infinity where u is 0 or infinite."""
    x, one = _wide_of(b, y, input), _one(b, y, 1.0)
    u = b.op("Exp", x)
    rest = b.op("Sub", u, one)
    far = b.op("Or", b.op("Equal", u, _one(b, y, 0.0)), b.op("IsInf", u))
    same = b.op("Equal", rest, _one(b, y, 0.0))
    slope = b.op("Log", b.op("Where", b.op("Or", far, same), _one(b, y, 2.0), u))
    found = b.op("Where", far, rest, b.op("Where", same, x, b.op("Mul", rest, b.op("Div", x, slope))))
    return b.cast(found, b.wide(y.dtype), y.dtype)


@form("exp2")
def _exp2(b: Builder, y: Value, input: Value) -> str | None:
    return b.cast(b.op("Pow", _one(b, y, 2.0), _wide_of(b, y, input)), b.wide(y.dtype), y.dtype)


def _logarithm(base: float) -> Form:
    def form_of(b: Builder, y: Value, input: Value) -> str | None:
        found = b.op("Div", b.op("Log", _wide_of(b, y, input)), _one(b, y, log(base)))
        return b.cast(found, b.wide(y.dtype), y.dtype)

    return form_of


FORMS["log2"], FORMS["log10"] = _logarithm(2.0), _logarithm(10.0)


@form("clamp")
def _clamp(b: Builder, y: Value, input: Value, min: Value, max: Value) -> str | None:
    bounds = [b.of(x) if isinstance(x, Value) else b.constant(x, y.dtype) for x in (min, max)]
    if any(isinstance(x, Value) and x.ndim for x in (min, max)) or b.wide(y.dtype) != y.dtype:
        return None
    given = [b.cast(n, x.dtype, y.dtype) if isinstance(x, Value) else n for n, x in zip(bounds, (min, max))]
    return b.op("Clip", b.cast(b.of(input), input.dtype, y.dtype), *given)


@form("fmod")
def _fmod(b: Builder, y: Value, input: Value, other: Value) -> str | None:
    if y.dtype not in ("float32", "float64"):
        return None
    given = [b.cast(b.of(x), x.dtype, y.dtype) for x in (input, other)]
    return b.op("Mod", *given, fmod=1)


# -- sums -------------------------------------------------------------------------------------------


@form("mean")
def _mean(b: Builder, y: Value, input: Value, dim: Any, keepdim: bool, dtype: Any) -> str | None:
    dims = (
        list(range(input.ndim)) if dim is None or dim == () else [dim] if isinstance(dim, int) else list(dim)
    )
    axes = b.constant(dims)
    return _operator(b, y, "ReduceMean", input, axes, keepdims=int(keepdim), noop_with_empty_axes=1)


# -- places -----------------------------------------------------------------------------------------


@form("embedding")
def _embedding(b: Builder, y: Value, input: Value, weight: Value) -> str | None:
    return b.op("Gather", b.of(weight), b.of(input), axis=0)


@form("index_select", "rows_at")
def _rows(b: Builder, y: Value, input: Value, dim: int, index: Value) -> str | None:
    return b.op("Gather", b.of(input), b.of(index), axis=dim) if index.ndim == 1 and input.ndim else None


@form("select")
def _select(b: Builder, y: Value, input: Value, dim: int, place: Any) -> str | None:
    return b.op("Gather", b.of(input), b.scalar_size(place[0]), axis=dim)


# -- attention --------------------------------------------------------------------------------------


@form("attend")
def _attend(
    b: Builder, y: Value, query: Value, key: Value, value: Value, scale: Any, p: Any, position: Any,
    seed: Any, mask: Value | None, causal: bool, drops: bool,
) -> str | None:  # fmt: skip
    """(N, L, H, R, E) queries, R of them by a head of keys and values (N, S, H, E)."""
    if (
        not b.has("Attention")
        or drops
        or not isinstance(scale, float)
        or mask is not None
        or y.dtype == "float64"
    ):
        return None
    n, length, h, r, e = query.shape
    q, k, v = (_wide_of(b, y, x) for x in (query, key, value))
    q = b.reshape(b.op("Transpose", q, perm=[0, 2, 3, 1, 4]), [n, h * r, length, e])
    k, v = (b.op("Transpose", x, perm=[0, 2, 1, 3]) for x in (k, v))
    found = b.op("Attention", q, k, v, is_causal=int(causal), scale=scale)
    found = b.reshape(found, [n, h, r, length, value.shape[3]])
    return b.cast(b.op("Transpose", found, perm=[0, 3, 1, 2, 4]), b.wide(y.dtype), y.dtype)
