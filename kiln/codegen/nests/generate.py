"""A nest's LLVM text: the schedule that its pattern asks for."""

from __future__ import annotations

from kiln.codegen.nests.nest import Nest
from kiln.codegen.target import Target
from kiln.codegen.verify import verify_nest
from kiln.late import later

_columns = later("kiln.codegen.nests.columns", "emit_columns")
_sequence = later("kiln.codegen.nests.sequence", "emit_sequence")
_strips = later("kiln.codegen.nests.strips", "emit_strips")
_rows = later("kiln.codegen.nests.rows", "emit_rows")
_many_rows = later("kiln.codegen.nests.rows_many", "emit_many_rows")
_map = later("kiln.codegen.nests.maps", "emit_map")


def nest_text(nest: Nest, target: Target) -> str:
    """The module of one nest for `target`; ValueError for a nest that breaks its grammar."""
    verify_nest(nest, target)
    schedule = nest.schedule()
    if schedule == "columns":
        emit = _columns
    elif nest.block == 1:
        emit = _sequence
    elif schedule == "strips":
        emit = _strips
    elif schedule == "rows":
        emit = _many_rows if nest.dims.count("r") > 1 else _rows
    else:
        emit = _map
    text: str = emit(nest, target)
    return text
