"""What a program asks before it chooses a device; the answers are those of a machine without CUDA.

    is_available() False, device_count() 0, memory_allocated() 0 ...
    manual_seed_all(0), empty_cache()    nothing to do, as where PyTorch was built without CUDA
    synchronize(), get_device_name()     AssertionError: "Torch not compiled with CUDA enabled"
    Event(), Stream(), CUDAGraph()       RuntimeError when they are made; isinstance(x, Event) is False

`hasattr` knows the names, so that a module is imported whole that uses some of them where there is CUDA.
"""

from __future__ import annotations

import typing as _typing
from collections import OrderedDict as _OrderedDict
from importlib import import_module as _import_module

from kiln._core import Tensor as _Tensor
from kiln.absent import hidden as _hidden
from kiln.absent import no_attribute as _no_attribute
from kiln.cuda.classes import (
    AcceleratorError as AcceleratorError,
)
from kiln.cuda.classes import (
    CudaError as CudaError,
)
from kiln.cuda.classes import (
    CUDAGraph as CUDAGraph,
)
from kiln.cuda.classes import (
    Event as Event,
)
from kiln.cuda.classes import (
    ExternalStream as ExternalStream,
)
from kiln.cuda.classes import (
    MemPool as MemPool,
)
from kiln.cuda.classes import (
    OutOfMemoryError as OutOfMemoryError,
)
from kiln.cuda.classes import (
    Stream as Stream,
)
from kiln.cuda.classes import (
    StreamContext as StreamContext,
)
from kiln.cuda.classes import (
    device as device,
)
from kiln.cuda.classes import (
    device_of as device_of,
)
from kiln.cuda.classes import (
    stream as stream,
)
from kiln.device import not_compiled as _not_compiled
from kiln.device import refusal as _refusal
from kiln.errors import warn as _warn
from kiln.no_device import (
    device_count as device_count,
)
from kiln.no_device import (
    get_rng_state_all as get_rng_state_all,
)
from kiln.no_device import (
    is_bf16_supported as is_bf16_supported,
)
from kiln.no_device import (
    is_initialized as is_initialized,
)
from kiln.no_device import (
    manual_seed as manual_seed,
)
from kiln.no_device import (
    manual_seed_all as manual_seed_all,
)
from kiln.no_device import (
    memory_allocated as memory_allocated,
)
from kiln.no_device import (
    set_rng_state_all as set_rng_state_all,
)

has_half, has_magma = True, False
default_generators: tuple[()] = ()


def is_available() -> bool:
    """False: kiln runs on the CPU.

    >>> import kiln
    >>> kiln.device("cuda" if kiln.cuda.is_available() else "cpu")
    device(type='cpu')
    """
    return False


def is_tf32_supported() -> bool:
    """False, as `is_bf16_supported`."""
    return False


def seed() -> None:
    """Seeds the device by chance: none."""


def seed_all() -> None:
    """Seeds every device by chance: none."""


def set_rng_state(new_state: _typing.Any, device: _typing.Any = "cuda") -> None:
    """Waits, as PyTorch does, for CUDA to be used before it sets a state: for ever."""


def empty_cache() -> None:
    """Gives back memory of CUDA that is not used: none. `kiln.empty_cache()` gives back the CPU's."""


def max_memory_allocated(device: _typing.Any = None) -> int:
    """The most bytes of tensors there have been: 0."""
    return 0


def memory_reserved(device: _typing.Any = None) -> int:
    """Bytes taken from the device: 0."""
    return 0


def max_memory_reserved(device: _typing.Any = None) -> int:
    """The most bytes taken from the device: 0."""
    return 0


def _renamed(name: str, now: str) -> _typing.Any:
    def call(device: _typing.Any = None) -> int:
        _warn(f"`torch.cuda.{name}` has been renamed to `torch.cuda.{now}`", FutureWarning)
        return 0

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`{now}` under its old name, which a FutureWarning says."
    return call


memory_cached = _renamed("memory_cached", "memory_reserved")
max_memory_cached = _renamed("max_memory_cached", "max_memory_reserved")


def memory_stats(device: _typing.Any = None) -> _OrderedDict[str, int]:
    """The allocator's counts: an empty dict."""
    return _OrderedDict()


def get_arch_list() -> list[str]:
    """The architectures that kernels were compiled for: none."""
    return []


def get_gencode_flags() -> str:
    """The flags of the compiler of kernels: none."""
    return ""


def can_device_access_peer(device: _typing.Any, peer_device: _typing.Any) -> bool:
    """AssertionError: there are no two devices."""
    _not_compiled("cuda")


# -- what a program calls only where there is CUDA --

_REFUSED = (
    "caching_allocator_alloc caching_allocator_delete cudart current_blas_handle current_device "
    "current_stream default_stream device_memory_used get_device_capability get_device_name "
    "get_device_properties get_per_process_memory_fraction get_rng_state get_stream_from_external "
    "get_sync_debug_mode graph graph_pool_handle init initial_seed ipc_collect "
    "is_current_stream_capturing list_gpu_processes make_graphed_callables mem_get_info memory_snapshot "
    "memory_summary memory_usage power_draw reset_accumulated_memory_stats reset_max_memory_allocated "
    "reset_max_memory_cached reset_peak_memory_stats set_device set_per_process_memory_fraction "
    "set_stream set_sync_debug_mode synchronize temperature utilization clock_rate use_mem_pool "
    "change_current_allocator"
)
_TENSORS = "BFloat16 Bool Byte Char Double Float Half Int Long Short"
_PARTS = {name: f"kiln.cuda.{name}" for name in "amp memory nvtx random streams".split()}


def _refused(name: str) -> _typing.NoReturn:
    _not_compiled("cuda")


def _no_tensor(name: str) -> _typing.NoReturn:
    raise TypeError(
        f"type torch.cuda.{name} not available. Torch not compiled with CUDA enabled: kiln runs on the CPU"
    )


globals().update({name: _refusal("cuda", name, _refused) for name in _REFUSED.split()})


# classes, of which no tensor is: `isinstance(x, torch.cuda.FloatTensor)` is asked by old programs
class _TensorType(type):
    def __getattr__(cls, name: str) -> _typing.Any:
        """A method of tensors, as of `kiln.Tensor`."""
        if name.startswith("__"):
            raise AttributeError(f"type object '{cls.__name__}' has no attribute '{name}'")
        return getattr(_Tensor, name)


for _name in (f"{_kind}Tensor" for _kind in _TENSORS.split()):
    _space = {"__init__": _refusal("cuda", _name, _no_tensor), "__module__": "kiln.cuda"}
    globals()[_name] = _TensorType(_name, (), _space)


def _found(name: str) -> _typing.Any:
    """`__getattr__`, which type checkers do not see."""
    if name.endswith("Storage") and name.removesuffix("Storage") in _TENSORS.split():
        return _import_module("kiln.storage").elsewhere(name)
    if name not in _PARTS:
        _no_attribute(__name__, name)
    try:
        return _import_module(_PARTS[name])
    except ModuleNotFoundError:
        _no_attribute(__name__, name)


if _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> _typing.Any: ...  # what refuses

else:
    __getattr__ = _hidden(_found)
