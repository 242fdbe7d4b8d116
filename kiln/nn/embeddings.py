"""Layers that look up rows of a table: one for each integer, or one for each bag of integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from kiln import ops
from kiln._core import Tensor
from kiln.errors import message
from kiln.nn import functional, init
from kiln.nn.module import Module
from kiln.nn.parameter import Parameter

if TYPE_CHECKING:
    from kiln._typed.words import Device, DType

_Layer = TypeVar("_Layer", bound="_Table")


class _Table(Module):
    """A table of `num_embeddings` rows of `embedding_dim`.

    Rows start from N(0, 1), or are those of `weight`; row `padding_idx` starts at zero. Rows that are looked
    up are first made no longer than `max_norm`, in place.
    """

    weight: Parameter

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None,
        max_norm: float | None,
        norm_type: float,
        scale_grad_by_freq: bool,
        sparse: bool,
        weight: Tensor | None,
        freeze: bool,
        device: Device | None,
        dtype: DType | None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if sparse:
            raise NotImplementedError(message(name, "dense gradients", "sparse=True"))
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise AssertionError(
                    f"{name}: expected padding_idx within {num_embeddings} rows, got {padding_idx}"
                )
            padding_idx %= num_embeddings
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        if weight is None:
            made = ops.empty(num_embeddings, embedding_dim, device=device, dtype=dtype)
        elif tuple(weight.shape) != (num_embeddings, embedding_dim):
            raise AssertionError(
                f"{name}: Shape of weight does not match num_embeddings and embedding_dim: expected "
                f"{(num_embeddings, embedding_dim)}, got {tuple(weight.shape)}"
            )
        else:
            made = weight
        self.weight = Parameter(made, requires_grad=not freeze)
        if weight is None:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the rows anew."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            init.zeros_(self.weight.detach()[self.padding_idx])

    @classmethod
    def from_pretrained(
        cls: type[_Layer], embeddings: Tensor, freeze: bool = True, *args: Any, **settings: Any
    ) -> _Layer:
        """A layer of a given table (rows, embedding_dim), which is not trained if `freeze`."""
        if embeddings.ndim != 2:
            raise AssertionError("Embeddings parameter is expected to be 2-dimensional")
        make: Any = cls
        made: _Layer = make(*embeddings.shape, *args, _weight=embeddings, **settings)
        made.weight.requires_grad = not freeze
        return made

    def _shown(self, *settings: str) -> str:
        """The layer's text: its sizes, then settings, of which empty ones are left out."""
        return ", ".join(filter(None, (f"{self.num_embeddings}, {self.embedding_dim}", *settings)))

    def _padding(self) -> str:
        return "" if self.padding_idx is None else f"padding_idx={self.padding_idx}"

    def _limits(self) -> tuple[str, ...]:
        return (
            "" if self.max_norm is None else f"max_norm={self.max_norm}",
            "" if self.norm_type == 2 else f"norm_type={self.norm_type}",
            "scale_grad_by_freq=True" if self.scale_grad_by_freq else "",
        )


class Embedding(_Table):
    """Rows of a table of `num_embeddings` rows of `embedding_dim`: integers (...) -> (..., embedding_dim).

    Rows start from N(0, 1); row `padding_idx` starts at zero and gets no gradient. Rows longer than
    `max_norm` are made shorter, in place, when they are looked up. `scale_grad_by_freq` divides a row's
    gradient by how often the call names it. NotImplementedError for `sparse` gradients.

    >>> import kiln
    >>> layer = kiln.nn.Embedding.from_pretrained(kiln.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> layer(kiln.tensor([1, 0]))
    tensor([[3., 4.],
            [1., 2.]])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: Device | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse,
            _weight, _freeze, device, dtype,
        )  # fmt: skip

    def forward(self, input: Tensor) -> Tensor:
        return functional.embedding(
            input, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq,
            self.sparse,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return self._shown(self._padding(), *self._limits())


class EmbeddingBag(_Table):
    """Sums, means or maxima of the rows of a table that each bag names: (bags, n), or (n,) with offsets ->
    (bags, embedding_dim).

    Rows start from N(0, 1); row `padding_idx` starts at zero, is left out and gets no gradient. With
    `scale_grad_by_freq` a row's gradient is divided by how often the input names it. NotImplementedError for
    `sparse` gradients.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Device | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse,
            _weight, False, device, dtype,
        )  # fmt: skip
        self.mode, self.include_last_offset = mode, include_last_offset

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        y: Tensor = ops.embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )
        return y

    def extra_repr(self) -> str:
        return self._shown(*self._limits(), f"mode={self.mode!r}", self._padding())
