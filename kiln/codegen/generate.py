"""A nest's LLVM text: the schedule that its pattern asks for."""

from __future__ import annotations

from kiln.codegen.columns import emit_columns
from kiln.codegen.maps import emit_map
from kiln.codegen.nest import Nest
from kiln.codegen.rows import emit_rows
from kiln.codegen.rows_many import emit_many_rows
from kiln.codegen.sequence import emit_sequence
from kiln.codegen.strips import emit_strips
from kiln.codegen.target import Target
from kiln.codegen.verify import verify_nest


def nest_text(nest: Nest, target: Target) -> str:
    """The module of one nest for `target`; ValueError for a nest that breaks its grammar."""
    verify_nest(nest, target)
    schedule = nest.schedule()
    if schedule == "columns":
        return emit_columns(nest, target)
    if nest.block == 1:
        return emit_sequence(nest, target)
    if schedule == "strips":
        return emit_strips(nest, target)
    if schedule == "rows":
        return emit_many_rows(nest, target) if nest.dims.count("r") > 1 else emit_rows(nest, target)
    return emit_map(nest, target)
