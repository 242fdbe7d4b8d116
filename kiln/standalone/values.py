"""What a program asks of values, as code: positions in range, divisors that are not 0, what it was made for.

Each question looks at an array after the graph has run, an input or a result, and a run returns its code if
the answer is no.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln.capture.pure.values import names_of
from kiln.codegen.ir.index import Condition, Index, Pointer
from kiln.graph.graph import Graph
from kiln.graph.size import Dim, product
from kiln.passes.plan import ITEMSIZE
from kiln.serialization.source import pieces
from kiln.standalone.function import Function, Module
from kiln.standalone.sizes import Sizes
from kiln.table.kinds import FLOATS
from kiln.tracing.captured import Captured, Check, Expected, Kept, Raises

ArrayAt = Callable[[str, int], Pointer]  # an "operand" or a "result" by its number: where it lies


class Asked:
    """One question of values: code that returns from a run where they are refused. `dims`: what it reads of
    sizes.
    """

    dims: tuple[Dim, ...] = ()

    def write(self, f: Function, sizes: Sizes, array: ArrayAt) -> None:
        """The question."""
        raise NotImplementedError


def asked(found: Captured, graph: Graph, driver: Module) -> list[Asked]:
    """Everything that a program asks of values."""
    questions: list[Asked] = []
    for check in found.checks:
        if isinstance(check, Check):
            record = check.op.record
            if record.checks is not None:
                questions += _positions(check, record, graph, driver)
            else:
                questions += _divisor(check, record, graph, driver)
        elif isinstance(check, Expected):
            questions.append(_Holds(check, driver))
        elif isinstance(check, Raises):
            questions.append(_Number(check, driver))
        elif isinstance(check, Kept):
            questions.append(_Same(check, driver))
    return questions


def _return_where(f: Function, wrong: Condition, code: Index | int) -> None:
    f.return_where(wrong, lambda: f"i32 {code if isinstance(code, int) else code.bits(32)}")


def _array(part: tuple[str, Any], graph: Graph) -> tuple[str, tuple[Dim, ...]] | None:
    """The dtype and shape of an operand or result; None of what is none."""
    kind, which = part
    if kind == "operand":
        return graph.inputs[which].dtype, graph.inputs[which].shape
    if kind == "result":
        return graph.outputs[which].dtype, graph.outputs[which].shape
    if kind == "like":
        return which.dtype.name, tuple(which.shape)
    if kind == "varies":
        return which[0], which[1]
    return None


class _EveryValue(Asked):
    """That a condition on one value holds for all of an array of integers, or for a number."""

    def __init__(self, part: tuple[str, Any], graph: Graph, code: int, dims: tuple[Dim, ...]) -> None:
        self.part, self.code = part, code
        self.look = _array(part, graph)
        count: Dim = 1 if self.look is None else product(self.look[1])
        number = part[1] if self.look is None else 0
        self.dims = (count, number, *dims)

    def wrong(self, f: Function, sizes: Sizes, value: Index) -> Condition:
        """Whether a value is refused."""
        raise NotImplementedError

    def write(self, f: Function, sizes: Sizes, array: ArrayAt) -> None:
        count, number = self.dims[:2]
        if self.look is None:
            _return_where(f, self.wrong(f, sizes, f.index(sizes.of(number))), self.code)
            return
        dtype, _ = self.look
        kind = f"i{8 * ITEMSIZE[dtype]}"
        where = array(*self.part)
        with f.loop(0, sizes.of(count), 1) as turn:
            found = where.element(kind, turn.index).load(kind)
            extended = "zext" if dtype in ("uint8", "bool") else "sext"
            value = f.index(found if kind == "i64" else f.op(f"{extended} {kind} {found} to i64"))
            _return_where(f, self.wrong(f, sizes, value), self.code)


class _InRange(_EveryValue):
    """That positions are within a dim."""

    def __init__(
        self, part: tuple[str, Any], graph: Graph, code: int, size: Dim, negative: bool, ignored: int | None
    ) -> None:
        super().__init__(part, graph, code, (size,))
        self.size, self.negative, self.ignored = size, negative, ignored

    def wrong(self, f: Function, sizes: Sizes, value: Index) -> Condition:
        size = f.index(sizes.of(self.size))
        found = (value < (0 - size if self.negative else 0)) | (value >= size)
        return found if self.ignored is None else found & value.differs(self.ignored)


class _NotZero(_EveryValue):
    """That no divisor is 0."""

    def wrong(self, f: Function, sizes: Sizes, value: Index) -> Condition:
        return value.equals(0)


def _positions(check: Check, record: Any, graph: Graph, driver: Module) -> list[Asked]:
    stated = record.checks
    given = dict(zip(names_of(record, check.structure), check.parts))
    source = _array(given[stated.source], graph)
    assert source is not None
    shape = source[1]
    dim = stated.dim
    if dim == "class":
        dim = 1 if len(shape) > 1 else 0
    elif isinstance(dim, str):
        dim = _structure_of(record, check.structure)[dim]
    elif stated.along:
        dim += stated.along
    dim = dim + len(shape) if dim < 0 else dim
    size: Dim = shape[dim] if 0 <= dim < len(shape) else 1
    ignored = None
    if stated.ignore:
        kind, number = given[stated.ignore]
        assert kind == "number"
        ignored = int(number)
    code = driver.code_of(
        f"{record.name}: {stated.positions} has a position outside of dim {dim} of {stated.source}, whose "
        f"size is {driver.found.size_text(size)}"
    )
    return [_InRange(given[stated.positions], graph, code, size, stated.negative, ignored)]


def _structure_of(record: Any, structure: tuple[Any, ...]) -> dict[str, Any]:
    """The structure parameters of a call by name."""
    params = [p for p in record.params if not (record.kind == "pointwise" and p.kind != "S")]
    return {p.name: entry for p, entry in zip(params, structure)}


def _divisor(check: Check, record: Any, graph: Graph, driver: Module) -> list[Asked]:
    for part in check.parts:
        look = _array(part, graph)
        if look[0] in FLOATS if look is not None else isinstance(part[1], float):
            return []
    code = driver.code_of(f"{record.name}: an integer is divided by 0")
    return [_NotZero(check.parts[1], graph, code, ())]


class _Holds(Asked):
    """That a result is true."""

    def __init__(self, check: Expected, driver: Module) -> None:
        self.which, self.code = check.which, driver.code_of(f"{check.error.__name__}: {check.text}")

    def write(self, f: Function, sizes: Sizes, array: ArrayAt) -> None:
        found = array("result", self.which).load("i8")
        _return_where(f, f.condition(f.op(f"icmp eq i8 {found}, 0")), self.code)


class _Number(Asked):
    """The number of an exception that the program raises, or 0."""

    def __init__(self, check: Raises, driver: Module) -> None:
        self.which = check.which
        codes = [driver.code_of(f"{type(error).__name__}: {error}") for error in check.errors]
        self.first, self.last = codes[0], codes[-1]
        self.dtype = driver.graph.outputs[check.which].dtype

    def write(self, f: Function, sizes: Sizes, array: ArrayAt) -> None:
        kind = f"i{8 * ITEMSIZE[self.dtype]}"
        found = array("result", self.which).load(kind)
        number = f.index(found if kind == "i64" else f.op(f"sext {kind} {found} to i64"))
        code = (number.max(1) + (self.first - 1)).min(self.last)
        _return_where(f, number.differs(0), code)


class _Same(Asked):
    """That an array has the bytes it had when the program was made."""

    def __init__(self, check: Kept, driver: Module) -> None:
        self.part = check.kind, check.which
        self.example: bytes = b"".join(map(bytes, pieces(check.example)))
        self.code = driver.code_of(f"{check.line} read another value than when the program was made")
        self.symbol = driver.new_symbol("kept")
        driver.blobs[self.symbol] = self.example

    def write(self, f: Function, sizes: Sizes, array: ArrayAt) -> None:
        where, expected = array(*self.part), f.pointer(f"@{self.symbol}")
        with f.loop(0, len(self.example), 1) as turn:
            x, y = where[turn.index].load("i8"), expected[turn.index].load("i8")
            _return_where(f, f.condition(f.op(f"icmp ne i8 {x}, {y}")), self.code)
