"""What the main job does, step by step; each leaves what it found in `Notes`."""

from __future__ import annotations

import ctypes
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import kiln
from kiln import nn
from kiln.export import Dim
from kiln.nn import functional as F
from kiln.utils.data import DataLoader, TensorDataset

HELD_OUT, BATCH = 360, 64


class Notes:
    """What was found: texts and pictures for the page, and what was not as it should be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wrong: list[str] = []
        self.facts: dict[str, Any] = {}
        self.seconds = 0.0

    def expect(self, holds: bool, what: str) -> None:
        """Notes what should hold and does not."""
        if not holds:
            self.wrong.append(what)


# -- digits -------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """(N, 1, 8, 8) images -> (N, 10) scores."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.scores = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: kiln.Tensor) -> kiln.Tensor:
        return self.scores(self.features(images).flatten(1))


class Mistaken(Net):
    """The same with a wrong line: cross_entropy takes scores, and these are probabilities already."""

    def forward(self, images: kiln.Tensor) -> kiln.Tensor:
        return super().forward(images).softmax(1)


class Training:
    """A model, its optimizer, and a step."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = kiln.optim.AdamW(model.parameters(), lr=2e-3)

    def step(self, x: kiln.Tensor, y: kiln.Tensor) -> kiln.Tensor:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def data() -> tuple[TensorDataset, tuple[kiln.Tensor, kiln.Tensor]]:
    """Digits to learn from, and those to be tested on."""
    images, labels = kiln.datasets.load_digits()
    images = images.reshape(-1, 1, 8, 8).to(kiln.float32) / 16
    order = kiln.randperm(len(images))
    images, labels = images[order], labels[order]
    return TensorDataset(images[HELD_OUT:], labels[HELD_OUT:]), (images[:HELD_OUT], labels[:HELD_OUT])


@kiln.no_grad()
def accuracy(model: nn.Module, test: tuple[kiln.Tensor, kiln.Tensor]) -> float:
    images, labels = test
    return float((model(images).argmax(1) == labels).float().mean())


def digits(notes: Notes, epochs: int) -> tuple[nn.Module, tuple[kiln.Tensor, kiln.Tensor]]:
    """Trains, finds the wrong line, compiles."""
    training, test = data()
    print(f"{len(training)} digits to learn from, {len(test[0])} to be tested on")

    kiln.manual_seed(1)
    first = Training(Mistaken())
    losses = [float(first.step(x, y)) for x, y in batches("wrong", training, 2)]
    x, _ = next(iter(DataLoader(training, batch_size=2)))
    seen = first.model(x)
    print(f"the loss stays near {losses[-1]:.2f}; what does the model give?")
    print(seen, "sums of rows:", seen.sum(1).tolist())
    print("probabilities, where cross_entropy takes scores: the softmax goes\n")
    notes.facts["mistake"] = {"loss": losses[-1], "printed": f"{seen}\nsums of rows: {seen.sum(1).tolist()}"}

    runs = {}
    for name, prepare in (("eager", lambda step: step), ("compiled", kiln.compile)):
        kiln.manual_seed(2)
        run = Training(Net())
        step = prepare(run.step)
        curve, times = [], []
        for x, y in batches(name, training, epochs):
            start = time.perf_counter()
            curve.append(float(step(x, y)))
            times.append(time.perf_counter() - start)
        runs[name] = run.model, curve, times
        print(f"{name}: loss {curve[-1]:.4f}, {1e6 * statistics.median(times):.0f} us a step (median)")
    model = runs["eager"][0].eval()
    right = accuracy(model, test)
    weights = [list(map(raw, runs[name][0].state_dict().values())) for name in runs]
    same = weights[0] == weights[1] and runs["eager"][1] == runs["compiled"][1]
    print(f"accuracy on unseen digits {100 * right:.1f} %; eager and compiled have the same bits: {same}")
    notes.expect(same, "the compiled step gave other bits than the eager one")
    notes.expect(right > 0.9, f"an accuracy of {right:.3f} is too low")
    kiln.save(model.state_dict(), notes.folder / "digits.safetensors")
    with kiln.profile() as profile:
        for x, y in DataLoader(training, batch_size=BATCH):
            Training(Net()).step(x, y)
    curves = {name: run[1] for name, run in runs.items()}
    notes.facts["digits"] = {
        "accuracy": right,
        "same": same,
        "steps": len(runs["eager"][1]),
        "eager": 1e6 * statistics.median(runs["eager"][2]),
        "compiled": 1e6 * statistics.median(runs["compiled"][2]),
        "curves": kiln.viz.curves(curves, log=True, ylabel="loss").svg,
        "explained": kiln.compiler.explain(step),
        "profile": str(profile),
        "summary": str(kiln.summary(model, (1, 1, 8, 8))),
    }
    return model, test


def batches(name: str, training: TensorDataset, epochs: int) -> Iterator[Any]:
    """Shuffled batches of all epochs, with a progress bar on a terminal."""
    loader = DataLoader(training, batch_size=BATCH, shuffle=True)
    every = (batch for _ in range(epochs) for batch in loader)
    total = epochs * len(loader)
    if not sys.stderr.isatty():
        yield from every
        return
    try:
        from tqdm import tqdm
    except ImportError:
        for done, batch in enumerate(every, 1):
            yield batch
            print(
                f"\r{name:9} {done}/{total}", end="\n" if done == total else "", file=sys.stderr, flush=True
            )
    else:
        yield from tqdm(every, desc=f"{name:9}", total=total, unit="step", ncols=80)


def raw(tensor: kiln.Tensor) -> bytes:
    return memoryview(tensor.detach().contiguous()).tobytes()


# -- export -------------------------------------------------------------------------------------------------

C_MAIN = """
#include "digits.h"
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    static float images[COUNT * 64], scores[COUNT * 10];
    int64_t count = COUNT;
    FILE *file = fopen("images.bin", "rb");
    if (!file || fread(images, sizeof images, 1, file) != 1) return 1;
    const void *inputs[] = {images};
    void *outputs[] = {scores}, *workspace = malloc((size_t)digits_workspace(&count, 1));
    int32_t code = digits_run(inputs, &count, outputs, workspace, NULL);
    if (code) return puts(digits_message(code)), 1;
    file = fopen("scores.bin", "wb");
    return fwrite(scores, sizeof scores, 1, file) != 1 || fclose(file) != 0;
}
"""
NODE_MAIN = """
import { readFileSync, writeFileSync } from "node:fs";
import { load } from "./digits.mjs";
const program = await load();
const images = new Float32Array(Uint8Array.from(readFileSync("images.bin")).buffer);
const { output } = program.run({ images });
writeFileSync("scores.bin", new Uint8Array(output.data.buffer));
"""


def export(notes: Notes, model: nn.Module, test: tuple[kiln.Tensor, kiln.Tensor]) -> None:
    """The program in a file, in C and in JavaScript."""
    images, _ = test
    program = kiln.export.export(model, (images[:8],), dynamic_shapes=({0: Dim("count")},))
    program.save(notes.folder / "digits.kiln")
    loaded = kiln.export.load(notes.folder / "digits.kiln")
    with kiln.no_grad():
        expected = model(images).numpy()
        same = np.array_equal(loaded(images).numpy(), expected)
    print(f"\nexported; loaded again it has the same bits: {same}")
    notes.expect(same, "the loaded program gives other bits")
    native, wasm = notes.folder / "native", notes.folder / "wasm"
    start = time.perf_counter()
    library = program.to_native(native, name="digits")
    times = {"native": time.perf_counter() - start}
    start = time.perf_counter()
    module = program.to_wasm(wasm, name="digits")
    times["wasm"] = time.perf_counter() - start
    ran = {"C": in_c(native, images.numpy()), "Node.js": in_node(wasm, images.numpy())}
    rows = {}
    for what, scores in ran.items():
        if scores is None:
            rows[what] = "not installed here"
            continue
        far = float(np.abs(scores - expected).max())
        bits = np.array_equal(scores, expected)
        rows[what] = "the same bits" if bits else f"within {far:.1e}"
        notes.expect(bits if what == "C" else far < 1e-4, f"{what} computes something else: {rows[what]}")
        print(f"run from {what}: {rows[what]}")
    notes.facts["export"] = {
        "rows": rows, "times": times, "program": str(program),
        "sizes": {p.name: p.stat().st_size for p in map(Path, (library, module))},
        "graph": kiln.viz.graph(model(images[:1]), model).svg,
    }  # fmt: skip
    notes.facts["page"] = {
        "runner": (wasm / "digits.mjs").read_text(encoding="utf-8"),
        "code": (wasm / "digits.wasm").read_bytes(),
    }


def in_c(folder: Path, images: Any) -> Any:
    """The scores that a C program computes; by ctypes where there is no compiler."""
    compiler = shutil.which("cc")
    (folder / "images.bin").write_bytes(images.tobytes())
    if compiler is None:
        library = ctypes.CDLL(str((folder / "libdigits.so").resolve()))
        library.digits_workspace.restype = ctypes.c_int64
        scores, count = np.zeros((len(images), 10), np.float32), ctypes.c_int64(len(images))
        workspace = np.zeros(library.digits_workspace(ctypes.byref(count), 1), np.uint8)
        inputs, outputs = (ctypes.c_void_p(a.ctypes.data) for a in (images, scores))
        library.digits_run(ctypes.byref(inputs), ctypes.byref(count), ctypes.byref(outputs),
                           ctypes.c_void_p(workspace.ctypes.data), None)  # fmt: skip
        return scores
    (folder / "main.c").write_text(C_MAIN.replace("COUNT", str(len(images))))
    for command in ([compiler, "-O1", "main.c", "digits.o", "-o", "main"], ["./main"]):
        subprocess.run(command, cwd=folder, check=True)
    return np.fromfile(folder / "scores.bin", np.float32).reshape(-1, 10)


def in_node(folder: Path, images: Any) -> Any:
    """The scores that Node.js computes; None where it is not installed."""
    node = shutil.which("node")
    if node is None:
        return None
    (folder / "images.bin").write_bytes(images.tobytes())
    (folder / "main.mjs").write_text(NODE_MAIN)
    subprocess.run([node, "main.mjs"], cwd=folder, check=True)
    return np.fromfile(folder / "scores.bin", np.float32).reshape(-1, 10)


# -- trees --------------------------------------------------------------------------------------------------


class Tree(NamedTuple):
    """An arithmetic expression: a leaf holds a number, a node an operation on two."""

    label: int  # a number 0 to 9; 10 is max, 11 is min
    children: tuple[Tree, ...] = ()

    @property
    def value(self) -> int:
        if not self.children:
            return self.label
        return (max if self.label == 10 else min)(child.value for child in self.children)


def drawn(rng: random.Random, depth: int) -> Tree:
    """A random expression."""
    if depth == 0 or rng.random() < 0.2:
        return Tree(rng.randrange(10))
    return Tree(rng.choice((10, 11)), (drawn(rng, depth - 1), drawn(rng, depth - 1)))


class Reader(nn.Module):
    """A tree -> (10,) scores of its value. It calls itself, as the tree does."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.words = nn.Embedding(12, width)
        self.join = nn.Sequential(nn.Linear(3 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.scores = nn.Linear(width, 10)

    def state(self, tree: Tree) -> kiln.Tensor:
        word = self.words(kiln.tensor(tree.label))
        if not tree.children:
            return word
        left, right = map(self.state, tree.children)
        return self.join(kiln.cat([word, left, right]))

    def forward(self, tree: Tree) -> kiln.Tensor:
        return self.scores(self.state(tree))


def trees(notes: Notes) -> None:
    """A recursive model, tree by tree and batched."""
    import contextlib

    rng = random.Random(0)
    forest = [drawn(rng, 5) for _ in range(640)]
    nodes = sum(1 for tree in forest for _ in walk(tree))
    found = {}
    for name, block in (("one at a time", contextlib.nullcontext), ("batched", kiln.batching)):
        kiln.manual_seed(3)
        model = Reader()
        optimizer = kiln.optim.AdamW(model.parameters(), lr=3e-3)
        losses, times = [], []
        for at in range(0, len(forest), 64):
            part = forest[at : at + 64]
            start = time.perf_counter()
            with block():
                scores = kiln.stack([model(tree) for tree in part])
                loss = F.cross_entropy(scores, kiln.tensor([tree.value for tree in part]))
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            losses.append(loss.item())
            times.append(time.perf_counter() - start)
        found[name] = losses, 1e3 * statistics.median(times)
        print(f"64 trees {name}: {found[name][1]:.1f} ms a step, first loss {losses[0]:.6f}")
    same = found["one at a time"][0][0] == found["batched"][0][0]
    notes.expect(same, "the first batch of trees has another loss when it is batched")
    curves = {name: losses for name, (losses, _) in found.items()}
    notes.facts["trees"] = {
        "count": len(forest),
        "nodes": nodes,
        "times": {name: milliseconds for name, (_, milliseconds) in found.items()},
        "same": same,
        "example": text_of(forest[0]),
        "curves": kiln.viz.curves(curves, ylabel="loss").svg,
    }


def walk(tree: Tree) -> Iterator[Tree]:
    yield tree
    for child in tree.children:
        yield from walk(child)


def text_of(tree: Tree) -> str:
    if not tree.children:
        return str(tree.label)
    return f"{'max' if tree.label == 10 else 'min'}({', '.join(map(text_of, tree.children))})"
