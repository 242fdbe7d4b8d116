"""Data sets, samplers and the loader that turns them into batches, under PyTorch's names.

Dataset    d[i], len(d)           Sampler     an order of indices      DataLoader   batches in that order
"""

from kiln.absent import hint_missing as _hint_missing
from kiln.table.callables import name_all
from kiln.utils.data.collate import default_collate
from kiln.utils.data.dataset import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)
from kiln.utils.data.loader import DataLoader
from kiln.utils.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
)

__all__ = [
    "BatchSampler",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "default_collate",
    "random_split",
]

_hint_missing(__name__)
name_all(globals(), "kiln.utils.data")
