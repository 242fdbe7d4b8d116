"""Register tiles of very few rows by columns whose k lie side by side: turned in registers on their way.

A tile is 1 to 4 rows by a panel of two vectors. Some k of all its columns are loaded as they lie, transposed
and multiplied at once; nothing is packed. The sums are the chains of all tiles, and have their bits.
"""

from __future__ import annotations

from kiln.codegen.gemm.element import Element, multiply_add
from kiln.codegen.gemm.pack import interleave, side_by_side, stored_type, widen
from kiln.codegen.ir.index import Index, Pointer
from kiln.codegen.ir.memory import Memory
from kiln.codegen.ir.routine import Routine
from kiln.codegen.ir.value import LLVM, Value
from kiln.codegen.target import Target

TURNED_ROWS = 4  # as many as leave registers for transposing, where there are 16
# Eight columns from a base, as in x86 addresses: base + scale * index, (element type that scales, index).
COLUMN_AT = [
    ("i8", "0"), ("i8", "%bs"), ("i16", "%bs"), ("i8", "%bs3"), ("i32", "%bs"), ("i8", "%bs5"),
    ("i16", "%bs3"), ("i8", "%bs7"),
]  # fmt: skip
# The same of the k of a row of A.
K_AT = [("i8", "0"), ("i8", "%ks"), ("i16", "%ks"), ("i8", "%ks3")]


class _Turned:
    """The routine under construction."""

    def __init__(self, code: Routine, element: Element) -> None:
        self.code, self.element = code, element
        self.vectors, self.lanes = code.target.fma.vectors, element.lanes(code.target)
        self.part = 16 // element.bytes  # k that are turned at once
        self.kind = LLVM[element.summed]
        self.vector = f"<{self.lanes} x {self.kind}>"

    def write(self) -> None:
        """The loops over panels, one for each height."""
        code, size = self.code, self.element.bytes
        a, b, c, old = code.pointers("a", "b", "c", "old")
        rs, self.ks, bs, self.cs, self.os, op = code.indices("rs", "ks", "bs", "cs", "os", "op")
        self.k, rows, columns = code.indices("k", "rows", "cols")
        for step, times in (("bs", 3), ("bs", 5), ("bs", 7), ("ks", 3)):
            code.line(f"%{step}{times} = mul i64 %{step}, {times}")
        self.rows = [a[rs * r] for r in range(TURNED_ROWS)]
        self.taken = code.slot(self.vector, self.part * self.vectors)
        panel = self.vectors * self.lanes
        for height in range(1, TURNED_ROWS + 1):
            with code.when(rows.equals(height)), code.times(columns, panel) as left:
                self.bases = [b[bs * (left + group)] for group in range(0, panel, len(COLUMN_AT))]
                self.c, self.old = c[left * size], old[left // panel * op]
                self._store(self._rest(self._whole(height)))

    def _whole(self, height: int) -> list[list[Value]]:
        """The chains of a tile over all k that can be turned together, by row and vector."""
        code, part, size = self.code, self.part, self.element.stored_bytes
        starts, steps = [*self.rows[:height], *self.bases], [self.ks * part] * height
        at = [code.pointer(code.name()) for _ in starts]
        sums = [[self._value(code.name()) for _ in range(self.vectors)] for _ in range(height)]
        left = code.index(code.name())
        whole = self.k & -part
        before, loop, done = code.block, code.label(), code.label()
        code.jump(loop)
        code.begin(loop)
        place = len(code.lines)
        held = part - 1 if height == TURNED_ROWS else part
        columns = self._columns(at[height:], held)
        after = sums
        for j, (kind, index) in enumerate(K_AT[:part]):
            if j >= held:
                columns.append(self._kept(code.index(j)))
            xs = [row.element(kind, code.index(index)) for row in at[:height]]
            after = self._step(xs, columns[j], after)
        carried = [
            (pointer.text, "ptr", start.text, pointer[by].text)
            for pointer, start, by in zip(at, starts, [*steps, *[part * size] * len(self.bases)])
        ]
        rest = left - part
        carried.append((left.text, "i64", whole.text, rest.text))
        carried += [
            (old.text, self.vector, "zeroinitializer", new.text)
            for olds, news in zip(sums, after)
            for old, new in zip(olds, news)
        ]
        code.lines[place:place] = [
            f"  {name} = phi {type} [ {first}, %{before} ], [ {then}, %{code.block} ]"
            for name, type, first, then in carried
        ]
        code.branch(rest.differs(0), loop, done)
        code.begin(done)
        return after

    def _rest(self, sums: list[list[Value]]) -> list[list[Value]]:
        """The chains with the k that are left: turned with those before them, and taken one by one."""
        code, part, height = self.code, self.part, len(sums)
        first = self.k - part
        self._columns([base[first * self.element.stored_bytes] for base in self.bases], 0)
        start = part - (self.k & (part - 1))
        rows = [row[first * self.ks] for row in self.rows[:height]]
        with code.loop(start, part, 1, [chain for row in sums for chain in row]) as turn:
            columns = self._kept(turn.index)
            found = [turn.values[at : at + self.vectors] for at in range(0, len(turn.values), self.vectors)]
            found = self._step([row[turn.index * self.ks] for row in rows], columns, found)
            turn.next = [chain for row in found for chain in row]
        return [turn.values[at : at + self.vectors] for at in range(0, len(turn.values), self.vectors)]

    def _kept(self, j: Index) -> list[str]:
        """The columns of a k that are kept in memory."""
        return [self._place(j, v).load(self.vector, 16) for v in range(self.vectors)]

    def _place(self, j: Index, v: int) -> Pointer:
        return self.taken.element(self.vector, j * self.vectors + v)

    def _value(self, text: str) -> Value:
        return Value(text, self.element.summed, self.lanes)

    def _columns(self, bases: list[Pointer], held: int) -> list[list[str]]:
        """The columns from the bases on, turned: by k and vector, of so many k. Others are kept in memory."""
        code, element, part, lanes = self.code, self.element, self.part, self.lanes
        kind = stored_type(element, part)
        columns = [base.element(scale, code.index(at)) for base in bases for scale, at in COLUMN_AT]
        vectors = []
        for v in range(self.vectors):
            own = columns[v * lanes : (v + 1) * lanes]
            if lanes == 2 * part and not element.widened:
                rows = [self._pair(*own[j::part]) for j in range(part)]
            else:
                pieces = [column.load(kind, 1) for column in own]
                rows = [
                    widen(code, element, side_by_side(code, element, pieces[j::part]), lanes)
                    for j in range(part)
                ]
            turned = interleave(code, element, rows, lanes)
            for j in range(held, part):
                self._place(code.index(j), v).store(f"{self.vector} {turned[j]}", 16)
            vectors.append(turned)
        return [[vector[j] for vector in vectors] for j in range(held)]

    def _pair(self, low: Pointer, high: Pointer) -> str:
        """Some k of two columns side by side: of the second all that lies before them is loaded too, as a blend
        with memory is faster than an insertion from it.
        """
        code, part = self.code, self.part
        half = low.load(f"<{part} x {self.kind}>", 1)
        whole = high[-16].load(self.vector, 1)
        wide = ", ".join(f"i32 {n}" for n in range(self.lanes))
        wider = code.op(f"shufflevector <{part} x {self.kind}> {half}, <{part} x {self.kind}> poison, <{self.lanes} x i32> <{wide}>")
        mask = ", ".join(f"i32 {n if n < part else self.lanes + n}" for n in range(self.lanes))
        return code.op(f"shufflevector {self.vector} {wider}, {self.vector} {whole}, <{self.lanes} x i32> <{mask}>")

    def _step(self, xs: list[Pointer], columns: list[str], sums: list[list[Value]]) -> list[list[Value]]:
        """The sums after one more k: of each row its element of A, on all lanes, times the columns of B."""
        code, element, lanes = self.code, self.element, self.lanes
        after = []
        for x, chains in zip(xs, sums):
            one = Value(x.load(self.kind, element.bytes), element.summed)
            spread = Memory(code).machine.spread(one, lanes).text
            made = [multiply_add(code, element, lanes, spread, c, s.text) for c, s in zip(columns, chains)]
            after.append([self._value(text) for text in made])
        return after

    def _store(self, sums: list[list[Value]]) -> None:
        """Adds the sums to the old ones."""
        code, element = self.code, self.element
        for r, chains in enumerate(sums):
            into, old = self.c[self.cs * r], self.old[self.os * r]
            for v, chain in enumerate(chains):
                left = v * self.lanes * element.bytes
                before = old[left].load(self.vector, element.bytes)
                total = code.op(f"{element.add} {self.vector} {before}, {chain.text}")
                into[left].store(f"{self.vector} {total}", element.bytes)


def tile_turned(target: Target, element: Element) -> Routine:
    """The routine tile_turned: a segment of tiles of up to TURNED_ROWS rows, side by side; A and sums of summed
    type.

        each panel of the columns, which are whole ones:
            sum[r][v] = 0
            each L of k, where a 128-bit lane holds L sums:
                load L elements of each column, interleave them until b[j] holds k + j of all
                each j < L, r:  sum[r][..] = fma(splat(load a + r * rs + j * ks), b[j][..], sum[r][..])
            each k left:  the same, from the last L of k turned once more
            store old[r * os + v * vector] + sum[r][v] at c + r * cs + v * vector;  next panel, old += op

    Strides are bytes, k >= L. Two vectors are turned together, as one alone has fewer chains than a fused
    multiply-add takes cycles.
    """
    params = "ptr %a, i64 %rs, i64 %ks, ptr %b, i64 %bs, ptr %c, i64 %cs, ptr %old, i64 %os, i64 %op, i64 %k, i64 %rows, i64 %cols"
    code = Routine(target, "tile_turned", params)
    _Turned(code, element).write()
    return code
