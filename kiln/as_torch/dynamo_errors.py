"""`torch._dynamo.exc`: what programs catch of a compiler that reads them. kiln raises InvalidBackend."""

from __future__ import annotations

from kiln.absent import hint_missing as _hint_missing
from kiln.capture.compile import InvalidBackend

__all__ = ["BackendCompilerFailed", "InvalidBackend", "TorchDynamoException", "Unsupported"]

TorchDynamoException = RuntimeError  # whatever kiln raises when it compiles is one


class Unsupported(RuntimeError):
    """A program that could not be read: what kiln cannot record runs as it is."""


class BackendCompilerFailed(RuntimeError):
    """A compiler of the program's own that failed: its own error comes out."""


_hint_missing(__name__, "_dynamo.exc")
