"""Writes small programs for gradients: histories, views of every kind, writes in place through them, loops.

The blocks of program_writer, and more that change what a tensor's history is. The last block differentiates
all that was made, and shows the gradients kept on the way. As there, a program that raises is fine: its error
is its result.
"""

from __future__ import annotations

from kiln.testing.program_writer import INPUTS, Program, Var, Writer, broadcast


class GradientWriter(Writer):
    """Grows one program whose every value may reach the last line."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.low_precision = False
        self.kept: list[str] = []  # whose .grad is kept

    def made(self, ndim: int = 0) -> Var | None:
        """A live float that is no argument, of `ndim` dims or more."""
        return self.pick(
            lambda x: x.dtype == "float" and x not in INPUTS and len(x.dims) >= ndim and x.bound < 30
        )

    def like(self, dims: tuple[str, ...]) -> Var | None:
        """A live float that broadcasts to `dims`."""
        return self.pick(lambda y: y.dtype == "float" and y.bound < 10 and broadcast(dims, y.dims) == dims)

    def fresh(self) -> list[str] | None:
        """A result with a history, or a constant, that may be written."""
        x = self.pick(lambda x: x.dtype == "float" and x.bound < 20)
        if x is None:
            return None
        text = self.rng.choice(
            ["{} * 1", "{}.clone()", "{} + 0.5", "K.zeros_like({})", "{}.detach().clone()"]
        )
        return self.let(text.format(x.name), x.dims, "float", x.bound + 1)

    def part(self, x: Var) -> tuple[str, tuple[str, ...]]:
        """A view of x as text, and its dims."""
        d = x.dims
        choices: list[tuple[str, tuple[str, ...]]] = [("{}", d), ("{}[...]", d), ("{}.view_as({})", d)]
        if d:
            choices += [("{}[0]", d[1:]), ("{}[-1:]", ("1", *d[1:])), ("{}[1:]", (f"({d[0]}-1)", *d[1:]))]
            choices += [("{}.unsqueeze(-1)", (*d, "1")), ("{}.narrow(0, 0, 1)", ("1", *d[1:]))]
        if len(d) == 2:
            choices += [("{}.t()", d[::-1]), ("{}[:, 0]", d[:1]), ("{}[:, 1:]", (d[0], f"({d[1]}-1)"))]
            choices += [("{}.t()[1:]", (f"({d[1]}-1)", d[0])), ("{}.select(1, 0)", d[:1])]
            choices += [("{}[None].squeeze(0)", d), ("{}.movedim(0, 1)", d[::-1])]
            choices += [
                ("{}.unbind(0)[0]", d[1:]),
                ("{}.split(1, 1)[0]", (d[0], "1")),
                ("{}.diagonal()[:1]", ("1",)),
            ]
        text, dims = self.rng.choice(choices)
        return text.replace("{}", x.name), dims

    def look(self) -> list[str] | None:
        """A view with a name, now and then made under no_grad or without the history."""
        x = self.pick(lambda x: x.dtype == "float" and len(x.dims) <= 2)
        if x is None:
            return None
        text, dims = self.part(x)
        kind = self.rng.random()
        name = self.new(dims, "float", x.bound)
        if kind < 0.08:
            return ["with K.no_grad():", f"    {name} = {text}"]
        return [f"{name} = {text}{'.detach()' if kind < 0.16 else ''}"]

    def change(self) -> list[str] | None:
        """A write through a view, of numbers, of others' values, of its own."""
        x = self.made()
        if x is None or len(x.dims) > 2:
            return None
        text, dims = self.part(x)
        y = self.like(dims)
        number = self.scalar()
        lines = [f"{text}.{op}_()" for op in ("tanh", "sigmoid", "relu", "neg", "sin", "zero", "abs")]
        lines += [f"{text}.mul_({number})", f"{text}.add_({number})", f"{text}.fill_({number})"]
        lines += [f"{text}.clamp_(-1, 1)", f"{text}.masked_fill_({text} > 0.5, {number})"]
        if y is not None:
            lines += [f"{text}.{op}_({y.name})" for op in ("add", "mul", "sub", "copy", "mul")]
            lines += [
                f"{text}.addcmul_({y.name}, {y.name})",
                f"{text}.lerp_({y.name}.expand_as({text}), 0.25)",
            ]
        if x.dims:
            lines += [f"{x.name}[{x.name} > 0] = {number}", f"{x.name}[[0, -1]] *= 0.5"]
            lines += [f"{x.name}[1:] = {x.name}[:-1].clone() * {number}", f"{x.name}[1:] += {x.name}[:-1]"]
            lines += [f"{x.name}[0], {x.name}[-1] = {x.name}[-1].clone(), {x.name}[0].clone()"]
            lines += [f"{x.name}.index_add_(0, K.tensor([0, 0]), K.cat([{x.name}[:1], {x.name}[-1:]]))"]
        self.grow(x, x.bound + (y.bound if y is not None else 0) + 3)
        mode = "with K.no_grad():" if self.rng.random() < 0.1 else "try:"
        caught = [] if mode != "try:" else ["except RuntimeError as error:", "    log.append(error)"]
        return [mode, f"    {self.rng.choice(lines)}", *caught]

    def grow(self, x: Var, bound: float) -> None:
        """x may be as large as `bound` from now on."""
        self.vars[self.vars.index(x)] = x._replace(bound=bound)

    def turn(self) -> list[str] | None:
        """A view made in place: the name looks elsewhere, and keeps its history."""
        x = self.made(1)
        if x is None or len(x.dims) > 2:
            return None
        text, dims = ("unsqueeze_(0)", ("1", *x.dims)) if len(x.dims) == 1 else ("t_()", x.dims[::-1])
        self.vars[self.vars.index(x)] = x._replace(dims=dims)
        return [f"{x.name}.{text}"]

    def buffer(self) -> list[str] | None:
        """A constant filled row by row, each from the one before."""
        x = self.pick(lambda x: x.dtype == "float" and len(x.dims) == 2 and x.bound < 10)
        if x is None:
            return None
        name = self.new(x.dims, "float", 10.0)
        step = self.rng.choice(
            [
                "K.tanh({h}[k - 1] + {x}[k])",
                "{h}[k - 1].clone() * 0.5 + {x}[k]",
                "{x}[k] * {h}[k - 1].sigmoid()",
            ]
        )
        step = step.format(h=name, x=x.name)
        return [
            f"{name} = K.zeros({x.name}.shape)",
            f"for k in range(1, {x.name}.shape[0]):",
            f"    {name}[k] = {step}",
        ]

    def unroll(self) -> list[str] | None:
        """A loop over the rows of an array; one matrix is multiplied with each, this way or that."""
        x = self.pick(lambda x: x.dtype == "float" and len(x.dims) == 2 and x.bound < 10)
        if x is None:
            return None
        matrix, h = self.new((x.dims[1], x.dims[1]), "float", 3.0), self.new((x.dims[1],), "float", 3.0)
        rows = self.rng.choice(["{x}[k]", "{x}[k:k + 1]", "{x}.select(0, k)", "{x}[-1 - k:]", "{x}[[k, 0]]"])
        product = self.rng.choice(
            ["{row} @ {w}", "{row} @ {w}.t()", "K.nn.functional.linear({row}, {w})", "{row}.matmul({w}.T)"]
        )
        step = product.format(row=rows.format(x=x.name), w=matrix)
        more = self.rng.choice(["", f" + {h} @ {matrix}", f" * {h}.sigmoid()", f" - {matrix}[0]"])
        reduced = f".reshape(-1, {x.name}.shape[1]).sum(0)"
        return [
            f"{matrix} = K.tanh({x.name}.t() @ {x.name} * 0.1)",
            f"{h} = K.zeros({x.name}.shape[1])",
            f"for k in range({x.name}.shape[0]):",
            f"    {h} = K.tanh(({step}){reduced}{more})",
        ]

    def watch(self) -> list[str] | None:
        """A hook, or a kept gradient, on a value that may be written afterwards."""
        x = self.made()
        if x is None:
            return None
        line = f"    {x.name}.register_hook(lambda g: g * 2)"
        if self.rng.random() < 0.5 and x.name not in self.kept:
            self.kept.append(x.name)
            line = f"    {x.name}.retain_grad()"
        return [f"if {x.name}.grad_fn is not None:", line]

    BLOCKS = (
        (Writer.unary, 6), (Writer.binary, 8), (Writer.with_number, 5), (Writer.compare, 3),
        (Writer.reduction, 4), (Writer.product, 4), (Writer.composite, 3), (Writer.index, 4),
        (Writer.branch, 3), (Writer.loop, 2), (Writer.backward, 2), (fresh, 10), (look, 12), (change, 20),
        (turn, 2), (buffer, 2), (unroll, 6), (watch, 4),
    )  # fmt: skip


def write_gradient_program(seed: int, statements: int | None = None) -> Program:
    """The program of `seed`, of 4 to 16 blocks and the last one unless `statements` says how many."""
    writer = GradientWriter(seed)
    methods, weights = zip(*GradientWriter.BLOCKS, strict=True)
    blocks: list[tuple[str, ...]] = []
    wanted = statements or writer.rng.randint(4, 16)
    while len(blocks) < wanted:
        block = writer.rng.choices(methods, weights)[0](writer)
        if block is not None:
            blocks.append(tuple(block))
    floats = [x.name for x in writer.vars if x.is_float and x not in INPUTS]
    total = " + ".join(f"({name} * K.cos({name})).sum()" for name in floats) or "a.sum()"
    shown = [f"log.append({name}.grad)" for name in writer.kept]
    blocks.append(
        ("try:", f"    ({total}).backward()", "except RuntimeError as error:", "    refused(error)", *shown)
    )
    return Program(seed, tuple(blocks), tuple(floats))
