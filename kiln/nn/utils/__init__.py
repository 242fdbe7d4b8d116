"""Helpers over a model's parameters: gradient clipping, one flat vector, parameters that are computed.

clip_grad_norm_, clip_grad_value_        scale or clamp gradients in place
parameters_to_vector, vector_to_parameters
parametrize                              parameters computed from others when they are read
parametrizations                         ... weight_norm, spectral_norm
weight_norm, spectral_norm               the same by a hook before forward; remove_...
rnn                                      sequences of several lengths: packed, padded
"""

from kiln.absent import hint_missing as _hint_missing
from kiln.nn.utils import parametrizations, parametrize, rnn
from kiln.nn.utils.clip import clip_grad_norm_, clip_grad_value_, get_total_norm
from kiln.nn.utils.vector import parameters_to_vector, vector_to_parameters
from kiln.nn.utils.weights import remove_spectral_norm, remove_weight_norm, spectral_norm, weight_norm
from kiln.table.callables import name_all

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "get_total_norm",
    "parameters_to_vector",
    "parametrizations",
    "parametrize",
    "remove_spectral_norm",
    "remove_weight_norm",
    "rnn",
    "spectral_norm",
    "vector_to_parameters",
    "weight_norm",
]

name_all(globals(), "kiln.nn")
_hint_missing(__name__)
