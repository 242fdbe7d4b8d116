"""`torch.nn.attention.flex_attention`: names for models that can do without; asked for, it is refused."""

from __future__ import annotations

from typing import Any, NoReturn

from kiln import absent

__all__ = ["AuxRequest", "BlockMask", "create_block_mask", "flex_attention"]

_TODO = "flex_attention: kiln has scaled_dot_product_attention, with a mask of scores"


class BlockMask:
    """Which blocks of scores are computed. NotImplementedError."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(_TODO)


class AuxRequest(BlockMask):
    """What `flex_attention` is to give beside its result. NotImplementedError."""


def create_block_mask(*args: Any, **kwargs: Any) -> NoReturn:
    """NotImplementedError: `scaled_dot_product_attention` takes a mask."""
    raise NotImplementedError(_TODO)


def flex_attention(*args: Any, **kwargs: Any) -> NoReturn:
    """NotImplementedError: `scaled_dot_product_attention` takes a mask."""
    raise NotImplementedError(_TODO)


_DEFAULT_SPARSE_BLOCK_SIZE = 128  # transformers names it


def __getattr__(name: str) -> NoReturn:
    absent.no_attribute(__name__, name)
