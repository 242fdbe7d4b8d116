"""What PyTorch warns of, and what it refuses by looking at values: so does kiln, on the same line."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_kiln, torch

pytestmark = needs_kiln

NAN = float("nan")
# the call -> a part of each warning's text; k is the framework, F its nn.functional
WARNED: dict[str, tuple[Callable[[Any, Any], Any], list[str]]] = {
    "mse_loss": (lambda k, F: F.mse_loss(k.zeros(3, 1), k.zeros(3)), ["likely lead to incorrect results"]),
    "l1_loss": (lambda k, F: F.l1_loss(k.zeros(3, 1), k.zeros(3)), ["likely lead to incorrect results"]),
    "smooth_l1": (lambda k, F: F.smooth_l1_loss(k.zeros(3, 1), k.zeros(3)), ["likely lead to incorrect"]),
    "huber_loss": (
        lambda k, F: F.huber_loss(k.zeros(3, 1), k.zeros(3)),
        ["likely lead to incorrect results"],
    ),
    "MSELoss": (lambda k, F: k.nn.MSELoss()(k.zeros(3, 1), k.zeros(3)), ["likely lead to incorrect results"]),
    "of one shape": (lambda k, F: F.mse_loss(k.zeros(3), k.zeros(3)), []),
    "kl_div": (lambda k, F: F.kl_div(k.zeros(3), k.zeros(3)), ["divides only by the batch size"]),
    "kl_div by the batch": (lambda k, F: F.kl_div(k.zeros(3), k.zeros(3), reduction="batchmean"), []),
    "softmax": (lambda k, F: F.softmax(k.zeros(3)), ["Implicit dimension choice for softmax"]),
    "log_softmax": (lambda k, F: F.log_softmax(k.zeros(3, 2)), ["Implicit dimension choice for log_softmax"]),
    "softmin": (lambda k, F: F.softmin(k.zeros(3, 2, 2)), ["Implicit dimension choice for softmin"]),
    "Softmax": (lambda k, F: k.nn.Softmax()(k.zeros(3)), ["Implicit dimension choice for softmax"]),
    "grid_sample": (
        lambda k, F: F.grid_sample(k.zeros(1, 1, 3, 3), k.zeros(1, 2, 2, 2)),
        ["align_corners=False since 1.3.0"],
    ),
    "meshgrid": (lambda k, F: k.meshgrid(k.ones(1), k.ones(1)), ["required to pass the indexing"]),
    "a tensor of a tensor": (lambda k, F: k.tensor(k.ones(1)), ["To copy construct from a tensor"]),
    "a mask of uint8": (
        lambda k, F: k.ones(3)[k.tensor([1, 0, 1], dtype=k.uint8)],
        ["indexing with dtype torch.uint8 is now deprecated"],
    ),
    "numbers before tensors": (lambda k, F: k.ones(1).add_(2, k.ones(1)), ["This overload of add_ is"]),
    "NumPy's numbers before tensors": (
        lambda k, F: k.ones(1).add_(np.float32(2), k.ones(1)),
        ["This overload of add_ is"],
    ),
    "kaiming_uniform_": (
        lambda k, F: k.nn.init.kaiming_uniform_(k.empty(0, 3)),
        ["Initializing zero-element tensors is a no-op"],
    ),
    "kaiming_normal_": (
        lambda k, F: k.nn.init.kaiming_normal_(k.empty(0, 3)),
        ["Initializing zero-element tensors is a no-op"],
    ),
    "a gradient of no leaf": (
        lambda k, F: (k.ones(1, requires_grad=True) * 1).grad,
        ["is not a leaf Tensor is being accessed"],
    ),
}
# PyTorch warns here and kiln does not, on purpose (more in test_warned_forms.py)
UNWARNED: dict[str, Callable[[Any, Any], Any]] = {
    "a read-only array, which kiln does not write": lambda k, F: k.from_numpy(_read_only()),
    "var of one element": lambda k, F: k.ones(1).var(),
}
# the call -> the exception's type and its words
REFUSED: dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str]] = {
    "a probability of 1.5": (
        lambda k, F: F.binary_cross_entropy(k.tensor([1.5]), k.tensor([1.0])),
        RuntimeError, "all elements of input should be between 0 and 1",
    ),
    "NaN for a probability": (
        lambda k, F: F.binary_cross_entropy(k.tensor([NAN]), k.tensor([1.0])),
        RuntimeError, "all elements of input should be between 0 and 1",
    ),
    "a target of -0.5": (
        lambda k, F: F.binary_cross_entropy(k.tensor([0.5]), k.tensor([-0.5])),
        RuntimeError, "all elements of target should be between 0 and 1",
    ),
    "another dtype": (
        lambda k, F: F.binary_cross_entropy(k.tensor([0.5]), k.tensor([1])),
        RuntimeError, "Found dtype Long but expected Float",
    ),
    "another shape": (
        lambda k, F: F.binary_cross_entropy(k.tensor([0.5, 0.5]), k.tensor([1.0])),
        ValueError, "Using a target size",
    ),
    "BCELoss": (
        lambda k, F: k.nn.BCELoss()(k.tensor([2.0]), k.tensor([1.0])),
        RuntimeError, "all elements of input should be between 0 and 1",
    ),
    "a chance of 1.5": (lambda k, F: k.bernoulli(k.tensor([1.5])), RuntimeError, "p_in <= 1"),
    "a negative rate": (lambda k, F: k.poisson(k.tensor([-1.0])), RuntimeError, ""),
    "a class out of range": (lambda k, F: F.one_hot(k.tensor([5]), 3), RuntimeError, "smaller than num"),
    "a quantile of 1.5": (lambda k, F: k.quantile(k.ones(3), k.tensor([1.5])), RuntimeError, "range"),
}  # fmt: skip


def _read_only() -> Any:
    import numpy as np

    return np.frombuffer(b"abcdabcd", dtype="float32")


def caught(call: Callable[[Any, Any], Any], framework: Any) -> list[Any]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call(framework, framework.nn.functional)
    return found


@pytest.mark.parametrize("name", WARNED)
def test_what_is_warned_of(name: str) -> None:
    call, texts = WARNED[name]
    for way in (call, kiln.compile(call)):
        found = caught(way, kiln)
        assert len(found) == len(texts) and all(t in str(w.message) for t, w in zip(texts, found))
        assert all(issubclass(w.category, UserWarning) for w in found)
        assert all(w.filename == __file__ for w in found)
    if torch is not None:
        torch.set_warn_always(True)
        theirs = caught(call, torch)
        torch.set_warn_always(False)
        assert len(theirs) == len(texts) and all(t in str(w.message) for t, w in zip(texts, theirs))


@pytest.mark.parametrize("name", UNWARNED)
def test_what_is_not_warned_of(name: str) -> None:
    assert not caught(UNWARNED[name], kiln)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_by_its_values(name: str) -> None:
    """On its line in every way of running: a `try` around it inside a compiled function catches it."""
    call, error, text = REFUSED[name]

    def inside(k: Any, F: Any) -> Any:
        try:
            call(k, F)
        except error as found:
            return str(found)
        return "not refused"

    for way in (inside, kiln.compile(inside), kiln.compile(inside, wait=True)):
        for _ in range(3):
            said = way(kiln, F := kiln.nn.functional)
            assert text in said and said != "not refused", F
    if torch is not None:
        assert text in inside(torch, torch.nn.functional)


def test_what_no_call_could_do_is_refused_when_it_is_made() -> None:
    for layer in (kiln.nn.Embedding, kiln.nn.EmbeddingBag):
        with pytest.raises(NotImplementedError, match=f"{layer.__name__}: expected dense gradients"):
            layer(3, 2, sparse=True)


def test_a_number_of_what_requires_gradients_is_warned_of_once() -> None:
    """In a process of its own: an earlier test may have been warned. Under no_grad nothing is lost by it."""
    program = (
        "import warnings, kiln\n"
        "warnings.simplefilter('always')\n"
        "x = kiln.ones(1, requires_grad=True)\n"
        "with kiln.no_grad():\n    float(x)\n"
        "print('before', flush=True)\n"
        "with warnings.catch_warnings(record=True) as found:\n"
        "    warnings.simplefilter('always')\n"
        "    float(x), float(x)\n"
        "print([str(w.message).split(chr(10))[0] for w in found])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    words = "Converting a tensor with requires_grad=True to a scalar may lead to unexpected behavior."
    assert (done.stdout, done.stderr) == (f"before\n{[words]}\n", "")
