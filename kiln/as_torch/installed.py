"""`torch` to who reads what is installed (`importlib.metadata`): a name and a version."""

from __future__ import annotations

from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import kiln
from kiln.as_torch.version import __version__


class Installed(Distribution):
    """What `importlib.metadata.distribution("torch")` gives."""

    def read_text(self, filename: str) -> str | None:
        """The metadata's text; None for what else a package may say."""
        return {
            "METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {__version__}\n",
            "top_level.txt": "torch\n",
        }.get(filename)

    def locate_file(self, path: Any) -> Any:
        """Where a file would be: beside kiln's."""
        return Path(kiln.__file__).parent / path
