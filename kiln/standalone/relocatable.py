"""Objects and data as one object, for other people's linkers.

Every section stays one of its own. Symbols that the objects define for each other become local, so that two
programs link into one; those of `exports` are what a linker sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kiln.standalone.elf import Buffer, Names
from kiln.standalone.elf_object import (
    ABSOLUTE,
    ALLOC,
    DATA,
    DATA_ALIGNMENT,
    ET_REL,
    EXECUTE,
    GLOBAL,
    HEADER,
    HIDDEN,
    IDENTITY,
    LOCAL,
    MACHINES,
    OBJECT,
    PROGBITS,
    RELA,
    RELOCATION,
    SECTION,
    STRTAB,
    SYMBOL,
    SYMTAB,
    UNDEFINED,
    Machine,
    ObjectFile,
    Symbol,
)
from kiln.standalone.reading import LinkError, aligned
from kiln.tuples import NamedTuple


class _Section(NamedTuple):
    name: str
    type: int
    flags: int
    content: Buffer
    alignment: int
    row: int = 0
    link: int = 0
    info: int = 0


def merged_object(
    machine: Machine,
    objects: Sequence[ObjectFile],
    data: Mapping[str, bytes | memoryview],
    exports: Sequence[str],
    visibility: int = 0,
) -> bytes:
    """One relocatable object. LinkError if a name is defined twice, or an export not at all."""
    merge = _Merge(objects)
    for name, content in data.items():
        view = memoryview(content).cast("B")
        at = merge.section(_Section(DATA, PROGBITS, ALLOC, view, DATA_ALIGNMENT))
        merge.define(Symbol(name, OBJECT, GLOBAL, at, 0, len(view)))
    for o, read in enumerate(objects):
        merge.take(o, read)
    return merge.bytes(machine, exports, visibility)


class _Merge:
    def __init__(self, objects: Sequence[ObjectFile]) -> None:
        self.objects = objects
        self.sections: list[_Section] = []
        self.placed: dict[tuple[int, int], int] = {}  # of an object's section: the number here
        self.symbols: list[tuple[object, Symbol]] = []  # key: (object, number) of a local one, else the name
        self.defined: set[str] = set()

    def section(self, made: _Section) -> int:
        self.sections.append(made)
        return len(self.sections)  # 0 is none

    def define(self, symbol: Symbol) -> None:
        if symbol.name in self.defined:
            raise LinkError(f"{symbol.name} is defined twice")
        self.defined.add(symbol.name)
        self.symbols.append((symbol.name, symbol))

    def take(self, o: int, read: ObjectFile) -> None:
        """The sections and symbols of an object."""
        for n, s in enumerate(read.sections):
            if s.kept:
                made = _Section(s.name, s.type, s.flags & (ALLOC | EXECUTE), s.data, s.alignment)
                self.placed[o, n] = self.section(made)
        for k, symbol in enumerate(read.symbols):
            if symbol.section == UNDEFINED or symbol.section == ABSOLUTE:
                continue
            at = self.placed.get((o, symbol.section))
            if at is None:
                continue
            moved = symbol._replace(section=at)
            if symbol.binding == LOCAL:
                self.symbols.append(((o, k), moved))
            else:
                self.define(moved)

    def bytes(self, machine: Machine, exports: Sequence[str], visibility: int) -> bytes:
        """The file."""
        missing = sorted({*exports} - self.defined)
        if missing:
            raise LinkError(f"undefined: {', '.join(missing)}")
        shown = {*exports}
        local = [item for item in self.symbols if item[0] not in shown]
        listed = [*local, *(item for item in self.symbols if item[0] in shown)]
        place = {key: n for n, (key, _) in enumerate(listed, 1)}
        names, titles = Names(), Names()
        rows = [bytes(SYMBOL.size)]
        for n, (_, s) in enumerate(listed):
            binding, seen = (LOCAL, 0) if n < len(local) else (GLOBAL, visibility)
            title = names.add(s.name) if s.name else 0
            rows.append(SYMBOL.pack(title, binding << 4 | s.type, seen, s.section, s.value, s.size))
        count = len(self.sections)
        changes = self._changes(machine, place)
        table = count + len(changes) + 1
        every = [
            *self.sections,
            *(s._replace(link=table) for s in changes),
            _Section(".symtab", SYMTAB, 0, b"".join(rows), 8, SYMBOL.size, table + 1, 1 + len(local)),
            _Section(".strtab", STRTAB, 0, names.bytes, 1),
            _Section(".note.GNU-stack", PROGBITS, 0, b"", 1),
            _Section(".shstrtab", STRTAB, 0, titles.bytes, 1),
        ]
        titled = [titles.add(s.name) for s in every]
        parts: list[Buffer] = []
        at, headers = HEADER.size, [bytes(SECTION.size)]
        for title, part in zip(titled, every, strict=True):
            start = aligned(at, part.alignment)
            parts += [bytes(start - at), part.content]
            at = start + len(part.content)
            headers.append(
                SECTION.pack(
                    title,
                    part.type,
                    part.flags,
                    0,
                    start,
                    len(part.content),
                    part.link,
                    part.info,
                    part.alignment,
                    part.row,
                )
            )
        header = HEADER.pack(
            IDENTITY, ET_REL, machine.number, 1, 0, 0, aligned(at, 8), 0, HEADER.size, 0, 0, SECTION.size,
            len(headers), len(headers) - 1,
        )  # fmt: skip
        return b"".join([header, *parts, bytes(-at % 8), *headers])

    def _changes(self, machine: Machine, place: dict[object, int]) -> list[_Section]:
        """The sections of relocations."""
        numbers = {kind.name: number for number, kind in machine.kinds.items()}
        rows: dict[int, list[bytes]] = {}
        for o, read in enumerate(self.objects):
            for r in read.relocations:
                symbol = read.symbols[r.symbol]
                key: object = (o, r.symbol) if symbol.binding == LOCAL else symbol.name
                if key not in place:
                    raise LinkError(f"undefined: {symbol.name or 'a section'}")
                info = place[key] << 32 | numbers[r.kind.name]
                rows.setdefault(self.placed[o, r.section], []).append(
                    RELOCATION.pack(r.offset, info, r.addend)
                )
        return [
            _Section(
                f".rela{self.sections[at - 1].name}", RELA, 0x40, b"".join(found), 8, RELOCATION.size, 0, at
            )
            for at, found in rows.items()
        ]


def data_object(machine: str, name: str, data: bytes | memoryview) -> bytes:
    """A relocatable object that defines `name` as read-only data, of a machine by the first word of its
    triple. Other objects of the same link see the name, other libraries do not.
    """
    if machine not in MACHINES:
        raise LinkError(f"machine {machine} is none of {', '.join(MACHINES)}")
    return merged_object(MACHINES[machine], [], {name: data}, [name], HIDDEN)
