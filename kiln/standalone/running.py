"""A native library called from Python by ctypes, to compare what it computes with its program.

Nothing of it is needed by those who call a library: its header says all.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from kiln.graph.interpret import memory_dtype
from kiln.standalone.constants import memory_of
from kiln.standalone.driver import Driver


class Loaded:
    """A library in this process: called with tensors, it gives arrays of NumPy (of bfloat16 its bits)."""

    def __init__(self, path: str, driver: Driver) -> None:
        self.found, name = driver.found, driver.name
        self.results = [(memory_dtype(v.dtype), v.ndim) for v in driver.graph.outputs[: driver.results]]
        self.slots = [s.slot for s in driver.stated]
        self.beside = np.fromfile(os.path.join(os.path.dirname(path), f"{name}.safetensors"), np.uint8) if (
            driver.beside
        ) else None  # fmt: skip
        library = ctypes.CDLL(os.path.abspath(path))
        self._run, self._workspace, self._shape, self._message = (
            getattr(library, f"{name}_{what}") for what in ("run", "workspace", "shape", "message")
        )
        self._workspace.restype = ctypes.c_int64
        self._message.restype = ctypes.c_char_p

    def __call__(
        self, inputs: Sequence[Any], random: tuple[int, int] | None = None, threads: int = 1
    ) -> list[Any]:
        """The outputs of a run on the program's inputs; `random`: the seed and the position of random
        numbers. RuntimeError with the library's words where it gives a code.
        """
        written = sorted(which for kind, which in self.found.mutated if kind == "state")
        tensors = (*inputs, *(self.found.state[k].tensor for k in written))
        return self.of_arrays([memory_of(x.detach()) for x in tensors], random, threads)

    def of_arrays(
        self, arrays: list[Any], random: tuple[int, int] | None = None, threads: int = 1
    ) -> list[Any]:
        """The same of arrays, of the inputs and of the program's tensors that it writes."""
        lengths = [n for x in arrays for n in x.shape]
        stated = np.array([*(lengths[slot] for slot in self.slots), *(random or ()), 0], np.int64)
        return self.run(arrays, stated, threads)

    def run(self, arrays: list[Any], stated: Any, threads: int = 1) -> list[Any]:
        """The outputs, of arrays and the integers that are stated."""
        if self.beside is not None:
            arrays = [*arrays, self.beside]
        at = _address(stated)
        needed = self._workspace(at, threads)
        if needed < 0:
            raise RuntimeError(self._message(-needed).decode())
        outputs = []
        for k, (dtype, rank) in enumerate(self.results):
            shape = np.zeros(rank, np.int64)
            self._expect(self._shape(k, at, _address(shape)))
            outputs.append(np.empty(tuple(shape), dtype))
        workspace = np.full(needed, 255, np.uint8)
        several = _Threads(threads) if threads > 1 else None
        pool = None if several is None else ctypes.byref(several)
        self._expect(self._run(_addresses(arrays), at, _addresses(outputs), _address(workspace), pool))
        return outputs

    def _expect(self, code: int) -> None:
        if code:
            raise RuntimeError(self._message(code).decode())


_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)
_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _BODY, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class _Threads(ctypes.Structure):
    """Threads of a caller: here one, which plays all of them in turn, the last range first."""

    _fields_ = [("count", ctypes.c_int32), ("context", ctypes.c_void_p), ("run", _RUN)]

    def __init__(self, count: int) -> None:
        def run(context: Any, body: Any, task: Any, units: int, grain: int) -> None:
            begins = range(0, units, grain)
            for n, begin in enumerate(reversed(begins)):
                body(task, begin, min(begin + grain, units), n % count)

        super().__init__(count, None, _RUN(run))


def _address(x: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.ctypes.data)


def _addresses(arrays: Sequence[Any]) -> Any:
    return (ctypes.c_void_p * max(len(arrays), 1))(*(x.ctypes.data for x in arrays))
