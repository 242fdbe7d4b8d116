"""`Compare`: a table of measurements, a row for each `sub_label`, a column for each `description`.

[------- matmul --------]
            |  a  |   b
1 threads: --------------
      8x8   |  2  |   3
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum
from typing import Any

from kiln.utils.benchmark.measurement import (
    ENGLISH,
    Measurement,
    ordered_unique,
    select_unit,
    trim_sigfig,
)

BEST, GOOD, BAD, VERY_BAD = "\x1b[92m\x1b[1m", "\x1b[34m", "\x1b[2m\x1b[91m", "\x1b[31m\x1b[1m"
END = "\x1b[0m\x1b[0m"
MARKS = ((1.05, BEST), (1.2, GOOD), (2, ""), (5, BAD))  # below so many times the best; else VERY_BAD


class Colorize(Enum):
    """What the best of is marked in a table."""

    NONE = "none"
    COLUMNWISE = "columnwise"
    ROWWISE = "rowwise"


class Compare:
    """Measurements side by side; those of one task are merged.

    >>> from kiln.utils.benchmark import Measurement, TaskSpec
    >>> rows = [
    ...     Measurement(1, [t * 1e-6], TaskSpec("pass", "", label="add", sub_label=size, description=how))
    ...     for size, how, t in [("8", "old", 2), ("8", "new", 1), ("64", "old", 16), ("64", "new", 4)]
    ... ]
    >>> Compare(rows).print()
    [--------- add ---------]
              |  old   |  new
    1 threads: --------------
          8   |   2.0  |  1.0
          64  |  16.0  |  4.0
    <BLANKLINE>
    Times are in microseconds (us).
    <BLANKLINE>
    """

    def __init__(self, results: list[Measurement]) -> None:
        self._results: list[Measurement] = []
        self.extend_results(results)
        self._trim = False
        self._colorize = Colorize.NONE
        self._highlight = False

    def __str__(self) -> str:
        return "\n".join(self._render())

    def extend_results(self, results: Iterable[Measurement]) -> None:
        """Adds measurements. ValueError for anything else."""
        results = list(results)
        for one in results:
            if not isinstance(one, Measurement):
                raise ValueError(f"Expected an instance of `Measurement`, got {type(one)} instead.")
        self._results.extend(results)

    def trim_significant_figures(self) -> None:
        """From now on only digits that can be relied upon are shown."""
        self._trim = True

    def colorize(self, rowwise: bool = False) -> None:
        """From now on the best of each column, or row, is marked, and what takes twice as long."""
        self._colorize = Colorize.ROWWISE if rowwise else Colorize.COLUMNWISE

    def highlight_warnings(self) -> None:
        """From now on a measurement whose times differ much is shown with how much."""
        self._highlight = True

    def print(self) -> None:
        """Prints the table."""
        print(str(self))

    def _render(self) -> list[str]:
        merged = Measurement.merge(self._results)
        labels = ordered_unique(m.task_spec.label for m in merged)
        return [self._table(label, [m for m in merged if m.task_spec.label == label]) for label in labels]

    def _table(self, label: str | None, results: list[Measurement]) -> str:
        columns = ordered_unique(m.task_spec.description for m in results)
        environments = ordered_unique(m.task_spec.env for m in results)
        unit, scale = select_unit(min(m.median for m in results))
        rows: dict[tuple[Any, ...], dict[Any, Measurement]] = {}
        for m in results:
            name = m.as_row_name
            if len(environments) > 1:
                name = f"{name} ({m.task_spec.env or 'Unspecified env'})"
            key = (m.task_spec.num_threads, name)
            rows.setdefault(key, {})[m.task_spec.description] = m
        cells = {key: self._cells(row, results, columns, scale) for key, row in rows.items()}
        first = max(len(name) for _, name in rows) + 6
        widths = [
            max(len(str(column or "")), *(len(row[k]) for row in cells.values()))
            for k, column in enumerate(columns)
        ]
        heads = [str(column or "").center(width) for column, width in zip(columns, widths)]
        header = "  |  ".join([" " * first, *heads])
        lines = [f"[{f' {label or str()} '.center(len(header) - 2, '-')}]", header]
        for threads in ordered_unique(key[0] for key in sorted(rows, key=lambda key: int(key[0]))):
            lines.append(f"{threads} threads: ".ljust(len(header), "-"))
            for key, row in rows.items():
                if key[0] == threads:
                    texts = [cell.rjust(width) for cell, width in zip(cells[key], widths)]
                    marked = self._marked(texts, row, rows, columns)
                    lines.append("  |  ".join([f"{'':6}{key[1]}".ljust(first), *marked]))
        lines += ["", f"Times are in {ENGLISH[unit]}s ({unit})."]
        if self._highlight and any(m.has_warnings for m in results):
            lines.append("(! XX%) Measurement has high variance, where XX is the IQR / median * 100.")
        return "\n".join([*lines, ""])

    def _cells(
        self, row: dict[Any, Measurement], results: list[Measurement], columns: list[Any], scale: float
    ) -> list[str]:
        found = []
        for column in columns:
            m = row.get(column)
            if m is None:
                found.append("")
                continue
            digits, value = 1, m.median / scale
            if self._trim:
                same = [r for r in results if r.task_spec.description == column]
                digits = max(max(r.significant_figures - _leading(r.median / scale), 0) for r in same)
                value = trim_sigfig(value, m.significant_figures)
            wide = f" (! {100 * m.iqr / m.median:.0f}%)" if self._highlight and m.has_warnings else ""
            found.append(f"{value:.{digits}f}{wide}")
        return found

    def _marked(
        self, texts: list[str], row: dict[Any, Measurement], rows: dict[Any, Any], columns: list[Any]
    ) -> list[str]:
        """The cells of a row in their colours."""
        if self._colorize is Colorize.NONE:
            return texts
        marked = []
        for text, column in zip(texts, columns):
            m = row.get(column)
            if m is None:
                marked.append(text)
                continue
            beside = row.values() if self._colorize is Colorize.ROWWISE else [
                other[column] for other in rows.values()
                if column in other and other[column].task_spec.num_threads == m.task_spec.num_threads
            ]  # fmt: skip
            ratio = m.median / min(other.median for other in beside)
            colour = next((mark for limit, mark in MARKS if ratio < limit), VERY_BAD)
            marked.append(f"{colour}{text}{END}" if colour else text)
        return marked


def _leading(value: float) -> int:
    """How many digits stand before the point."""
    return max(math.floor(math.log10(value)) + 1, 1) if value > 0 else 1
