"""scaled_dot_product_attention: what its arguments mean and what is wrong with them."""

from __future__ import annotations

import math
from contextvars import ContextVar
from typing import Any

from kiln._core import Tensor
from kiln.errors import describe, message
from kiln.graph.graph import Value
from kiln.graph.size import Size
from kiln.ops.elementwise.elementary import rsqrt
from kiln.ops.nn.attention.primitives import attend, attend_written, reference_shares
from kiln.ops.random.generator import reserve
from kiln.ops.views.core_views import expand, permute, reshape
from kiln.table import drawn as d
from kiln.table import kinds
from kiln.table.arguments import dtype_name, number, numel, type_name
from kiln.table.callables import draws
from kiln.table.public import public
from kiln.table.record import Sample

_NAME = "scaled_dot_product_attention"
FUSED = ContextVar("fused", default=True)  # else all scores are in memory: kiln.nn.attention.sdpa_kernel


def _fail(text: str) -> None:
    raise RuntimeError(f"{_NAME}: {text}")


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype")


def _check(query: Any, key: Any, value: Any, mask: Any) -> None:
    """What PyTorch asks of dims and dtypes."""
    named = {"query": query, "key": key, "value": value}
    for name, x in named.items():
        if not _is_array(x):
            raise TypeError(message(_NAME, f"argument '{name}' to be a Tensor", describe(x)))
    if min(query.ndim, key.ndim, value.ndim) < 2:
        shown = " and ".join(f"{name}.dim: {x.ndim}" for name, x in named.items())
        _fail(f"Expected query, key, and value to all be at least 2 dimensional, but got {shown}")
    dtype = dtype_name(query.dtype)
    if not dtype == dtype_name(key.dtype) == dtype_name(value.dtype):
        shown = ", ".join(f"{name}.dtype: {dtype_name(x.dtype)}" for name, x in named.items())
        _fail(f"Expected query, key, and value to have the same dtype, but got {shown}")
    if dtype not in kinds.FLOATS:
        _fail(f"expected scalar type Float but found {type_name(dtype)}: attention is of floats")
    if mask is None:
        return
    if not _is_array(mask):
        raise TypeError(message(_NAME, "argument 'attn_mask' to be a Tensor", describe(mask)))
    have = dtype_name(mask.dtype)
    if have not in ("bool", "float32", dtype):
        _fail(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: "
            f"{have} and query.dtype: {dtype}"
        )
    if mask.ndim < 2 and query.ndim == 4:
        raise IndexError(
            f"{_NAME}: Dimension out of range: attn_mask is (..., L, S), but has {mask.ndim} dims"
        )


def _joint(shapes: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """What leading dims broadcast to."""
    ndim = max(map(len, shapes))
    found: list[Any] = [1] * ndim
    for shape in shapes:
        for place, size in enumerate(shape, ndim - len(shape)):
            if isinstance(size, int) and size == 1:
                continue
            have = found[place]
            if isinstance(have, int) and isinstance(size, int) and have not in (1, size):
                _fail(
                    f"The size of tensor a ({have}) must match the size of tensor b ({size}) at "
                    f"non-singleton dimension {place}"
                )
            found[place] = size
    return tuple(found)


def _grouped(query: Any, key: Any, value: Any, enable_gqa: bool) -> Any:
    """The queries of a head: how many of query's heads share one of key's and value's."""
    if not enable_gqa:
        return 1
    if min(x.ndim for x in (query, key, value)) < 3:
        raise IndexError(f"{_NAME}: Dimension out of range: enable_gqa needs a dim of heads, the third last")
    heads, mine, other = (x.shape[-3] for x in (query, key, value))
    if 0 in (mine, other) or heads % mine or heads % other:
        _fail(
            "Number of heads in key and value must divide the number of heads in query, but got query "
            f"{heads}, key {mine}, value {other}"
        )
    return heads // mine if mine == other else 1


def _repeated(x: Any, heads: Any) -> Any:
    """x with each of its heads repeated, so that there are `heads`."""
    *lead, mine, length, size = x.shape
    one = reshape.handle(x, (*lead, mine, 1, length, size))
    return reshape.handle(
        expand.handle(one, (*lead, mine, heads // mine, length, size)), (*lead, heads, length, size)
    )


def _same(shape: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two shapes are equal; a size that varies is no number, whatever it may be at a call."""
    pairs = zip(shape, other)
    return len(shape) == len(other) and all(
        isinstance(a, int) == isinstance(b, int) and a == b for a, b in pairs
    )


def _flat(x: Any, lead: tuple[Any, ...], last: tuple[Any, ...], heads: tuple[Any, ...]) -> Any:
    """x as [n, *heads, *last]: the leading dims before the heads are one."""
    shape, whole = tuple(x.shape), (*lead, *last)
    if not _same(shape, whole):
        x = expand.handle(x, whole)
    sizes = (numel(lead[:-1]), *heads, *last)
    return x if _same(whole, sizes) else reshape.handle(x, sizes)


def _operands(
    query: Any, key: Any, value: Any, mask: Any, members: Any
) -> tuple[Any, Any, Any, Any, tuple[Any, ...]]:
    """The arrays as `attend` takes them, and the leading dims of the result."""
    first, *others = (tuple(x.shape[:-2]) for x in (query, key, value))
    if members != 1:
        first = (*first[:-1], others[0][-1])
    lead = first if first and first == others[0] == others[1] else _joint([first, *others]) or (1,)
    heads = lead[-1]
    rows, width = tuple(query.shape[-2:]), tuple(value.shape[-2:])
    own = (*lead[:-1], heads * members)
    q = permute.handle(_flat(query, own, rows, (heads, members)), (0, 3, 1, 2, 4))
    k, v = (permute.handle(_flat(x, lead, tuple(x.shape[-2:]), (heads,)), (0, 2, 1, 3)) for x in (key, value))
    if mask is not None:
        mask = _flat(mask, own, (rows[0], width[0]), (heads, members))
    return q, k, v, mask, own


def _sizes(query: Any, key: Any, value: Any, mask: Any) -> None:
    """RuntimeError for sizes that do not fit."""

    def differ(a: Any, b: Any) -> bool:
        return isinstance(a, int) and isinstance(b, int) and a != b

    (length, e), (keys, inner), values = query.shape[-2:], key.shape[-2:], value.shape[-2]
    if differ(e, inner):
        _fail(f"mat1 and mat2 shapes cannot be multiplied: query has {e} elements a row, key {inner}")
    if differ(keys, values):
        _fail(f"key has {keys} rows, value has {values}: the size must match")
    for have, want, place in zip(mask.shape[-2:] if mask is not None else (), (length, keys), (-2, -1)):
        if differ(have, want) and have != 1:
            _fail(
                f"The size of tensor a ({want}) must match the size of tensor b ({have}) at non-singleton "
                f"dimension {place}: attn_mask is (..., L, S)"
            )


def _usual(query: Any, key: Any, value: Any) -> bool:
    """Whether all is [n, h, rows, elements] of sizes that fit: then nothing has to be looked at."""
    if not type(query) is type(key) is type(value) is Tensor or not query.ndim == key.ndim == value.ndim == 4:
        return False
    (n, h, _, e), (n_k, h_k, s, e_k), (n_v, h_v, s_v, _) = query.shape, key.shape, value.shape
    sizes = n == n_k == n_v and h == h_k == h_v and e == e_k and s == s_v
    dtype = query.dtype
    return sizes and dtype.is_floating_point and dtype is key.dtype and dtype is value.dtype


def _samples(rng: Any, t: str) -> list[Sample]:
    """With every argument; arrays of 2 and 4 dims."""

    def three(*shapes: tuple[int, ...]) -> tuple[Any, ...]:
        return tuple(d.array(rng, shape, t, -1, 1) for shape in shapes)

    return [
        Sample((*three((2, 4, 3, 4), (2, 2, 6, 4), (2, 2, 6, 3)),), {"enable_gqa": True, "scale": 0.3}),
        Sample((*three((3, 4), (5, 4), (5, 2)), d.array(rng, (3, 5), t, -1, 1))),
        Sample(three(*((2, 3, 3, 2),) * 3), {"is_causal": True}),
    ]


def _reference(
    np: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: Any = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    if enable_gqa:
        key, value = (np.repeat(x, query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    x = query @ np.swapaxes(key, -1, -2) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    return (reference_shares(np, x, attn_mask, is_causal) @ value).astype(query.dtype)


@public(
    _NAME,
    method=False,
    layer=True,
    samples=_samples,
    reference=d.reference(_reference),
    dtypes="float32 bfloat16",
    failures=d.failures(
        ((d.Zeros(3), d.Zeros(2, 3), d.Zeros(2, 3)), {}, RuntimeError, "at least 2 dimensional"),
        ((d.Zeros(2, 3), d.Zeros(2, 3), d.Zeros(2, 3, dtype="float64")), {}, RuntimeError, "same dtype"),
        ((d.Zeros(2, 3), d.Zeros(2, 4), d.Zeros(2, 3)), {}, RuntimeError, "cannot be multiplied"),
        ((d.Zeros(2, 3),) * 3, {"dropout_p": 1.5}, RuntimeError, "dropout probability"),
        ((d.Zeros(2, 3),) * 4, {}, RuntimeError, "must match the size"),
    ),
)  # fmt: skip
@draws
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(query @ key^T * scale + attn_mask) @ value, without a matrix of all scores in memory.

    `query` (..., L, E), `key` (..., S, E), `value` (..., S, V) of one float dtype, leading dims broadcast. A
    bool `attn_mask` (..., L, S) says which keys are looked at, another is added; `is_causal`: a query looks
    at keys up to its own position. A query that looks at no key gives zeros. `scale` is 1 / sqrt(E). With
    `enable_gqa` several heads of `query` share one of `key` and `value` (the third last dim). RuntimeError
    for sizes, dtypes or a `dropout_p` that do not fit.

    >>> kiln.nn.functional.scaled_dot_product_attention(
    ...     kiln.zeros(1, 2), kiln.zeros(2, 2), kiln.tensor([[1.0, 0.0], [0.0, 1.0]])
    ... )
    tensor([[0.5000, 0.5000]])
    """
    if not 0 <= dropout_p <= 1:
        raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {dropout_p}")
    if attn_mask is None and not enable_gqa and _usual(query, key, value):
        n, h, length, e = query.shape
        q = permute.handle(reshape.handle(query, (n, h, 1, length, e)), (0, 3, 1, 2, 4))
        k, v = (permute.handle(x, (0, 2, 1, 3)) for x in (key, value))
        mask, lead = None, (n, h)
    else:
        _check(query, key, value, attn_mask)
        if attn_mask is not None and query.ndim != 4:
            if is_causal:
                _fail("Explicit attn_mask should not be set when is_causal=True")
            if attn_mask.ndim < 2:
                attn_mask = reshape.handle(attn_mask, (1, attn_mask.shape[0] if attn_mask.ndim else 1))
        _sizes(query, key, value, attn_mask)
        members = _grouped(query, key, value, enable_gqa)
        if enable_gqa and key.shape[-3] != value.shape[-3]:
            key, value = (_repeated(x, query.shape[-3]) for x in (key, value))
        q, k, v, mask, lead = _operands(query, key, value, attn_mask, members)
        e = q.shape[4]
    if scale is None and isinstance(q, Value) and not isinstance(e, int):
        q, scale = q * rsqrt(number(q, e)), 1.0
    elif scale is None:
        scale = 1 / math.sqrt(e) if e else 1.0
    causal = bool(is_causal)
    drops, numbers = dropout_p > 0, (0.0, 0, 0)
    if drops:
        n, length, heads, r, _ = q.shape
        numbers = (float(dropout_p), *reserve((n, heads, r, length, k.shape[1]), None))
    alone = _same((q.shape[1], q.shape[3]), (1, 1))  # one query is two products of one row: the same bits
    plain = not drops or all(issubclass(type(x), (Tensor, Value, Size, int)) for x in (q, k, v, numbers[1]))
    operands = (q, k, v, float(scale), *numbers, mask, causal, drops)
    if FUSED.get() and plain and not alone:  # what is mapped draws by samples
        out = attend.handle(*operands)
    else:
        out = attend_written.handle(*operands, dtype_name(q.dtype) == "bfloat16")
    out = permute.handle(out, (0, 2, 3, 1, 4))
    shape = (*(lead if max(x.ndim for x in (query, key, value)) > 2 else ()), *out.shape[3:])
    return out if _same(tuple(out.shape), shape) else reshape.handle(out, shape)
