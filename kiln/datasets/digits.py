"""Handwritten digits: 1797 images of 8x8 pixels, from the UCI repository (source and licence: digits.md).

digits.bin.gz   gzip of 1797 * 64 bytes of pixels (0..16, row-major), then 1797 bytes of labels (0..9)
"""

from __future__ import annotations

import os
import zlib

from kiln import _core, ops
from kiln._core import Tensor
from kiln.errors import message

COUNT, SIDE = 1797, 8
_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "digits.bin.gz")
_GZIP = 16 + zlib.MAX_WBITS


def load_digits() -> tuple[Tensor, Tensor]:
    """(images, labels): uint8 (1797, 8, 8) with values 0 to 16, and int64 (1797,) with values 0 to 9.

    >>> import kiln
    >>> images, labels = kiln.datasets.load_digits()
    >>> images.shape, labels[:4].tolist()
    (kiln.Size([1797, 8, 8]), [0, 1, 2, 3])
    """
    with open(_FILE, "rb") as file:
        unpacker = zlib.decompressobj(_GZIP)
        raw = bytearray(unpacker.decompress(file.read(), COUNT * (SIDE * SIDE + 1) + 1))
    pixels = COUNT * SIDE * SIDE
    if len(raw) != pixels + COUNT or not unpacker.eof:
        raise ValueError(
            message("load_digits", f"{pixels + COUNT} bytes in {_FILE}", str(len(raw)), "reinstall kiln")
        )
    images = ops.frombuffer(raw, dtype=_core.uint8, count=pixels, offset=0).reshape(COUNT, SIDE, SIDE).clone()
    labels = ops.frombuffer(raw, dtype=_core.uint8, count=COUNT, offset=pixels).to(_core.int64)
    return images, labels
