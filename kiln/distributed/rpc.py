"""`torch.distributed.rpc`: calls of functions in other processes. Names; what is done with them is refused."""

from __future__ import annotations

from kiln.absent import Refused as _Refused
from kiln.absent import hint_missing as _hint_missing

_NAMES = (
    "BackendType PyRRef RRef RpcBackendOptions TensorPipeRpcBackendOptions WorkerInfo enable_gpu_profiling "
    "get_worker_info init_rpc remote rpc_async rpc_sync shutdown"
)


def is_available() -> bool:
    """False: kiln runs in one process."""
    return False


globals().update({name: _Refused(f"distributed.rpc.{name}") for name in _NAMES.split()})
_hint_missing(__name__)
