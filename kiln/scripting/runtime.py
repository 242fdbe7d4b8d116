"""What rewritten code calls, in one place; `functions.py` gives it this module under a name of its own."""

from __future__ import annotations

import sys

from kiln.scripting.blocks import UNSET
from kiln.scripting.calls import call, new
from kiln.scripting.conditions import and_, chain, choose, clear, compared, contains, not_, or_, python
from kiln.scripting.failing import raised
from kiln.scripting.functions import runtime_cell
from kiln.scripting.items import augment, augment_attr, augment_item, del_item, item, set_attr, set_item
from kiln.scripting.statements import (
    annotated,
    assert_,
    for_,
    if_,
    listed,
    over,
    returned,
    shown,
    trying,
    while_,
)

slice = slice  # a key that is one

__all__ = [
    "UNSET", "and_", "annotated", "assert_", "augment", "augment_attr", "augment_item", "call", "chain",
    "choose", "clear", "compared", "contains", "del_item", "for_", "if_", "item", "listed", "new", "not_",
    "or_", "over", "python", "raised", "returned", "set_attr", "set_item", "shown", "slice", "trying",
    "while_",
]  # fmt: skip

runtime_cell.cell_contents = sys.modules[__name__]
