"""`torch.distributed.algorithms`: how gradients are put together."""

from kiln.absent import hint_missing as _hint_missing

_hint_missing(__name__)
