"""Which module of kiln.ops brings which names: known without importing it, from a file that the build writes.

    state of the sources
    sorting.sorts <tab> functions <tab> methods of tensors <tab> functions of kiln.nn.functional <tab> ops

In a source tree the first line says in what state the modules were. Where that is no longer theirs, because
one was edited, added or removed, or where there is no file, the index has nothing and kiln.ops imports every
module at once: a new op is there without a build, which only makes the import fast again. An installed
package's first line is empty: its modules stay as they are.
"""

from __future__ import annotations

import os

HERE = os.path.dirname(os.path.abspath(__file__))
OPS = os.path.join(os.path.dirname(HERE), "ops")
FILE = os.path.join(HERE, "index.txt")


def python_files(folder: str) -> list[tuple[str, os.stat_result]]:
    """The files `*.py` in a folder and those below it, with their states."""
    found, folders = [], [folder]
    for folder in folders:  # those inside come after
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                if name.endswith(".py") and not name.startswith("."):  # an editor's own, a dangling link
                    found.append((entry.path, entry.stat()))
                elif name != "__pycache__" and entry.is_dir():
                    folders.append(entry.path)
    return found


def modules() -> list[str]:
    """Every module of kiln.ops by its name below that: "sorting.sorts"."""
    paths = [path[len(OPS) + 1 : -len(".py")] for path, _ in python_files(OPS)]
    return sorted(path.replace(os.sep, ".") for path in paths if not path.endswith("__init__"))


def state() -> str:
    """What tells one state of the modules from another, by what `stat` says of them."""
    states = [found for _, found in python_files(OPS)]
    return f"{len(states)} {sum(s.st_size for s in states)} {sum(s.st_mtime_ns for s in states)}"


def read() -> dict[str, list[list[str]]]:
    """Module -> its names of each kind; nothing where that is not known."""
    try:
        with open(FILE, encoding="utf-8") as file:
            written_for, *lines = file.read().splitlines()
    except OSError:
        return {}
    if written_for and written_for != state():
        return {}
    rows = [line.split("\t") for line in lines]
    return {module: [names.split() for names in kinds] for module, *kinds in rows}


def text(names: dict[str, list[set[str]]], written_for: str = "") -> str:
    """The whole file."""
    rows = [
        "\t".join([module, *(" ".join(sorted(kind)) for kind in kinds)]) for module, kinds in names.items()
    ]
    return "".join(f"{line}\n" for line in [written_for, *sorted(rows)])
