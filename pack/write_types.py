"""The step of a build that writes the types of the table for type checkers: kiln/_typed.

    python pack/write_types.py CORE FOLDER       the core that was just linked; where the files go

The sources beside this file are imported with that core, wherever it lies: nothing is built twice. What
functions take is known when the table is imported, so neither NumPy nor a kernel is needed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def main(core: str, folder: str) -> None:
    """Imports kiln around the core and writes."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    spec = spec_from_file_location("kiln._core", core)
    assert spec is not None and spec.loader is not None, f"{core} is no extension module"
    sys.modules["kiln._core"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["kiln._core"])
    import_module("kiln.testing.type_stubs").main(Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
