"""Modules, layers, losses and their helpers, under PyTorch's names; see README.md."""

from kiln.nn import functional, init, utils
from kiln.nn.containers import ModuleDict, ModuleList, Sequential
from kiln.nn.layers import (
    GELU,
    CrossEntropyLoss,
    Dropout,
    Embedding,
    Flatten,
    Identity,
    LayerNorm,
    Linear,
    LogSoftmax,
    MSELoss,
    ReLU,
    Sigmoid,
    Softmax,
    Tanh,
)
from kiln.nn.module import Module
from kiln.nn.parameter import Parameter

__all__ = [
    "GELU",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "Identity",
    "LayerNorm",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "Module",
    "ModuleDict",
    "ModuleList",
    "Parameter",
    "ReLU",
    "Sequential",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "functional",
    "init",
    "utils",
]
