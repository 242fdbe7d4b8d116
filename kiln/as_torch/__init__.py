"""kiln under PyTorch's name: after `import kiln.as_torch`, `import torch` and `import torch.nn` give kiln.

    python -m kiln program.py args...       a program that says `import torch`, unchanged
    import kiln.as_torch                    the same in this process, from here on

`torch` is a module of its own that has all of kiln's names, and a version that libraries can read
(`torch.__version__`); its parts are kiln's (`sys.modules["torch.nn"] is kiln.nn`), so a layer of either name
is a layer of both. A PyTorch that is installed is never loaded; ImportError if it already was. Processes that
multiprocessing spawns have kiln under the name too.

>>> import kiln.as_torch
>>> import torch.nn.functional as F
>>> F.relu(torch.tensor([-1.0, 2.0]))
tensor([0., 2.])
"""

from __future__ import annotations

from kiln.as_torch.finder import install
from kiln.as_torch.shown import show_as_torch
from kiln.as_torch.version import TorchVersion, __version__

__all__ = ["TorchVersion", "__version__"]

install()
show_as_torch()
