"""Attention, positions by rotation, and attention as a recurrence."""

from __future__ import annotations

import math
from typing import Any

from kiln import _core, ops
from kiln import graph as flow
from kiln.nn import functional as F
from kiln.onnx.reading.operators.table import Array, cast, kind, operator
from kiln.onnx.reading.refusal import LoadError
from kiln.onnx.reading.weights import dtype_of


def _heads(x: Array, count: int | None) -> Array:
    """[batch, time, heads * size] as [batch, heads, time, size]."""
    if x.ndim == 4:
        return x
    if x.ndim != 3 or not count:
        raise LoadError(f"an array of {x.ndim} dims, and {count} heads")
    return x.reshape((x.shape[0], x.shape[1], count, x.shape[2] // count)).permute(0, 2, 1, 3)


def _together(x: Array) -> Array:
    """[batch, heads, time, size] as [batch, time, heads * size]."""
    return x.permute(0, 2, 1, 3).reshape((x.shape[0], x.shape[2], x.shape[1] * x.shape[3]))


def _repeated(x: Array, heads: Any) -> Array:
    """Each head of keys so many times that there are as many as queries have."""
    if x.shape[1] == heads:
        return x
    return ops.repeat_interleave(x, heads // x.shape[1], 1)


def _allowed(
    q: Array, k: Array, is_causal: int, left: int, right: int, past: Any, lengths: Array | None
) -> Any:
    """Which keys each query sees by its place; None: all."""
    rows = ops.arange(q.shape[2]).unsqueeze(1)
    columns = ops.arange(k.shape[2]).unsqueeze(0)
    begins: Any = past
    if lengths is not None:
        begins = lengths.reshape(-1, 1, 1, 1) - q.shape[2]
    ahead = columns - (rows + begins)  # how far a key is behind its query's place, negative: before it
    found = []
    if is_causal:
        found.append(ahead <= 0)
    if left >= 0:
        found.append(ahead >= -left)
    if right >= 0:
        found.append(ahead <= right)
    if lengths is not None:
        found.append(columns < lengths.reshape(-1, 1, 1, 1))
    seen: Any = None
    for one in found:
        seen = one if seen is None else ops.logical_and(seen, one)
    return seen


def _mask(mask: Array, k: Array) -> Array:
    """A mask that is too short, with what it says not of further keys: that they are not seen."""
    more = k.shape[2] - mask.shape[-1]
    if isinstance(more, int) and more == 0:
        return mask
    fill: Any = False if kind(mask) == _core.bool else -math.inf
    return ops.cat([mask, ops.full((*mask.shape[:-1], more), fill, dtype=kind(mask))], -1)


@operator("Attention", since=23)
def _attention(
    q: Array, k: Array, v: Array, mask: Array | None = None, past_key: Array | None = None,
    past_value: Array | None = None, lengths: Array | None = None, *, is_causal: int = 0,
    kv_num_heads: int | None = None, left_window_size: int = -1, q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0, right_window_size: int = -1, scale: float | None = None,
    softcap: float = 0.0, softmax_precision: int | None = None, outputs: int = 1,
) -> Any:  # fmt: skip
    is_flat = q.ndim == 3
    q, k, v = _heads(q, q_num_heads), _heads(k, kv_num_heads), _heads(v, kv_num_heads)
    past: Any = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        k, v = ops.cat([past_key, k], 2), ops.cat([past_value, v], 2)
    windows = left_window_size, right_window_size
    factor = 1 / math.sqrt(q.shape[3]) if not scale else scale
    keys, values = _repeated(k, q.shape[1]), _repeated(v, q.shape[1])
    plain = past_key is None and lengths is None and mask is None and windows == (-1, -1)
    if plain and not softcap and outputs < 4 and softmax_precision is None:
        y = F.scaled_dot_product_attention(q, keys, values, is_causal=bool(is_causal), scale=factor)
        return (_together(y) if is_flat else y), k, v
    seen = _allowed(q, keys, is_causal, *windows, past, lengths)
    root = math.sqrt(factor)
    scores = ops.matmul(q * root, (keys * root).transpose(2, 3))
    shown = {0: scores}
    if softcap > 0:
        scores = softcap * ops.tanh(scores / softcap)
    shown[1] = scores
    bias = ops.zeros((), dtype=kind(q))
    if mask is not None:
        mask = _mask(mask, keys)
        bias = cast(ops.where(mask, 0.0, -math.inf), kind(q)) if kind(mask) == _core.bool else mask
    if seen is not None:
        bias = bias + cast(ops.where(seen, 0.0, -math.inf), kind(q))
    scores = scores + bias
    shown[2] = scores
    weights = _softmax(
        cast(scores, dtype_of(softmax_precision, "its softmax") if softmax_precision else kind(q)), bias
    )
    shown[3] = cast(weights, kind(q))
    y = ops.matmul(shown[3], values)
    if qk_matmul_output_mode not in shown:
        raise LoadError(f"qk_matmul_output_mode is {qk_matmul_output_mode}")
    return (_together(y) if is_flat else y), k, v, shown[qk_matmul_output_mode]


def _softmax(scores: Array, bias: Array) -> Array:
    """Softmax of the last dim; 0 for a query that sees no key."""
    if not bias.ndim:
        return ops.softmax(scores, -1)
    alone = ops.amax(bias, -1, keepdim=True) == -math.inf
    return ops.where(
        alone, ops.zeros_like(scores), ops.softmax(ops.where(alone, ops.zeros_like(scores), scores), -1)
    )


@operator("RotaryEmbedding", since=23)
def _rotary_embedding(x: Array, cosines: Array, sines: Array, places: Array | None = None, *,
                      interleaved: int = 0, num_heads: int = 0,
                      rotary_embedding_dim: int = 0) -> Any:  # fmt: skip
    is_flat = x.ndim == 3
    given = _heads(x, num_heads)
    size = rotary_embedding_dim or given.shape[3]
    turned, rest = given[..., :size], given[..., size:]
    if places is not None:
        at = cast(places, _core.int64).reshape(-1)
        cosines, sines = (
            ops.index_select(t, 0, at).reshape((*places.shape, t.shape[-1])) for t in (cosines, sines)
        )
    cosines, sines = cosines.unsqueeze(1), sines.unsqueeze(1)
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned[..., : size // 2], turned[..., size // 2 :]
    real, imaginary = cosines * first - sines * second, sines * first + cosines * second
    if interleaved:
        made = ops.stack([real, imaginary], -1).reshape(tuple(turned.shape))
    else:
        made = ops.cat([real, imaginary], -1)
    made = ops.cat([made, rest], -1)
    return _together(made) if is_flat else made


@operator("LinearAttention", since=27)
def _linear_attention(
    query: Array, key: Array, value: Array, past: Array | None = None, decay: Array | None = None,
    beta: Array | None = None, *, chunk_size: int = 64, kv_num_heads: int, q_num_heads: int,
    scale: float = 0.0, update_rule: str = "gated_delta",
) -> Any:  # fmt: skip
    rules = {"linear": (0, 0), "gated": (1, 0), "delta": (0, 1), "gated_delta": (1, 1)}
    if update_rule not in rules or rules[update_rule] != (decay is not None, beta is not None):
        raise LoadError(f"update_rule is {update_rule!r:.20}, and its inputs are not as that needs them")
    q, k, v = (
        cast(_heads(x, n), _core.float32)
        for x, n in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads))
    )
    parts = [q, k, v]
    if decay is not None:
        parts.append(cast(_heads(decay, kv_num_heads), _core.float32))
    if beta is not None:
        parts.append(cast(_heads(beta, beta.shape[-1]), _core.float32))
    shape = (k.shape[0], kv_num_heads, k.shape[3], v.shape[3])
    first = ops.zeros(shape) if past is None else cast(past, _core.float32)
    factor = scale or 1 / math.sqrt(k.shape[3])

    def step(state: Array, each: Any) -> Any:
        q, k, v, *more = each
        if decay is not None:
            state = state * ops.exp(more.pop(0)).unsqueeze(-1)
        if beta is not None:
            v = more[0] * (v - ops.matmul(k.unsqueeze(-2), state).squeeze(-2))
        state = state + k.unsqueeze(-1) * v.unsqueeze(-2)
        read = _repeated(state, q_num_heads)
        return state, ops.matmul(q.unsqueeze(-2), read).squeeze(-2) * factor

    last, stacked = flow.scan(step, first, tuple([x.movedim(2, 0) for x in parts]))
    y = cast(_together(stacked.movedim(0, 2)), kind(query))
    return y, cast(last, kind(query) if past is None else kind(past))
