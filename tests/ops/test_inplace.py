"""Writes in place: every program as PyTorch runs it, or refuses it; every op's saved values overwritten."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from backend import eager, kiln, torch
from inplace_programs import PROGRAMS
from test_ops import LIKE, SAMPLED, grad_dtypes, peer_case, peer_functions

from kiln.testing.compare import dtype_name, to_array
from kiln.testing.op_cases import Case, results_of, tensors

# what PyTorch's errors are known by
PHRASES = (
    "modified by an inplace operation",
    "is a view and is being modified inplace. This view is the output of a function that returns multiple",
    "its base or another view of its base has been modified inplace",
    "created in no_grad mode and is being modified inplace with grad mode enabled",
    "created in no_grad mode and its base or another view of its base has been modified inplace with grad",
    "a leaf Variable that requires grad is being used in an in-place operation",
    "a view of a leaf Variable that requires grad is being used in an in-place operation",
    "more than one element of the written-to tensor refers to a single memory location",
    "some elements of the input tensor and the written-to tensor refer to a single memory location",
    "functions with out=... arguments don't support automatic differentiation, but one of the arguments",
    "can't be cast to the desired output type",
    "Can't detach views in-place. Use detach() instead",
    "cannot resize variables that require grad",
    "doesn't match the broadcast shape",
)
COPIED = "the operand that the op itself overwrites is saved as a copy, so backward has it"
DIFFERS = {
    "view_of_view": COPIED,
    "view_of_view_grad_via_view": COPIED,
    "slices_iadd": COPIED,
    "mul_self_inplace": COPIED,
    "loop_view_updates_mul": COPIED,
    "leaky_neg_slope": COPIED,
    "param_data_set": "a graph keeps the memory it saw, whatever `.data =` puts in its place",
    "set_hist": "`set_` gives the tensor the history of what it looks at then",
}


def program(name: str) -> Callable[[Any], Any]:
    """The program as a function of the framework."""
    text = "\n".join(f"    {line}" for line in PROGRAMS[name].split("\n"))
    space: dict[str, Any] = {}
    exec(f"def run(K, leaf, const, back):\n{text}", space)

    def run(K: Any) -> Any:
        def drawn(shape: tuple[int, ...], seed: int, low: float = 0.125) -> Any:
            x = np.random.default_rng(seed).integers(-8, 9, shape) / 4 + low
            return K.tensor(np.asarray(x, np.float32).tolist())

        def back(y: Any, *xs: Any) -> list[Any]:
            y.backward(drawn(tuple(y.shape), 5, 0.0))
            return [x.grad for x in xs]

        def leaf(*shape: int, seed: int = 0) -> Any:
            return drawn(shape, seed).requires_grad_()

        return space["run"](K, leaf, lambda *shape: drawn(shape, 1), back)

    return run


def plain(value: Any) -> Any:
    """A result for comparison: arrays, and names of nodes that are not one of a library's own ops."""
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, str):
        return re.sub(r"(torch::autograd::)?(\w*Backwards?\d*|CopySlices)", _node, value)
    return (dtype_name(value.dtype), to_array(value)) if hasattr(value, "detach") else value


def _node(found: re.Match[str]) -> str:
    name = found[2].rstrip("0123456789")
    return name if name in ("AsStridedBackward", "CopySlices") else "node"


def outcome(run: Callable[[Any], Any], K: Any) -> Any:
    """What a program gave, or the error it raised."""
    try:
        return plain(run(K))
    except RuntimeError as error:
        return error


def assert_same(got: Any, want: Any) -> None:
    """Equal outcomes: errors of one class by the phrases they are known by, arrays within rounding."""
    if isinstance(want, Exception) or isinstance(got, Exception):
        assert isinstance(got, Exception) and isinstance(want, Exception), f"{got!r}\nbut in PyTorch {want!r}"
        assert type(got) is type(want)
        mine, theirs = ([p for p in PHRASES if p in str(e)] for e in (got, want))
        assert theirs, f"a phrase is missing for {want}"
        assert set(theirs) <= set(mine), f"{got}\nbut in PyTorch {want}"
    elif isinstance(want, list):
        assert len(got) == len(want)
        for x, y in zip(got, want, strict=True):
            assert_same(x, y)
    elif isinstance(want, tuple):
        assert (got[0], got[1].shape) == (want[0], want[1].shape)
        np.testing.assert_allclose(got[1], want[1], rtol=1e-5, atol=1e-6)
    else:
        assert got == want


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_pytorch_s(name: str, answers: Any) -> None:
    """A program gives PyTorch's values, gradients, versions and errors, eagerly and recorded."""
    run = program(name)
    want = answers([PROGRAMS[name], program], lambda: outcome(run, torch))
    for way in (eager, kiln.compile):
        got = outcome(way(run), kiln)
        if name not in DIFFERS:
            assert_same(got, want)
            continue
        with pytest.raises(AssertionError):
            assert_same(got, want)
        assert not isinstance(got, Exception), f"{DIFFERS[name]}: {got}"


# -- saved values ------------------------------------------------------------------------------------------

# Where overwriting makes kiln's backward raise, and PyTorch's not: PyTorch keeps an intermediate, an array
# more to write and to hold; backward here computes it again from arguments that are there anyway.
NARROWER = [n for n, e in SAMPLED.items() if e.tests.keeps_less]


def written(framework: Any, function: Callable[..., Any], given: Case, place: int | None) -> Any:
    """Gradients of `function` where the place-th tensor it was given was overwritten before backward (-1: its
    results). An error as it is; None where there is nothing to differentiate, or to write.
    """
    leaves = [x for x in _tensors(given) if x.requires_grad]
    made = _made(given)
    inputs = _tensors(made)
    results = [y for y in results_of(function(*made.args, **made.kwargs)) if y.requires_grad]
    if not results or any(y._base is not None or any(y is x for x in inputs) for y in results):
        return None  # views: tests of programs
    rng = np.random.default_rng(0)
    seeds = [np.asarray(rng.integers(-8, 9, size=tuple(y.shape)) / 4, np.float32) for y in results]
    try:
        if place == -1:
            for y in results:
                y.mul_(3)
        elif place is not None:
            _overwrite(inputs[place])
    except RuntimeError:
        return None  # expanded
    given_gradients = [framework.from_numpy(s).to(y.dtype) for s, y in zip(seeds, results, strict=True)]
    try:
        found = framework.autograd.grad(results, leaves, given_gradients, allow_unused=True)
    except RuntimeError as error:
        return error
    return [0 if g is None else to_array(g) for g in found]


def _tensors(case: Case) -> list[Any]:
    return [x for arg in (*case.args, *case.kwargs.values()) for x in results_of(arg)]


def _made(case: Case) -> Case:
    """The case whose leaves stand for results of an op."""

    def one(arg: Any) -> Any:
        if isinstance(arg, (list, tuple)):
            return type(arg)(map(one, arg))
        return arg * 1 if getattr(arg, "requires_grad", False) else arg

    return case._replace(args=tuple(map(one, case.args)), kwargs={k: one(v) for k, v in case.kwargs.items()})


def _overwrite(x: Any) -> None:
    kind = dtype_name(x.dtype)
    if "float" in kind:
        x.mul_(3)
    elif kind == "bool":
        x.logical_not_()
    else:
        x.zero_()


def peer_written(name: str, case: Case, place: int) -> Any:
    """PyTorch's gradients after a write, None, or that backward raises."""
    case = peer_case(case, "float32", grad=True)
    found = written(torch, peer_functions(name)[0], case, place)
    return found if found is None else isinstance(found, Exception)


def refusals(name: str, case: Case, answers: Any) -> list[str]:
    """Which tensors of a call, overwritten, make kiln's backward raise and PyTorch's not; -1: its results."""
    count = len(_tensors(tensors(kiln, case, "float32")))
    found = []
    for place in range(-1, count):
        got = written(kiln, SAMPLED[name].function, tensors(kiln, case, "float32", grad=True), place)
        if isinstance(got, Exception):
            if answers([case[:2], place], partial(peer_written, name, case, place)) is False:
                found.append(f"{case.label}, {place}")
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NARROWER)
def test_narrower_are(name: str, answers: Any) -> None:
    """What is listed there belongs there."""
    entry = SAMPLED[name]
    assert any(refusals(name, case, answers) for case in entry.cases("float32")), entry.tests.keeps_less


@pytest.mark.parametrize("name", [n for n, e in SAMPLED.items() if "float32" in grad_dtypes(e)])
def test_overwritten_values(name: str, answers: Any) -> None:
    """Whatever of an op's arguments and results is overwritten before backward: the gradient is the one it
    was, or backward raises; it raises where PyTorch's does not for named reasons only.
    """
    entry = SAMPLED[name]
    peers = name in LIKE and entry.tests.peer_gradient and not entry.tests.keeps_less
    for case in entry.cases("float32")[:1]:
        count = len(_tensors(tensors(kiln, case, "float32")))
        want = written(kiln, entry.function, tensors(kiln, case, "float32", grad=True), None)
        for place in range(-1, count if want is not None else -1):
            got = written(kiln, entry.function, tensors(kiln, case, "float32", grad=True), place)
            label = f"{case.label}, {'results' if place < 0 else f'argument {place}'} overwritten"
            if isinstance(got, Exception):
                assert "modified by an inplace operation" in str(got), label
                if peers:
                    theirs = answers([case[:2], place], partial(peer_written, name, case, place))
                    assert theirs is not False, label
            elif got is not None:
                for x, y in zip(got, want, strict=True):
                    factor = 3 if place < 0 else 1
                    np.testing.assert_allclose(x, factor * y, rtol=1e-4, atol=1e-5, err_msg=label)
