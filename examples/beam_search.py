"""Write the vowels back into sentences by beam search: written for one sentence, batched by one line.

    python examples/beam_search.py [--seed 0] [--epochs 6]

"Th nmbr f tms" was "The number of times": a network reads what is left of a sentence in both directions, and
a decoder goes along it. At each step it writes a vowel, or the next of the letters that are there; so it is
at another place in every sentence, and in every beam. `search` is written for one sentence and reads values
at every step. `kiln.batching.map` runs 64 of them that take turns where they read, and what they ask of the
network runs together, with the very bits. The sentences are from the docstrings of Python's own library.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sysconfig
import time
from pathlib import Path

import kiln
import kiln.nn.functional as F
from kiln import Tensor, nn
from kiln.nn.utils.rnn import pad_sequence

AT_LEAST = 0.68  # the share of words written rightly in 64 sentences of other modules
VOWELS, LETTERS = "aeiou", " abcdefghijklmnopqrstuvwxyz"
NEXT = len(VOWELS)  # what the decoder says for the next letter
WIDTH, BEAMS, SENTENCES, LONGEST = 192, 4, 64, 60


def read_sentences(rng: random.Random) -> list[list[str]]:
    """Sentences of docstrings in small letters, module by module: twenty of each at most."""
    modules = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        found = []
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)):
                for text in re.split(r"[.:;()]\s", ast.get_docstring(node) or ""):
                    text = " ".join(text.lower().split())
                    if re.fullmatch(f"[{LETTERS}]{{20,{LONGEST}}}", text) and text.count(" ") > 2:
                        found.append(text)
        modules.append(rng.sample(found, min(20, len(found))))
    rng.shuffle(modules)
    return modules


def numbers(text: str) -> Tensor:
    """(letters,) the places of letters in the alphabet."""
    return kiln.tensor([LETTERS.index(letter) for letter in text])


def without_vowels(text: str) -> str:
    """What is left of a sentence."""
    return "".join(letter for letter in text if letter not in VOWELS)


class Speller(nn.Module):
    """Reads consonants in both directions; a step is a letter written and a place -> what to write next."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), WIDTH)
        self.reader = nn.GRU(WIDTH, WIDTH // 2, bidirectional=True)
        self.cell = nn.GRUCell(2 * WIDTH, WIDTH)
        self.scores = nn.Linear(WIDTH, len(VOWELS) + 1)

    def read(self, consonants: Tensor) -> Tensor:
        """(length, N) or (length,) letters -> (length, N, WIDTH) or (length, WIDTH) what stands at each."""
        return self.reader(self.embedding(consonants))[0]

    def forward(self, last: Tensor, place: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """(N,) last letters, (N, WIDTH) what stands next, (N, WIDTH) state -> scores, state."""
        h = self.cell(kiln.cat([self.embedding(last), place], dim=1), h)
        return self.scores(h), h


def steps(text: str) -> tuple[list[int], list[int], list[int]]:
    """What a decoder sees and says to write a sentence: letters written, places, and the decisions."""
    last, places, decisions, place = [0], [], [], 0
    for letter in text:
        places.append(place)
        decisions.append(VOWELS.index(letter) if letter in VOWELS else NEXT)
        place += letter not in VOWELS
        last.append(LETTERS.index(letter))
    return last[: len(text)], places, decisions


def train(model: Speller, texts: list[str], epochs: int, rng: random.Random) -> None:
    """Adam on batches of 32 sentences, each step told what was really written before."""
    batch = 32
    optimizer = kiln.optim.Adam(model.parameters(), lr=2e-3)
    schedule = kiln.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, epochs * (len(texts) // batch))
    for epoch in range(1, epochs + 1):
        rng.shuffle(texts)
        total = count = 0.0
        for start in range(0, len(texts) - batch + 1, batch):
            part = texts[start : start + batch]
            read = model.read(pad_sequence([numbers(without_vowels(text) + " ") for text in part]))
            columns = [pad_sequence([kiln.tensor(c) for c in column]) for column in zip(*map(steps, part))]
            last, places, decisions = columns  # (time, batch) each
            known = pad_sequence([kiln.ones(len(text)) for text in part])
            stands = read.gather(0, places.unsqueeze(2).expand(-1, -1, WIDTH))
            h, said = kiln.zeros(batch, WIDTH), []
            for t in range(len(last)):
                scores, h = model(last[t], stands[t], h)
                said.append(scores)
            losses = F.cross_entropy(kiln.cat(said), decisions.flatten(), reduction="none")
            loss = (losses * known.flatten()).sum() / known.sum()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total, count = total + loss.item(), count + 1
        print(f"epoch {epoch}  loss {total / count:.3f}")


def search(model: Speller, consonants: str) -> str:
    """The likeliest way to write a sentence, by the best of BEAMS beams."""
    read = model.read(numbers(consonants + " "))
    h = kiln.zeros(1, WIDTH)
    beams = [(0.0, "", 0)]  # log-probability, what is written, the place in what was left
    done: list[tuple[float, str]] = []
    for _ in range(2 * LONGEST):
        last = numbers("".join((" " + text)[-1] for _, text, _ in beams))
        scores, h = model(last, read[kiln.tensor([place for *_, place in beams])], h)
        totals = F.log_softmax(scores, dim=1) + kiln.tensor([[value] for value, *_ in beams])
        best, where = totals.flatten().topk(min(BEAMS, totals.numel()))
        rows, longer = [], []
        for value, at in zip(best.tolist(), where.tolist()):
            row, decision = divmod(at, NEXT + 1)
            _, text, place = beams[row]
            if decision != NEXT:
                rows.append(row)
                longer.append((value, text + VOWELS[decision], place))
            elif place < len(consonants):
                rows.append(row)
                longer.append((value, text + consonants[place], place + 1))
            else:  # the next letter is the end
                done.append((value, text))
        if not longer or len(done) >= BEAMS:
            break
        beams, h = longer, h[kiln.tensor(rows)]
    return max(done or [(value, text) for value, text, _ in beams])[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    kiln.manual_seed(options.seed)
    rng = random.Random(options.seed)

    modules = read_sentences(rng)
    texts = [text for module in modules for text in module]
    held_out = texts[:SENTENCES]
    training = [text for text in texts[SENTENCES + 20 :] if text not in held_out]
    print(f"{len(training)} sentences, and {len(held_out)} of other modules")
    model = Speller()
    train(model, training, options.epochs, rng)

    left = [without_vowels(text) for text in held_out]
    with kiln.no_grad():
        for _ in range(2):  # the first time makes kernels
            started = time.perf_counter()
            alone = [search(model, consonants) for consonants in left]
            between = time.perf_counter()
            found = kiln.batching.map(lambda consonants: search(model, consonants), left)
            ended = time.perf_counter()
    one_by_one, together = between - started, ended - between
    print(f"{left[0]} -> {found[0]}")
    print(
        f"{SENTENCES} sentences one by one {one_by_one:.2f} s, together {together:.2f} s: "
        f"{one_by_one / together:.1f}x; {'the same' if found == alone else 'NOT the same'} sentences"
    )
    words = [pair for one, two in zip(held_out, found) for pair in zip(one.split(), two.split())]
    print(f"result: words {sum(one == two for one, two in words) / len(words):.4f}")


if __name__ == "__main__":
    main()
