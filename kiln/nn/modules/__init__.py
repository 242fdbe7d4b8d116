"""PyTorch's paths: `nn.modules.conv.Conv2d`, `nn.modules.batchnorm._BatchNorm`, `nn.modules.Linear`.

`module` has Module and the hooks of every module, `utils` numbers written once for every dim. The other paths
are kiln's own files under PyTorch's names.
"""

import sys
from importlib import import_module
from typing import Any

from kiln.absent import no_attribute
from kiln.nn.modules import module as module
from kiln.nn.modules import utils as utils

_FILES = {
    "activation": "activations",
    "batchnorm": "normalisations",
    "channelshuffle": "padding",
    "container": "containers",
    "conv": "convolutions",
    "distance": "similarity",
    "dropout": "dropouts",
    "flatten": "layers",
    "fold": "sampling",
    "instancenorm": "normalisations",
    "lazy": "lazy",
    "linear": "layers",
    "loss": "losses",
    "normalization": "normalisations",
    "padding": "padding",
    "pixelshuffle": "padding",
    "pooling": "pooling",
    "rnn": "recurrent",
    "sparse": "embeddings",
    "transformer": "transformers",
    "upsampling": "sampling",
}
for _name, _file in _FILES.items():
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = import_module(f"kiln.nn.{_file}")


def __getattr__(name: str) -> Any:
    """Every layer by its name."""
    found = getattr(sys.modules["kiln.nn"], name, None)
    if not (isinstance(found, type) and issubclass(found, module.Module)):
        no_attribute(__name__, name)
    return found
