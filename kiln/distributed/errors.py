"""What goes wrong between processes, under PyTorch's names."""

from __future__ import annotations


class DistError(RuntimeError):
    """What is wrong between the processes of a program."""


class DistBackendError(DistError):
    """A communication failed: a rank is gone, did not come in time, or does something else."""


class DistNetworkError(DistError):
    """A connection failed."""


class DistStoreError(DistError):
    """A key of a store was not there in time."""


for _error in (DistError, DistBackendError, DistNetworkError, DistStoreError):
    _error.__module__ = "kiln.distributed"
