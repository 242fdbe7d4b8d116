"""Maps over rows of which a vector holds several, against NumPy: every width, layout, cut and level."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from codegen_peer import reads, writes
from matmul_peer import Guarded
from test_codegen_nest import LEVEL_NAMES, check, draw, index, load

from kiln.codegen.ir.memory import MEMORY, compute_type
from kiln.codegen.nests.frame import Frame
from kiln.codegen.nests.maps_narrow import Narrow
from kiln.codegen.nests.nest import Nest
from kiln.codegen.target import LEVELS
from kiln.scalars.scalar import Scalar, convert, select

Array = np.ndarray[Any, Any]
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 13, 16)
ROWS = (0, 7, 47, 192, 250)


class Layout(NamedTuple):
    """An operand: the size of its array, the classes it has as an operand, and how it is read."""

    size: Callable[[int, int], tuple[int, ...]]
    classes: str
    seen: Callable[[Array, int], Array] = lambda x, width: x


RUNS = Layout(lambda rows, width: (rows, width), "s1")
APART = Layout(lambda rows, width: (rows, width + 2), "s1", lambda x, width: x[:, :width])
SAME = Layout(lambda rows, width: (1, width), "s1")  # of an eager call, whose classes do not tell it
ROW = Layout(lambda rows, width: (1, width), "01")
COLUMN = Layout(lambda rows, width: (rows, 1), "s0")
ELEMENT = Layout(lambda rows, width: (1, 1), "00")
BACKWARDS = Layout(lambda rows, width: (rows, width), "ss", lambda x, width: x[:, ::-1])
TRANSPOSED = Layout(lambda rows, width: (width, rows), "1s", lambda x, width: x.T)
TABLE = Layout(lambda rows, width: (rows, 3), "s1", lambda x, width: x)

SUM = load(0) + load(1)
CASES: dict[str, tuple[tuple[Layout, ...], Scalar]] = {
    "the same row": ((RUNS, SAME), SUM),
    "the same row of a plan": ((ROW, RUNS), SUM),
    "two rows": ((SAME, ROW, RUNS), (load(0) * load(1)).eq(load(2))),
    "only a row": ((SAME,), load(0)),
    "a column": ((RUNS, COLUMN), SUM),
    "an element": ((ELEMENT, SAME), SUM),
    "backwards": ((BACKWARDS, SAME), SUM),
    "a column and the other order": ((COLUMN, TRANSPOSED), SUM),
    "rows apart": ((APART, SAME), SUM),
    "computed places": ((RUNS, TABLE), load(0) + load(1, "f32", index(0), index(1) & 1)),
    "positions": ((RUNS,), load(0) + convert(index(0) * 5 - index(1), "f32")),
}


def compare(
    layouts: tuple[Layout, ...], value: Scalar, dtype: str, to: str, rng: np.random.Generator
) -> None:
    """Runs `value` of operands of `dtype` on every level. No element beyond the arrays is touched, and what
    lies between an output's rows is left alone.
    """
    operands = (*(reads(dtype, layout.classes) for layout in layouts), writes(to, "s1"))
    nest = Nest(("p", "p"), operands, (), ((len(layouts), value),))
    assert all(Narrow.suits(Frame(nest, LEVELS[level])) for level in LEVEL_NAMES)
    for width, rows, (at_end, gap) in product(WIDTHS, ROWS, ((True, 0), (False, 0), (True, 1))):
        guarded, arrays = Guarded(), list[Array]()
        for layout in layouts:
            x = layout.seen(guarded.place(draw(rng, layout.size(rows, width), dtype, False), at_end), width)
            arrays.append(x if layout is TABLE else np.broadcast_to(x, (rows, width)))
        whole = guarded.place(draw(rng, (rows, width + gap), to), at_end)
        between = whole[:, width:].copy()
        check(nest, [rows, width], [*arrays, whole[:, :width]], cuts=[1, 60, 211])
        assert whole[:, width:].tobytes() == between.tobytes()


@pytest.mark.parametrize("case", CASES)
def test_narrow_rows_of_every_layout(case: str, rng: np.random.Generator) -> None:
    layouts, value = CASES[case]
    compare(layouts, value, "float32", "bool" if value.type == "i1" else "float16", rng)


@pytest.mark.parametrize("dtype", list(MEMORY))
def test_narrow_rows_of_every_dtype(dtype: str, rng: np.random.Generator) -> None:
    x, y, z = (load(k, compute_type(dtype)) for k in range(3))
    compare((SAME, RUNS, COLUMN), select(x.eq(y), z, y), dtype, dtype, rng)
