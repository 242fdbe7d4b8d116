"""Objects of LLVM as shared libraries: they load, compute, are read by other tools; what is wrong is said."""

from __future__ import annotations

import ctypes
import mmap
import random
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from linking import ARM, HOST, X86, compiled, machine_here, needs_x86, run, tool, written

from kiln.codegen.target import Target
from kiln.standalone import elf, relocatable
from kiln.standalone.elf_object import read_object
from kiln.standalone.reading import LinkError

# Tables, calls of another object, data, addresses that LLVM would read from a table, a jump table.
FIRST = """
{head}
@squares = internal unnamed_addr constant [6 x i64] [i64 0, i64 1, i64 4, i64 9, i64 16, i64 25]
@weights = external hidden constant [0 x float], align 64
@elsewhere = external constant [2 x i64]
declare hidden i64 @twice(i64)
declare i64 @thrice(i64)

define i64 @square(i64 %n) nounwind {
  %p = getelementptr i64, ptr @squares, i64 %n
  %v = load i64, ptr %p
  ret i64 %v
}

define i64 @calls(i64 %n) nounwind {
  %a = call i64 @twice(i64 %n)
  %b = call i64 @thrice(i64 %n)
  %f = load i64, ptr getelementptr (i64, ptr @elsewhere, i64 1)
  %g = add i64 %a, %b
  %h = add i64 %g, %f
  ret i64 %h
}

define ptr @address() nounwind {
  ret ptr @thrice
}

define float @dot(ptr %x, i64 %n) nounwind {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  %s = phi float [ 0.125, %entry ], [ %t, %loop ]
  %p = getelementptr float, ptr %x, i64 %i
  %q = getelementptr float, ptr @weights, i64 %i
  %a = load float, ptr %p
  %b = load float, ptr %q
  %c = fmul float %a, %b
  %t = fadd float %s, %c
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %n
  br i1 %more, label %loop, label %done
done:
  ret float %t
}

define void @vector(ptr %x) nounwind {
  %v = load <4 x float>, ptr %x
  %w = fadd <4 x float> %v, <float 1.0, float 2.5, float -3.0, float 4.25>
  store <4 x float> %w, ptr %x, align 4
  ret void
}

define i64 @chosen(i64 %n) nounwind {
  switch i64 %n, label %other [ i64 0, label %a
    i64 1, label %b
    i64 2, label %c
    i64 3, label %d
    i64 4, label %e ]
a: ret i64 17
b: %x = call i64 @twice(i64 %n)
  ret i64 %x
c: %y = call i64 @thrice(i64 %n)
  ret i64 %y
d: ret i64 -5
e: ret i64 123456789012
other: ret i64 0
}
"""
SECOND = """
{head}
@elsewhere = constant [2 x i64] [i64 7, i64 1000]
define hidden i64 @twice(i64 %n) nounwind noinline {
  %r = add i64 %n, %n
  ret i64 %r
}
define i64 @thrice(i64 %n) nounwind noinline {
  %a = call i64 @twice(i64 %n)
  %r = add i64 %n, %a
  ret i64 %r
}
"""
EXPORTS = ["square", "calls", "address", "dot", "vector", "chosen", "elsewhere"]
WEIGHTS = struct.pack("<5f", 1.0, 2.0, 4.0, 8.0, 0.5)


def objects(target: Target = X86) -> list[bytes]:
    return [compiled(text, target) for text in (FIRST, SECOND)]


def library(target: Target = X86, soname: str = "libsample.so") -> bytes:
    return elf.shared_library(objects(target), {"weights": WEIGHTS}, EXPORTS, soname)


def check(lib: ctypes.CDLL) -> None:
    """That a loaded library computes what its modules say."""
    lib.square.restype = lib.calls.restype = lib.chosen.restype = ctypes.c_int64
    lib.dot.restype, lib.address.restype = ctypes.c_float, ctypes.c_void_p
    assert [lib.square(ctypes.c_int64(n)) for n in range(6)] == [0, 1, 4, 9, 16, 25]
    assert lib.calls(ctypes.c_int64(5)) == 10 + 15 + 1000
    x = (ctypes.c_float * 5)(1, 10, 100, 1000, 10000)
    assert lib.dot(x, ctypes.c_int64(5)) == 0.125 + 1 + 20 + 400 + 8000 + 5000
    v = (ctypes.c_float * 4)(1, 1, 1, 1)
    lib.vector(v)
    assert list(v) == [2.0, 3.5, -2.0, 5.25]
    assert [lib.chosen(ctypes.c_int64(n)) for n in range(-1, 6)] == [0, 17, 2, 6, -5, 123456789012, 0]
    thrice = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lib.address())
    assert thrice(14) == 42
    assert list((ctypes.c_int64 * 2).in_dll(lib, "elsewhere")) == [7, 1000]


@needs_x86
def test_a_library_loads_and_computes(tmp_path: Path) -> None:
    check(ctypes.CDLL(str(written(tmp_path, "libsample.so", library()))))


@needs_x86
def test_two_libraries_in_one_process_keep_their_own_data(tmp_path: Path) -> None:
    """Names that are not exported are each library's own; a name in both is found in each."""
    loaded = []
    for n in (1, 2):
        weights = struct.pack("<5f", *[float(n)] * 5)
        made = elf.shared_library(objects(), {"weights": weights}, EXPORTS, f"libsample{n}.so")
        loaded.append(ctypes.CDLL(str(written(tmp_path, f"libsample{n}.so", made)), ctypes.RTLD_GLOBAL))
    x = (ctypes.c_float * 5)(1, 1, 1, 1, 1)
    for n, lib in enumerate(loaded, 1):
        lib.dot.restype = ctypes.c_float
        assert lib.dot(x, ctypes.c_int64(5)) == 0.125 + 5 * n
        assert not hasattr(lib, "twice") and not hasattr(lib, "weights")


@needs_x86
def test_a_library_is_mapped_without_any_page_that_is_written_and_run(tmp_path: Path) -> None:
    path = written(tmp_path, "libsample.so", library())
    lib = ctypes.CDLL(str(path))
    with open("/proc/self/maps", encoding="ascii") as file:
        rights = [line.split()[1] for line in file if str(path) in line]
    assert sorted(rights) == ["r--p", "r--p", "r--p", "r-xp"], rights
    del lib


def test_the_same_input_is_the_same_library_and_another_has_another_build_id(tmp_path: Path) -> None:
    assert library() == library()
    ids = set()
    for n, weights in enumerate((WEIGHTS, WEIGHTS[:-1] + b"\x01")):
        made = elf.shared_library(objects(), {"weights": weights}, EXPORTS, "libsample.so")
        at = made.index(b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0")
        ids.add(made[at + 16 : at + 36])
        assert made[at + 16 : at + 36] != bytes(20), n
    assert len(ids) == 2


@pytest.mark.parametrize("target", [X86, ARM], ids=lambda t: t.name)
def test_readelf_and_objdump_find_nothing_wrong(target: Target, tmp_path: Path) -> None:
    machine = target.triple.split("-")[0]
    path = written(tmp_path, "libsample.so", library(target))
    shown = run(tool("readelf", machine), "-aW", "--lint", path)
    assert "libsample.so" in shown and "GNU_RELRO" in shown and "TEXTREL" not in shown and "RWE" not in shown
    assert "no relocations" in shown
    rows = run(tool("readelf", machine), "--dyn-syms", "-W", path).splitlines()
    assert [row.split()[-1] for row in rows if "GLOBAL" in row] == EXPORTS
    code = run(tool("objdump", machine), "-d", path)
    assert "<calls>:" in code and "<twice>:" in code and "(bad)" not in code
    data = run(tool("objdump", machine), "-s", "-j", ".rodata.data", path)
    assert "0000803f 00000040 00008040 00000041" in data


@needs_x86
def test_gdb_knows_its_functions(tmp_path: Path) -> None:
    path = written(tmp_path, "libsample.so", library())
    shown = subprocess.run(
        [tool("gdb"), "-batch", "-nx", "-ex", "info address twice", "-ex", "x/2i twice", path],
        capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    assert 'Symbol "twice" is at' in shown and "<twice" in shown


MAIN = """
#include <stdint.h>
#include <stdio.h>
extern int64_t square(int64_t), calls(int64_t), chosen(int64_t), (*address(void))(int64_t);
extern float dot(const float *, int64_t);
extern void vector(float *);
extern const int64_t elsewhere[2];
int main(void) {
    float x[5] = {1, 10, 100, 1000, 10000}, v[4] = {1, 1, 1, 1};
    vector(v);
    printf("%ld %ld %g %g %g %g %g %ld %ld %ld %ld", (long)square(5), (long)calls(5), dot(x, 5),
           v[0], v[1], v[2], v[3], (long)chosen(2), (long)chosen(4), (long)address()(14), (long)elsewhere[1]);
    return 0;
}
"""
PRINTED = "25 1025 13421.1 2 3.5 -2 5.25 6 123456789012 42 1000"


@pytest.mark.parametrize("position", ["-pie", "-no-pie"])
@pytest.mark.parametrize("target", [X86, ARM], ids=lambda t: t.name)
def test_a_c_program_is_linked_with_it_and_runs(target: Target, position: str, tmp_path: Path) -> None:
    compiler, runner = machine_here(target)
    written(tmp_path, "libsample.so", library(target))
    main = written(tmp_path, "main.c", MAIN.encode())
    independent = ["-fPIE"] if position == "-pie" else ["-fno-pie"]
    run(compiler, main, *independent, position, f"-L{tmp_path}", "-lsample", f"-Wl,-rpath,{tmp_path}",
        "-Wl,-z,defs", "-Wl,--fatal-warnings", "-o", tmp_path / "main")  # fmt: skip
    assert run(*runner, tmp_path / "main") == PRINTED


@pytest.mark.parametrize("hash_style", ["DT_HASH", "DT_GNU_HASH"])
@needs_x86
def test_either_table_of_names_suffices(hash_style: str, tmp_path: Path) -> None:
    """A loader uses one of the two; without the other it finds the same."""
    made = bytearray(library())
    other = {"DT_HASH": 0x6FFFFEF5, "DT_GNU_HASH": 4}[hash_style]
    section = struct.unpack_from("<Q", made, 40)[0] + 64 * 8  # .dynamic
    start, size = struct.unpack_from("<QQ", made, section + 24)
    for at in range(start, start + size, 16):
        if struct.unpack_from("<q", made, at)[0] == other:
            struct.pack_into("<q", made, at, 0x6FFFFFF9 - 0x0A)  # a tag that nobody reads
            break
    else:
        raise AssertionError(hash_style)
    check(ctypes.CDLL(str(written(tmp_path, f"libsample{hash_style}.so", bytes(made)))))


@pytest.mark.parametrize("target", [X86, ARM], ids=lambda t: t.name)
def test_objects_and_data_are_for_other_linkers_too(target: Target, tmp_path: Path) -> None:
    compiler, runner = machine_here(target)
    machine = target.triple.split("-")[0]
    weights = relocatable.data_object(machine, "weights", WEIGHTS)
    assert read_object(weights).machine.name == machine
    paths = [written(tmp_path, f"{n}.o", o) for n, o in enumerate([*objects(target), weights])]
    assert "weights" in run(tool("readelf", machine), "-aW", paths[-1])
    main = written(tmp_path, "main.c", MAIN.encode())
    run(compiler, main, *paths, "-Wl,--fatal-warnings", "-o", tmp_path / "main")
    assert run(*runner, tmp_path / "main") == PRINTED
    linked = elf.shared_library([*objects(target), weights], {}, EXPORTS, "libsample.so")
    written(tmp_path, "libsample.so", linked)
    run(compiler, main, f"-L{tmp_path}", "-lsample", f"-Wl,-rpath,{tmp_path}", "-o", tmp_path / "second")
    assert run(*runner, tmp_path / "second") == PRINTED


# ---- what is refused ----


def linked(text: str, exports: Sequence[str] = ("f",), data: Mapping[str, bytes] | None = None) -> bytes:
    return elf.shared_library([compiled("{head}\n" + text)], data or {}, exports, "l.so")


@pytest.mark.parametrize(
    "text, words",
    [
        (
            "declare double @sin(double)\ndeclare hidden i64 @h()\ndefine double @f(double %x) {\n"
            "%y = call double @sin(double %x) %z = call i64 @h() ret double %y }",
            "undefined: h, sin",
        ),
        ("@g = global i64 3\ndefine ptr @f() { ret ptr @g }", r"\.data: data that is written"),
        ("@g = global i64 0\ndefine ptr @f() { ret ptr @g }", r"\.bss: data that is written"),
        ("@g = common global i64 0\ndefine ptr @f() { ret ptr @g }", "common symbol"),
        (
            "@g = internal thread_local global i64 1\ndeclare ptr @llvm.threadlocal.address.p0(ptr)\n"
            "define ptr @f() { %p = call ptr @llvm.threadlocal.address.p0(ptr @g) ret ptr %p }",
            r"\.tdata: thread-local data",
        ),
        (
            "@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] "
            "[{ i32, ptr, ptr } { i32 65535, ptr @f, ptr null }]\ndefine void @f() { ret void }",
            r"\.(ctors|init_array): constructors",
        ),
        (
            "define void @h() { ret void }\n@t = constant [1 x ptr] [ptr @h]\ndefine ptr @f() { ret ptr @t }",
            r"\.data\.rel\.ro: data that is written, or holds addresses",
        ),
        (
            "define internal ptr @r() { ret ptr null }\n@i = ifunc void (), ptr @r\n"
            "define void @f() { call void @i() ret void }",
            "i: an indirect function",
        ),
    ],
)  # fmt: skip
def test_what_a_library_has_not_is_named(text: str, words: str) -> None:
    with pytest.raises(LinkError, match=words):
        linked(text)


def test_names_are_defined_once() -> None:
    one = compiled("{head}\ndefine void @f() nounwind { ret void }")
    with pytest.raises(LinkError, match="f is defined twice"):
        elf.shared_library([one, one], {}, ["f"], "l.so")
    with pytest.raises(LinkError, match="f is defined twice"):
        elf.shared_library([one], {"f": b"1"}, ["f"], "l.so")
    with pytest.raises(LinkError, match="undefined: g"):
        elf.shared_library([one], {}, ["f", "g"], "l.so")
    with pytest.raises(LinkError, match="exported twice"):
        elf.shared_library([one], {}, ["f", "f"], "l.so")
    for soname in ("", "a\0b"):
        with pytest.raises(LinkError, match="is no name"):
            elf.shared_library([one], {}, ["f"], soname)


def test_a_weak_definition_gives_way_to_another(tmp_path: Path) -> None:
    head = "{head}\n"
    weak = compiled(head + "define weak i64 @f() nounwind { ret i64 1 }")
    strong = compiled(head + "define i64 @f() nounwind { ret i64 2 }")
    caller = compiled(
        head + "define weak i64 @f() nounwind { ret i64 3 }\n"
        "define i64 @g() nounwind { %r = call i64 @f() ret i64 %r }"
    )
    for n, (parts, value) in enumerate([([weak, caller], 1), ([caller, weak, strong], 2), ([caller], 3)]):
        path = written(tmp_path, f"lib{n}.so", elf.shared_library(parts, {}, ["g"], f"lib{n}.so"))
        if HOST == "x86_64":
            assert ctypes.CDLL(str(path)).g() == value


def test_objects_are_of_one_machine() -> None:
    with pytest.raises(LinkError, match="objects of one machine, got"):
        elf.shared_library([*objects(X86), *objects(ARM)], {"weights": WEIGHTS}, [], "l.so")
    with pytest.raises(LinkError, match="objects of one machine, got"):
        elf.shared_library([], {}, [], "l.so")
    with pytest.raises(LinkError, match="machine riscv64 is none of x86_64, aarch64"):
        relocatable.data_object("riscv64", "w", b"")


NEAR_AND_FAR = """
{head}
@a = external hidden constant [4 x i8]
@b = external hidden constant [0 x i8]
@c = external hidden constant [4 x i8]
define i64 @f(i64 %n) nounwind {
  %p = getelementptr i8, ptr @b, i64 %n
  %a = load i8, ptr @a
  %b = load i8, ptr %p
  %c = load i8, ptr @c
  %x = zext i8 %a to i64
  %y = zext i8 %b to i64
  %z = zext i8 %c to i64
  %s = mul i64 %x, 10000
  %t = mul i64 %y, 100
  %u = add i64 %s, %t
  %v = add i64 %u, %z
  ret i64 %v
}
"""


def sparse(folder: Path, size: int) -> memoryview:
    """Bytes that take no room."""
    with open(folder / f"sparse{size}", "wb+") as file:
        file.truncate(size)
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


@needs_x86
def test_data_lies_smallest_first_whatever_its_order(tmp_path: Path) -> None:
    big = bytearray(1 << 20)
    big[70000] = 2
    data = {"b": memoryview(big), "a": b"\x01234", "c": b"\x03234"}
    made = elf.shared_library([compiled(NEAR_AND_FAR)], data, ["f"], "libfar.so")
    lib = ctypes.CDLL(str(written(tmp_path, "libfar.so", made)))
    lib.f.restype = ctypes.c_int64
    assert lib.f(ctypes.c_int64(70000)) == 10203 and lib.f(ctypes.c_int64(70001)) == 10003


@pytest.mark.parametrize("target, reach", [(X86, 2), (ARM, 4)], ids=lambda t: getattr(t, "name", None))
def test_data_begins_within_reach(target: Target, reach: int, tmp_path: Path) -> None:
    """One of any size may be the last; what would lie behind it is out of reach."""
    read = [read_object(compiled(NEAR_AND_FAR, target))]
    large = sparse(tmp_path, (reach << 30) + 4096)
    placed = elf.Library(read, {"b": large, "a": b"1234", "c": b"4321"}, ["f"], "libfar.so")
    assert sum(len(part) for part in placed.segments()[-1].parts) > reach << 30
    with pytest.raises(LinkError, match=r"of b in \.text: a distance of \d+ does not fit"):
        elf.Library(read, {"b": large, "a": large[4096:], "c": b"4321"}, ["f"], "libfar.so")


# ---- what is damaged ----


def damaged(data: bytes) -> Iterator[bytes]:
    """An object cut short at every byte of its tables, and with each of their bytes changed."""
    start, rows = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    ranges = [(0, 64), (start, start + 64 * rows)]
    for n in range(rows):
        _, kind, _, _, at, size = struct.unpack_from("<IIQQQQ", data, start + 64 * n)
        if kind in (2, 3, 4):
            ranges.append((at, at + size))
    places = [at for first, last in ranges for at in range(first, last)]
    rng = random.Random(1)
    for at in places:
        yield data[:at]
        yield data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        yield data[:at] + bytes([rng.choice((0, 0x7F, 0x80, 0xFF))]) + data[at + 1 :]


@pytest.mark.parametrize("target", [X86, ARM], ids=lambda t: t.name)
def test_a_damaged_object_is_a_link_error_and_nothing_else(target: Target) -> None:
    first, second = objects(target)
    refused = 0
    for broken in damaged(first):
        try:
            elf.shared_library([broken, second], {"weights": WEIGHTS}, EXPORTS, "l.so")
        except LinkError as error:
            refused += 1
            assert str(error)
    assert refused > 500


def test_what_is_no_object_is_refused() -> None:
    for data in (b"", b"\x7fELF", b"\0" * 64, b"#!/bin/sh\n" * 100, library()):
        with pytest.raises(LinkError):
            read_object(data)
