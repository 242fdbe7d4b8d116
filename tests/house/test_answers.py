"""What is kept of PyTorch's answers: given back as it was, refused for other inputs. Who looks at it."""

from __future__ import annotations

import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import answers as kept
import backend
import numpy as np
import peer_use
import pytest
from answers import Answers, Book, Peer, hash_of, packed, told, unpacked
from backend import kiln

from kiln.testing.compare import first_difference, same_bits

ANSWER = {
    "tensors": (Peer("bfloat16", True, np.array([[1.5, -0.0]], np.float32)), None),
    "arrays": [np.arange(3), np.array(np.nan), np.zeros((2, 0), "uint8"), np.resize([1.0, 2.0], (3, 5001))],
    "plain": [1, 2.5, float("inf"), True, "x", (), TypeError],
    3: ValueError("no"),
}


def test_an_answer_comes_back() -> None:
    """Dtypes, shapes, bits, types; a large array that repeats itself costs its period."""
    blob = bytearray()
    text = packed(ANSWER, blob)
    assert len(blob) < 200
    back = unpacked(text, bytes(blob))
    assert first_difference(kept.comparable(ANSWER), kept.comparable(back), True) is None
    assert type(back["plain"][3]) is bool and back["plain"][-1] is TypeError and type(back[3]) is ValueError
    assert all(same_bits(x, y) for x, y in zip(ANSWER["arrays"], back["arrays"]))


def test_errors_of_pytorch_s_own_type() -> None:
    """They are of a type of that name below the builtin one."""
    own = type("OwnError", (RuntimeError,), {})
    back = unpacked(packed(own("text"), bytearray()), b"")
    assert (type(back).__name__, str(back)) == ("OwnError", "text") and isinstance(back, RuntimeError)


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A file with one answer of one test, to inputs (x, 2), written and read again."""
    monkeypatch.setattr(kept, "FOLDER", tmp_path)
    first = Book("test_some")
    Answers(first, "test", live=True, write=True, more=False)([X, 2], lambda: X * 2)
    first.write(keep=False)
    return partial(Answers, Book("test_some"), write=False, more=False)


X = np.linspace(0, 1, 7)


def test_the_kept_one_is_given(book: Any) -> None:
    """Without PyTorch the call does not run; inputs a CPU rounds otherwise are the same inputs."""
    got = book("test", live=False)([X * (1 + 2e-16), 2], lambda: pytest.fail("it ran"))
    assert np.array_equal(got, X * 2)


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(
    "test, inputs, factor, message",
    [
        ("test", [X * 1.01, 2], 2, "answer 0 of PyTorch in test is for other inputs: .*`make answers ARGS="),
        ("test", [X, 3], 2, "is for other inputs"),
        ("new", [X, 2], 2, "answer 0 of PyTorch in new is missing: .*tests/test_some.py` writes them"),
        ("test", [X, 2], 2.001, "PyTorch answers otherwise than kept"),
    ],
)
def test_what_is_stale_fails(
    book: Any, live: bool, test: str, inputs: Any, factor: Any, message: str
) -> None:
    """A changed sample and a new test, with PyTorch and without; with it another answer too."""
    if not live and factor != 2:
        pytest.skip("only PyTorch knows")
    with pytest.raises(AssertionError, match=message):
        book(test, live=live)(inputs, lambda: X * factor)


def test_the_second_answer_is_another(book: Any) -> None:
    """A test's answers are told apart by their order."""
    asked = book("test", live=False)
    asked([X, 2], lambda: None)
    with pytest.raises(AssertionError, match="answer 1 of PyTorch in test is missing"):
        asked([X, 2], lambda: None)


def test_what_is_raised_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By PyTorch and from a file; an answer that cannot be kept is no error of PyTorch's."""
    monkeypatch.setattr(kept, "FOLDER", tmp_path)
    first = Book("test_some")
    for book, live in ((first, True), (None, False)):
        asked = Answers(book or Book("test_some"), "test", live, write=live, more=False)
        with pytest.raises(NotImplementedError, match="not for Half"):
            asked("x", partial(_raise, NotImplementedError("not for Half")))
        first.write(keep=False)
    with pytest.raises(AssertionError, match="cannot be kept"):
        Answers(first, "test", live=True, write=True, more=False)("x", object)


def test_both_come_in_one_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kiln's and PyTorch's: tensors as `Peer`, errors by the names of their types; from a file as well."""
    monkeypatch.setattr(kept, "FOLDER", tmp_path)

    def run(library: Any, x: Any) -> Any:
        own = type("OwnError", (RuntimeError,), {})
        return library.tensor(x, dtype=library.float32, requires_grad=True), own

    first = Book("test_some")
    for book, live in ((first, True), (None, False)):
        # kiln in PyTorch's place: what it gives is known without it
        monkeypatch.setattr(backend, "torch", kiln if live else None)
        asked = Answers(book or Book("test_some"), "test", live, write=live, more=False)
        ours, theirs = asked.both(run, X)
        assert ours[1] is theirs[1] and ours[1].__name__ == "OwnError"
        for found in (ours[0], theirs[0]):
            assert type(found) is Peer and (found.dtype, found.requires_grad) == ("float32", True)
            assert np.array_equal(found.numpy(), X.astype(np.float32))
        first.write(keep=False)
    with pytest.raises(AssertionError, match="answer 1 of PyTorch in test is missing"):
        asked.both(run, X + 1)


def test_equal_seeds_fill_layers_alike() -> None:
    """Every parameter, with the draws of NumPy's; others of another seed."""
    one, two, other = (backend.filled(kiln, kiln.nn.Linear(2, 3), seed) for seed in (0, 0, 1))
    drawn = np.random.default_rng(0).normal(size=(3, 2)) * 0.5
    assert np.allclose(one.weight.detach().numpy(), drawn) and one.bias.requires_grad
    assert kiln.equal(one.weight, two.weight) and kiln.equal(one.bias, two.bias)
    assert not kiln.equal(one.weight, other.weight)


def _raise(error: Exception) -> None:
    raise error


def test_the_hash_sees_every_part_of_the_inputs() -> None:
    """Values, shapes, dtypes, types, text of functions, what they hold and their defaults."""

    def held(x: Any) -> Any:
        return lambda: x

    different = [
        X, X.astype("float32"), X[None], X[:6], [X], (X, 1), (X, 1.0), (X, True), (X, None), (X, "1"),
        {"x": X}, kiln.float32, kiln.float64,
        -X, np.arange(3), kiln.arange(3), slice(3), slice(1, 3), held(1), held(2),
        lambda x=1: x, lambda x=2: x,
    ]  # fmt: skip
    assert len({hash_of(v) for v in different}) == len(different)
    assert told(np.float32("nan")) == told(-np.float32("nan"))


def test_the_files_fit_in() -> None:
    """What is kept stays small, and there is a test file for each."""
    files = list(kept.FOLDER.iterdir())
    assert files and sum(os.path.getsize(f) for f in files) < 4 << 20
    assert {f.stem for f in files} <= {f.stem for f in kept.FOLDER.parent.rglob("test_*.py")}


def test_no_answer_is_of_a_test_that_is_gone(request: pytest.FixtureRequest) -> None:
    """Of the files that this run collected, whole."""
    config = request.config
    if config.option.keyword or any("::" in arg for arg in config.args) or find_spec("scipy") is None:
        pytest.skip("some tests are left out")
    collected: dict[str, set[str]] = {}
    for item in request.session.items:
        collected.setdefault(item.path.stem, set()).add(item.name)
    for file in kept.FOLDER.iterdir():
        if file.stem in collected:
            gone = set(Book(file.stem).kept) - collected[file.stem]
            assert not gone, f"{file.name}: {sorted(gone)[:3]}"


# -- which tests look at PyTorch ----------------------------------------------------------------------------

peer = ModuleType("torch")


def names_it() -> Any:
    return peer


def by_another() -> Any:
    return [names_it() for _ in range(1)]


PAIR, TABLE = (kiln, peer), {"name": (lambda k: peer, [1])}


def by_text() -> str:
    return "import torch"


def in_its_words_only() -> None:
    """torch"""


def without() -> Any:
    return kiln.ones(1)


def test_who_looks_at_pytorch() -> None:
    """By a name, another function, a text, what is held; not by the docstring."""
    held = peer
    looking = (names_it, by_another, by_text, lambda: held, lambda: by_another, lambda: PAIR, lambda: TABLE)
    assert all(map(peer_use.reaches, looking))
    assert not any(map(peer_use.reaches, (in_its_words_only, without, Book, 3)))
