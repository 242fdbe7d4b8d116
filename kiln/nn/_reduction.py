"""What `size_average` and `reduce` mean, the flags of losses before `reduction`."""

from __future__ import annotations

from kiln.errors import warn


def get_enum(reduction: str) -> int:
    """PyTorch's number of a reduction: none 0, mean 1, sum 2. ValueError for another."""
    if reduction == "elementwise_mean":
        warn("reduction='elementwise_mean' is deprecated. Please use reduction='mean' instead.")
        return 1
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return ("none", "mean", "sum").index(reduction)


def legacy_get_string(size_average: bool | None, reduce: bool | None, emit_warning: bool = True) -> str:
    """The reduction that the two flags mean, None being True; a warning says so unless `emit_warning` is
    False.
    """
    if reduce is False:
        found = "none"
    else:
        found = "sum" if size_average is False else "mean"
    if emit_warning:
        warn(f"size_average and reduce args will be deprecated, please use reduction='{found}' instead.")
    return found


def legacy_get_enum(size_average: bool | None, reduce: bool | None, emit_warning: bool = True) -> int:
    """The number of the reduction that the two flags mean."""
    return get_enum(legacy_get_string(size_average, reduce, emit_warning))
