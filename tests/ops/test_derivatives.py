"""Derivatives of the whole table: against differences, and by their digits: the fused backward against the
one that `create_graph` runs op by op, second derivatives against PyTorch's, dtypes, undefined gradients.

tests/ops/test_subgradients.py has kinks and ties, tests/ops/test_linalg.py factors whose signs are free.
KILN_TEST_FULL=1 (`make gradcheck`): every sample drawn ten times, larger whole Jacobians, dtypes, layouts.
"""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from backend import WAYS, kiln, needs_kiln, torch
from test_ops import (
    LIKE,
    SAMPLED,
    all_cases,
    call,
    grad_dtypes,
    leaves_of,
    peer_case,
    peer_functions,
)

from kiln.testing.compare import close, difference, dtype_name, same_bits, to_array
from kiln.testing.layouts import LAYOUTS
from kiln.testing.op_cases import Case, Entry, expanded, results_of, tensors

FULL = os.environ.get("KILN_TEST_FULL") == "1"
DIFFERENTIABLE = [n for n, e in SAMPLED.items() if grad_dtypes(e) and not e.tests.straight_through]
SEEDS = range(10 if FULL else 1)
WHOLE = 300 if FULL else 40  # elements of inputs and results up to which whole Jacobians are compared
UNDERIVED = sorted(n for n, e in SAMPLED.items() if e.tests.underived)


# -- against differences ------------------------------------------------------------------------------------


def checked_cases(name: str) -> Iterator[Case]:
    """Every sample in float64, whether or not the record's grid has that dtype; with FULL in several
    draws, and pointwise ops in every shape.
    """
    entry = SAMPLED[name]
    for seed in SEEDS:
        cases = all_cases(entry, "float64", seed) if FULL else entry.cases("float64", seed)
        yield from (c._replace(label=f"{c.label}, seed {seed}") for c in cases)


def tolerances(leaves: list[Any], results: list[Any]) -> dict[str, Any]:
    """How gradcheck compares: an error of a difference is one of the results' last digits, and of a large
    Jacobian one product with random vectors is held to what an entry of a small one is.
    """
    values = np.concatenate([abs(to_array(y)).ravel() for y in results])
    atol = max(1e-5, 1e-8 * np.max(values, initial=0.0, where=np.isfinite(values)))
    size = max(sum(t.numel() for t in some) for some in (leaves, results))
    return {"atol": atol} if size <= WHOLE else {"atol": atol / size, "fast_mode": True}


@pytest.mark.parametrize("name", [*DIFFERENTIABLE, *UNDERIVED])
def test_differences(name: str) -> None:
    """First derivatives against central differences, second ones through create_graph."""
    entry = SAMPLED[name]
    for case in checked_cases(name):
        given = tensors(kiln, case, "float64", grad=True)
        leaves = leaves_of(given)
        if entry.tests.underived:  # by the second argument alone
            leaves.pop(0).requires_grad_(False)

        def fn(*_: Any, given: Case = given) -> Any:
            kiln.manual_seed(0)  # what is dropped stays the same
            return tuple(call(entry, given))

        # differences see nothing through float32, and nothing is there through integers
        smooth = [y for y in fn() if y.requires_grad and dtype_name(y.dtype) == "float64"]
        if smooth:
            kiln.autograd.gradcheck(fn, leaves, **tolerances(leaves, smooth))
            kiln.autograd.gradgradcheck(fn, leaves, **tolerances(leaves, smooth))
        else:
            assert name == "convert" or not leaves, case.label


# public function without samples of its own -> a program of an x of (4, 3)
UNSAMPLED = {
    "view": lambda x: x.view(2, 6),
    "native_channel_shuffle": lambda x: kiln.native_channel_shuffle(x.reshape(1, 4, 3, 1), 2),
    "lobpcg": lambda x: kiln.lobpcg(x.t() @ x, 1)[0],
    "view_as": lambda x: x.view_as(x.t()),
    "view_copy": lambda x: kiln.view_copy(x, (3, 4)),
    "reshape_as": lambda x: x.t().reshape_as(x),
    "flatten": lambda x: x.t().flatten(),
    "unflatten": lambda x: x.unflatten(0, (2, -1)),
    "transpose": lambda x: x.transpose(0, -1),
    "transpose_copy": lambda x: kiln.transpose_copy(x, 0, 1),
    "t": lambda x: x.t(),
    "t_copy": lambda x: kiln.t_copy(x),
    "movedim": lambda x: x[None].movedim((0, 1), (2, 0)),
    "permute_copy": lambda x: kiln.permute_copy(x, (1, 0)),
    "squeeze": lambda x: x[:, None].squeeze(1),
    "squeeze_copy": lambda x: kiln.squeeze_copy(x[:1]),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "unsqueeze_copy": lambda x: kiln.unsqueeze_copy(x, 1),
    "expand_as": lambda x: x[:1].expand_as(x),
    "expand_copy": lambda x: kiln.expand_copy(x, (2, 4, 3)),
    "broadcast_to": lambda x: kiln.broadcast_to(x[:, :1], (4, 2)),
    "sum_to_size": lambda x: x.sum_to_size(1, 3),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "narrow_copy": lambda x: kiln.narrow_copy(x, 0, -2, 2),
    "select": lambda x: x.select(1, -1),
    "select_copy": lambda x: kiln.select_copy(x, 0, 2),
    "slice_copy": lambda x: kiln.slice_copy(x, 0, 1, None, 2),
    "diagonal_copy": lambda x: kiln.diagonal_copy(x, 1),
    "unfold_copy": lambda x: kiln.unfold_copy(x, 0, 3, 1),
    "as_strided_copy": lambda x: kiln.as_strided_copy(x, (3, 3), (1, 2), 1),
    "alias_copy": lambda x: kiln.alias_copy(x),
    "cat": lambda x: kiln.cat([x, x.t()[:2, :3], x]),
    "stack": lambda x: kiln.stack([x, x * 2], 1),
    "unbind": lambda x: x.unbind(1),
    "unbind_copy": lambda x: kiln.unbind_copy(x),
    "split": lambda x: x.split([1, 3]),
    "split_copy": lambda x: kiln.split_copy(x, 3),
    "split_with_sizes_copy": lambda x: kiln.split_with_sizes_copy(x, [2, 1], 1),
    "chunk": lambda x: x.chunk(3),
    "as_tensor": lambda x: kiln.as_tensor(x),
    "max": lambda x: (x.max(), x.max(1)[0], kiln.max(x, x.flip(0))),
    "min": lambda x: (x.min(), x.min(0)[0], kiln.min(x, x.flip(1))),
    "frexp": lambda x: kiln.frexp(x)[0],
    "cross_entropy": lambda x: [
        kiln.nn.functional.cross_entropy(x, kiln.tensor([2, 0, -100, 1]), x[0].exp(), label_smoothing=0.1),
        kiln.nn.functional.cross_entropy(x, x.softmax(1), reduction="sum"),
    ],
    "multilabel_margin_loss": lambda x: kiln.nn.functional.multilabel_margin_loss(
        x, kiln.tensor([[0, 2, -1], [1, -1, 0], [2, 1, 0], [-1, 0, 0]])
    ),
    "linalg.solve_ex": lambda x: kiln.linalg.solve_ex(x.t() @ x, x[:3])[0],
    "linalg.lu_factor_ex": lambda x: kiln.linalg.lu_factor_ex(x)[0],
    "linalg.ldl_solve": lambda x: kiln.linalg.ldl_solve(*kiln.linalg.ldl_factor(spd(4)), x),
    "ormqr": lambda x: kiln.ormqr(x, x[0] * 0.3, x[:, :2], transpose=True),
    "svd_lowrank": lambda x: kiln.svd_lowrank(x, 2)[1],
    "pca_lowrank": lambda x: kiln.pca_lowrank(x, 3)[1],
}
NO_HISTORY = {"tensor", "detach_copy"}
# whose gradient is on purpose not that of what they compute: tests/ops/test_fake_quantization.py
STRAIGHT_THROUGH = {"fake_quantize_per_tensor_affine", "fake_quantize_per_channel_affine"}


def spd(n: int) -> Any:
    """A symmetric positive definite matrix."""
    return kiln.eye(n, dtype=kiln.float64) * n + 1


@needs_kiln
@pytest.mark.parametrize("name", UNSAMPLED)
def test_differences_of_the_others(name: str) -> None:
    """Views, their copies, and what else has no samples in the table."""
    if name.startswith("linalg.") or name == "ormqr":
        pytest.importorskip("scipy")

    def fn(x: Any) -> Any:
        kiln.manual_seed(0)
        return UNSAMPLED[name](x)

    x = kiln.from_numpy(np.random.default_rng(3).normal(size=(4, 3))).clone().requires_grad_()
    kiln.autograd.gradcheck(fn, x)
    kiln.autograd.gradgradcheck(fn, x)


@needs_kiln
def test_every_function_is_checked() -> None:
    """By its samples, here, or among the factors of tests/ops/test_linalg.py."""
    facts = importlib.import_module("kiln.table.public").FACTS
    factors = {key.split()[0].removeprefix("torch.") for key in pytest.importorskip("test_linalg").FREE}
    rest = {n for n, f in facts.items() if f.differentiable and n not in SAMPLED}
    rest -= NO_HISTORY | STRAIGHT_THROUGH
    assert not {n for n in rest - set(UNSAMPLED) if n.rpartition(".")[2] not in factors}


# -- the fused backward -------------------------------------------------------------------------------------


def cotangent(k: Any, y: Any, seed: int) -> Any:
    """A gradient that no dtype rounds."""
    rng = np.random.default_rng(seed)
    values = np.asarray(rng.integers(-8, 9, size=tuple(y.shape)) / 4, np.float32)
    return k.from_numpy(values.copy()).to(y.dtype)


def layouts_of(name: str) -> tuple[str, ...]:
    """The layouts an op is to be blind to."""
    return SAMPLED[name].layouts


def runs(name: str) -> Iterator[tuple[Case, str, str]]:
    """(case, dtype, layout): every sample in float32, contiguous; with FULL in every dtype and layout.

    That layouts change no bit of the fused backward, nor of any op, tests/ops/test_ops.py says.
    """
    entry = SAMPLED[name]
    for dtype in [d for d in grad_dtypes(entry) if FULL or d == "float32"]:
        for case in all_cases(entry, dtype) if FULL else entry.cases(dtype):
            for layout in layouts_of(name) if FULL else LAYOUTS[:1]:
                yield (expanded(case) if layout == "expanded" else case), dtype, layout


def gradients(entry: Entry, given: Case, create_graph: bool) -> list[Any]:
    """The gradients of a case's leaves, None where there is none."""
    ys, leaves = [y for y in call(entry, given) if y.requires_grad], leaves_of(given)
    if not ys or not leaves:
        return []
    seeds = [cotangent(kiln, y, k) for k, y in enumerate(ys)]
    found = kiln.autograd.grad(ys, leaves, seeds, allow_unused=True, create_graph=create_graph)
    return list(found)


@needs_kiln
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_create_graph_has_the_same_bits(name: str) -> None:
    """The fused backward and its steps as ops: every bit, and None in the same places."""
    entry = SAMPLED[name]
    for case, dtype, layout in runs(name):
        fused, stepped = (
            gradients(entry, tensors(kiln, case, dtype, layout, grad=True), way) for way in (False, True)
        )
        for k, (x, y) in enumerate(zip(fused, stepped, strict=True)):
            where = f"{case.label} {layout}, gradient {k}"
            assert (x is None) == (y is None), where
            if x is not None:
                a, b = to_array(x), to_array(y)
                assert same_bits(a, b), f"{where}: {difference(a, b)}"


@needs_kiln
def test_numbers_made_of_numbers_stay_numbers() -> None:
    """Under create_graph `n - 1` of a derivative is no tensor of no dims, which would widen float32 ones."""
    rng = np.random.default_rng(0)
    for value, exponent in rng.uniform(0.1, 4.0, (100, 2)).tolist():
        x = kiln.tensor(value, requires_grad=True)
        fused, stepped = (
            kiln.autograd.grad(x**exponent, x, create_graph=create)[0] for create in (False, True)
        )
        assert stepped.dtype == kiln.float32
        assert same_bits(to_array(fused), to_array(stepped)), (value, exponent)


# -- second derivatives -------------------------------------------------------------------------------------


def second(k: Any, results: list[Any], leaves: list[Any]) -> tuple[list[Any], list[Any]]:
    """First gradients by the leaves, and theirs by leaves and the results' gradients; zeros where none is."""
    ys = [y for y in results if y.requires_grad]
    if not ys or not leaves:
        return [], []
    seeds = [cotangent(k, y, n).requires_grad_() for n, y in enumerate(ys)]
    first = k.autograd.grad(ys, leaves, seeds, allow_unused=True, create_graph=True)
    smooth = [g if g is not None and g.requires_grad else None for g in first]
    weights = [None if g is None else cotangent(k, g, 9 + n) for n, g in enumerate(smooth)]
    found: Any = [None] * (len(leaves) + len(seeds))
    if any(g is not None for g in smooth):
        used = [(g, w) for g, w in zip(smooth, weights) if g is not None]
        found = k.autograd.grad(
            [g for g, _ in used], [*leaves, *seeds], [w for _, w in used], allow_unused=True
        )
    given = [*leaves, *seeds]
    whole = [
        k.zeros_like(x) if g is None else g.detach() for g, x in zip([*first, *found], [*leaves, *given])
    ]
    return whole[: len(leaves)], whole[len(leaves) :]


def peer_derived(derive: Any, name: str, case: Case, dtype: str) -> Any:
    """What `derive` gives of PyTorch's function, or None where that has no such derivative."""
    theirs = peer_case(case, dtype, grad=True)
    try:
        results = results_of(peer_functions(name)[0](*theirs.args, **theirs.kwargs))
        return derive(torch, results, leaves_of(theirs))
    except (RuntimeError, NotImplementedError):  # it differentiates once, or not by all it is given
        return None


@pytest.mark.parametrize(
    "name",
    [n for n in DIFFERENTIABLE if n in LIKE and not SAMPLED[n].tests.sees_layout],
)
def test_second_derivatives_are_pytorch(name: str, answers: Any) -> None:
    """First and second derivatives in float64, to 1e-10, where PyTorch has them."""
    entry = SAMPLED[name]
    for case in entry.cases("float64"):
        given, factor = tensors(kiln, case, "float64", grad=True), 1e3 if entry.tests.rough_peer else 1.0
        want = answers(case[:2], partial(peer_derived, second, name, case, "float64"), factor)
        if want is None:
            continue
        got = second(kiln, call(entry, given), leaves_of(given))
        for order in range(2):
            for k, (x, y) in enumerate(zip(got[order], want[order])):
                a, b = to_array(x), to_array(y)
                if order:  # at the kink that 0 of an empty product is, PyTorch's is NaN
                    a = np.where(np.isnan(b), b, a)
                assert close(a, b, "float64", factor), (
                    f"{case.label}, order {order + 1}, {k}: {difference(a, b)}"
                )


# -- history ------------------------------------------------------------------------------------------------


def history(k: Any, results: list[Any], leaves: list[Any]) -> list[Any]:
    """For each leaf whether its gradient has a history, or is None; and to which leaves that leads."""
    ys = [y for y in results if y.requires_grad]
    seeds = [cotangent(k, y, n) for n, y in enumerate(ys)]
    found: list[Any] = []
    for g in k.autograd.grad(ys, leaves, seeds, allow_unused=True, create_graph=True) if ys else ():
        found.append(None if g is None else g.requires_grad)
        if found[-1]:
            try:
                again = k.autograd.grad(g.sum(), leaves, allow_unused=True, retain_graph=True)
                found[-1] = [h is not None for h in again]
            except RuntimeError:
                assert k is torch
    return found


@pytest.mark.parametrize("name", [n for n in DIFFERENTIABLE if n in LIKE])
@pytest.mark.filterwarnings("ignore")
def test_gradients_have_the_history_of_pytorch_s(name: str, answers: Any) -> None:
    """A gradient whose own is zero everywhere has a history where PyTorch's has: a second grad gives zeros.

    The gradients that come in have none: what is seen is that of the values backward reads.
    """
    entry, differ = SAMPLED[name], []
    dtype = "float64" if "float64" in grad_dtypes(entry) else "float32"
    for case in entry.cases(dtype):
        want = answers(case[:2], partial(peer_derived, history, name, case, dtype))
        if want is None:
            continue
        given = tensors(kiln, case, dtype, grad=True)
        got = history(kiln, call(entry, given), leaves_of(given))
        for x, y in zip(got, want):  # True: PyTorch's cannot be differentiated again
            if x != y and not (y is True and isinstance(x, list)):
                differ.append((case.label, x, y))
    assert bool(differ) == bool(SAMPLED[name].tests.history), differ


STEPS = {
    "relu": lambda k, x: k.relu_(x),
    "leaky_relu": lambda k, x: k.nn.functional.leaky_relu_(x, 0.5),
    "hardtanh": lambda k, x: k.nn.functional.hardtanh_(x),
    "relu6": lambda k, x: k.nn.functional.relu6(x, inplace=True),
    "threshold": lambda k, x: k.threshold_(x, 0.25, 2.0),
    "rrelu": lambda k, x: k.rrelu_(x, 0.5, 0.5, True),
    "hardshrink": lambda k, x: k.hardshrink(x),
    "max_pool": lambda k, x: k.nn.functional.max_pool1d(x, 2),
    "avg_pool": lambda k, x: k.nn.functional.avg_pool1d(x, 3, 1),
    "adaptive_avg_pool": lambda k, x: k.nn.functional.adaptive_avg_pool1d(x, 3),
    "pad": lambda k, x: k.nn.functional.pad(x, (1, 2), mode="reflect"),
    "nll_loss": lambda k, x: k.nn.functional.nll_loss(x, k.tensor([0, 2])),
}


@WAYS
@pytest.mark.parametrize("name", STEPS)
def test_steps_in_place_and_recorded(name: str, way: Any, answers: Any) -> None:
    """A derivative by steps, of what was written in place too: the gradient's history is that of zeros."""

    def slopes(k: Any) -> list[Any]:
        x = k.tensor([[-2.0, 0.125, 0.5, 7.0], [1.0, -0.5, 0.0, -9.0]]).requires_grad_()
        y = STEPS[name](k, x * 1)
        (g,) = k.autograd.grad(y.sum(), x, create_graph=True)
        (h,) = k.autograd.grad((g * g).sum() + (x**3).sum(), x)
        return [g.requires_grad, g.tolist(), h.tolist()]

    assert way(lambda: slopes(kiln))() == answers([slopes, STEPS[name]], lambda: slopes(torch))


def squares(gradients: list[Any]) -> Any:
    """The sum of squares of those that have a history."""
    smooth = [g.square().sum() for g in gradients if g is not None and g.requires_grad]
    return sum(smooth[1:], smooth[0]) if smooth else None


def two_orders(entry: Entry, given: Case) -> list[Any]:
    """The gradients of the results' squares, and those of their squares."""
    leaves, loss, found = leaves_of(given), squares(call(entry, given)), []
    for order in range(2 if leaves else 0):
        if loss is not None:
            last = kiln.autograd.grad(loss, leaves, allow_unused=True, create_graph=order == 0)
            found += [None if g is None else g.detach() for g in last]
            loss = squares(last)
    return found


@needs_kiln
@pytest.mark.parametrize(
    "name", DIFFERENTIABLE if FULL else ["layer_norm", "prod", "norm", "gather", "concat", "where"]
)
def test_two_orders_recorded(name: str) -> None:
    """First sight, second and third of a region that differentiates twice: bits, and None, as eager."""
    entry = SAMPLED[name]
    for case in entry.cases("float32"):
        found = []
        recorded = kiln.compile(lambda given: two_orders(entry, given), wait=True)
        for run in (partial(two_orders, entry), recorded, recorded, recorded):
            kiln.manual_seed(0)  # what is dropped stays the same
            found.append(run(tensors(kiln, case, "float32", grad=True)))
        for sight, got in enumerate(found):
            for k, (x, y) in enumerate(zip(found[0], got, strict=True)):
                where = f"{case.label}, call {sight}, gradient {k}"
                assert (x is None) == (y is None), where
                assert x is None or same_bits(to_array(x), to_array(y)), where


# -- dtypes -------------------------------------------------------------------------------------------------

MIXED = {
    "add": lambda k, x, y: x + y,
    "mul": lambda k, x, y: x * y,
    "div": lambda k, x, y: x / y,
    "pow": lambda k, x, y: x**y,
    "hypot": lambda k, x, y: k.hypot(x, y),
    "xlogy": lambda k, x, y: k.xlogy(x, y),
    "xlog1py": lambda k, x, y: k.special.xlog1py(x, y),
    "maximum": lambda k, x, y: k.maximum(x, y),
    "where": lambda k, x, y: k.where(x > 1, x, y),
    "fmod": lambda k, x, y: k.fmod(x, y),
    "addcmul": lambda k, x, y: k.addcmul(x, y, y),
    "cat": lambda k, x, y: k.cat([x.reshape(-1), y.reshape(-1)]),
    "copysign": lambda k, x, y: k.copysign(x, y),
    "cast": lambda k, x, y: x.to(y.dtype) * y,
    "copy_": lambda k, x, y: (x * 1).copy_(y.reshape(-1)[0]),
    "add_": lambda k, x, y: (x * 1).add_(y.reshape(-1)[0]),
    "sum in float64": lambda k, x, y: x.sum(dtype=k.float64) * y.sum(),
    "mse_loss": lambda k, x, y: k.nn.functional.mse_loss(x, y),
    "l1_loss": lambda k, x, y: k.nn.functional.l1_loss(x, y, reduction="none"),
    "smooth_l1_loss": lambda k, x, y: k.nn.functional.smooth_l1_loss(x, y),
    "softmax in float64": lambda k, x, y: x.reshape(-1).softmax(0, dtype=k.float64) * y.sum(),
}
OF_MIXED = [
    ("float32", "float64"),
    ("float64", "float32"),
    ("float32", "int64"),
    ("int64", "float64"),
    ("bfloat16", "float32"),
    ("float16", "int64"),
    ("bool", "float32"),
]


def operand(k: Any, dtype: str, dims: int, values: list[float]) -> Any:
    x = k.tensor(values if dims else values[0]).to(getattr(k, dtype))
    return x.requires_grad_() if "float" in dtype else x


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.filterwarnings("ignore")
def test_dtypes_of_gradients(name: str, answers: Any) -> None:
    """Of two dtypes, with and without dims: each gradient in its leaf's dtype, to the digits of the lower."""

    def slopes(k: Any, a: str, b: str, dims: tuple[int, ...]) -> Any:
        x, y = operand(k, a, dims[0], [1.5, 2.0, 2.75]), operand(k, b, dims[1], [2.5, 1.25, 3.0])
        try:
            result = MIXED[name](k, x, y)
            leaves = [t for t in (x, y) if t.requires_grad]
            seed = k.tensor(np.linspace(0.5, 2, result.numel()).reshape(tuple(result.shape)).tolist())
            return k.autograd.grad(result, leaves, seed.to(result.dtype), allow_unused=True)
        except (RuntimeError, NotImplementedError) as error:
            return type(error).__name__

    for (a, b), dims in itertools.product(OF_MIXED, itertools.product((0, 1), repeat=2)):
        got = slopes(kiln, a, b, dims)
        want = answers([slopes, MIXED[name], a, b, dims], partial(slopes, torch, a, b, dims))
        found = [got, want]
        assert isinstance(got, str) == isinstance(want, str), (a, b, dims, found)
        digits = "bfloat16" if "bfloat16" in (a, b) else "float16" if "float16" in (a, b) else "float32"
        for u, v in zip(*((), ()) if isinstance(got, str) else (got, want), strict=True):
            assert (u is None) == (v is None), (a, b, dims)
            if u is not None:
                assert (dtype_name(u.dtype), tuple(u.shape)) == (dtype_name(v.dtype), tuple(v.shape))
                assert close(to_array(u), to_array(v), digits, 4.0), f"{a} {b} {dims}: {u} and {v}"


@needs_kiln
def test_operands_come_promoted() -> None:
    """A rule sees its operands in the op's dtype: no logarithm in float32 of an integer beside float64."""
    x = kiln.tensor(1.5, dtype=kiln.float64, requires_grad=True)
    for other in (kiln.tensor(2), kiln.tensor(2, dtype=kiln.uint8), kiln.tensor(2.0), 2):
        for function, slope in (
            (lambda y: kiln.xlogy(x, y), np.log(2.0)),
            (lambda y: kiln.special.xlog1py(x, y), np.log(3.0)),
            (lambda y: kiln.tensor(1.0, dtype=kiln.float64) * y**x, 2**1.5 * np.log(2.0)),
        ):
            (g,) = kiln.autograd.grad(function(other), x)
            assert g.item() == pytest.approx(slope, rel=1e-15 * 4)


# -- undefined gradients ------------------------------------------------------------------------------------

# op -> a call with several results, of which a program may use one
SEVERAL = {
    "std_mean": (lambda k, x: k.std_mean(x, 1), [[3.0], [4.0]]),
    "var_mean": (lambda k, x: k.var_mean(x, 1, correction=0), [[3.0, 3.0], [4.0, 5.0]]),
    "aminmax": (lambda k, x: k.aminmax(x, dim=1), [[1.0, 1.0], [4.0, 5.0]]),
    "unbind": (lambda k, x: k.log(x).unbind(1), [[0.0, 1.0], [0.0, 2.0]]),
    "split": (lambda k, x: x.sqrt().split(1, 1), [[0.0, 1.0], [0.0, 4.0]]),
    "meshgrid": (lambda k, x: k.meshgrid(x[0].sqrt(), x[1], indexing="ij"), [[0.0, 1.0], [0.0, 4.0]]),
    "slogdet": (lambda k, x: k.linalg.slogdet(x)[1:], [[2.0, 1.0], [1.0, 4.0]]),
    "eigh": (lambda k, x: (k.linalg.eigh(x)[0], k.linalg.eigh(x)[1] ** 2), [[2.0, 0.0], [0.0, 2.0]]),
    "qr": (lambda k, x: k.linalg.qr(x), [[2.0, 1.0], [1.0, 4.0]]),
    "lu": (lambda k, x: k.linalg.lu(x), [[2.0, 1.0], [1.0, 4.0]]),
    "batched": (lambda k, x: (x.exp(), x.log()), [[0.0, 1.0], [0.0, 2.0]]),
}


@WAYS
@pytest.mark.parametrize("name", SEVERAL)
def test_one_of_several_results(name: str, way: Any, answers: Any) -> None:
    """The others' gradients are undefined, not zeros: 0 times infinity would be a NaN."""
    program, values = SEVERAL[name]

    def slopes(k: Any) -> list[Any]:
        found = []
        x = k.tensor(values, dtype=k.float64).requires_grad_()
        for j, y in enumerate(program(k, x)):
            if y.requires_grad:
                seed = k.tensor(np.linspace(1, 2, y.numel()).reshape(tuple(y.shape)), dtype=k.float64)
                found.append(k.autograd.grad(program(k, x)[j], x, seed, allow_unused=True)[0])
        return found

    wanted = answers([slopes, SEVERAL[name]], lambda: slopes(torch))
    for got, want in zip(way(lambda: slopes(kiln))(), wanted, strict=True):
        assert (got is None) == (want is None)
        if got is not None:
            np.testing.assert_allclose(to_array(got), to_array(want), 1e-10, 1e-12)


def test_none_passes_none(answers: Any) -> None:
    """A result that was not used sends nothing into what it was made of, hooks and Functions included."""

    def run(k: Any) -> Any:
        seen: list[Any] = []

        class Two(k.autograd.Function):  # type: ignore[misc, name-defined]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.set_materialize_grads(False)
                return x.sqrt(), x * 2

            @staticmethod
            def backward(ctx: Any, g: Any, h: Any) -> Any:
                seen.append((g is None, h is None))
                return h * 2

        x = k.tensor([0.0, 1.0], dtype=k.float64).requires_grad_()
        root, double = Two.apply(x)
        (g,) = k.autograd.grad(double.sum(), x)
        unused = (x * 3).sqrt()
        return g.tolist(), seen, k.autograd.grad((x * 1).sum(), unused, allow_unused=True)

    ours, theirs = answers.both(run)
    assert ours == theirs == ([2.0, 2.0], [(True, False)], (None,))
