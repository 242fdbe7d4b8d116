"""The same values in other memory layouts: what every op must not notice.

contiguous   rows in order
transposed   dims stored in reverse order
strided      every second element of a wider last dim
offset       rows of a larger buffer, not starting at its first element
expanded     the last dim repeated with stride 0 (the values change accordingly)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LAYOUTS = ("contiguous", "transposed", "strided", "offset", "expanded")


def laid_out(framework: Any, values: Array, layout: str, dtype: Any = None) -> Any:
    """A tensor of `values` in `layout`; `dtype` (a framework dtype) converts first, for bfloat16.

    A layout that needs a dim is contiguous on 0-d values. Callers of "expanded" compare with `repeat_last`.
    """
    tensor = framework.from_numpy(np.array(values, order="C")).clone()  # memory that no array shares
    if dtype is not None:
        tensor = tensor.to(dtype)
    if values.ndim == 0 or layout == "contiguous":
        return tensor
    if layout == "transposed":
        order = tuple(reversed(range(values.ndim)))
        return tensor.permute(*order).contiguous().permute(*order)
    if layout == "strided":
        wide = framework.zeros(*values.shape[:-1], 2 * values.shape[-1] + 1, dtype=tensor.dtype)
        view = wide[..., : 2 * values.shape[-1] : 2]
    elif layout == "offset":
        view = framework.zeros(values.shape[0] + 3, *values.shape[1:], dtype=tensor.dtype)[
            1 : values.shape[0] + 1
        ]
    else:
        return tensor[..., :1].contiguous().expand(*values.shape)
    view.copy_(tensor)
    return view


def repeat_last(values: Array) -> Array:
    """The values of layout "expanded": the first of the last dim, repeated."""
    return np.array(np.broadcast_to(values[..., :1], values.shape)) if values.ndim else values
