"""`kiln.save` and `kiln.load`: any object in a file, in PyTorch's format or in that of safetensors.

    save     PyTorch's zip archive, which torch.load reads; a path that ends in .safetensors: that format
    load     either of them, and PyTorch's older format, told by their first bytes

What a file holds is data until the program says otherwise: `load` runs nothing of it. Reading checks before
it allocates; writing is atomic: beside, synced, renamed, so the old file survives any failure.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from kiln.late import names_of as _names_of

if _TYPE_CHECKING:
    from kiln.serialization.saving import *  # noqa: F403

_names_of(__name__, "kiln.serialization.saving")
