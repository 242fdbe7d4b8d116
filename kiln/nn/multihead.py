"""Attention of several heads: the function, and the layer that holds its weights.

query (L, N, E) -> (N, heads, L, E / heads)      key and value likewise, of S positions: views of one
product
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kiln import ops
from kiln._core import Size, Tensor
from kiln.errors import warn
from kiln.nn import init
from kiln.nn.dropouts import dropout
from kiln.nn.layers import Linear
from kiln.nn.module import Module
from kiln.nn.parameter import Parameter
from kiln.table.callables import draws

if TYPE_CHECKING:
    from kiln._typed.words import Device, DType


def _weights(query: Any, key: Any, mask: Any, dropout_p: float) -> Any:
    """What share of each value a query takes: (N, H, L, S)."""
    scores = (query * math.sqrt(1.0 / query.shape[-1])) @ key.transpose(-2, -1)
    shares = ops.softmax(scores if mask is None else scores + mask, -1)
    return dropout(shares, dropout_p) if dropout_p else shares


def added_mask(mask: Any, name: str, dtype: DType | None) -> Any:
    """A mask as what is added to scores: of bools, True is minus infinity. AssertionError for integers."""
    if mask is None or mask.dtype.is_floating_point:
        return mask
    if mask.dtype.name != "bool":
        raise AssertionError(f"only bool and floating types of {name} are supported")
    return ops.zeros(tuple(mask.shape), dtype=dtype).masked_fill(mask, -math.inf)


# Errors, in PyTorch's words


def _require(holds: bool, message: str, error: type[Exception] = AssertionError) -> None:
    if not holds:
        raise error(message)


def _check_dims(query: Any, key: Any, value: Any, padding: Any, mask: Any, heads: int) -> bool:
    """Whether there is a batch; AssertionError for arrays of other numbers of dims."""
    _require(
        query.ndim in (2, 3),
        f"query should be unbatched 2D or batched 3D tensor but received {query.ndim}-D query tensor",
    )
    batched: bool = query.ndim == 3
    of = f"For {'batched (3-D)' if batched else 'unbatched (2-D)'} `query`, expected"
    _require(
        key.ndim == value.ndim == query.ndim,
        f"{of} `key` and `value` to be {query.ndim}-D but found {key.ndim}-D and {value.ndim}-D tensors "
        "respectively",
    )
    if padding is not None:
        _require(
            padding.ndim == query.ndim - 1,
            f"{of} `key_padding_mask` to be `None` or {query.ndim - 1}-D but found {padding.ndim}-D tensor "
            "instead",
        )
    if mask is not None:
        _require(
            mask.ndim in (2, 3),
            f"{of} `attn_mask` to be `None`, 2-D or 3-D but found {mask.ndim}-D tensor instead",
        )
        wanted = (heads, query.shape[0], key.shape[0])
        _require(
            batched or mask.ndim == 2 or tuple(mask.shape) == wanted,
            f"Expected `attn_mask` shape to be {wanted} but got {mask.shape}",
        )
    return batched


def _check_sizes(query: Any, key: Any, value: Any, mask: Any, heads: int, width: int, separate: bool) -> None:
    """AssertionError, RuntimeError for sizes that do not fit."""
    length, batch, found = query.shape
    _require(found == width, f"was expecting embedding dimension of {width}, but got {found}")
    _require(width % heads == 0, f"embed_dim {width} not divisible by num_heads {heads}")
    if separate:
        first, second = Size(key.shape[:2]), Size(value.shape[:2])
        _require(first == second, f"key's sequence and batch dims {first} do not match value's {second}")
    else:
        _require(key.shape == value.shape, f"key shape {key.shape} does not match value shape {value.shape}")
    if mask is not None:
        wanted = (length, key.shape[0]) if mask.ndim == 2 else (batch * heads, length, key.shape[0])
        _require(
            tuple(mask.shape) == wanted,
            f"The shape of the {mask.ndim}D attn_mask is {mask.shape}, but should be {wanted}.",
            RuntimeError,
        )


# The function


def _projected(query: Any, key: Any, value: Any, weight: Any, bias: Any, own: tuple[Any, ...]) -> Any:
    """query, key and value through their weights; in one product where they are one array."""
    if own:
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        return [ops.linear(x, w, b) for x, w, b in zip((query, key, value), own, biases)]
    width = query.shape[-1]
    if key is value and query is key:
        return ops.linear(query, weight, bias).chunk(3, -1)
    cuts = [width, 2 * width] if key is value else [width] * 3
    weights = weight.split(cuts)
    biases = (None,) * len(cuts) if bias is None else bias.split(cuts)
    q, *rest = [ops.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases)]
    return (q, *(rest[0].chunk(2, -1) if key is value else rest))


def _by_head(x: Any, heads: int) -> Any:
    """(S, N, E) -> (N, heads, S, E / heads), a view."""
    length, batch, width = x.shape
    return x.reshape(length, batch, heads, width // heads).permute(1, 2, 0, 3)


def _longer(x: Any, more: Any, dim: int) -> Any:
    """x with one position more."""
    return x if x is None else ops.cat([x, more], dim)


def _merged(mask: Any, padding: Any, batch: int, heads: int, length: int, more: int) -> Any:
    """The two masks as one that broadcasts to (N, heads, L, S): `more` positions at the end are open."""
    if mask is not None:
        lead = (1, 1) if mask.ndim == 2 else (batch, heads)
        mask = mask.reshape(*lead, length, mask.shape[-1])
    if padding is not None:
        padding = padding.reshape(batch, 1, 1, padding.shape[-1])
        mask = padding if mask is None else mask + padding
    if mask is None or not more:
        return mask
    return ops.cat([mask, ops.zeros((*mask.shape[:-1], more), dtype=mask.dtype)], -1)


@draws
def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The function of `nn.MultiheadAttention`: query (L, N, E), key and value (S, N, E) -> (L, N, E), and the
    weights (N, L, S), by head where they are not averaged.

    AssertionError, RuntimeError for arrays that do not fit.
    """
    batched = _check_dims(query, key, value, key_padding_mask, attn_mask, num_heads)
    if not batched:
        same, alike = query is key, key is value
        query = query.unsqueeze(1)
        key = query if same else key.unsqueeze(1)
        value = key if alike else value.unsqueeze(1)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    _require(
        not is_causal or attn_mask is not None,
        "Need attn_mask if specifying the is_causal hint. You may use the Transformer module method "
        "`generate_square_subsequent_mask` to create this mask.",
        RuntimeError,
    )
    if key_padding_mask is not None and attn_mask is not None and key_padding_mask.dtype != attn_mask.dtype:
        warn(
            "Support for mismatched key_padding_mask and attn_mask is deprecated. Use same type for both "
            "instead."
        )
    padding = added_mask(key_padding_mask, "key_padding_mask", query.dtype)
    causal = is_causal and padding is None and not need_weights  # a hint: else the mask says the same
    mask = None if causal else added_mask(attn_mask, "attn_mask", query.dtype)
    _check_sizes(query, key, value, mask, num_heads, embed_dim_to_check, use_separate_proj_weight)
    length, batch, width = query.shape
    own = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else ()
    q, k, v = _projected(query, key, value, in_proj_weight, in_proj_bias, own)
    if padding is not None:
        for dim, size in enumerate((batch, key.shape[0])):
            found = padding.shape[dim]
            _require(found == size, f"Expected key_padded_mask.shape[{dim}] to be {size}, but got {found}")
    more = 0
    if bias_k is not None and bias_v is not None:
        k, v = (_longer(x, b.expand(1, batch, width), 0) for x, b in ((k, bias_k), (v, bias_v)))
        more += 1
    q = _by_head(q, num_heads)
    k = _by_head(k, num_heads) if static_k is None else static_k.reshape(batch, num_heads, -1, q.shape[3])
    v = _by_head(v, num_heads) if static_v is None else static_v.reshape(batch, num_heads, -1, q.shape[3])
    if add_zero_attn:
        zeros = ops.zeros(batch, num_heads, 1, q.shape[3], dtype=q.dtype)
        k, v = _longer(k, zeros, 2), _longer(v, zeros, 2)
        more += 1
    mask = _merged(mask, padding, batch, num_heads, length, more)
    share = dropout_p if training else 0.0
    weights = _weights(q, k, mask, share) if need_weights else None
    y = ops.scaled_dot_product_attention(q, k, v, mask, share, causal) if weights is None else weights @ v
    y = ops.linear(y.permute(2, 0, 1, 3).reshape(length, batch, width), out_proj_weight, out_proj_bias)
    if weights is not None and average_attn_weights:
        weights = weights.mean(1)
    if batched:
        return y, weights
    return y.squeeze(1), None if weights is None else weights.squeeze(0)


# The layer


class NonDynamicallyQuantizableLinear(Linear):
    """`Linear` by the name that PyTorch prints for this one."""


class MultiheadAttention(Module):
    """Attention of `num_heads` heads: query (L, N, E), key (S, N, kdim), value (S, N, vdim) -> (L, N, E), and
    the weights averaged over heads (N, L, S), or None without `need_weights`.

    With `batch_first` (N, L, E); or without N. A mask of bools says what is not looked at, another is added
    to the scores: `key_padding_mask` (N, S), `attn_mask` (L, S) or (N * heads, L, S); `is_causal` is a hint
    that `attn_mask` is the causal one.

    >>> import kiln
    >>> x = kiln.zeros(5, 2, 4)
    >>> y, weights = kiln.nn.MultiheadAttention(4, 2)(x, x, x)
    >>> y.shape, weights.shape
    (kiln.Size([5, 2, 4]), kiln.Size([2, 5, 5]))
    """

    bias_k: Any
    bias_v: Any
    in_proj_weight: Any
    in_proj_bias: Any
    q_proj_weight: Any
    k_proj_weight: Any
    v_proj_weight: Any

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Device | None = None,
        dtype: DType | None = None,
    ) -> None:
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(
                f"embed_dim and num_heads must be greater than 0, got embed_dim={embed_dim} and "
                f"num_heads={num_heads} instead"
            )
        super().__init__()
        self.embed_dim = embed_dim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self._qkv_same_embed_dim = self.kdim == self.vdim == embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.head_dim = embed_dim // num_heads
        _require(self.head_dim * num_heads == embed_dim, "embed_dim must be divisible by num_heads")
        same = self._qkv_same_embed_dim
        shapes: dict[str, tuple[int, ...] | None] = {
            "in_proj_weight": (3 * embed_dim, embed_dim) if same else None,
            "q_proj_weight": None if same else (embed_dim, embed_dim),
            "k_proj_weight": None if same else (embed_dim, self.kdim),
            "v_proj_weight": None if same else (embed_dim, self.vdim),
            "in_proj_bias": (3 * embed_dim,) if bias else None,
            "bias_k": (1, 1, embed_dim) if add_bias_kv else None,
            "bias_v": (1, 1, embed_dim) if add_bias_kv else None,
        }
        for name, shape in shapes.items():
            made = None if shape is None else Parameter(ops.empty(*shape, device=device, dtype=dtype))
            self.register_parameter(name, made)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias, device, dtype)
        self.add_zero_attn = add_zero_attn
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None and self.out_proj.bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                init.xavier_normal_(bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        swapped = self.batch_first and query.ndim == 3
        if swapped:  # what is one array stays one
            once = {id(x): x.transpose(0, 1) for x in (query, key, value)}
            query, key, value = (once[id(x)] for x in (query, key, value))
        y, weights = multi_head_attention_forward(
            query, key, value, self.embed_dim, self.num_heads, self.in_proj_weight, self.in_proj_bias,
            self.bias_k, self.bias_v, self.add_zero_attn, self.dropout, self.out_proj.weight,
            self.out_proj.bias, self.training, key_padding_mask, need_weights, attn_mask,
            not self._qkv_same_embed_dim, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight,
            average_attn_weights=average_attn_weights, is_causal=is_causal,
        )  # fmt: skip
        return y.transpose(0, 1) if swapped else y, weights

    def merge_masks(
        self, attn_mask: Tensor | None, key_padding_mask: Tensor | None, query: Tensor
    ) -> tuple[Tensor | None, int | None]:
        """Both masks as one (N, heads, L, L), and what it is: 1 padding alone, 2 both; (None, None) of
        none.
        """
        if attn_mask is None:
            return key_padding_mask, None if key_padding_mask is None else 1
        batch, length = query.shape[0], query.shape[1]
        shape = (batch, -1, length, length) if attn_mask.ndim == 3 else (1, 1, length, length)
        merged = attn_mask.view(*shape).expand(batch, self.num_heads, length, length)
        if key_padding_mask is not None:
            merged = merged + key_padding_mask.view(batch, 1, 1, length)
        return merged, 2
