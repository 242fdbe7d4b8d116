"""Curves, histograms, pictures and texts for TensorBoard, by the writer of the package tensorboard.

ModuleNotFoundError where that is not installed: `pip install tensorboard`.
"""

from __future__ import annotations

from kiln.absent import hint_missing as _hint_missing
from kiln.utils.tensorboard.writer import SummaryWriter

__all__ = ["SummaryWriter"]

_hint_missing(__name__)
