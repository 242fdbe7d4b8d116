"""Elements in memory: kiln's dtypes, read and written 16 lanes or one at a time.

    class "1", 16 lanes      raw = load <16 x iN>, ptr                 decode to the compute type
    class "1", tail          raw = masked.load ptr, lane < count       (a machine with masks; AVX2: words)
                             copy count elements to the stack; load    (elsewhere)
    class "2"                raw = the even lanes of two loads (stores: as "s")
    class "s"                raw = gather ptr + min(lane, count-1) * stride
    stores                   the same, mirrored: masked.store, copy back, scatter (without masks lane by lane)

A tail reads no byte outside its `count` elements and writes none. Pointers need no alignment.
"""

from __future__ import annotations

from kiln.codegen.ir.code import IOTA32, IOTA64, Code
from kiln.codegen.ir.emit import Machine
from kiln.codegen.ir.index import Index, Pointer
from kiln.codegen.ir.literal import number
from kiln.codegen.ir.masked import SUFFIX, first_lanes, load_masked, store_masked
from kiln.codegen.ir.value import Value
from kiln.table.order import LANES

# dtype: (LLVM type in memory, bytes, compute type)
MEMORY = {
    "float32": ("float", 4, "f32"), "float64": ("double", 8, "f64"), "float16": ("i16", 2, "f32"),
    "bfloat16": ("i16", 2, "f32"), "bool": ("i8", 1, "i1"), "int8": ("i8", 1, "i8"), "uint8": ("i8", 1, "u8"),
    "int16": ("i16", 2, "i16"), "int32": ("i32", 4, "i32"), "uint32": ("i32", 4, "u32"),
    "int64": ("i64", 8, "i64"), "uint64": ("i64", 8, "u64"),
}  # fmt: skip
RAW = {"float": "f32", "double": "f64", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64"}


def element(dtype: str) -> str:
    """The LLVM type of one element in memory."""
    return MEMORY[dtype][0]


def compute_type(dtype: str) -> str:
    """The scalar type a load of `dtype` has."""
    return MEMORY[dtype][2]


class Memory:
    """Reads and writes of elements; keeps one stack copy per (role, type) for tails without masks."""

    __slots__ = ("_copies", "code", "machine")

    def __init__(self, code: Code) -> None:
        self.code = code
        self.machine = Machine(code)
        self._copies: dict[str, Pointer] = {}

    # -- dtype <-> compute type ---------------------------------------------------------------------

    def decode(self, raw: str, dtype: str, width: int) -> Value:
        """Raw lanes from memory as the compute type."""
        kind, _, type = MEMORY[dtype]
        if dtype == "bool":
            return self.machine.compare("ne", Value(raw, "i8", width), number(0, "i8"))
        if dtype == "float16":
            return self.machine.half_to_float(Value(raw, "i16", width))
        if dtype == "bfloat16":
            return self.machine.brain_to_float(Value(raw, "i16", width))
        return Value(raw, type, width)

    def encode(self, x: Value, dtype: str) -> Value:
        """A compute-type value as the raw lanes stored; literals are spread by the caller."""
        if (x.text, dtype) in self.code.rounded:
            return self.code.rounded[x.text, dtype]
        if dtype == "bool":
            return self.machine.cast("zext", x, "u8")
        if dtype == "float16":
            return self.machine.float_to_half(x)
        if dtype == "bfloat16":
            return self.machine.float_to_brain(x)
        return x

    # -- one element --------------------------------------------------------------------------------

    def read(self, dtype: str, pointer: Pointer) -> Value:
        """The element at `pointer`."""
        return self.decode(pointer.load(element(dtype), 1), dtype, 1)

    def write(self, dtype: str, pointer: Pointer, x: Value) -> None:
        """Store x, rounded to `dtype`, at `pointer`."""
        raw = self.encode(x, dtype)
        pointer.store(f"{element(dtype)} {raw.text}", 1)

    # -- sixteen elements ---------------------------------------------------------------------------

    def mask(self, count: Index) -> Value:
        """lane < count, for an i64 count of 1 to 16; where masks are registers, `count` low bits of one."""
        if self.code.target.masks:
            return first_lanes(self.code, count, LANES)
        small = Value(count.bits(32), "u32")
        return self.machine.compare(
            "lt", Value(IOTA32, "u32", LANES, True), self.machine.spread(small, LANES)
        )

    def read_lanes(self, dtype: str, pointer: Pointer, count: Index | None, mask: Value | None) -> Value:
        """16 neighbouring elements from `pointer`; of a tail, the first `count` (the rest is unspecified)."""
        kind = f"<{LANES} x {element(dtype)}>"
        target = self.code.target
        masked = target.word_masks if MEMORY[dtype][1] >= 4 else target.masks
        if count is not None and mask is not None and masked:
            raw = load_masked(self.code, element(dtype), pointer, mask)
            return self.decode(raw, dtype, LANES)
        if count is not None:
            copy = self._copy("in", dtype)
            copy.store(f"{kind} zeroinitializer", 64)
            self._move(dtype, pointer, copy, count)
            pointer = copy
        return self.decode(pointer.load(kind, 1), dtype, LANES)

    def write_lanes(
        self, dtype: str, pointer: Pointer, x: Value, count: Index | None, mask: Value | None
    ) -> None:
        """Store 16 lanes at `pointer`, or the first `count` of them."""
        self.write_raw(dtype, pointer, self.raw_lanes(dtype, x), count, mask)

    def raw_lanes(self, dtype: str, x: Value) -> Value:
        """16 lanes as they lie in memory."""
        return self.encode(self.machine.spread(x, LANES), dtype)

    def stream(self, dtype: str, pointer: Pointer, raw: Value) -> None:
        """Store 16 raw lanes past the caches; `pointer` is a multiple of their size, or of a line."""
        align = min(LANES * MEMORY[dtype][1], 64)
        self.code.line(f"store {raw.typed}, ptr {pointer}, align {align}, !nontemporal !0")

    def write_raw(
        self, dtype: str, pointer: Pointer, raw: Value, count: Index | None, mask: Value | None
    ) -> None:
        """Store raw lanes."""
        if count is None:
            pointer.store(raw.typed, 1)
        elif mask is not None and self.code.target.masks:
            store_masked(self.code, element(dtype), raw.text, pointer, mask)
        else:
            copy = self._copy("out", dtype)
            copy.store(raw.typed, 64)
            self._move(dtype, copy, pointer, count)

    def read_alternate(self, dtype: str, pointer: Pointer, count: Index | None) -> Value:
        """16 elements, every other one from `pointer`; of a tail (on a machine with masks) the first `count`.

        all 16:  low = load 0..15, high = load 15..30;            lanes 0 2 .. 14 of low, 1 3 .. 15 of high
        a tail:  low, high = 32 masked lanes, 2 count - 1 there;  lanes 0 2 .. 14 of each
        """
        code, kind = self.code, f"<{LANES} x {element(dtype)}>"
        skip = 1 if count is None else 0
        places = [pointer, pointer.element(element(dtype), LANES - skip)]
        if count is None:
            low, high = (at.load(kind, 1) for at in places)
        else:
            beyond = 2 * LANES + 1 - count * 2
            bits = ((1 << 2 * LANES) - 1) >> beyond
            low, high = (self._read_some(dtype, at, bits, LANES * k) for k, at in enumerate(places))
        lanes = [*range(0, LANES, 2), *range(LANES + skip, 2 * LANES, 2)]
        picked = ", ".join(f"i32 {lane}" for lane in lanes)
        raw = code.op(f"shufflevector {kind} {low}, {kind} {high}, <{LANES} x i32> <{picked}>")
        return self.decode(raw, dtype, LANES)

    def _read_some(self, dtype: str, pointer: Pointer, bits: Index, first: int) -> str:
        """16 neighbours of which those are read whose bit, from `first` on, is set."""
        code, kind = self.code, f"<{LANES} x {element(dtype)}>"
        word = (bits >> first).bits(LANES)
        mask = Value(code.op(f"bitcast i{LANES} {word} to <{LANES} x i1>"), "i1", LANES)
        name = f"llvm.masked.load.v{LANES}{_suffix(dtype)}.p0"
        return self._masked(name, kind, [f"ptr {pointer}", "i32 1", mask.typed, f"{kind} zeroinitializer"])

    def gather(self, dtype: str, pointer: Pointer, positions: Value, mask: Value | None) -> Value:
        """16 elements at `positions` (i64, in elements); lanes outside the mask read lane 0's."""
        if mask is not None:
            positions = self.machine.choose(mask, positions, self.machine.first(positions))
        kind = f"<{LANES} x {element(dtype)}>"
        where = self._addresses(dtype, pointer, positions)
        name = f"llvm.masked.gather.v{LANES}{_suffix(dtype)}.v{LANES}p0"
        arguments = [where, "i32 1", f"<{LANES} x i1> splat (i1 true)", f"{kind} zeroinitializer"]
        return self.decode(self._masked(name, kind, arguments), dtype, LANES)

    def backwards(
        self, dtype: str, pointer: Pointer, first: Index, last: Index, positions: Value,
        count: Index | None, mask: Value | None,
    ) -> Value:  # fmt: skip
        """16 elements at `first`, first - 1, and so on, as one run if all are wanted and lie between 0 and
        `last`; else those at `positions`.
        """
        code, kind = self.code, f"<{LANES} x {element(dtype)}>"
        near, far, out = code.label(), code.label(), code.label()
        fits = (first >= LANES - 1) & (first <= last)
        code.branch(fits if count is None else fits & count.equals(LANES), near, far)
        code.begin(near)
        raw = pointer.element(element(dtype), first - (LANES - 1)).load(kind, 1)
        order = ", ".join(f"i32 {lane}" for lane in reversed(range(LANES)))
        raw = code.op(f"shufflevector {kind} {raw}, {kind} poison, <{LANES} x i32> <{order}>")
        x, before = self.decode(raw, dtype, LANES), code.block
        code.jump(out)
        code.begin(far)
        y, after = self.gather(dtype, pointer, positions, mask), code.block
        code.jump(out)
        code.begin(out)
        return x._replace(text=code.op(f"phi {x.llvm} [ {x.text}, %{before} ], [ {y.text}, %{after} ]"))

    def scatter(self, dtype: str, pointer: Pointer, positions: Value, x: Value, mask: Value | None) -> None:
        """Store 16 lanes at `positions`, those of the mask."""
        raw = self.encode(self.machine.spread(x, LANES), dtype)
        where = self._addresses(dtype, pointer, positions)
        name = f"llvm.masked.scatter.v{LANES}{_suffix(dtype)}.v{LANES}p0"
        lanes = f"<{LANES} x i1> splat (i1 true)" if mask is None else mask.typed
        self._masked(name, "void", [raw.typed, where, "i32 1", lanes])

    def write_strided(
        self, dtype: str, pointer: Pointer, stride: Index, x: Value, count: Index | None, mask: Value | None
    ) -> None:
        """Store 16 lanes `stride` elements apart, or the first `count` of them.

        Where no instruction does it, lane by lane, as its own address is one addition: of a vector of
        addresses each would be taken out again.
        """
        code, kind = self.code, element(dtype)
        if code.target.masks:
            self.scatter(dtype, pointer, self.strided(stride), x, mask)
            return
        raw = self.raw_lanes(dtype, x)
        if count is None:
            for lane in range(LANES):
                value = code.op(f"extractelement {raw.typed}, i64 {lane}")
                pointer.store(f"{kind} {value}", 1)
                pointer = pointer.element(kind, stride)
            return
        copy = self._copy("out", dtype)
        copy.store(raw.typed, 64)
        with code.loop(0, count, 1) as turn:
            value = copy.element(kind, turn.index).load(kind)
            pointer.element(kind, turn.index * stride).store(f"{kind} {value}", 1)

    def strided(self, stride: Index) -> Value:
        """lane * stride, for 16 lanes."""
        lanes = Value(IOTA64, "i64", LANES, True)
        return self.machine.instruction("mul", self.machine.spread(stride.value, LANES), lanes)

    def _addresses(self, dtype: str, pointer: Pointer, positions: Value) -> str:
        text = self.code.op(f"getelementptr {element(dtype)}, ptr {pointer}, {positions.typed}")
        return f"<{LANES} x ptr> {text}"

    def _masked(self, name: str, result: str, arguments: list[str]) -> str:
        return self.code.call(name, result, arguments)

    def _copy(self, role: str, dtype: str) -> Pointer:
        key = f"{role} {element(dtype)}"
        if key not in self._copies:
            self._copies[key] = self.code.slot(element(dtype), LANES)
        return self._copies[key]

    def _move(self, dtype: str, source: Pointer, target: Pointer, count: Index) -> None:
        """count elements, at most 16: 16, 8, 4, 2, 1 of them, as the bits of count say."""
        kind, size = element(dtype), LANES
        while size:
            done = count & -(2 * size)  # of which the larger pieces were
            with self.code.when((count & size).differs(0)):
                vector = f"<{size} x {kind}>"
                raw = source.element(kind, done).load(vector, 1)
                target.element(kind, done).store(f"{vector} {raw}", 1)
            size //= 2


def _suffix(dtype: str) -> str:
    kind = element(dtype)
    return SUFFIX.get(kind, kind)
