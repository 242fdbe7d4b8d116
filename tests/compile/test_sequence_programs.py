"""Programs on sequences as PyTorch's tutorials have them, from the same weights in both frameworks: a network
of letters, a translator with attention, a tagger of packed sentences, transformers. Losses of several steps
are equal, op by op and recorded.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_kiln, torch

pytestmark = [
    needs_kiln,
    pytest.mark.skipif(torch is None, reason="PyTorch, the tests' peer, is missing"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor"),
]
STEPS = 3
FULL = os.environ.get("KILN_TEST_FULL") == "1"
Step = Callable[[], Any]


def drawn(f: Any, seed: int, high: int, *shape: int) -> Any:
    return f.tensor(np.random.default_rng(seed).integers(0, high, shape).tolist())


def prepared(f: Any, *models: Any) -> list[Any]:
    """The models' parameters with values that both frameworks know."""
    found = [p for model in models for p in model.parameters()]
    rng = np.random.default_rng(3)
    with f.no_grad():
        for p in found:
            p.copy_(f.tensor((rng.normal(size=tuple(p.shape)) / math.sqrt(p.shape[-1])).tolist()))
    return found


def letters(f: Any) -> Step:
    """Letters of a text, learned from the one before; the state goes on from batch to batch."""
    nn = f.nn

    class Letters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(11, 6)
            self.rnn = nn.LSTM(6, 8, num_layers=2, batch_first=True)
            self.out = nn.Linear(8, 11)

        def forward(self, x: Any, state: Any) -> Any:
            y, state = self.rnn(self.table(x), state)
            return self.out(y), state

    net = Letters()
    optimizer = f.optim.SGD(prepared(f, net), lr=0.5, momentum=0.5)
    text, state = drawn(f, 0, 11, 3, 6), None

    def step() -> Any:
        nonlocal state
        logits, state = net(text[:, :-1], state)
        state = tuple(s.detach() for s in state)
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), text[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def translator(f: Any) -> Step:
    """An encoder, and a decoder that looks at all its states by an attention of its own, word by word."""
    nn = f.nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.score = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1)

        def forward(self, query: Any, keys: Any) -> Any:
            scores = self.score(f.tanh(self.query(query) + self.key(keys))).squeeze(2).unsqueeze(1)
            return f.bmm(f.softmax(scores, dim=-1), keys)

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.attention = nn.Embedding(7, 6), Attention()
            self.cell, self.out = nn.GRUCell(12, 6), nn.Linear(6, 7)

        def forward(self, states: Any, hidden: Any, target: Any) -> Any:
            word, outputs = f.zeros(target.shape[0], dtype=f.int64), []
            for k in range(target.shape[1]):
                context = self.attention(hidden.unsqueeze(1), states).squeeze(1)
                hidden = self.cell(f.cat([self.table(word), context], dim=1), hidden)
                outputs.append(self.out(hidden))
                word = target[:, k]
            return f.nn.functional.log_softmax(f.stack(outputs, dim=1), dim=-1)

    table, encoder, decoder = nn.Embedding(9, 5), nn.GRU(5, 6, batch_first=True), Decoder()
    optimizer = f.optim.Adam(prepared(f, table, encoder, decoder), lr=0.01)
    source, target = drawn(f, 1, 9, 3, 4), drawn(f, 2, 7, 3, 3)

    def step() -> Any:
        states, last = encoder(table(source))
        loss = nn.NLLLoss()(decoder(states, last[0], target).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def tagger(f: Any) -> Step:
    """A tag for every word of sentences of several lengths, by a packed LSTM both ways."""
    nn, rnn = f.nn, f.nn.utils.rnn
    table, lstm, out = nn.Embedding(10, 4), nn.LSTM(4, 5, bidirectional=True, proj_size=3), nn.Linear(6, 3)
    optimizer = f.optim.SGD(prepared(f, table, lstm, out), lr=0.3)
    sentences = [drawn(f, k, 10, n) for k, n in enumerate((4, 6, 2, 5))]
    tags = [drawn(f, 9 + k, 3, len(s)) for k, s in enumerate(sentences)]

    def step() -> Any:
        words = rnn.pack_sequence(sentences, enforce_sorted=False)
        embedded = rnn.PackedSequence(table(words.data), *words[1:])
        y, _ = lstm(embedded)
        padded, lengths = rnn.pad_packed_sequence(y, batch_first=True)
        wanted = rnn.pad_sequence(tags, batch_first=True, padding_value=-1)
        loss = nn.functional.cross_entropy(out(padded).flatten(0, 1), wanted.flatten(), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss + 0 * lengths.sum()

    return step


def places(f: Any, length: int, width: int) -> Any:
    """Sines and cosines of positions: (length, 1, width)."""
    position = f.arange(length).unsqueeze(1)
    rate = f.exp(f.arange(0, width, 2) * (-math.log(10000.0) / width))
    found = f.zeros(length, 1, width)
    found[:, 0, 0::2] = f.sin(position * rate)
    found[:, 0, 1::2] = f.cos(position * rate)
    return found


def language(f: Any) -> Step:
    """A transformer that guesses the next word."""
    nn = f.nn

    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(12, 8)
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
            self.encoder = nn.TransformerEncoder(layer, 1)
            self.out = nn.Linear(8, 12)
            self.register_buffer("places", places(f, 9, 8))

        def forward(self, x: Any) -> Any:
            mask = nn.Transformer.generate_square_subsequent_mask(len(x))
            y = self.table(x) * math.sqrt(8) + self.places[: len(x)]
            return self.out(self.encoder(y, mask))

    net = Language()
    optimizer, words = f.optim.AdamW(prepared(f, net), lr=0.01), drawn(f, 5, 12, 7, 3)
    schedule = f.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)

    def step() -> Any:
        loss = nn.CrossEntropyLoss()(net(words[:-1]).reshape(-1, 12), words[1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss

    return step


def translation(f: Any) -> Step:
    """A whole transformer on padded sentences, teacher forced."""
    nn = f.nn
    net = nn.Transformer(8, 2, 1, 2, 12, dropout=0.0, batch_first=True, norm_first=True)
    words, out = nn.Embedding(10, 8, padding_idx=0), nn.Linear(8, 10)
    optimizer = f.optim.Adam(prepared(f, net, words, out), lr=0.01)
    source, target = drawn(f, 6, 9, 2, 5) + 1, drawn(f, 7, 9, 2, 4) + 1
    source[1, 3:] = 0
    target[0, 3:] = 0

    def step() -> Any:
        given, wanted = target[:, :-1], target[:, 1:]
        hidden = source == 0
        y = net(
            words(source), words(given), tgt_mask=net.generate_square_subsequent_mask(3),
            src_key_padding_mask=hidden, memory_key_padding_mask=hidden, tgt_is_causal=True,
        )  # fmt: skip
        loss = nn.functional.cross_entropy(out(y).flatten(0, 1), wanted.flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


PROGRAMS = [letters, translator, tagger, language, translation]


@pytest.fixture(autouse=True)
def doubles() -> Any:
    """Both frameworks make float64."""
    for f in (kiln, torch):
        f.set_default_dtype(f.float64)
    yield
    for f in (kiln, torch):
        f.set_default_dtype(f.float32)


@pytest.mark.parametrize(
    ("program", "recorded"),
    [(p, recorded) for p in PROGRAMS for recorded in (False, True) if FULL or not recorded or p is tagger],
)
def test_losses_of_steps(program: Callable[[Any], Step], recorded: bool) -> None:
    step = program(kiln)
    step = kiln.compile(step, wait=True) if recorded else step
    losses, theirs = [step().item() for _ in range(STEPS)], program(torch)
    assert losses == pytest.approx([theirs().item() for _ in range(STEPS)], rel=1e-10)
    assert losses[-1] < losses[0]
