"""ELF for x86-64 and aarch64: relocatable objects become a shared library, and data a relocatable object.

    objects, data -> read -> place -> resolve -> relocate -> tables for loaders and linkers -> bytes

Sources: "System V Application Binary Interface" (gABI 4.1, chapters 4 and 5), its supplements for AMD64 and
AArch64; the GNU hash table and notes as the GNU linker writes them.

A library is four segments, of which none can be written once it is loaded:

    read      headers, build id, names of the exports, read-only data of the objects
    execute   code
    relro     the dynamic section: the loader may write it, and then takes the right away
    read      `data`, smallest first

Data comes last, so that everything else is near the code: a symbol must begin within 2 GB of the code that
names it (4 GB on aarch64), and one of any size may follow the others. Nothing is left to the loader: no
relocations, no other library, no constructors. Symbols that are not exported are listed for debuggers alone.
Tables for unwinding are dropped: kernels neither throw nor call back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from struct import Struct

from kiln.standalone.elf_object import (
    ALLOC,
    DATA,
    DATA_ALIGNMENT,
    DYNAMIC,
    DYNSYM,
    ENTRY,
    ET_DYN,
    EXECUTE,
    FUNCTION,
    GLOBAL,
    GNU_HASH,
    HASH,
    HEADER,
    IDENTITY,
    LOCAL,
    NOTE,
    OBJECT,
    PROGBITS,
    PROPERTIES,
    PT_DYNAMIC,
    PT_LOAD,
    PT_NOTE,
    PT_PROPERTY,
    PT_RELRO,
    PT_STACK,
    SECTION,
    SEGMENT,
    STRTAB,
    SYMBOL,
    SYMTAB,
    UNDEFINED,
    WEAK,
    WRITE,
    Machine,
    ObjectFile,
    R,
    Symbol,
    W,
    X,
    read_object,
)
from kiln.standalone.reading import LinkError, aligned
from kiln.tuples import NamedTuple

Buffer = bytes | bytearray | memoryview


class Segment:
    """Bytes side by side in the file and in memory.

    Addresses differ from places in the file by whole pages, so that no page belongs to two segments.
    """

    def __init__(self, after: Segment | None, machine: Machine, filler: bytes = b"\0") -> None:
        self.page, self.filler = machine.page, filler
        self.offset: int = aligned(after.offset + after.size, DATA_ALIGNMENT) if after else 0
        self.address: int = aligned(after.end, self.page) + self.offset % self.page if after else 0
        self.size: int = 0
        self.parts: list[Buffer] = []

    @property
    def end(self) -> int:
        """The address after its last byte."""
        return self.address + self.size

    @property
    def rest(self) -> int:
        """Its bytes and those up to the end of its last page."""
        return aligned(self.end, self.page) - self.address

    def add(self, part: Buffer, alignment: int) -> int:
        """The address of `part` behind the others."""
        start = aligned(self.end, alignment)
        self.parts += [self.filler * (start - self.end), part]
        self.size = start + len(part) - self.address
        return start

    def header(self, type_: int, flags: int, alignment: int, memory: int) -> bytes:
        """What a loader reads of it."""
        return SEGMENT.pack(
            type_, flags, self.offset, self.address, self.address, self.size, memory, alignment
        )


class Out(NamedTuple):
    """A section of the library."""

    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    alignment: int
    row: int = 0
    link: str = ""  # the section that it needs
    info: int = 0


class Place(NamedTuple):
    """A symbol of the library."""

    name: str
    type: int
    section: str
    address: int
    size: int


class Names:
    """A table of names, each at its place."""

    def __init__(self) -> None:
        self.bytes = bytearray(1)

    def add(self, name: str) -> int:
        """The place of a name that is not there yet."""
        if not name or "\0" in name:
            raise LinkError(f"{name!r} is no name")
        self.bytes += name.encode() + b"\0"
        return len(self.bytes) - len(name.encode()) - 1


def shared_library(
    objects: Sequence[bytes],
    data: Mapping[str, bytes | memoryview],
    exports: Sequence[str],
    soname: str,
) -> bytes:
    """The objects and `data`, which are symbols of theirs, as a library that shows the names of `exports`.

    LinkError if an object is damaged or asks for what a library here has not: symbols that nobody defines,
    data that is written, addresses known at load time only, data that begins more than 2 GB from code that
    names it.
    """
    return b"".join(Library([read_object(o) for o in objects], data, exports, soname).parts())


class Library:
    """A library in the making: everything is placed, then symbols are found, then bytes are filled in."""

    def __init__(
        self,
        objects: Sequence[ObjectFile],
        data: Mapping[str, bytes | memoryview],
        exports: Sequence[str],
        soname: str,
        isa: int = 0,
    ) -> None:
        """`isa`: what loaders are to ask of an x86-64 processor, bit n for level n + 1; those that know of it
        (glibc from 2.33 on) refuse the library on one that has less.
        """
        if not objects or len({o.machine.name for o in objects}) != 1:
            raise LinkError(f"expected objects of one machine, got {[o.machine.name for o in objects]}")
        if len({*exports}) != len(exports):
            raise LinkError("a name is exported twice")
        self.objects, self.exports, self.machine = objects, exports, objects[0].machine
        self.out: dict[str, Out] = {}
        self.symbols: dict[str, Place] = {}
        self.placed: dict[tuple[int, int], tuple[bytearray, int, str]] = {}

        self.names = Names()
        self.soname, *self.name_at = [self.names.add(name) for name in (soname, *exports)]
        self._place(data, isa)
        self._define()
        self._relocate()
        self._dynamic_tables()

    def _place(self, data: Mapping[str, bytes | memoryview], isa: int) -> None:
        """Gives every part its address."""
        count, machine = len(self.exports), self.machine
        self.head = head = Segment(None, machine)
        self.front = bytearray(HEADER.size + 10 * SEGMENT.size)
        head.add(self.front, 1)
        self.note = self._section(".note.gnu.build-id", NOTE, bytearray(36), 4)
        if isa:  # NT_GNU_PROPERTY_TYPE_0: GNU_PROPERTY_X86_ISA_1_NEEDED
            asked = Struct("<III4sIIII").pack(4, 16, 5, b"GNU", 0xC0008002, 4, isa, 0)
            self._section(PROPERTIES, NOTE, bytearray(asked), 8)
        self.gnu_hash = self._section(".gnu.hash", GNU_HASH, bytearray(28 + 4 * count), 8, link=".dynsym")
        self.hash = self._section(".hash", HASH, bytearray(16 + 4 * count), 8, 4, ".dynsym")
        rows = bytearray(SYMBOL.size * (1 + count))
        self.dynsym = self._section(".dynsym", DYNSYM, rows, 8, SYMBOL.size, ".dynstr", 1)
        self._section(".dynstr", STRTAB, self.names.bytes, 1)
        self._contents(".rodata", head, 0)
        self.text = Segment(head, machine, machine.filler)
        self._contents(".text", self.text, EXECUTE)
        self.relro = Segment(self.text, machine)
        self.dynamic = bytearray(8 * ENTRY.size)
        at = self.relro.add(self.dynamic, 8)
        self.out[".dynamic"] = Out(
            ".dynamic",
            DYNAMIC,
            ALLOC | WRITE,
            at,
            self.relro.offset,
            self.relro.size,
            8,
            ENTRY.size,
            ".dynstr",
        )
        self.data = Segment(self.relro, machine)
        for name, view in sorted(
            ((n, memoryview(b).cast("B")) for n, b in data.items()), key=lambda item: len(item[1])
        ):
            at = self.data.add(view, DATA_ALIGNMENT)
            self.symbols[name] = Place(name, OBJECT, DATA, at, len(view))
        if data:
            self.out[DATA] = Out(
                DATA, PROGBITS, ALLOC, self.data.address, self.data.offset, self.data.size, DATA_ALIGNMENT
            )

    def _section(
        self,
        name: str,
        type_: int,
        table: bytearray,
        alignment: int,
        row: int = 0,
        link: str = "",
        info: int = 0,
    ) -> bytearray:
        """A table of the first segment, to be filled in later."""
        at = self.head.add(table, alignment)
        self.out[name] = Out(name, type_, ALLOC, at, at, len(table), alignment, row, link, info)
        return table

    def _contents(self, name: str, segment: Segment, execute: int) -> None:
        """The sections of the objects that hold code, or those that do not, as one."""
        first = segment.add(b"", DATA_ALIGNMENT)
        alignment = DATA_ALIGNMENT
        for o, read in enumerate(self.objects):
            for n, section in enumerate(read.sections):
                if section.kept and section.flags & EXECUTE == execute:
                    content = bytearray(section.data)
                    at = segment.add(content, section.alignment)
                    self.placed[o, n] = content, at, name
                    alignment = max(alignment, section.alignment)
        size, offset = segment.end - first, first - segment.address + segment.offset
        self.out[name] = Out(name, PROGBITS, ALLOC | execute, first, offset, size, alignment)

    def _define(self) -> None:
        """Finds what the objects define for each other; LinkError for names defined twice or not at all."""
        weak: dict[str, Place] = {}
        wanted = set(self.exports)
        for o, read in enumerate(self.objects):
            for symbol in read.symbols:
                place = self._place_of(o, symbol)
                if symbol.binding == LOCAL or place is None:
                    continue
                if symbol.binding == WEAK:
                    weak.setdefault(symbol.name, place)
                elif symbol.name in self.symbols:
                    raise LinkError(f"{symbol.name} is defined twice")
                else:
                    self.symbols[symbol.name] = place
            used = (read.symbols[r.symbol] for r in read.relocations)
            wanted |= {s.name for s in used if s.binding != LOCAL and s.section == UNDEFINED}
        self.symbols = weak | self.symbols
        undefined = sorted(wanted - self.symbols.keys())
        if undefined:
            raise LinkError(f"undefined: {', '.join(undefined)}")

    def _place_of(self, o: int, symbol: Symbol) -> Place | None:
        """Where a symbol of object `o` is; None if that is not in the library."""
        if (o, symbol.section) not in self.placed:
            return None
        _, start, name = self.placed[o, symbol.section]
        return Place(symbol.name, symbol.type, name, start + symbol.value, symbol.size)

    def _relocate(self) -> None:
        for o, read in enumerate(self.objects):
            for relocation in read.relocations:
                content, start, _ = self.placed[o, relocation.section]
                symbol, kind = read.symbols[relocation.symbol], relocation.kind
                place = (
                    self._place_of(o, symbol) if symbol.binding == LOCAL else self.symbols.get(symbol.name)
                )
                try:
                    if kind.size == 0:
                        continue
                    if place is None:
                        raise LinkError("the symbol has no place in the library")
                    target = place.address + relocation.addend
                    kind.apply(content, relocation.offset, target, start + relocation.offset)
                except LinkError as error:
                    name = symbol.name or "a section"
                    section = read.sections[relocation.section].name
                    raise LinkError(f"{kind.name} of {name} in {section}: {error}") from None

    def _dynamic_tables(self) -> None:
        """Fills in what the loader reads. A library exports a few names: one bucket holds them all."""
        count = len(self.exports)
        hashes = [_gnu_hash(name) for name in self.exports]
        bloom = 0
        for value in hashes:
            bloom |= 1 << value % 64 | 1 << (value >> 6) % 64
        chain = [value & ~1 | (n + 1 == count) for n, value in enumerate(hashes)]
        first = int(count > 0)
        self.gnu_hash[:] = Struct(f"<4IQI{count}I").pack(1, 1, 1, 6, bloom, first, *chain)
        after = [n + 1 if n < count else 0 for n in range(1, count + 1)]
        self.hash[:] = Struct(f"<{4 + count}I").pack(1, 1 + count, first, 0, *after)
        sections = [*self.out]
        for n, (name, at) in enumerate(zip(self.exports, self.name_at, strict=True), 1):
            p = self.symbols[name]
            row = SYMBOL.pack(at, GLOBAL << 4 | p.type, 0, sections.index(p.section) + 1, p.address, p.size)
            self.dynsym[n * SYMBOL.size : (n + 1) * SYMBOL.size] = row
        out = self.out
        entries = [
            (14, self.soname),  # DT_SONAME
            (0x6FFFFEF5, out[".gnu.hash"].address),  # DT_GNU_HASH
            (4, out[".hash"].address),  # DT_HASH
            (5, out[".dynstr"].address),  # DT_STRTAB
            (6, out[".dynsym"].address),  # DT_SYMTAB
            (10, out[".dynstr"].size),  # DT_STRSZ
            (11, SYMBOL.size),  # DT_SYMENT
            (0, 0),  # DT_NULL
        ]
        self.dynamic[:] = b"".join(ENTRY.pack(*entry) for entry in entries)

    def segments(self) -> tuple[Segment, Segment, Segment, Segment]:
        """The library's bytes as a loader maps them, in order."""
        return self.head, self.text, self.relro, self.data

    def parts(self) -> list[Buffer]:
        """The library's bytes, in order; none of the data is copied."""
        parts: list[Buffer] = []
        at = 0
        for segment in self.segments():
            parts += [bytes(segment.offset - at), *segment.parts]
            at = segment.offset + segment.size
        tail = self._tail(at)
        parts.append(tail)
        digest = hashlib.blake2b(digest_size=20)
        for part in parts:
            digest.update(part)
        self.note[:] = Struct("<III4s20s").pack(4, 20, 3, b"GNU", digest.digest())  # NT_GNU_BUILD_ID
        return parts

    def _tail(self, at: int) -> bytes:
        """What only debuggers and linkers read, behind the segments; fills in the headers."""
        exported = {*self.exports}
        known = [p for p in self._all_symbols() if p.name not in exported]
        listed = [*known, *(self.symbols[name] for name in self.exports)]
        sections, names = [*self.out], Names()
        rows = [bytes(SYMBOL.size)]
        for n, p in enumerate(listed):
            info = (LOCAL if n < len(known) else GLOBAL) << 4 | p.type
            rows.append(
                SYMBOL.pack(names.add(p.name), info, 0, sections.index(p.section) + 1, p.address, p.size)
            )
        titles = Names()
        placed = {name: titles.add(name) for name in (*self.out, ".symtab", ".strtab", ".shstrtab")}
        tail = bytearray(-at % 8)
        for name, type_, table, row, link, info in (
            (".symtab", SYMTAB, b"".join(rows), SYMBOL.size, ".strtab", 1 + len(known)),
            (".strtab", STRTAB, names.bytes, 0, "", 0),
            (".shstrtab", STRTAB, titles.bytes, 0, "", 0),
        ):
            self.out[name] = Out(
                name, type_, 0, 0, at + len(tail), len(table), 8 if row else 1, row, link, info
            )
            tail += table
        tail += bytes(-(at + len(tail)) % 8)
        headers = at + len(tail)
        order = ["", *self.out]
        tail += bytes(SECTION.size)
        for s in self.out.values():
            tail += SECTION.pack(
                placed[s.name], s.type, s.flags, s.address, s.offset, s.size, order.index(s.link), s.info,
                s.alignment, s.row,
            )  # fmt: skip
        segments = self._segment_headers()
        header = HEADER.pack(
            IDENTITY, ET_DYN, self.machine.number, 1, 0, HEADER.size, headers, 0, HEADER.size, SEGMENT.size,
            len(segments), SECTION.size, len(order), len(order) - 1,
        )  # fmt: skip
        front = header + b"".join(segments)
        self.front[: len(front)] = front
        return bytes(tail)

    def _segment_headers(self) -> list[bytes]:
        """What a loader maps, and how."""
        note = self.out[".note.gnu.build-id"]
        maps = [
            s.header(PT_LOAD, flags, self.machine.page, memory)
            for s, flags, memory in (
                (self.head, R, self.head.size),
                (self.text, R | X, self.text.size),
                (self.relro, R | W, self.relro.rest),
                (self.data, R, self.data.size),
            )
            if s.size
        ]
        at = note.address
        asked = []
        if PROPERTIES in self.out:
            own = self.out[PROPERTIES]
            place = own.address, own.address, own.address, own.size, own.size, 8
            asked = [SEGMENT.pack(kind, R, *place) for kind in (PT_NOTE, PT_PROPERTY)]
        return [
            *maps,
            *asked,
            self.relro.header(PT_DYNAMIC, R | W, 8, self.relro.size),
            self.relro.header(PT_RELRO, R, 1, self.relro.rest),
            SEGMENT.pack(PT_NOTE, R, at, at, at, note.size, note.size, 4),
            SEGMENT.pack(PT_STACK, R | W, 0, 0, 0, 0, 0, 16),
        ]

    def _all_symbols(self) -> Iterable[Place]:
        """What a debugger may name: functions and tables of the objects, and the data."""
        for o, read in enumerate(self.objects):
            for symbol in read.symbols:
                place = self._place_of(o, symbol)
                if symbol.binding == LOCAL and place is not None and symbol.type in (OBJECT, FUNCTION):
                    yield place
        yield from self.symbols.values()


def _gnu_hash(name: str) -> int:
    """The hash of a name in a table of DT_GNU_HASH."""
    value = 5381
    for byte in name.encode():
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value
