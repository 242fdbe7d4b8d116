"""`kiln/table/families.py`, written from what the families register: `make docs`.

python -m kiln.testing.op_families > kiln/table/families.py
"""

from __future__ import annotations

import ast
import sys
import textwrap
from graphlib import TopologicalSorter
from pathlib import Path

from kiln import ops
from kiln.table import registry

HEAD = '''"""Which names a family of the table registers. Written by `make docs`: do not edit it.

Family -> its functions, methods of tensors, functions of kiln.nn.functional, and ops.
"""

FAMILIES: dict[str, tuple[str, str, str, str]] = {
'''
FOLDER = Path(ops.__file__).parent
TABLES = (registry.FUNCTIONS, registry.METHODS, registry.LAYERS, registry.OPS)


def imports(path: Path) -> set[str]:
    """The modules of the table that a module imports as it is imported."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kiln.ops"):
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return {str(name) for name in found}


def late() -> list[str]:
    """The modules that `import kiln` does not import, those first which others import."""
    modules = {
        ".".join(("kiln.ops", *p.relative_to(FOLDER).with_suffix("").parts)): p for p in FOLDER.rglob("*.py")
    }
    order = TopologicalSorter({name: imports(path) & modules.keys() for name, path in modules.items()})
    return [
        name for name in order.static_order() if name not in sys.modules and not name.endswith("__init__")
    ]


def registered(module: str) -> list[list[str]]:
    """The names that importing a module adds, of each kind."""
    before = [set(table) for table in TABLES]
    registry.load(module.removeprefix("kiln.ops."))
    return [sorted(set(table) - old) for table, old in zip(TABLES, before)]


def text() -> str:
    """The whole file. Called in a process that has imported nothing of the table but what kiln needs."""
    lines = [HEAD]
    for module, kinds in sorted((module, registered(module)) for module in late()):
        if any(kinds):
            lines.append(f'    "{module.removeprefix("kiln.ops.")}": (\n')
            for names in kinds:
                shown = textwrap.wrap(" ".join(names), 96) or [""]
                quoted = [f'"{line}{" " if line is not shown[-1] else ""}"' for line in shown]
                lines.append(textwrap.indent("\n".join(quoted) + ",\n", " " * 8))
            lines.append("    ),\n")
    return "".join([*lines, "}\n"])


if __name__ == "__main__":
    print(text(), end="")
