"""Helpers over a model's parameters: gradient clipping, one flat vector, parameters that are computed.

clip_grad_norm_, clip_grad_value_        scale or clamp gradients in place
parameters_to_vector, vector_to_parameters
parametrize                              parameters computed from others when they are read
parametrizations                         ... weight_norm, spectral_norm, orthogonal
weight_norm, spectral_norm               the first two by a hook before forward; remove_...
prune                                    weights with a mask
fusion                                   a layer and the batch normalisation behind it as one
skip_init                                a module without starting values
rnn                                      sequences of several lengths: packed, padded
"""

import sys
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from kiln.absent import hidden as _hidden
from kiln.absent import no_attribute as _no_attribute
from kiln.nn.utils import (
    clip_grad,
    convert_parameters,
    fusion,
    init,
    memory_format,
    parametrizations,
    parametrize,
    prune,
    rnn,
    weights,
)
from kiln.nn.utils.clip_grad import (
    clip_grad_norm,
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
)
from kiln.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters
from kiln.nn.utils.fusion import (
    fuse_conv_bn_eval,
    fuse_conv_bn_weights,
    fuse_linear_bn_eval,
    fuse_linear_bn_weights,
)
from kiln.nn.utils.init import skip_init
from kiln.nn.utils.memory_format import (
    convert_conv2d_weight_memory_format,
    convert_conv3d_weight_memory_format,
)
from kiln.nn.utils.weights import remove_spectral_norm, remove_weight_norm, spectral_norm, weight_norm
from kiln.table.callables import name_all

__all__ = [
    "clip_grad",
    "clip_grad_norm",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "convert_conv2d_weight_memory_format",
    "convert_conv3d_weight_memory_format",
    "convert_parameters",
    "fuse_conv_bn_eval",
    "fuse_conv_bn_weights",
    "fuse_linear_bn_eval",
    "fuse_linear_bn_weights",
    "fusion",
    "get_total_norm",
    "init",
    "memory_format",
    "parameters_to_vector",
    "parametrizations",
    "parametrize",
    "prune",
    "remove_spectral_norm",
    "remove_weight_norm",
    "rnn",
    "skip_init",
    "spectral_norm",
    "vector_to_parameters",
    "weight_norm",
]

# PyTorch's paths of the classes that programs look for among a module's hooks; functions have
# these names here
for _path in ("weight_norm", "spectral_norm"):
    sys.modules[f"{__name__}.{_path}"] = weights

name_all(globals(), "kiln.nn")


def _found(name: str) -> _Any:
    """`__getattr__`, which type checkers do not see."""
    if name != "stateless":  # which needs kiln.func
        _no_attribute(__name__, name)
    return _import_module("kiln.nn.utils.stateless")


if not _TYPE_CHECKING:
    __getattr__ = _hidden(_found)
