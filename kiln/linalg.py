"""Linear algebra under the names of torch.linalg: what the table has as "linalg.name"."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kiln.ops import declare

if TYPE_CHECKING:
    __getattr__: Callable[[str], Any]
globals().update(declare.LINALG)
