"""Vectors in memory of which only some lanes exist: on machines where masks are registers."""

from __future__ import annotations

from kiln.codegen.ir.code import Code
from kiln.codegen.ir.emit import Machine
from kiln.codegen.ir.index import Index, Pointer
from kiln.codegen.ir.value import Value

SUFFIX = {"float": "f32", "double": "f64"}  # of an LLVM type in an intrinsic's name, where it is another


def lanes_below(code: Code, count: Index, lanes: int) -> Value:
    """lane < count, for any i64 count."""
    spread = Machine(code).spread(count.value, lanes)
    iota = ", ".join(f"i64 {n}" for n in range(lanes))
    return Value(code.op(f"icmp sgt {spread.typed}, <{iota}>"), "i1", lanes)


def first_lanes(code: Code, count: Index, lanes: int) -> Value:
    """The same for an i64 count of 1 to `lanes`: that many low bits of a mask."""
    bits = ((1 << lanes) - 1) >> (lanes - count)
    low = bits.bits(lanes) if lanes < 64 else bits.text
    return Value(code.op(f"bitcast i{lanes} {low} to <{lanes} x i1>"), "i1", lanes)


def load_masked(
    code: Code, kind: str, pointer: Pointer, mask: Value, otherwise: str = "zeroinitializer"
) -> str:
    """Lanes of an LLVM type from any address; those of `otherwise` where the mask is not set."""
    vector = f"<{mask.width} x {kind}>"
    name = f"llvm.masked.load.v{mask.width}{SUFFIX.get(kind, kind)}.p0"
    return code.call(name, vector, [f"ptr {pointer}", "i32 1", mask.typed, f"{vector} {otherwise}"])


def store_masked(code: Code, kind: str, value: str, pointer: Pointer, mask: Value) -> None:
    """The lanes of a mask to any address."""
    name = f"llvm.masked.store.v{mask.width}{SUFFIX.get(kind, kind)}.p0"
    code.call(name, "void", [f"<{mask.width} x {kind}> {value}", f"ptr {pointer}", "i32 1", mask.typed])
