"""Processes that multiprocessing starts afresh have kiln under PyTorch's name too.

What a spawned process is told first (`spawn.get_preparation_data`) holds something that imports kiln.as_torch
when it is unpickled, before the program is imported there. The server of forks loads it beforehand. Both are
arranged when multiprocessing is imported, which most programs never do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class _Reached:
    """Unpickled in a new process: `import torch` gives kiln there."""

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, ("kiln.as_torch",)


def _spawn(module: ModuleType) -> None:
    told: Callable[[str], dict[str, Any]] = module.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        return {"kiln": _Reached(), **told(name)}

    vars(module)["get_preparation_data"] = get_preparation_data


def _forkserver(module: ModuleType) -> None:
    module.set_forkserver_preload(["kiln.as_torch", "__main__"])


TOLD = {"multiprocessing.spawn": _spawn, "multiprocessing.forkserver": _forkserver}


def reach() -> None:
    """Tells those of multiprocessing's modules that are there already."""
    for name, tell in TOLD.items():
        if name in sys.modules:
            tell(sys.modules[name])


def found(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """The spec of one of TOLD as Python finds it; the module is told when it has been run."""
    spec = PathFinder.find_spec(name, path)
    loader: Any = None if spec is None else spec.loader
    if loader is not None:
        run: Callable[[ModuleType], None] = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            TOLD[name](module)

        loader.exec_module = exec_module
    return spec
