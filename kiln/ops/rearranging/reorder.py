"""Elements at other places of their array: flip, roll, repeat, tril, and the shuffles of channels."""

from __future__ import annotations

from typing import Any

from kiln.ops.creation.constants import filled, positions
from kiln.ops.creation.data import from_numpy
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.indexing.concatenation import concat
from kiln.ops.indexing.gathering import gather, index_select
from kiln.ops.views.core_views import expand, permute, reshape, sizes_of, slice_, transpose
from kiln.table import drawn as d
from kiln.table.arguments import dtype_name, is_symbolic, number, numel
from kiln.table.kinds import normalize_dim, normalize_dims
from kiln.table.public import public
from kiln.table.record import Number, Sizes, Structure, Tensor, composite
from kiln.table.registry import forms

_reshape, _expand, _permute = reshape.handle, expand.handle, permute.handle


@composite(
    dtypes="all",
    public=False,
    samples=d.samples(lambda rng, t: ((d.array(rng, (3, 4), t), (0, 1)), {})),
    reference=d.reference(lambda np, x, dims: np.flip(x, dims)),
)
def flip(input: Tensor, dims: Structure) -> Any:
    """`input` with the order along `dims` (counted from the front) reversed.

    >>> kiln.flip(kiln.tensor([1, 2, 3]), (0,))
    tensor([3, 2, 1])
    """
    for dim in dims:
        last: Any = number(input, input.shape[dim] - 1)
        input = gather(input, dim, last - positions(input, dim))
    return input


@flip.derivative
def _(g: Tensor, dims: tuple[int, ...]) -> Any:
    return flip(g, dims)


_flip = flip.handle


def _copied(input: Tensor) -> Any:
    """`input` in memory of its own, as every function here gives it."""
    return p.clone.handle(input)


forms("flip", "(input, *dims: int)", "(input, dims: int | Sequence[int])")


@public(
    "flip",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 3, 4), t), (0, -1)), {}),
        lambda rng, t: ((d.array(rng, (3, 4), t), [0, 1]), {}),
        lambda rng, t: ((d.array(rng, (0, 2), t), (1,)), {}),
    ),
    failures=d.failures(
        ((d.Zeros(2, 3), (2,)), {}, IndexError, "Dimension out of range"),
        ((d.Zeros(2, 3), (1, 1)), {}, RuntimeError, "appears multiple times"),
    ),
)
def flip_(input: Any, *along: Any, dims: Any = None) -> Any:
    """A copy of `input` with the order along `dims` reversed. IndexError for a dim out of range, RuntimeError
    for one named twice.

    >>> kiln.flip(kiln.tensor([[1, 2], [3, 4]]), (1,))
    tensor([[2, 1],
            [4, 3]])
    """
    given = sizes_of(along if dims is None else (dims,))
    along = normalize_dims(given, input.ndim, "flip") if given else ()
    if not along:
        return _copied(input)
    if 1 < len(along) == input.ndim:  # all of them: as one
        return _reshape(_flip(_reshape(input, (numel(input.shape),)), (0,)), tuple(input.shape))
    return _flip(input, along)


@public(
    "fliplr",
    samples=d.samples(lambda rng, t: ((d.array(rng, (2, 3), t),), {})),
    dtypes="float32 int64",
    failures=d.failures(((d.Zeros(2),), {}, RuntimeError, "must be >= 2-d")),
)
def fliplr(input: Any) -> Any:
    """A copy with dim 1 reversed. RuntimeError for fewer than 2 dims.

    >>> kiln.fliplr(kiln.tensor([[1, 2], [3, 4]]))
    tensor([[2, 1],
            [4, 3]])
    """
    if input.ndim < 2:
        raise RuntimeError("Input must be >= 2-d.")
    return _flip(input, (1,))


@public(
    "flipud",
    samples=d.samples(lambda rng, t: ((d.array(rng, (2, 3), t),), {})),
    dtypes="float32 int64",
    failures=d.failures(((d.Zeros(),), {}, RuntimeError, "must be >= 1-d")),
)
def flipud(input: Any) -> Any:
    """A copy with dim 0 reversed. RuntimeError for a 0-d tensor.

    >>> kiln.flipud(kiln.tensor([1, 2]))
    tensor([2, 1])
    """
    if input.ndim < 1:
        raise RuntimeError("Input must be >= 1-d.")
    return _flip(input, (0,))


@public(
    "rot90",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 3), t),), {}),
        lambda rng, t: ((d.array(rng, (2, 3, 2), t), -1, (1, 2)), {}),
        lambda rng, t: ((d.array(rng, (2, 3), t), 2), {}),
    ),
    dtypes="float32 int64",
    failures=d.failures(
        ((d.Zeros(2),), {}, RuntimeError, "total dims >= 2"),
        ((d.Zeros(2, 2), 1, (0,)), {}, RuntimeError, "rotation dims == 2"),
        ((d.Zeros(2, 2), 1, (0, 0)), {}, RuntimeError, "to be different"),
        ((d.Zeros(2, 2), 1, (0, 2)), {}, IndexError, "out of range"),
    ),
)
def rot90(input: Any, k: int = 1, dims: Any = (0, 1)) -> Any:
    """A copy rotated by k * 90 degrees in the plane of two dims, from the first towards the second.

    RuntimeError unless two different dims are given, IndexError for one out of range.

    >>> kiln.rot90(kiln.tensor([[1, 2], [3, 4]]))
    tensor([[2, 4],
            [1, 3]])
    """
    if len(dims) != 2:
        raise RuntimeError(f"expected total rotation dims == 2, but got dims = {len(dims)}")
    ndim = input.ndim
    if ndim < 2:
        raise RuntimeError(f"expected total dims >= 2, but got total dims = {ndim}")
    a, b = (normalize_dim(dim, ndim, "rot90") for dim in dims)
    if a == b:
        raise RuntimeError(
            f"expected rotation dims to be different, but got dim0 = {dims[0]} and dim1 = {dims[1]}"
        )
    turns = k % 4
    if turns == 0:
        return _copied(input)
    if turns == 2:
        return flip_(input, (a, b))
    return transpose(_flip(input, (b if turns == 1 else a,)), a, b)


@composite(
    dtypes="all",
    public=False,
    samples=d.samples(lambda rng, t: ((d.array(rng, (3, 4), t), (1, 3), (0, 1)), {})),
    reference=d.reference(lambda np, x, shifts, dims: np.roll(x, shifts, dims)),
)
def roll(input: Tensor, shifts: Sizes, dims: Structure) -> Any:
    """`input` with elements moved on by shifts[k], from 0 to its size, along dims[k]; those that leave come
    in at the front.

    >>> kiln.roll(kiln.tensor([1, 2, 3]), 1)
    tensor([3, 1, 2])
    """
    for shift, dim in zip(shifts, dims):
        rest = input.shape[dim] - shift
        input = concat([slice_(input, dim, (rest, shift, 1)), slice_(input, dim, (0, rest, 1))], dim)
    return input


@roll.derivative
def _(g: Tensor, shifts: Any, dims: tuple[int, ...]) -> Any:
    return roll(g, tuple(g.shape[dim] - shift for shift, dim in zip(shifts, dims)), dims)


forms("roll", "(input, shifts, dims: int | Sequence[int] = ())")


@public(
    "roll",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (3, 4), t), 5), {}),
        lambda rng, t: ((d.array(rng, (3, 4), t), (1, -3), (0, -1)), {}),
        lambda rng, t: ((d.array(rng, (0, 2), t), 1, 0), {}),
    ),
    failures=d.failures(
        ((d.Zeros(3), (1, 2)), {}, RuntimeError, "must align"),
        ((d.Zeros(3), 1, 1), {}, IndexError, "Dimension out of range"),
        ((d.Zeros(3), (), ()), {}, RuntimeError, "`shifts` required"),
    ),
)
def roll_(input: Any, shifts: Any, dims: Any = ()) -> Any:
    """A copy with elements moved on by `shifts` along `dims` (an int or several); those that leave come in at
    the front. Without `dims` the flat array is rolled.

    RuntimeError unless there is a shift for every dim, IndexError for a dim out of range.

    >>> kiln.roll(kiln.tensor([1, 2, 3, 4]), 1)
    tensor([4, 1, 2, 3])
    """
    shifts = shifts if isinstance(shifts, (tuple, list)) else (shifts,)
    dims = () if dims is None else dims if isinstance(dims, (tuple, list)) else (dims,)
    if not shifts:
        raise RuntimeError("`shifts` required")
    if not dims and len(shifts) == 1:
        flat = roll_(_reshape(input, (numel(input.shape),)), shifts, 0)
        return _reshape(flat, tuple(input.shape))
    if len(shifts) != len(dims):
        raise RuntimeError(f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}")
    along = tuple(normalize_dim(dim, input.ndim, "roll") for dim in dims)
    if input.ndim == 0:
        raise IndexError(f"Dimension specified as {dims[0]} but tensor has no dimensions")
    if is_symbolic(tuple(input.shape[dim] for dim in along)):
        return _rolled_by_any(input, shifts, along)
    if 0 in input.shape:
        return _copied(input)
    return roll.handle(input, tuple(s % input.shape[dim] for s, dim in zip(shifts, along)), along)


def _rolled_by_any(input: Tensor, shifts: Any, dims: Any) -> Any:
    """`roll` where sizes are symbolic, so that a shift is brought into range for every position."""
    for shift, dim in zip(shifts, dims):
        size = number(input, input.shape[dim])
        place: Any = positions(input, dim)
        places = p.remainder(place - number(input, shift), size)
        input = gather(input, dim, places)
    return input


def _triangle(name: str, keeps: Any) -> Any:
    """The op tril or triu; `keeps` says of row, column and diagonal whether an element stays."""

    def body(input: Tensor, diagonal: Number = 0) -> Tensor:
        if input.ndim < 2:
            raise RuntimeError(f"{name}: input tensor must have at least 2 dimensions")
        rows, columns = (positions(input, input.ndim - k) for k in (2, 1))
        return p.where(keeps(rows + diagonal, columns), input, filled(input.graph, 0, (), input.dtype))

    side, kept = ("below", "[[1, 0], [3, 4]]") if name == "tril" else ("above", "[[1, 2], [0, 4]]")
    body.__name__ = name
    body.__doc__ = f"""Matrices [..., n, m] with zeros but on the `diagonal`-th diagonal (0: the main one)
    and {side} it.

    RuntimeError for fewer than 2 dims.

    >>> kiln.tensor([[1, 2], [3, 4]]).{name}().tolist()
    {kept}
    """
    op = composite(
        dtypes="all",
        inplace=True,
        samples=d.samples(
            lambda rng, t: ((d.array(rng, (4, 3), t),), {}),
            lambda rng, t: ((d.array(rng, (2, 3, 4), t), 1), {}),
            lambda rng, t: ((d.array(rng, (2, 3), t),), {"diagonal": -1}),
        ),
        reference=d.reference(lambda np, x, diagonal=0: getattr(np, name)(x, diagonal)),
        failures=d.failures(((d.Zeros(3),), {}, RuntimeError, "at least 2 dimensions")),
    )(body)
    return op.derivative(lambda g, diagonal: op(g, diagonal))


tril = _triangle("tril", lambda reach, column: column <= reach)
triu = _triangle("triu", lambda reach, column: column >= reach)


# Repeats


@public(
    "repeat",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 3), t), 2, 1, 2), {}),
        lambda rng, t: ((d.array(rng, (), t), (3,)), {}),
        lambda rng, t: ((d.array(rng, (2, 3), t), (0, 1)), {}),
    ),
    failures=d.failures(
        ((d.Zeros(2, 3), 2), {}, RuntimeError, "can not be smaller"),
        ((d.Zeros(2), -1), {}, RuntimeError, "negative dimension"),
    ),
)
def repeat(input: Any, *counts: Any, repeats: Any = None) -> Any:
    """A copy that holds `input` repeats[k] times along dim k; new dims come in front. RuntimeError for fewer
    numbers than dims, or a negative one.

    >>> kiln.tensor([1, 2]).repeat(2, 2)
    tensor([[1, 2, 1, 2],
            [1, 2, 1, 2]])
    """
    counts, shape = sizes_of(counts if repeats is None else (repeats,)), tuple(input.shape)
    if len(counts) < len(shape):
        raise RuntimeError(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor"
        )
    if any(isinstance(n, int) and n < 0 for n in counts):
        raise RuntimeError(f"Trying to create tensor with negative dimension: repeats {list(counts)}")
    padded = (1,) * (len(counts) - len(shape)) + shape
    pairs = [pair for size in padded for pair in (1, size)]
    wide = [pair for n, size in zip(counts, padded) for pair in (n, size)]
    result = _expand(_reshape(input, pairs), wide)
    total = tuple([n * size for n, size in zip(counts, padded)])
    # a view where nothing repeats must still be a copy
    return _reshape(_copied(result), total)


@public(
    "tile",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 3), t), (2,)), {}),
        lambda rng, t: ((d.array(rng, (2,), t), (2, 2)), {}),
    ),
    dtypes="float32 int64",
    failures=d.failures(((d.Zeros(2), (-1,)), {}, RuntimeError, "negative dimension")),
)
def tile(input: Any, *counts: Any, dims: Any = None) -> Any:
    """As `repeat`, but fewer numbers than dims are those of the last dims.

    >>> kiln.tile(kiln.tensor([1, 2]), (2,))
    tensor([1, 2, 1, 2])
    """
    counts = sizes_of(counts if dims is None else (dims,))
    return repeat(input, (1,) * (input.ndim - len(counts)) + tuple(counts))


def _interleaved_positions(repeats: Any, output_size: Any) -> Any:
    """0 repeats[0] times, 1 repeats[1] times, and so on; this reads `repeats`."""
    import numpy as np

    if repeats.ndim > 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if dtype_name(repeats.dtype) not in ("int64", "int32"):
        raise RuntimeError("repeats has to be Long or Int tensor")
    counts = repeats.numpy().reshape(-1)
    if counts.size and counts.min() < 0:
        raise RuntimeError("repeats can not be negative")
    if output_size is not None and output_size != counts.sum():
        raise RuntimeError(
            f"repeat_interleave: allocated size does not match required size: output_size {output_size}, "
            f"sum of repeats {counts.sum()}"
        )
    return from_numpy(np.repeat(np.arange(counts.size), counts))


forms(
    "repeat_interleave",
    "(repeats: Tensor, *, output_size: int | None = None)",
    "(input, repeats: int | Sequence[int] | Tensor, dim=None, *, output_size: int | None = None)",
)


@public(
    "repeat_interleave",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 3), t), 2), {}),
        lambda rng, t: ((d.array(rng, (2, 3), t), 3, 1), {}),
        lambda rng, t: ((d.array(rng, (2, 3), t), rng.integers(0, 3, (3,)), -1), {}),
    ),
    dtypes="float32 int64",
    reads=True,
    failures=d.failures(
        ((d.Zeros(3), -1), {}, RuntimeError, "negative"),
        ((d.Zeros(3), d.Zeros(2, dtype="int64"), 0), {}, RuntimeError, "same size"),
        ((d.Zeros(3), d.Zeros(3), 0), {}, RuntimeError, "Long or Int"),
        ((d.Zeros(3), d.Zeros(1, 3, dtype="int64"), 0), {}, RuntimeError, "only accept 1D vector"),
        ((d.Zeros(3), 1, 1), {}, IndexError, "Dimension out of range"),
    ),
)
def repeat_interleave(
    input: Any, repeats: Any = None, dim: int | None = None, *, output_size: Any = None
) -> Any:
    """A copy with every element along `dim` repeated: `repeats` times, or as often as that tensor of ints
    says (which reads it). Without `dim`, of the flat array. Of one tensor of ints alone: the positions.

    RuntimeError for negative repeats, another dtype or length; IndexError for a dim out of range.

    >>> kiln.repeat_interleave(kiln.tensor([1, 2]), 2)
    tensor([1, 1, 2, 2])
    """
    if repeats is None:
        return p.convert(_interleaved_positions(input, output_size), dtype_name(input.dtype))
    if dim is None:
        input, dim = _reshape(input, (numel(input.shape),)), 0
    dim = normalize_dim(dim, input.ndim, "repeat_interleave")
    if isinstance(repeats, int) and not isinstance(repeats, bool):
        return _each_repeated(input, repeats, dim, output_size)
    input = _reshape(input, (1,)) if input.ndim == 0 else input
    size = input.shape[dim]
    if repeats.numel() == 1:
        repeats = _copied(_expand(_reshape(repeats, (1,)), (size,)))
    if repeats.numel() != size:
        raise RuntimeError("repeats must have the same size as input along dim")
    return index_select(input, dim, _interleaved_positions(repeats, output_size))


def _each_repeated(input: Tensor, repeats: int, dim: int, output_size: Any) -> Any:
    if repeats < 0:
        raise RuntimeError("Repeats must be non-negative")
    shape = tuple(input.shape) or (1,)
    if output_size is not None and output_size != shape[dim] * repeats:
        raise RuntimeError("repeat_interleave: Invalid output_size")
    front, rest = shape[: dim + 1], shape[dim + 1 :]
    wide = _expand(_reshape(input, (*front, 1, *rest)), (*front, repeats, *rest))
    return _reshape(_copied(wide), (*shape[:dim], shape[dim] * repeats, *rest))


# Channels


@public(
    "pixel_shuffle",
    method=False,
    layer=True,
    samples=d.samples(lambda rng, t: ((d.array(rng, (2, 8, 2, 3), t), 2), {})),
    dtypes="float32 bfloat16",
    failures=d.failures(
        ((d.Zeros(2, 2), 2), {}, RuntimeError, "at least 3 dimension"),
        ((d.Zeros(3, 2, 2), 2), {}, RuntimeError, "divisible by"),
        ((d.Zeros(4, 2, 2), 0), {}, RuntimeError, "positive upscale_factor"),
    ),
)
def pixel_shuffle(input: Any, upscale_factor: int) -> Any:
    """[..., c * r * r, h, w] as [..., c, h * r, w * r] for r = upscale_factor. RuntimeError if r * r does not
    divide the channels.

    >>> kiln.nn.functional.pixel_shuffle(kiln.arange(4.0).reshape(4, 1, 1), 2)
    tensor([[[0., 1.],
             [2., 3.]]])
    """
    r, ndim, shape = upscale_factor, input.ndim, tuple(input.shape)
    if r == 1:
        input = p.clone.handle(input)  # its shape stays, and it would be the tensor itself
    if ndim < 3:
        raise RuntimeError(
            f"pixel_shuffle expects input to have at least 3 dimensions, but got {ndim} dimension(s)"
        )
    if r <= 0:
        raise RuntimeError(f"pixel_shuffle expects a positive upscale_factor, but got {r}")
    (*batch, c, h, w) = shape
    if isinstance(c, int) and c % (r * r):
        raise RuntimeError(
            f"pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of "
            f"upscale_factor, but input.size(-3)={c} is not divisible by {r * r}"
        )
    k = len(batch)
    parts = _reshape(input, (*batch, c // (r * r), r, r, h, w))
    return _reshape(
        _permute(parts, (*range(k), k, k + 3, k + 1, k + 4, k + 2)), (*batch, c // (r * r), h * r, w * r)
    )


@public(
    "pixel_unshuffle",
    method=False,
    layer=True,
    samples=d.samples(lambda rng, t: ((d.array(rng, (2, 2, 4, 6), t), 2), {})),
    dtypes="float32 bfloat16",
    failures=d.failures(
        ((d.Zeros(2, 2), 2), {}, RuntimeError, "at least 3 dimension"),
        ((d.Zeros(1, 3, 2), 2), {}, RuntimeError, "divisible by"),
        ((d.Zeros(4, 2, 2), 0), {}, RuntimeError, "positive downscale_factor"),
    ),
)
def pixel_unshuffle(input: Any, downscale_factor: int) -> Any:
    """[..., c, h * r, w * r] as [..., c * r * r, h, w] for r = downscale_factor. RuntimeError if r does not
    divide the last two sizes.

    >>> kiln.nn.functional.pixel_unshuffle(kiln.tensor([[[0.0, 1.0], [2.0, 3.0]]]), 2).flatten()
    tensor([0., 1., 2., 3.])
    """
    r, ndim, shape = downscale_factor, input.ndim, tuple(input.shape)
    if r == 1:
        input = p.clone.handle(input)  # its shape stays, and it would be the tensor itself
    if ndim < 3:
        raise RuntimeError(
            f"pixel_unshuffle expects input to have at least 3 dimensions, but got {ndim} dimension(s)"
        )
    if r <= 0:
        raise RuntimeError(f"pixel_unshuffle expects a positive downscale_factor, but got {r}")
    (*batch, c, h, w) = shape
    for what, size, place in (("height", h, -2), ("width", w, -1)):
        if isinstance(size, int) and size % r:
            raise RuntimeError(
                f"pixel_unshuffle expects {what} to be divisible by downscale_factor, but "
                f"input.size({place})={size} is not divisible by {r}"
            )
    k = len(batch)
    parts = _reshape(input, (*batch, c, h // r, r, w // r, r))
    return _reshape(
        _permute(parts, (*range(k), k, k + 2, k + 4, k + 1, k + 3)), (*batch, c * r * r, h // r, w // r)
    )


@public(
    "channel_shuffle",
    method=False,
    layer=True,
    samples=d.samples(lambda rng, t: ((d.array(rng, (2, 4, 2, 3), t), 2), {})),
    dtypes="float32 bfloat16",
    failures=d.failures(
        ((d.Zeros(2, 2), 2), {}, RuntimeError, "> 2 dims"),
        ((d.Zeros(1, 3, 2), 2), {}, RuntimeError, "divisible by groups"),
        ((d.Zeros(1, 4, 2), 0), {}, RuntimeError, "must be positive"),
    ),
)
def channel_shuffle(input: Any, groups: int) -> Any:
    """[n, groups * c, ...] with its channels taken in turn from every group. RuntimeError if groups do not
    divide the channels.

    >>> kiln.nn.functional.channel_shuffle(kiln.arange(4.0).reshape(1, 4, 1), 2).flatten()
    tensor([0., 2., 1., 3.])
    """
    if input.ndim <= 2:
        raise RuntimeError(
            f"channel_shuffle expects input with > 2 dims, but got input with {input.ndim} dims"
        )
    if groups <= 0:
        raise RuntimeError(
            f"Number of groups to divide channels in must be positive. Value of groups:{groups}"
        )
    n, c, *rest = input.shape
    if isinstance(c, int) and c % groups:
        raise RuntimeError(
            f"Number of channels must be divisible by groups. Got {c} channels and {groups} groups."
        )
    parts = _reshape(input, (n, groups, c // groups, *rest))
    return _reshape(_copied(transpose(parts, 1, 2)), (n, c, *rest))


@public("native_channel_shuffle", method=False, dtypes="float32 bfloat16")
def native_channel_shuffle(input: Any, groups: int) -> Any:
    """`channel_shuffle`, under the name of PyTorch's kernel for it.

    >>> kiln.native_channel_shuffle(kiln.arange(4.0).reshape(1, 4, 1), 2).flatten()
    tensor([0., 2., 1., 3.])
    """
    return channel_shuffle(input, groups)
