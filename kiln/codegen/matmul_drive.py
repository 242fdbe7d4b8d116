"""The driver of a matmul kernel: units of work to blocks, blocks to panels of B and tiles of rows.

The driver runs once per tile at most, so it is written to be compiled quickly: its state lies on the
stack and it is not optimised (attributes #1).
"""

from __future__ import annotations

from kiln.codegen.matmul_finish import Arguments
from kiln.codegen.matmul_pack import clear
from kiln.codegen.matmul_text import Routine
from kiln.codegen.matmul_tile import SEGMENT, VECTORS, Element, add_rows, heights, next_height
from kiln.codegen.target import Target

UNIT_ROWS = 28
UNIT_BYTES = 256  # of summed elements: 64 columns of float32, 32 of float64
BLOCK_ROWS = 196  # rows whose segment sums wait on the stack when k needs several segments
PACK_ROWS = 64  # a unit-stride B is packed from this many rows ...
PACK_DEPTH = 128  # ... and this many k; below, it is read where it lies
SPLIT_ROWS = 16  # ... but from this many rows if its vectors straddle cache lines
ROW_PITCH = (
    528  # elements between copied rows of A: a segment and 16, so that rows fall into different cache sets
)
CROWDED_ROWS = (
    4096  # rows of A a multiple of this many bytes apart share one cache set, and a tile would thrash it
)
CROWDED_COLUMNS = 2048  # so do columns, of which a segment has more
UNGROUPED = 1 << 40  # rows
GROUP_HEIGHT = 12  # 32 rows are 12 + 12 + 8

# The driver's state: i64 unless its name is in POINTERS.
POINTERS = frozenset({"a", "b", "c", "a_at"})


def tables(target: Target) -> str:
    """The constant tables: the next height by remaining rows, and the tallest that fits them."""
    choices = heights(target)
    following = next_height(choices)
    fitting = [max([h for h in choices if h <= rem], default=1) for rem in range(len(following))]
    return "\n".join(
        f"@{name} = internal unnamed_addr constant [{len(row)} x i8] [{', '.join(f'i8 {h}' for h in row)}]"
        for name, row in (("following", following), ("fitting", fitting))
    )


def frame_bytes(target: Target, element: Element) -> tuple[int, int, int, int]:
    """The driver's arrays on the stack: packed B, copied A, the buffer of sums, one tile's sums."""
    panel = VECTORS * target.vector_bits // 8
    return (
        SEGMENT * UNIT_BYTES,
        max(heights(target)[0] * ROW_PITCH * element.bytes, SEGMENT * panel),
        BLOCK_ROWS * UNIT_BYTES,
        heights(target)[0] * panel,
    )


def drive(target: Target, element: Element, plain: int | None) -> Routine:
    """The routine kernel; `plain` is the operand that takes whole panels of sums as they are, if one does."""
    driver = _Driver(target, element, plain)
    driver.write()
    return driver.code


class _Driver:
    """The driver under construction. State: sizes in elements, strides in bytes.

    a b c            the factors and, for a plain product, the output
    m n k            sizes;  a_batch a_row a_k b_batch b_k b_column c_batch c_row  strides
    row height column width              the block;   batch  its batch index
    from_k depth panels                  its segment of k, and its panels of columns
    group                                rows whose A is copied at once
    start tall skip                      a tile's rows in the block, how many, how many of them done before
    a_at rs ks line                      its A, and where its sums lie in the buffer
    """

    def __init__(self, target: Target, element: Element, plain: int | None) -> None:
        self.element, self.plain = element, plain
        self.heights = heights(target)
        self.panel = VECTORS * element.lanes(target)
        self.panel_bytes = VECTORS * target.vector_bits // 8
        self.columns = UNIT_BYTES // element.bytes
        self.code = code = Routine(target, "kernel", "ptr %ptr, ptr %arg, i64 %begin, i64 %end", "#1")
        sizes = frame_bytes(target, element)
        self.packed_b, self.packed_a, self.buffer, self.sums = (code.slot("i8", size) for size in sizes)
        panels = UNIT_BYTES // self.panel_bytes
        self.b_place, self.b_step = code.slot("ptr", panels), code.slot("i64", panels)
        self.state: dict[str, str] = {}

    def put(self, **values: str) -> None:
        """Set state."""
        for name, value in values.items():
            kind = "ptr" if name in POINTERS else "i64"
            if name not in self.state:
                self.state[name] = self.code.slot(kind)
            self.code.line(f"store {kind} {value}, ptr {self.state[name]}")

    def got(self, name: str) -> str:
        """Read state."""
        return self.code.op(f"load {'ptr' if name in POINTERS else 'i64'}, ptr {self.state[name]}")

    def reach(self, base: str, **steps: str) -> str:
        """`base` advanced by index * state for every `state = index`."""
        return self.code.at(base, *(self.code.mul(index, self.got(name)) for name, index in steps.items()))

    def call(self, name: str, *arguments: str) -> None:
        """Call a routine; arguments are typed, or i64."""
        typed = ", ".join(a if a.startswith("ptr ") else f"i64 {a}" for a in arguments)
        self.code.line(f"call void @{name}({typed})")

    # -- arguments ----------------------------------------------------------------------------------

    def _arguments(self) -> None:
        """Sizes and strides; without k, both factors become one zero read everywhere, and k is 1."""
        code, size = self.code, str(self.element.stored_bytes)
        empty = code.compare("eq", self._argument(3), "0")
        zero = code.slot("i64")
        code.set(zero, "0")
        self.put(m=self._argument(1), n=self._argument(2), k=code.choose(empty, "1", self._argument(3)))
        self.put(
            a=code.choose(empty, zero, self._pointer(0), "ptr"),
            b=code.choose(empty, zero, self._pointer(1), "ptr"),
        )
        for place, name in enumerate(("a_batch", "a_row", "a_k", "b_batch", "b_k", "b_column"), 4):
            self.put(**{name: code.choose(empty, "0", code.mul(self._argument(place), size))})
        if self.plain is not None:
            places = [Arguments((), ()).stride(self.plain, dim) for dim in (0, 1)]
            c_batch, c_row = (code.mul(self._argument(place), size) for place in places)
            self.put(c=self._pointer(self.plain + 1), c_batch=c_batch, c_row=c_row)

    def _argument(self, place: int) -> str:
        return self.code.op(f"load i64, ptr {self.code.offset('%arg', 'i64', str(place))}")

    def _pointer(self, place: int) -> str:
        return self.code.op(f"load ptr, ptr {self.code.offset('%ptr', 'ptr', str(place))}")

    # -- units to blocks ----------------------------------------------------------------------------

    def write(self) -> None:
        """Units in runs of the same columns; each run in blocks of rows."""
        code = self.code
        self._arguments()
        self.put(unit="%begin")
        with code.during(self.state["unit"], "%end") as at:
            row_units = code.ceil_div(self.got("m"), UNIT_ROWS)
            group, first = self._divide(at, row_units)
            batch, column_unit = self._divide(group, code.ceil_div(self.got("n"), self.columns))
            stop = code.minimum(row_units, code.add(first, code.sub("%end", at)))
            column = code.mul(column_unit, str(self.columns))
            self.put(unit=code.add(at, code.sub(stop, first)), batch=batch, column=column)
            self.put(width=code.minimum(code.sub(self.got("n"), column), str(self.columns)))
            self.put(limit=code.minimum(self.got("m"), code.mul(stop, str(UNIT_ROWS))))
            self.put(row=code.mul(first, str(UNIT_ROWS)))
            with code.during(self.state["row"], self.got("limit")) as row:
                rest = code.sub(self.got("limit"), row)
                most = code.choose(self._unbuffered(), rest, str(BLOCK_ROWS))
                self.put(height=code.minimum(rest, most))
                self._block()
                self.put(row=code.add(self.got("row"), self.got("height")))

    def _unbuffered(self) -> str:
        """Whether no sums wait in the buffer: k is one segment, or all panels go to the output."""
        code = self.code
        if self.plain is None:
            return self._single()
        whole = code.compare("eq", code.op(f"srem i64 {self.got('width')}, {self.panel}"), "0")
        return code.op(f"or i1 {whole}, {self._single()}")

    def _single(self) -> str:
        """Whether k is one segment."""
        return self.code.compare("sle", self.got("k"), str(SEGMENT))

    def _divide(self, x: str, y: str) -> tuple[str, str]:
        quotient = self.code.op(f"sdiv i64 {x}, {y}")
        return quotient, self.code.sub(x, self.code.mul(quotient, y))

    def _block(self) -> None:
        """Rows `row .. row + height` of columns `column .. column + width`, over all of k."""
        code = self.code
        self.put(panels=code.ceil_div(self.got("width"), self.panel), from_k="0")
        with code.during(self.state["from_k"], self.got("k")) as from_k:
            self.put(depth=code.minimum(code.sub(self.got("k"), from_k), str(SEGMENT)))
            self.put(p="0")
            with code.during(self.state["p"], self.got("panels")) as p:
                self._prepare(p)
                self.put(p=code.add(self.got("p"), "1"))
            group = code.both(self._copied(), code.op(f"xor i1 {self._unit_depth()}, true"))
            self.put(done="0", group=code.choose(group, str(self.panel), str(UNGROUPED)))
            with code.during(self.state["done"], self.got("height")) as done:
                inside = code.op(f"srem i64 {done}, {self.got('group')}")
                end = code.add(code.sub(done, inside), self.got("group"))
                rest = code.sub(code.minimum(self.got("height"), end), done)
                tall = self._height(inside, rest)
                skip = code.choose(code.compare("sgt", tall, rest), code.sub(tall, rest), "0")
                self.put(tall=tall, skip=skip, start=code.sub(done, skip))
                self._tile_row()
                self.put(done=code.add(self.got("start"), self.got("tall")))
            self.put(from_k=code.add(self.got("from_k"), str(SEGMENT)))

    def _height(self, done: str, rest: str) -> str:
        """The next tile's height: from the table, but never over more done rows than there are.

        Groups of copied rows divide best into tiles a little below the tallest.
        """
        code = self.code
        place = code.minimum(rest, str(2 * self.heights[0]))
        cells = [code.at(table, place) for table in ("@following", "@fitting")]
        wanted, fitting = (code.op(f"zext i8 {code.op(f'load i8, ptr {cell}')} to i64") for cell in cells)
        wanted = code.choose(self._crowded(), code.minimum(wanted, "8"), wanted)
        grouped = code.compare("ne", self.got("group"), str(UNGROUPED))
        wanted = code.choose(grouped, code.minimum(wanted, str(GROUP_HEIGHT)), wanted)
        return code.choose(code.compare("sle", code.sub(wanted, rest), done), wanted, fitting)

    def _crowded(self) -> str:
        """Whether a tile's rows of A share one cache set, which holds only 8 lines."""
        code = self.code
        unit = code.compare("eq", self.got("a_k"), str(self.element.stored_bytes))
        return code.both(unit, self._multiple(self.got("a_row"), CROWDED_ROWS))

    # -- B ------------------------------------------------------------------------------------------

    def _prepare(self, p: str) -> None:
        """Leave panel p of B, for this segment, at b_place[p] with b_step[p] bytes between its rows.

        as it lies:  whole, unit-stride columns, and not enough rows to pay for packing
        turned:      unit stride along k
        copied:      anything else; columns past the last are zero
        """
        code, element = self.code, self.element
        left = code.mul(p, str(self.panel))
        cols = code.minimum(code.sub(self.got("width"), left), str(self.panel))
        column = code.add(self.got("column"), left)
        src = self.reach(self.got("b"), b_batch=self.got("batch"), b_k=self.got("from_k"), b_column=column)
        place, step = code.offset(self.b_place, "ptr", p), code.offset(self.b_step, "i64", p)
        panel = code.at(self.packed_b, code.mul(p, str(SEGMENT * self.panel_bytes)))
        with code.either(self._lies_well(src, cols)) as otherwise:
            code.line(f"store ptr {src}, ptr {place}")
            code.set(step, self.got("b_k"))
            next(otherwise)
            code.line(f"store ptr {panel}, ptr {place}")
            code.set(step, str(self.panel_bytes))
            with code.when(code.compare("slt", cols, str(self.panel))):
                clear(code, element, panel, code.mul(self.got("depth"), str(self.panel_bytes)))
            turned = code.both(
                code.compare("eq", self.got("b_k"), str(element.stored_bytes)),
                code.compare("sge", self.got("depth"), str(16 // element.bytes)),
                code.compare("sge", cols, "4"),
            )
            into, pitch = f"ptr {panel}", str(self.panel_bytes)
            with code.either(turned) as straight:
                self.call("turn", f"ptr {src}", self.got("b_column"), into, pitch, self.got("depth"), cols)
                next(straight)
                self.call(
                    "copy",
                    f"ptr {src}",
                    self.got("b_k"),
                    self.got("b_column"),
                    into,
                    pitch,
                    self.got("depth"),
                    cols,
                )

    def _lies_well(self, src: str, cols: str) -> str:
        """Whether a panel of B is read where it lies: packing costs as much as a few rows of tiles."""
        if self.element.widened:
            return "false"
        code = self.code
        whole = code.compare("eq", cols, str(self.panel))
        unit = code.compare("eq", self.got("b_column"), str(self.element.stored_bytes))
        low, short = (
            code.compare("slt", self.got("height"), str(PACK_ROWS)),
            code.compare("slt", self.got("depth"), str(PACK_DEPTH)),
        )
        places = code.op(f"or i64 {code.op(f'ptrtoint ptr {src} to i64')}, {self.got('b_k')}")
        aligned = code.compare("eq", code.op(f"and i64 {places}, {self.panel_bytes // VECTORS - 1}"), "0")
        fine = code.op(f"or i1 {aligned}, {code.compare('slt', self.got('height'), str(SPLIT_ROWS))}")
        return code.both(whole, unit, code.op(f"or i1 {low}, {short}"), fine)

    # -- a row of tiles -----------------------------------------------------------------------------

    def _tile_row(self) -> None:
        """Rows `start .. start + tall`, this segment, every panel; the first `skip` were done before."""
        code = self.code
        self._factor()
        line = code.mul(self.got("start"), str(UNIT_BYTES))
        self.put(line=code.choose(self._unbuffered(), "0", line))
        self.put(p="0")
        with code.during(self.state["p"], self.got("panels")) as p:
            into, pitch = self._destination(p)
            self._run(p, into, pitch)
            self.put(p=code.add(self.got("p"), "1"))
        width = self.got("width")
        whole = code.sub(width, code.op(f"srem i64 {width}, {self.panel}")) if self.plain is not None else "0"
        last = code.compare("sge", code.add(self.got("from_k"), str(SEGMENT)), self.got("k"))
        with code.when(code.both(last, code.compare("slt", whole, width))):
            skip = self.got("skip")
            left, above = code.mul(whole, str(self.element.bytes)), code.mul(skip, str(UNIT_BYTES))
            src = code.at(self.buffer, self.got("line"), above, left)
            row = code.add(self.got("row"), code.add(self.got("start"), skip))
            rows, cols = code.sub(self.got("tall"), skip), code.sub(width, whole)
            column = code.add(self.got("column"), whole)
            self.call(
                "finish",
                "ptr %ptr",
                "ptr %arg",
                self.got("batch"),
                row,
                rows,
                column,
                cols,
                f"ptr {src}",
                str(UNIT_BYTES),
            )

    def _factor(self) -> None:
        """Choose the tile's A (a_at, strides rs, ks): as it lies, or copied if it must be or would thrash."""
        code, element = self.code, self.element
        row = code.add(self.got("row"), self.got("start"))
        a = self.reach(self.got("a"), a_batch=self.got("batch"), a_row=row, a_k=self.got("from_k"))
        a_row, a_k, depth, tall = (self.got(name) for name in ("a_row", "a_k", "depth", "tall"))
        self.put(a_at=a, rs=a_row, ks=a_k)
        with code.when(self._copied()):
            into = f"ptr {self.packed_a}"
            with code.either(self._unit_depth()) as otherwise:
                pitch = str(ROW_PITCH * element.bytes)
                self.call("copy", f"ptr {a}", a_row, a_k, into, pitch, tall, depth)
                self.put(a_at=self.packed_a, rs=pitch, ks=str(element.bytes))
                next(otherwise)
                inside = code.op(f"srem i64 {self.got('start')}, {self.got('group')}")
                pitch = str(self.panel_bytes)
                with code.when(code.compare("eq", inside, "0")):
                    rows = code.sub(self.got("height"), self.got("start"))
                    rows = code.minimum(rows, self.got("group"))
                    self.call("copy", f"ptr {a}", a_k, a_row, into, pitch, depth, rows)
                at = code.at(self.packed_a, code.mul(inside, str(element.bytes)))
                self.put(a_at=at, rs=str(element.bytes), ks=pitch)

    def _copied(self) -> str:
        """Whether A must be copied, or would thrash the cache: rows side by side, far apart along k."""
        code = self.code
        if self.element.widened:
            return "true"
        across = code.compare("eq", self.got("a_row"), str(self.element.stored_bytes))
        deep = code.compare("sge", self.got("depth"), str(PACK_DEPTH))
        return code.both(deep, across, self._multiple(self.got("a_k"), CROWDED_COLUMNS))

    def _unit_depth(self) -> str:
        """Whether a row of A is one run of memory."""
        return self.code.compare("eq", self.got("a_k"), str(self.element.stored_bytes))

    def _multiple(self, x: str, of: int) -> str:
        return self.code.compare("eq", self.code.op(f"and i64 {x}, {of - 1}"), "0")

    def _destination(self, p: str) -> tuple[str, str]:
        """(address, row stride) of panel p of the tile's sums: a plain output if whole, or the buffer."""
        code = self.code
        left = code.mul(p, str(self.panel_bytes))
        buffer = code.at(self.buffer, self.got("line"), left)
        if self.plain is None:
            return buffer, str(UNIT_BYTES)
        row = code.add(self.got("row"), self.got("start"))
        out = self.reach(self.got("c"), c_batch=self.got("batch"), c_row=row)
        out = code.at(out, code.mul(self.got("column"), str(self.element.bytes)), left)
        rest = code.sub(self.got("width"), code.mul(p, str(self.panel)))
        whole = code.compare("sge", rest, str(self.panel))
        return code.choose(whole, out, buffer, "ptr"), code.choose(whole, self.got("c_row"), str(UNIT_BYTES))

    def _run(self, p: str, into: str, pitch: str) -> None:
        """One tile: the first segment's sums are stored, later ones added to the rows not yet done."""
        code = self.code
        b = code.op(f"load ptr, ptr {code.offset(self.b_place, 'ptr', p)}")
        bs = code.get(code.offset(self.b_step, "i64", p))
        first = code.compare("eq", self.got("from_k"), "0")
        c, cs = code.choose(first, into, self.sums, "ptr"), code.choose(first, pitch, str(self.panel_bytes))
        a, rs, tall = self.got("a_at"), self.got("rs"), self.got("tall")
        rs3, rs5, rs7 = (code.mul(rs, str(times)) for times in (3, 5, 7))
        factors = (f"ptr {a}", rs, rs3, rs5, self.got("ks"), f"ptr {code.at(a, rs7)}", f"ptr {b}", bs)
        self.call("tile", tall, *factors, f"ptr {c}", cs, self.got("depth"))
        with code.when(code.compare("sgt", self.got("from_k"), "0")):
            skip = self.got("skip")
            target = code.at(into, code.mul(skip, pitch))
            more = code.at(self.sums, code.mul(skip, str(self.panel_bytes)))
            add_rows(code, self.element, target, pitch, more, str(self.panel_bytes), code.sub(tall, skip))
