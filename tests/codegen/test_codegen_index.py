"""Integers of addresses, pointers, conditions: what operators write, what it computes, what mypy refuses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from codegen_peer import load_object

from kiln.codegen.compile import compile_text
from kiln.codegen.ir.code import Code
from kiln.codegen.ir.index import Condition, Index, Pointer, every
from kiln.codegen.ir.routine import Routine
from kiln.codegen.llvm import Machine
from kiln.codegen.target import host_target

TARGET = host_target()


def written(write: Callable[..., Any], *names: str) -> tuple[list[str], Any]:
    """The instructions that `write` writes of i64 arguments, and its result."""
    code = Code(TARGET)
    found = write(*code.indices(*names))
    return [line.strip() for line in code.lines], found


def test_an_address_is_written_where_it_stands_from_left_to_right() -> None:
    code = Code(TARGET)
    (b,) = code.pointers("b")
    column, panel, pitch = code.indices("column", "panel", "pitch")
    place = b[column // panel * pitch, (column + 3) * 4]
    assert [line.strip() for line in code.lines] == [
        "%v1 = sdiv i64 %column, %panel",
        "%v2 = mul i64 %v1, %pitch",
        "%v3 = add i64 %column, 3",
        "%v4 = mul i64 %v3, 4",
        "%v5 = getelementptr i8, ptr %b, i64 %v2",
        "%v6 = getelementptr i8, ptr %v5, i64 %v4",
    ]
    assert place.text == "%v6"


@pytest.mark.parametrize(
    "write",
    [lambda x: x + 0, lambda x: 0 + x, lambda x: x - 0, lambda x: x * 1, lambda x: 1 * x, lambda x: x // 1],
)
def test_what_changes_nothing_is_not_written(write: Callable[[Index], Index]) -> None:
    lines, found = written(write, "x")
    assert lines == [] and found.text == "%x"


@pytest.mark.parametrize(
    ("write", "line"),
    [
        (lambda x: 0 - x, "sub i64 0, %x"),
        (lambda x: 5 * x, "mul i64 5, %x"),
        (lambda x: 5 + x, "add i64 5, %x"),
        (lambda x: x + -1, "add i64 %x, -1"),
        (lambda x: 7 // x, "sdiv i64 7, %x"),
        (lambda x: 7 >> x, "lshr i64 7, %x"),
        (lambda x: 1 << x, "shl i64 1, %x"),
        (lambda x: x & -16, "and i64 %x, -16"),
        (lambda x: x // 0, "sdiv i64 %x, 0"),
        (lambda x: x.code.index(2) // 0, "sdiv i64 2, 0"),
    ],
)
def test_an_int_stands_on_its_side(write: Callable[[Index], Index], line: str) -> None:
    assert written(write, "x")[0] == [f"%v1 = {line}"]


def test_a_pointer_moved_by_nothing_is_itself() -> None:
    code = Code(TARGET)
    p = code.pointer("%p")
    assert p[0] is p and p[0, 0] is p and p.element("double", 0) is p and not code.lines


def test_conditions_have_no_truth_in_python() -> None:
    code = Code(TARGET)
    x, y = code.indices("x", "y")
    with pytest.raises(TypeError, match="known when the kernel runs"):
        assert x < y
    with pytest.raises(TypeError, match="known when the kernel runs"):
        assert 0 <= x < y
    with pytest.raises(TypeError, match="known when the kernel runs"):
        assert x.equals(y) or y.equals(x)


def test_every_condition_is_written_before_two_are_joined() -> None:
    lines, _ = written(lambda x, y: every(x < y, x.equals(0), y >= 3), "x", "y")
    assert [line.split(" = ")[1] for line in lines] == [
        "icmp slt i64 %x, %y", "icmp eq i64 %x, 0", "icmp sge i64 %y, 3", "and i1 %v1, %v2", "and i1 %v4, %v3"
    ]  # fmt: skip


def test_a_choice_has_the_type_of_what_is_chosen() -> None:
    code = Code(TARGET)
    c, p, x = code.condition("%c"), code.pointer("%p"), code.index("%x")
    found = [c.choose(1, x), c.choose(x, 1), c.choose(p, code.pointer("null")), c.choose(~c, c)]
    assert [type(y) for y in found] == [Index, Index, Pointer, Condition]
    assert [line.split(" = ")[1] for line in code.lines] == [
        "select i1 %c, i64 1, i64 %x", "select i1 %c, i64 %x, i64 1", "select i1 %c, ptr %p, ptr null",
        "xor i1 %c, true", "select i1 %c, i1 %v4, i1 %c",
    ]  # fmt: skip


def test_a_routine_is_called_and_declared_by_the_types_of_its_arguments() -> None:
    code = Routine(TARGET, "outer", "ptr %p, i64 %n")
    code.run("inner", code.pointer("%p"), code.index("%n"), 3, code.condition(True), code.index(1).value)
    assert code.lines == ["  call void @inner(ptr %p, i64 %n, i64 3, i1 true, i64 1)"]
    assert code.declared == {"inner": "declare void @inner(ptr, i64, i64, i1, i64)"}


def test_a_condition_that_is_known_writes_one_half() -> None:
    """Of the other no instruction, no memory on the stack and no declaration is left, and blocks go on."""
    for known in (True, False):
        code = Routine(TARGET, "outer", "i64 %n")
        with code.either(code.condition(known)) as other:
            code.run("first")
            with code.times(code.index("%n")):
                code.variable(1)
            next(other)
            code.run("second")
            code.variable(2)
        with code.when(code.condition(not known)):
            code.run("third")
        with code.either(code.condition(known)):
            code.run("alone")
        with code.loop(0, 3, 1):
            pass
        expected = {"first", "alone"} if known else {"second", "third"}
        assert {*code.declared} == expected and len(code.slots) == 1
        calls = [line.split("@")[1][:-2] for line in code.lines if "call" in line]
        assert {*calls} == expected
        declared = "\n".join(code.declared.values())
        text = f"{code.routine()}\nattributes #0 = {{ nounwind }}\n{declared}".replace("@outer", "@kernel")
        assert Machine(TARGET, True).object(f"{TARGET.head()}\n{text}\n")  # phis name the blocks before them


# -- what it computes ---------------------------------------------------------------------------------

# Each of two i64 that are not negative, y not 0: what is written, and what Python says of the same.
COMPUTED: list[tuple[Callable[[Index, Index], Index], Callable[[int, int], int]]] = [
    (lambda x, y: x + y, lambda x, y: x + y),
    (lambda x, y: x - y, lambda x, y: x - y),
    (lambda x, y: 3 - x * y, lambda x, y: 3 - x * y),
    (lambda x, y: x // y, lambda x, y: x // y),
    (lambda x, y: x % y, lambda x, y: x % y),
    (lambda x, y: x.udiv(y) + x.urem(y), lambda x, y: x // y + x % y),
    (lambda x, y: divmod(x, y)[1] * 100 + divmod(x, y)[0], lambda x, y: x % y * 100 + x // y),
    (lambda x, y: x.ceil_div(16), lambda x, y: -(-x // 16)),
    (lambda x, y: x.min(y) * 1000 + x.max(y), lambda x, y: min(x, y) * 1000 + max(x, y)),
    (lambda x, y: x.min(7) + x.max(7) * 1000, lambda x, y: min(x, 7) + max(x, 7) * 1000),
    (lambda x, y: (x & y) + (x | y) * 3 + (x ^ 5) * 7, lambda x, y: (x & y) + (x | y) * 3 + (x ^ 5) * 7),
    (lambda x, y: (x << 3) + (x >> 2), lambda x, y: (x << 3) + (x >> 2)),
    (lambda x, y: (0 - x).ashr(2), lambda x, y: -x >> 2),
    (lambda x, y: (x < y).index() + (x <= y).index() * 2, lambda x, y: (x < y) + (x <= y) * 2),
    (lambda x, y: (x > y).index() + (x >= y).index() * 2, lambda x, y: (x > y) + (x >= y) * 2),
    (lambda x, y: x.equals(y).index() + x.differs(y).index() * 2, lambda x, y: (x == y) + (x != y) * 2),
    (lambda x, y: (0 - y).unsigned("gt", x).index(), lambda x, y: 1),
    (lambda x, y: ((x < y) & (x > 3) | ~(x < 9)).choose(x, y * 2),
     lambda x, y: x if 3 < x < y or x >= 9 else y * 2),
]  # fmt: skip


def test_operators_compute_what_python_does() -> None:
    """Of every pair: a kernel that writes each result into an array."""
    code = Code(TARGET)
    out, (x, y) = code.operand(0), (code.argument(0), code.argument(1))
    for n, (write, _) in enumerate(COMPUTED):
        out.put(write(x, y), n)
    code.line("ret void")
    function = load_object(compile_text(code.text(), TARGET))
    found = np.zeros(len(COMPUTED), np.int64)
    pointers = (ctypes.c_void_p * 1)(found.ctypes.data)
    for a in (0, 1, 2, 6, 7, 16, 100, 255):
        for b in (1, 2, 7, 16, 99, 255):
            arguments = np.array([a, b], np.int64)
            function(ctypes.cast(pointers, ctypes.c_void_p), arguments.ctypes.data, 0, 1)
            assert found.tolist() == [int(say(a, b)) for _, say in COMPUTED], (a, b)


def test_what_is_known_is_computed_when_it_is_written() -> None:
    """The same of literals: no instruction, and the number that the kernel would have found."""
    for a in (0, 1, 2, 6, 7, 16, 100, 255):
        for b in (1, 2, 7, 16, 99, 255):
            code = Code(TARGET)
            x, y = code.index(a), code.index(b)
            found = [write(x, y) for write, _ in COMPUTED]
            assert [int(n.text) for n in found] == [int(say(a, b)) for _, say in COMPUTED] and not code.lines
    for a, b in ((-7, 2), (7, -2), (-7, -2)):  # towards zero
        code = Code(TARGET)
        assert (code.index(a) // b).text == str(int(a / b)) and (code.index(a) % b).text == str(
            a - int(a / b) * b
        )


def test_places_are_read_and_written() -> None:
    """A table of pointers and i64: the second array takes the first one's entries, reversed."""
    code = Code(TARGET)
    count = code.argument(0)
    src, dst = code.operand(0), code.operand(1)
    with code.loop(0, count, 1) as turn:
        dst.put(src.word(turn.index), count - 1 - turn.index)
        dst.element("i64", count).put(src)
    code.line("ret void")
    function = load_object(compile_text(code.text(), TARGET))
    a, b = np.arange(5, dtype=np.int64), np.zeros(6, np.int64)
    pointers = (ctypes.c_void_p * 2)(a.ctypes.data, b.ctypes.data)
    function(ctypes.cast(pointers, ctypes.c_void_p), np.array([5], np.int64).ctypes.data, 0, 1)
    assert b.tolist() == [4, 3, 2, 1, 0, a.ctypes.data]


# -- what a type checker says -------------------------------------------------------------------------

PROGRAM = """
from kiln.codegen.ir.code import Code
from kiln.codegen.ir.index import Condition, Index, Pointer


def use(code: Code, p: Pointer, x: Index, c: Condition) -> Index:
    q = p[x // 3 * 2, 4].element("float", x)
    with code.loop(0, x, 4) as turn:
        q.put(turn.index.min(c.choose(x, 1)), 2 + x)
    return c.choose(p, q).word() - 1

"""
MISTAKES = """
def wrong(code: Code, p: Pointer, x: Index, c: Condition) -> None:
    use(code, x, x, c)
    use(code, p, p, c)
    use(code, p, "%x", c)
    x + p
    p[p]
    p + 8
    x & c
    c.choose(x, p)
    code.when(x)
"""


def test_an_integer_is_no_pointer(tmp_path: Path) -> None:
    """Each confusion of the two, or of either with a text or a condition, is found, and nothing else."""
    api = pytest.importorskip("mypy.api")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + MISTAKES)
    said, trouble, _ = api.run(
        ["--strict", "--no-incremental", "--config-file=", "--follow-imports=silent", str(program)]
    )
    first, count = PROGRAM.count("\n") + 3, MISTAKES.count("\n") - 2
    lines = [int(line.split(":")[1]) for line in said.splitlines() if ": error: " in line]
    assert not trouble and lines == list(range(first, first + count)), said
