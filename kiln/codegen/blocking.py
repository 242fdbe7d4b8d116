"""How matrix products are cut for a machine's registers and caches: data of a target, a record per
microkernel.

The loops around a microkernel, outermost first, with the letters that the literature on GEMM uses:

    NC columns                    a block of packed B, KC x NC, stays in the second cache
      KC of k                     sums of earlier k are kept, later ones added to them
        MC rows                   a block of A, MC x KC, stays in the first cache
          panels of NR columns
            tiles of MR rows      MR x NR sums stay in registers

Nothing here decides a bit of a result. What does, the order of sums, is in `gemm/element.py` and
`gemm/amx_tile.py`; what a plan knows, which is kept for every target, in `gemm/grid.py`.
"""

from __future__ import annotations

from typing import NamedTuple


class FmaBlocking(NamedTuple):
    """Products by fused multiply-adds of vectors. KC is the segment that the order of sums has."""

    # MR: rows of register tiles, tallest first, up to 14: two heights or more, and rows end with the last.
    mr: tuple[int, ...]
    vectors: int = 2  # NR: vectors of columns of a register tile, a power of two
    mc: int = 28  # rows: two of the tallest tiles, as a machine's prefetcher follows few rows of outputs
    nc: int = 4  # units of columns, at most: more fill a second cache of 2 MB, and are slower
    nc_with_sums: int = 2  # ... if their sums do not go to the output

    # A B with unit-stride columns is packed from so many rows on; below, it is read in place, and also where
    # its rows are less than so many bytes apart and no vector straddles two cache lines.
    pack_rows: int = 64
    pack_bytes: int = 4096
    # Rows of A a multiple of it apart share few cache sets, k so far apart are on pages of their own: copied.
    crowded_bytes: int = 4096

    swap_panels: int = 8  # rows of up to so many panels are few: their operands may be swapped
    swap_window_panels: int = 4  # ... if B is a window
    swap_window_units: int = 8  # units of columns of a run of few rows, if B is a window
    swap_columns: int = 100  # columns of a window that are worth it if they are no whole tiles
    swap_depth: int = 2  # k for each row, at least: transposing the sums costs as much as packing so many k

    # k of packed B that are asked for ahead; of B in place, whose rows share cache sets, half.
    prefetch_k: int = 16
    prefetch_offsets: int = 8  # k of an A of which a table says where each k lies

    @property
    def edge(self) -> int:
        """The rows of the lowest tile: where rows end, it repeats the last."""
        return self.mr[-1]


class AmxBlocking(NamedTuple):
    """Products by tiles of AMX: MR and NR are two tiles each. Bytes are those of narrow elements."""

    packed_bytes: int  # of B: half of the second cache, as the other half is for sums and rows of A
    kc_bytes: int = 4096  # of k of packed B
    a_bytes: int = (
        1024  # of k of packed A, MR rows of it two thirds of the first cache; sums are stored between
    )
    nc: int = 8  # units of columns
    rows: int = 4224  # that one packing of B serves
    rows_with_sums: int = 1056  # ... if their sums are kept from one KC to the next
