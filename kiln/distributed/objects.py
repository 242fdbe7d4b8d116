"""Python objects from rank to rank: tensors, numbers, strings, NumPy's arrays of numbers, times, containers.

`kiln.save` writes them and `kiln.load` reads them, which executes nothing. Other classes are refused by who
receives one, unless `kiln.serialization.add_safe_globals` allows them there.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from io import BytesIO
from typing import Any

from kiln import _core, ops
from kiln._core import Tensor
from kiln.distributed import calls
from kiln.distributed.process_group import ProcessGroup
from kiln.distributed.world import group_of
from kiln.serialization import load, safe_globals, save


def _encoded(value: Any) -> Tensor:
    file = BytesIO()
    save(value, file)
    data: Tensor = ops.frombuffer(bytearray(file.getvalue()), dtype=_core.uint8)
    return data


def _decoded(data: Tensor) -> Any:
    content = bytes(memoryview(data))
    with safe_globals([bytes, datetime, timedelta, *(_of_numpy() if b"numpy" in content else [])]):
        return load(BytesIO(content), weights_only=True)


def _of_numpy() -> list[Any]:
    """What arrays and scalars of numbers are made by."""
    import numpy as np

    made_by = np.zeros(0).__reduce__()[0], np.float64().__reduce__()[0]
    return [np.ndarray, np.dtype, *made_by, *{type(np.dtype(code)) for code in "?bhilqBHILQefd"}]


def _lengths(own: int, found: ProcessGroup) -> list[int]:
    """A number of every rank."""
    outs = [ops.zeros(1, dtype=_core.int64) for _ in range(found.size())]
    calls.all_gather(outs, ops.tensor([own]), found)
    return [x.item() for x in outs]


def _empty(count: int) -> Tensor:
    made: Tensor = ops.empty((count,), dtype=_core.uint8)
    return made


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Gathers an object of every rank in a list on every rank, whose items are replaced."""
    if (found := group_of(group, "all_gather_object")) is None:
        return
    _expect_places(object_list, found, "all_gather_object", "object_list")
    own = _encoded(obj)
    outs = [_empty(n) for n in _lengths(len(own), found)]
    calls.all_gather(outs, own, found)
    object_list[:] = [_decoded(x) for x in outs]


def gather_object(
    obj: Any, object_gather_list: list[Any] | None = None, dst: int | None = None, group: Any = None,
    group_dst: int | None = None,
) -> None:  # fmt: skip
    """Gathers an object of every rank in a list on the rank `dst`."""
    if (found := group_of(group, "gather_object")) is None:
        return
    to = calls._place(found, dst, group_dst, "gather_object", "dst")
    here = found.rank() == to
    if here:
        _expect_places(object_gather_list, found, "gather_object", "object_gather_list")
    own = _encoded(obj)
    outs = [_empty(n) for n in _lengths(len(own), found)]
    calls.gather(own, outs if here else None, group=found, group_dst=to)
    if here and object_gather_list is not None:
        object_gather_list[:] = [_decoded(x) for x in outs]


def _expect_places(given: Any, found: ProcessGroup, name: str, argument: str) -> None:
    if not isinstance(given, list) or len(given) != found.size():
        raise ValueError(f"{name}: {argument} is to be a list with a place for each of {found.size()} ranks")


def broadcast_object_list(
    object_list: list[Any], src: int | None = None, group: Any = None, device: Any = None,
    group_src: int | None = None,
) -> None:  # fmt: skip
    """Gives every rank the objects of the source's list, in its own list of as many places."""
    if (found := group_of(group, "broadcast_object_list")) is None:
        return
    source = calls._place(found, src, group_src, "broadcast_object_list", "src")
    gives = found.rank() == source
    data = _encoded(list(object_list)) if gives else _empty(0)
    length = ops.tensor([len(data)])
    calls.broadcast(length, group=found, group_src=source)
    if not gives:
        data = _empty(length.item())
    calls.broadcast(data, group=found, group_src=source)
    if not gives:
        came = _decoded(data)
        if len(came) != len(object_list):
            raise ValueError(
                f"broadcast_object_list: {len(came)} objects came for a list of {len(object_list)} places"
            )
        object_list[:] = came


def scatter_object_list(
    scatter_object_output_list: list[Any], scatter_object_input_list: list[Any] | None = None,
    src: int | None = None, group: Any = None, group_src: int | None = None,
) -> None:  # fmt: skip
    """Puts one object of the source's list first in every rank's own."""
    if (found := group_of(group, "scatter_object_list")) is None:
        return
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise ValueError("Expected argument scatter_object_output_list to be a list of size at least 1.")
    source = calls._place(found, src, group_src, "scatter_object_list", "src")
    given = None
    if found.rank() == source:
        _expect_places(scatter_object_input_list, found, "scatter_object_list", "scatter_object_input_list")
        given = [_encoded(x) for x in scatter_object_input_list or []]
    length = ops.zeros(1, dtype=_core.int64)
    lengths = None if given is None else [ops.tensor([len(x)]) for x in given]
    calls.scatter(length, lengths, group=found, group_src=source)
    data = _empty(length.item())
    calls.scatter(data, given, group=found, group_src=source)
    scatter_object_output_list[0] = _decoded(data)


def send_object_list(
    object_list: list[Any], dst: int | None = None, group: Any = None, device: Any = None,
    group_dst: int | None = None, use_batch: bool = False,
) -> None:  # fmt: skip
    """Sends the objects of a list to a rank."""
    data = _encoded(list(object_list))
    calls.send(ops.tensor([len(data)]), dst, group, group_dst=group_dst)
    calls.send(data, dst, group, group_dst=group_dst)


def recv_object_list(
    object_list: list[Any], src: int | None = None, group: Any = None, device: Any = None,
    group_src: int | None = None, use_batch: bool = False,
) -> int:  # fmt: skip
    """Receives as many objects as a list has places, into it: the rank that sent them."""
    length = ops.zeros(1, dtype=_core.int64)
    sender = calls.recv(length, src, group, group_src=group_src)
    if sender < 0:
        return sender
    data = _empty(length.item())
    calls.recv(data, sender, group)
    came = _decoded(data)
    if len(came) != len(object_list):
        raise ValueError(
            f"recv_object_list: {len(came)} objects came for a list of {len(object_list)} places"
        )
    object_list[:] = came
    return sender
