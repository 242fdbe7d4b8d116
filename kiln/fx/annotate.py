"""Annotations of traced values."""

from __future__ import annotations

from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.fx.proxy import Proxy

__all__ = ["annotate"]


def annotate(val: Any, type: Any) -> Any:
    """The value, whose node has `type` from then on if it is a traced one. RuntimeError if it has another.

    >>> import kiln
    >>> m = kiln.fx.symbolic_trace(lambda x: kiln.fx.annotate.annotate(x + 1, int))
    >>> print(m.code.strip())
    def forward(self, x):
        add : int = x + 1;  x = None
        return add
    """
    if isinstance(val, Proxy):
        if val.node.type:
            raise RuntimeError(
                f"Tried to annotate a value that already had a type on it! Existing type is {val.node.type} "
                f"and new type is {type}. This could happen if you tried to annotate a function parameter "
                "value (in which case you should use the type slot on the function signature) or you called "
                "annotate on the same value twice"
            )
        val.node.type = type
    return val


_hint_missing(__name__)
