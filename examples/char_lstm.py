"""Learn to write English letter by letter with an LSTM.

    python examples/char_lstm.py [--text FILE] [--seed 0] [--steps 800] [--folder .]

Without --text it reads Python's own manual, which every Python carries (what help() prints of its keywords).
The text is cut into 32 long strips that are read side by side, 64 letters at a time; the state of the LSTM
is carried from stretch to stretch, its gradient is not. After 800 stretches the network is surprised by less
than 1.8 nats (2.6 bits) per letter of a part it has not read; letters drawn at random cost it over 4. Then it
writes some lines itself. Writes char_lstm.png: how surprising it finds every letter of a line.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import kiln
import kiln.nn.functional as F
from kiln import Tensor, nn

AT_MOST = 1.8  # nats per letter of the held-out text
STRIPS, STRETCH, WIDTH = 32, 64, 128

State = tuple[Tensor, Tensor]


def read(path: Path | None) -> str:
    """The text to learn from: of Python's manual every paragraph once, in one line."""
    if path is not None:
        return path.read_text(encoding="utf-8")
    from pydoc_data.topics import topics

    paragraphs = (" ".join(p.split()) for name in sorted(topics) for p in topics[name].split("\n\n"))
    prose = [paragraph for paragraph in paragraphs if not paragraph.startswith(("+-", "|"))]  # no tables
    text = "\n".join(dict.fromkeys(prose)).replace("’", "'")
    return "".join(letter for letter in text if letter.isascii())


class Model(nn.Module):
    """(N, T) letters and a state -> (N, T, letters) scores of the next letters and the state after them."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(letters, 64)
        self.lstm = nn.LSTM(64, WIDTH, num_layers=2, dropout=0.1, batch_first=True)
        self.output = nn.Linear(WIDTH, letters)

    def forward(self, letters: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        hidden, state = self.lstm(self.embedding(letters), state)
        return self.output(hidden), state


def stretches(letters: Tensor, strips: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(strips, STRETCH) letters and the letters after each, along the text laid out as strips."""
    length = (len(letters) - 1) // strips
    x = letters[: strips * length].reshape(strips, length)
    y = letters[1 : strips * length + 1].reshape(strips, length)
    for start in range(0, length - STRETCH + 1, STRETCH):
        yield x[:, start : start + STRETCH], y[:, start : start + STRETCH]


@kiln.no_grad()
def surprise(model: Model, letters: Tensor) -> float:
    """Nats per letter, read in 16 strips."""
    model.eval()
    losses, state = [], None
    for x, y in stretches(letters, 16):
        scores, state = model(x, state)
        losses.append(F.cross_entropy(scores.flatten(0, 1), y.flatten()))
    model.train()
    return kiln.stack(losses).mean().item()


@kiln.no_grad()
def write(model: Model, start: Tensor, count: int, temperature: float = 0.7) -> list[int]:
    """`count` letters that follow those of `start` (T,): lower temperatures keep to the likelier ones."""
    model.eval()
    written: list[int] = []
    scores, state = model(start.unsqueeze(0))
    for _ in range(count):
        letter = kiln.multinomial((scores[:, -1] / temperature).softmax(1), 1)  # (1, 1)
        written.append(letter.item())
        scores, state = model(letter, state)
    model.train()
    return written


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--folder", type=Path, default=Path("."))
    options = parser.parse_args()
    kiln.manual_seed(options.seed)

    text = read(options.text)
    alphabet = sorted(set(text))
    index = {letter: i for i, letter in enumerate(alphabet)}
    letters = kiln.tensor([index[letter] for letter in text])
    cut = len(letters) * 95 // 100
    training, held_out = letters[:cut], letters[cut:][:40_000]
    print(f"{len(text)} letters, {len(alphabet)} different ones")

    model = Model(len(alphabet))
    optimizer = kiln.optim.Adam(model.parameters(), lr=5e-3)
    schedule = kiln.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=5e-3, total_steps=options.steps, pct_start=0.1
    )
    batches, state, recent = stretches(training, STRIPS), None, []
    for step in range(1, options.steps + 1):
        batch = next(batches, None)
        if batch is None:  # the text is read: once more from its beginning
            batches, state = stretches(training, STRIPS), None
            batch = next(batches)
        scores, state = model(batch[0], state)
        state = (state[0].detach(), state[1].detach())
        loss = F.cross_entropy(scores.flatten(0, 1), batch[1].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent.append(loss.item())
        if step % 100 == 0:
            print(f"step {step:5}  nats per letter {sum(recent) / len(recent):.3f}")
            recent.clear()

    nats = surprise(model, held_out)
    print("written by the network:\n")
    print("".join(alphabet[i] for i in write(model, held_out[:200], 400)))
    picture(model, held_out[1800:2072], alphabet, options.folder / "char_lstm.png")
    print(f"result: nats_per_letter {nats:.4f}")


@kiln.no_grad()
def picture(model: Model, letters: Tensor, alphabet: list[str], path: Path) -> None:
    """The surprise of the last 72 letters, given those before."""
    try:
        import matplotlib
    except ImportError:
        print(f"no {path.name}: matplotlib is not installed (pip install matplotlib)")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    model.eval()
    scores, _ = model(letters[:-1].unsqueeze(0))
    nats = F.cross_entropy(scores[0], letters[1:], reduction="none").tolist()[-72:]
    shown = [alphabet[i].replace("\n", "↵") for i in letters[-72:].tolist()]
    figure, axes = pyplot.subplots(figsize=(10, 2.6), layout="constrained")
    axes.bar(range(len(nats)), nats, color="tab:blue", width=0.8)
    axes.set_xticks(range(len(shown)), shown, family="monospace", fontsize=9)
    axes.tick_params(axis="x", length=0)
    axes.set(title="How surprising the network finds every letter", ylabel="nats", xlim=(-1, len(nats)))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
