"""Translate numbers from English words to French words with attention.

    python examples/translation.py [--seed 0] [--epochs 4] [--folder .]

"ninety seven" is "quatre vingt dix sept", four twenties, ten and seven, and "seventy one" is "soixante et
onze": the words neither match one to one nor come in equal numbers. A bidirectional GRU reads the English;
another GRU writes the French, looking at every word at the part of the English that matters to it (the
attention of Bahdanau, Cho and Bengio, 2015). It learns from 8 000 numbers under a million and translates
more than 95 % of 1 000 others without a single error. Writes translation.png: where it looked.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import kiln
import kiln.nn.functional as F
from kiln import Tensor, nn
from kiln.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from kiln.utils.data import DataLoader

AT_LEAST = 0.95  # the share of held-out numbers translated without an error
PAD, START, END = 0, 1, 2
DRAWN = 97_171  # never seen in training: the picture is of its translation

ENGLISH = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen".split()
)
ENGLISH += "sixteen seventeen eighteen nineteen".split()
ENGLISH_TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()
FRENCH = (
    "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize".split()
)
FRENCH_TENS = "_ _ vingt trente quarante cinquante soixante soixante".split()


def english(n: int) -> list[str]:
    """The words of 0 <= n < 1 000 000 as the British say them."""
    if n < 20:
        return [ENGLISH[n]]
    if n < 100:
        return [ENGLISH_TENS[n // 10], *(english(n % 10) if n % 10 else [])]
    if n < 1000:
        return [*english(n // 100), "hundred", *(["and", *english(n % 100)] if n % 100 else [])]
    rest = n % 1000
    return [
        *english(n // 1000),
        "thousand",
        *(["and"] if 0 < rest < 100 else []),
        *(english(rest) if rest else []),
    ]


def french(n: int) -> list[str]:
    """The words of 0 <= n < 1 000 000, hyphens left out."""
    if n < 17:
        return [FRENCH[n]]
    if n < 20:
        return ["dix", *french(n - 10)]
    if n < 80:
        ten, one = n // 10, n % 10 + (10 if n >= 70 else 0)
        return [FRENCH_TENS[ten], *(["et"] if one in (1, 11) else []), *(french(one) if one else [])]
    if n < 100:
        return ["quatre", "vingts"] if n == 80 else ["quatre", "vingt", *french(n - 80)]
    if n < 1000:
        count, rest = n // 100, n % 100
        hundred = "cents" if count > 1 and not rest else "cent"
        return [*(french(count) if count > 1 else []), hundred, *(french(rest) if rest else [])]
    count, rest = n // 1000, n % 1000
    # "cents" and "vingts" lose their s before "mille"
    before = (
        [{"cents": "cent", "vingts": "vingt"}.get(word, word) for word in french(count)] if count > 1 else []
    )
    return [*before, "mille", *(french(rest) if rest else [])]


class Vocabulary:
    """Words to numbers and back; the first three are padding, start and end."""

    def __init__(self, sentences: list[list[str]]) -> None:
        self.words = ["<pad>", "<start>", "<end>", *sorted({word for words in sentences for word in words})]
        self.index = {word: i for i, word in enumerate(self.words)}

    def encode(self, words: list[str]) -> Tensor:
        return kiln.tensor([self.index[word] for word in words] + [END])


class Translator(nn.Module):
    """An encoder, an attention and a decoder, 64 features wide."""

    def __init__(self, source_words: int, target_words: int, width: int = 64) -> None:
        super().__init__()
        self.source_embedding = nn.Embedding(source_words, width, padding_idx=PAD)
        self.target_embedding = nn.Embedding(target_words, width, padding_idx=PAD)
        self.encoder = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.GRUCell(2 * width, width)
        self.key, self.query = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.energy = nn.Linear(width, 1, bias=False)
        self.output = nn.Linear(2 * width, target_words)

    def encode(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(N, S) words -> memory (N, S, width), its keys, and the decoder's first state (N, width)."""
        packed = pack_padded_sequence(
            self.source_embedding(source), lengths, batch_first=True, enforce_sorted=False
        )
        memory, last = self.encoder(packed)
        memory, _ = pad_packed_sequence(memory, batch_first=True)
        return memory, self.key(memory), kiln.cat([last[0], last[1]], dim=1)

    def step(
        self, word: Tensor, state: Tensor, memory: Tensor, keys: Tensor, padding: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The word written last (N,) -> scores of the next (N, words), state, and weights (N, S)."""
        energies = self.energy(kiln.tanh(keys + self.query(state).unsqueeze(1))).squeeze(-1)
        weights = energies.masked_fill(padding, -kiln.inf).softmax(1)
        context = kiln.bmm(weights.unsqueeze(1), memory).squeeze(1)
        state = self.decoder(kiln.cat([self.target_embedding(word), context], dim=1), state)
        return self.output(kiln.cat([state, context], dim=1)), state, weights

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Scores (N, T, words) of every word of the target, given the right words before it."""
        memory, keys, state = self.encode(source, lengths)
        padding = source == PAD
        word, scores = kiln.full_like(target[:, 0], START), []
        for t in range(target.shape[1]):
            score, state, _ = self.step(word, state, memory, keys, padding)
            scores.append(score)
            word = target[:, t]
        return kiln.stack(scores, dim=1)

    @kiln.no_grad()
    def translate(self, source: Tensor, lengths: Tensor, longest: int = 20) -> tuple[Tensor, Tensor]:
        """The likeliest word at every place: (N, T) words and (N, T, S) weights of the attention."""
        memory, keys, state = self.encode(source, lengths)
        padding = source == PAD
        word, words, looks = kiln.full_like(source[:, 0], START), [], []
        ended = kiln.zeros_like(word, dtype=kiln.bool)
        for _ in range(longest):
            score, state, weights = self.step(word, state, memory, keys, padding)
            word = score.argmax(1).masked_fill(ended, PAD)
            words.append(word)
            looks.append(weights)
            ended = ended | (word == END)
            if ended.all():
                break
        return kiln.stack(words, dim=1), kiln.stack(looks, dim=1)


def collate(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs of sentences as padded batches, with the lengths of the sources."""
    sources, targets = zip(*pairs)
    lengths = kiln.tensor([len(source) for source in sources])
    return pad_sequence(sources, batch_first=True), lengths, pad_sequence(targets, batch_first=True)


def exact(model: Translator, pairs: list[tuple[Tensor, Tensor]]) -> float:
    """The share of pairs whose translation is the target, word for word."""
    right = 0
    model.eval()
    for source, lengths, target in DataLoader(pairs, batch_size=250, collate_fn=collate):
        words, _ = model.translate(source, lengths)
        longest = max(words.shape[1], target.shape[1])
        words = F.pad(words, (0, longest - words.shape[1]), value=PAD)
        target = F.pad(target, (0, longest - target.shape[1]), value=PAD)
        right += (words == target).all(1).sum().item()
    model.train()
    return right / len(pairs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--folder", type=Path, default=Path("."))
    options = parser.parse_args()
    kiln.manual_seed(options.seed)

    numbers = random.Random(options.seed).sample([n for n in range(1_000_000) if n != DRAWN], 9000)
    source = Vocabulary([english(n) for n in numbers])
    target = Vocabulary([french(n) for n in numbers])
    pairs = [(source.encode(english(n)), target.encode(french(n))) for n in numbers]
    training, held_out = pairs[:8000], pairs[8000:]
    loader = DataLoader(training, batch_size=64, shuffle=True, collate_fn=collate, drop_last=True)

    model = Translator(len(source.words), len(target.words))
    optimizer = kiln.optim.Adam(model.parameters(), lr=4e-3)
    schedule = kiln.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(loader), 1e-4)
    for epoch in range(1, options.epochs + 1):
        total = 0.0
        for english_words, lengths, french_words in loader:
            scores = model(english_words, lengths, french_words)
            loss = F.cross_entropy(scores.flatten(0, 1), french_words.flatten(), ignore_index=PAD)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item()
        share = exact(model, held_out)
        print(
            f"epoch {epoch:2}  loss {total / len(loader):.4f}  held-out numbers without an error {share:.3f}"
        )

    for n in (*numbers[8000:8004], DRAWN):
        words, _ = model.translate(*collate([(source.encode(english(n)), target.encode([]))])[:2])
        print(f"{' '.join(english(n))} -> {' '.join(target.words[i] for i in words[0].tolist() if i > END)}")
    picture(model, source, target, DRAWN, options.folder / "translation.png")
    print(f"result: exact {share:.4f}")


def picture(model: Translator, source: Vocabulary, target: Vocabulary, n: int, path: Path) -> None:
    """For every word written, how much it looked at every word read."""
    try:
        import matplotlib
    except ImportError:
        print(f"no {path.name}: matplotlib is not installed (pip install matplotlib)")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    words, looks = model.translate(*collate([(source.encode(english(n)), target.encode([]))])[:2])
    read, written = [*english(n), "(end)"], [target.words[i] for i in words[0].tolist()]
    written[-1] = "(end)"
    figure, axes = pyplot.subplots(figsize=(6.5, 6), layout="constrained")
    image = axes.imshow(looks[0].tolist(), cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(read)), read, rotation=45, ha="left", rotation_mode="anchor")
    axes.set_yticks(range(len(written)), written)
    axes.xaxis.tick_top()
    axes.set(xlabel="read", ylabel="written")
    figure.colorbar(image, shrink=0.6, label="attention")
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
