"""Learning-rate schedules: numbers written into an optimizer's groups, once per epoch or per step.

| file | schedules | | --- | --- | | `base.py` | what all share: epochs, the rates written last, states,
warnings | | `factors.py` | rates times a factor of the epoch: Lambda, Multiplicative, Step, MultiStep,
Constant, Linear, ... | | `cosine.py` | half a cosine down, again and again or with restarts | | `cycles.py` |
rates (and momenta) up and down: Cyclic, OneCycle | | `plateau.py` | down when a measure stops getting better
| | `combined.py` | one after the other, and several at once |
"""

from kiln.absent import hint_missing as _hint_missing
from kiln.optim.lr_scheduler.base import LRScheduler
from kiln.optim.lr_scheduler.combined import ChainedScheduler, SequentialLR
from kiln.optim.lr_scheduler.cosine import CosineAnnealingLR, CosineAnnealingWarmRestarts
from kiln.optim.lr_scheduler.cycles import CyclicLR, OneCycleLR
from kiln.optim.lr_scheduler.factors import (
    ConstantLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)
from kiln.optim.lr_scheduler.plateau import ReduceLROnPlateau
from kiln.optim.optimizer import Optimizer

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "Optimizer",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]

_LRScheduler = LRScheduler  # its old name, which programs still derive from

_hint_missing(__name__)
