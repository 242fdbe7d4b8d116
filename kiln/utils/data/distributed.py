"""The part of a data set that is one process's of several."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from kiln.nn.ranks import Link
from kiln.utils.data.sampler import Sampler, own_generator, permutation


class DistributedSampler(Sampler[int]):
    """Every `num_replicas`-th index, from the `rank`-th on, of an order that is the same in every process.

    Where the samples cannot be dealt out evenly, the first ones come again at the end, or with `drop_last`
    the last ones are left out. `shuffle`: the order is a random one, of `seed` and the epoch, which
    `set_epoch` sets before each. `num_replicas` and `rank` are those of the program's group of processes
    unless given. ValueError where there is none, and for a rank that is none.

    >>> import kiln
    >>> list(kiln.utils.data.DistributedSampler(range(5), num_replicas=2, rank=1, shuffle=False))
    [1, 3, 0]
    """

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas is None or rank is None:
            link = Link(None, "DistributedSampler: or give num_replicas and rank")
            num_replicas = link.size if num_replicas is None else num_replicas
            rank = link.rank if rank is None else rank
        if not 0 <= rank < num_replicas:
            raise ValueError(f"Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]")
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.epoch = 0
        self.drop_last = drop_last
        self.num_samples = len(dataset) // num_replicas if drop_last else -(-len(dataset) // num_replicas)
        self.total_size = self.num_samples * num_replicas
        self.shuffle = shuffle
        self.seed = seed

    def __iter__(self) -> Iterator[int]:
        size = len(self.dataset)
        order = (
            permutation(size, own_generator(self.seed + self.epoch)) if self.shuffle else list(range(size))
        )
        if size and self.total_size > size:
            order *= math.ceil(self.total_size / size)
        return iter(order[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Which epoch's order the next iteration has: without it every epoch has the same."""
        self.epoch = epoch
