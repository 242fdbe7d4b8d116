"""The order of arithmetic, in numbers: it is the same on every machine, and so these are never tuned.

How they are used stands in docs/architecture.md, "Order of arithmetic".
"""

from __future__ import annotations

LANES = 16  # of a reduction: element i goes to lane i mod 16
CHAIN = 8  # elements of a lane that are reduced left to right, then onto its total
GROUP = CHAIN * LANES  # elements after which every lane has a chain
REDUCE_BLOCK = 16384  # elements that are reduced by lanes; results of blocks are combined ascending
SEGMENT = 512  # k of a product after which the chain starts anew; the segments' sums are added ascending
ATTENTION_ROWS = 48  # queries whose products are one chain in the gradients of keys and values
