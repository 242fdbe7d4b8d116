"""CUDA's classes: there to be named in annotations and asked for by `isinstance`; none can be made."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from kiln.device import not_compiled


def _cannot(name: str) -> NoReturn:
    raise RuntimeError(
        f"torch.cuda.{name} requires CUDA support: kiln runs on the CPU; choose by kiln.cuda.is_available()"
    )


class CudaError(RuntimeError):
    """What a call of CUDA may raise; none is called."""


class AcceleratorError(RuntimeError):
    """What a device may report of its work; none is there."""


class OutOfMemoryError(RuntimeError):
    """Memory of a device is exhausted. On the CPU, where memory is missing MemoryError is raised."""


class _Nowhere:
    """What can only be named: RuntimeError for who makes one, or calls what it would have."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _cannot(type(self).__name__)

    @classmethod
    def _has(cls, methods: str, attributes: str = "") -> None:
        """Gives a class methods and attributes, for who looks at the class."""
        for name in methods.split():
            setattr(cls, name, _method(f"{cls.__name__}.{name}"))
        for name in attributes.split():
            setattr(cls, name, property(_method(f"{cls.__name__}.{name}")))


def _method(name: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        _cannot(name)

    refuse.__name__, refuse.__qualname__ = name.rpartition(".")[2], name
    refuse.__doc__ = "RuntimeError: there is no CUDA."
    return refuse


class Event(_Nowhere):
    """A point in a stream. RuntimeError: there are no streams without CUDA; `time.perf_counter` measures."""


class Stream(_Nowhere):
    """A queue of CUDA's work. RuntimeError: kernels run when they are called, in the caller's order."""


class ExternalStream(Stream):
    """A stream made by somebody else. RuntimeError, as Stream."""


class CUDAGraph(_Nowhere):
    """Kernels recorded to be launched together. RuntimeError; `kiln.compile` records steps."""


class MemPool(_Nowhere):
    """A pool of CUDA's memory. RuntimeError."""


Event._has("elapsed_time from_ipc_handle ipc_handle query record synchronize wait", "device event_id")
Stream._has(
    "is_capturing query record_event synchronize wait_event wait_stream",
    "device device_index device_type native_handle stream_id",
)
CUDAGraph._has(
    "capture_begin capture_end debug_dump enable_debug_mode get_graph_data instantiate pool raw_cuda_graph "
    "raw_cuda_graph_exec replay reset"
)
MemPool._has("snapshot use_count", "id")


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
