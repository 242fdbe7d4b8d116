"""kiln's version, and what PyTorch's `version` says of a build: none of its accelerators is in this one."""

from __future__ import annotations

__version__ = "0.1.0"
debug = False
cuda: str | None = None
hip: str | None = None
rocm: str | None = None
xpu: str | None = None
git_version = "Unknown"
