"""`torch.distributed.device_mesh`: processes in rows and columns. Refused when made."""

from __future__ import annotations

from typing import Any

from kiln.absent import Refused as _Refused
from kiln.absent import hint_missing as _hint_missing
from kiln.absent import refuse as _refuse


class DeviceMesh:
    """Processes in rows and columns. NotImplementedError."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("distributed.DeviceMesh")


init_device_mesh = _Refused("distributed.init_device_mesh")

_hint_missing(__name__)
