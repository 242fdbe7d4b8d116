"""Models in several processes; on several devices as far as one goes: `DataParallel` runs a module as it is.

Paths as PyTorch's: `nn.parallel.data_parallel`, `nn.parallel.distributed`.
"""

import sys

from kiln.absent import hint_missing as _hint_missing
from kiln.nn.parallel import distributed_data_parallel as distributed
from kiln.nn.parallel import on_one_device as on_one_device
from kiln.nn.parallel import scatter_gather as scatter_gather
from kiln.nn.parallel.distributed_data_parallel import DistributedDataParallel
from kiln.nn.parallel.on_one_device import DataParallel, data_parallel, parallel_apply
from kiln.table.callables import name_all

__all__ = ["DataParallel", "DistributedDataParallel", "data_parallel", "parallel_apply"]

# a path that is a function's name as well is found by import statements alone, as in PyTorch
for _path in ("data_parallel", "parallel_apply"):
    sys.modules[f"{__name__}.{_path}"] = on_one_device
sys.modules[f"{__name__}.distributed"] = distributed

name_all(globals(), "kiln.nn")
_hint_missing(__name__)
