"""Mutants that mean the same as the code they come from.

A pattern (fnmatch) of "file function: code -> mutant", the file below kiln/ops, and why nothing can tell them
apart.
"""

from __future__ import annotations

SAME: dict[str, str] = {}
