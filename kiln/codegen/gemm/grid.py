"""How a launch of a product is divided into units of work: what plans know, which are kept for every target.

    units in order of    batch | group of rows | columns | rows inside the group

A unit is UNIT_ROWS rows by up to UNIT_BYTES of columns of one batch index; of products of one row,
ROW_COLUMNS columns. `GemmSpec` says how many there are.
"""

from __future__ import annotations

from kiln.codegen.gemm.element import Element
from kiln.table.order import GROUP

UNIT_ROWS = 24
UNIT_BYTES = 512  # of summed elements, at most: 128 columns of float32, 64 of float64
COLUMN_STEPS = 4  # columns of a unit are as many such parts of UNIT_BYTES as make units about equally wide
ROW_COLUMNS = 512  # enough of each row of B that memory is read as it streams, whoever has the next unit
SCRATCH_BYTES = 9 << 18  # a thread's memory, divided by each microkernel in its way
PART_PITCH = 128  # bytes that rows of a part are a multiple of: whole panels, or 16 sums, end inside them
EVEN_COLUMNS = 8  # of a window that lie evenly, at least, to be rows of the transposed product
TILED = ("bfloat16", "int8", "uint8")  # dtypes of products that run on AMX where there is one


def unit_columns(element: Element, folds: bool = False) -> int:
    """The columns of a unit: whole groups of those whose accumulators it leaves, if it `folds` its rows."""
    columns = UNIT_BYTES // element.bytes
    return max(columns, GROUP) if folds else columns


def row_columns(element: Element) -> int:
    """The columns of a unit of one row; of bfloat16 those of all products: tiles of AMX may multiply it."""
    return unit_columns(element) if element.dtype == "bfloat16" else ROW_COLUMNS
