"""What a launch of a recording's program is called: the ops that it computes, and of which recorded ones.

label    := ops recorded*
recorded := "\\t" number " " name       a recorded op: its place in the recording, its function's name
"""

from __future__ import annotations

from collections.abc import Iterable

RECORDED = "\t"


def mark(number: int, name: str) -> str:
    """What nodes that a recorded op became are marked with."""
    return f"{RECORDED}{number} {name}"


def label(ops: str, marks: Iterable[str]) -> str:
    """The label of what computes `ops`, of nodes with these marks; what is no mark is left out."""
    return ops + "".join(dict.fromkeys(m for m in marks if m.startswith(RECORDED)))


def split(told: str) -> tuple[str, list[tuple[int, str]]]:
    """The ops of a label, and the recorded ones as (number, name).

    >>> split(label("mul add", [mark(3, "mul"), mark(4, "add"), "train.py:7"]))
    ('mul add', [(3, 'mul'), (4, 'add')])
    """
    ops, *marks = told.split(RECORDED)
    return ops, [(int(number), name) for number, _, name in (m.partition(" ") for m in marks)]
