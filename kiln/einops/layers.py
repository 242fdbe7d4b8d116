"""einops' operations as modules of kiln's, as einops.layers.torch has them."""

from __future__ import annotations

from typing import Any

from einops.layers import RearrangeMixin, ReduceMixin
from einops.layers._einmix import _EinmixMixin

import kiln


class Rearrange(RearrangeMixin, kiln.nn.Module):  # type: ignore[misc]
    """`einops.rearrange` as a layer.

    >>> kiln.einops.Rearrange("b c h -> b (c h)")(kiln.ones(2, 3, 4)).shape  # doctest: +SKIP
    kiln.Size([2, 12])
    """

    def forward(self, input: Any) -> Any:
        """The tensor rearranged."""
        return self._apply_recipe(input)


class Reduce(ReduceMixin, kiln.nn.Module):  # type: ignore[misc]
    """`einops.reduce` as a layer."""

    def forward(self, input: Any) -> Any:
        """The tensor reduced."""
        return self._apply_recipe(input)


class EinMix(_EinmixMixin, kiln.nn.Module):  # type: ignore[misc]
    """einops' `EinMix`: a product with a weight of the layer's own, along named dims."""

    def _create_parameters(
        self, weight_shape: Any, weight_bound: float, bias_shape: Any, bias_bound: float
    ) -> None:
        def drawn(shape: Any, bound: float) -> Any:
            return kiln.nn.Parameter(kiln.zeros(*shape).uniform_(-bound, bound))

        self.weight = drawn(weight_shape, weight_bound)
        self.bias = None if bias_shape is None else drawn(bias_shape, bias_bound)

    def _create_rearrange_layers(
        self, before: str | None, before_lengths: Any, after: str | None, after_lengths: Any
    ) -> None:
        self.pre_rearrange = None if before is None else Rearrange(before, **before_lengths)
        self.post_rearrange = None if after is None else Rearrange(after, **after_lengths)

    def forward(self, input: Any) -> Any:
        """The product, between the rearrangements that its pattern asks for."""
        if self.pre_rearrange is not None:
            input = self.pre_rearrange(input)
        result = kiln.einsum(self.einsum_pattern, input, self.weight)
        if self.bias is not None:
            result = result + self.bias
        return result if self.post_rearrange is None else self.post_rearrange(result)
