"""Programs of several processes, on one machine or many, under PyTorch's names.

init_process_group()                    makes this process one of them; see world.py
all_reduce(), broadcast(), ...          what all ranks do together; see calls.py
send(), recv(), isend(), irecv()        from one rank to another
all_gather_object(), ...                of Python objects; see objects.py
TCPStore, FileStore, HashStore          how ranks find each other; see store/
python -m kiln.distributed.run          starts the processes of a machine

README.md says how it works and what it promises.
"""

from __future__ import annotations

import typing as _typing
from importlib import import_module as _import_module

from kiln.absent import hidden as _hidden
from kiln.absent import no_attribute as _no_attribute
from kiln.absent import refuse as _refuse
from kiln.device import refusal as _refusal
from kiln.distributed.calls import (
    P2POp,
    all_gather,
    all_gather_into_tensor,
    all_reduce,
    all_reduce_coalesced,
    all_to_all,
    all_to_all_single,
    barrier,
    batch_isend_irecv,
    broadcast,
    gather,
    irecv,
    isend,
    monitored_barrier,
    recv,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    scatter,
    send,
)
from kiln.distributed.errors import DistBackendError, DistError, DistNetworkError, DistStoreError
from kiln.distributed.objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from kiln.distributed.process_group import ProcessGroup, Work
from kiln.distributed.reduce_op import ReduceOp
from kiln.distributed.rendezvous import register_rendezvous_handler, rendezvous
from kiln.distributed.store import FileStore, HashStore, PrefixStore, Store, TCPStore
from kiln.distributed.world import (
    Backend,
    GroupMember,
    default_pg_timeout,
    destroy_process_group,
    get_backend,
    get_global_rank,
    get_group_rank,
    get_node_local_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    init_process_group,
    is_available,
    is_backend_available,
    is_gloo_available,
    is_initialized,
    is_mpi_available,
    is_nccl_available,
    is_torchelastic_launched,
    is_ucc_available,
    is_xccl_available,
    new_group,
    new_subgroups,
    new_subgroups_by_enumeration,
)

__all__ = [
    "Backend", "DistBackendError", "DistError", "DistNetworkError", "DistStoreError", "FileStore",
    "GroupMember", "HashStore", "P2POp", "PrefixStore", "ProcessGroup", "ReduceOp", "Store", "TCPStore",
    "Work", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce",
    "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv", "broadcast",
    "broadcast_object_list", "default_pg_timeout", "destroy_process_group", "gather", "gather_object",
    "get_backend", "get_global_rank", "get_group_rank", "get_node_local_rank", "get_process_group_ranks",
    "get_rank", "get_world_size", "group", "init_process_group", "irecv", "is_available",
    "is_backend_available", "is_gloo_available", "is_initialized", "is_mpi_available", "is_nccl_available",
    "is_torchelastic_launched", "is_ucc_available", "is_xccl_available", "isend", "monitored_barrier",
    "new_group", "new_subgroups", "new_subgroups_by_enumeration", "recv", "recv_object_list", "reduce",
    "reduce_scatter", "reduce_scatter_tensor", "register_rendezvous_handler", "rendezvous", "scatter",
    "scatter_object_list", "send", "send_object_list",
]  # fmt: skip

_MISSING = "init_device_mesh"
_FILES = ("algorithms", "device_mesh", "distributed_c10d", "fsdp", "launch", "optim", "rpc", "run", "tensor")


def _refused(name: str) -> _typing.NoReturn:
    _refuse(f"distributed.{name}")


globals().update({name: _refusal("distributed", name, _refused) for name in _MISSING.split()})


def _found(name: str) -> _typing.Any:
    file = "device_mesh" if name == "DeviceMesh" else name  # a class, which libraries ask values for
    if file not in _FILES:
        _no_attribute(__name__, name)
    module = _import_module(f"kiln.distributed.{file}")
    return module.DeviceMesh if name == "DeviceMesh" else module


if _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> _typing.Any: ...  # what refuses

else:
    __getattr__ = _hidden(_found)
