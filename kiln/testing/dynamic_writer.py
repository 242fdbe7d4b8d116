"""Writes small programs whose structure depends on data: a function of one item, called for many.

    program := cell* item end*        for items of different lengths, trees and numbers
    cell    := a pure function of tensors, over shared weights
    item    := block*                 the blocks of gradient_writer on what is the item's own, and:
             | tree                   recursion over the item's tree, weights shared at all depths
             | steps                  a loop over the rows of its array, by a cell or by ops
             | until, position, guard a value is read: a loop's end, an index, an exception
             | inner                  a loop or map inside the item
    end     := backward, second derivatives, hooks

How cells, blocks and loops over items run is the argument `run`, so one text is eager, pure, batched and
mapped. An item writes only to what it has made, as items are independent.
"""

from __future__ import annotations

from kiln.testing.gradient_writer import GradientWriter
from kiln.testing.program_writer import Program, Var, Writer

HEADER = "def program(K, F, w, v, u, c, e, items, s, t, run, log, grads):"
SEEN = "g is not None and g.any()"
GIVEN = "w, v, u, c, e, s, t"  # what a kept cell is given
SHARED = (
    Var("w", ("C", "D"), leaf=True),
    Var("v", ("D",), leaf=True),
    Var("u", ("C", "C"), leaf=True),
    Var("c", ("C",), leaf=True),
    Var("e", ("7", "C"), leaf=True),
)
OWN = (
    Var("a", ("B", "C"), leaf=True),
    Var("b", ("B", "C")),
    Var("z", ()),
    Var("i", ("B",), "long", 5.0),
)


class DynamicProgram(Program):
    """A program whose blocks are cells (they begin with @run), an item's (one level further in), ends."""

    __slots__ = ()

    @property
    def source(self) -> str:
        """The program as Python text."""
        cells = [line for block in self.blocks if block[0].startswith("@") for line in block]
        body = [line for block in self.blocks if block[0].startswith(" ") for line in block]
        ends = [line for block in self.blocks if block[0][0] not in "@ " for line in block]
        lines = [
            *cells,
            "def item(it):",
            "    a, b, z, i, tree, n, log, say, own, kept = *it, *run.look()",
            *body,
            f"    return [{', '.join(self.outputs)}], log, own, kept",
            "with run.block():",
            "    results = run.each(item, items)",
            "    floats = [x for r in results for x in r[0] if x.is_floating_point()]",
            "    total = K.stack([(x.float() * K.cos(x.float())).sum() for x in floats]).sum()",
            *ends,
            "return results, total",
        ]
        return "\n".join([HEADER, *(f"    {line}" for line in lines), ""])


class CellWriter(GradientWriter):
    """Grows the body of one pure function of states and inputs of C elements."""

    def __init__(self, writer: DynamicWriter, states: tuple[str, ...]) -> None:
        super().__init__(writer.rng.randrange(1 << 30))
        self.low_precision = False
        self.owned: set[str] = set()
        self.vars = [Var(x, ("C",), "float", 2.0) for x in states] + list(SHARED)

    def made(self, ndim: int = 0) -> Var | None:
        """A live float that may be written."""
        return self.pick(lambda x: x.name in self.owned and len(x.dims) >= ndim and x.bound < 30)

    def fresh(self) -> list[str] | None:
        """A result that may be written."""
        lines = super().fresh()
        if lines is not None:
            self.owned.add(self.vars[-1].name)
        return lines

    def change(self) -> list[str] | None:
        """A write, without the `try` around it: what fails here fails as a cell."""
        lines = super().change()
        return lines and [lines[1].strip()] if lines and lines[0] == "try:" else None

    def mixed(self) -> list[str] | None:
        """A state or an input by a shared matrix."""
        x = self.pick(lambda x: x.dims == ("C",) and x.dtype == "float" and x.bound < 20)
        assert x is not None
        text = self.rng.choice(
            ["{} @ u", "F.linear({}, u)", "F.linear({}, u, c)", "u @ {}"]
            + ["(F.linear({}, K.cat([u, u * 0.5]))).chunk(2)[1]"]
        )
        return self.let(f"K.tanh({text.format(x.name)})", ("C",), "float", 1.0)

    def gated(self) -> list[str] | None:
        """Two values, and how much of each."""
        x, y, g = (self.pick(lambda x: x.dims == ("C",) and x.dtype == "float") for _ in range(3))
        assert x is not None and y is not None and g is not None
        text = f"{x.name} * {g.name}.sigmoid() + {y.name} * (1 - {g.name}.sigmoid())"
        return self.let(text, ("C",), "float", x.bound + y.bound)

    OF_CELLS = (
        (Writer.unary, 4), (Writer.binary, 6), (Writer.with_number, 3), (Writer.compare, 2),
        (Writer.reduction, 2), (Writer.view, 3), (Writer.composite, 2), (mixed, 8), (gated, 5), (fresh, 2),
        (change, 3),
    )  # fmt: skip

    def lines(self, count: int) -> list[str]:
        """Statements, and the names of the `count` states that they make."""
        methods, weights = zip(*self.OF_CELLS, strict=True)
        lines: list[str] = []
        for _ in range(self.rng.randint(1, 5)):
            lines += self.rng.choices(methods, weights)[0](self) or []
        lines += self.mixed() or []
        results = []
        for _ in range(count):
            x = self.pick(lambda x: x.dims in (("C",), ()) and x.dtype == "float")
            assert x is not None
            results.append(f"K.tanh({x.name} + {self.rng.choice(['c', 'h', 'g'])})")
        return [*lines, f"return {', '.join(results)}"]


class DynamicWriter(CellWriter):
    """Grows the body of one item's function."""

    def __init__(self, seed: int) -> None:
        GradientWriter.__init__(self, seed)
        self.low_precision = False
        self.owned = set()
        self.vars = [*SHARED, *OWN]
        self.cells: list[tuple[str, int]] = []  # names, and how many states each has
        self.with_all: set[str] = set()  # cells that are given the weights
        self.draws = self.rng.random() < 0.12

    def change(self) -> list[str] | None:
        """A write, guarded where it may be refused; at first what may be written."""
        return self.fresh() if self.made() is None else GradientWriter.change(self)

    # -- cells ---------------------------------------------------------------------------------------

    def cell(self) -> tuple[str, ...]:
        """A function of a state h (and g) and of an input q, or of two states."""
        states = self.rng.choice([1, 1, 2])
        name = f"cell{len(self.cells)}"
        writer = CellWriter(self, ("h", "q") if states == 1 else ("h", "g", "q"))
        writer.rng = self.rng
        lines = writer.lines(states)
        if states == 1:
            lines = [line.replace(" + g)", " + q)") for line in lines]
        self.cells.append((name, states))
        names = "h, q" if states == 1 else "h, g, q"
        first = "@run.cell"
        if self.rng.random() < 0.4:  # kept from call to call of the program: all it reads is an argument
            first, names = "@run.kept", f"{names}, {GIVEN}"
            self.with_all.add(name)
        return (first, f"def {name}({names}):", *(f"    {line}" for line in lines))

    def step(self, state: str, row: str) -> str:
        """The next state of C elements as text."""
        if self.cells and self.rng.random() < 0.7:
            name, states = self.rng.choice(self.cells)
            more = f", {GIVEN}" if name in self.with_all else ""
            given = f"{state}, {row}" if states == 1 else f"{state}, {state}, {row}"
            return f"{name}({given}{more})" + ("[1]" if states == 2 else "")
        return self.rng.choice(
            [
                f"K.tanh(F.linear({state}, u, c) + {row})",
                f"K.tanh({state} @ u + {row} @ u.t())",
                f"K.tanh({row} * {state}.sigmoid() + c)",
                f"F.linear(K.cat([{row}, {state}]), K.cat([u, u], 1), c).tanh()",
                f"K.stack([{row}, {state} @ u]).amax(0)",
                f"F.softmax({state} * {row} + e[1], -1)",
            ]
        )

    # -- structure -----------------------------------------------------------------------------------

    def tree(self) -> list[str] | None:
        """Recursion over the tree; leaves are rows of the table, and one matrix meets all depths."""
        name, function = self.new(("C",), "float", 3.0), f"node{self.count}"
        self.count += 1
        leaf = self.rng.choice(["e[t]", "e[t] @ u", "F.embedding(K.tensor(t), e)", "e.select(0, t).tanh()"])
        kind = self.rng.randrange(3)
        below = f"below = [{function}(child, depth + 1) for child in t]"
        if kind == 0:
            steps = [below, "h = below[0]", "for q in below[1:]:", f"    h = {self.step('h', 'q')}"]
        elif kind == 1:
            steps = [below, "h = K.stack(below).sum(0)", f"h = {self.step('h', 'c')}"]
        else:
            by_depth = self.rng.choice(["(u, u.t())[depth % 2]", "u[:, :] * (depth + 1)", "u"])
            steps = [below, f"h = K.tanh(sum(below) @ {by_depth} * 0.5)"]
        if self.rng.random() < 0.4:
            read = self.rng.choice(
                ["h.sum() > 0", "h[0].item() > s", "bool((h > 0).all())", "h.argmax() == 1"]
            )
            steps += [f"if {read}:", f"    h = {self.rng.choice(['h * 0.5', 'h + c', '-h'])}"]
        return [
            f"def {function}(t, depth):",
            "    if isinstance(t, int):",
            f"        return {leaf}",
            *(f"    {line}" for line in steps),
            "    return h",
            f"{name} = {function}(tree, 0)",
        ]

    def steps(self) -> list[str] | None:
        """A loop over rows with a state, by slices, selections or all rows at once split."""
        x = self.pick(lambda x: x.dtype == "float" and x.dims == ("B", "C") and x.bound < 20)
        assert x is not None
        name = self.new(("C",), "float", 4.0)
        rows = self.rng.choice(
            [f"range({x.name}.shape[0])", f"reversed(range({x.name}.shape[0]))", f"{x.name}.unbind()", x.name]
            + [f"[r.squeeze(0) for r in {x.name}.split(1)]"]
        )
        row = f"{x.name}[q]" if "range" in rows else "q"
        lines = [
            f"{name} = {self.rng.choice(['c', 'K.zeros(c.shape)', 'c * 1', 'e[n]'])}",
            f"for q in {rows}:",
        ]
        lines.append(f"    {name} = {self.step(name, row)}")
        if self.rng.random() < 0.4:
            end = self.rng.choice(
                [f"{name}.sum() > 1", f"{name}.amax().item() < 0.25", f"float({name}[0]) > s"]
            )
            lines += [f"    if {end}:", self.rng.choice(["        break", f"        {name} = {name} * 0.5"])]
        return lines

    def until(self) -> list[str] | None:
        """A loop until a value."""
        x = self.pick(lambda x: x.dtype == "float" and x.dims == ("C",) and x.bound < 20)
        assert x is not None
        name, count = self.new(("C",), "float", 4.0), f"k{self.count}"
        condition = self.rng.choice(
            [
                "{}.abs().max() > 0.3",
                "{}.sum().item() > -0.5",
                "({} * {}).sum() > 0.2",
                "{}.tolist()[0] < 0.4",
            ]
        )
        return [
            f"{name}, {count} = {x.name}, 0",
            f"while {condition.replace('{}', name)} and {count} < 5:",
            f"    {name}, {count} = {self.step(name, 'e[' + count + ']')}, {count} + 1",
            f"log.append({count})",
        ]

    def position(self) -> list[str] | None:
        """A Python number from a tensor, used as an index."""
        x = self.pick(lambda x: x.dtype == "float" and len(x.dims) >= 1)
        assert x is not None
        position = self.rng.choice(["int({}.argmax())", "{}.argmin().item()", "int({}.sum().clamp(-3, 3))"])
        text = self.rng.choice(["e[{} % 7]", "u[{} % u.shape[0]]", "e[:, {} % e.shape[1]][:c.shape[0]]"])
        return self.let(text.format(position.format(x.name)), ("C",), "float", 3.0)

    def looked_up(self) -> list[str] | None:
        """Rows of the table."""
        return self.let(self.rng.choice(["e[i]", "F.embedding(i, e)", "e.index_select(0, i)"]), ("B", "C"))

    def guard(self) -> list[str] | None:
        """An exception that depends on a value; the item's own, or caught by it."""
        x = self.pick()
        assert x is not None
        test = f"{x.name}.float().sum().item() > {self.rng.choice(['2', '4'])}"
        if self.rng.random() < 0.15:
            return [f"if {test}:", "    raise ValueError('large')"]
        return ["try:", f"    if {test}:", "        raise ValueError('large')", f"    say({x.name})"] + [
            "except ValueError as error:",
            "    log.append(error)",
        ]

    def inner(self) -> list[str] | None:
        """Items inside the item."""
        name = self.new(("B", "C"), "float", 4.0)
        step = self.step("h", "c")
        body = f"K.tanh({step}) if (h @ u).sum() > 0 else h * 0.5" if self.rng.random() < 0.5 else step
        return [f"{name} = K.stack(run.each(lambda h: {body}, a.unbind()))"]

    def without_gradients(self) -> list[str] | None:
        """A block whose calls have no history, in which a value may be read."""
        x = self.pick(lambda x: x.dtype == "float" and x.dims == ("C",) and x.bound < 20)
        assert x is not None
        name = self.new(("C",), "float", 4.0)
        lines = [f"{name} = {self.step(x.name, 'c')}"]
        if self.rng.random() < 0.5:
            lines += [f"if {name}.sum() > 0:", f"    {name} = {name} * 2"]
        return ["with K.no_grad():", *(f"    {line}" for line in lines)]

    def own_gradient(self) -> list[str] | None:
        """A gradient that the item asks for itself."""
        x = self.pick()
        assert x is not None
        leaves = self.rng.choice(["(a,)", "(a, u)", "(c,)"])
        create = self.rng.random() < 0.4
        return [
            f"if {x.name}.requires_grad:",
            f"    g = K.autograd.grad({x.name}.sum(), {leaves}, allow_unused=True, "
            f"retain_graph=True{', create_graph=True' if create else ''})",
            "    own.extend(g)",
        ]

    def watch(self) -> list[str] | None:
        """A hook, or a kept gradient."""
        x = self.pick(lambda x: x.is_float and x not in SHARED and x not in OWN)
        if x is None:
            return None
        line = self.rng.choice([f"{x.name}.register_hook(lambda g: g * 2)", f"kept.append({x.name})"])
        retain = [f"    {x.name}.retain_grad()"] * line.startswith("kept")
        return [f"if {x.name}.grad_fn is not None:", *retain, f"    {line}"]

    def random(self) -> list[str] | None:
        """Random numbers, and a value of them read."""
        if not self.draws:
            return None
        return self.let("K.rand(c.shape) - (K.rand(()).item() < 0.5) * 0.5", ("C",), "float", 2.0)

    OF_ITEMS = (
        (Writer.unary, 3), (Writer.binary, 5), (Writer.with_number, 3), (Writer.compare, 2),
        (Writer.reduction, 3), (Writer.product, 3), (Writer.view, 3), (Writer.composite, 3),
        (Writer.index, 2), (Writer.cast, 1), (Writer.keep, 2), (Writer.branch, 4), (Writer.loop, 1),
        (CellWriter.fresh, 3), (GradientWriter.look, 3), (change, 9), (GradientWriter.unroll, 2),
        (CellWriter.mixed, 2), (watch, 2), (tree, 8), (steps, 8), (until, 5), (position, 4), (looked_up, 4),
        (guard, 2), (inner, 3), (without_gradients, 2), (own_gradient, 2), (random, 8),
    )  # fmt: skip

    def ends(self) -> list[tuple[str, ...]]:
        """What happens with the sum of all results."""
        found: list[tuple[str, ...]] = []
        twice = self.rng.random() < 0.25
        if self.rng.random() < 0.3:
            # through a launch's derivative, differentiated again, zeros come to rows that nobody uses
            shown = "None if g is None else g.clone()"
            shown = f"grads.append(g.clone()) if {SEEN} else None" if twice else f"grads.append({shown})"
            found.append((f"{self.rng.choice('wuce')}.register_hook(lambda g: {shown})",))
        if twice:
            lines = (
                "g = K.autograd.grad(total, (w, u, c, e), create_graph=True, allow_unused=True)",
                "grads.extend(g)",
                "sum((x * x).sum() for x in g if x is not None).backward(retain_graph=True)",
            )
            found.append(self.within(lines))
        rounds = self.rng.choice([1, 1, 2])
        for k in range(rounds):
            found.append(self.within((f"total.backward({'retain_graph=True' * (k + 1 < rounds)})",)))
        return found

    def within(self, lines: tuple[str, ...]) -> tuple[str, ...]:
        """The lines in a block of their own where calls run together, or after it."""
        if self.rng.random() < 0.5:
            lines = ("with run.block():", *(f"    {line}" for line in lines))
        return (
            "try:",
            *(f"    {line}" for line in lines),
            "except RuntimeError as error:",
            "    grads.append(error)",
        )


def write_dynamic_program(seed: int, statements: int | None = None) -> DynamicProgram:
    """The program of `seed`; an item has 3 to 10 blocks unless `statements` says how many."""
    writer = DynamicWriter(seed)
    methods, weights = zip(*DynamicWriter.OF_ITEMS, strict=True)
    blocks = [writer.cell() for _ in range(writer.rng.choice([0, 1, 1, 2]))]
    body: list[tuple[str, ...]] = []
    wanted = statements or writer.rng.randint(3, 10)
    while len(body) < wanted:
        lines = writer.rng.choices(methods, weights)[0](writer)
        if lines is not None:
            body.append(tuple(f"    {line}" for line in lines))
    made = [x.name for x in writer.vars if x not in SHARED and x not in OWN and x.is_float]
    kept = [name for name in made if writer.rng.random() < 0.6] or made[-1:] or ["a"]
    return DynamicProgram(seed, (*blocks, *body, *writer.ends()), tuple(kept))
