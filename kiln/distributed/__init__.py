"""What a program asks before it trains in several processes: kiln runs in one.

is_available(), is_initialized()      False: a program goes on alone
get_rank(), barrier(), all_reduce()   ValueError, as of PyTorch where no group was made
init_process_group()                  NotImplementedError
"""

from __future__ import annotations

import typing as _typing
from enum import Enum as _Enum
from importlib import import_module as _import_module

from kiln.absent import hidden as _hidden
from kiln.absent import no_attribute as _no_attribute
from kiln.absent import refuse as _refuse
from kiln.device import refusal as _refusal

_IN_A_GROUP = (
    "all_gather all_gather_into_tensor all_gather_object all_reduce all_to_all all_to_all_single barrier "
    "broadcast broadcast_object_list destroy_process_group gather gather_object get_backend get_rank "
    "get_world_size irecv isend monitored_barrier new_group recv reduce reduce_scatter reduce_scatter_tensor "
    "scatter scatter_object_list send"
)
_MADE = "FileStore HashStore PrefixStore TCPStore init_device_mesh init_process_group"


class ReduceOp(_Enum):
    """How values of several processes would be put together."""

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"


class Backend(str):
    """The name of a way to communicate."""

    GLOO, NCCL, MPI, UCC, UNDEFINED = "gloo", "nccl", "mpi", "ucc", "undefined"


class ProcessGroup:
    """Processes that compute together. NotImplementedError."""

    def __init__(self, *args: _typing.Any, **kwargs: _typing.Any) -> None:
        _refuse("distributed.ProcessGroup")


class Work:
    """A communication that goes on. NotImplementedError."""

    def __init__(self, *args: _typing.Any, **kwargs: _typing.Any) -> None:
        _refuse("distributed.Work")


class group:
    """`group.WORLD`: all processes; None where no group was made."""

    WORLD: ProcessGroup | None = None


class GroupMember(group):
    """`group` under its old name."""

    NON_GROUP_MEMBER = -100


def is_available() -> bool:
    """False: kiln runs in one process.

    >>> kiln.distributed.is_available() and kiln.distributed.is_initialized()
    False
    """
    return False


def is_initialized() -> bool:
    """False: no group was made."""
    return False


def is_torchelastic_launched() -> bool:
    """False: no launcher of PyTorch's started this process for kiln."""
    return False


def is_backend_available(backend: str) -> bool:
    """False of every way to communicate."""
    return False


def is_nccl_available() -> bool:
    """False."""
    return False


is_gloo_available = is_mpi_available = is_ucc_available = is_xccl_available = is_nccl_available


def _no_group(name: str) -> _typing.NoReturn:
    raise ValueError(
        "Default process group has not been initialized, please make sure to call init_process_group. "
        f"distributed.{name}: kiln runs in one process; ask kiln.distributed.is_available() before"
    )


def _refused(name: str) -> _typing.NoReturn:
    _refuse(f"distributed.{name}")


globals().update({name: _refusal("distributed", name, _no_group) for name in _IN_A_GROUP.split()})
globals().update({name: _refusal("distributed", name, _refused) for name in _MADE.split()})

_FILES = ("device_mesh", "fsdp", "optim", "rpc", "tensor")


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
