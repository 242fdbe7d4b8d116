"""Writes small straight-line programs over tensors: one seed, one program text.

    program := block*                 a block is a statement or a small compound statement
    block   := name = op(names)       pointwise, reduction, product, view, composite, cast, index
             | in-place write         on a base, on a view, under no_grad, through .data, through NumPy
             | effect                 log.append, say, backward, grad, manual_seed, del
             | if / try / for         branches on values, caught errors, loops

The writer keeps a `Var` per live name: its dims (symbolic, "B" or "C-1"), dtype and a bound of its size, so
that most programs run to their end. A program that raises is fine too: the error is its result.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

HEADER = "def program(K, F, a, b, w, v, z, i, n, s, t, log, say, refused, in_thread):"

FLOATS = ("half", "bfloat16", "float", "double")
ORDER = {"bool": 0, "long": 1, "half": 2, "bfloat16": 2, "float": 3, "double": 4}


class Var(NamedTuple):
    """A live name: symbolic dims, dtype, a bound on its magnitude, whether it is a leaf that requires
    grad.
    """

    name: str
    dims: tuple[str, ...]
    dtype: str = "float"
    bound: float = 3.0
    leaf: bool = False

    @property
    def is_float(self) -> bool:
        """Whether gradients can flow through it."""
        return self.dtype in FLOATS


INPUTS = (
    Var("a", ("B", "C"), leaf=True),
    Var("b", ("B", "C")),
    Var("w", ("C", "D"), leaf=True),
    Var("v", ("D",), leaf=True),
    Var("z", ()),
    Var("i", ("B",), "long", 5.0),
)


class Program(NamedTuple):
    """A program text in droppable blocks, and the names it returns."""

    seed: int
    blocks: tuple[tuple[str, ...], ...]
    outputs: tuple[str, ...]

    @property
    def source(self) -> str:
        """The program as Python text."""
        lines = [line for block in self.blocks for line in block]
        return "\n".join(
            [HEADER, *(f"    {line}" for line in lines), f"    return [{', '.join(self.outputs)}]", ""]
        )

    @property
    def draws(self) -> bool:
        """Whether it uses random numbers, whose values no other framework shares."""
        return "K.rand" in self.source

    def without(self, first: int, count: int) -> Program:
        """The program less `count` blocks from `first`, and less the outputs they make."""
        gone = {
            name for block in self.blocks[first : first + count] for line in block for name in assigned(line)
        }
        kept = tuple(name for name in self.outputs if name not in gone)
        return self._replace(blocks=self.blocks[:first] + self.blocks[first + count :], outputs=kept)

    def without_output(self, name: str) -> Program:
        """The program that does not return `name`."""
        return self._replace(outputs=tuple(x for x in self.outputs if x != name))


def assigned(line: str) -> list[str]:
    """The name a line binds, if it binds one."""
    target = line.strip().split(" = ")[0].rstrip(",") if " = " in line else ""
    return [target] if target.isidentifier() else []


def promote(x: str, y: str) -> str:
    """PyTorch's promotion between dimensioned tensors of two dtypes."""
    if {x, y} == {"half", "bfloat16"}:
        return "float"
    return x if ORDER[x] >= ORDER[y] else y


def broadcast(x: tuple[str, ...], y: tuple[str, ...]) -> tuple[str, ...] | None:
    """The broadcast of two symbolic shapes, None where they clash."""
    width = max(len(x), len(y))
    out = []
    for p, q in zip(("1",) * (width - len(x)) + x, ("1",) * (width - len(y)) + y, strict=True):
        if p != q and "1" not in (p, q):
            return None
        out.append(q if p == "1" else p)
    return tuple(out)


class Writer:
    """Grows one program; every method named in `STATEMENTS` returns the lines of a block, or None if it
    cannot.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.vars: list[Var] = list(INPUTS)
        self.arrays: list[str] = []
        self.count = 0
        # a few programs mix precisions; the others can be compared with a second framework closely
        self.low_precision = self.rng.random() < 0.15

    # -- names ---------------------------------------------------------------------------------------

    def new(self, dims: tuple[str, ...], dtype: str = "float", bound: float = 3.0, prefix: str = "x") -> str:
        """A fresh name, live from now on."""
        name = f"{prefix}{self.count}"
        self.count += 1
        self.vars.append(Var(name, dims, dtype, bound))
        return name

    def pick(self, keep: Callable[[Var], bool] = lambda x: x.is_float) -> Var | None:
        """A live name that satisfies `keep`, newer ones more often."""
        found = [x for x in self.vars if keep(x)]
        if not found:
            return None
        return found[max(self.rng.randrange(len(found)), self.rng.randrange(len(found)))]

    def scalar(self) -> str:
        """A Python number: an argument of the program or a literal, equal ones often."""
        return self.rng.choice(["s", "t", "s", "t", "2", "0.5", "1", "-1.5", "1e-3"])

    def let(
        self, expression: str, dims: tuple[str, ...], dtype: str = "float", bound: float = 3.0
    ) -> list[str]:
        """`name = expression`; large values are pulled back by a tanh."""
        if bound > 50 and dtype in FLOATS:
            expression, bound = f"K.tanh({expression})", 1.0
        return [f"{self.new(dims, dtype, bound)} = {expression}"]

    # -- values --------------------------------------------------------------------------------------

    def unary(self) -> list[str] | None:
        """A pointwise function of one operand."""
        x = self.pick()
        if x is None:
            return None
        if self.rng.random() < 0.25:
            return self.let(f"K.log({x.name} * {x.name} + 0.5)", x.dims, x.dtype, 8.0)
        if self.rng.random() < 0.05:
            return self.let(f"K.log({x.name})", x.dims, x.dtype, 8.0)
        name, bound = self.rng.choice(
            [("tanh", 1.0), ("sigmoid", 1.0), ("relu", x.bound), ("exp", 2.0 ** (1.45 * min(x.bound, 20)))]
            + [("neg", x.bound), ("F.gelu", x.bound)]
        )
        call = name if name.startswith("F.") else f"K.{name}"
        options = self.rng.choice(["", ", approximate='tanh'"]) if name == "F.gelu" else ""
        # the peer's gelu of an infinity depends on how many elements there are
        operand = f"{x.name}.clamp(-100, 100)" if name == "F.gelu" else x.name
        return self.let(f"{call}({operand}{options})", x.dims, x.dtype, bound)

    def binary(self) -> list[str] | None:
        """A pointwise function of two operands that broadcast."""
        x = self.pick(lambda x: x.dtype != "bool")
        assert x is not None
        y = self.pick(lambda y: y.dtype != "bool" and broadcast(x.dims, y.dims) is not None)
        assert y is not None
        dims, dtype = broadcast(x.dims, y.dims), promote(x.dtype, y.dtype)
        assert dims is not None
        op = self.rng.choice(["{} + {}", "{} - {}", "{} * {}", "K.maximum({}, {})", "K.minimum({}, {})"])
        bound = x.bound * y.bound if "*" in op else x.bound + y.bound
        if self.rng.random() < 0.15 and dtype in FLOATS:
            op, bound = "{} / ({1} * {1} + 0.5)".replace("{}", "{0}"), 2 * x.bound
        elif self.rng.random() < 0.03:
            op, dtype = "{} / {}", dtype if dtype in FLOATS else "float"
        return self.let(op.format(x.name, y.name), dims, dtype, bound)

    def with_number(self) -> list[str] | None:
        """A tensor and a Python number."""
        x = self.pick(lambda x: x.is_float)
        if x is None:
            return None
        number = self.scalar()
        op = self.rng.choice(
            [
                "{x} * {n}",
                "{x} + {n}",
                "{n} - {x}",
                "{x} / {n}",
                "{x} * {n} + {x} * {m}",
                "{x} ** 2",
                "{x} ** 3",
            ]
            + [
                "({x} * {x} + 0.1) ** {n}",
                "K.pow({x} * {x} + 0.1, 0.5)",
                "K.where({x} > {n}, {x}, {n} * {x})",
            ]
        )
        text = op.format(x=x.name, n=number, m=self.scalar())
        return self.let(text, x.dims, x.dtype, (x.bound + 1) ** 3 if "**" in op else 4 * x.bound + 4)

    def compare(self) -> list[str] | None:
        """A mask, alone or as a choice."""
        x = self.pick()
        y = x and self.pick(lambda y: y.is_float and broadcast(x.dims, y.dims) is not None)
        if x is None or y is None:
            return None
        dims = broadcast(x.dims, y.dims)
        assert dims is not None
        op = self.rng.choice(["<", "<=", ">", ">=", "==", "!="])
        if self.rng.random() < 0.4:
            return self.let(f"{x.name} {op} {self.rng.choice([y.name, self.scalar()])}", dims, "bool", 1.0)
        text = f"K.where({x.name} {op} {y.name}, {x.name}, {y.name})"
        return self.let(text, dims, promote(x.dtype, y.dtype), max(x.bound, y.bound))

    def reduction(self) -> list[str] | None:
        """A sum, mean, maximum or its position, over one dim or all."""
        x = self.pick(lambda x: x.is_float and len(x.dims) > 0)
        if x is None:
            return None
        op = self.rng.choice(["sum", "mean", "amax", "argmax", "sum"])
        dims: tuple[str, ...] = ()
        if self.rng.random() < 0.25:
            options = ""
        else:
            dim = self.rng.randrange(len(x.dims))
            keep = self.rng.random() < 0.4
            dims = x.dims[:dim] + (("1",) if keep else ()) + x.dims[dim + 1 :]
            options = f"{dim - len(x.dims) * self.rng.randrange(2)}{', keepdim=True' if keep else ''}"
        bound = x.bound * (30 if not dims else 6) if op == "sum" else x.bound
        return self.let(f"{x.name}.{op}({options})", dims, "long" if op == "argmax" else x.dtype, bound)

    def product(self) -> list[str] | None:
        """A matrix product, as operator, method or linear layer."""
        x = self.pick(lambda x: x.dtype == "float" and len(x.dims) >= 1 and x.dims[-1] == "C")
        y = self.pick(lambda y: y.dtype == "float" and y.dims == ("C", "D"))
        if x is None or y is None:
            return None
        dims, bound = (*x.dims[:-1], "D"), x.bound * y.bound * 4
        if self.rng.random() < 0.3:
            return self.let(
                f"F.linear({x.name}, {y.name}.t(), {self.rng.choice(['v', 'None'])})", dims, "float", bound
            )
        op = self.rng.choice(["{} @ {}", "K.matmul({}, {})"])
        return self.let(op.format(x.name, y.name), dims, "float", bound)

    def view(self) -> list[str] | None:
        """Another look at the same memory."""
        x = self.pick(lambda x: len(x.dims) >= 1)
        if x is None:
            return None
        d = x.dims
        choices: list[tuple[str, tuple[str, ...]]] = [
            ("{}.unsqueeze(0)", ("1", *d)),
            ("{}[None].expand(2, *{}.shape)", ("2", *d)),
            ("{}[0]", d[1:]),
            ("{}[-1:]", ("1", *d[1:])),
            ("{}[1:]", (f"({d[0]}-1)", *d[1:])),
            ("{}[..., ::2]", (*d[:-1], f"({d[-1]}+1)//2")),
            ("{}.reshape(-1)", ("*".join(d),)),
            ("{}.detach()", d),
        ]
        if len(d) >= 2:
            choices += [
                ("{}.transpose(0, 1)", (d[1], d[0], *d[2:])),
                ("{}.permute(*reversed(range({}.dim())))", tuple(reversed(d))),
                ("{}[:, 0]", (d[0], *d[2:])),
                ("{}[:, 1:]", (d[0], f"({d[1]}-1)", *d[2:])),
                ("{}.reshape({}.shape[0], -1)", (d[0], "*".join(d[1:]))),
                ("{}.transpose(0, -1).reshape(-1)", ("*".join((d[-1], *d[1:-1], d[0])),)),
            ]
        op, dims = self.rng.choice(choices)
        return [f"{self.new(dims, x.dtype, x.bound)} = {op.replace('{}', x.name)}"]

    def composite(self) -> list[str] | None:
        """A fused composite."""
        x = self.pick(lambda x: x.is_float and len(x.dims) >= 1)
        if x is None:
            return None
        name = x.name
        if x.dims == ("B", "C") and x.dtype == "float" and self.rng.random() < 0.4:
            reduction = self.rng.choice(["", ", reduction='sum'", ", reduction='none'"])
            return self.let(
                f"F.cross_entropy({name}, i{reduction})", ("B",) if "none" in reduction else (), "float", 20.0
            )
        if x.dims[-1] == "D" and x.dtype == "float" and self.rng.random() < 0.5:
            return self.let(f"F.layer_norm({name}, {name}.shape[-1:], v, v)", x.dims, x.dtype, 9.0)
        op, bound = self.rng.choice(
            [("F.softmax({0}, -1)", 1.0), ("F.softmax({0}, 0)", 1.0), ("F.log_softmax({0}, -1)", 20.0)]
            + [("F.layer_norm({0}, {0}.shape[-1:])", 3.0)]
        )
        return self.let(op.format(name), x.dims, x.dtype, bound)

    def index(self) -> list[str] | None:
        """gather, scatter_add, cat; sometimes with an index out of range inside a try."""
        x = self.pick(lambda x: x.dims == ("B", "C") and x.dtype == "float")
        if x is None:
            return None
        kind = self.rng.randrange(5)
        if kind == 0:
            return self.let(f"{x.name}.gather(1, i[:, None])", ("B", "1"), "float", x.bound)
        if kind == 1:
            return self.let(
                f"K.zeros_like({x.name}).scatter_add(1, i[:, None], {x.name}[:, :1])",
                x.dims,
                "float",
                x.bound,
            )
        if kind == 2:
            return self.let(
                f"{x.name}.gather(1, {x.name}.argmax(1, keepdim=True))", ("B", "1"), "float", x.bound
            )
        if kind == 3:
            y = self.pick(lambda y: y.dims == x.dims and y.dtype == "float")
            assert y is not None
            return self.let(f"K.cat([{x.name}, {y.name}], 0)", ("(B+B)", "C"), "float", max(x.bound, y.bound))
        name = self.new(("B", "1"))
        bad = self.rng.choice(["i[:, None] + 99", "i[:, None] - 99"])
        kept = self.rng.choice(["'bad index'", "error"])  # an error keeps its frame, and all that lives in it
        return [
            "try:",
            f"    {name} = {x.name}.gather(1, {bad})",
            "except (IndexError, RuntimeError) as error:",
            f"    {name} = {x.name}[:, :1]",
            f"    log.append({kept})",
        ]

    def cast(self) -> list[str] | None:
        """Another dtype; only some programs leave float32 for less."""
        x = self.pick(lambda x: True)
        assert x is not None
        dtype = self.rng.choice(FLOATS if self.low_precision else ("float", "double", "long", "float"))
        if x.dtype in FLOATS and dtype == "long" and x.bound > 1e6:
            return None
        text = self.rng.choice(
            [f"{x.name}.{dtype}()", f"{x.name}.to(K.{'int64' if dtype == 'long' else x_dtype(dtype)})"]
        )
        return [f"{self.new(x.dims, dtype, x.bound)} = {text}"]

    # -- writes --------------------------------------------------------------------------------------

    def write(self) -> list[str] | None:
        """An in-place op on a base or a view of it, guarded where it meets a leaf."""
        x = self.pick()
        y = x and self.pick(lambda y: y.is_float and broadcast(x.dims, y.dims) == x.dims and y.bound < 50)
        if x is None or y is None:
            return None
        number = self.scalar()
        lines = [
            f"{x.name}.mul_({number})",
            f"{x.name}.add_({number})",
            f"{x.name}.add_({y.name})",
            f"{x.name}.zero_()",
        ]
        lines += [
            f"{x.name}.copy_({y.name})",
            f"{x.name}.mul_({number}).add_({number})",
            f"{x.name} += {number}",
        ]
        if x.dims:
            lines += [
                f"{x.name}[0] = {number}",
                f"{x.name}[1:] = {number}",
                f"{x.name}[..., ::2].mul_({number})",
            ]
            lines += [
                f"{x.name}[1:].add_({number})",
                f"{x.name}[1:] += {x.name}[:-1]",
                f"{x.name}[0].copy_({x.name}[-1])",
            ]
        if len(x.dims) == 2:
            lines += [
                f"{x.name}.t().add_({number})",
                f"{x.name}[:, 0].zero_()",
                f"{x.name}[:, 1:] = {x.name}[:, :1]",
            ]
        line = self.rng.choice(lines)
        if self.rng.random() < 0.15:
            return [f"{x.name}.data.mul_({number})"]
        if x.leaf and self.rng.random() < 0.8 or self.rng.random() < 0.1:
            return ["with K.no_grad():", f"    {line}"]
        return ["try:", f"    {line}", "except RuntimeError:", "    log.append('write refused')"]

    def array(self) -> list[str] | None:
        """Memory shared with NumPy, read and written from there."""
        if "n" not in self.arrays and self.rng.random() < 0.6:
            self.arrays.append("n")
            return [f"{self.new(('B', 'C'))} = K.from_numpy(n)"]
        kind = self.rng.randrange(4) if self.arrays else 0
        if kind == 0:
            x = self.pick(lambda x: x.dtype in ("float", "double", "long"))
            assert x is not None
            name = f"n{self.count}"
            self.count += 1
            self.arrays.append(name)
            return [f"{name} = {x.name}.detach().numpy()"]
        name = self.rng.choice(self.arrays)
        if kind == 1:
            return ["try:", f"    {name}[...] = 1", "except ValueError:", "    log.append('read-only')"]
        if kind == 2:
            return [
                "try:",
                f"    {name}[:1] += 2",
                "except (ValueError, IndexError):",
                "    log.append('no row')",
            ]
        return [f"log.append({name}.copy())"]

    # -- effects and control --------------------------------------------------------------------------

    def keep(self) -> list[str] | None:
        """Something that stays visible after the call."""
        x = self.pick(lambda x: True)
        assert x is not None
        lines = [f"log.append({x.name})", f"say({x.name})", f"log.append({x.name}.shape[-1:] == w.shape[:1])"]
        lines += [f"log.append({x.name}.clone())"] + [f"log.append({x.name}.float().sum().item())"] * bool(
            x.is_float
        )
        if self.rng.random() < 0.15 and not any(x.name == known.name for known in INPUTS):
            self.vars.remove(x)
            return [f"del {x.name}"]
        return [self.rng.choice(lines)]

    def backward(self) -> list[str] | None:
        """Gradients, accumulated or returned, once or twice through the graph."""
        x = self.pick()
        if x is None:
            return None
        if self.rng.random() < 0.3:
            name, create = self.new(("B", "C")), self.rng.random() < 0.6
            return [
                "try:",
                f"    {name}, = K.autograd.grad({x.name}.sum(), (a,), create_graph={create})",
                "except RuntimeError as error:",
                f"    {name} = a * 1",
                "    refused(error)",
            ]
        retain = self.rng.choice(["", "retain_graph=True"])
        lines = [
            "try:",
            f"    {x.name}.sum().backward({retain})",
            "except RuntimeError as error:",
            "    refused(error)",
        ]
        return lines + self.rng.choice([[], ["log.append(a.grad)"], ["say(w.grad)"], ["a.grad = None"]])

    def branch(self) -> list[str] | None:
        """Control flow on a value or on a size."""
        x = self.pick()
        if x is None:
            return None
        name = self.new(x.dims, x.dtype, 3 * x.bound)
        condition = self.rng.choice(
            [f"{x.name}.sum().item() > 0", f"{x.name}.shape[:1] == w.shape[:1]", "s == t"]
        )
        condition = self.rng.choice([condition, f"bool(({x.name} > 0).sum() > 2)"])
        then, other = self.rng.sample([f"{x.name} * 2", f"{x.name} - s", f"K.tanh({x.name})", x.name], 2)
        return [f"if {condition}:", f"    {name} = {then}", "else:", f"    {name} = {other}"]

    def loop(self) -> list[str] | None:
        """A few rounds of one update."""
        x = self.pick(lambda x: x.is_float and x.bound < 20)
        if x is None:
            return None
        name = self.new(x.dims, x.dtype, x.bound + 8)
        step = self.rng.choice([f"{name} * 0.5 + s", f"K.tanh({name}) + {x.name}", f"{name} - 0.1 * {name}"])
        return [f"{name} = {x.name}", f"for _ in range({self.rng.randint(1, 4)}):", f"    {name} = {step}"]

    def thread(self) -> list[str] | None:
        """Another thread reads, writes or goes on with what is recorded here."""
        x = self.pick()
        if x is None:
            return None
        kind = self.rng.randrange(4)
        if kind == 0:
            return [f"log.append(in_thread(lambda: {x.name}.float().sum().item()))"]
        if kind == 1:
            work = f"{x.name}.detach().{self.rng.choice(['zero_()', 'mul_(s)', 'add_(1)'])}"
            return [
                "try:",
                f"    in_thread(lambda: {work})",
                "except RuntimeError:",
                "    log.append('shared')",
            ]
        if kind == 2:
            y = self.pick(lambda y: y.is_float and broadcast(x.dims, y.dims) is not None)
            assert y is not None
            dims = broadcast(x.dims, y.dims)
            assert dims is not None
            text = f"in_thread(lambda: K.tanh({x.name} + {y.name}) * s)"
            return [f"{self.new(dims, promote(x.dtype, y.dtype), 3.0)} = {text}"]
        return [
            "try:",
            f"    in_thread(lambda: {x.name}.sum().backward(retain_graph=True))",
            "except RuntimeError as error:",
            "    refused(error)",
        ]

    def draw(self) -> list[str] | None:
        """Random numbers between the lines, used or not."""
        if self.rng.random() < 0.5:
            return ["K.manual_seed(7)"]
        return [f"{self.new(('B', 'C'))} = K.rand(*b.shape)"]

    STATEMENTS = (
        (unary, 10), (binary, 12), (with_number, 10), (compare, 5), (reduction, 9), (product, 6), (view, 12),
        (composite, 7), (index, 6), (cast, 3), (write, 12), (array, 8), (keep, 7), (backward, 6),
        (branch, 4), (loop, 2), (thread, 1),
    )  # fmt: skip


def x_dtype(dtype: str) -> str:
    """The framework's name of a method's dtype."""
    return {"half": "float16", "float": "float32", "double": "float64"}.get(dtype, dtype)


def write_program(seed: int, statements: int | None = None) -> Program:
    """The program of `seed`, of 4 to 24 blocks unless `statements` says how many."""
    writer = Writer(seed)
    methods, weights = zip(*Writer.STATEMENTS, strict=True)
    blocks: list[tuple[str, ...]] = []
    if writer.rng.random() < 0.12:
        methods, weights = (*methods, Writer.draw), (*weights, 10)
    wanted = statements or writer.rng.randint(4, 24)
    while len(blocks) < wanted:
        block = writer.rng.choices(methods, weights)[0](writer)
        if block is not None:
            blocks.append(tuple(block))
    made = [x.name for x in writer.vars if x not in INPUTS]
    kept = [name for name in made if writer.rng.random() < 0.5] or made[-1:]
    return Program(seed, tuple(blocks), tuple(kept))
