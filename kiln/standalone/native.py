"""A program as a native library: an ELF file, a C header, examples in C and Python.

captured -> primitives -> constants -> driver (LLVM text) + kernels -> elf.py -> NAME.so
"""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

from kiln.codegen.llvm import Machine
from kiln.codegen.target import LEVELS, Target, host_target
from kiln.files import write_atomically
from kiln.standalone.constants import constants_of, folded, laid_out
from kiln.standalone.driver import Driver
from kiln.standalone.elf import Library
from kiln.standalone.elf_object import read_object
from kiln.standalone.header import c_example, c_header, python_example
from kiln.standalone.kernels import linked
from kiln.tracing.captured import Captured
from kiln.tracing.expand import expand

TARGETS = {name: level for name, level in LEVELS.items() if not level.tiles}
RESERVED = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if inline int "
    "long register restrict return short signed sizeof static struct switch typedef union unsigned void "
    "volatile while".split()
)  # fmt: skip


class NativeLibrary(NamedTuple):
    """The files of a library, by their names."""

    name: str
    files: dict[str, bytes]


def library_of(found: Captured, name: str, target: str | None = None) -> NativeLibrary:
    """A program as a library for a level of processors, this machine's unless given."""
    check_name(name)
    level = target_of(target)
    arrays = constants_of(found)
    graph, arrays = folded(expand(found.graph), arrays)
    places, data = laid_out(arrays)
    driver = Driver(found, graph, places, name, level)
    own = Machine(level, quick=True).object(driver.text())
    objects = [read_object(own), *linked(driver.kernels.values(), level)]
    exports = [f"{name}_{what}" for what in ("run", "workspace", "shape", "message")]
    library = Library(objects, {driver.data: data}, exports, f"lib{name}.so")
    files = {
        f"lib{name}.so": b"".join(library.parts()),
        f"{name}.h": c_header(driver, level).encode(),
        f"{name}_example.c": c_example(driver).encode(),
        f"{name}_example.py": python_example(driver).encode(),
    }
    return NativeLibrary(name, files)


def check_name(name: Any) -> None:
    """ValueError for what is no identifier of C."""
    if not isinstance(name, str) or not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name) or name in RESERVED:
        raise ValueError(
            f"to_native: the name of a library is an identifier of C, as in name='model'; got {name!r:.60}"
        )


def target_of(target: str | None) -> Target:
    """A level by its name; ValueError for others."""
    if target is None:
        host = host_target()
        return LEVELS["x86-64-v4"] if host.tiles else host
    if target not in TARGETS:
        raise ValueError(f"to_native: expected a target among {', '.join(TARGETS)}, got {target!r:.60}")
    return TARGETS[target]


def write(library: NativeLibrary, folder: Any) -> list[str]:
    """Writes the files into a folder, which is made if it is not there; their paths."""
    place = os.fspath(folder)
    os.makedirs(place, exist_ok=True)
    paths = []
    for file, content in library.files.items():
        path = os.path.join(place, file)
        write_atomically(path, [content])
        paths.append(path)
    return paths
