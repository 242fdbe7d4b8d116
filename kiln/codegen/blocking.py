"""How matrix products are cut for a machine's registers and caches: a record of each target (target.py).

The loops around a microkernel, outermost first, with the letters that the literature on GEMM uses:

    NC columns                    a block of packed B, KC x NC, stays in the second cache
      KC of k                     sums of earlier k are kept, later ones added to them
        MC rows                   a block of A, MC x KC, stays in the first cache
          panels of NR columns
            tiles of MR rows      MR x NR sums stay in registers

NC is counted in units of columns, 512 bytes of sums each (128 columns of float32), and is at most what fits
the target's second cache (`gemm/workspace.py`). NR follows from the width of a target's vectors, MR from how
many there are. Nothing here decides a bit of a result: the order of sums is in `kiln/table/order.py` (KC) and
`gemm/amx_tile.py`. What plans know, which are kept for every target, is in `gemm/grid.py`.
"""

from __future__ import annotations

from kiln.tuples import NamedTuple


class FmaBlocking(NamedTuple):
    """Products by fused multiply-adds of vectors. KC is the segment that the order of sums has."""

    # MR: rows of register tiles, tallest first, up to 14; at least two heights, the lowest for what is left.
    mr: tuple[int, ...]
    vectors: int = 2  # NR: vectors of columns of a register tile, a power of two
    mc: int = 28  # rows: two of the tallest tiles, as a machine's prefetcher follows few rows of outputs
    nc: int = 4  # units of columns, at most: more fill a second cache of 2 MB, and are slower
    nc_with_sums: int = 2  # ... if their sums do not go to the output
    narrow: int = 14  # MR of a tile that is one vector wide, at most 14

    # A B with unit-stride columns is packed from so many rows on. Below, it is read in place, unless its rows
    # share few cache sets and more than one tile reads them; so it is if its rows are less than so many bytes
    # apart and its vectors aligned.
    pack_rows: int = 64
    pack_bytes: int = 4096
    # Rows of A, or of B, a multiple of it apart share few cache sets, k of A so far apart are on pages of
    # their own: copied.
    crowded_bytes: int = 4096

    transposed: int = 8  # rows whose columns are transposed in registers: such tiles leave some for that
    squares: bool = False  # ... by squares, if columns are whole vectors and there are registers enough
    panel_rows: int = 8  # rows for which a panel of such a B is packed, multiplied and forgotten
    swap_panels: int = 8  # rows of up to so many panels are few: their operands may be swapped
    swap_window_panels: int = 4  # ... if B is a window
    swap_window_units: int = 8  # units of columns of a run of few rows, if B is a window
    swap_columns: int = 100  # columns of a window that are worth it if they are no whole tiles
    swap_depth: int = 2  # k for each row, at least: transposing the sums costs as much as packing so many k

    # k of packed B that are asked for ahead; of B in place, whose rows share cache sets, half.
    prefetch_k: int = 16
    prefetch_offsets: int = 8  # k of an A of which a table says where each k lies

    @property
    def edges(self) -> tuple[int, int]:
        """The rows of the two lowest tiles: where rows end, they repeat the last."""
        return self.mr[-2], self.mr[-1]


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
