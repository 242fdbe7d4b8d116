"""The transformer's layers and stacks of them, encoder, decoder and both."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Union

from kiln import ops
from kiln._core import Tensor
from kiln.nn import functional, init
from kiln.nn.containers import ModuleList
from kiln.nn.dropouts import Dropout
from kiln.nn.layers import Linear
from kiln.nn.module import Module
from kiln.nn.multihead import MultiheadAttention
from kiln.nn.normalisations import LayerNorm
from kiln.table.arguments import MOST_STEPS, expect_count

if TYPE_CHECKING:
    from kiln._typed.words import Device, DType

Activation = Union[str, Callable[[Tensor], Tensor]]


def _activation(activation: Activation) -> Callable[[Tensor], Tensor]:
    """The function of a name. RuntimeError for others."""
    if not isinstance(activation, str):
        return activation
    if activation not in ("relu", "gelu"):
        raise RuntimeError(f"activation should be relu/gelu, not {activation}")
    found: Callable[[Tensor], Tensor] = getattr(functional, activation)
    return found


class TransformerEncoderLayer(Module):
    """Self-attention and two linear layers, each added to its input and normalised: (S, N, E) -> (S, N, E).

    Normalised before with `norm_first`; with `batch_first` (N, S, E). Masks as in `MultiheadAttention`.

    >>> import kiln
    >>> kiln.nn.TransformerEncoderLayer(d_model=8, nhead=2)(kiln.zeros(5, 2, 8)).shape
    kiln.Size([5, 2, 8])
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = functional.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Device | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, batch_first=batch_first, **made)
        self.linear1 = Linear(d_model, dim_feedforward, **made)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, **made)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, layer_norm_eps, **made)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, **made)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        self.activation = _activation(activation)

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        def attended(x: Tensor) -> Tensor:
            y, _ = self.self_attn(
                x, x, x, src_key_padding_mask, need_weights=False, attn_mask=src_mask, is_causal=is_causal
            )
            found: Tensor = self.dropout1(y)
            return found

        if self.norm_first:
            x: Tensor = src + attended(self.norm1(src))
            return x + self._fed(self.norm2(x))
        x = self.norm1(src + attended(src))
        y: Tensor = self.norm2(x + self._fed(x))
        return y

    def _fed(self, x: Tensor) -> Tensor:
        y: Tensor = self.dropout2(self.linear2(self.dropout(self.activation(self.linear1(x)))))
        return y


class TransformerDecoderLayer(Module):
    """Self-attention, attention to `memory` (S, N, E) and two linear layers, each added to its input and
    normalised: (T, N, E) -> (T, N, E).

    Normalised before with `norm_first`; with `batch_first` (N, T, E). Masks as in `MultiheadAttention`.

    >>> import kiln
    >>> kiln.nn.TransformerDecoderLayer(d_model=8, nhead=2)(kiln.zeros(3, 2, 8), kiln.zeros(5, 2, 8)).shape
    kiln.Size([3, 2, 8])
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = functional.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Device | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, batch_first=batch_first, **made)
        self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, batch_first=batch_first, **made)
        self.linear1 = Linear(d_model, dim_feedforward, **made)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, **made)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, layer_norm_eps, **made)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, **made)
        self.norm3 = LayerNorm(d_model, layer_norm_eps, **made)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        self.dropout3 = Dropout(dropout)
        self.activation = _activation(activation)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        def attended(x: Tensor) -> Tensor:
            y, _ = self.self_attn(
                x, x, x, tgt_key_padding_mask, need_weights=False, attn_mask=tgt_mask, is_causal=tgt_is_causal
            )
            found: Tensor = self.dropout1(y)
            return found

        def remembered(x: Tensor) -> Tensor:
            y, _ = self.multihead_attn(
                x, memory, memory, memory_key_padding_mask, need_weights=False, attn_mask=memory_mask,
                is_causal=memory_is_causal,
            )  # fmt: skip
            found: Tensor = self.dropout2(y)
            return found

        if self.norm_first:
            x: Tensor = tgt + attended(self.norm1(tgt))
            x = x + remembered(self.norm2(x))
            return x + self._fed(self.norm3(x))
        x = self.norm1(tgt + attended(tgt))
        x = self.norm2(x + remembered(x))
        y: Tensor = self.norm3(x + self._fed(x))
        return y

    def _fed(self, x: Tensor) -> Tensor:
        y: Tensor = self.dropout3(self.linear2(self.dropout(self.activation(self.linear1(x)))))
        return y


def _copies(layer: Module, count: int) -> ModuleList:
    expect_count("Transformer", count, "layers", MOST_STEPS)
    return ModuleList([copy.deepcopy(layer) for _ in range(count)])


class TransformerEncoder(Module):
    """`num_layers` copies of a layer one after the other, and `norm` last if there is one.

    Padded positions have results like all others (PyTorch has zeros there in some inference). `is_causal` is
    a hint that `mask` is the causal one; `enable_nested_tensor` and `mask_check` are taken and do nothing.

    >>> import kiln
    >>> layer = kiln.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> kiln.nn.TransformerEncoder(layer, num_layers=2)(kiln.zeros(2, 5, 8)).shape
    kiln.Size([2, 5, 8])
    """

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        self.layers = _copies(encoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm
        self.enable_nested_tensor = enable_nested_tensor
        self.mask_check = mask_check

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        for layer in self.layers:
            src = layer(
                src, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal)
            )
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """`num_layers` copies of a layer one after the other, all beside `memory`, and `norm` last if there is
    one.

    >>> import kiln
    >>> layer = kiln.nn.TransformerDecoderLayer(8, 2)
    >>> kiln.nn.TransformerDecoder(layer, num_layers=2)(kiln.zeros(3, 2, 8), kiln.zeros(5, 2, 8)).shape
    kiln.Size([3, 2, 8])
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = _copies(decoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        for layer in self.layers:
            tgt = layer(
                tgt,
                memory,
                tgt_mask=tgt_mask,
                memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
                tgt_is_causal=bool(tgt_is_causal),
                memory_is_causal=memory_is_causal,
            )
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """An encoder of `src` (S, N, E) and a decoder of `tgt` (T, N, E) that looks at what it gives -> (T, N,
    E).

    With `batch_first` (N, S, E). Matrices start as Xavier's uniform ones. RuntimeError for sizes that do not
    fit.

    >>> import kiln
    >>> net = kiln.nn.Transformer(8, 2, num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=16)
    >>> net(kiln.zeros(5, 2, 8), kiln.zeros(3, 2, 8)).shape
    kiln.Size([3, 2, 8])
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = functional.relu,
        custom_encoder: Any = None,
        custom_decoder: Any = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Device | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        settings = (
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            batch_first,
            norm_first,
        )
        if custom_encoder is None:
            layer = TransformerEncoderLayer(*settings, **made)
            norm = LayerNorm(d_model, layer_norm_eps, **made)
            custom_encoder = TransformerEncoder(layer, num_encoder_layers, norm)
        self.encoder = custom_encoder
        if custom_decoder is None:
            other = TransformerDecoderLayer(*settings, **made)
            norm = LayerNorm(d_model, layer_norm_eps, **made)
            custom_decoder = TransformerDecoder(other, num_decoder_layers, norm)
        self.decoder = custom_decoder
        self._reset_parameters()
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first

    def _reset_parameters(self) -> None:
        for p in self.parameters():
            if p.ndim > 1:
                init.xavier_uniform_(p)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        batch = 0 if self.batch_first else 1
        if src.ndim == 3 and src.shape[batch] != tgt.shape[batch]:
            raise RuntimeError("the batch number of src and tgt must be equal")
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise RuntimeError("the feature number of src and tgt must be equal to d_model")
        memory = self.encoder(
            src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal
        )
        y: Tensor = self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )
        return y

    @staticmethod
    def generate_square_subsequent_mask(
        sz: int, device: Device | None = None, dtype: DType | None = None
    ) -> Tensor:
        """What hides later positions when it is added: (sz, sz), minus infinity above the diagonal, else
        0.
        """
        mask: Tensor = ops.triu(ops.full((sz, sz), float("-inf"), dtype=dtype, device=device), 1)
        return mask
