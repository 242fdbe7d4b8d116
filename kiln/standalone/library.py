"""Files that a program is written as, and what they are called."""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

from kiln.files import write_atomically
from kiln.standalone.driver import Driver

RESERVED = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if inline int "
    "long register restrict return short signed sizeof static struct switch typedef union unsigned void "
    "volatile while".split()
)  # fmt: skip


class Library(NamedTuple):
    """What is written for a program: files by their names, the first what the others are about."""

    name: str
    files: dict[str, bytes]
    driver: Driver


def check_name(name: Any, asked: str) -> None:
    """ValueError for what is no identifier of C."""
    if not isinstance(name, str) or not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name) or name in RESERVED:
        raise ValueError(
            f"{asked}: the name of a library is an identifier of C, as in name='model'; got {name!r:.60}"
        )


def write(library: Library, folder: Any) -> list[str]:
    """Writes the files into a folder, which is made if it is not there; their paths."""
    place = os.fspath(folder)
    os.makedirs(place, exist_ok=True)
    paths = []
    for file, content in library.files.items():
        path = os.path.join(place, file)
        write_atomically(path, [content])
        paths.append(path)
    return paths
