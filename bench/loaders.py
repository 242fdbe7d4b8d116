"""Loaders with two workers over 10 000 images: an epoch, and what it takes until its first batch is there."""

from __future__ import annotations

import statistics
import time
from typing import Any, NamedTuple

import numpy as np

COUNT, BATCH, ROUNDS = 10_000, 64, 5


class Case(NamedTuple):
    """A data set: the shape of its uint8 images, and whether workers stay for the next epoch."""

    name: str
    shape: tuple[int, ...]
    persistent: bool


CASES = (
    Case("loader 3x32x32, 2 workers", (3, 32, 32), False),
    Case("loader 1x28x28, 2 workers", (1, 28, 28), False),
    Case("loader 3x32x32, workers stay", (3, 32, 32), True),
)


def loader(framework: Any, case: Case, workers: int) -> Any:
    """Batches of images as floats, every other one mirrored, with labels."""
    pixels = np.random.default_rng(0).integers(0, 256, (COUNT, *case.shape), dtype=np.uint8)
    data = framework.utils.data

    class Images(data.Dataset):  # type: ignore[name-defined,misc]
        """One image and its label."""

        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, index: int) -> Any:
            image = framework.from_numpy(pixels[index]).float().div(255)
            return image.flip(2) if index & 1 else image, index % 10

    stay = case.persistent and workers > 0
    return data.DataLoader(Images(), BATCH, shuffle=True, num_workers=workers, persistent_workers=stay)


def epoch(batches: Any) -> tuple[float, float]:
    """Seconds of an epoch, and until its first batch."""
    started, first, count = time.perf_counter(), 0.0, 0
    for images, _ in batches:
        first = first or time.perf_counter() - started
        count += len(images)
    assert count == COUNT
    return time.perf_counter() - started, first


def compared(case: Case, frameworks: list[Any], workers: int = 2) -> list[tuple[float, float]]:
    """Medians of both times for each framework, epochs in turn."""
    loaders = [loader(framework, case, workers) for framework in frameworks]
    for batches in loaders:
        epoch(batches)
    times: list[list[tuple[float, float]]] = [[] for _ in loaders]
    for turn in range(ROUNDS):
        for k in range(len(loaders))[:: -1 if turn % 2 else 1]:
            times[k].append(epoch(loaders[k]))
    return [tuple(statistics.median(t[which] for t in of) for which in (0, 1)) for of in times]  # type: ignore[misc]
