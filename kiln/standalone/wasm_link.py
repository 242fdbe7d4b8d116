"""WebAssembly: a relocatable object becomes a module that needs nothing and owns its memory and its stack.

    object, data -> read -> place -> relocate -> a module without imports -> bytes

Sources: "WebAssembly Core Specification" (5 Binary Format); WebAssembly "Tool Conventions" (linking: the
sections `linking` and `reloc.*`); "WebAssembly JavaScript Interface" (Implementation-defined Limits).

Memory, from address 0 on:

    stack           grows downwards; below 0 is past the largest memory there can be, and traps
    read-only data  of the object
    `data`          each at a multiple of 64
    __heap_base     from here on memory is the caller's; `memory.grow` adds to it

Exports are the functions that are named, `memory` and `__heap_base`. Functions whose addresses are taken lie
in a table, from 1 on. The object is LLVM's for wasm32 in its static model: one module, every address known
here. Whether code is well formed is the engine's to check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct

from kiln.standalone.reading import Bytes, LinkError, aligned
from kiln.tuples import NamedTuple

MAGIC = b"\0asm\x01\0\0\0"
# sections of a module
CUSTOM, TYPE, IMPORT, FUNCTION, TABLE, MEMORY, GLOBAL, EXPORT, ELEMENT = 0, 1, 2, 3, 4, 5, 6, 7, 9
CODE, DATA, DATA_COUNT = 10, 11, 12
UNLIKE = {4: "a table", 5: "a memory", 6: "globals", 7: "exports", 8: "a start function", 13: "exceptions"}
# parts of the section `linking`
LINKING_VERSION, SEGMENTS, STARTERS, SYMBOLS = 2, 5, 6, 8
# kinds of symbols, and their flags
OF_FUNCTION, OF_DATA, OF_GLOBAL, OF_SECTION, OF_TAG, OF_TABLE = range(6)
LOCAL, UNDEFINED, NAMED, ABSOLUTE, THREAD = 0x02, 0x10, 0x40, 0x200, 0x100
STACK_POINTER = "__stack_pointer"
HEAP_BASE = "__heap_base"
ADDRESSES = "__indirect_function_table"  # whose places are the addresses of functions
PAGE = 1 << 16
LARGEST_MEMORY = 1 << 31  # what an address below 0 wraps to lies past it
LARGEST_MODULE = 1 << 30
DATA_ALIGNMENT = 64
STACK = 256 << 10
CONST, END, FUNCTIONS, FUNCREF = 0x41, 0x0B, 1, 0x70
WORD = Struct("<I")


class Reader(Bytes):
    """Bytes that are read in order."""

    def __init__(self, data: bytes | memoryview, what: str, at: int = 0) -> None:
        super().__init__(data, what)
        self.at = at

    @property
    def more(self) -> bool:
        return self.at < len(self.data)

    def take(self, size: int) -> memoryview:
        """The next `size` bytes."""
        part = self.range(self.at, size)
        self.at += size
        return part

    def byte(self) -> int:
        return self.take(1)[0]

    def _sevens(self) -> tuple[int, int]:
        """The next number, seven bits a byte, and how many bits."""
        value = 0
        for n in range(5):
            byte = self.byte()
            value |= (byte & 127) << 7 * n
            if byte < 128:
                return value, 7 * n + 7
        raise LinkError(f"{self.what}: damaged: a number without an end at {self.at - 5}")

    def number(self) -> int:
        """The next number of 32 bits."""
        value, _ = self._sevens()
        if value >> 32:
            raise LinkError(f"{self.what}: damaged: a number of more than 32 bits at {self.at - 5}")
        return value

    def signed(self) -> int:
        """The next number of 32 bits with a sign."""
        value, bits = self._sevens()
        value -= value >> (bits - 1) << bits
        if not -(1 << 31) <= value < 1 << 31:
            raise LinkError(f"{self.what}: damaged: a number of more than 32 bits at {self.at - 5}")
        return value

    def name(self) -> str:
        size = self.number()
        self.at += size
        return self.text(self.at - size, size)

    def part(self, what: str) -> Reader:
        """The next part, which its size stands before."""
        return Reader(self.take(self.number()), what)


class Symbol(NamedTuple):
    kind: int
    name: str
    where: int  # which function or global; which segment of data
    offset: int = 0
    defined: bool = True


class Part(NamedTuple):
    """Data of the object: where it lies in its section, and how it is aligned."""

    name: str
    start: int
    size: int
    alignment: int


class Relocation(NamedTuple):
    offset: int  # in its section
    kind: int
    symbol: int  # of types: which
    addend: int


class Kind(NamedTuple):
    """A kind of relocation: its name, and what it writes, if code that stands alone has it."""

    name: str
    write: Callable[[bytearray, int, int], None] | None = None
    addend: bool = False


def _padded(image: bytearray, at: int, value: int) -> None:
    """A number in five bytes, for which LLVM leaves room; below 2**31 it reads the same with a sign."""
    if any((byte > 127) != (n < 4) for n, byte in enumerate(image[at : at + 5])):
        raise LinkError("there is no number of five bytes to change")
    image[at : at + 5] = bytes(value >> 7 * n & 127 | (n < 4) << 7 for n in range(5))


def _word(image: bytearray, at: int, value: int) -> None:
    """Four bytes."""
    WORD.pack_into(image, at, value)


KINDS = {
    0: Kind("R_WASM_FUNCTION_INDEX_LEB", _padded),
    1: Kind("R_WASM_TABLE_INDEX_SLEB", _padded),
    2: Kind("R_WASM_TABLE_INDEX_I32"),
    3: Kind("R_WASM_MEMORY_ADDR_LEB", _padded, True),
    4: Kind("R_WASM_MEMORY_ADDR_SLEB", _padded, True),
    5: Kind("R_WASM_MEMORY_ADDR_I32", _word, True),
    6: Kind("R_WASM_TYPE_INDEX_LEB", _padded),
    7: Kind("R_WASM_GLOBAL_INDEX_LEB", _padded),
    10: Kind("R_WASM_TAG_INDEX_LEB"),
    11: Kind("R_WASM_MEMORY_ADDR_REL_SLEB", None, True),
    20: Kind("R_WASM_TABLE_NUMBER_LEB", _padded),
}
OF_ADDRESS, OF_TYPE = 1, 6
ASKS = {0: OF_FUNCTION, OF_ADDRESS: OF_FUNCTION, 7: OF_GLOBAL, 20: OF_TABLE}  # of other kinds: data


class ObjectFile(NamedTuple):
    types: memoryview
    functions: list[int]  # the type of each
    code: memoryview
    data: memoryview
    parts: list[Part]
    symbols: list[Symbol]
    relocations: dict[int, list[Relocation]]  # of the sections CODE and DATA


def read_object(data: bytes) -> ObjectFile:
    """A relocatable object, every part of it checked. LinkError if it is damaged, or has what no module here
    may: functions of others, data that is written.
    """
    file = Reader(data, "object")
    if file.take(len(MAGIC)) != MAGIC:
        raise LinkError("object: expected WebAssembly, version 1")
    sections: list[tuple[int, Reader]] = []
    custom: dict[str, Reader] = {}
    while file.more:
        number = file.byte()
        section = file.part(f"section {number}")
        if number == CUSTOM:
            section.what = section.name()
            if section.what in custom:
                raise LinkError(f"object: damaged: two sections {section.what}")
            custom[section.what] = section
        elif number in UNLIKE:
            raise LinkError(f"object: {UNLIKE[number]}, which code of kiln's has not")
        elif number > DATA_COUNT or any(n == number for n, _ in sections):
            raise LinkError(f"object: damaged: section {number}")
        sections.append((number, section))
    by_number = dict(sections)
    for n in (IMPORT, TYPE, FUNCTION, CODE, DATA):
        by_number.setdefault(n, Reader(b"\0", f"section {n}"))
    if "linking" not in custom:
        raise LinkError("object: no section `linking`, so it is no relocatable object")
    symbols, segments = _linking(custom["linking"])
    _check_imports(by_number[IMPORT])
    functions, types = by_number[FUNCTION], by_number[TYPE]
    types_at = types.number()
    of = [functions.number() for _ in range(functions.number())]
    code, stored = by_number[CODE], by_number[DATA]
    bodies = code.number()
    if bodies != len(of) or any(type_ >= types_at for type_ in of):
        raise LinkError(f"object: damaged: {len(of)} functions of {types_at} types, code of {bodies}")
    for n in range(bodies):
        code.part(f"function {n}")
    parts = _parts(stored, segments)
    _check_symbols(symbols, len(of), parts)
    relocations = {}
    for number, name in ((CODE, "reloc.CODE"), (DATA, "reloc.DATA")):
        changed = by_number[number]
        found = _relocations(custom.get(name), [n for n, _ in sections], number, changed)
        relocations[number] = found
        for r in found:
            limit = types_at if r.kind == OF_TYPE else len(symbols)
            if r.symbol >= limit:
                raise LinkError(f"{name}: damaged: {KINDS[r.kind].name} of {r.symbol} of {limit}")
    return ObjectFile(types.data, of, code.data, stored.data, parts, symbols, relocations)


def _check_imports(section: Reader) -> None:
    """That the object asks for a memory, a stack and a table, and for nothing else; a LinkError names the
    rest.
    """
    undefined = []
    for _ in range(section.number()):
        module, name, kind = section.name(), section.name(), section.byte()
        if kind == 0:
            section.number()
        elif kind in (1, 2):
            if kind == 1 and section.byte() != FUNCREF:
                raise LinkError(f"{module}.{name}: a table of what is no function")
            flags = section.byte()
            for _ in range(1 + (flags & 1)):
                section.number()
        elif kind == 3:
            section.take(2)
        else:
            raise LinkError(f"{module}.{name}: an import of kind {kind}")
        if kind != 2 and (kind, name) not in ((3, STACK_POINTER), (1, ADDRESSES)):
            undefined.append(name)
    if undefined:
        raise LinkError(f"undefined: {', '.join(sorted(undefined))}")


def _linking(section: Reader) -> tuple[list[Symbol], list[tuple[str, int]]]:
    """The symbols, and each segment's name and alignment."""
    if section.number() != LINKING_VERSION:
        raise LinkError(f"linking: a version that is not {LINKING_VERSION}")
    symbols: list[Symbol] = []
    segments: list[tuple[str, int]] = []
    while section.more:
        kind = section.byte()
        part = section.part("linking")
        if kind == SEGMENTS:
            for _ in range(part.number()):
                name, power, flags = part.name(), part.number(), part.number()
                if power > 12:
                    raise LinkError(f"{name}: alignment 2**{power} is more than 4096")
                _check_segment(name, flags)
                segments.append((name, 1 << power))
        elif kind == STARTERS and part.number():
            raise LinkError("constructors have nobody who calls them")
        elif kind == SYMBOLS:
            symbols = [_symbol(part) for _ in range(part.number())]
    return symbols, segments


def _check_segment(name: str, flags: int) -> None:
    if flags & 2:  # WASM_SEG_FLAG_TLS
        raise LinkError(f"{name}: thread-local data")
    if name.startswith(".init_array"):
        raise LinkError(f"{name}: constructors have nobody who calls them")
    if not name.startswith(".rodata"):
        raise LinkError(f"{name}: data that is written")


def _symbol(part: Reader) -> Symbol:
    kind, flags = part.byte(), part.number()
    defined = not flags & UNDEFINED
    if kind == OF_DATA:
        name = part.name()
        if flags & (ABSOLUTE | THREAD):
            raise LinkError(f"{name}: an absolute or thread-local symbol")
        if not defined:
            return Symbol(kind, name, 0, 0, False)
        segment, offset, _ = part.number(), part.number(), part.number()
        return Symbol(kind, name, segment, offset)
    if kind == OF_SECTION:
        return Symbol(kind, "", part.number())
    if kind not in (OF_FUNCTION, OF_GLOBAL, OF_TAG, OF_TABLE):
        raise LinkError(f"linking: damaged: a symbol of kind {kind}")
    index = part.number()
    return Symbol(kind, part.name() if defined or flags & NAMED else "", index, 0, defined)


def _parts(section: Reader, segments: Sequence[tuple[str, int]]) -> list[Part]:
    """Where each segment's bytes lie in the section of data."""
    count, parts = section.number(), []
    if count != len(segments):
        raise LinkError(f"object: damaged: {count} segments of data, {len(segments)} are described")
    for name, alignment in segments:
        if section.number() or section.byte() != CONST:
            raise LinkError(f"{name}: damaged: a segment that is not placed by a number")
        section.number()
        if section.byte() != END:
            raise LinkError(f"{name}: damaged: a segment that is not placed by a number")
        size = section.number()
        parts.append(Part(name, section.at, size, alignment))
        section.take(size)
    return parts


def _check_symbols(symbols: Sequence[Symbol], functions: int, parts: Sequence[Part]) -> None:
    """That each symbol is within what it names."""
    for s in symbols:
        if s.kind == OF_FUNCTION and (not s.defined or s.where >= functions):
            raise LinkError(f"{s.name}: damaged: function {s.where} of {functions}")
        if s.kind == OF_DATA and s.defined and (s.where >= len(parts) or s.offset > parts[s.where].size):
            raise LinkError(f"{s.name}: damaged: it lies outside of its segment")
        if s.kind in (OF_GLOBAL, OF_TABLE) and s.where:
            what = "global" if s.kind == OF_GLOBAL else "table"
            raise LinkError(f"{s.name}: damaged: {what} {s.where} of 1")


def _relocations(
    table: Reader | None, sections: Sequence[int], number: int, changed: Reader
) -> list[Relocation]:
    """The changes of one section."""
    found: list[Relocation] = []
    if table is None:
        return found
    index = table.number()
    if index >= len(sections) or sections[index] != number:
        raise LinkError(f"{table.what}: damaged: it is of section {index}")
    for _ in range(table.number()):
        number = table.byte()
        kind = KINDS.get(number)
        if kind is None or kind.write is None:
            raise LinkError(
                f"{table.what}: {kind.name if kind else f'kind {number}'} is not for code that stands alone"
            )
        offset, symbol = table.number(), table.number()
        addend = table.signed() if kind.addend else 0
        size = 4 if kind.write is _word else 5
        if offset + size > len(changed.data):
            raise LinkError(f"{table.what}: damaged: {kind.name} at {offset} of {len(changed.data)} bytes")
        found.append(Relocation(offset, number, symbol, addend))
    return found


# ---- a module ----


def leb(value: int) -> bytes:
    """A number, seven bits a byte."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _name(text: str) -> bytes:
    return leb(len(text.encode())) + text.encode()


def _vector(items: Sequence[bytes]) -> bytes:
    return leb(len(items)) + b"".join(items)


def _section(kind: int, *parts: bytes | bytearray | memoryview) -> list[bytes | bytearray | memoryview]:
    """A section of parts that are not copied."""
    return [bytes([kind]) + leb(sum(map(len, parts))), *parts]


def wasm_module(
    object: bytes,
    data: Mapping[str, bytes | memoryview],
    exports: Sequence[str],
    stack: int = STACK,
) -> bytes:
    """The object and `data`, which are symbols it names, as a module that exports the functions of `exports`,
    its `memory`, and `__heap_base`, where memory that nobody uses begins. `stack`: bytes of the stack.

    LinkError if the object is damaged or asks for what a module here has not: functions that nobody defines,
    data that is written, more than 2 GB of memory or a module of more than 1 GB.
    """
    read = read_object(object)
    views = {name: memoryview(blob).cast("B") for name, blob in data.items()}
    top = aligned(stack, DATA_ALIGNMENT)
    stack_top, places, data_places = top, [], {}
    for part in read.parts:
        top = aligned(top, part.alignment)
        places.append(top)
        top += part.size
    for name, view in views.items():
        data_places[name] = top = aligned(top, DATA_ALIGNMENT)
        top += len(view)
    heap = aligned(top, DATA_ALIGNMENT)
    if stack <= 0 or heap > LARGEST_MEMORY:
        raise LinkError(f"a stack of {stack} bytes and {heap - stack_top} of data; memory has at most 2 GB")
    functions = _exported(read, exports, views)
    addresses = _addresses(read)
    code, stored = bytearray(read.code), bytearray(read.data)
    for image, kind in ((code, CODE), (stored, DATA)):
        for r in read.relocations[kind]:
            _apply(read, r, image, places, data_places, addresses)
    segments = [
        (at, memoryview(stored)[p.start : p.start + p.size]) for at, p in zip(places, read.parts, strict=True)
    ]
    segments += [(data_places[name], view) for name, view in views.items()]
    filled = [part for at, view in segments for part in (_placed(at) + leb(len(view)), view)]
    first = [
        _name("memory") + bytes([2, 0]),
        _name(HEAP_BASE) + bytes([3, 1]),
        *(_name(name) + b"\0" + leb(index) for name, index in functions.items()),
    ]
    names = {s.where: s.name for s in read.symbols if s.kind == OF_FUNCTION}
    named = _vector([leb(n) + _name(names[n]) for n in sorted(names)])
    out = [
        MAGIC,
        *_section(TYPE, read.types),
        *_section(FUNCTION, _vector([leb(type_) for type_ in read.functions])),
        *(_table(len(addresses)) if any(s.kind == OF_TABLE for s in read.symbols) else []),
        *_section(MEMORY, b"\1\1" + leb(-(-heap // PAGE)) + leb(LARGEST_MEMORY // PAGE)),
        *_section(GLOBAL, _vector([b"\x7f\1" + _constant(stack_top), b"\x7f\0" + _constant(heap)])),
        *_section(EXPORT, _vector(first)),
        *_elements(addresses),
        *_section(CODE, code),
        *_section(DATA, leb(len(segments)), *filled),
        *_section(CUSTOM, _name("name"), bytes([FUNCTIONS]), leb(len(named)), named),
    ]
    size = sum(map(len, out))
    if size > LARGEST_MODULE:
        raise LinkError(f"a module of {size} bytes; engines take {LARGEST_MODULE}")
    return b"".join(out)


def _constant(value: int) -> bytes:
    """The expression of a number."""
    five = bytearray(b"\x80\x80\x80\x80\0")
    _padded(five, 0, value)
    return bytes([CONST, *five, END])


def _placed(at: int) -> bytes:
    """How a segment of data begins."""
    return b"\0" + _constant(at)


def _addresses(read: ObjectFile) -> dict[int, int]:
    """The functions whose addresses are taken, each with its own: a place in the table, where 0 is none's."""
    taken = {
        read.symbols[r.symbol].where
        for found in read.relocations.values()
        for r in found
        if r.kind == OF_ADDRESS and read.symbols[r.symbol].kind == OF_FUNCTION
    }
    return {function: place for place, function in enumerate(sorted(taken), 1)}


def _table(count: int) -> list[bytes | bytearray | memoryview]:
    """The table of so many functions."""
    size = leb(count + 1)
    return _section(TABLE, b"\1" + bytes([FUNCREF, 1]) + size + size)


def _elements(addresses: Mapping[int, int]) -> list[bytes | bytearray | memoryview]:
    """What the table holds."""
    return _section(ELEMENT, b"\1" + _placed(1) + _vector(list(map(leb, addresses)))) if addresses else []


def _exported(read: ObjectFile, exports: Sequence[str], data: Mapping[str, memoryview]) -> dict[str, int]:
    """The index of each exported function; LinkError for names that nobody defines, or that stand twice."""
    functions = {s.name: s.where for s in read.symbols if s.kind == OF_FUNCTION}
    defined = {s.name for s in read.symbols if s.kind == OF_DATA and s.defined}
    wanted = {s.name for s in read.symbols if s.kind == OF_DATA and not s.defined}
    undefined = sorted({*exports} - functions.keys() | wanted - data.keys())
    if undefined:
        raise LinkError(f"undefined: {', '.join(undefined)}")
    if len({*exports, "memory", HEAP_BASE}) != len(exports) + 2:
        raise LinkError(f"a name is exported twice (of {', '.join(exports)}, memory, {HEAP_BASE})")
    twice = sorted((defined | functions.keys()) & data.keys())
    if twice:
        raise LinkError(f"{', '.join(twice)} is defined twice")
    return {name: functions[name] for name in exports}


def _apply(
    read: ObjectFile,
    relocation: Relocation,
    image: bytearray,
    places: Sequence[int],
    data: Mapping[str, int],
    addresses: Mapping[int, int],
) -> None:
    """Writes what one relocation asks for."""
    kind = KINDS[relocation.kind]
    asks = ASKS.get(relocation.kind, OF_DATA)
    name, value = "a type", relocation.symbol
    if relocation.kind != OF_TYPE:
        symbol = read.symbols[relocation.symbol]
        name, value = symbol.name, symbol.where
        if symbol.kind != asks:
            raise LinkError(f"{kind.name} of {name}: damaged: a symbol of kind {symbol.kind}")
        if relocation.kind == OF_ADDRESS:
            value = addresses[symbol.where]
        if asks == OF_DATA:
            value = places[symbol.where] + symbol.offset if symbol.defined else data[name]
            value += relocation.addend
    if not 0 <= value < LARGEST_MEMORY:
        raise LinkError(f"{kind.name} of {name}: address {value} is not below 2 GB")
    try:
        assert kind.write is not None  # `read_object` lets no other kind in
        kind.write(image, relocation.offset, value)
    except LinkError as error:
        raise LinkError(f"{kind.name} of {name}: {error}") from None
