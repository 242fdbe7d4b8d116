"""The steps of reductions: an identity, an element, and how two partial results become one.

    sum   (s)        s + x                      identity -0.0: adding it changes no bit, so an absent
    prod  (p)        p * x                      element adds nothing and a sum of -0.0 is -0.0
    max   (m)        x > m or x is NaN ? x : m  a NaN stays
    argmax (m, at)   x beats m, or ties it at an earlier position; a NaN beats every number
    all, any (b)     and, or

A partial result is a list of `Value`s of any width; `step` takes the earlier one first. A sum over
nothing is 0 and a product 1: `initial` differs from `identity` there only.
"""

from __future__ import annotations

from kiln.codegen.ir.code import Code
from kiln.codegen.ir.emit import Machine
from kiln.codegen.ir.index import Condition, Index
from kiln.codegen.ir.literal import number
from kiln.codegen.ir.value import Value
from kiln.codegen.nests.nest import NOWHERE
from kiln.scalars.scalar import FLOATS, SIGNED, WIDTH, Scalar

Partial = list[Value]


class Reducer:
    """One reduction node of a nest: writes its identity, its step and its tree."""

    __slots__ = ("code", "machine", "node", "type")

    def __init__(self, code: Code, node: Scalar) -> None:
        self.code = code
        self.machine = Machine(code)
        self.node = node
        self.type = node.args[0].type

    @property
    def positions(self) -> bool:
        """Whether the reduction carries the position of its winner."""
        return self.node.op in ("argmax", "argmin")

    def identity(self, width: int = 1) -> Partial:
        """The partial result that changes no other."""
        parts = [number(self._neutral(), self.type)]
        if self.positions:
            parts.append(number(NOWHERE, "i64"))
        return [self.machine.spread(p, width) for p in parts]

    def initial(self, size: Index) -> Partial:
        """Where totals start: the identity, but +0.0 for a float sum over nothing."""
        if self.node.op != "sum" or self.type not in FLOATS:
            return self.identity()
        empty = size.equals(0).value
        return [self.machine.choose(empty, number(0.0, self.type), number(-0.0, self.type))]

    def _neutral(self) -> float:
        op, type = self.node.op, self.type
        if op == "sum":
            return -0.0 if type in FLOATS else 0
        if op in ("prod", "all"):
            return 1
        if op == "any":
            return 0
        low = op in ("max", "argmax")
        if type in FLOATS:
            return float("-inf") if low else float("inf")
        if type == "i1":
            return 0 if low else 1
        top = WIDTH[type] - (type in SIGNED)
        least = -(1 << top) if type in SIGNED else 0
        return least if low else (1 << top) - 1

    def element(self, x: Value, position: Value | None) -> Partial:
        """The partial result of one element (or 16)."""
        return [x] if position is None else [x, position]

    def step(self, a: Partial, b: Partial) -> Partial:
        """a then b."""
        op, machine, type = self.node.op, self.machine, self.type
        if self.positions:
            return self._step_position(a, b)
        if op in ("all", "any"):
            return [machine.both("and" if op == "all" else "or", a[0], b[0])]
        if op in ("sum", "prod"):
            how = ("f" if type in FLOATS else "") + ("add" if op == "sum" else "mul")
            return [machine.instruction(how, a[0], b[0])]
        chosen = machine.choose(machine.compare("gt" if op == "max" else "lt", b[0], a[0]), b[0], a[0])
        if type in FLOATS:
            chosen = machine.choose(machine.instruction("fcmp uno", b[0], b[0], "i1"), b[0], chosen)
        return [chosen]

    def _step_position(self, a: Partial, b: Partial) -> Partial:
        """b wins if it beats a, or ties with an earlier position; between NaNs the earlier wins."""
        machine = self.machine
        beats = machine.compare("gt" if self.node.op == "argmax" else "lt", b[0], a[0])
        ties = machine.compare("eq", b[0], a[0])
        if self.type in FLOATS:
            nan_b = machine.instruction("fcmp uno", b[0], b[0], "i1")
            nan_a = machine.instruction("fcmp uno", a[0], a[0], "i1")
            new_nan = machine.both("and", nan_b, machine.both("xor", nan_a, number(1, "i1")))
            beats = machine.both("or", beats, new_nan)
            ties = machine.both("or", ties, machine.both("and", nan_a, nan_b))
        earlier = machine.compare("lt", b[1], a[1])
        wins = machine.both("or", beats, machine.both("and", ties, earlier))
        return [machine.choose(wins, y, x) for x, y in zip(a, b)]

    def follow(self, a: Partial, b: Partial, begins: Condition) -> Partial:
        """a then b, whose positions are all later; b alone where the i1 `begins` holds."""
        if not self.positions:
            return self.step(a, b)
        machine, type = self.machine, self.type
        wins = machine.compare("gt" if self.node.op == "argmax" else "lt", b[0], a[0])
        if type in FLOATS:
            relation = "ugt" if self.node.op == "argmax" else "ult"
            wins = machine.instruction(f"fcmp {relation}", b[0], a[0], "i1")
            wins = machine.both("and", wins, machine.instruction("fcmp ord", a[0], a[0], "i1"))
        wins = machine.both("or", wins, machine.spread(begins.value, wins.width))
        return [machine.choose(wins, y, x) for x, y in zip(a, b)]

    def present(self, x: Partial, mask: Value | None) -> Partial:
        """x where the mask holds, the identity elsewhere."""
        if mask is None:
            return x
        return [self.machine.choose(mask, v, i) for v, i in zip(x, self.identity())]

    def tree(self, lanes: Partial) -> Partial:
        """16 lanes to one: lane l takes lane l + 8, then l + 4, l + 2, l + 1."""
        half = lanes[0].width // 2
        while half:
            low = [self._part(v, 0, half) for v in lanes]
            lanes = self.step(low, [self._part(v, half, half) for v in lanes])
            half //= 2
        return lanes

    def _part(self, x: Value, first: int, width: int) -> Value:
        if width == 1:
            return Value(self.code.op(f"extractelement {x.typed}, i64 {first}"), x.type, 1)
        order = ", ".join(f"i32 {first + n}" for n in range(width))
        text = f"shufflevector {x.typed}, {x.llvm} poison, <{width} x i32> <{order}>"
        return Value(self.code.op(text), x.type, width)
