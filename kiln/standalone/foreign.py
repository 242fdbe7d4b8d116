"""Programs as objects for other systems: COFF for Windows, Mach-O for macOS, as LLVM writes them.

    driver + kernels + constants -> one LLVM module (one_module.py) -> NAME.obj, NAME.o

The linker of the system takes them, with the caller's program. They were never run on their systems; the code
of those for Windows has its bits on Linux (tests/export/test_foreign.py). Kernels are those of x86-64-v3 and
of aarch64, and functions are called as C functions of that system are. What an object asks for:

    Windows    __chkstk, which touches the pages of large frames, and _fltused: both of every C runtime
    macOS      nothing
"""

from __future__ import annotations

from kiln.codegen.llvm import Machine
from kiln.codegen.target import LEVELS, Target
from kiln.standalone.driver import Driver
from kiln.standalone.one_module import one_module

_X86 = "p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
SYSTEMS = {  # triples, and how names are written there
    "x86_64-windows": ("x86_64-pc-windows-msvc", f"e-m:w-{_X86}"),
    "x86_64-macos": ("x86_64-apple-macosx11.0.0", f"e-m:o-{_X86}"),
    "aarch64-macos": (
        "aarch64-apple-macosx11.0.0",
        "e-m:o-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-n32:64-S128-Fn32",
    ),
}
_LEVEL = {"x86_64": "x86-64-v3", "aarch64": "aarch64"}
FOREIGN: dict[str, Target] = {
    name: LEVELS[_LEVEL[triple.split("-")[0]]]._replace(name=name, triple=triple, layout=layout)
    for name, (triple, layout) in SYSTEMS.items()
}


def file_of(name: str, target: Target) -> str:
    """The name of a program's object."""
    return f"{name}.obj" if "windows" in target.triple else f"{name}.o"


def object_of(driver: Driver, data: bytes | memoryview) -> bytes:
    """The object of a program and its constants."""
    declared = f"@{driver.data} = external hidden constant i8, align 64\n"
    text = one_module(driver.text(), driver.kernels.values(), driver.target)
    assert declared in text
    content = "".join(map("\\{:02x}".format, bytes(data)))
    defined = f'@{driver.data} = internal constant [{len(data)} x i8] c"{content}", align 64\n'
    return Machine(driver.target).object(text.replace(declared, defined if data else "", 1))
