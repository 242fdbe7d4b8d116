"""PyTorch's paths: `nn.modules.conv.Conv2d`, `nn.modules.batchnorm._BatchNorm`, `nn.modules.Linear`.

`module` has Module and the hooks of every module, `utils` numbers written once for every dim. The other paths
are kiln's own files under PyTorch's names.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.absent import no_attribute as _no_attribute
from kiln.nn.modules import module as module
from kiln.nn.modules import utils as utils

# PyTorch's file -> kiln's files that have its names
_FILES = {
    "activation": "activations multihead",
    "adaptive": "adaptive",
    "batchnorm": "normalisations synchronised_norms lazy",
    "channelshuffle": "padding",
    "container": "containers parameter_containers",
    "conv": "convolutions lazy",
    "distance": "similarity",
    "dropout": "dropouts",
    "flatten": "layers padding",
    "fold": "sampling",
    "instancenorm": "normalisations lazy",
    "lazy": "lazy",
    "linear": "layers lazy",
    "loss": "losses similarity",
    "normalization": "normalisations",
    "padding": "padding",
    "pixelshuffle": "padding",
    "pooling": "pooling",
    "rnn": "recurrent",
    "sparse": "embeddings",
    "transformer": "transformers",
    "upsampling": "sampling",
}
# PyTorch's names of layers of any number of dims, which libraries ask `isinstance` for
_BASES = {
    "conv": {"_ConvTransposeNd": "_ConvTranspose"},
    "pooling": {
        "_AdaptiveAvgPoolNd": "_AdaptiveAvgPool",
        "_AdaptiveMaxPoolNd": "_AdaptiveMaxPool",
        "_AvgPoolNd": "_AvgPool",
        "_LPPoolNd": "_LPPool",
        "_MaxPoolNd": "_MaxPool",
        "_MaxUnpoolNd": "_MaxUnpool",
    },
}

_OF_ALL = ("_single", "_pair", "_triple", "_quadruple", "_ntuple", "_reverse_repeat_tuple")


def _path(name: str, files: str) -> ModuleType:
    """A module under PyTorch's name, with what kiln's files have."""
    made = ModuleType(f"{__name__}.{name}")
    for file in reversed(files.split()):  # the first named has the last word
        own = import_module(f"kiln.nn.{file}")
        shown = ("__doc__", "__file__")  # where `inspect` reads a layer's source
        made.__dict__.update({k: v for k, v in vars(own).items() if not k.startswith("__") or k in shown})
    made.__dict__.update({new: vars(made)[old] for new, old in _BASES.get(name, {}).items()})
    # `from torch.nn.modules.conv import _pair`: PyTorch's files show what they use
    made.__dict__.update({k: v for k, v in vars(utils).items() if k in _OF_ALL and k not in vars(made)})
    return made


for _name, _files in _FILES.items():
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = _path(_name, _files)
    _hint_missing(f"{__name__}.{_name}")


def __getattr__(name: str) -> Any:
    """Every layer by its name."""
    found = getattr(sys.modules["kiln.nn"], name, None)
    if not (isinstance(found, type) and issubclass(found, module.Module)):
        _no_attribute(__name__, name)
    return found
