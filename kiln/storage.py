"""Storages, under the name of PyTorch's module; what a pickle names of one."""

from __future__ import annotations

import io
from typing import Any

from kiln.ops.views.storage import TypedStorage, UntypedStorage
from kiln.serialization import load

__all__ = ["TypedStorage", "UntypedStorage", "_load_from_bytes"]


def _load_from_bytes(b: bytes) -> Any:
    """A storage in one of PyTorch's files inside of a pickle: data, whatever the pickle may run."""
    return load(io.BytesIO(b))
