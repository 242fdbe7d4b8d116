"""What a linker writes into code and tables, kind by kind: x86-64 and aarch64, relative to the place alone.

    S + A    the target: the address of a symbol, and a number that the object adds to it
    P        the place: the address of the bytes that change

Sources: "System V ABI, AMD64 Architecture Processor Supplement" (4.4 Relocation, B.2 GOTPCRELX optimization),
"ELF for the Arm 64-bit Architecture (AArch64)" (5.7 Relocation).

An address that others may replace is read from a table (GOT). Here no symbol is another library's: an
instruction that reads an address from the table becomes one that computes it. Kinds that write an absolute
address are named, and refused.
"""

from __future__ import annotations

from collections.abc import Callable

from kiln.standalone.reading import LinkError
from kiln.tuples import NamedTuple

# (image, index of the place in it, target S + A, place P)
Apply = Callable[[bytearray, int, int, int], None]


class Kind(NamedTuple):
    """A kind of relocation."""

    name: str
    apply: Apply
    size: int = 4  # bytes from the place on that are read or changed
    before: int = 0  # bytes in front of it that are


def fitting(value: int, bits: int) -> int:
    """The value, if it is a signed number of so many bits."""
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise LinkError(f"a distance of {value} does not fit {bits} bits")
    return value


def patch(image: bytearray, at: int, value: int, bits: int, position: int) -> None:
    """Replaces `bits` bits of the word at `at`."""
    mask = ((1 << bits) - 1) << position
    word = int.from_bytes(image[at : at + 4], "little") & ~mask
    image[at : at + 4] = (word | value << position & mask).to_bytes(4, "little")


def nothing(image: bytearray, at: int, target: int, place: int) -> None:
    """No change."""


def absolute(image: bytearray, at: int, target: int, place: int) -> None:
    """An address: it is known when the library is loaded, and nothing is written then."""
    raise LinkError("an absolute address in position independent code")


def by_table(image: bytearray, at: int, target: int, place: int) -> None:
    """The place of an address in a table, read by an instruction that cannot compute it."""
    raise LinkError("an address that must lie in a table; declare the symbol hidden")


def distance(bits: int) -> Apply:
    """S + A - P as a number of so many bits."""

    def apply(image: bytearray, at: int, target: int, place: int) -> None:
        image[at : at + bits // 8] = fitting(target - place, bits).to_bytes(bits // 8, "little", signed=True)

    return apply


def got_relaxed(image: bytearray, at: int, target: int, place: int) -> None:
    """x86-64's instructions on an address from the table, as those on the symbol itself.

    mov   sym@GOTPCREL(%rip), %r     ->   lea   sym(%rip), %r
    call  *sym@GOTPCREL(%rip)        ->   addr32 call sym
    jmp   *sym@GOTPCREL(%rip)        ->   jmp   sym; nop
    """
    operation, mode = image[at - 2], image[at - 1]
    value = target - place
    if operation == 0x8B and mode & 0xC7 == 0x05:
        image[at - 2] = 0x8D
    elif (operation, mode) == (0xFF, 0x15):
        image[at - 2 : at] = b"\x67\xe8"
    elif (operation, mode) == (0xFF, 0x25):
        image[at - 2 : at + 4] = b"\xe9" + fitting(value + 1, 32).to_bytes(4, "little", signed=True) + b"\x90"
        return
    else:
        return by_table(image, at, target, place)
    distance(32)(image, at, target, place)


def branch(bits: int, position: int) -> Apply:
    """aarch64: (S + A - P) / 4 within an instruction."""

    def apply(image: bytearray, at: int, target: int, place: int) -> None:
        if (target - place) % 4:
            raise LinkError("a distance that is no number of instructions")
        patch(image, at, fitting((target - place) // 4, bits), bits, position)

    return apply


def _adr(image: bytearray, at: int, value: int) -> None:
    """A number of 21 bits: the last two at 29, the others at 5."""
    patch(image, at, value, 2, 29)
    patch(image, at, value >> 2, 19, 5)


def adr(image: bytearray, at: int, target: int, place: int) -> None:
    """aarch64: S + A - P in `adr`."""
    _adr(image, at, fitting(target - place, 21))


def adrp(image: bytearray, at: int, target: int, place: int) -> None:
    """aarch64: the distance in pages of 4096 bytes in `adrp`."""
    _adr(image, at, fitting((target >> 12) - (place >> 12), 21))


def adrp_unchecked(image: bytearray, at: int, target: int, place: int) -> None:
    """aarch64: the low 21 bits of that distance."""
    _adr(image, at, (target >> 12) - (place >> 12))


def low12(scale: int) -> Apply:
    """aarch64: the place in its page, in units of 2**scale bytes."""

    def apply(image: bytearray, at: int, target: int, place: int) -> None:
        if target % (1 << scale):
            raise LinkError(f"a load of {1 << scale} bytes from an address that is no multiple of them")
        patch(image, at, (target & 0xFFF) >> scale, 12, 10)

    return apply


def got_low12(image: bytearray, at: int, target: int, place: int) -> None:
    """aarch64: `ldr x, [page, #low12 of the table's entry]` as `add x, page, #low12 of the symbol`."""
    word = int.from_bytes(image[at : at + 4], "little")
    if word >> 22 != 0xF9400000 >> 22:
        return by_table(image, at, target, place)
    image[at : at + 4] = (0x91000000 | word & 0x3FF).to_bytes(4, "little")
    low12(0)(image, at, target, place)


X86_64 = {
    0: Kind("R_X86_64_NONE", nothing, 0),
    1: Kind("R_X86_64_64", absolute, 8),
    2: Kind("R_X86_64_PC32", distance(32)),
    4: Kind("R_X86_64_PLT32", distance(32)),
    9: Kind("R_X86_64_GOTPCREL", by_table),
    10: Kind("R_X86_64_32", absolute),
    11: Kind("R_X86_64_32S", absolute),
    13: Kind("R_X86_64_PC16", distance(16), 2),
    15: Kind("R_X86_64_PC8", distance(8), 1),
    24: Kind("R_X86_64_PC64", distance(64), 8),
    41: Kind("R_X86_64_GOTPCRELX", got_relaxed, before=2),
    42: Kind("R_X86_64_REX_GOTPCRELX", got_relaxed, before=3),
}

AARCH64 = {
    0: Kind("R_AARCH64_NONE", nothing, 0),
    256: Kind("R_AARCH64_NONE", nothing, 0),
    257: Kind("R_AARCH64_ABS64", absolute, 8),
    258: Kind("R_AARCH64_ABS32", absolute),
    260: Kind("R_AARCH64_PREL64", distance(64), 8),
    261: Kind("R_AARCH64_PREL32", distance(32)),
    262: Kind("R_AARCH64_PREL16", distance(16), 2),
    273: Kind("R_AARCH64_LD_PREL_LO19", branch(19, 5)),
    274: Kind("R_AARCH64_ADR_PREL_LO21", adr),
    275: Kind("R_AARCH64_ADR_PREL_PG_HI21", adrp),
    276: Kind("R_AARCH64_ADR_PREL_PG_HI21_NC", adrp_unchecked),
    277: Kind("R_AARCH64_ADD_ABS_LO12_NC", low12(0)),
    278: Kind("R_AARCH64_LDST8_ABS_LO12_NC", low12(0)),
    279: Kind("R_AARCH64_TSTBR14", branch(14, 5)),
    280: Kind("R_AARCH64_CONDBR19", branch(19, 5)),
    282: Kind("R_AARCH64_JUMP26", branch(26, 0)),
    283: Kind("R_AARCH64_CALL26", branch(26, 0)),
    284: Kind("R_AARCH64_LDST16_ABS_LO12_NC", low12(1)),
    285: Kind("R_AARCH64_LDST32_ABS_LO12_NC", low12(2)),
    286: Kind("R_AARCH64_LDST64_ABS_LO12_NC", low12(3)),
    299: Kind("R_AARCH64_LDST128_ABS_LO12_NC", low12(4)),
    311: Kind("R_AARCH64_ADR_GOT_PAGE", adrp),
    312: Kind("R_AARCH64_LD64_GOT_LO12_NC", got_low12),
    314: Kind("R_AARCH64_PLT32", distance(32)),
}
