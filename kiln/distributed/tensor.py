"""`torch.distributed.tensor`: tensors of which each process has a part. None of kiln's is one."""

from __future__ import annotations

from typing import Any

from kiln._core import Tensor as _Tensor
from kiln.absent import Refused as _Refused
from kiln.absent import hint_missing as _hint_missing
from kiln.absent import refuse as _refuse


class DTensor(_Tensor):
    """A tensor shared out among processes: no tensor is one. NotImplementedError."""

    def __new__(cls, *args: Any, **kwargs: Any) -> DTensor:
        _refuse("distributed.tensor.DTensor")


class Placement:
    """How one is shared out. NotImplementedError."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse(f"distributed.tensor.{type(self).__name__}")


class Shard(Placement):
    """In parts along a dim. NotImplementedError."""


class Replicate(Placement):
    """Whole in each process. NotImplementedError."""


class Partial(Placement):
    """In summands. NotImplementedError."""


for _name in "distribute_module distribute_tensor empty full init_device_mesh ones rand randn zeros".split():
    globals()[_name] = _Refused(f"distributed.tensor.{_name}")

_hint_missing(__name__)
