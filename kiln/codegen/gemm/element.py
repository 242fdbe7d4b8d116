"""Elements of a product: how factors of a dtype are multiplied and summed, and in which order."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from kiln.codegen.ir.memory import MEMORY, compute_type
from kiln.codegen.ir.routine import Routine
from kiln.codegen.ir.value import LLVM
from kiln.codegen.target import Target
from kiln.scalars.scalar import FLOATS, WIDTH


class Element(NamedTuple):
    """The factors' dtype, the scalar type its elements have, and the one their products are summed in."""

    dtype: str
    compute: str
    summed: str  # "f32" "f64" "i32" "i64"

    @property
    def total(self) -> str:
        """The dtype of the sums."""
        return {"f32": "float32", "f64": "float64", "i32": "int32", "i64": "int64"}[self.summed]

    @property
    def stored_bytes(self) -> int:
        """Bytes of an element in memory."""
        return MEMORY[self.dtype][1]

    @property
    def bytes(self) -> int:
        """Bytes of a summed element."""
        return WIDTH[self.summed] // 8

    @property
    def widened(self) -> bool:
        """Whether elements change on their way from memory into a product."""
        return self.stored_bytes != self.bytes

    @property
    def floating(self) -> bool:
        """Whether products are summed by FMA (else by wrapping integers)."""
        return self.summed in FLOATS

    @property
    def add(self) -> str:
        """The instruction that adds two sums."""
        return "fadd" if self.floating else "add"

    @property
    def nothing(self) -> str:
        """What adds nothing to any sum, -0.0 among them: a typed constant."""
        return f"{LLVM[self.summed]} {'-0.0' if self.floating else '0'}"

    def lanes(self, target: Target) -> int:
        """Summed elements per vector register."""
        return target.vector_bits // 8 // self.bytes

    def panel(self, target: Target) -> int:
        """NR of products by vectors: the columns of a register tile and of a packed panel."""
        return target.fma.vectors * self.lanes(target)


def element_of(dtype: str) -> Element:
    """How factors of `dtype` are multiplied: 16-bit floats in f32, narrow integers modulo 2^32."""
    compute = compute_type(dtype)
    assert compute != "i1", "a matrix product of bool has no arithmetic"
    summed = compute if compute in FLOATS else "i64" if WIDTH[compute] == 64 else "i32"
    return Element(dtype, compute, summed)


@lru_cache
def _multiplication(element: Element, lanes: int) -> tuple[str, str]:
    """The vectors that are multiplied, and the intrinsic, if there is one."""
    name = f"llvm.fma.v{lanes}f{element.bytes * 8}" if element.floating else ""
    return f"<{lanes} x {LLVM[element.summed]}>", name


def multiply_add(code: Routine, element: Element, lanes: int, x: str, y: str, z: str) -> str:
    """z + x * y of vectors: for floats rounded once where the machine does, wrapping for integers."""
    vector, name = _multiplication(element, lanes)
    if name and code.target.relaxed:
        return code.call(
            name.replace("fma", "fmuladd"), vector, [f"{vector} {x}", f"{vector} {y}", f"{vector} {z}"]
        )
    if name and not code.target.fuses:
        return code.op(f"fadd {vector} {z}, {code.op(f'fmul {vector} {x}, {y}')}")
    if name:
        return code.call(name, vector, [f"{vector} {x}", f"{vector} {y}", f"{vector} {z}"])
    return code.op(f"add {vector} {z}, {code.op(f'mul {vector} {x}, {y}')}")
