"""Batches of samples of different lengths: of about one length each, and filled up to the longest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kiln import _core, ops
from kiln._core import Tensor
from kiln.errors import message
from kiln.table.callables import named
from kiln.utils.data._utils.collate import collate, default_collate_fn_map
from kiln.utils.data.sampler import Sampler, drawn_seed, own_generator, permutation

if TYPE_CHECKING:
    from kiln.ops.random.generator import Generator


class BucketBatchSampler(Sampler[list[int]]):
    """Batches of samples of about one length, so that little is filled up.

    `lengths`: each sample's, by index, as a sequence or a tensor of one dim. The samples, in a random order
    each time unless `shuffle` is False, are cut into buckets of `bucket_batches` batches; a bucket is sorted
    by length, and cut into batches of `batch_size`; then the batches come in a random order. One bucket of
    all samples (0) pads least, small buckets are the most random. `drop_last` leaves out batches that are
    shorter. Give it to a loader as `batch_sampler`. ValueError for sizes that are no int above 0.

    >>> import kiln
    >>> list(kiln.utils.data.BucketBatchSampler([5, 1, 4, 2], 2, shuffle=False))
    [[1, 3], [2, 0]]
    """

    def __init__(
        self,
        lengths: Sequence[int] | Tensor,
        batch_size: int,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        bucket_batches: int = 100,
        generator: Generator | None = None,
    ) -> None:
        if (
            type(batch_size) is not int
            or batch_size <= 0
            or type(bucket_batches) is not int
            or bucket_batches < 0
        ):
            came = f"batch_size={batch_size}, bucket_batches={bucket_batches}"
            raise ValueError(message("BucketBatchSampler", "batch_size > 0 and bucket_batches >= 0", came))
        self.lengths: list[int] = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.bucket_batches = bucket_batches
        self.generator = generator

    def __iter__(self) -> Iterator[list[int]]:
        size, width = len(self.lengths), self.batch_size
        generator = self.generator or (own_generator(drawn_seed()) if self.shuffle else None)
        order = permutation(size, generator) if self.shuffle else list(range(size))
        bucket = self.bucket_batches * width or max(size, 1)
        batches: list[list[int]] = []
        for start in range(0, size, bucket):
            alike = sorted(order[start : start + bucket], key=self.lengths.__getitem__)
            batches += [alike[k : k + width] for k in range(0, len(alike), width)]
        if self.drop_last:
            batches = [batch for batch in batches if len(batch) == width]
        places = permutation(len(batches), generator) if self.shuffle and batches else range(len(batches))
        return iter([batches[k] for k in places])

    def __len__(self) -> int:
        size, width = len(self.lengths), self.batch_size
        return size // width if self.drop_last else -(-size // width)


class Padded(NamedTuple):
    """A batch of different lengths: `values` (batch, longest, ...), and `lengths` (batch), int64."""

    values: Tensor
    lengths: Tensor


def pad_collate(batch: Sequence[Any], *, padding_value: float = 0.0, padding_side: str = "right") -> Any:
    """What `default_collate` does, for samples whose tensors have different lengths along their first dim.

    Every tensor, or NumPy array, of one dim or more becomes a pair (values, lengths): of shapes (L, *) there
    come values of shape (batch, longest L, *) of the same dtype, filled up with `padding_value` at the
    `padding_side` "right" or "left", and their lengths, an int64 tensor of shape (batch,). Numbers, texts and
    tensors without dims are batched as ever. Other settings: `functools.partial(pad_collate,
    padding_value=-1)`. ValueError for another side, RuntimeError for tensors that differ in more than their
    first dim.

    >>> import kiln
    >>> (x, lengths), y = kiln.utils.data.pad_collate([(kiln.tensor([1, 2]), 0), (kiln.tensor([3]), 1)])
    >>> x, lengths, y
    (tensor([[1, 2],
            [3, 0]]), tensor([2, 1]), tensor([0, 1]))
    """
    if padding_side not in ("left", "right"):
        raise ValueError(message("pad_collate", "padding_side 'left' or 'right'", repr(padding_side)))
    of_tensors = partial(_padded, padding_value, padding_side)
    return collate(batch, collate_fn_map={**default_collate_fn_map, Tensor: of_tensors})


def _padded(padding_value: float, side: str, batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    first = batch[0]
    if not first.ndim:
        return ops.stack(list(batch))
    if any(x.dtype is not first.dtype or x.shape[1:] != first.shape[1:] for x in batch):
        shapes = sorted({f"{x.dtype.name}{list(x.shape)}" for x in batch})
        raise RuntimeError(message("pad_collate", "tensors alike but for their first dim", ", ".join(shapes)))
    lengths = [x.shape[0] for x in batch]
    longest = max(lengths)
    values: Any = ops.full((len(batch), longest, *first.shape[1:]), padding_value, dtype=first.dtype)
    for row, x, length in zip(values, batch, lengths, strict=True):
        if length:
            row.narrow(0, longest - length if side == "left" else 0, length).copy_(x)
    return Padded(values, ops.tensor(lengths, dtype=_core.int64))


pad_collate = named("pad_collate", pad_collate)
