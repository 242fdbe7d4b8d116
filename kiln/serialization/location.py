"""Where storages go that a file says were on a device: `map_location`, in all its forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kiln._core import Tensor
from kiln.errors import describe, message
from kiln.ops.views.storage import UntypedStorage
from kiln.table.callables import name_helpers as _name_helpers

_NO_CUDA = (
    "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If you are "
    "running on a CPU-only machine, please use torch.load with map_location=torch.device('cpu') to map your "
    "storages to the CPU."
)


def location_tag(storage: UntypedStorage) -> str:
    """What a file says of where a storage is: "cpu".

    >>> import kiln
    >>> kiln.serialization.location_tag(kiln.ones(1).untyped_storage())
    'cpu'
    """
    if not isinstance(storage, (UntypedStorage, Tensor)):
        raise RuntimeError(f"don't know how to determine data location of {describe(storage)}")
    return "cpu"


def default_restore_location(storage: Any, location: str) -> Any:
    """The storage where a file says it was. RuntimeError for a device that is not there.

    >>> import kiln
    >>> storage = kiln.ones(1).untyped_storage()
    >>> kiln.serialization.default_restore_location(storage, "cpu") is storage
    True
    """
    kind = str(location).partition(":")[0]
    if kind == "cpu":
        return storage
    if kind == "cuda":
        raise RuntimeError(_NO_CUDA)
    if kind in ("mps", "xpu", "hpu", "mtia", "meta", "npu", "xla", "privateuse1"):
        what = f"a storage on device '{location}', which kiln has not"
        raise RuntimeError(message("load", "device 'cpu'", what, "load it with map_location='cpu'"))
    raise RuntimeError(
        f"don't know how to restore data location of kiln.UntypedStorage (tagged with {location!s:.40})"
    )


def mapping(map_location: Any) -> Callable[[Any, str], Any]:
    """The function of a storage and the place a file says, that gives the storage where it is wanted."""
    if map_location is None:
        return default_restore_location
    if isinstance(map_location, Mapping):
        return lambda storage, place: default_restore_location(storage, map_location.get(place, place))
    if isinstance(map_location, str) or hasattr(map_location, "type") and not callable(map_location):
        return lambda storage, place: default_restore_location(storage, str(map_location))
    if not callable(map_location):
        expected = "map_location as None, a device, its name, a dict of names, or a function"
        raise TypeError(message("load", expected, describe(map_location)))

    def mapped(storage: Any, place: str) -> Any:
        found = map_location(storage, place)
        if found is not None and not isinstance(found, UntypedStorage):
            expected = "map_location to return a storage or None"
            raise TypeError(message("load", expected, describe(found)))
        return default_restore_location(storage, place) if found is None else found

    return mapped


_name_helpers(globals(), __name__)
