"""Every kind of relocation that an assembler asks for: its instruction reaches its target, or is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from linking import ARM, X86, machine_here, run, tool, written

from kiln.codegen.target import Target
from kiln.standalone import elf
from kiln.standalone.elf_object import read_object
from kiln.standalone.reading import LinkError

HEAD = """
.text
.globl helper, other
helper:
{helper}
.section .text.other,"ax"
other:
{other}
.section .rodata.values,"a"
.balign 16
.globl values
values: .quad 100, 200, 300, 400
"""
ARM_CODE = (
    HEAD.replace("{helper}", "add x0, x0, #1\nret").replace("{other}", "add x0, x0, #2\nret")
    + """
.section .text.f,"ax"
.globl f
f:
    stp x29, x30, [sp, #-16]!
    mov x0, #0
    bl helper                           // 1
    bl jump                             // 3
    bl tested                           // 4
    bl compared                         // 6
    ldr x1, values+8                    // 200
    add x0, x0, x1
    adr x1, values+16
    ldr x1, [x1]                        // 300
    add x0, x0, x1
    adrp x2, values+24
    add x3, x2, :lo12:values+24
    ldr x1, [x3]                        // 400
    add x0, x0, x1
    ldr x1, [x2, :lo12:values+24]       // 400
    add x0, x0, x1
    ldr w1, [x2, :lo12:values+24]       // 400
    add x0, x0, x1
    ldrh w1, [x2, :lo12:values+24]      // 400
    add x0, x0, x1
    ldrb w1, [x2, :lo12:values+24]      // 144
    add x0, x0, x1
    adrp x2, values+16
    ldr q0, [x2, :lo12:values+16]       // 300
    fmov x1, d0
    add x0, x0, x1
    adrp x4, :got:values
    ldr x5, [x4, :got_lo12:values]
    ldr x1, [x5]                        // 100
    add x0, x0, x1
    adrp x2, distances
    add x2, x2, :lo12:distances
    ldr x1, [x2]
    add x1, x1, x2
    ldr x1, [x1]                        // 200
    add x0, x0, x1
    ldrsw x1, [x2, #8]
    add x1, x1, x2
    ldr x1, [x1]                        // 100
    add x0, x0, x1
    ldp x29, x30, [sp], #16
    ret
jump: b other
tested: tbz x0, #2, helper
    ret
compared: cmp x0, #4
    b.eq other
    ret
.section .rodata.distances,"a"
.balign 8
distances:
    .quad values + 8 - .
    .long values + 8 - .
"""
)
X86_CODE = (
    HEAD.replace("{helper}", "add $1, %rax\nret").replace("{other}", "add $2, %rax\nret")
    + """
.section .text.f,"ax"
.globl f
f:
    xor %eax, %eax
    call helper                         # 1
    call *helper@GOTPCREL(%rip)         # 2
    call jump                           # 3
    call other                          # 5
    add values+8(%rip), %rax            # 200
    mov values@GOTPCREL(%rip), %rcx
    add (%rcx), %rax                    # 100
    mov values@GOTPCREL(%rip), %r9
    add 16(%r9), %rax                   # 300
    lea distances(%rip), %rcx
    mov (%rcx), %rdx
    add (%rcx,%rdx), %rax               # 200
    movslq 8(%rcx), %rdx
    add (%rcx,%rdx), %rax               # 100
    ret
jump: jmp *helper@GOTPCREL(%rip)
.section .rodata.distances,"a"
distances:
    .quad values + 8 - .
    .long values + 8 - .
"""
)
KINDS = {
    "x86-64-v3": (X86_CODE, 905, "PC32 PLT32 PC64 GOTPCRELX REX_GOTPCRELX"),
    "aarch64": (
        ARM_CODE,
        2950,
        "CALL26 JUMP26 TSTBR14 CONDBR19 LD_PREL_LO19 ADR_PREL_LO21 ADR_PREL_PG_HI21 ADD_ABS_LO12_NC "
        "LDST8_ABS_LO12_NC LDST16_ABS_LO12_NC LDST32_ABS_LO12_NC LDST64_ABS_LO12_NC LDST128_ABS_LO12_NC "
        "ADR_GOT_PAGE LD64_GOT_LO12_NC PREL64 PREL32",
    ),
}


def assembled(code: str, target: Target, folder: Path) -> bytes:
    """The object of lines of assembler."""
    source = written(folder, "code.s", code.encode())
    run(tool("gcc", target.triple.split("-")[0]), "-c", source, "-o", folder / "code.o")
    return (folder / "code.o").read_bytes()


@pytest.mark.parametrize("target", [X86, ARM], ids=lambda t: t.name)
def test_every_kind_of_relocation_reaches_its_target(target: Target, tmp_path: Path) -> None:
    code, sum_, kinds = KINDS[target.name]
    made = assembled(code, target, tmp_path)
    prefix = "R_AARCH64_" if target is ARM else "R_X86_64_"
    assert {r.kind.name for r in read_object(made).relocations} == {prefix + kind for kind in kinds.split()}
    compiler, runner = machine_here(target)
    written(tmp_path, "libkinds.so", elf.shared_library([made], {}, ["f"], "libkinds.so"))
    main = b'#include <stdio.h>\nlong f(void);\nint main(void) { printf("%ld", f()); return 0; }\n'
    run(compiler, written(tmp_path, "main.c", main), f"-L{tmp_path}", "-lkinds", f"-Wl,-rpath,{tmp_path}",
        "-o", tmp_path / "main")  # fmt: skip
    assert run(*runner, tmp_path / "main") == str(sum_)


@pytest.mark.parametrize(
    "line, target, words",
    [
        ("add values@GOTPCREL(%rip), %rax", X86, "R_X86_64_REX_GOTPCRELX of values in .*must lie in a table"),
        ("movabs $values, %rax", X86, "R_X86_64_64 of values in .text: an absolute address"),
        ("mov $values, %eax", X86, "R_X86_64_32 of values in .text: an absolute address"),
        ("jmp values+70000", X86, ""),
        ("movabs $_GLOBAL_OFFSET_TABLE_-., %rax", X86, "relocations of kind 29 are not known on x86_64"),
        ("movz x0, #:abs_g0:values", ARM, "relocations of kind 263 are not known on aarch64"),
        ("ldr x0, values+4", ARM, ""),
        ("ldr x0, values+0x200000", ARM, "LD_PREL_LO19 of values .*: a distance of .* does not fit 19 bits"),
        ("b.eq values+0x200000", ARM, "CONDBR19 of values .*: a distance of .* does not fit 19 bits"),
        ("bl values+0x10000000", ARM, "CALL26 of values in .text: a distance of .* does not fit 26 bits"),
        ("bl values+2", ARM, "CALL26 of values in .text: a distance that is no number of instructions"),
        ("adr x0, values+0x200000", ARM, "ADR_PREL_LO21 of values .*: a distance of .* does not fit 21 bits"),
        ("ldr x0, [x1, :lo12:values+4]", ARM, "LDST64_ABS_LO12_NC of values .*: a load of 8 bytes from"),
    ],
)  # fmt: skip
def test_an_instruction_that_cannot_reach_its_target_is_named(
    line: str, target: Target, words: str, tmp_path: Path
) -> None:
    code = HEAD.replace("{helper}", line).replace("{other}", "")
    if not words:
        elf.shared_library([assembled(code, target, tmp_path)], {}, ["helper"], "l.so")
        return
    with pytest.raises(LinkError, match=words):
        elf.shared_library([assembled(code, target, tmp_path)], {}, ["helper"], "l.so")
