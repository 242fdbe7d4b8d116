"""A soak of batching: exceptions, Ctrl-C, threads and hooks, for as long as you like; memory stays flat.

    python -m kiln.testing.soak --seconds 600 --seed 0

Scenes are drawn by the seed: trees in a `batching` block, items of `batching.map` that read values, a
function compiled with `batch=True`, each with pure cells or without, with hooks and backward. Some raise at a
random one of the places they pass. Several threads play scenes at once, while the main thread's are
interrupted by SIGINT at random moments. A scene that comes to its end has the values of the eager program bit
for bit; after each that does not, everything works. At the end nothing is held that was not held after the
first rounds. Ends with a process that says where it stood, if it hangs for a minute.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import io
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kiln
import kiln.batching
from kiln import _core
from kiln.batching import Batching
from kiln.nn import functional as F

SIZE, WORDS = 8, 11
PATIENCE = 60  # seconds of one round, after which the process says where it stands, and ends
WARM_UP = 0.3  # of the time, at whose end what is held counts as what is needed
IMPORTS = 5  # rounds without SIGINT, in which modules are imported: in the middle of an import it can leave
# CPython's lock of imports locked, at which other threads wait for ever
SLACK = 16 << 20  # bytes that the process may grow by afterwards: the system's allocator breathes


class Boom(Exception):
    """What a scene raises at a place of its."""


class Traps:
    """Places that a scene passes, one of which raises, or none."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self) -> None:
        """Passes one place. Boom: it is the one."""
        self.left -= 1
        if self.left == 0:
            raise Boom


class Model:
    """Weights that all threads share, and cells over them."""

    def __init__(self) -> None:
        kiln.manual_seed(0)
        self.words = kiln.randn(WORDS, SIZE)
        self.both = kiln.randn(3 * SIZE, 2 * SIZE) * 0.3
        self.bias = kiln.randn(3 * SIZE) * 0.1
        self.pure_join = kiln.compile(self.join, pure=True)

    def weights(self) -> tuple[Any, ...]:
        """The same values as leaves of the caller's own: gradients are each thread's."""
        return tuple(x.clone().requires_grad_() for x in (self.words, self.both, self.bias))

    def join(self, left: Any, right: Any, both: Any, bias: Any) -> Any:
        """A node of two children's states."""
        new, keep, out = F.linear(kiln.cat([left, right]), both, bias).chunk(3)
        return (keep.sigmoid() * left + new.tanh()) * out.sigmoid()


Tree = Any  # an int, or a pair of trees


def tree(draw: random.Random, leaves: int) -> Tree:
    """A random binary tree."""
    if leaves == 1:
        return draw.randrange(WORDS)
    left = draw.randrange(1, leaves)
    return tree(draw, left), tree(draw, leaves - left)


class Scene:
    """One draw: trees, the way they run, and where it raises."""

    def __init__(self, model: Model, draw: random.Random) -> None:
        self.model = model
        self.trees = [tree(draw, draw.randint(1, 6)) for _ in range(draw.randint(2, 6))]
        self.kind = draw.choice(["block", "map", "limited map", "map of maps", "compiled"])
        self.pure = draw.random() < 0.5
        self.hooks = draw.random() < 0.5
        self.reads = draw.random() < 0.7
        self.traps = draw.randint(1, 60) if draw.random() < 0.4 else 0

    def state(self, t: Tree, weights: Any, trap: Callable[[], None]) -> Any:
        """A tree's state, by recursion."""
        words, both, bias = weights
        if isinstance(t, int):
            return words[t]
        left, right = (self.state(child, weights, trap) for child in t)
        trap()
        h = (self.model.pure_join if self.pure else self.model.join)(left, right, both, bias)
        if self.reads and h.sum().item() > 0:
            h = h * 0.5
        return h

    def play(self, batched: bool) -> tuple[list[float], list[Any]]:
        """The losses of all trees and the gradients of the weights."""
        weights, trap = self.model.weights(), Traps(self.traps if batched else 0)
        if self.hooks:
            weights[1].register_hook(lambda g: trap())

        def item(t: Tree) -> Any:
            h = self.state(t, weights, trap)
            if self.hooks and h.grad_fn is not None:
                h.register_hook(lambda g: g * 2)
            loss = (h * h).sum()
            if self.reads and batched:
                print(loss.item())
            return loss

        def all_items() -> list[Any]:
            losses = [item(t) for t in self.trees]
            kiln.stack(losses).sum().backward()
            return losses

        if not batched:
            losses = all_items()
        elif self.kind == "compiled":
            losses = kiln.compile(all_items, batch=True)()
        elif self.kind == "block":
            with Batching():
                losses = all_items()
        else:
            each: Any = kiln.batching.map
            if self.kind == "map of maps":
                halves = [self.trees[::2], self.trees[1::2]]
                found = each(lambda part: each(item, part), halves)
                losses = [loss for pair in zip(*found) for loss in pair] + found[0][len(found[1]) :]
            else:
                losses = each(item, self.trees, limit=2 if self.kind == "limited map" else None)
            kiln.stack(losses).sum().backward()
        return [loss.item() for loss in losses], [w.grad for w in weights]

    def check(self) -> None:
        """The batched scene has the eager one's values, and its gradients within rounding. Boom: raised."""
        values, gradients = self.play(True)
        wanted, expected = self.play(False)
        assert values == wanted, (self.kind, values, wanted)
        for g, want in zip(gradients, expected, strict=True):
            close = g is None or want is None or kiln.allclose(g, want, rtol=1e-4, atol=1e-5)
            assert close, (self.kind, g, want)


def look() -> None:
    """Whether everything works on this thread."""
    core: Any = _core
    assert core.modes() == (True, False, None) and not core.recording() and not core.is_batching()
    with Batching():
        x = kiln.ones(SIZE, requires_grad=True)
        y: Any = sum((x * k).sum() for k in range(3))
    y.backward()
    assert x.grad is not None and x.grad.tolist() == [3.0] * SIZE


class Soak:
    """Rounds of scenes; counts what came of them."""

    def __init__(self, seed: int, interrupts: bool) -> None:
        self.draw, self.model = random.Random(seed), Model()
        self.counts = {"whole": 0, "raised": 0, "interrupted": 0}
        self.failures: list[BaseException] = []
        self.interrupts, self.armed = interrupts, False
        self._lock = threading.Lock()

    def alarm(self, *_: Any) -> None:
        """SIGINT, unless the scene is over: another thread may have taken the alarm, and be late."""
        if self.armed:
            signal.raise_signal(signal.SIGINT)

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def _scenes(self, seed: int, count: int) -> None:
        """What a thread plays."""
        draw = random.Random(seed)
        try:
            for _ in range(count):
                try:
                    Scene(self.model, draw).check()
                    self._count("whole")
                except Boom:
                    self._count("raised")
                look()
        except BaseException as error:
            self.failures.append(error)

    def _interrupted(self, count: int) -> None:
        """What the main thread plays: SIGINT comes within some milliseconds of a scene."""
        for _ in range(count):
            scene = Scene(self.model, self.draw)
            try:
                try:
                    self.armed = self.interrupts
                    signal.setitimer(signal.ITIMER_REAL, self.draw.uniform(1e-5, 6e-3))
                    scene.check()
                finally:
                    self.armed = False
                    signal.setitimer(signal.ITIMER_REAL, 0)
                self._count("whole")
            except Boom:
                self._count("raised")
            except KeyboardInterrupt:
                self.armed = False
                self._count("interrupted")
            look()

    def round(self, threads: int = 2, scenes: int = 4) -> None:
        """Threads and the main thread play at once; raises what failed in any of them."""
        faulthandler.dump_traceback_later(PATIENCE, file=sys.__stderr__ or sys.stderr, exit=True)
        seeds = [self.draw.randrange(1 << 30) for _ in range(threads)]
        workers = [threading.Thread(target=self._scenes, args=(seed, scenes)) for seed in seeds]
        streams = sys.stdout, sys.stderr
        for worker in workers:
            worker.start()
        try:
            self._interrupted(scenes)
        finally:
            for worker in workers:
                worker.join()
            assert (sys.stdout, sys.stderr) == streams
            faulthandler.cancel_dump_traceback_later()
        if self.failures:
            raise self.failures[0]


def held() -> tuple[int, int]:
    """What is held: bytes of tensors, and of the process."""
    gc.collect()
    allocated: int = _core.memory_stats()["allocated_bytes"]
    return allocated, int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def soak(seconds: float, seed: int, interrupts: bool = True) -> str:
    """Rounds for so long, and what was seen as a sentence. `interrupts`: by SIGINT too. AssertionError: a
    promise is broken.
    """
    before = signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run, rounds = Soak(seed, False), 0
    signal.signal(signal.SIGALRM, run.alarm)
    started, first = time.monotonic(), None
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            while (passed := time.monotonic() - started) < seconds or rounds < 2:
                run.round()
                rounds += 1
                run.interrupts = interrupts and rounds >= IMPORTS
                printed.seek(0)
                printed.truncate()
                if first is None and passed >= WARM_UP * seconds:
                    first = held()
    finally:
        signal.signal(signal.SIGALRM, before[0])
        signal.signal(signal.SIGINT, before[1])
    last = held()
    assert first is not None
    assert last[0] <= first[0], f"{last[0] - first[0]} bytes of tensors more are held"
    assert last[1] <= first[1] + SLACK, f"the process has grown by {(last[1] - first[1]) >> 20} MB"
    told = ", ".join(f"{count} {what}" for what, count in run.counts.items())
    return (
        f"{rounds} rounds, scenes: {told}; held after {WARM_UP:.0%} of the time and at its end: "
        f"{first[0]} and {last[0]} bytes of tensors, {first[1] >> 20} and {last[1] >> 20} MB of the process"
    )


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m kiln.testing.soak", description="batching, for long")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    print(soak(options.seconds, options.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
