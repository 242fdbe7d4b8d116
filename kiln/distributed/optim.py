"""`torch.distributed.optim`: optimizers that share their state out among processes. Refused when made."""

from __future__ import annotations

from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.absent import refuse as _refuse
from kiln.optim import Optimizer as _Optimizer

__all__ = ["DistributedOptimizer", "PostLocalSGDOptimizer", "ZeroRedundancyOptimizer"]


class ZeroRedundancyOptimizer(_Optimizer):
    """Has a part of the state in each process. NotImplementedError: `kiln.optim` has the optimizers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("distributed.optim.ZeroRedundancyOptimizer")


class PostLocalSGDOptimizer(_Optimizer):
    """Averages models of several processes. NotImplementedError."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("distributed.optim.PostLocalSGDOptimizer")


class DistributedOptimizer:
    """Steps parameters that are in other processes. NotImplementedError."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("distributed.optim.DistributedOptimizer")


_hint_missing(__name__)
