"""A native library called from Python by ctypes, to compare what it computes with the program.

Nothing of it is needed by those who call a library: its header says all.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

import numpy as np


class Loaded:
    """A library in this process. Calling it takes arrays and sizes, and gives arrays."""

    def __init__(self, path: str, name: str, results: Sequence[tuple[str, int]]) -> None:
        """`results`: dtype (of NumPy) and rank of every output."""
        self.results = list(results)
        library = ctypes.CDLL(os.path.abspath(path))
        self._run, self._workspace, self._shape, self._message = (
            getattr(library, f"{name}_{what}") for what in ("run", "workspace", "shape", "message")
        )
        self._workspace.restype = ctypes.c_int64
        self._message.restype = ctypes.c_char_p

    def __call__(self, inputs: Sequence[Any], sizes: Sequence[int] = ()) -> list[Any]:
        """The outputs. RuntimeError with the library's words where it gives a code."""
        stated = np.array([*sizes, 0], np.int64)
        at = _address(stated)
        needed = self._workspace(at, 1)
        if needed < 0:
            raise RuntimeError(self._message(-needed).decode())
        outputs = []
        for k, (dtype, rank) in enumerate(self.results):
            shape = np.zeros(rank, np.int64)
            self._expect(self._shape(k, at, _address(shape)))
            outputs.append(np.empty(tuple(shape), dtype))
        workspace = np.empty(needed, np.uint8)
        arrays = [np.ascontiguousarray(x) for x in inputs]
        self._expect(self._run(_addresses(arrays), at, _addresses(outputs), _address(workspace), None))
        return outputs

    def _expect(self, code: int) -> None:
        if code:
            raise RuntimeError(self._message(code).decode())


def _address(x: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.ctypes.data)


def _addresses(arrays: Sequence[Any]) -> Any:
    return (ctypes.c_void_p * max(len(arrays), 1))(*(x.ctypes.data for x in arrays))
