"""Values of elements: what a scalar, or 16 lanes of it, is called in LLVM text."""

from __future__ import annotations

from typing import NamedTuple

LLVM = {
    "i1": "i1", "i8": "i8", "u8": "i8", "i16": "i16", "i32": "i32", "u32": "i32", "i64": "i64", "u64": "i64",
    "f32": "float", "f64": "double",
}  # fmt: skip


class Value(NamedTuple):
    """An SSA value or a literal: `text`, of scalar type `type`, `width` lanes (1: not a vector)."""

    text: str
    type: str
    width: int = 1
    constant: bool = False

    @property
    def llvm(self) -> str:
        """The LLVM type, as written before the value."""
        return llvm_type(self.type, self.width)

    @property
    def typed(self) -> str:
        """The value after its type, as calls and stores want it."""
        return f"{llvm_type(self.type, self.width)} {self.text}"


def llvm_type(type: str, width: int) -> str:
    """The LLVM spelling of `width` lanes of a scalar type."""
    return LLVM[type] if width == 1 else f"<{width} x {LLVM[type]}>"
