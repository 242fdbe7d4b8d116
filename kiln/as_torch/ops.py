"""`torch.ops`: operators of the program's own, `torch.ops.mine.twice`, and kiln's as `torch.ops.aten.add`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, NoReturn

import kiln
from kiln.library import _OPS
from kiln.utils._operators import INSIDE, Packet


class Space:
    """The operators below one name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Any:
        found = _OPS.get(f"{self.name}::{name}")
        if found is None:
            raise AttributeError(
                f"'_OpNamespace' '{self.name}' object has no attribute '{name}': kiln has the operators that "
                "the program registers with torch.library",
                name=name,
                obj=self,
            )
        return found


class Aten(Space):
    """PyTorch's own operators, as far as kiln has functions of their names."""

    def __getattr__(self, name: str) -> Any:
        known = name in _INSIDE or name in INSIDE or name in dir(kiln) or name in dir(kiln.Tensor)
        if not known or name.startswith("__"):
            return super().__getattr__(name)
        vars(self)[name] = found = Packet(name)
        return found


# operators of PyTorch's inside, which libraries compare with
_INSIDE = frozenset(
    "_pin_memory _sparse_addmm _sparse_mm_reduce_impl _to_copy alias index mm slice sparse_mm".split()
)


class _Ops(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        vars(self)[name] = found = Aten(name) if name == "aten" else Space(name)
        return found


def load_library(path: Any) -> NoReturn:
    """OSError: a compiled library of operators is written for PyTorch's own core."""
    raise OSError(f"torch.ops.load_library: {path}: kiln cannot load operators compiled for PyTorch")


sys.modules[__name__].__class__ = _Ops
