"""Every op of the table, in every dtype, layout and way of running, against its reference, PyTorch and
itself.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any
from zlib import crc32

import answers as kept
import numpy as np
import pytest
from backend import kiln, needs_kiln, torch

from kiln.testing.compare import close, difference, dtype_name, freeze, same_bits, to_array
from kiln.testing.layouts import LAYOUTS
from kiln.testing.op_cases import Case, Entry, arrays_of, expanded, resized, results_of, rounded, tensors


def entries() -> dict[str, Entry]:
    """The table by name; empty while it cannot be imported (one test says so)."""
    try:
        if kiln.is_kiln:
            ops, public = map(importlib.import_module, ("kiln.ops", "kiln.table.public"))
            records = [*ops.table(), *public.records()]
        else:
            records = importlib.import_module("standin_table").table(torch)
    except (ImportError, AttributeError):
        return {}
    return {r.name: Entry(r) for r in records}


TABLE = entries()
SAMPLED = {
    name: e
    for name, e in TABLE.items()
    if e.record.samples is not None and find_spec(getattr(e.record, "needs", "") or "kiln")
}
each_op = pytest.mark.parametrize("name", SAMPLED)
FULL = os.environ.get("KILN_TEST_FULL") == "1"
# one dtype of each kind where every dtype would say the same; all of them with KILN_TEST_FULL=1
KINDS = ("float32", "bfloat16", "int64", "bool")
# Most of the time LLVM makes kernels. How a kernel goes through memory does not depend on what it computes:
# tests/codegen/test_codegen_nest.py has the shapes and strides in every dtype, test_codegen_scalar.py every
# operation in every type. So these stand for all pointwise ops where both vary,
SHAPED = ("abs", "logical_not", "add", "lt", "where")
# and these, more than a thousand operations and a second of LLVM for each kernel, have few shapes.
LARGE_BODIES = ("igamma", "igammac", "zeta")
PLAIN = ("float32", "int64")  # of plain functions, which are made of ops that are tested in every kind
EACH_DTYPE = [
    (n, d) for n, e in SAMPLED.items() for d in e.dtypes if d in (PLAIN if e.kind == "function" else e.dtypes)
]
each_dtype = pytest.mark.parametrize("name, dtype", EACH_DTYPE, ids=lambda x: str(x))


def turn(name: str, dtypes: tuple[str, ...]) -> list[str]:
    """One of the dtypes, each for its share of the functions; with FULL all."""
    return list(dtypes) if FULL or not dtypes else [dtypes[crc32(name.encode()) % len(dtypes)]]


def turns(e: Entry) -> list[str]:
    """A float dtype and another one of KINDS in turn; of plain functions float32 and int64."""
    kinds = tuple(d for d in e.dtypes if d in (PLAIN if e.kind == "function" else KINDS))
    return [
        d
        for floats in (True, False)
        for d in turn(e.name, tuple(k for k in kinds if ("float" in k) == floats))
    ]


each_kind = pytest.mark.parametrize(
    "name, dtype",
    [
        (n, d)
        for n, e in SAMPLED.items()
        for d in e.dtypes
        if d in (PLAIN if e.kind == "function" else KINDS) or FULL
    ],
    ids=lambda x: str(x),
)


# What depends on a dtype only in the middle of a kernel: each function in one dtype, or two, in turn.
each_turn = pytest.mark.parametrize("name, dtype", [(n, d) for n, e in SAMPLED.items() for d in turns(e)])
each_once = pytest.mark.parametrize(
    "name, dtype",
    [(n, d) for n, e in SAMPLED.items() for d in turn(n, tuple(k for k in e.dtypes if k in KINDS))],
)


def grad_dtypes(entry: Entry) -> list[str]:
    """The float dtypes in which an op's gradient exists."""
    derived = entry.differentiable and not entry.tests.underived
    return [d for d in entry.dtypes if "float" in d] if derived else []


def call(entry: Entry, case: Case) -> list[Any]:
    """The result's tensors of the op on a case of tensors."""
    return results_of(entry.function(*case.args, **case.kwargs))


def all_cases(entry: Entry, dtype: str, seed: int = 0) -> Iterator[Case]:
    """The op's samples, and for pointwise ops the first one in every other shape, in a dtype of each kind."""
    cases = entry.cases(dtype, seed)
    yield from cases
    every_shape = FULL or (dtype in KINDS and entry.name not in LARGE_BODIES)
    if entry.kind == "pointwise" and cases and every_shape:
        yield from resized(cases[0])


def laid_out_cases(entry: Entry, dtype: str) -> Iterator[Case]:
    """The op's samples in the first of its kinds, the first one in others; of SHAPED every shape."""
    if FULL or entry.name in SHAPED:
        return all_cases(entry, dtype)
    few = dtype != next((d for d in KINDS if d in entry.dtypes), "") or entry.name in LARGE_BODIES
    return iter(entry.cases(dtype)[: 1 if few else None])


def named(name: str) -> str | None:
    """The path of PyTorch's function where its entry says one."""
    return TABLE[name].tests.peer if name in TABLE else ""


def peer_functions(name: str) -> list[Any]:
    """PyTorch's functions of the same name, the documented one first where there are several."""
    homes = [torch.nn.functional, torch, torch.special, torch.Tensor] if torch is not None else []
    space, _, short = (named(name) or name).rpartition(".")
    homes = [getattr(torch, space)] if homes and space else homes
    return [getattr(home, short) for home in homes if hasattr(home, short)]


def names_of_peers() -> list[str]:
    """The functions of the table that PyTorch has too."""
    return sorted(n for n in TABLE if peer_functions(n))


PEERS = set(names_of_peers() if torch is not None else kept.constant("test_ops", "test_peers_are_known"))
LIKE = {n for n in PEERS if TABLE[n].has_peer}  # those that are called as it is


def test_peers_are_known(answers: Any) -> None:
    """Which functions PyTorch has is known of every function of the table."""
    assert PEERS == set(answers(sorted(TABLE), names_of_peers))


def test_the_table_is_there() -> None:
    """The table imports, is not empty, and public ops have samples and a sentence of documentation."""
    assert TABLE, "kiln.ops.table() could not be imported or is empty"
    if kiln.is_kiln:
        shown = {n: e for n, e in TABLE.items() if e.record.public}
        assert not [n for n, e in shown.items() if not e.record.doc], "ops without documentation"
        assert not [n for n, e in shown.items() if e.record.samples is None], "ops without samples"


@each_dtype
def test_reference(name: str, dtype: str) -> None:
    """Values as the NumPy reference computes them in float64, rounded to the result's dtype."""
    entry = SAMPLED[name]
    if entry.reference is None:
        pytest.skip("no reference")
    for case in all_cases(entry, dtype):
        got = call(entry, tensors(kiln, case, dtype))
        exact = rounded(kiln, case, dtype)
        with np.errstate(all="ignore"):
            expected = entry.reference(*exact.args, **exact.kwargs)
            expected = expected if isinstance(expected, (tuple, list)) else [expected]
            assert len(expected) == len(got), case.label
            for y, want in zip(got, map(np.asarray, expected), strict=True):
                to = dtype_name(y.dtype)
                value = to_array(y)
                want = want.astype(value.dtype)
                assert close(value, want, to), f"{case.label}: {difference(value, want)}"


@pytest.mark.parametrize("name, dtype", [(n, d) for n, d in EACH_DTYPE if n in LIKE])
def test_peer(name: str, dtype: str, answers: Any) -> None:
    """Shape, dtype and values as PyTorch's function of the same name."""
    entry = SAMPLED[name]
    for case in all_cases(entry, dtype):
        with where_peer_can():
            expected = answers(case[:2], partial(peer_results, name, case, dtype), rough(name, dtype))
        got = call(entry, tensors(kiln, case, dtype))
        assert len(expected) == len(got), case.label
        for y, want in zip(got, expected, strict=True):
            assert_close(y, want, case.label, rough(name, dtype))


def peer_results(name: str, case: Case, dtype: str, grad: bool = False) -> list[Any]:
    """The tensors that PyTorch's function gives."""
    given = peer_case(case, dtype, grad)
    return results_of(peer_functions(name)[0](*given.args, **given.kwargs))


@contextlib.contextmanager
def where_peer_can() -> Iterator[None]:
    """Skips where PyTorch has no such function of a dtype: some of its own take no float16."""
    try:
        yield
    except NotImplementedError as error:
        pytest.skip(f"PyTorch: {error}")


def rough(name: str, dtype: str) -> float:
    """How much more than rounding PyTorch's values may differ."""
    return 1e5 if TABLE[name].tests.rough_peer == "values" and dtype == "float64" else 1.0


def peer_case(case: Case, dtype: str, grad: bool = False) -> Case:
    """The case on PyTorch's tensors, with PyTorch's dtypes."""
    given = tensors(torch, case, dtype, grad=grad)
    return given._replace(
        kwargs={k: getattr(torch, v) if k == "dtype" else v for k, v in given.kwargs.items()}
    )


def assert_close(y: Any, want: Any, label: str, factor: float = 1.0) -> None:
    """Dtype, shape and values of one tensor as another's."""
    to = dtype_name(y.dtype)
    assert (to, tuple(y.shape)) == (dtype_name(want.dtype), tuple(want.shape)), label
    value, target = to_array(y), to_array(want)
    assert close(value, target, to, factor), f"{label}: {difference(value, target)}"


@pytest.mark.parametrize(
    "name, dtype",
    [
        (n, d)
        for n, e in SAMPLED.items()
        if n in LIKE and e.tests.peer_gradient
        for d in grad_dtypes(e)
        if e.kind != "function" or d in PLAIN
    ],
)
def test_gradient_peer(name: str, dtype: str, answers: Any) -> None:
    """Gradients in every float dtype as PyTorch's, from gradients that no dtype rounds."""
    entry = SAMPLED[name]
    for case in entry.cases(dtype):
        given = tensors(kiln, case, dtype, grad=True)
        ours = seeded(kiln, call(entry, given), leaves_of(given))
        with where_peer_can():
            wanted = answers(case[:2], partial(peer_seeded, name, case, dtype), 4.0 * rough(name, dtype))
        for x, y in zip(ours, wanted, strict=True):
            assert_close(x, y, f"{case.label}, gradient", 4.0 * rough(name, dtype))


def seeded(framework: Any, results: list[Any], leaves: list[Any]) -> list[Any]:
    """The gradients of the results that have one, from values that no dtype rounds."""
    rng, results = np.random.default_rng(0), [y for y in results if y.requires_grad]
    seeds = [np.asarray(rng.integers(-8, 9, size=tuple(y.shape)) / 4, np.float32) for y in results]
    return gradients(framework, results, leaves, seeds) if results else []


def peer_seeded(name: str, case: Case, dtype: str) -> list[Any]:
    """The same of PyTorch's function."""
    theirs = peer_case(case, dtype, grad=True)
    results = results_of(peer_functions(name)[0](*theirs.args, **theirs.kwargs))
    return seeded(torch, results, leaves_of(theirs))


def leaves_of(given: Case) -> list[Any]:
    """The tensors of a case that need gradients."""
    return [t for arg in (*given.args, *given.kwargs.values()) for t in results_of(arg) if t.requires_grad]


def gradients(framework: Any, results: list[Any], leaves: list[Any], seeds: list[Any]) -> list[Any]:
    """The gradient of each leaf from those of the results; zeros where there is none."""
    given = [framework.from_numpy(s.copy()).to(y.dtype) for s, y in zip(seeds, results)]
    found = framework.autograd.grad(results, leaves, given, allow_unused=True)
    return [framework.zeros_like(t) if g is None else g for t, g in zip(leaves, found)]


@each_once
def test_layouts(name: str, dtype: str) -> None:
    """The same bits whatever the layout of the operands, alone and mixed."""
    entry = SAMPLED[name]
    if entry.sees_layout:
        pytest.skip("sees the layout, as PyTorch's does: test_places and test_edges compare it")
    for case in laid_out_cases(entry, dtype):
        for layout in entry.layouts[1:]:
            plain = expanded(case) if layout == "expanded" else case
            want = [to_array(y) for y in call(entry, tensors(kiln, plain, dtype))]
            got = [to_array(y) for y in call(entry, tensors(kiln, plain, dtype, layout))]
            for x, y in zip(want, got, strict=True):
                assert same_bits(x, y), f"{case.label} {layout}: {difference(x, y)}"


def _names_places(name: str) -> bool:
    return SAMPLED[name].kind == "as_strided" and SAMPLED[name].tests.peer is not None


@pytest.mark.parametrize(
    "name, dtype",
    [(n, d) for n in SAMPLED if _names_places(n) for d in SAMPLED[n].dtypes],
)
def test_places(name: str, dtype: str, answers: Any) -> None:
    """An op that names places in its operand's memory sees the layout: as PyTorch sees it."""
    entry = SAMPLED[name]

    def theirs(case: Case, layout: str) -> list[Any]:
        args = tensors(torch, case, dtype, layout).args
        return results_of(peer_functions(name)[0](*[a[0] if a == (1,) else a for a in args]))

    for case in entry.cases(dtype):
        for layout in LAYOUTS[:-1]:  # an expanded operand's memory is too small for the places
            want = answers([case[:2], layout], partial(theirs, case, layout))
            assert_same(want, call(entry, tensors(kiln, case, dtype, layout)), f"{case.label} {layout}")


@pytest.mark.parametrize(
    "name, dtype",
    [
        (n, d)
        for n, e in SAMPLED.items()
        if not e.sees_layout
        for d in (KINDS if FULL else KINDS[:1])
        if d in grad_dtypes(e)
    ],
)
def test_gradient_layouts(name: str, dtype: str) -> None:
    """The same bits of gradients whatever the layout of the operands."""
    entry = SAMPLED[name]
    for case in entry.cases(dtype)[:1]:
        for layout in entry.layouts[1:]:
            plain = expanded(case) if layout == "expanded" else case
            want = run_with_gradients(entry, tensors(kiln, plain, dtype, grad=True))
            got = run_with_gradients(entry, tensors(kiln, plain, dtype, layout, grad=True))
            assert_same(want, got, f"{case.label} {layout}")


@each_op
def test_operands_are_not_written(name: str) -> None:
    """A function leaves its operands alone."""
    entry = SAMPLED[name]
    if name.endswith("_"):
        pytest.skip("an in-place op")
    for case in entry.cases(entry.dtypes[0]):
        given = tensors(kiln, case, entry.dtypes[0])
        before = freeze(given)
        call(entry, given)
        assert str(freeze(given)) == str(before), case.label


@needs_kiln
@pytest.mark.parametrize(
    "name, dtype",
    [(n, d) for n, e in SAMPLED.items() if hasattr(kiln.Tensor, f"{n}_") for d in turns(e)],
)
def test_in_place(name: str, dtype: str) -> None:
    """`x.name_(...)` writes what `name(x, ...)` gives into x and returns x, eagerly and recorded."""
    entry, method = SAMPLED[name], getattr(kiln.Tensor, f"{name}_")
    recorded = kiln.compile(lambda x, *args, **kwargs: method(x, *args, **kwargs))
    for case in entry.cases(dtype):
        given = tensors(kiln, case, dtype)
        (want, *more), x = call(entry, given), given.args[0]
        if more or not results_of(x) or (want.dtype, want.shape) != (x.dtype, x.shape):
            continue
        for way in (method, recorded, recorded):
            fresh = x.clone()
            assert way(fresh, *given.args[1:], **given.kwargs) is fresh
            assert_same([want], [fresh], case.label)


def run_with_gradients(entry: Entry, given: Case) -> list[Any]:
    """The op's results and the gradients of their sum of squares by every float operand."""
    results = call(entry, given)
    leaves = leaves_of(given)
    loss = [(y * y).sum() for y in results if y.requires_grad]
    if not loss or not leaves:
        return results
    total = loss[0]
    for more in loss[1:]:
        total = total + more
    grads = kiln.autograd.grad(total, leaves, allow_unused=True)
    return [y.detach() for y in results] + [g for g in grads if g is not None]


def assert_same(expected: list[Any], got: list[Any], label: str) -> None:
    """Bits of two lists of tensors."""
    assert len(expected) == len(got), label
    for x, y in zip(map(to_array, expected), map(to_array, got), strict=True):
        assert same_bits(x, y), f"{label}: {difference(x, y)}"


@each_turn
def test_recorded_is_eager(name: str, dtype: str) -> None:
    """First sight, second sight and third: bits of results and gradients as eager, differentiated inside
    or outside.
    """
    entry = SAMPLED[name]
    grad = dtype in grad_dtypes(entry)
    for case in entry.cases(dtype):
        expected = run_with_gradients(entry, tensors(kiln, case, dtype, grad=grad))
        inside = kiln.compile(lambda given: run_with_gradients(entry, given))
        for sight in range(3):
            got = inside(tensors(kiln, case, dtype, grad=grad))
            assert_same(expected, got, f"{case.label}, gradient inside, call {sight + 1}")
        recorded = kiln.compile(entry.function)
        outside = Entry(entry.record)
        outside.function = recorded
        for sight in range(3):
            got = run_with_gradients(outside, tensors(kiln, case, dtype, grad=grad))
            assert_same(expected, got, f"{case.label}, gradient outside, call {sight + 1}")


@needs_kiln
@each_kind
def test_interpreter(name: str, dtype: str) -> None:
    """The op's graph, run node by node with NumPy, gives the same bits as the kernels."""
    entry = SAMPLED[name]
    if entry.reads:
        pytest.skip("looks at values, so it has no graph")
    tiles = importlib.import_module("kiln.codegen.target").host_target().tiles
    if entry.tests.tile_order and dtype == "bfloat16" and tiles:
        pytest.skip("AMX has an order of its own, and nothing rounds here: tests/codegen/test_codegen_amx.py")
    graphs = importlib.import_module("kiln.graph.graph")
    interpret = importlib.import_module("kiln.graph.interpret").interpret
    rounded_once = importlib.import_module("kiln.capture.function").rounded_once
    for case in entry.cases(dtype):
        given = tensors(kiln, case, dtype)
        graph = graphs.Graph()
        values = [t for arg in (*given.args, *given.kwargs.values()) for t in results_of(arg)]
        inputs = [graph.add_input(dtype_name(t.dtype), tuple(t.shape)) for t in values]
        graph.slots = sum(t.ndim for t in values)  # of sizes, though they are known here
        body = body_of(entry, given)
        with graphs.building(graph):
            composite = entry.kind == "composite"
            graph.finish(rounded_once(graph, inputs, body) if composite else body(inputs))
        expected = interpret_arrays(interpret, graph, values)
        assert_bits(expected, [to_array(y) for y in call(entry, given)], case.label)


def body_of(entry: Entry, given: Case) -> Any:
    """The op's body as a function of values that take the places of the case's tensors."""

    def body(values: list[Any]) -> list[Any]:
        rest = iter(values)

        def one(arg: Any) -> Any:
            if isinstance(arg, (list, tuple)) and results_of(arg):
                return [next(rest) for _ in arg]
            return next(rest) if results_of(arg) else arg

        args = tuple(map(one, given.args))
        out = entry.record.trace(args, {k: one(v) for k, v in given.kwargs.items()})
        return list(out) if isinstance(out, (tuple, list)) else [out]

    return body


def interpret_arrays(interpret: Any, graph: Any, values: list[Any]) -> list[Any]:
    """The interpreter's results as `to_array` shows them (bfloat16 goes in and comes out as its bits)."""
    given = [as_bits(to_array(v)) if dtype_name(v.dtype) == "bfloat16" else to_array(v) for v in values]
    results = interpret(graph, given)
    return [from_bits(r) if v.dtype == "bfloat16" else r for r, v in zip(results, graph.outputs)]


def as_bits(x: Any) -> Any:
    """float32 values that bfloat16 holds exactly, as the upper halves of their bits."""
    return np.asarray(x.view(np.uint32) >> 16, np.uint16)


def from_bits(x: Any) -> Any:
    """bfloat16 bits as float32 values."""
    return np.asarray(x.astype(np.uint32) << 16, np.uint32).view(np.float32)


def assert_bits(expected: list[Any], got: list[Any], label: str) -> None:
    """Bits of two lists of arrays."""
    for x, y in zip(expected, got, strict=True):
        assert same_bits(x, y), f"{label}: {difference(x, y)}"


@pytest.fixture
def threads() -> Iterator[None]:
    """Restores the number of threads."""
    before = kiln.get_num_threads()
    yield
    kiln.set_num_threads(before)


@each_op
def test_threads(name: str, threads: None) -> None:
    """One, two and four threads give the same bits, in results large enough to be split and in their
    gradients.
    """
    entry = SAMPLED[name]
    dtype = entry.dtypes[0]
    cases = entry.cases(dtype)
    cases += (
        [c for c in resized(cases[0]) if "100003" in c.label] if entry.kind == "pointwise" and cases else []
    )
    cases += [large for c in cases[:2] if entry.kind == "reduce" and (large := magnified(c)) is not None]
    for case in cases:
        seen = []
        for count in (1, 2, 4):
            kiln.set_num_threads(count)
            given = tensors(kiln, case, dtype, grad=dtype in grad_dtypes(entry))
            seen.append(run_with_gradients(entry, given))
        for others in seen[1:]:
            if kiln.is_kiln:
                assert_same(seen[0], others, case.label)


# Calls that are cut between threads: each has an x (700, 600) and a w (600, 500).
LARGE: dict[str, Any] = {
    "a product": lambda x, w: x @ w,
    "a transposed product": lambda x, w: w.t() @ x.t(),
    "a product of few rows": lambda x, w: x[:8] @ w,
    "a product of one row": lambda x, w: x[:1] @ w,
    "products": lambda x, w: x.reshape(7, 100, 600) @ w.expand(7, 600, 500),
    "softmax": lambda x, w: kiln.softmax(x, 1),
    "softmax of columns": lambda x, w: kiln.softmax(x, 0),
    "log_softmax": lambda x, w: kiln.log_softmax(x, 1),
    "layer_norm": lambda x, w: kiln.nn.functional.layer_norm(x, (600,), w[:, 0], w[:, 1]),
    "gelu": lambda x, w: kiln.nn.functional.gelu(x),
    "linear": lambda x, w: kiln.nn.functional.linear(x, w.t(), w[0]),
    "cross_entropy": lambda x, w: kiln.nn.functional.cross_entropy(x, x.argmax(1)),
    "a gather": lambda x, w: x.gather(1, (x > 0).long() * 500),
    "a scatter": lambda x, w: kiln.zeros(700, 600).scatter_add(1, (x > 0).long() * 500, x),
    "a transposed copy": lambda x, w: x.t() + x.t() * 2,
    "joined": lambda x, w: kiln.cat([x, w.t()], 0),
    "a sum of all": lambda x, w: (x.sum(), w.amax(), x.var(0)),
}


@needs_kiln
@pytest.mark.parametrize("name", LARGE)
def test_threads_of_large_calls(name: str, threads: None) -> None:
    """One, two and four threads: the same bits of results and gradients, eager and recorded."""
    rng = np.random.default_rng(5)
    arrays = [rng.normal(size=size).astype(np.float32) for size in ((700, 600), (600, 500))]

    def run(x: Any, w: Any) -> list[Any]:
        results = LARGE[name](x, w)
        results = results if isinstance(results, tuple) else (results,)
        sum(((y * y).mean() for y in results), kiln.zeros(())).backward()
        return [*results, *(z for z in (x.grad, w.grad) if z is not None)]

    seen = []
    for way in (run, kiln.compile(run, wait=True)):
        for count in (1, 2, 4):
            kiln.set_num_threads(count)
            seen.append([to_array(y) for y in way(*(kiln.tensor(a).requires_grad_() for a in arrays))])
    for others in seen[1:]:
        assert all(same_bits(a, b) for a, b in zip(seen[0], others, strict=True))


def magnified(case: Case) -> Case | None:
    """A reduction's sample with its one array grown to about 600 000 elements, every dim by the same
    factor.
    """
    (array, *others) = arrays_of(case)
    if others or array.ndim == 0 or array.size == 0:
        return None
    factor = max(1, int((600_000 / array.size) ** (1 / array.ndim)))
    noise = np.random.default_rng(0).normal(size=[factor * s for s in array.shape])
    grown = array.dtype.kind == "f" and noise.astype(array.dtype)
    if grown is False or not math.prod(grown.shape):
        return None
    args = tuple(grown if a is array else a for a in case.args)
    kwargs = {k: grown if v is array else v for k, v in case.kwargs.items()}
    return Case(args, kwargs, f"{case.label} magnified")


FAILING = [(name, n) for name, e in SAMPLED.items() for n in range(len(e.failures()))]
STATED = [(name, n) for name, e in TABLE.items() for n in range(len(e.stated_failures()))]


@pytest.mark.parametrize("name, number", sorted({*STATED, *FAILING}))
def test_errors(name: str, number: int) -> None:
    """A wrong call raises its exception, with a message that names what was wrong, eagerly and recorded."""
    entry = TABLE[name]
    args, kwargs, error, match = entry.failures()[number]
    case = tensors(kiln, Case(tuple(args), dict(kwargs), ""), "float32")
    for function in (entry.function, kiln.compile(entry.function)):
        for _ in range(2):
            with pytest.raises(error, match=match):
                function(*case.args, **case.kwargs)


def peer_errors(name: str, case: Case) -> list[Exception]:
    """What PyTorch's functions of that name raise."""
    given, raised = tensors(torch, case, "float32"), []
    for other in peer_functions(name):
        try:
            other(*given.args, **given.kwargs)
        except Exception as found:
            raised.append(found)
    return raised


@pytest.mark.parametrize(
    "name, number",
    [(n, k) for n, k in STATED if n in PEERS and TABLE[n].failures()[k][2] is not NotImplementedError],
)
def test_errors_as_peer(name: str, number: int, answers: Any) -> None:
    """PyTorch raises the same type for the same call (in one of its functions of that name)."""
    args, kwargs, error, _ = TABLE[name].failures()[number]
    arguments = (*args, *kwargs.values())
    if any(results_of(a) and not isinstance(a, np.ndarray) for a in arguments) and kiln.is_kiln:
        pytest.skip("the case holds kiln tensors")
    case = Case(tuple(args), dict(kwargs), "")
    raised = answers(case[:2], partial(peer_errors, name, case))
    assert any(isinstance(x, error) for x in raised), f"expected {error.__name__}, got {raised!r}"


@needs_kiln
@pytest.mark.parametrize("name", TABLE)
def test_methods(name: str, answers: Any) -> None:
    """An op that is a method of PyTorch's tensor is one of ours."""
    record = TABLE[name].record
    if record.public and record.method and answers(name, lambda: hasattr(torch.Tensor, name)):
        assert hasattr(kiln.Tensor, name)
