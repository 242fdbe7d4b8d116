"""`torch.distributed.fsdp`: models whose parameters are shared out among processes. Refused when made."""

from __future__ import annotations

from typing import Any

from kiln.absent import Refused as _Refused
from kiln.absent import hint_missing as _hint_missing
from kiln.absent import refuse as _refuse
from kiln.nn import Module as _Module


class FullyShardedDataParallel(_Module):
    """A model with a part of its parameters in each process. NotImplementedError."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("distributed.fsdp.FullyShardedDataParallel")


class FSDPModule(_Module):
    """What `fully_shard` makes of a model: no model is one. NotImplementedError."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("distributed.fsdp.FSDPModule")


_NAMES = (
    "BackwardPrefetch CPUOffload CPUOffloadPolicy FullOptimStateDictConfig FullStateDictConfig "
    "MixedPrecision MixedPrecisionPolicy OffloadPolicy ShardedOptimStateDictConfig "
    "ShardedStateDictConfig ShardingStrategy StateDictType fully_shard"
)
globals().update({_name: _Refused(f"distributed.fsdp.{_name}") for _name in _NAMES.split()})
_hint_missing(__name__)
