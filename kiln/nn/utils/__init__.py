"""Helpers over a model's parameters: gradient clipping, one flat vector.

clip_grad_norm_, clip_grad_value_        scale or clamp gradients in place
parameters_to_vector, vector_to_parameters
rnn                                      sequences of several lengths: packed, padded
"""

from kiln.nn.utils import rnn
from kiln.nn.utils.clip import clip_grad_norm_, clip_grad_value_, get_total_norm
from kiln.nn.utils.vector import parameters_to_vector, vector_to_parameters

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "get_total_norm",
    "parameters_to_vector",
    "rnn",
    "vector_to_parameters",
]
