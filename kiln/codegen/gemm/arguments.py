"""What a GEMM kernel is called with: the pass that launches it and the driver that reads it ask here.

The factors are "a" and "b", operands go by their number from 1. Strides are in elements, along the batch's
dims, then along the rows and columns of a factor, or of the block an operand is read for. Any may be 0 or
negative. Of a row's accumulators there are LANES for each GROUP columns, of the last one as many as it has
columns.

    size       of the batch's dims, m, n, k
    stretch    how many rows of A lie evenly, and the stride from such a stretch to the next; if all do, m and
               anything
    window     of the k of B, of its columns, of the k of A: sizes of dims 1 to 3, strides of dims 0 to 3
    columns    of a window: those of an image; of columns that lie evenly how many, and how many columns and
               how many elements each is from the next
    segments   of k that the launch is cut to (split_k.py): the first, how many; the core sets them
"""

from __future__ import annotations

from functools import lru_cache

from kiln.codegen.arguments import Arguments
from kiln.codegen.gemm.spec import GemmSpec

BATCH = 3  # dims of a batch
DIMS = 4  # of a window's k, and of its columns
LOOK = 2 * DIMS - 1  # words that say where one of them lies
EVENLY = ("evenly", "evenly columns", "evenly elements")


@lru_cache(maxsize=64)
def arguments_of(spec: GemmSpec) -> Arguments:
    """The names of the kernel's arguments."""
    return arguments(len(spec.operands), len(spec.numbers), spec.window)


@lru_cache
def arguments(operands: int, numbers: int, window: bool) -> Arguments:
    """The names, of so many operands and numbers. The core adds the parts of a launch cut along k, and
    scratch memory.
    """
    batch, own = range(BATCH), range(1, operands + 1)
    stride: dict[int | str, tuple[int | str, ...]] = {"a": (*batch, "row", "k"), "b": (*batch, "k", "column")}
    stride.update(dict.fromkeys(own, (*batch, "row", "column")))
    return Arguments(
        ("a", "b", *own),
        ("parts", "scratch"),
        size=(*batch, "m", "n", "k"),
        stretch=("rows", "stride"),
        stride=stride,
        number=range(numbers),
        window={name: range(LOOK) for name in ("k", "n", "a")} if window else {},
        columns=("image", *EVENLY) if window else (),
        segments=("first", "count"),
    )
