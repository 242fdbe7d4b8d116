"""What wrong calls say, of every function, layer and optimizer: a sample of `make errors`, and what the scan
sees.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from backend import needs_torch

import kiln
from kiln.bars import Quiet
from kiln.testing import error_cases
from kiln.testing.error_cases import ErrorCall
from kiln.testing.error_scan import Found, Outcome, Scan, own_difference, peer_difference, run
from kiln.testing.mode_cases import Arguments

# of so many names, and of so many calls of those, one
NAMES, EVERY = (1, 1) if os.environ.get("KILN_TEST_FULL") else (7, 41)
DTYPES = ["float32", "int64"]


def test_a_sample_of_the_scan() -> None:
    found = list(Scan(0, peer=False).of(error_cases.names()[::NAMES], DTYPES, EVERY))
    assert [f"{one.call.label}: {one.what}" for one in found] == []


@needs_torch
def test_a_sample_of_the_scan_against_pytorch() -> None:
    found = list(Scan(0, peer=True).of(error_cases.names()[3 % NAMES :: NAMES], DTYPES, EVERY))
    assert [f"{one.call.label}: {one.what}" for one in found] == []


def _of(path: str, *args: Any, **kwargs: Any) -> ErrorCall:
    return ErrorCall(path, path, lambda: Arguments(args, kwargs))


def _seen(error: Exception) -> str | None:
    return own_difference(_of("add"), Outcome(error, {}))


def test_what_the_scan_sees() -> None:
    """What it reports, and what it lets pass."""
    assert (_seen(AttributeError("add: x")) or "").startswith("internal")
    assert (_seen(RecursionError("add: x")) or "").startswith("internal")
    assert (_seen(TypeError("add: 'int' object has no attribute 'shape'")) or "").startswith("inside")
    assert (_seen(TypeError("wrong")) or "").startswith("unnamed")
    assert _seen(TypeError("add(): argument 'input' (position 1) must be Tensor, not str")) is None
    meant = AssertionError("wrong")
    meant._without_name = "wrong"  # type: ignore[attr-defined]
    assert _seen(meant) is None
    right, warned = Outcome(None, {}), Outcome(None, {"UserWarning": "a text"})
    wrong, other = Outcome(TypeError("a"), {}), Outcome(ValueError("b"), {})
    assert (peer_difference(right, wrong) or "").startswith("takes")
    assert (peer_difference(wrong, right) or "").startswith("refuses")
    assert (peer_difference(wrong, other) or "").startswith("raises")
    assert (peer_difference(right, warned) or "").startswith("warns")
    assert peer_difference(Outcome(NotImplementedError("a"), {}), Outcome(RuntimeError("b"), {})) is None


def test_everything_public_is_called() -> None:
    """What modules besides the table define, each object under one name; nothing that changes the rest."""
    names = error_cases.names()
    assert {"jit.TracedModule", "fx.Proxy", "random.fork_rng", "masked.amax", "cuda.nvtx.range"} <= {*names}
    assert "random.manual_seed" not in names and kiln.random.manual_seed is kiln.manual_seed
    assert not any("register_module" in name or name.endswith(".save") for name in names)


def test_known_differences_that_are_met_no_more_are_reported() -> None:
    scan = Scan(0, peer=False)
    before = scan.unmet()
    call = _of("Size", 3)
    found: list[Found] = list(scan.one(call))
    assert found == [] and len(scan.unmet()) == len(before) - 1


x23 = kiln.ones(2, 3)
FLAGS = {
    "by name": lambda wrong: x23.amax(0, keepdim=wrong),
    "by place": lambda wrong: kiln.argmin(x23, 0, wrong),
    "of an op": lambda wrong: kiln.logsumexp(x23, 0, wrong),
    "of a method": lambda wrong: x23.sort(0, descending=wrong),
    "of a layer's function": lambda wrong: kiln.nn.functional.interpolate(
        kiln.ones(1, 1, 4), scale_factor=2.0, mode="linear", recompute_scale_factor=None, antialias=wrong
    ),
}


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("wrong", ["text", (0, 0), [1], 1.5, {}, b"x"], ids=repr)
def test_what_is_no_flag_is_refused(name: str, wrong: Any) -> None:
    """A text is true, and means something else."""
    with pytest.raises(TypeError, match=r"\(\): argument '\w+' must be bool, not "):
        FLAGS[name](wrong)
    FLAGS[name](False)


# the call -> what its message says
SAID: dict[str, tuple[ErrorCall, str]] = {
    "several tensors": (_of("atleast_1d", 3), r"atleast_1d\(\) received .* got \(int\), .* \(\*tensors\)"),
    "in place": (_of("nn.functional.hardtanh_", x23, "a"), r"hardtanh_\(\)"),
    "a method": (_of("Tensor.new_zeros", x23, {}), "new_zeros"),
    "out": (_of("amax", x23, out=3), r"amax\(\): argument 'out' must be Tensor"),
    "a constructor": (_of("nn.Linear", "text", 3), r"Linear\(\): argument 'in_features' .* must be int"),
    "of a base": (_of("nn.GRU", 3, None), "GRU: hidden_size should be of type int, got: NoneType"),
    "an optimizer": (_of("optim.Adam", 1.5), r"Adam\(\) received .* got \(float\)"),
    "a starting value": (_of("nn.init.normal_", 3), r"normal_\(\): argument 'tensor' .* must be Tensor"),
    "a parameter": (_of("nn.Parameter", 1.5), "Parameter: expected a tensor"),
    "NumPy's": (_of("hann_window", 1.5), r"hann_window.*: argument 'window_length' .*must be int, not float"),
    "a class that is made by hand": (_of("jit.TracedModule", 9, 1), r"TracedModule\(\) received .*got \(int"),
    "a class by its class": (_of("distributions.constraints.greater_than"), "GreaterThan"),
    "masked": (_of("masked.amax", 1.5, 0), r"masked.amax\(\): argument|masked.amax\(\) received"),
    "a window": (_of("signal.windows.hann", None), r"windows.hann\(\): argument 'M' .* must be int"),
    "an argument of any kind": (_of("utils.data.random_split", x23[0, 0], [1]), r"got \(Tensor, list of"),
    "a state": (_of("random.set_rng_state", []), "set_rng_state: set_state: RNG state must be"),
    "few dims": (_of("Tensor.unbind", kiln.tensor(1.0)), "Dimension specified as 0 but tensor has no dim"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_what_is_said(name: str) -> None:
    call, text = SAID[name]
    outcome = run(kiln, call)
    assert outcome is not None and own_difference(call, outcome) is None
    with pytest.raises(type(outcome.error), match=text):
        raise outcome.error  # type: ignore[misc]


def test_a_layers_error_keeps_the_traceback_of_its_call() -> None:
    """An error in place of another: the line of the call and no line of kiln's."""
    with pytest.raises(TypeError, match=r"BatchNorm1d\(\) received an invalid .* got \(str\)") as caught:
        kiln.nn.Sequential(kiln.nn.BatchNorm1d(3))("x")
    assert [entry.name for entry in caught.traceback] == [
        "test_a_layers_error_keeps_the_traceback_of_its_call"
    ]
    assert caught.value.__suppress_context__


MISTAKES = {
    "of outputs and inputs": (
        lambda: kiln.autograd.grad(x23, x23),
        RuntimeError,
        "element 0 of tensors does not require grad",
    ),
    "of v and the function": (
        lambda: kiln.autograd.functional.vhp(None, kiln.ones(2)),
        RuntimeError,
        "The vector v can only be None",
    ),
    "of two matrices": (
        lambda: kiln.distributions.Wishart(3.0, kiln.eye(2), kiln.ones(2)),
        AssertionError,
        "Exactly one of",
    ),
    "of a size and a ratio": (
        lambda: kiln.nn.FractionalMaxPool3d(2, 2, output_ratio=x23),
        ValueError,
        "only one of output_size",
    ),
    "of a device and a flag": (lambda: x23.cuda(0, "text"), TypeError, "non_blocking"),
    "of a storage's element": (lambda: kiln.FloatStorage(2)[None], RuntimeError, "can't index a kiln.Typed"),
    "of a byte": (lambda: kiln.UntypedStorage(2)["a"], TypeError, "can't index a kiln.Untyped"),
    "of memory to copy": (lambda: kiln.FloatStorage(2).copy_((0, 0)), TypeError, "argument 'src'"),
    "of an operator's device": (lambda: kiln.library.impl("a::b", (0,), len), TypeError, "library.impl"),
    "of no samples": (lambda: kiln.utils.data.default_collate({}), IndexError, "default_collate: list index"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_of_several_mistakes_pytorchs_is_told(name: str) -> None:
    call, error, text = MISTAKES[name]
    with pytest.raises(error, match=text):
        call()


def test_a_bar_takes_what_has_no_one_truth() -> None:
    """A tensor is gone through as any items are."""
    assert [float(x) for x in Quiet(kiln.tensor([0.0, 2.0]))] == [0.0, 2.0]
