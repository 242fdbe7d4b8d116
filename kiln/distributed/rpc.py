"""`torch.distributed.rpc`: calls of functions in other processes: names that refuse when they are used."""

from __future__ import annotations

from typing import Any

from kiln.absent import Refused as _Refused
from kiln.absent import hint_missing as _hint_missing
from kiln.absent import refuse as _refuse

_NAMES = "enable_gpu_profiling get_worker_info init_rpc remote rpc_async rpc_sync shutdown"


def is_available() -> bool:
    """False: between processes kiln has collectives and messages."""
    return False


class _Elsewhere:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse(f"distributed.rpc.{type(self).__name__}")


class RRef(_Elsewhere):
    """A value that another process has. NotImplementedError."""


class WorkerInfo(_Elsewhere):
    """Which process is meant. NotImplementedError."""


class RpcBackendOptions(_Elsewhere):
    """How processes are reached. NotImplementedError."""


class TensorPipeRpcBackendOptions(RpcBackendOptions):
    """How processes are reached by PyTorch's TensorPipe. NotImplementedError."""


PyRRef = RRef

globals().update({name: _Refused(f"distributed.rpc.{name}") for name in _NAMES.split()})
_hint_missing(__name__)
