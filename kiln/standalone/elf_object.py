"""ELF for x86-64 and aarch64: what its tables look like, and relocatable objects, read and checked.

Sources: "System V Application Binary Interface" (gABI 4.1, chapter 4), its supplements for AMD64 and AArch64.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct

from kiln.standalone.reading import Bytes, LinkError
from kiln.standalone.relocations import AARCH64, X86_64, Kind
from kiln.tuples import NamedTuple

HEADER = Struct("<16sHHIQQQIHHHHHH")
SECTION = Struct("<IIQQQQIIQQ")
SEGMENT = Struct("<IIQQQQQQ")
SYMBOL = Struct("<IBBHQQ")
RELOCATION = Struct("<QQq")
ENTRY = Struct("<qQ")  # of the dynamic section
IDENTITY = b"\x7fELF\x02\x01\x01" + bytes(9)  # 64 bits, little-endian, version 1
ET_REL, ET_DYN = 1, 3
# kinds of sections
PROGBITS, SYMTAB, STRTAB, RELA, HASH, DYNAMIC, NOTE, NOBITS, REL, DYNSYM = 1, 2, 3, 4, 5, 6, 7, 8, 9, 11
GNU_HASH = 0x6FFFFFF6
CONSTRUCTORS = {14: "SHT_INIT_ARRAY", 15: "SHT_FINI_ARRAY", 16: "SHT_PREINIT_ARRAY"}
WRITE, ALLOC, EXECUTE, TLS, COMPRESSED = 1, 2, 4, 0x400, 0x800  # flags of sections
UNDEFINED, RESERVED, ABSOLUTE, COMMON = 0, 0xFF00, 0xFFF1, 0xFFF2  # where a symbol is
LOCAL, GLOBAL, WEAK = 0, 1, 2
OBJECT, FUNCTION, SECTION_SYMBOL, FILE, THREAD, INDIRECT = 1, 2, 3, 4, 6, 10  # kinds of symbols
HIDDEN = 2
PT_LOAD, PT_DYNAMIC, PT_NOTE, PT_STACK, PT_RELRO, PT_PROPERTY = 1, 2, 4, 0x6474E551, 0x6474E552, 0x6474E553
PROPERTIES = ".note.gnu.property"
LARGEST_ALIGNMENT = 4096
DATA_ALIGNMENT = 64
DATA = ".rodata.data"  # the section of data
R, W, X = 4, 2, 1  # what is permitted in a segment


class Machine(NamedTuple):
    """What of a processor a linker knows."""

    name: str  # the first word of its triple
    number: int
    page: int  # the largest that systems have
    kinds: dict[int, Kind]
    filler: bytes  # between functions: an instruction that traps


MACHINES = {
    "x86_64": Machine("x86_64", 62, 0x1000, X86_64, b"\xcc"),
    "aarch64": Machine("aarch64", 183, 0x10000, AARCH64, b"\0"),
}


class Section(NamedTuple):
    name: str
    type: int
    flags: int
    data: memoryview
    size: int
    alignment: int
    link: int
    info: int

    @property
    def kept(self) -> bool:
        """Whether the library has it."""
        unwinding = self.name == ".eh_frame" or self.name.startswith(".eh_frame.")
        return bool(self.flags & ALLOC) and self.type != NOTE and not unwinding


class Symbol(NamedTuple):
    name: str
    type: int
    binding: int
    section: int
    value: int
    size: int


class Relocation(NamedTuple):
    section: int  # which it changes
    offset: int
    kind: Kind
    symbol: int
    addend: int


class ObjectFile(NamedTuple):
    machine: Machine
    sections: list[Section]
    symbols: list[Symbol]
    relocations: list[Relocation]


def read_object(data: bytes) -> ObjectFile:
    """A relocatable object, every part of it checked. LinkError if it is damaged, or has what no library
    here may: data that is written, of each thread its own, or filled before main.
    """
    machine, sections = _sections(Bytes(data, "object"))
    tables = [(n, s) for n, s in enumerate(sections) if s.type == SYMTAB]
    if len(tables) > 1:
        raise LinkError("object: two tables of symbols")
    symbols = [s for _, table in tables for s in _symbols(table, sections)]
    relocations: list[Relocation] = []
    for section in sections:
        if section.type not in (REL, RELA):
            continue
        changed = _at(sections, section.info, "section to relocate")
        if not changed.kept:
            continue
        if section.type == REL or not tables or section.link != tables[0][0]:
            raise LinkError(f"{section.name}: expected relocations with addends, of the object's symbols")
        relocations += _relocations(section, changed, symbols, machine)
    return ObjectFile(machine, sections, symbols, relocations)


def _sections(file: Bytes) -> tuple[Machine, list[Section]]:
    identity, type_, number, version, _, _, start, _, _, _, _, row, count, names = file.unpack(HEADER, 0)
    machine = next((m for m in MACHINES.values() if m.number == number), None)
    if identity[:7] != IDENTITY[:7] or type_ != ET_REL or version != 1:
        raise LinkError("object: expected a relocatable ELF object of 64 bits, little-endian")
    if machine is None:
        raise LinkError(f"object: machine {number} is none of {', '.join(MACHINES)}")
    if row != SECTION.size or not 0 < count < RESERVED or names >= count:
        raise LinkError(f"object: damaged: {count} sections of {row} bytes, names in section {names}")
    rows = Bytes(file.range(start, count * row), "sections of an object").table(SECTION)
    if rows[names][1] != STRTAB:
        raise LinkError("object: damaged: the names of its sections are no table of names")
    texts = Bytes(file.range(*rows[names][4:6]), "names of sections")
    sections = []
    for name, type_, flags, _, start, size, link, info, alignment, _ in rows:
        stored = memoryview(b"") if type_ in (0, NOBITS) else file.range(start, size)
        sections.append(
            Section(texts.terminated(name), type_, flags, stored, size, max(alignment, 1), link, info)
        )
        _check_section(sections[-1])
    if sum(s.size for s in sections if s.kept) > len(file.data):
        raise LinkError("object: damaged: sections overlap")
    return machine, sections


def _check_section(section: Section) -> None:
    """That a library can have the section, if it is to have it."""
    name, alignment = section.name or "a section", section.alignment
    if not section.kept:
        return
    if section.type in CONSTRUCTORS or name.split(".")[1:2] in (["ctors"], ["dtors"], ["init"], ["fini"]):
        raise LinkError(f"{name}: constructors and destructors have nobody who calls them")
    if section.flags & TLS:
        raise LinkError(f"{name}: thread-local data")
    if section.flags & WRITE and section.size:
        raise LinkError(f"{name}: data that is written, or holds addresses")
    if section.flags & COMPRESSED or section.type not in (PROGBITS, NOBITS):
        raise LinkError(f"{name}: a section of type {section.type:#x}, flags {section.flags:#x}")
    if section.type == NOBITS and section.size:
        raise LinkError(f"{name}: data without bytes")
    if alignment & (alignment - 1) or alignment > LARGEST_ALIGNMENT:
        raise LinkError(f"{name}: alignment {alignment} is no power of two up to {LARGEST_ALIGNMENT}")


def _at(sections: Sequence[Section], n: int, what: str) -> Section:
    if not n < len(sections):
        raise LinkError(f"object: damaged: {what} {n} of {len(sections)}")
    return sections[n]


def _symbols(table: Section, sections: Sequence[Section]) -> Iterable[Symbol]:
    names = _at(sections, table.link, "names in section")
    if names.type != STRTAB:
        raise LinkError(f"object: damaged: {names.name} is no table of names")
    texts = Bytes(names.data, "names of symbols")
    for name, info, _, section, value, size in Bytes(table.data, "symbols").table(SYMBOL):
        symbol = Symbol(texts.terminated(name), info & 15, info >> 4, section, value, size)
        shown = symbol.name or "a symbol"
        if section == COMMON:
            raise LinkError(f"{shown}: a common symbol, which is data that is written")
        if symbol.type in (THREAD, INDIRECT):
            raise LinkError(f"{shown}: {'thread-local' if symbol.type == THREAD else 'an indirect function'}")
        if symbol.binding not in (LOCAL, GLOBAL, WEAK):
            raise LinkError(f"{shown}: binding {symbol.binding} is neither local, global nor weak")
        if section in (UNDEFINED, ABSOLUTE):
            yield symbol
            continue
        if value + size > _at(sections, section, f"{shown} in section").size:
            raise LinkError(f"{shown}: damaged: it lies outside of its section")
        yield symbol


def _relocations(
    table: Section, changed: Section, symbols: Sequence[Symbol], machine: Machine
) -> Iterable[Relocation]:
    for offset, info, addend in Bytes(table.data, table.name).table(RELOCATION):
        number, symbol = info & 0xFFFFFFFF, info >> 32
        kind = machine.kinds.get(number)
        if kind is None:
            raise LinkError(f"{changed.name}: relocations of kind {number} are not known on {machine.name}")
        if symbol >= len(symbols):
            raise LinkError(f"{table.name}: damaged: symbol {symbol} of {len(symbols)}")
        if offset < kind.before or offset + kind.size > changed.size:
            raise LinkError(f"{table.name}: damaged: {kind.name} at {offset} of {changed.size} bytes")
        yield Relocation(table.info, offset, kind, symbol, addend)
