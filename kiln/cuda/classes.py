"""CUDA's classes: there to be named in annotations and asked for by `isinstance`; none can be made."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from kiln.device import not_compiled
from kiln.no_device import Event as Event
from kiln.no_device import Nowhere
from kiln.no_device import Stream as Stream


class CudaError(RuntimeError):
    """What a call of CUDA may raise; none is called."""


class AcceleratorError(RuntimeError):
    """What a device may report of its work; none is there."""


class OutOfMemoryError(RuntimeError):
    """Memory of a device is exhausted. On the CPU, where memory is missing MemoryError is raised."""


class ExternalStream(Stream):
    """A stream made by somebody else. RuntimeError, as Stream."""


class CUDAGraph(Nowhere):
    """Kernels recorded to be launched together. RuntimeError; `kiln.compile` records steps."""


class MemPool(Nowhere):
    """A pool of CUDA's memory. RuntimeError."""


CUDAGraph.has(
    "capture_begin capture_end debug_dump enable_debug_mode get_graph_data instantiate pool raw_cuda_graph "
    "raw_cuda_graph_exec replay reset"
)
MemPool.has("snapshot use_count", "id")


class StreamContext:
    """Work inside goes to a stream; with None, as where there is no CUDA, it goes where it went."""

    def __init__(self, stream: Stream | None) -> None:
        if stream is not None:
            not_compiled("cuda")

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def stream(stream: Stream | None) -> StreamContext:
    """`with stream(s):` work inside goes to it; nothing changes with None."""
    return StreamContext(stream)


class device:
    """`with device(0):` what is made inside is on that GPU. AssertionError at entry; None and -1 are none."""

    def __init__(self, device: Any) -> None:
        self._none = device is None or (isinstance(device, int) and device < 0)

    def __enter__(self) -> None:
        if not self._none:
            not_compiled("cuda")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class device_of(device):
    """`with device_of(x):` the GPU on which x is: none, as every tensor is on the CPU."""

    def __init__(self, obj: Any) -> None:
        super().__init__(None)
