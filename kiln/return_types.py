"""Classes of results of several tensors: `isinstance(x.max(0), kiln.return_types.max)`.

>>> import kiln
>>> kiln.return_types.topk._fields
('values', 'indices')
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.ops.named_results import FIELDS, kind

__all__ = [name for name in FIELDS if name[0] != "_"]

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
else:
    globals().update({name: kind(name) for name in __all__})
