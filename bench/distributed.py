"""Programs of several processes: sums over ranks beside PyTorch's gloo, and a training step of data parallel
ranks beside one rank.

    python bench/distributed.py [ranks]

Each rank is a process of one thread. Rounds of kiln and of PyTorch take turns; a line has medians and
minima in milliseconds, of the slowest rank. Where there are fewer processors than ranks, the figures say how
the machine shares them.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from kiln.testing.backend import peer

ROUNDS = 5
SIZES = {"4 bytes": 1, "40 KB": 10_000, "4 MB": 1_000_000, "40 MB": 10_000_000}
BATCH = 128  # images in all


def group(which: str, rank: int, size: int, path: str) -> tuple[Any, Any]:
    """The framework and its `distributed`, with a group of all ranks."""
    if which == "kiln":
        import kiln as framework
        import kiln.distributed as dist
    else:
        import torch as framework
        import torch.distributed as dist
    framework.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(path, size), rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    return framework, dist


def sums(which: str, rank: int, size: int, path: str, answer: Any) -> None:
    """Times of all_reduce by length."""
    framework, dist = group(which, rank, size, path)
    found = {}
    for name, n in SIZES.items():
        x = framework.ones(n)
        times = []
        for _ in range(20 if n > 1e5 else 200):
            x.fill_(1.0)
            dist.barrier()
            begun = time.perf_counter()
            dist.all_reduce(x)
            times.append(time.perf_counter() - begun)
        assert x.sum().item() == n * size
        found[name] = times
    answer.send(found)
    dist.destroy_process_group()


def net(framework: Any) -> Any:
    """A convolution net for images of 28 x 28."""
    nn = framework.nn
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def steps(which: str, rank: int, size: int, path: str, answer: Any) -> None:
    """Times of a step: forward, backward with sums of gradients over ranks, SGD."""
    framework, dist = group(which, rank, size, path)
    framework.manual_seed(0)
    model = net(framework)
    if size > 1:
        model = framework.nn.parallel.DistributedDataParallel(model)
    optimizer = framework.optim.SGD(model.parameters(), lr=0.01)
    x = framework.randn(BATCH // size, 1, 28, 28)
    y = framework.randint(0, 10, (BATCH // size,))
    times = []
    for _ in range(12):
        dist.barrier()
        begun = time.perf_counter()
        optimizer.zero_grad()
        framework.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        times.append(time.perf_counter() - begun)
    answer.send({"step": times[2:]})
    dist.destroy_process_group()


def run(work: Any, which: str, size: int) -> dict[str, list[float]]:
    """What ranks measured: of each round, the slowest rank's time."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "store")
        started = []
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=work, args=(which, rank, size, path, theirs))
            process.start()
            theirs.close()
            started.append((process, ours))
        answers = [answer.recv() for _, answer in started]
        for process, _ in started:
            process.join()
    return {name: [max(row) for row in zip(*(found[name] for found in answers))] for name in answers[0]}


def shown(times: list[float]) -> str:
    return f"{statistics.median(times) * 1e3:9.3f} {min(times) * 1e3:9.3f}"


def main() -> None:
    """Prints the tables."""
    os.environ["OMP_NUM_THREADS"] = "1"
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    libraries = ["kiln", *(["torch"] if peer() is not None else [])]
    found: dict[str, dict[str, list[float]]] = {name: {} for name in libraries}
    for _ in range(ROUNDS):
        for name in libraries:
            for length, times in run(sums, name, size).items():
                found[name].setdefault(length, []).extend(times)
            for ranks in (1, size):
                key = f"step of {BATCH} images, {ranks} rank{'s' * (ranks > 1)}"
                found[name].setdefault(key, []).extend(run(steps, name, ranks)["step"])
    print(f"{'milliseconds':32}" + "".join(f"{name:>10}{'minimum':>10}" for name in libraries) + "   ratios")
    for key in found["kiln"]:
        label = f"all_reduce of {key}, {size} ranks" if key in SIZES else key
        cells = [found[name][key] for name in libraries]
        ratios = ""
        if len(cells) > 1:
            ratios = "".join(f" {f(cells[1]) / f(cells[0]):6.2f}x" for f in (statistics.median, min))
        print(f"{label:32}" + " ".join(shown(times) for times in cells) + "  " + ratios)
    for name in libraries:
        one, many = (min(times) for key, times in found[name].items() if key.startswith("step"))
        print(f"{name}: {size} ranks do a step {one / many:.2f}x as fast as one")


if __name__ == "__main__":
    main()
