"""The text of a graph as people read it, and its reader.

    text  := "graph" [name] line*                    two spaces before a line; a remark is "#" and the rest
    line  := "size" name "from" int ["to" int]       what a size may be, if not anything
           | "input" name ":" type                   what a run is given
           | "tensor" $name ":" type                 what the graph has: parameters, buffers, constants
           | "draws" int                             how many random numbers a run draws, and what each is:
           | "draw" %n ":" ("seed" | "position" int)
           | %n "=" op "(" values [";" attrs] ")" ":" type
           | "called" @n ...                         a graph that nodes call, as kiln/graph/text.py has it
           | "check" dim sign dim                    what must hold of sizes
           | "write" (name | $name) "<-" value       what memory holds afterwards
           | "return" values
    value := name | $name | %n | number

It says all that the canonical text of kiln/graph/text.py says, in the names of the program, and is read by
translating it into that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from kiln.graph.graph import Graph, Value
from kiln.graph.size import Size
from kiln.graph.text import TextError, attr_text, called_graphs, dim_text, parse, parse_dim
from kiln.graph.verify import VerifyError, verify
from kiln.symbolic.sizes import respelled
from kiln.table.record import find
from kiln.tracing.captured import Captured, Input, State
from kiln.tracing.dims import Range
from kiln.tracing.sizes import SIGNS, Guard
from kiln.tracing.trees import LEAF, Tree

_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_WORDS = re.compile(r'"(?:[^"\\]|\\.)*"|\bs(\d+)\b| \+ -')


class Readable(NamedTuple):
    """A text, and the names that values have in it, by id."""

    text: str
    names: dict[int, str]


def named(found: Captured, told: str) -> str:
    """A text in which sizes have the names that were declared."""
    plain = {d.slot: d.name for d in found.dims.values() if isinstance(d.symbol, Size)}
    for dim in found.dims.values():
        spelled = dim_text(dim.symbol)
        if not re.fullmatch(r"s\d+", spelled):
            told = told.replace(spelled, dim.name)
            plain.pop(dim.slot, None)

    def name(match: re.Match[str]) -> str:
        if match[0] == " + -":
            return " - "
        return plain.get(int(match[1]), match[0]) if match[1] else match[0]

    return _WORDS.sub(name, told)


def size_text(found: Captured, size: Any) -> str:
    """A size in the names that were declared."""
    return named(found, dim_text(size))


def type_of(found: Captured, dtype: str, shape: Any) -> str:
    """`float32[n, 3]`"""
    return f"{dtype}[{', '.join([size_text(found, n) for n in shape])}]"


def literal(value: Value) -> str:
    """A Python number in a graph as text; "" of any other value."""
    if value.weak and value.node is not None and value.node.op.kind == "constant":
        return attr_text(value.node.attrs[0])
    return ""


def readable(found: Captured, graph: Graph, lines: bool = False) -> Readable:
    """The text of a graph; `lines`: with the lines of the program that made its nodes, as remarks."""
    names: dict[int, str] = {}
    named_so = found.name.isidentifier() and found.name != "graph"
    out = [f"graph {found.name}" if named_so else "graph"]
    for dim in found.dims.values():
        if dim.min or dim.max is not None:
            out.append(
                f"  size {dim.name} from {dim.min}" + (f" to {dim.max}" if dim.max is not None else "")
            )
    arrays = [v for v in graph.inputs if not v.weak]
    for own, value in zip(found.inputs, arrays):
        names[id(value)] = own.name
        out.append(f"  input {own.name}: {type_of(found, own.dtype, own.shape)}")
    for held, value in zip(found.state, arrays[len(found.inputs) :]):
        names[id(value)] = f"${held.name}"
        remark = "" if held.kind == "constant" else f"  # {held.kind}"
        out.append(f"  tensor ${held.name}: {type_of(found, value.dtype, value.shape)}{remark}")
    if type(found.drawn) is not int or found.drawn:
        out.append(f"  draws {size_text(found, found.drawn)}")
    for (kind, first), value in zip(found.random, [v for v in graph.inputs if v.weak]):
        names[id(value)] = f"%{len(names)}"
        out.append(
            f"  draw {names[id(value)]}: {kind}"
            + (f" {size_text(found, first)}" if kind == "position" else "")
        )
    called, lines_of_called = called_graphs(graph)
    out += [f"  {line}" for line in lines_of_called]
    body = []
    for node in graph.nodes:
        if literal(node.out):
            continue
        operands = ", ".join([literal(v) or names[id(v)] for v in node.inputs])
        attrs = "; " + ", ".join([attr_text(a, called) for a in node.attrs]) if node.attrs else ""
        names[id(node.out)] = name = f"%{len(names)}"
        told = f"  {name} = {node.op.name}({operands}{named(found, attrs)}): "
        told += type_of(found, node.out.dtype, node.out.shape)
        body.append((told, node.line if lines and not node.line.startswith("<") else ""))
    width = min(max((len(told) for told, line in body if line), default=0), 64)
    out += [f"{told:{width}}  # {_short(line)}" if line else told for told, line in body]
    for guard in found.guards:
        sign = guard.sign if guard.answer else _OPPOSITE[guard.sign]
        told = f"  check {size_text(found, guard.left)} {sign} {size_text(found, guard.right)}"
        out.append(
            told
            + (f"  # {_short(guard.line)}" if guard.line and lines and not guard.line.startswith("<") else "")
        )
    count = len(found.outputs)
    for (kind, k), value in zip(found.mutated, graph.outputs[count : count + len(found.mutated)]):
        target = found.inputs[k].name if kind == "input" else f"${found.state[k].name}"
        out.append(f"  write {target} <- {names[id(value)]}")
    results = [literal(v) or names[id(v)] for v in graph.outputs[:count]]
    out.append(f"  return {', '.join(results)}".rstrip())
    return Readable("\n".join(out), names)


def _short(line: str) -> str:
    return line.replace("\\", "/").rpartition("/")[2]


# -- reading ------------------------------------------------------------------------------------------------

_NAME = r"[A-Za-z_]\w*"
_STATE = r"\$[\w.]+"
_TOKENS = re.compile(
    rf'\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<state>{_STATE})|(?P<value>%\d+)|(?P<called>@\d+)'
    rf"|(?P<number>-?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf\b)|nan\b)|(?P<name>{_NAME})|(?P<mark>[=()\[\],;:+*-]))"
)


class _Reader:
    """Translates line by line."""

    def __init__(self, source: str) -> None:
        self.found = Captured("graph")
        self.ranges: dict[str, Range] = {}
        self.inputs: list[tuple[str, str, list[str]]] = []
        self.state: list[tuple[str, str, list[str]]] = []
        self.sizes: dict[str, str] = {}  # name -> canonical text
        self.values: dict[str, str] = {}
        self.lines: list[str] = []
        self.called: list[str] = []
        self.count = 0
        self.drawn = "0"
        self.outputs: list[str] | None = None
        self.writes: list[tuple[str, str]] = []
        self.checks: list[tuple[str, str, str]] = []
        self.source = source.split("\n")

    def error(self, what: str) -> TextError:
        """The error for the line that is read."""
        return TextError(f"graph text, line {self.at + 1}: {what}")

    def read(self) -> Any:
        """The canonical text."""
        heads = []
        begun = False
        self.at = 0
        while self.at < len(self.source):
            line = _without_remark(self.source[self.at])
            word = line.split()[0] if line.split() else ""
            if not word:
                pass
            elif not begun:
                parts = line.split()
                if parts[0] != "graph" or len(parts) > 2:
                    raise self.error("expected 'graph' and a name")
                self.found.name = parts[1] if len(parts) == 2 else "graph"
                begun = True
            elif self.outputs is not None:
                raise self.error("a line behind 'return'")
            elif word in ("size", "input", "tensor", "draw", "draws") and not line.split()[1:2] == ["="]:
                if self.lines or self.called:
                    raise self.error(f"'{word}' behind the first node")
                heads.append((self.at, word, line))
            else:
                if heads is not None and not self.sizes and not self.values:
                    self.begin(heads)
                self.line(word, line)
            self.at += 1
        if self.outputs is None:
            raise self.error("a graph ends with 'return'")

    def begin(self, heads: list[tuple[int, str, str]]) -> None:
        """What stands before the nodes."""
        here = self.at
        draws = []
        for at, word, line in heads:
            self.at = at
            if word == "size":
                match = re.fullmatch(rf"size ({_NAME}) from (\d{{1,18}})(?: to (\d{{1,18}}))?", line.strip())
                if not match or match[1] in self.ranges:
                    raise self.error("expected 'size n from 1 to 9'")
                self.ranges[match[1]] = Range(match[1], int(match[2]), int(match[3]) if match[3] else None)
                continue
            if word == "draws":
                match = re.fullmatch(r"draws (.+)", line.strip())
                if not match:
                    raise self.error("expected 'draws 8'")
                self.drawn = match[1]
                continue
            if word == "draw":
                match = re.fullmatch(r"draw (%\d+): (?:(seed)|(position) (.+))", line.strip())
                if not match:
                    raise self.error("expected 'draw %1: seed' or 'draw %1: position 0'")
                draws.append((match[1], match[2] or match[3], match[4] or "0"))
                continue
            name = _NAME if word == "input" else _STATE
            match = re.fullmatch(rf"{word} ({name}): ([a-z]+\d*)\[(.*)\]", line.strip())
            if not match:
                raise self.error(f"expected '{word} name: dtype[sizes]'")
            own = match[1]
            if any(own == n for n, *_ in [*self.inputs, *self.state]):
                raise self.error(f"{own} stands twice")
            row = own, match[2], [n.strip() for n in match[3].split(",")] if match[3].strip() else []
            (self.inputs if word == "input" else self.state).append(row)
        self.at = here
        self._operands(draws)

    def _operands(self, draws: list[tuple[str, str, str]]) -> None:
        names: dict[str, int] = {}
        shapes = []
        for _, _, sizes in self.inputs:
            for told in sizes:
                for word in re.findall(rf"\b{_NAME}\b", told):
                    if word != "div":
                        names.setdefault(word, len(names))
            shapes.append(
                tuple(
                    [
                        parse_dim(_spelled(n, {k: f"s{v}" for k, v in names.items()}), len(names))
                        for n in sizes
                    ]
                )
            )
        ranges = []
        for name, slot in names.items():
            own = self.ranges.pop(name, None) or Range(name, 0, None)
            own.slot, own.example, own.hint = slot, max(own.min, 1), max(own.min, 1)
            ranges.append(own)
        if self.ranges:
            raise self.error(f"no input has the size {next(iter(self.ranges))}")
        of, self.found.dims = respelled(ranges, shapes)
        for name, slot in names.items():
            if slot not in of:
                raise self.error(f"no input says what the size {name} is")
            self.sizes[name] = dim_text(of[slot])
        slots = sum(len(s) for _, _, s in [*self.inputs, *self.state])
        for given, dtype, sizes in [*self.inputs, *self.state]:
            self.values[given] = f"%{self.count}"
            self.lines.append(f"%{self.count} = input {dtype}[{', '.join(self.size(n) for n in sizes)}]")
            self.count += 1
        for name, kind, first in draws:
            self.values[name] = f"%{self.count}"
            self.lines.append(f"%{self.count} = number int64 s{slots}")
            self.found.random.append((kind, self._count(first, slots)))
            self.count, slots = self.count + 1, slots + 1
        self.found.drawn = self._count(self.drawn, slots)
        self.slots = slots
        self.values.setdefault("", "")

    def _count(self, told: str, slots: int) -> Any:
        try:
            return parse_dim(self.size(told), slots)
        except TextError:
            raise self.error(f"expected a number or a size, got {told[:40]}") from None

    def size(self, told: str) -> str:
        """A size in the canonical text."""
        return _spelled(told.replace(" - ", " + -"), self.sizes)

    def line(self, word: str, line: str) -> None:
        """A line behind the inputs."""
        if word == "called":
            self.called.append(line.strip())
            while self.at + 1 < len(self.source) and self.source[self.at + 1].startswith("    "):
                self.at += 1
                self.called.append(self.source[self.at][2:])
        elif word == "check":
            match = re.fullmatch(r"check (.+?) (==|!=|<=|>=|<|>) (.+)", line.strip())
            if not match:
                raise self.error("expected 'check n >= 1'")
            self.checks.append((self.size(match[1]), match[2], self.size(match[3])))
        elif word == "write":
            match = re.fullmatch(rf"write ({_NAME}|{_STATE}) <- (%\d+|{_NAME}|{_STATE})", line.strip())
            if not match:
                raise self.error("expected 'write x <- %1'")
            self.writes.append((match[1], self.value(match[2])))
        elif word == "return":
            given = line.strip().removeprefix("return").strip()
            self.outputs = [self.value(v.strip()) for v in given.split(",")] if given else []
        elif re.match(r"\s*%\d+ = ", line):
            self.node(line)
        else:
            raise self.error(f"no line of a graph begins with {word[:20]!r}")

    def value(self, name: str) -> str:
        """A value's canonical name."""
        if name not in self.values or not name:
            raise self.error(f"{name[:40]} is used before it is defined")
        return self.values[name]

    def node(self, line: str) -> None:
        """%n = op(values; attrs): type"""
        tokens = self._tokens(line)
        if len(tokens) < 5 or tokens[1][1] != "=" or tokens[2][0] != "name" or tokens[3][1] != "(":
            raise self.error("expected '%1 = op(...): dtype[sizes]'")
        own, op = tokens[0][1], tokens[2][1]
        if own in self.values:
            raise self.error(f"{own} is defined twice")
        out: list[str] = []
        inside = True  # operands, then attributes
        for kind, word in tokens[4:]:
            if word == ";" or (word == ")" and inside):
                inside = False
            if inside and kind in ("name", "state", "value") and word not in ("true", "false", "nan", "inf"):
                out.append(self.value(word))
            elif inside and word != ",":
                out.append(self._literal(word))
            elif kind == "name" and word in self.sizes:
                out.append(self.sizes[word])
            elif word == "-":
                out.append("+ -")
            else:
                out.append(word)
        told = " ".join(out).replace("- ", "-")
        self.lines.append(f"%{self.count} = {op}({told}")
        self.values[own] = f"%{self.count}"
        self.count += 1

    def _literal(self, word: str) -> str:
        """A constant's node."""
        kind = "bool" if word in ("true", "false") else "int64" if re.fullmatch(r"-?\d+", word) else "float64"
        if not re.fullmatch(r"true|false|nan|-?(?:inf|\d+(?:\.\d*)?(?:e[+-]?\d+)?)", word):
            raise self.error(f"expected a value, got {word[:20]}")
        self.lines.append(f"%{self.count} = constant(; {word}): {kind}[]")
        self.count += 1
        return f"%{self.count - 1}"

    def _tokens(self, line: str) -> list[tuple[str, str]]:
        found, place, line = [], 0, line.rstrip()
        while place < len(line):
            match = _TOKENS.match(line, place)
            if match is None or match.lastgroup is None:
                raise self.error(f"unexpected {line[place : place + 20]!r}")
            found.append((match.lastgroup, match[match.lastgroup]))
            place = match.end()
        return found


def _without_remark(line: str) -> str:
    """A line up to its remark."""
    match = re.match(r'(?:[^"#]|"(?:[^"\\]|\\.)*")*', line)
    return match[0].rstrip() if match else line


def _spelled(told: str, names: Mapping[str, str]) -> str:
    return re.sub(rf"\b{_NAME}\b", lambda m: names.get(m[0], m[0]), told)


def read(source: str, tensors: Mapping[str, Any] | None = None) -> tuple[Captured, Any]:
    """What a text says, and its graph: `tensors` that it has, by name (without "$"). TextError, with the
    line, for a text that is none; ValueError for a tensor that is missing or looks otherwise.
    """
    reader = _Reader(source)
    reader.read()
    outputs = [*(reader.outputs or []), *(v for _, v in reader.writes)]
    canonical = [
        f"graph {reader.slots}",
        *reader.called,
        *reader.lines,
        f"return {', '.join(outputs)}".rstrip(),
    ]
    try:
        graph = parse("\n".join(canonical) + "\n", find)
        verify(graph)
    except TextError as error:
        line = re.match(r"graph text, line \d+: (.*)", str(error), re.DOTALL)
        raise TextError(f"graph text: {line[1] if line else error}") from None
    except VerifyError as error:
        raise TextError(f"graph text: {error}") from None
    found = reader.found
    arrays = [v for v in graph.inputs if not v.weak]
    count = len(reader.inputs)
    found.inputs = [Input(n, v.dtype, tuple(v.shape)) for (n, *_), v in zip(reader.inputs, arrays)]
    for (name, *_), value in zip(reader.state, arrays[count:]):
        own = name[1:]
        tensor = (tensors or {}).get(own)
        if tensor is None:
            raise ValueError(
                f"graph.parse: the graph has a tensor {own}, {value!r}, which is not in the text: give it"
            )
        if (tensor.dtype.name, tuple(tensor.shape)) != (value.dtype, tuple(value.shape)):
            raise ValueError(
                f"graph.parse: {own} is {tensor.dtype.name}{list(tensor.shape)}, the graph has {value!r}"
            )
        found.state.append(State(own, "constant", tensor))
    names = [x.name for x in found.inputs]
    for target, _ in reader.writes:
        if target in names:
            found.mutated.append(("input", names.index(target)))
        elif target[1:] in [s.name for s in found.state]:
            found.mutated.append(("state", [s.name for s in found.state].index(target[1:])))
        else:
            raise TextError(f"graph text: nothing called {target} is written")
    for left, sign, right in reader.checks:
        assert sign in SIGNS
        found.guards.append(
            Guard(parse_dim(left, graph.slots), sign, parse_dim(right, graph.slots), True, "")
        )
    found.in_tree = Tree("tuple", (Tree("tuple", (LEAF,) * count), Tree("dict")))
    found.parameters = names
    found.aliases, found.distinct = tuple(range(count)), list(range(count))
    results = len(reader.outputs or [])
    found.out_tree = LEAF if results == 1 else Tree("tuple", (LEAF,) * results)
    found.outputs = ["output"] if results == 1 else [f"output[{k}]" for k in range(results)]
    return found, graph
