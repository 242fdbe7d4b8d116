"""Lists of tensors by device and dtype, as optimizers of libraries sort them."""

from __future__ import annotations

from typing import Any, TypeAlias

from kiln._core import Tensor

TensorListList: TypeAlias = list[list[Tensor | None]]
Indices: TypeAlias = list[int]


def _group_tensors_by_device_and_dtype(
    tensorlistlist: TensorListList, with_indices: bool = False
) -> dict[tuple[Any, Any], tuple[TensorListList, Indices]]:
    """Lists beside each other, sorted by the first list's tensors: for each device and dtype the parts of all
    lists, and with `with_indices` where those were.
    """
    found: dict[tuple[Any, Any], tuple[TensorListList, Indices]] = {}
    for index, row in enumerate(zip(*tensorlistlist, strict=True)):
        first = row[0]
        assert first is not None, "expected tensors in the first list"
        lists, indices = found.setdefault((first.device, first.dtype), ([[] for _ in row], []))
        for part, tensor in zip(lists, row):
            part.append(tensor)
        if with_indices:
            indices.append(index)
    return found


def _get_foreach_kernels_supported_devices() -> list[str]:
    """Devices where a function of a list is faster than a loop: none that is here."""
    return ["cuda", "xpu", "mtia"]


def _get_fused_kernels_supported_devices() -> list[str]:
    """Devices whose optimizers step in one kernel."""
    return ["cpu"]


def _has_foreach_support(tensors: list[Tensor], device: Any) -> bool:
    """Whether a function of these tensors takes them all at once: False, it is a loop."""
    return False


_device_has_foreach_support = _has_foreach_support
