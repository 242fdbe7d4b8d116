"""Learn to read handwritten digits twice, eagerly and compiled, and compare every bit.

    python examples/digits.py [--epochs 40] [--folder .]

Prints the accuracy on digits the model has not seen, what a training step costs in both ways of running,
and where the time went; writes digits.png (both loss curves) and digits.safetensors (the weights).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import kiln
from kiln import nn
from kiln.utils.data import DataLoader, Subset, TensorDataset, random_split

SEED, HELD_OUT, BATCH, NOISE = 0, 360, 64, 0.2
AT_LEAST = 0.95  # the result: the share of digits it never saw that are read correctly


class Run(NamedTuple):
    """What one training left behind."""

    model: nn.Module
    losses: bytes  # every step's loss, as the float32 it is
    curve: list[float]  # the same losses as numbers
    microseconds: list[float]  # of every step


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--folder", type=Path, default=Path("."))
    options = parser.parse_args()
    training, test = split()
    print(f"{len(training)} digits to learn from, {len(test)} to be tested on")

    eager = train("eager", training, options.epochs, lambda step: step)
    right = accuracy(eager.model, test)
    print(f"accuracy on unseen digits: {100 * right:.2f} %")

    compiled = train("compiled", training, options.epochs, kiln.compile)
    compare(eager, compiled)
    plot(eager, compiled, options.folder / "digits.png")

    weights = options.folder / "digits.safetensors"
    kiln.save(eager.model.state_dict(), weights)
    reloaded = network()
    reloaded.load_state_dict(kiln.load(weights))
    again = accuracy(reloaded, test)
    print(
        f"weights saved to {weights} ({weights.stat().st_size} bytes), reloaded: accuracy {100 * again:.2f} %"
    )
    if again != right:
        sys.exit("the reloaded model differs from the saved one")

    print("\nwhere the time of one eager epoch goes:")
    with kiln.profile() as profile:
        train("profiled", training, 1, lambda step: step)
    print(profile)
    print(f"result: accuracy {right:.4f}")


def split() -> tuple[Subset[Any], Subset[Any]]:
    """The digits as (64,) floats in [0, 1] with labels: those to learn from, those to be tested on."""
    images, labels = kiln.datasets.load_digits()
    digits = TensorDataset(images.reshape(-1, 64).to(kiln.float32) / 16, labels)
    kiln.manual_seed(SEED)
    training, test = random_split(digits, [len(digits) - HELD_OUT, HELD_OUT])
    return training, test


def network() -> nn.Module:
    """(N, 64) pixels -> (N, 10) scores."""
    first, second, last = nn.Linear(64, 256), nn.Linear(256, 128), nn.Linear(128, 10)
    return nn.Sequential(first, nn.ReLU(), nn.Dropout(0.4), second, nn.ReLU(), last)


def train(name: str, training: Subset[Any], epochs: int, prepare: Callable[[Any], Any]) -> Run:
    """Train a new network from the same seed; `prepare` may compile the step.

    Noise on the pixels and dropout keep the network from learning its few digits by heart: random numbers
    are part of the step, and the same in both ways of running.
    """
    kiln.manual_seed(SEED)
    model = network()
    optimizer = kiln.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = kiln.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    loader = DataLoader(training, batch_size=BATCH, shuffle=True)

    def step(x: kiln.Tensor, y: kiln.Tensor) -> kiln.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x + NOISE * kiln.randn_like(x)), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run, losses, curve, microseconds = prepare(step), [], [], []
    for count, (x, y) in enumerate(progress(name, loader, epochs), 1):
        start = time.perf_counter()
        loss = run(x, y)
        curve.append(loss.item())
        microseconds.append(1e6 * (time.perf_counter() - start))
        losses.append(raw(loss))
        if count % len(loader) == 0:
            schedule.step()
    return Run(model, b"".join(losses), curve, microseconds)


def raw(tensor: kiln.Tensor) -> bytes:
    """The bytes of a tensor."""
    return memoryview(tensor.detach().contiguous()).tobytes()


@kiln.no_grad()
def accuracy(model: nn.Module, test: Subset[Any]) -> float:
    """The share of digits whose highest score is the right one; leaves the model in evaluation mode."""
    model.eval()
    ((x, y),) = DataLoader(test, batch_size=len(test))
    right: float = (model(x).argmax(1) == y).to(kiln.float32).mean().item()
    return right


def compare(eager: Run, compiled: Run) -> None:
    """Show that both runs gave the same bits, and what their steps cost."""
    states = eager.model.state_dict(), compiled.model.state_dict()
    differing = [name for name in states[0] if raw(states[0][name]) != raw(states[1][name])]
    same_losses = eager.losses == compiled.losses
    count = sum(p.numel() for p in eager.model.parameters())
    verdict = "identical" if same_losses and not differing else "DIFFERENT"
    print(f"{len(eager.curve)} losses and {count} weights, compared byte by byte: {verdict}")
    costs = [statistics.median(run.microseconds) for run in (eager, compiled)]
    first = f"the first compiled step {compiled.microseconds[0] / 1e3:.1f} ms"
    print(f"a training step: eager {costs[0]:.0f} us, compiled {costs[1]:.0f} us (medians); {first}")
    if verdict != "identical":
        sys.exit(f"losses the same: {same_losses}; weights that differ: {differing or 'none'}")


def plot(eager: Run, compiled: Run, path: Path) -> None:
    """Both loss curves, the compiled one dashed above the eager one it must cover."""
    try:
        import matplotlib
    except ImportError:
        print(f"no {path.name}: matplotlib is not installed (pip install matplotlib)")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(eager.curve, color="tab:orange", linewidth=4, alpha=0.5, label="eager")
    axes.plot(compiled.curve, color="black", linewidth=1, linestyle="--", label="compiled")
    axes.set(title="Learning to read digits", xlabel="step", ylabel="cross entropy", yscale="log")
    axes.legend()
    figure.savefig(path, dpi=75)
    pyplot.close(figure)
    print(f"loss curves: {path}")


def progress(name: str, loader: DataLoader[Any], epochs: int) -> Iterator[Any]:
    """The batches of all epochs; a terminal shows a bar, tqdm's where it is installed, else our own."""
    total = epochs * len(loader)
    batches = (batch for _ in range(epochs) for batch in loader)
    if not sys.stderr.isatty():
        yield from batches
        return
    try:
        from tqdm import tqdm
    except ImportError:
        yield from own_bar(name, batches, total)
    else:
        yield from tqdm(batches, desc=f"{name:8}", total=total, unit="step", ncols=80, mininterval=0.2)


def own_bar(name: str, batches: Iterable[Any], total: int, width: int = 40) -> Iterator[Any]:
    """A bar on standard error, redrawn as it grows."""
    drawn = -1
    for done, batch in enumerate(batches, 1):
        yield batch
        filled = done * width // total
        if filled != drawn:
            drawn = filled
            bar = "#" * filled + "." * (width - filled)
            print(f"\r{name:8} [{bar}] {done}/{total}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


if __name__ == "__main__":
    main()
