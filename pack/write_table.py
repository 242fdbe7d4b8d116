"""The step of a build that writes what is kept of the table: types for checkers, and the index of names.

    python pack/write_table.py CORE PACKAGE       the core that was just linked; where the package's files go

The sources beside this file are imported with that core, wherever it lies: nothing is built twice. What
functions take is known when the table is imported, so neither NumPy nor a kernel is needed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

TREE = Path(__file__).parent.parent
PREFIX = "kiln.ops."


class Watch:
    """Which names each module of the table registers while it is imported, those that it imports apart."""

    def __init__(self) -> None:
        self.names: dict[str, list[set[str]]] = {}
        self.known: list[set[str]] = [set(), set(), set(), set()]
        self.running: list[str] = []  # the innermost last
        self.execute = SourceFileLoader.exec_module

    def note(self) -> None:
        """What is new is the innermost module's."""
        registry = sys.modules.get("kiln.table.registry")
        if not self.running or not hasattr(registry, "METHODS"):
            return
        tables = (registry.FUNCTIONS, registry.METHODS, registry.LAYERS, registry.OPS)
        new = [set(table) - known for table, known in zip(tables, self.known)]
        if any(new):
            before = self.names.get(self.running[-1], [set()] * 4)
            self.names[self.running[-1]] = [old | names for old, names in zip(before, new)]
            self.known = [set(table) for table in tables]

    def exec_module(self, loader: SourceFileLoader, module: ModuleType) -> None:
        """In the place of the loader's own."""
        self.note()
        if not module.__name__.startswith(PREFIX):
            return self.execute(loader, module)
        self.running.append(module.__name__.removeprefix(PREFIX))
        self.execute(loader, module)
        self.note()
        self.running.pop()


def load_core(path: str) -> None:
    """Makes a core the one that kiln has."""
    spec = spec_from_file_location("kiln._core", path)
    assert spec is not None and spec.loader is not None, f"{path} is no extension module"
    sys.modules["kiln._core"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["kiln._core"])


def main(core: str, package: str) -> None:
    """Imports kiln around the core, everything of the table once, and writes."""
    sys.path.insert(0, str(TREE))
    load_core(core)
    watch = Watch()
    SourceFileLoader.exec_module = lambda loader, module: watch.exec_module(loader, module)
    import_module("kiln.table.registry").everything()
    import_module("kiln.testing.type_stubs").main(Path(package) / "_typed")
    index = import_module("kiln.table.index")
    file = Path(package) / "table" / "index.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    # of modules that stay where they are edited it says for which of their states it is
    in_place = file.resolve() == Path(index.FILE).resolve()
    file.write_text(index.text(watch.names, index.state() if in_place else ""))


if __name__ == "__main__":
    main(*sys.argv[1:])
