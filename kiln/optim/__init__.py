"""Optimizers and learning-rate schedules, under PyTorch's names; see README.md."""

from kiln.absent import hint_missing as _hint_missing
from kiln.optim import lr_scheduler, swa_utils
from kiln.optim._adafactor import Adafactor
from kiln.optim._muon import Muon
from kiln.optim.adadelta import Adadelta
from kiln.optim.adagrad import Adagrad
from kiln.optim.adam import Adam
from kiln.optim.adamax import Adamax
from kiln.optim.adamw import AdamW
from kiln.optim.asgd import ASGD
from kiln.optim.lbfgs import LBFGS
from kiln.optim.nadam import NAdam
from kiln.optim.optimizer import Optimizer
from kiln.optim.radam import RAdam
from kiln.optim.rmsprop import RMSprop
from kiln.optim.rprop import Rprop
from kiln.optim.sgd import SGD
from kiln.table.callables import name_all, name_methods

__all__ = [
    "ASGD", "LBFGS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Muon",
    "NAdam", "Optimizer", "RAdam", "RMSprop", "Rprop", "lr_scheduler", "swa_utils",
]  # fmt: skip

_hint_missing(__name__)
name_all(globals(), "kiln.optim")
name_methods(Optimizer, ("add_param_group",))
name_all(vars(lr_scheduler), "kiln.optim")
