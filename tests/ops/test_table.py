"""The op table: every record is whole, and what its body means agrees with its NumPy reference, with PyTorch
and, for derivatives, with differences. Runs on graphs and their interpreter; tests/ops/test_ops.py runs the
compiled ops.
"""

from __future__ import annotations

import doctest
import os
import textwrap
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend import kiln, torch

from kiln.graph import graph as g
from kiln.graph.interpret import interpret
from kiln.graph.slots import array_input
from kiln.passes.gradient import Asked, backward
from kiln.table import kinds
from kiln.table.record import Op, find, table
from kiln.testing.compare import close, dtype_name
from kiln.testing.op_cases import Entry

OPS = [op for op in table() if op.name != "constant"]
DTYPES = {
    "float": ("float32", "float64", "float16", "bfloat16"),
    "numeric": ("float32", "float64", "float16", "int64", "int32", "uint8"),
    "float64": ("float64",),
    "integral": ("int64", "int16", "bool"),
    "bool": ("bool",),
    "whole": ("int64", "int16"),
    "int8 uint8": ("int8", "uint8"),
    "float32 float64": ("float32", "float64"),
    "all": ("float32", "float64", "float16", "int64", "uint8", "bool"),
}
CASES = [(op, dtype) for op in OPS for dtype in DTYPES[op.dtypes]]
# in which a derivative is compared; a wrong one is seen along any but a few
DIRECTIONS = 3 if os.environ.get("KILN_TEST_FULL") == "1" else 1


def is_array(x: Any) -> bool:
    return isinstance(x, (np.ndarray, np.generic))


def narrowed(x: Any, dtype: str) -> Any:
    """An array as the interpreter takes it: bfloat16 as its bits."""
    if dtype != "bfloat16" or x.dtype != np.float32:
        return x
    word = np.ascontiguousarray(x).view(np.uint32)
    return ((word + 0x7FFF + ((word >> 16) & 1)) >> 16).astype(np.uint16).reshape(x.shape)


def widened(x: Any, dtype: str) -> Any:
    """A result of the interpreter as numbers."""
    return (
        (x.astype(np.uint32) << 16).view(np.float32).reshape(x.shape)
        if dtype == "bfloat16" and x.dtype == np.uint16
        else x
    )


def place(graph: g.Graph, param: Any, value: Any, dtype: str, given: list[Any]) -> Any:
    """One argument of a call as a value of the graph; arrays and numbers become its inputs."""
    if is_array(value):
        value = np.asarray(value)
        kept = narrowed(value, dtype)
        given.append(kept)
        return array_input(
            graph, "bfloat16" if kept is not value else value.dtype.name, tuple(s == 1 for s in value.shape)
        )
    if isinstance(value, list) and value and is_array(value[0]):
        return [place(graph, param, v, dtype, given) for v in value]
    if param is not None and param.kind in "VN" and isinstance(value, (int, float)):
        given.append(value)
        return graph.add_number(
            "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float64"
        )
    return value


def traced(
    op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: str
) -> tuple[g.Graph, list[Any], list[Any]]:
    """The graph of one call, its inputs' values, and its outputs."""
    graph, given = g.Graph(), []
    by_name = {p.name: p for p in op.params}
    with g.building(graph):
        values = [place(graph, p, a, dtype, given) for p, a in zip(op.params, args)]
        named = {k: place(graph, by_name[k], v, dtype, given) for k, v in kwargs.items()}
        result = op.trace(tuple(values), named)
    outputs = list(result) if isinstance(result, tuple) else [result]
    return graph, given, outputs


def evaluated(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: str = "") -> list[Any]:
    """The results of one call, by the interpreter."""
    graph, given, outputs = traced(op, args, kwargs, dtype)
    return [widened(y, v.dtype) for y, v in zip(interpret(graph.finish(outputs), given), outputs)]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_record_is_whole(op: Op) -> None:
    assert op.samples is not None, "no samples"
    assert Entry(op).failures(), "no error samples"
    assert op.reference is not None, "no reference"
    assert op.doc.strip() and (">>>" in op.doc or not op.public), "no docstring with an example"
    assert op.dtypes in DTYPES
    if op.kind != "composite" and op.differentiable:
        assert op.gradient is not None, "no derivative"


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_an_op_is_of_one_of_few_kinds(op: Op) -> None:
    """Nineteen, five of which are views. What is along a dim, or a layer, says which; a layer has a body."""
    assert op.kind in {*kinds.INFER, "composite"} and len(kinds.INFER) == 19
    assert bool(op.algorithm) == (op.kind in ("along", "layer"))
    assert op.kind != "along" or op.algorithm in kinds.ALONG
    assert (op.shapes is not None) == (op.kind == "layer")
    assert (op.body is not None) == (op.kind in ("pointwise", "composite", "layer"))


def test_an_entry_is_all_an_op_needs() -> None:
    """softplus is one entry: but for the layer of that name no other file of kiln names it, yet it is public,
    fast and differentiable.
    """
    package = Path(kiln.__file__).parent
    # layers, what makes mistakes in all entries, users of it, other people's models
    others = ("nn", "testing", "distributions", "onnx")
    files = [p for p in package.rglob("*.py") if p.relative_to(package).parts[0] not in others]
    named = [p.name for p in files if "softplus" in p.read_text()]
    assert named == ["smooth_activations.py"]
    entry = find("softplus")
    softplus = kiln.nn.functional.softplus
    assert softplus is entry.handle and Entry(entry).failures()
    for way in (softplus, kiln.compile(softplus)):
        x = kiln.tensor([-1.0, 0.0, 3.0], dtype=kiln.float64, requires_grad=True)
        y = way(x, beta=2.0)
        (slope,) = kiln.autograd.grad(y.sum(), x, create_graph=True)
        (bend,) = kiln.autograd.grad(slope.sum(), x)
        raised = np.exp(-2.0 * np.array([-1.0, 0.0, 3.0]))
        assert y.tolist() == pytest.approx(list(np.log1p(1 / raised) / 2))
        assert slope.tolist() == pytest.approx(list(1 / (1 + raised)))
        assert bend.tolist() == pytest.approx(list(2 * raised / (1 + raised) ** 2))


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=lambda x: x.name if isinstance(x, Op) else x)
def test_body_agrees_with_reference(op: Op, dtype: str, rng: Any) -> None:
    assert op.samples is not None and op.reference is not None
    for sample in op.samples(rng, dtype):
        got = evaluated(op, sample.args, sample.kwargs, dtype)
        expected = op.reference(*sample.args, **sample.kwargs)
        expected = list(expected) if isinstance(expected, tuple) else [expected]
        tolerance = "bfloat16" if dtype == "bfloat16" else "float16" if dtype == "float16" else ""
        for x, y in zip(got, expected, strict=True):
            y = np.asarray(y)
            assert x.shape == y.shape
            kind = tolerance or (
                x.dtype.name if x.dtype.kind == "f" else "float32" if y.dtype.kind == "f" else ""
            )
            assert close(
                x, y.astype(np.float64) if y.dtype.kind == "f" else y, kind, max(2.0, op.tests.rounding)
            ), f"{op.name}{[getattr(a, 'shape', a) for a in sample.args]} {sample.kwargs}: {x} against {y}"


def examples() -> list[tuple[str, str]]:
    """The docstring of every op and public function, once: under the first of its names."""
    found = [(op.name, op.doc) for op in OPS]
    found += [(name, function.__doc__ or "") for name, function in kiln.ops.functions().items()]
    if find_spec("scipy") is None:
        found = [(name, doc) for name, doc in found if "eeds SciPy" not in " ".join(doc.split())]
    names = {doc: name for name, doc in reversed(found) if ">>>" in doc}
    return sorted((name, doc) for doc, name in names.items())


@pytest.mark.parametrize(("name", "doc"), examples(), ids=[e[0] for e in examples()])
def test_examples_run(name: str, doc: str) -> None:
    example = doctest.DocTestParser().get_doctest(
        textwrap.dedent(" " * 4 + doc), {"kiln": kiln}, name, None, 0
    )
    runner, lines = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE), []
    assert runner.run(example, out=lines.append).failed == 0, "".join(lines)


# Derivatives


def run_backward(
    graph: g.Graph, given: list[Any], outputs: list[Any], wrt: tuple[int, ...], grads: list[Any]
) -> list[Any]:
    """The gradients of some inputs, an array or None each, from output gradients (None: undefined)."""
    forward = graph.finish(outputs)
    back = backward(forward, Asked(wrt, tuple(x is not None for x in grads)))
    forward.outputs = [*outputs, *back.hidden]
    results = interpret(forward, given)
    forward.outputs = outputs
    known = {
        "grad": grads,
        "input": given,
        "output": results,
        "hidden": results[len(outputs) :],
        "shape": given,
    }
    found = interpret(back.graph, [known[kind][k] for kind, k in back.sources])
    return [found[r] if r >= 0 else None for r in back.results]


def floats_of(given: list[Any]) -> tuple[int, ...]:
    return tuple(k for k, x in enumerate(given) if is_array(x) and x.dtype == np.float64)


def check_gradient(
    graph: g.Graph, given: list[Any], outputs: list[Any], rng: Any, what: str, wrt: tuple[int, ...]
) -> None:
    """Gradients by the inputs `wrt` against central differences along random directions."""
    grads = [
        rng.normal(size=y.shape) if y.dtype.kind == "f" else None
        for y in interpret(graph.finish(outputs), given)
    ]
    if not wrt or all(x is None for x in grads):
        return
    found = run_backward(graph, given, outputs, wrt, grads)
    for k, got in zip(wrt, found):
        for _ in range(DIRECTIONS):
            direction, eps = rng.normal(size=given[k].shape), 1e-6
            sides = []
            for sign in (eps, -eps):
                moved = [np.asarray(x + sign * direction) if j == k else x for j, x in enumerate(given)]
                sides.append(
                    sum(float((y * w).sum()) for y, w in zip(interpret(graph, moved), grads) if w is not None)
                )
            expected = (sides[0] - sides[1]) / (2 * eps)
            computed = float((got * direction).sum()) if got is not None else 0.0
            assert abs(computed - expected) <= 1e-4 * (1 + abs(expected)), (
                f"{what}: input {k}: {computed} against {expected}"
            )


# detach hides what differences see
DIFFERENTIABLE = [
    op
    for op in OPS
    if op.differentiable and not (op.tests.underived or op.tests.straight_through) and op.name != "detach"
]


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=lambda op: op.name)
def test_derivatives_agree_with_differences(op: Op, rng: Any) -> None:
    assert op.samples is not None
    for sample in op.samples(rng, "float64"):
        if max([x.size for x in sample.args if is_array(x)], default=0) > 200 and op.kind != "matmul":
            continue
        graph, given, outputs = traced(op, sample.args, sample.kwargs, "float64")
        if outputs[0].dtype != "float64":
            continue
        check_gradient(graph, given, outputs, rng, op.name, floats_of(given))


@pytest.mark.parametrize("op", [op for op in DIFFERENTIABLE if not op.tests.steps], ids=lambda op: op.name)
def test_second_derivatives_agree_with_differences(op: Op, rng: Any) -> None:
    """The gradient's graph differentiated once more, by output gradients and inputs."""
    assert op.samples is not None
    for sample in op.samples(rng, "float64")[:1]:
        if max([x.size for x in sample.args if is_array(x)], default=0) > 70:
            continue
        graph, given, outputs = traced(op, sample.args, sample.kwargs, "float64")
        forward = graph.finish(outputs)
        wrt = floats_of(given)
        if outputs[0].dtype != "float64" or not wrt:
            continue
        back = backward(forward, Asked(wrt, tuple(y.dtype == "float64" for y in outputs)))
        forward.outputs = [*outputs, *back.hidden]
        results = interpret(forward, given)
        grads = [rng.normal(size=y.shape) for y in results[: len(outputs)]]
        known = {
            "grad": grads,
            "input": given,
            "output": results,
            "hidden": results[len(outputs) :],
            "shape": given,
        }
        read = [known[kind][k] for kind, k in back.sources]
        # outputs and hidden values follow from the inputs, or are constants (a row's maximum)
        free = tuple(k for k in floats_of(read) if back.sources[k][0] in ("grad", "input"))
        check_gradient(back.graph, read, back.graph.outputs, rng, op.name, free)


# PyTorch


def peer(name: str) -> Any:
    """The function of this name in PyTorch."""
    return getattr(torch.nn.functional, name, None) or getattr(torch, name, None)


def as_torch(x: Any, dtype: str) -> Any:
    if isinstance(x, list):
        return [as_torch(v, dtype) for v in x]
    if not is_array(x):
        return x
    t = torch.from_numpy(np.array(x))
    return t.bfloat16() if dtype == "bfloat16" and t.dtype == torch.float32 else t


def peer_result(name: str, sample: Any, dtype: str) -> Any:
    """What PyTorch gives for a sample."""
    kwargs = {k: getattr(torch, v) if k == "dtype" else as_torch(v, dtype) for k, v in sample.kwargs.items()}
    return peer(name)(*(as_torch(a, dtype) for a in sample.args), **kwargs)


def numbers(t: Any) -> Any:
    return t.detach().float().numpy() if str(t.dtype).endswith("bfloat16") else t.detach().numpy()


PEERS = [op for op in OPS if op.public or op.name in ("add", "sub", "div", "pow", "clamp", "gather")]


@pytest.mark.parametrize(
    "op, dtype",
    [
        (op, dtype)
        for op in PEERS
        for dtype in ("float32", "float64", "bfloat16", "int64")
        if dtype in DTYPES[op.dtypes]
    ],
    ids=lambda x: getattr(x, "name", x),
)
def test_body_agrees_with_torch(op: Op, dtype: str, rng: Any, answers: Any) -> None:
    if not answers(op.name, lambda: bool(peer(op.name))):
        pytest.skip("no peer for it")
    assert op.samples is not None
    for sample in op.samples(rng, dtype):
        loose = op.tests.rounding
        try:
            expected = answers(
                [sample.args, sample.kwargs], partial(peer_result, op.name, sample, dtype), loose
            )
        except NotImplementedError:
            pytest.skip("PyTorch has no kernel of it in this dtype")
        graph, given, outputs = traced(op, sample.args, sample.kwargs, dtype)
        (got,) = interpret(graph.finish(outputs), given)
        assert outputs[0].dtype == dtype_name(expected.dtype)
        assert close(widened(got, outputs[0].dtype), numbers(expected), outputs[0].dtype, loose)


KINKS = [op for op in OPS if op.tests.kinks is not None]


def peer_gradients(name: str, args: Any, kwargs: Any) -> tuple[Any, list[Any]]:
    """PyTorch's values and gradients of a function, from gradients between 1 and 2."""
    tensors = [torch.from_numpy(a.copy()).requires_grad_() if is_array(a) else a for a in args]
    y = peer(name)(*tensors, **kwargs)
    if not y.requires_grad or not find(name).tests.peer_gradient:
        return y, []
    seed = torch.from_numpy(np.linspace(1, 2, y.numel()).reshape(tuple(y.shape)))
    leaves = [t for t in tensors if isinstance(t, torch.Tensor)]
    return y, list(torch.autograd.grad(y, leaves, seed, allow_unused=True))


@pytest.mark.parametrize("op", KINKS, ids=lambda op: op.name)
def test_special_values_as_torch(op: Op, answers: Any) -> None:
    """Values and PyTorch's subgradients where a function has a kink, a pole or a limit."""
    assert op.tests.kinks is not None
    args: tuple[Any, ...] = op.tests.kinks(np)
    graph, given, outputs = traced(op, args, {}, "float64")
    expected, wanted = answers([args, {}], lambda: peer_gradients(op.name, args, {}))
    (got,) = interpret(graph.finish(outputs), given)
    assert close(got, numbers(expected), "float64"), f"{got} against {expected}"
    if not wanted:
        return
    seed = np.linspace(1, 2, got.size).reshape(got.shape)
    for x, y in zip(run_backward(graph, given, outputs, floats_of(given), [seed]), wanted):
        assert close(x, numbers(y), "float64"), f"{x} against {y}"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_division_with_remainder_is_exact(dtype: str, rng: Any) -> None:
    low, high = (-140, 120) if dtype == "float32" else (-1040, 1000)
    x, y = (np.ldexp(rng.uniform(-1, 1, 4000), rng.integers(low, high, 4000)).astype(dtype) for _ in range(2))
    for name in ("fmod", "remainder"):
        (got,) = evaluated(find(name), (x, y), {})
        expected = {"fmod": np.fmod, "remainder": np.remainder}[name](x, y)
        signed = expected != 0 if name == "remainder" else np.full(x.shape, True)
        assert np.array_equal(got, expected), name
        assert np.array_equal(np.signbit(got[signed]), np.signbit(expected[signed])), name
