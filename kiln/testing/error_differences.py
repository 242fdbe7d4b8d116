"""What errors and warnings differ in on purpose, and why; the scan reports what it no longer meets."""

from __future__ import annotations

# (path, finding, why): regular expressions; the path from its beginning, the finding anywhere.
UNNAMED: list[tuple[str, str, str]] = []
KNOWN: list[tuple[str, str, str]] = []
