"""Sequences of several lengths: padded to one, or packed without padding.

A PackedSequence holds the rows of all steps behind each other: first those of step 0, one of each sequence,
the longest sequence first; then those of step 1, of as many sequences as are that long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Union

from kiln import _core, ops
from kiln._core import Tensor
from kiln.table.callables import name_all

Lengths = Union[Tensor, Sequence[int]]


class _Packed(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Packed):
    """Rows of sequences in order of time: `data` (rows, ...), `batch_sizes` (steps), and the places of the
    sequences sorted by length and back, if they were not sorted.

    Made by `pack_padded_sequence` and `pack_sequence`.
    """

    __slots__ = ()

    def __new__(
        cls,
        data: Any,
        batch_sizes: Tensor | None = None,
        sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> PackedSequence:
        if batch_sizes is None:
            if not (isinstance(data, (list, tuple)) and len(data) == 2):
                raise AssertionError("Expected data to be a list or tuple of length 2")
            data, batch_sizes = data
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def _with(self, data: Tensor) -> PackedSequence:
        """The same places with other data."""
        if data is self.data:
            return self
        return type(self)(data, self.batch_sizes, self.sorted_indices, self.unsorted_indices)

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """The data as `Tensor.to` gives it; itself if that changes nothing."""
        return self._with(self.data.to(*args, **kwargs))

    def cpu(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """Itself: that is where the data is."""
        return self.to(*args, **kwargs)

    def cuda(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """AssertionError, as for tensors: kiln runs on the CPU."""
        return self._with(self.data.cuda(*args, **kwargs))

    def pin_memory(self) -> PackedSequence:
        """Itself: there is no other memory."""
        return self

    def double(self) -> PackedSequence:
        """The data as float64."""
        return self._with(self.data.double())

    def float(self) -> PackedSequence:
        """The data as float32."""
        return self._with(self.data.float())

    def half(self) -> PackedSequence:
        """The data as float16."""
        return self._with(self.data.half())

    def long(self) -> PackedSequence:
        """The data as int64."""
        return self._with(self.data.long())

    def int(self) -> PackedSequence:
        """The data as int32."""
        return self._with(self.data.int())

    def short(self) -> PackedSequence:
        """The data as int16."""
        return self._with(self.data.short())

    def char(self) -> PackedSequence:
        """The data as int8."""
        return self._with(self.data.char())

    def byte(self) -> PackedSequence:
        """The data as uint8."""
        return self._with(self.data.byte())

    @property
    def is_cuda(self) -> bool:
        """Whether the data is on a GPU."""
        return bool(self.data.is_cuda)

    def is_pinned(self) -> bool:
        """Whether the data is in pinned memory: never."""
        return False


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The permutation that undoes one; None of None.

    >>> import kiln
    >>> invert_permutation(kiln.tensor([2, 0, 1]))
    tensor([1, 2, 0])
    """
    if permutation is None:
        return None
    places = ops.arange(permutation.numel(), dtype=permutation.dtype)
    found: Tensor = ops.empty_like(permutation).scatter_(0, permutation, places)
    return found


def _in_time(sizes: Sequence[int], steps: int, batch: int, batch_first: bool) -> Tensor:
    """Where the rows of packed steps lie among those of a padded batch."""
    across, along = (1, batch) if not batch_first else (steps, 1)
    found: Tensor = ops.tensor([t * along + b * across for t, n in enumerate(sizes) for b in range(n)])
    return found


def _listed(lengths: Lengths) -> list[int]:
    if not isinstance(lengths, Tensor):
        return [int(n) for n in lengths]
    if lengths.ndim != 1:
        raise RuntimeError(
            f"'lengths' argument should be a 1D CPU int64 tensor, but got {lengths.ndim}D cpu tensor"
        )
    return [int(n) for n in lengths.tolist()]


def pack_padded_sequence(
    input: Tensor, lengths: Lengths, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """The rows of a padded batch (T, B, ...), or (B, T, ...), that belong to its sequences of these lengths.

    Lengths must fall unless `enforce_sorted` is False: then the sequences are sorted here. RuntimeError for
    lengths that do not fit.

    >>> import kiln
    >>> pack_padded_sequence(kiln.tensor([[1, 2], [3, 0]]), [2, 1]).data
    tensor([1, 2, 3])
    """
    numbers, batch_dim = _listed(lengths), 0 if batch_first else 1
    if not input.numel():
        raise RuntimeError("Cannot pack empty tensors.")
    batch, steps = input.shape[batch_dim], input.shape[1 - batch_dim]
    if len(numbers) != batch:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {len(numbers)} (batch_size={batch})"
        )
    if min(numbers) <= 0:
        raise RuntimeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0"
        )
    order = None
    if not enforce_sorted:
        places = sorted(range(batch), key=lambda k: -numbers[k])
        numbers, order = [numbers[k] for k in places], ops.tensor(places)
        input = input.index_select(batch_dim, order)
    elif any(a < b for a, b in zip(numbers, numbers[1:])):
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass "
            "`enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this "
            "requirement if you do not need ONNX exportability."
        )
    if numbers[0] > steps:
        raise RuntimeError(
            f"pack_padded_sequence: expected lengths of at most {steps} steps, got {numbers[0]}"
        )
    sizes = [sum(n > t for n in numbers) for t in range(numbers[0])]
    rows = input.reshape(steps * batch, *input.shape[2:])
    return PackedSequence(rows[_in_time(sizes, steps, batch, batch_first)], ops.tensor(sizes), order)


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The padded batch (T, B, ...), or (B, T, ...), of a PackedSequence, and its lengths, in the order the
    sequences had before they were sorted. ValueError for a `total_length` that is too short.

    >>> import kiln
    >>> pad_packed_sequence(pack_sequence([kiln.tensor([1, 3]), kiln.tensor([2])]))
    (tensor([[1, 2],
            [3, 0]]), tensor([2, 1]))
    """
    data, sizes = sequence.data, [int(n) for n in sequence.batch_sizes.tolist()]
    steps, batch = len(sizes), sizes[0]
    if total_length is not None:
        if total_length < steps:
            raise ValueError(
                "Expected total_length to be at least the length of the longest sequence in input, but got "
                f"total_length={total_length} and max sequence length being {steps}"
            )
        steps = total_length
    padded = _placed(data, _in_time(sizes, steps, batch, batch_first), steps * batch, padding_value)
    padded = padded.reshape(*((batch, steps) if batch_first else (steps, batch)), *data.shape[1:])
    lengths = ops.tensor([sum(n > k for n in sizes) for k in range(batch)])
    places = sequence.unsorted_indices
    if places is None:
        return padded, lengths
    return padded.index_select(0 if batch_first else 1, places), lengths[places]


def _placed(rows: Tensor, places: Tensor, count: int, padding: float) -> Tensor:
    """`count` rows of padding, but for those at the places."""
    found: Tensor = ops.full((count, *rows.shape[1:]), padding, dtype=rows.dtype).index_copy(0, places, rows)
    return found


def pad_sequence(
    sequences: Iterable[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Sequences (L, ...) of several lengths as one batch (T, B, ...), or (B, T, ...), padded at one side.

    RuntimeError for no sequences, for other sizes that differ and for an unknown side.

    >>> import kiln
    >>> pad_sequence([kiln.tensor([1, 2]), kiln.tensor([3])], batch_first=True)
    tensor([[1, 2],
            [3, 0]])
    """
    if not isinstance(sequences, Iterable):
        kind = type(sequences)
        raise RuntimeError(
            f"pad_sequence: Expected iterable for input sequences, but got arg of type: {kind}"
        )
    parts = list(sequences)
    if not parts:
        raise RuntimeError("received an empty list of sequences")
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"Expected padding_side to be one of left or right, but got {padding_side}.")
    rest = tuple(parts[0].shape[1:])
    for x in parts:
        if tuple(x.shape[1:]) != rest:
            raise RuntimeError(
                f"pad_sequence: expected sequences whose sizes but the first are {list(rest)}, got "
                f"{list(x.shape)}: output with that shape doesn't match the broadcast shape"
            )
    steps, batch = max(x.shape[0] for x in parts), len(parts)
    across, along = (steps, 1) if batch_first else (1, batch)
    first = [0 if padding_side == "right" else steps - x.shape[0] for x in parts]
    places = [(first[k] + t) * along + k * across for k, x in enumerate(parts) for t in range(x.shape[0])]
    padded = _placed(ops.cat(parts), ops.tensor(places, dtype=_core.int64), steps * batch, padding_value)
    found: Tensor = padded.reshape(*((batch, steps) if batch_first else (steps, batch)), *rest)
    return found


def unpad_sequence(padded_sequences: Tensor, lengths: Lengths, batch_first: bool = False) -> list[Tensor]:
    """The sequences of a padded batch (T, B, ...), or (B, T, ...), each as long as it was.

    >>> import kiln
    >>> unpad_sequence(kiln.tensor([[1, 2], [3, 0]]), [2, 1])
    [tensor([1, 3]), tensor([2])]
    """
    rows = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    numbers = _listed(lengths)
    if len(numbers) != rows.shape[0]:
        raise ValueError(
            f"unpad_sequence: expected a length for each of {rows.shape[0]} sequences, got {len(numbers)}"
        )
    return [x[:n] for x, n in zip(rows, numbers)]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Sequences (L, ...) packed; see `pack_padded_sequence`.

    >>> import kiln
    >>> pack_sequence([kiln.tensor([1, 3]), kiln.tensor([2])]).batch_sizes
    tensor([2, 1])
    """
    lengths = [x.shape[0] for x in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences of a PackedSequence, in the order they had before they were sorted.

    >>> import kiln
    >>> unpack_sequence(pack_sequence([kiln.tensor([1, 3]), kiln.tensor([2])]))
    [tensor([1, 3]), tensor([2])]
    """
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)


name_all(globals(), "kiln.nn")
