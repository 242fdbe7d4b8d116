"""Vectors in memory of which only some lanes exist: on machines where masks are registers."""

from __future__ import annotations

from kiln.codegen.code import Code, Value
from kiln.codegen.emit import Machine

SUFFIX = {"float": "f32", "double": "f64"}  # of an LLVM type in an intrinsic's name, where it is another


def lanes_below(code: Code, count: str, lanes: int) -> str:
    """lane < count, typed."""
    spread = Machine(code).spread(Value(count, "i64"), lanes)
    iota = ", ".join(f"i64 {n}" for n in range(lanes))
    return f"<{lanes} x i1> {code.op(f'icmp sgt {spread.typed}, <{iota}>')}"


def load_masked(code: Code, kind: str, lanes: int, pointer: str, mask: str, otherwise: str = "") -> str:
    """Lanes of an LLVM type from any address; where the mask (typed) is not set zeros, or `otherwise`."""
    vector = f"<{lanes} x {kind}>"
    name = f"llvm.masked.load.v{lanes}{SUFFIX.get(kind, kind)}.p0"
    rest = f"{vector} {otherwise or 'zeroinitializer'}"
    return code.call(name, vector, [f"ptr {pointer}", "i32 1", mask, rest])


def store_masked(code: Code, kind: str, lanes: int, value: str, pointer: str, mask: str) -> None:
    """The lanes of a mask to any address."""
    name = f"llvm.masked.store.v{lanes}{SUFFIX.get(kind, kind)}.p0"
    code.call(name, "void", [f"<{lanes} x {kind}> {value}", f"ptr {pointer}", "i32 1", mask])
