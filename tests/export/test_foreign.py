"""Objects for Windows and macOS: which names they define and ask for; the bits of those for Windows, whose
code is taken out of the object and run here by calls in the convention of Windows.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from shutil import which
from struct import pack_into, unpack_from

import pytest

import kiln
from kiln import nn
from kiln.codegen.target import LEVELS, host_target
from kiln.export import Dim, export
from kiln.standalone.foreign import FOREIGN

FUNCTIONS = {f"m_{what}" for what in ("run", "workspace", "shape", "message")}
OF_RUNTIME = {"__chkstk", "_fltused"}  # of every C runtime of Windows

MAIN = """
#include <stdio.h>
#include <stdlib.h>
#define CALLED __attribute__((ms_abi))
CALLED int m_run(const void *const *, const long long *, void *const *, void *, const void *);
CALLED long long m_workspace(const long long *, int);
CALLED const char *m_message(int);
int main(void) {
    static const long long all[] = {0, 1, 2, 5, 9, 40, -1};
    for (int k = 0; k < 7; k++) {
        long long n = all[k], bytes = m_workspace(&n, 1);
        if (bytes < 0) { printf("%s\\n", m_message((int)-bytes)); continue; }
        float *x = malloc(n * 24 * 4 + 4), *y = malloc(n * 10 * 4 + 4);
        void *workspace = malloc(bytes);
        for (int i = 0; i < n * 24; i++) x[i] = (float)(i * 37 % 101) / 17 - 3;
        const void *inputs[] = {x};
        void *outputs[] = {y};
        printf("%d", m_run(inputs, &n, outputs, workspace, NULL));
        for (int i = 0; i < n * 10; i++) printf(" %a", y[i]);
        printf("\\n");
    }
    return 0;
}
"""


def model() -> nn.Module:
    made = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, 10), nn.Softmax(1))
    kiln.manual_seed(3)
    for p in made.parameters():
        nn.init.normal_(p)
    return made


def exported(folder: Path, target: str) -> bytes:
    """The object of a program."""
    program = export(model(), (kiln.ones(3, 24),), dynamic_shapes=({0: Dim("batch")},))
    return Path(program.to_native(folder, name="m", target=target)).read_bytes()


class Coff:
    """An object of COFF: its sections side by side, and its symbols."""

    def __init__(self, data: bytes) -> None:
        machine, count, _, table, symbols, _, _ = unpack_from("<HHIIIHH", data)
        assert machine == 0x8664
        self.image = bytearray()
        strings = table + 18 * symbols
        places, changes = [], []
        for n in range(count):
            size, start, relocations, number, flags = _section(data, n)
            self.image += bytes(-len(self.image) % 64)
            places.append(len(self.image))
            self.image += data[start : start + size] if start else bytes(size)
            changes.append((flags, relocations, number))
        self.symbols: dict[str, int] = {}
        self.undefined: set[str] = set()
        values: dict[int, tuple[str, int | None]] = {}
        n = 0
        while n < symbols:
            short, value, section, _, kind, more = unpack_from("<8sIhHBB", data, table + 18 * n)
            name = _text(data, short, strings)
            values[n] = name, places[section - 1] + value if section > 0 else None
            if kind == 2 and section > 0:
                self.symbols[name] = places[section - 1] + value
            elif kind == 2:
                self.undefined.add(name)
            n += 1 + more
        runtime = {name: len(self.image) for name in self.undefined}
        self.image += b"\xc3" + bytes(15)  # __chkstk: the stack is there
        for place, (flags, relocations, number) in zip(places, changes):
            for k in range(number if flags & 0x20 else 0):  # of code
                offset, symbol, kind = unpack_from("<IIH", data, relocations + 10 * k)
                name, target = values[symbol]
                target = runtime[name] if target is None else target
                assert 4 <= kind <= 9, f"relocation {kind} of {name}"  # REL32, so many bytes before the end
                at = place + offset
                (addend,) = unpack_from("<i", self.image, at)
                pack_into("<i", self.image, at, target + addend - (at + 4 + kind - 4))


def _section(data: bytes, n: int) -> tuple[int, ...]:
    """Size, start, relocations, their number, flags of a section."""
    size, start, relocations, _, number, _, flags = unpack_from("<IIIIHHI", data, 20 + 40 * n + 16)
    return size, start, relocations, number, flags


def _text(data: bytes, short: bytes, strings: int) -> str:
    if short[:4] != bytes(4):
        return short.rstrip(b"\0").decode()
    start = strings + int.from_bytes(short[4:], "little")
    return data[start : data.index(b"\0", start)].decode()


def mach_symbols(data: bytes, processor: int) -> tuple[set[str], set[str]]:
    """The external symbols of an object of Mach-O: those it defines, and those it asks for."""
    magic, found, _, kind, commands, _ = unpack_from("<6I", data)
    assert (magic, found, kind) == (0xFEEDFACF, processor, 1)
    at, defined, undefined = 32, set(), set()
    for _ in range(commands):
        command, size = unpack_from("<II", data, at)
        if command == 2:  # LC_SYMTAB
            table, count, strings, _ = unpack_from("<4I", data, at + 8)
            for n in range(count):
                name, type_, _, _, _ = unpack_from("<IBBHQ", data, table + 16 * n)
                start = strings + name
                if type_ & 1:  # external
                    text = data[start : data.index(b"\0", start)].decode()
                    (defined if type_ & 0xE else undefined).add(text)
        at += size
    return defined, undefined


def test_objects_for_windows_define_the_functions(tmp_path: Path) -> None:
    made = Coff(exported(tmp_path, "x86_64-windows"))
    assert {name for name in made.symbols if not name.startswith("__")} == FUNCTIONS
    assert made.undefined <= OF_RUNTIME
    assert {path.name for path in tmp_path.iterdir()} == {"m.obj", "m.h", "m_example.c"}
    assert "/* m.obj, made by kiln" in (tmp_path / "m.h").read_text()


@pytest.mark.parametrize(("target", "processor"), [("x86_64-macos", 0x1000007), ("aarch64-macos", 0x100000C)])
def test_objects_for_macos_define_the_functions_and_ask_for_none(
    target: str, processor: int, tmp_path: Path
) -> None:
    defined, undefined = mach_symbols(exported(tmp_path, target), processor)
    assert defined == {f"_{name}" for name in FUNCTIONS} and not undefined
    assert {path.name for path in tmp_path.iterdir()} == {"m.o", "m.h", "m_example.c"}


def test_the_bits_of_an_object_for_windows(tmp_path: Path) -> None:
    """Those of the library for this system, of the same level."""
    compiler = which("gcc")
    if compiler is None or not host_target().triple.startswith("x86_64"):
        pytest.skip("needs gcc on x86-64")
    made = Coff(exported(tmp_path, "x86_64-windows"))
    (tmp_path / "image").write_bytes(made.image)
    starts = [*sorted((made.symbols[name], name) for name in FUNCTIONS), (len(made.image), "")]
    lines = [".text", ".balign 64"]
    at = 0
    for start, name in starts:
        lines += [f'.incbin "image", {at}, {start - at}'] if start > at else []
        lines += [f".globl {name}", f"{name}:"] if name else []
        at = start
    (tmp_path / "image.s").write_text("\n".join([*lines, '.section .note.GNU-stack,""', ""]))
    (tmp_path / "main.c").write_text(MAIN)
    here = tmp_path / "here"
    here.mkdir()
    program = export(model(), (kiln.ones(3, 24),), dynamic_shapes=({0: Dim("batch")},))
    program.to_native(here, name="m", target="x86-64-v3")
    (here / "main.c").write_text(MAIN.replace("__attribute__((ms_abi))", ""))
    said = []
    for folder, source in ((tmp_path, "image.s"), (here, "m.o")):
        subprocess.run([compiler, "-O1", "main.c", source, "-o", "main"], cwd=folder, check=True, timeout=60)
        said.append(
            subprocess.run(["./main"], cwd=folder, capture_output=True, check=True, timeout=60).stdout
        )
    assert said[0] == said[1] and said[0].count(b"\n") == 7 and b"batch must be from" in said[0]


def test_kernels_are_those_of_a_level() -> None:
    for name, target in FOREIGN.items():
        level = LEVELS["aarch64" if name.startswith("aarch64") else "x86-64-v3"]
        assert target._replace(name=level.name, triple=level.triple, layout="") == level


def test_what_runs_elsewhere_is_not_verified_here(tmp_path: Path) -> None:
    program = export(model(), (kiln.ones(3, 24),))
    with pytest.raises(ValueError, match="this machine runs no x86_64-windows"):
        program.to_native(tmp_path, name="m", target="x86_64-windows", verify=True)
    assert not [*tmp_path.iterdir()]
