"""Learn to write English letter by letter with a small GPT.

    python examples/char_gpt.py [--text FILE] [--seed 0] [--steps 700] [--folder .]

Without --text it reads Python's own manual, which every Python carries (what help() prints of its keywords).
Three blocks of causal attention, 96 features wide, see the last 64 letters at most. AdamW, with weight decay
for matrices alone, follows a warm-up and a cosine. After 700 steps a letter of a part it has not read costs
it less than 1.7 nats; letters drawn at random cost over 4. Then it writes some lines, choosing among the 20
likeliest letters. Writes char_gpt.png: its losses, and which letters the first heads look at.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import kiln
import kiln.nn.functional as F
from kiln import Tensor, nn

AT_MOST = 1.7  # nats per letter of the held-out text
BLOCKS, HEADS, WIDTH, CONTEXT, BATCH = 3, 4, 96, 64, 24


def read(path: Path | None) -> str:
    """The text to learn from: of Python's manual every paragraph once, in one line."""
    if path is not None:
        return path.read_text(encoding="utf-8")
    from pydoc_data.topics import topics

    paragraphs = (" ".join(p.split()) for name in sorted(topics) for p in topics[name].split("\n\n"))
    prose = [paragraph for paragraph in paragraphs if not paragraph.startswith(("+-", "|"))]  # no tables
    text = "\n".join(dict.fromkeys(prose)).replace("’", "'")
    return "".join(letter for letter in text if letter.isascii())


class Attention(nn.Module):
    """(N, T, WIDTH) -> the same shape; every place sees itself and what is before it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (N, HEADS, T, WIDTH / HEADS)."""
        n, t, _ = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        out = F.scaled_dot_product_attention(*self.heads(x), is_causal=True)
        return self.output(out.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, then a network for every place, each added to what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """(N, T) letters, T <= CONTEXT -> (N, T, letters) scores of the letters that follow."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm, self.output = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters, bias=False)
        self.apply(self.initialise)
        self.output.weight = self.letters.weight  # one table for letters read and written

    @staticmethod
    def initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.05)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def embed(self, letters: Tensor) -> Tensor:
        return self.letters(letters) + self.places(kiln.arange(letters.shape[1]))

    def forward(self, letters: Tensor) -> Tensor:
        return self.output(self.norm(self.blocks(self.embed(letters))))


def loss_of(model: GPT, letters: Tensor, starts: Tensor) -> Tensor:
    """Mean nats per letter of the windows that begin at `starts`."""
    windows = letters[starts.unsqueeze(1) + kiln.arange(CONTEXT + 1)]
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


@kiln.no_grad()
def held_out_loss(model: GPT, letters: Tensor) -> float:
    """Mean nats per letter over windows side by side."""
    model.eval()
    starts = kiln.arange(0, len(letters) - CONTEXT - 1, CONTEXT)
    loss = kiln.stack([loss_of(model, letters, part) for part in starts.split(64)]).mean().item()
    model.train()
    return loss


@kiln.no_grad()
def write(model: GPT, letters: Tensor, count: int, temperature: float = 0.8, top_k: int = 20) -> Tensor:
    """`letters` (1, T) and `count` more, each drawn among the `top_k` likeliest."""
    model.eval()
    for _ in range(count):
        scores = model(letters[:, -CONTEXT:])[:, -1] / temperature
        best, which = scores.topk(top_k)
        drawn = kiln.multinomial(best.softmax(1), 1)
        letters = kiln.cat([letters, which.gather(1, drawn)], dim=1)
    model.train()
    return letters


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--folder", type=Path, default=Path("."))
    options = parser.parse_args()
    kiln.manual_seed(options.seed)

    text = read(options.text)
    alphabet = sorted(set(text))
    index = {letter: i for i, letter in enumerate(alphabet)}
    letters = kiln.tensor([index[letter] for letter in text])
    cut = len(letters) * 95 // 100
    training, held_out = letters[:cut], letters[cut:][:16_000]

    model = GPT(len(alphabet))
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = kiln.optim.AdamW(groups, lr=4e-3, betas=(0.9, 0.98))
    warm = max(1, options.steps // 10)
    schedule = kiln.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * min(1, step / options.steps))),
    )
    count = sum(p.numel() for p in model.parameters())
    print(f"{len(text)} letters, {len(alphabet)} different ones; {count} weights")

    losses, checks = [], []
    for step in range(1, options.steps + 1):
        loss = loss_of(model, training, kiln.randint(len(training) - CONTEXT, (BATCH,)))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % max(1, options.steps // 7) == 0 or step == options.steps:
            checks.append((step, held_out_loss(model, held_out)))
            print(
                f"step {step:5}  nats per letter {sum(losses[-50:]) / 50:.3f}  held-out {checks[-1][1]:.3f}"
            )

    print("written by the network:\n")
    start = held_out[:CONTEXT].unsqueeze(0)
    print("".join(alphabet[i] for i in write(model, start, 300)[0, CONTEXT:].tolist()))
    picture(model, losses, checks, held_out[2000:2024], alphabet, options.folder / "char_gpt.png")
    print(f"result: nats_per_letter {checks[-1][1]:.4f}")


@kiln.no_grad()
def picture(
    model: GPT, losses: list[float], checks: list, letters: Tensor, alphabet: list[str], path: Path
) -> None:
    """The losses, and for a piece of text what each head of the first block attends to."""
    try:
        import matplotlib
    except ImportError:
        print(f"no {path.name}: matplotlib is not installed (pip install matplotlib)")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    block = model.blocks[0]
    q, k, _ = block.attention.heads(block.norm1(model.embed(letters.unsqueeze(0))))
    scores = (q @ k.transpose(-2, -1))[0] / math.sqrt(WIDTH // HEADS)  # (HEADS, T, T)
    later = kiln.ones(len(letters), len(letters), dtype=kiln.bool).triu(1)
    weights = scores.masked_fill(later, -math.inf).softmax(-1)
    shown = [alphabet[i].replace("\n", "¶") for i in letters.tolist()]

    figure = pyplot.figure(figsize=(10, 6.4), layout="constrained")
    grid = figure.add_gridspec(2, HEADS, height_ratios=(1, 1))
    axes = figure.add_subplot(grid[0, :])
    axes.plot(range(1, len(losses) + 1), losses, color="0.75", linewidth=1, label="every step's batch")
    axes.plot(*zip(*checks), "o-", color="tab:blue", label="held-out text")
    axes.set(xlabel="step", ylabel="nats per letter")
    axes.legend(frameon=False)
    for head in range(HEADS):
        axes = figure.add_subplot(grid[1, head])
        axes.imshow(weights[head].tolist(), cmap="Blues")
        axes.set_xticks(range(len(shown)), shown, fontsize=7, family="monospace")
        axes.set_yticks(range(len(shown)), shown, fontsize=7, family="monospace")
        axes.tick_params(length=0)
        axes.set_title(f"block 1, head {head + 1} looks at", fontsize=9)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
