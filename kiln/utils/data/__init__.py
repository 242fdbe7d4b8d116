"""Data sets, samplers and the loader that turns them into batches, under PyTorch's names.

Dataset    d[i], len(d)           Sampler     an order of indices      DataLoader   batches in that order
"""

from kiln.absent import hint_missing as _hint_missing
from kiln.table.callables import name_all
from kiln.utils.data import dataloader, dataset, distributed, sampler
from kiln.utils.data._utils.collate import default_collate, default_convert
from kiln.utils.data._utils.worker import get_worker_info
from kiln.utils.data.buckets import BucketBatchSampler, pad_collate
from kiln.utils.data.dataloader import DataLoader, _DatasetKind
from kiln.utils.data.dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from kiln.utils.data.distributed import DistributedSampler
from kiln.utils.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = [
    "BatchSampler",
    "BucketBatchSampler",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "_DatasetKind",
    "dataloader",
    "dataset",
    "default_collate",
    "default_convert",
    "distributed",
    "get_worker_info",
    "pad_collate",
    "random_split",
    "sampler",
]

_hint_missing(__name__)
name_all(globals(), "kiln.utils.data")
