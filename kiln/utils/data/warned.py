"""Warnings that name the line of the program they are about."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

from kiln.errors import is_own


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warns about the nearest line that is not kiln's, however many calls of kiln's are in between."""
    level = 2
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_own(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level if frame is not None else 2)
