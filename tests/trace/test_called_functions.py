"""Functions that NumPy and SciPy compute, in traces, scripts and program files: det, inv, solve, cholesky."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import kiln
from kiln import linalg as L
from kiln.export import Dim
from kiln.fx.experimental.proxy_tensor import make_fx


def _positive(w: Any) -> Any:
    return w @ w.mT + kiln.eye(3)


_PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "inv": lambda w, x: L.inv(w @ x),
    "solve": lambda w, x: L.solve(w, x),
    "solve, a vector, from the right": lambda w, x: L.solve(w, x[:, 0]) @ L.solve(w, x, left=False),
    "det": lambda w, x: L.det(w * x),
    "slogdet": lambda w, x: L.slogdet(w @ x).logabsdet + kiln.logdet(_positive(w)),
    "cholesky": lambda w, x: L.cholesky(_positive(w)) @ L.cholesky(_positive(x), upper=True),
    "of a factor": lambda w, x: kiln.cholesky_solve(x, L.cholesky(_positive(w))),
    "solve_triangular": lambda w, x: L.solve_triangular(w, x, upper=True),
    "eigh": lambda w, x: L.eigh(_positive(w))[1].abs() @ x + L.eigvalsh(_positive(x)),
    "svd": lambda w, x: L.svdvals(w @ x) + L.svd(w)[1],
    "matrix_power": lambda w, x: L.matrix_power(w, -2) @ x,
    "a batch": lambda w, x: L.inv(kiln.stack([w, x])).sum(0),
}


class _Of(kiln.nn.Module):
    def __init__(self, program: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.program = program
        kiln.manual_seed(0)
        self.w = kiln.nn.Parameter(kiln.eye(3) * 2 + kiln.rand(3, 3) * 0.1)

    def forward(self, x: Any) -> Any:
        return self.program(self.w, x)


def _loaded(program: Any) -> Any:
    file = io.BytesIO()
    kiln.export.save(program, file)
    file.seek(0)
    return kiln.export.load(file).module()


def _gradients(call: Any, w: Any, x: Any) -> list[Any]:
    x = x.clone().requires_grad_()
    y = call(x)
    return [y, *kiln.autograd.grad(y.sum(), [w, x], allow_unused=True)]


@pytest.mark.parametrize("name", _PROGRAMS)
def test_a_program_has_the_bits_and_gradients_of_the_function(name: str) -> None:
    net = _Of(_PROGRAMS[name])
    x = kiln.rand(3, 3) + kiln.eye(3)
    traced, script, loaded = (
        kiln.jit.trace(net, x), kiln.jit.script(net), _loaded(kiln.export.export(net, (x,)))
    )  # fmt: skip
    for _ in range(2):
        x = kiln.rand(3, 3) + kiln.eye(3)
        expected = _gradients(net, net.w, x)
        for program, w in ((traced, net.w), (script, net.w), (loaded, next(iter(loaded.parameters())))):
            found = _gradients(program, w, x)
            assert [y is None for y in found] == [y is None for y in expected]
            assert all(kiln.equal(a, b) for a, b in zip(found, expected) if a is not None)


def test_sizes_may_vary_and_samples_be_mapped() -> None:
    class Net(kiln.nn.Module):
        def forward(self, x: Any, b: Any) -> Any:
            return L.solve(x @ x.mT + kiln.eye(x.size(0)), b)

    n = Dim("n", min=2)
    shapes = ({0: n}, {0: n, 1: Dim("k", min=2)})
    program = _loaded(kiln.export.export(Net(), (kiln.rand(3, 3), kiln.rand(3, 2)), dynamic_shapes=shapes))
    for rows, columns in ((3, 2), (5, 4), (2, 7)):
        x, b = kiln.rand(rows, 3), kiln.rand(rows, columns)
        assert kiln.equal(program(x, b), Net()(x, b))
    x, b = kiln.rand(4, 3, 3), kiln.rand(4, 3, 2)
    each = kiln.stack([program(*given) for given in zip(x, b)])
    assert kiln.allclose(kiln.vmap(program)(x, b), each, atol=1e-5)


def test_a_singular_matrix_raises_at_the_call() -> None:
    net = _Of(lambda w, x: L.inv(x))
    program = _loaded(kiln.export.export(net, (kiln.eye(3),)))
    for call in (program, kiln.jit.script(net)):
        with pytest.raises(L.LinAlgError, match="The diagonal element 1 is zero"):
            call(kiln.zeros(3, 3))
        assert kiln.equal(call(kiln.eye(3)), kiln.eye(3))


def test_in_a_branch_or_try_a_script_goes_each_way_by_itself() -> None:
    @kiln.jit.script
    def branch(x: Any) -> Any:
        if x.sum() > 0:
            return L.inv(x)
        return x

    @kiln.jit.script
    def caught(x: Any) -> Any:
        try:
            return L.inv(x)
        except RuntimeError:
            return x * 7

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert branch(kiln.eye(2) * 2).tolist() == [[0.5, 0.0], [0.0, 0.5]]
        assert branch(-kiln.eye(2)).tolist() == [[-1.0, -0.0], [-0.0, -1.0]]
        assert caught(kiln.eye(2)).tolist() == kiln.eye(2).tolist()
        assert caught(kiln.ones(2, 2)).tolist() == [[7.0, 7.0], [7.0, 7.0]]
    with pytest.raises(RuntimeError, match="linalg_inv in a branch or loop|inside a try"):
        kiln.export.export(caught, (kiln.eye(2),))


def test_programs_are_parts_of_others_and_graphs_of_calls() -> None:
    net = _Of(lambda w, x: L.inv(w @ x) * L.slogdet(x)[1])
    x = kiln.rand(3, 3) + kiln.eye(3)
    program = kiln.export.export(net, (x,))
    nested = kiln.jit.trace(lambda x: program.module()(x) * 2, x)
    assert kiln.equal(nested(x), net(x) * 2)
    assert kiln.equal(make_fx(net)(x)(x), net(x))
    assert kiln.equal(kiln.export.unflatten(program)(x), net(x))
    assert kiln.equal(program.run_decompositions().module()(x), net(x))
    assert "linalg_inv" in str(program)


@pytest.mark.parametrize("way", ["to_native", "to_wasm", "to_onnx"])
def test_what_runs_without_python_has_no_such_function(way: str, tmp_path: Any) -> None:
    program = kiln.export.export(_Of(lambda w, x: L.det(w @ x)), (kiln.eye(3),))
    with pytest.raises(NotImplementedError, match=f"{way}: _Of calls linalg_det, which NumPy and SciPy"):
        getattr(program, way)(tmp_path / "made")


def test_a_file_that_says_otherwise_is_refused() -> None:
    file = io.BytesIO()
    kiln.export.save(kiln.export.export(_Of(lambda w, x: L.inv(x)), (kiln.eye(3),)), file)
    data = file.getvalue()
    for old, new in (
        (b"float32[3, 3] = linalg_inv", b"float32[3, 4] = linalg_inv"),
        (b"linalg_inv(", b"linalg_det("),
    ):
        if old in data:
            with pytest.raises(ValueError, match="export.load"):
                kiln.export.load(io.BytesIO(data.replace(old, new)))
    assert b"linalg_inv(" in data


@pytest.mark.parametrize("make", [kiln.eye, lambda n: kiln.eye(n, dtype=kiln.float64), kiln.arange])
def test_a_file_may_hold_what_is_made_of_numbers_alone(make: Callable[[int], Any]) -> None:
    class Net(kiln.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + make(3)

    x = kiln.rand(3, 3)
    assert kiln.equal(_loaded(kiln.export.export(Net(), (x,)))(x), Net()(x))
