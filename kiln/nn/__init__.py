"""Modules, layers, losses and their helpers, under PyTorch's names; see README.md.

They are imported when one is first asked for: who loads a program needs `Module` alone, which is in a file of
its own.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from kiln.late import names_of as _names_of

if _TYPE_CHECKING:
    from kiln.nn.names import *  # noqa: F403

_names_of(__name__, "kiln.nn.names")
