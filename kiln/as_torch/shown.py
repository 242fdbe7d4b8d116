"""Names in what is printed: a dtype is shown as `torch.float32`, a shape as `torch.Size([2, 3])`.

Programs print them, and libraries cut the name off.
"""

from __future__ import annotations

from typing import Any

from kiln import _core
from kiln.layout import layout
from kiln.ops import named_results


def show_as_torch() -> None:
    """From here on dtypes, shapes, layouts and results with names are shown as PyTorch shows them."""
    shown: dict[Any, Any] = {
        _core.dtype: lambda self: f"torch.{self.name}",
        _core.Size: lambda self: f"torch.Size({list(self)})",
        layout: lambda self: f"torch.{self._name}",
    }
    for kind, show in shown.items():
        kind.__repr__ = show
    named_results.show_in("torch")
