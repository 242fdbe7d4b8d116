"""A program as a native library: an ELF file, a C header, examples in C and Python.

captured -> primitives -> constants -> driver (LLVM text) + kernels -> elf.py -> NAME.so

For other systems it is an object (foreign.py) and the header.
"""

from __future__ import annotations

from typing import Any

from kiln.codegen.llvm import Machine
from kiln.codegen.target import LEVELS, Target, host_target
from kiln.late import later
from kiln.standalone.constants import folded, in_file, laid_out
from kiln.standalone.driver import Driver
from kiln.standalone.elf import Library as SharedLibrary
from kiln.standalone.elf_object import MACHINES, read_object
from kiln.standalone.foreign import FOREIGN, file_of, object_of
from kiln.standalone.header import c_example, c_header, python_example
from kiln.standalone.kernels import linked, reached
from kiln.standalone.library import Library, check_name, write
from kiln.standalone.relocatable import merged_object
from kiln.tracing.captured import Captured

_verified = later("kiln.standalone.verifying", "native")
TARGETS = {name: level for name, level in LEVELS.items() if not level.tiles}
INSIDE = 1 << 30  # bytes of weights that are part of a library unless it is asked otherwise
ISA = {"x86-64-v3": 0b111, "x86-64-v4": 0b1111}  # what a loader asks of the processor


def library_of(found: Captured, name: str, target: str | None = None, weights: str | None = None) -> Library:
    """A program as a library for a level of processors, this machine's unless given. `weights`: "inside" or
    "beside", in a file of their own; inside unless they are more than INSIDE bytes.
    """
    found.expect_plan("to_native")
    check_name(name, "to_native")
    level = target_of(target)
    if weights not in (None, "inside", "beside"):
        raise ValueError(f"to_native: expected weights='inside' or 'beside', got {weights!r:.60}")
    graph, arrays = folded(found)
    beside = weights == "beside" or (weights is None and sum(x.nbytes for x in arrays.values()) > INSIDE)
    files: dict[str, bytes] = {}
    data: dict[str, bytes | memoryview] = {}
    if beside:
        first = len(found.inputs)
        names = {first + k: own.name for k, own in enumerate(found.state)}
        places, files[f"{name}.safetensors"] = in_file(arrays, graph, names)
    else:
        places, content = laid_out(arrays)
        data = {f"{name}.data": content}
    driver = Driver(found, graph, places, name, level, beside)
    if level.name in FOREIGN:
        file = file_of(name, level)
        files[file] = object_of(driver, b"" if beside else data[f"{name}.data"])
        files[f"{name}.h"] = c_header(driver, file).encode()
        files[f"{name}_example.c"] = c_example(driver, f"cc {name}_example.c {file}").encode()
        return Library(name, files, driver)
    own = Machine(level, quick=True).object(driver.text())
    exports = [f"{name}_{what}" for what in ("run", "workspace", "shape", "message")]
    objects = reached([read_object(own), *linked(driver.kernels.values(), level)], exports)
    library = SharedLibrary(objects, data, exports, f"lib{name}.so", ISA.get(level.name, 0))
    machine = MACHINES[level.triple.split("-")[0]]
    files[f"lib{name}.so"] = b"".join(library.parts())
    files[f"{name}.o"] = merged_object(machine, objects, data, exports)
    files[f"{name}.h"] = c_header(driver, f"lib{name}.so").encode()
    command = f"cc {name}_example.c -L. -l{name} -Wl,-rpath,. -o {name}_example"
    files[f"{name}_example.c"] = c_example(driver, command).encode()
    files[f"{name}_example.py"] = python_example(driver).encode()
    return Library(name, files, driver)


def target_of(target: str | None) -> Target:
    """A level by its name; ValueError for others."""
    if target is None:
        host = host_target()
        return LEVELS["x86-64-v4"] if host.tiles else host
    known = TARGETS | FOREIGN
    if target not in known:
        raise ValueError(f"to_native: expected a target among {', '.join(known)}, got {target!r:.60}")
    return known[target]


def to_native(
    program: Any, folder: Any, name: Any, target: str | None, weights: str | None, verify: bool
) -> str:
    """What `ExportedProgram.to_native` does."""
    made = library_of(program._captured, name, target, weights)
    if verify and not host_target().includes(made.driver.target):
        raise ValueError(f"to_native: verify runs the library, and this machine runs no {target}")
    path = next(path for path in write(made, folder) if path.endswith((".so", ".o", ".obj")))
    if verify:
        print(f"{program._captured.name} as a library: {_verified(program, path, made.driver)}")
    return path
