"""Weights of a model's convolutions in another memory format."""

from __future__ import annotations

from typing import TypeVar

from kiln.layout import memory_format as Format
from kiln.nn.convolutions import Conv2d, Conv3d, ConvTranspose2d, ConvTranspose3d
from kiln.nn.module import Module
from kiln.table.callables import name_all as _name_all

M = TypeVar("M", bound=Module)


def convert_conv2d_weight_memory_format(module: M, memory_format: Format) -> M:
    """Lay the weights of every Conv2d and ConvTranspose2d, here and below, out anew; gives the module
    back.
    """
    return _converted(module, (Conv2d, ConvTranspose2d), memory_format)


def convert_conv3d_weight_memory_format(module: M, memory_format: Format) -> M:
    """Lay the weights of every Conv3d and ConvTranspose3d, here and below, out anew; gives the module
    back.
    """
    return _converted(module, (Conv3d, ConvTranspose3d), memory_format)


def _converted(module: M, kinds: tuple[type, ...], memory_format: Format) -> M:
    for layer in module.modules():
        if isinstance(layer, kinds):
            layer.weight.data = layer.weight.detach().clone(memory_format=memory_format)
    return module


_name_all(globals(), __name__)
