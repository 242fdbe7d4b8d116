"""Objects of LLVM as WebAssembly modules that own their memory: they run in Node.js; errors are told."""

from __future__ import annotations

import mmap
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from linking import X86, compiled, in_node

from kiln.codegen.target import WASM
from kiln.standalone import wasm_link
from kiln.standalone.reading import LinkError
from kiln.standalone.wasm_link import read_object, wasm_module

TEXT = """{head}
@squares = internal unnamed_addr constant [6 x i64] [i64 0, i64 1, i64 4, i64 9, i64 16, i64 25]
@weights = external hidden constant [0 x float], align 64
@more = external hidden constant [4 x i8]
@tables = internal constant [2 x ptr] [ptr @weights, ptr getelementptr (i8, ptr @squares, i32 40)]

define i64 @square(i32 %n) nounwind {
  %p = getelementptr i64, ptr @squares, i32 %n
  %v = load i64, ptr %p
  ret i64 %v
}

define float @weight(i32 %n) nounwind {
  %p = getelementptr float, ptr @weights, i32 %n
  %v = load float, ptr %p
  ret float %v
}

define i32 @place(i32 %n) nounwind {
  %p = getelementptr ptr, ptr @tables, i32 %n
  %v = load i32, ptr %p
  ret i32 %v
}

define i32 @other() nounwind {
  %a = load i8, ptr getelementptr (i8, ptr @more, i32 3)
  %v = zext i8 %a to i32
  ret i32 %v
}

define i32 @third() nounwind noinline {
  ret i32 3
}

; calls one of two functions by its address
define i32 @called(i32 %n) nounwind {
  %odd = trunc i32 %n to i1
  %f = select i1 %odd, ptr @third, ptr @other
  %v = call i32 %f()
  ret i32 %v
}

; calls what lies at an address that is no function's
define void @nowhere(ptr %f) nounwind {
  call void %f()
  ret void
}

define void @doubled(ptr %x, i32 %n) nounwind {
entry:
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %j, %loop ]
  %p = getelementptr <4 x float>, ptr %x, i32 %i
  %v = load <4 x float>, ptr %p, align 4
  %w = fadd <4 x float> %v, %v
  store <4 x float> %w, ptr %p, align 4
  %j = add i32 %i, 1
  %more = icmp slt i32 %j, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}

; fills 1 KB of stack at every depth, and adds what it finds there afterwards
define i32 @deep(i32 %n) nounwind noinline {
entry:
  %room = alloca [256 x i32], align 16
  %first = getelementptr i32, ptr %room, i32 %n
  store volatile i32 %n, ptr %first
  %end = icmp eq i32 %n, 0
  br i1 %end, label %done, label %again
again:
  %m = sub i32 %n, 1
  %below = call i32 @deep(i32 %m)
  %kept = load volatile i32, ptr %first
  %sum = add i32 %below, %kept
  ret i32 %sum
done:
  ret i32 0
}

; a frame of 1 KB, touched at its lowest byte alone, at every depth
define i32 @endless(i32 %n) nounwind noinline {
  %room = alloca [256 x i32], align 16
  store volatile i32 %n, ptr %room
  %m = add i32 %n, 1
  %below = call i32 @endless(i32 %m)
  %kept = load volatile i32, ptr %room
  %sum = add i32 %below, %kept
  ret i32 %sum
}

declare void @llvm.memcpy.p0.p0.i32(ptr, ptr, i32, i1)
define void @copied(ptr %to, ptr %from, i32 %n) nounwind {
  call void @llvm.memcpy.p0.p0.i32(ptr %to, ptr %from, i32 %n, i1 0)
  ret void
}
"""
EXPORTS = ["square", "weight", "place", "other", "called", "nowhere", "doubled", "deep", "endless", "copied"]
DATA = {"weights": struct.pack("<5f", 1.0, 2.5, 4.0, -8.0, 0.5), "more": b"\x01\x02\x03\xff"}


def module(exports: Sequence[str] = EXPORTS, data: Mapping[str, bytes] = DATA, stack: int = 1 << 18) -> bytes:
    return wasm_module(compiled(TEXT, WASM), data, exports, stack)


def test_functions_read_static_data(tmp_path: Path) -> None:
    found = in_node(tmp_path, module(), """
        return [[0, 1, 2, 3, 4, 5].map(n => e.square(n)), [0, 1, 2, 3, 4].map(n => e.weight(n)), e.other(),
                new Float32Array(e.memory.buffer, e.place(0), 2)[1],
                Number(new BigInt64Array(e.memory.buffer, e.place(1), 1)[0])];""")  # fmt: skip
    assert found == [[0, 1, 4, 9, 16, 25], [1.0, 2.5, 4.0, -8.0, 0.5], 255, 2.5, 25]


def test_only_what_is_named_is_exported_and_nothing_is_imported(tmp_path: Path) -> None:
    found = in_node(tmp_path, module(["square", "other"]), """
        return [WebAssembly.Module.imports(module), WebAssembly.Module.exports(module)
            .map(x => [x.name, x.kind])];""")  # fmt: skip
    assert found == [[], [["memory", "memory"], ["__heap_base", "global"], ["square", "function"],
                          ["other", "function"]]]  # fmt: skip


def test_functions_are_called_by_their_addresses(tmp_path: Path) -> None:
    """Address 0 and those past the last are no function's."""
    found = in_node(
        tmp_path,
        module(),
        """
        return [e.called(0), e.called(1), traps(() => e.nowhere(0)), traps(() => e.nowhere(99))];""",
    )
    assert found == [255, 3, "RuntimeError", "RuntimeError"]
    alone = wasm_module(
        compiled("{head}\ndefine void @f(ptr %g) { call void %g() ret void }", WASM), {}, ["f"]
    )
    assert in_node(tmp_path, alone, "return traps(() => e.f(0));") == "RuntimeError"


def test_data_is_aligned_and_the_heap_begins_behind_it(tmp_path: Path) -> None:
    """Nothing of the module lies in the stack's room or at the heap."""
    data = {"more": bytes(range(200)), "weights": DATA["weights"]}
    found = in_node(tmp_path, module(data=data, stack=1000), """
        const bytes = new Uint8Array(e.memory.buffer);
        return [e.place(0), e.__heap_base.value, bytes.slice(0, 1000).every(x => x == 0),
                bytes.slice(e.__heap_base.value).every(x => x == 0), bytes.length];""")  # fmt: skip
    place, heap, unused, free, size = found
    assert place % 64 == 0 and heap % 64 == 0 and place + 20 <= heap < place + 20 + 64
    assert unused and free and size == 65536


def test_memory_grows_and_functions_see_it(tmp_path: Path) -> None:
    found = in_node(tmp_path, module(), """
        const before = e.memory.buffer.byteLength, start = before;
        e.memory.grow(64);
        const x = new Float32Array(e.memory.buffer, start, 1 << 20);
        x.fill(1.5);
        e.doubled(start, 1 << 18);
        return [e.memory.buffer.byteLength - before, x.every(v => v == 3), e.weight(1),
                traps(() => e.doubled(start + 64 * 65536, 1))];""")  # fmt: skip
    assert found == [64 << 16, True, 2.5, "RuntimeError"]


def test_memory_is_copied_within_its_bounds(tmp_path: Path) -> None:
    found = in_node(tmp_path, module(), """
        const heap = e.__heap_base.value, end = e.memory.buffer.byteLength;
        e.copied(heap, e.place(0), 20);
        return [[...new Float32Array(e.memory.buffer, heap, 5)], traps(() => e.copied(heap, end - 4, 5)),
                traps(() => e.copied(end - 4, heap, 5))];""")  # fmt: skip
    assert found == [[1.0, 2.5, 4.0, -8.0, 0.5], "RuntimeError", "RuntimeError"]


def test_a_stack_that_is_full_traps_and_changes_nothing_else(tmp_path: Path) -> None:
    """However large memory is: what lies below the stack lies nowhere."""
    found = in_node(tmp_path, module(stack=64 << 10), """
        const depth = e.deep(60);
        const shallow = traps(() => e.deep(80));
        e.memory.grow(32768 - e.memory.buffer.byteLength / 65536);
        return [depth, shallow, traps(() => e.endless(0)), [0, 1, 2, 3, 4].map(n => e.weight(n)),
                new BigInt64Array(e.memory.buffer, e.__heap_base.value, 8192).every(x => x == 0n),
                traps(() => e.memory.grow(1))];""")  # fmt: skip
    assert found == [
        60 * 61 // 2,
        "RuntimeError",
        "RuntimeError",
        [1.0, 2.5, 4.0, -8.0, 0.5],
        True,
        "RangeError",
    ]


def test_the_same_input_is_the_same_module() -> None:
    assert module() == module()


def linked(text: str, exports: Sequence[str] = ("f",), data: Mapping[str, bytes] | None = None) -> bytes:
    return wasm_module(compiled("{head}\n" + text, WASM), data or {}, exports)


@pytest.mark.parametrize(
    "text, words",
    [
        (
            "declare double @sin(double)\ndeclare void @h()\ndefine double @f(double %x) {\n"
            "%y = call double @sin(double %x) call void @h() ret double %y }",
            "undefined: h, sin",
        ),
        ("@x = external constant i32\ndefine i32 @f() { %v = load i32, ptr @x ret i32 %v }", "undefined: x"),
        ("@g = global i64 3\ndefine ptr @f() { ret ptr @g }", r"\.data\.g: data that is written"),
        ("@g = global i64 0\ndefine ptr @f() { ret ptr @g }", r"\.bss\.g: data that is written"),
        ("@g = thread_local global i64 1\ndefine ptr @f() { ret ptr @g }", "data that is written|thread"),
        (
            "@t = constant ptr @f\ndefine ptr @f() { %g = load ptr, ptr @t ret ptr %g }",
            "R_WASM_TABLE_INDEX_I32 is not for code that stands alone",
        ),
        (
            "@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] "
            "[{ i32, ptr, ptr } { i32 65535, ptr @f, ptr null }]\ndefine void @f() { ret void }",
            "constructors",
        ),
        ("define void @g() { ret void }", "undefined: f"),
    ],
)  # fmt: skip
def test_what_a_module_has_not_is_named(text: str, words: str) -> None:
    with pytest.raises(LinkError, match=words):
        linked(text)


def test_names_are_defined_and_exported_once() -> None:
    text = "@x = constant i32 3\ndefine ptr @f() nounwind { ret ptr @x }"
    assert linked(text)
    for exports in (["f", "f"], ["f", "memory"]):
        with pytest.raises(LinkError):
            linked(text.replace("@f(", "@memory(") if "memory" in exports else text, exports)
    with pytest.raises(LinkError, match="x is defined twice"):
        linked(text, data={"x": b"1234"})


def test_memory_has_bounds(tmp_path: Path) -> None:
    """2 GB of it, and 1 GB of a file."""
    with open(tmp_path / "sparse", "wb+") as file:
        file.truncate(1 << 31)
        large = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    for size, words in ((1 << 31, "memory has at most 2 GB"), (1 << 30, "engines take 1073741824")):
        with pytest.raises(LinkError, match=words):
            module(data={**DATA, "more": large[:size]})
    with pytest.raises(LinkError, match="a stack of 0 bytes"):
        module(stack=0)


def damaged(data: bytes) -> Iterator[bytes]:
    """An object cut short at every byte, and with each byte changed."""
    rng = random.Random(1)
    for at in range(len(data)):
        yield data[:at]
        yield data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        yield data[:at] + bytes([rng.choice((0, 0x7F, 0x80, 0xFF))]) + data[at + 1 :]


def test_a_damaged_object_is_a_link_error_and_nothing_else() -> None:
    refused = 0
    for broken in damaged(compiled(TEXT, WASM)):
        try:
            made = wasm_module(broken, DATA, EXPORTS)
        except LinkError as error:
            refused += 1
            assert str(error)
        else:
            assert len(made) < 8192
    assert refused > 1000


def test_what_is_no_object_is_refused() -> None:
    for data in (b"", b"\0asm", b"\0asm\1\0\0\0", compiled("{head}\n", X86), module()):
        with pytest.raises(LinkError):
            read_object(data)


def test_numbers_have_32_bits() -> None:
    """Seven bits a byte, and a sign where one is."""
    for value in (0, 1, 127, 128, 1 << 20, (1 << 32) - 1):
        assert wasm_link.Reader(wasm_link.leb(value), "number").number() == value
    signed = [
        (b"\x7c", -4), (b"\x3f", 63), (b"\x40", -64), (b"\xff\x00", 127), (b"\x80\x7f", -128),
        (b"\x80\x80\x80\x80\x78", -(1 << 31)), (b"\xff\xff\xff\xff\x07", (1 << 31) - 1),
    ]  # fmt: skip
    for data, value in signed:
        assert wasm_link.Reader(data, "number").signed() == value
    for data in (b"\xff\xff\xff\xff\x1f", b"\x80\x80\x80\x80\x80\x00", b"\x80"):
        with pytest.raises(LinkError):
            wasm_link.Reader(data, "number").number()
    with pytest.raises(LinkError):
        wasm_link.Reader(b"\xff\xff\xff\xff\x0f", "number").signed()
