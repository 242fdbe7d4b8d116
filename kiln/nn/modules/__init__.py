"""PyTorch's path of modules: `nn.modules.module` has Module and the hooks of every module."""

from kiln.nn.modules import module as module
