"""Max pools undone: every element back at the place its index names, zeros elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from kiln.ops.creation.constants import zeros
from kiln.ops.indexing.scattering import scatter
from kiln.ops.views.core_views import reshape
from kiln.ops.windows.geometry import Ints, listed, per_dim, require
from kiln.ops.windows.max_pools import described
from kiln.table import drawn as d
from kiln.table.arguments import dtype_name, numel, type_name
from kiln.table.public import public
from kiln.table.record import Sample, Tensor

_reshape = reshape.handle


def _sizes(name: str, input: Tensor, kernel: Any, stride: Any, padding: Any, output_size: Any) -> Ints:
    """The sizes of the result; ValueError for sizes that no pool makes `input`'s of."""
    dims = int(name[-2])
    kernel = per_dim(kernel, dims, name, "kernel_size")
    stride = kernel if stride is None else per_dim(stride, dims, name, "stride")
    padding = per_dim(padding, dims, name, "padding")
    usual = tuple(
        (n - 1) * s + k - 2 * p for n, s, k, p in zip(tuple(input.shape)[-dims:], stride, kernel, padding)
    )
    if output_size is None:
        return usual
    wanted = tuple(output_size) if isinstance(output_size, Sequence) else (output_size,)
    if len(wanted) == dims + 2:
        wanted = wanted[-dims:]
    require(
        len(wanted) == dims,
        f"output_size should be a sequence containing {dims} or {dims + 2} elements, but it has a length of "
        f"'{len(wanted)}'",
        ValueError,
    )
    for k, (n, w, s) in enumerate(zip(usual, wanted, stride)):
        require(
            n - s < w < n + s,
            f'invalid output_size "{tuple(wanted)}" (dim {k} must be between {n - s} and {n + s})',
            ValueError,
        )
    return wanted


def _unpooled(
    name: str, input: Tensor, indices: Tensor, kernel: Any, stride: Any, padding: Any, output_size: Any
) -> Any:
    dims, shape = int(name[-2]), tuple(input.shape)
    kind = dtype_name(indices.dtype)
    require(kind == "int64", f"elements in indices should be type int64 but got: {type_name(kind)}")
    require(
        len(shape) in (dims + 1, dims + 2),
        f"Input to max_unpooling{dims}d should be a {dims + 1}d or {dims + 2}d Tensor, but got a tensor with "
        f"{len(shape)} dimensions.",
    )
    require(
        tuple(indices.shape) == shape,
        f"Expected shape of indices to be same as that of the input tensor ({listed(shape)}) but got indices "
        f"tensor with shape: {listed(indices.shape)}",
    )
    sizes = _sizes(name, input, kernel, stride, padding, output_size)
    lead = shape[:-dims]
    flat = (numel(lead), numel(shape[-dims:]))
    result = zeros(flat[0], numel(sizes), dtype=input.dtype)
    try:
        found = scatter(result, 1, _reshape(indices, flat), _reshape(input, flat))
    except (IndexError, RuntimeError) as error:
        if "out of bounds" not in str(error):
            raise
        (index,) = re.findall(r"index (-?[0-9]+) is", str(error))
        raise RuntimeError(
            f"Found an invalid max index: {index} (output volumes are of size {'x'.join(map(str, sizes))})"
        ) from error
    return _reshape(found, (*lead, *sizes))


def _cases(dims: int) -> Any:
    def make(rng: Any, t: str) -> Any:
        shape = (2, 3, *(2,) * dims)
        index = rng.permuted([range(4**dims)] * 6, axis=1)[:, : 2**dims].reshape(shape)
        return [
            Sample((d.array(rng, shape, t), index, 2)),
            Sample((d.array(rng, shape[1:], t), index[0], 2), {"output_size": (5,) * dims}),
        ]

    return make


def _failures(dims: int) -> Any:
    x, at = d.Zeros(1, *(2,) * dims), d.Zeros(1, *(2,) * dims, dtype="int64", value=99)
    return d.failures(
        ((x, at, 2), {}, RuntimeError, "Found an invalid max index: 99"),
        ((x, x, 2), {}, RuntimeError, "should be type int64"),
        ((x, d.Zeros(1, dtype="int64"), 2), {}, RuntimeError, "Expected shape of indices to be same"),
        ((x, at, 2), {"output_size": (9,) * dims}, ValueError, "invalid output_size"),
    )


_DOC = """Zeros with the elements of [C, {1}] or [N, C, {1}] at the places `indices` (int64, as max pools give
    them) name in each plane; of equal places the last one written stays.

    Sizes are those of what a pool of this window, `stride` (None: the window's) and `padding` was made from,
    as far as that can be known, or `output_size`. RuntimeError for an index or sizes that do not fit.

    >>> kiln.nn.functional.{2}(kiln.ones({5}), kiln.ones({5}, dtype=kiln.int64), 2).sum()
    tensor(1.)
    """


def _unpool(dims: int) -> Any:
    name = f"max_unpool{dims}d"

    def unpool(
        input: Tensor,
        indices: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        output_size: Any = None,
    ) -> Any:
        return _unpooled(name, input, indices, kernel_size, stride, padding, output_size)

    ones = "1, " * dims + "1"
    unpool.__doc__ = described(_DOC.replace("{5}", ones), name, dims, "")
    return public(
        name, method=False, layer=True, dtypes="float32", samples=_cases(dims), failures=_failures(dims)
    )(unpool)


max_unpool1d, max_unpool2d, max_unpool3d = map(_unpool, (1, 2, 3))
