"""PyTorch's place of the steps that are functions of lists: `optim._functional.adam` and its like."""

from kiln.absent import hint_missing as _hint_missing
from kiln.optim.adadelta import adadelta as adadelta
from kiln.optim.adagrad import adagrad as adagrad
from kiln.optim.adam import adam as adam
from kiln.optim.adamax import adamax as adamax
from kiln.optim.adamw import adamw as adamw
from kiln.optim.asgd import asgd as asgd
from kiln.optim.nadam import nadam as nadam
from kiln.optim.radam import radam as radam
from kiln.optim.rmsprop import rmsprop as rmsprop
from kiln.optim.rprop import rprop as rprop
from kiln.optim.sgd import sgd as sgd

_hint_missing(__name__)
