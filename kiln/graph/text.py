"""The canonical text of a graph: printed form, saved form and the key of what is compiled from it.

    text   := "graph" slots called* line*
    called := "called" @n slots, then called* line* two spaces further in
    line   := %n "=" "input" type ["strides" "(" dims ")"]
            | %n "=" "number" dtype sN
            | %n "=" op "(" values [";" attrs] ")" ":" type
            | "check" dim "==" dim
            | "update" output "->" input
            | "return" values
    type   := dtype "[" dims "]"
    attr   := true | false | none | "string" | float | dim | @n | "(" attrs ")"
    dim    := term ("+" term)*        term := factor ("*" factor)*        factor := int | sN | div(dim, dim)

Values are numbered in order, inputs first, and so are the graphs that nodes call, each there once; floats are
written so that they read back to the same bits. The text never depends on when sizes were made: terms are
sorted by what they say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from kiln import _core
from kiln.graph.graph import Graph, OpLike, Shape, Value, takes
from kiln.graph.size import Atom, Dim, Size, quotient, single_slot, symbol

FindOp = Callable[[str], OpLike]

DTYPES = frozenset({
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
})  # fmt: skip
NUMBERS = frozenset({"bool", "int64", "float64"})
DEPTH = 32  # of nested tuples and quotients in a text that is read
LIMIT = 1 << 63  # integers in a text that is read are below this


class Subgraph:
    """A graph that a node calls, as an attribute of it: equal to any other of the same text."""

    __slots__ = ("graph", "text")

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.text = text(graph)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subgraph) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"graph of {len(self.graph.nodes)} nodes"


class TextError(ValueError):
    """A graph text that does not follow the grammar, or does not describe a right graph."""


# -- writing ----------------------------------------------------------------------------------------


def dim_text(dim: Dim) -> str:
    """A size as text, the same for equal sizes in every process."""
    if isinstance(dim, int):
        return str(dim)
    terms = []
    for monomial, coefficient in dim.terms:
        factors = sorted((_atom_text(a) for a in monomial), key=lambda t: (len(t), t))
        number = [] if coefficient == 1 and factors else [str(coefficient)]
        terms.append((-len(factors), "*".join(number + factors)))
    return " + ".join(t for _, t in sorted(terms))


def _atom_text(atom: Atom) -> str:
    if atom.slot >= 0:
        return f"s{atom.slot}"
    return f"div({dim_text(atom.numerator)}, {dim_text(atom.denominator)})"


def type_text(dtype: str, shape: Shape) -> str:
    """`float32[s0, 4]`"""
    return f"{dtype}[{', '.join(map(dim_text, shape))}]"


def attr_text(attr: Any, called: dict[Subgraph, int] | None = None) -> str:
    """An attribute of a node as text; `called`: the numbers of graphs. TypeError for what is no attribute."""
    if attr is None or isinstance(attr, bool):
        return {None: "none", True: "true", False: "false"}[attr]
    if isinstance(attr, (int, Size)):
        return dim_text(attr)
    if isinstance(attr, float):
        return repr(attr) if math.isfinite(attr) else {"nan": "nan", "inf": "inf", "-inf": "-inf"}[repr(attr)]
    if isinstance(attr, (str, _core.dtype)):  # (an op takes a dtype by its name too)
        import json  # 2 ms, and seldom needed

        return json.dumps(attr if isinstance(attr, str) else attr.name)
    if isinstance(attr, tuple):
        return f"({', '.join([attr_text(a, called) for a in attr])})"
    if isinstance(attr, Subgraph) and called is not None:
        return f"@{called[attr]}"
    raise TypeError(f"attribute of type {type(attr).__name__}: {attr!r}")


def called_graphs(graph: Graph) -> tuple[dict[Subgraph, int], list[str]]:
    """The graphs that nodes of control flow call, numbered, and the lines that say what they are."""
    called: dict[Subgraph, int] = {}
    lines: list[str] = []
    for attr in (a for node in graph.nodes if node.op.kind == "control" for a in node.attrs[-1]):
        if attr not in called:
            called[attr] = len(called)
            head, *rest = attr.text.splitlines()
            lines.append(f"called @{called[attr]} {head.removeprefix('graph ')}")
            lines += [f"  {line}" for line in rest]
    return called, lines


def text(graph: Graph) -> str:
    """The canonical text of a graph."""
    names: dict[int, str] = {}
    lines = [f"graph {graph.slots}"]
    called, own = called_graphs(graph)
    lines += own
    for value in graph.inputs:
        names[id(value)] = name = f"%{len(names)}"
        if value.weak:
            lines.append(f"{name} = number {value.dtype} s{value.slot}")
        else:
            strides = "" if value.layout is None else f" strides ({', '.join(map(dim_text, value.layout))})"
            lines.append(f"{name} = input {type_text(value.dtype, value.shape)}{strides}")
    for node in graph.nodes:
        operands = ", ".join(names[id(v)] for v in node.inputs)
        attrs = f"; {', '.join([attr_text(a, called) for a in node.attrs])}" if node.attrs else ""
        names[id(node.out)] = name = f"%{len(names)}"
        lines.append(
            f"{name} = {node.op.name}({operands}{attrs}): {type_text(node.out.dtype, node.out.shape)}"
        )
    lines += [f"check {dim_text(a)} == {dim_text(b)}" for a, b in graph.checks]
    lines += [f"update {j} -> {i}" for j, i in sorted(graph.updates.items())]
    lines.append(f"return {', '.join(names[id(v)] for v in graph.outputs)}".rstrip())
    return "\n".join(lines) + "\n"


# -- reading ----------------------------------------------------------------------------------------

_TOKEN = (
    r'[ \t]*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<value>%\d+)|(?P<called>@\d+)'
    r"|(?P<float>-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|inf\b)|nan\b)"
    r"|(?P<int>-?\d+)|(?P<name>[A-Za-z_]\w*)|(?P<mark>->|==|[=()\[\],;:+*]))"
)
Token = tuple[str, str]


def _tokens(line: str, number: int) -> list[Token]:
    """The tokens of a line: (class, text)."""
    found: list[Token] = []
    token = re.compile(_TOKEN, re.ASCII)  # which re keeps
    place, end = 0, len(line.rstrip())
    while place < end:
        match = token.match(line, place)
        if match is None:
            raise TextError(f"graph text, line {number}: unexpected {line[place : place + 20]!r}")
        assert match.lastgroup is not None
        found.append((match.lastgroup, match.group(match.lastgroup)))
        place = match.end()
    return found


class _Line:
    """The tokens of one line and a place in them."""

    def __init__(self, line: str, number: int) -> None:
        self.tokens = _tokens(line, number)
        self.number = number
        self.place = 0

    def error(self, message: str) -> TextError:
        """The error for something wrong in this line."""
        return TextError(f"graph text, line {self.number}: {message}")

    def fail(self, expected: str) -> TextError:
        """The error for what was found here instead of `expected`."""
        came = self.tokens[self.place][1] if self.place < len(self.tokens) else "the end of the line"
        return self.error(f"expected {expected}, got {came}")

    def peek(self) -> Token:
        """The token here, or ("end", "")."""
        return self.tokens[self.place] if self.place < len(self.tokens) else ("end", "")

    def accept(self, mark: str) -> bool:
        """Whether the token here is `mark`, which is then passed."""
        if self.peek()[1] == mark and self.peek()[0] in ("mark", "name"):
            self.place += 1
            return True
        return False

    def expect(self, mark: str) -> None:
        """Passes `mark`, which must be here."""
        if not self.accept(mark):
            raise self.fail(f"'{mark}'")

    def take(self, kind: str, what: str) -> str:
        """Passes a token of a class and gives its text."""
        found, text_ = self.peek()
        if found != kind:
            raise self.fail(what)
        self.place += 1
        return text_

    def end(self) -> None:
        """The line must end here."""
        if self.place < len(self.tokens):
            raise self.fail("the end of the line")


def _integer(line: _Line, digits: str) -> int:
    if len(digits) > 20 or not -LIMIT <= int(digits) < LIMIT:
        raise line.error("integer out of range")
    return int(digits)


class _Reader:
    """Builds a graph line by line."""

    def __init__(self, find_op: FindOp, slots: int, most: int | None = None) -> None:
        self.graph = Graph()
        self.unfolded, self.most = 0, most
        self.graph.slots = slots
        self.numbers: set[int] = set()
        self.values: list[Value] = []
        self.find_op = find_op
        self.checks: list[tuple[Dim, Dim]] = []
        self.outputs: list[Value] | None = None
        self.called: list[Subgraph] = []
        self.sizes: list[int] = []  # of each of them, the nodes with those of the graphs that it calls

    def items(self, line: _Line, close: str, read: Callable[[_Line], Any]) -> tuple[Any, ...]:
        """A comma-separated list up to `close`."""
        if line.accept(close):
            return ()
        found = [read(line)]
        while line.accept(","):
            found.append(read(line))
        line.expect(close)
        return tuple(found)

    def value(self, line: _Line) -> Value:
        """A value that an earlier line defined."""
        name = line.take("value", "a value")
        index = _integer(line, name[1:])
        if index >= len(self.values):
            raise line.error(f"{name} is used before it is defined")
        return self.values[index]

    def dim(self, line: _Line, depth: int = 0) -> Dim:
        """dim := term ("+" term)*"""
        total = self.term(line, depth)
        while line.accept("+"):
            total = total + self.term(line, depth)
        return total

    def term(self, line: _Line, depth: int) -> Dim:
        """term := factor ("*" factor)*"""
        product = self.factor(line, depth)
        while line.accept("*"):
            product = product * self.factor(line, depth)
        return product

    def factor(self, line: _Line, depth: int) -> Dim:
        """factor := int | sN | div(dim, dim)"""
        if depth > DEPTH:
            raise line.error("nested too deeply")
        kind, word = line.peek()
        if kind == "int":
            line.place += 1
            return _integer(line, word)
        if kind == "name" and re.fullmatch(r"s\d+", word, re.ASCII):
            line.place += 1
            slot = _integer(line, word[1:])
            if slot >= self.graph.slots:
                raise line.error(f"there is no slot {slot}")
            return symbol(slot)
        line.expect("div")
        line.expect("(")
        numerator = self.dim(line, depth + 1)
        line.expect(",")
        denominator = self.dim(line, depth + 1)
        line.expect(")")
        if denominator == 0:
            raise line.error("division by zero")
        return quotient(numerator, denominator)

    def attr(self, line: _Line, depth: int = 0) -> Any:
        """One attribute."""
        if depth > DEPTH:
            raise line.error("nested too deeply")
        kind, word = line.peek()
        if kind == "float":
            line.place += 1
            return float(word)
        if kind == "string":
            line.place += 1
            return _string(line, word)
        if kind == "name" and word in ("true", "false", "none"):
            line.place += 1
            return {"true": True, "false": False, "none": None}[word]
        if kind == "called":
            line.place += 1
            index = _integer(line, word[1:])
            if index >= len(self.called):
                raise line.error(f"there is no graph {word}")
            self.unfolded += self.sizes[index]
            if self.most is not None and self.unfolded > self.most:
                raise line.error("graphs that call graphs come to too many nodes")
            return self.called[index]
        if line.accept("("):
            return self.items(line, ")", lambda inner: self.attr(inner, depth + 1))
        return self.dim(line)

    def dtype(self, line: _Line, allowed: frozenset[str] = DTYPES) -> str:
        """A dtype's name."""
        word = line.take("name", "a dtype")
        if word not in allowed:
            raise line.error(f"no dtype '{word}' here")
        return word

    def type(self, line: _Line) -> tuple[str, Shape]:
        """type := dtype "[" dims "]" """
        dtype = self.dtype(line)
        line.expect("[")
        return dtype, self.items(line, "]", self.dim)

    def input(self, line: _Line) -> Value:
        """An array input."""
        dtype, shape = self.type(line)
        layout: tuple[Dim, ...] | None = None
        if line.accept("strides"):
            line.expect("(")
            layout = self.items(line, ")", self.dim)
            if len(layout) != len(shape):
                raise line.error(f"{len(shape)} dims but {len(layout)} strides")
        if any(isinstance(d, int) and d < 0 for d in shape):
            raise line.error("a negative size")
        return self.graph.add_input(dtype, shape, layout)

    def number(self, line: _Line) -> Value:
        """A number input and its slot, which no other number has."""
        dtype = self.dtype(line, NUMBERS)
        slot = single_slot(self.factor(line, 0))
        if slot < 0 or slot in self.numbers:
            raise line.error("a number has a slot of its own")
        self.numbers.add(slot)
        value = self.graph.add_input(dtype, ())
        value.weak, value.slot = True, slot
        return value

    def node(self, line: _Line, name: str) -> Value:
        """op(values; attrs): type, checked against what the op infers."""
        inputs: list[Value] = []
        attrs: tuple[Any, ...] = ()
        try:
            op = self.find_op(name)
        except KeyError:
            raise line.error(f"no op is called '{name}'") from None
        line.expect("(")
        while line.peek()[0] == "value":
            inputs.append(self.value(line))
            if not line.accept(","):
                break
        if line.accept(";"):
            attrs = self.items(line, ")", self.attr)
        else:
            line.expect(")")
        line.expect(":")
        dtype, shape = self.type(line)
        if not takes(op, len(inputs), len(attrs)):
            raise line.error(f"{name} does not take {len(inputs)} values and {len(attrs)} attributes")
        before = len(self.graph.checks)
        self.unfolded += 1
        try:
            out = self.graph.add(op, tuple(inputs), attrs)
        except Exception as error:
            raise line.error(f"{name} refuses its arguments: {error}") from error
        if any(type(d) is not int and not isinstance(d, Size) for d in out.shape):
            raise line.error(f"{name} of sizes that are none")
        if out.dtype != dtype or not self.graph.same_shape(out.shape, shape):
            given, inferred = type_text(dtype, shape), type_text(out.dtype, out.shape)
            raise line.error(f"says {given}, but {name} gives {inferred}")
        if unstated := self.graph.unstated(before, self.checks):
            raise line.error(f"{name} needs a check that is not stated: {unstated}")
        return out

    def statement(self, line: _Line) -> None:
        """One line after the first."""
        if self.outputs is not None:
            raise line.error("a line after 'return'")
        if line.accept("check"):
            left = self.dim(line)
            line.expect("==")
            self.checks.append((left, self.dim(line)))
        elif line.accept("update"):
            output = _integer(line, line.take("int", "an output's number"))
            line.expect("->")
            self.graph.updates[output] = _integer(line, line.take("int", "an input's number"))
        elif line.accept("return"):
            found: list[Value] = []
            while line.peek()[0] == "value":
                found.append(self.value(line))
                if not line.accept(","):
                    break
            self.outputs = found
        else:
            self.definition(line)
        line.end()

    def finish(self) -> Graph:
        """The graph, once every line is read."""
        if self.outputs is None:
            raise TextError("graph text: no 'return'")
        graph = self.graph.finish(self.outputs)
        graph.checks = self.checks
        for output, target in graph.updates.items():
            if output >= len(graph.outputs) or target >= len(graph.inputs) or min(output, target) < 0:
                raise TextError(f"graph text: update {output} -> {target} names no output or input")
        return graph

    def definition(self, line: _Line) -> None:
        """%n = ..."""
        name = line.take("value", "a value, 'check', 'update' or 'return'")
        if name != f"%{len(self.values)}":
            raise line.error(f"expected %{len(self.values)}, got {name}")
        line.expect("=")
        word = line.take("name", "an op")
        if word in ("input", "number") and self.graph.nodes:
            raise line.error("an input after a node")
        if word == "input":
            self.values.append(self.input(line))
        elif word == "number":
            self.values.append(self.number(line))
        else:
            self.values.append(self.node(line, word))


def _string(line: _Line, word: str) -> str:
    import json

    try:
        found = json.loads(word)
    except ValueError:
        raise line.error("a string with a wrong escape") from None
    assert isinstance(found, str)
    return found


def parse(source: str, find_op: FindOp, most: int | None = None) -> Graph:
    """The graph a text describes; TextError names the line of what is wrong.

    `find_op` gives the op of a name, KeyError if there is none. Dtypes and shapes are inferred and compared.
    `most`: how many nodes there may be, those of a graph counted each time that it is called.
    """
    lines = source.split("\n")
    head = re.fullmatch(r"graph (\d{1,7})\s*", lines[0], re.ASCII)
    if head is None:
        raise TextError("graph text, line 1: expected 'graph' and the number of slots")
    return _parse(lines[1:], 2, _Reader(find_op, int(head[1]), most), 0)


_CALLED = r"called @(\d{1,7}) (\d{1,7})\s*"


def _parse(lines: list[str], first: int, reader: _Reader, depth: int) -> Graph:
    """The graph of some lines, of which the first has the number `first`."""
    if depth > DEPTH:
        raise TextError(f"graph text, line {first}: nested too deeply")
    at = 0
    while at < len(lines) and (head := re.fullmatch(_CALLED, lines[at], re.ASCII)):
        end = at + 1
        while end < len(lines) and lines[end].startswith("  "):
            end += 1
        if int(head[1]) != len(reader.called):
            raise TextError(f"graph text, line {first + at}: expected @{len(reader.called)}, got @{head[1]}")
        inside = [line[2:] for line in lines[at + 1 : end]]
        inner = _Reader(reader.find_op, int(head[2]), reader.most)
        reader.called.append(Subgraph(_parse(inside, first + at + 1, inner, depth + 1)))
        reader.sizes.append(inner.unfolded)
        at = end
    rows = [_Line(row, k) for k, row in enumerate(lines[at:], first + at) if row.strip()]
    count = next((k for k, row in enumerate(rows) if not _is_input(row)), len(rows))
    checks = [row for row in rows[count:] if row.peek() == ("name", "check")]
    for row in [
        *rows[:count],
        *checks,
    ]:  # checks say which sizes are equal: the shapes of nodes need them first
        reader.statement(row)
    for left, right in reader.checks:
        try:
            reader.graph.require_equal(left, right, "check")
        except ValueError as error:
            raise TextError(f"graph text: {error}") from None
    for row in rows[count:]:
        if row.place == 0:
            reader.statement(row)
    return reader.finish()


def parse_dim(source: str, slots: int) -> Dim:
    """A size as `dim_text` writes it, of slots below `slots`; TextError."""
    if len(source) < 19 and source.isascii() and source.isdigit():
        return int(source)
    line = _Line(source, 1)
    found = _Reader(_no_op, slots).dim(line)
    line.end()
    return found


def _no_op(name: str) -> OpLike:
    raise KeyError(name)


def _is_input(row: _Line) -> bool:
    return len(row.tokens) > 2 and row.tokens[2] in (("name", "input"), ("name", "number"))
