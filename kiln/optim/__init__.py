"""Optimizers and learning-rate schedules, under PyTorch's names; see README.md."""

from kiln.absent import hint_missing as _hint_missing
from kiln.optim import lr_scheduler
from kiln.optim.adam import Adam, AdamW
from kiln.optim.optimizer import Optimizer
from kiln.optim.sgd import SGD
from kiln.table.callables import name_all

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "lr_scheduler"]

_hint_missing(__name__)
name_all(globals(), "kiln.optim")
name_all(vars(lr_scheduler), "kiln.optim")
