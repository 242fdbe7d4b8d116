"""Which names of PyTorch a program asks for that kiln has not: while it runs, or read in its text.

    train.py:12: torch.sparse: kiln has no sparse tensors

Only names that a program needs: not what it asks by `hasattr` or `getattr`, nor in a `try` that goes on
without.
"""

from __future__ import annotations

import os
import sys
from opcode import opname
from types import FrameType
from typing import NamedTuple

from kiln import absent
from kiln.as_torch.paths import PATHS


class Missing(NamedTuple):
    """A name, the place that asks for it, and what to do."""

    file: str
    line: int
    name: str
    hint: str

    def __str__(self) -> str:
        return f"{_short(self.file)}:{self.line}: {self.name}{self.hint}"


def _short(file: str) -> str:
    """A path from here, where that is shorter."""
    try:
        return min(os.path.relpath(file), file, key=len)
    except ValueError:  # on another drive
        return file


def _pytorchs(name: str) -> str:
    """The name as PyTorch has it: `torch.nn.X` of `kiln.nn.X`."""
    for path, module in sorted(PATHS.items(), key=lambda item: len(item[0])):
        if module != "kiln" and name.startswith(f"{module}."):
            return f"torch.{path}.{name.removeprefix(f'{module}.')}"
    return f"torch.{name.removeprefix('kiln.')}" if name.startswith("kiln.") else name


class Listener:
    """Notes names that kiln has not as they are asked for; `needed` are those the program did not try."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self.noted: dict[tuple[str, str, int], str] = {}
        absent.listeners.append(self.note)

    def note(self, name: str, hint: str, frame: FrameType) -> None:
        """Keeps a name that an attribute access or an import asked for, and where."""
        name = _pytorchs(name)
        if name.endswith("__"):  # Python's own: an import asks for `__path__` and, with a star, `__all__`
            return
        if opname[frame.f_code.co_code[frame.f_lasti]].startswith(("LOAD_ATTR", "LOAD_METHOD", "IMPORT_")):
            self.noted.setdefault((name, frame.f_code.co_filename, frame.f_lineno), hint)

    def needed(self) -> list[Missing]:
        """Each name once for each line that asked."""
        if not self.noted:
            return []
        from kiln.as_torch.reading import is_tried

        found = [Missing(file, line, name, hint) for (name, file, line), hint in self.noted.items()]
        return [m for m in found if not is_tried(m.file, m.line)]

    def report(self) -> None:
        """Says on stderr what was needed; a forked child does not say it again."""
        if os.getpid() != self._process:
            return
        needed = self.needed()
        if needed and sys.stderr is not None:
            print("kiln: names of PyTorch that were asked for and are not there", file=sys.stderr)
            for missing in needed:
                print(f"  {missing}", file=sys.stderr)
