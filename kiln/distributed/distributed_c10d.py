"""`torch.distributed.distributed_c10d`: where PyTorch keeps the functions of `torch.distributed`."""

from kiln.absent import hint_missing as _hint_missing
from kiln.distributed import *  # noqa: F403
from kiln.distributed.world import world as _get_default_group  # noqa: F401

_hint_missing(__name__)
