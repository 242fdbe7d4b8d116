"""Placeholders and graphs that are defined: the bits of eager programs, texts, pictures, what is refused."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import kiln
import kiln.nn.functional as F
from kiln import nn, ops
from kiln.graph import Graph, placeholder
from kiln.tracing.recorder import TracingError

FULL = bool(os.environ.get("KILN_TEST_FULL"))
OPS = sorted((op for op in ops.table() if op.samples is not None and op.public), key=lambda op: op.name)


def _given(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return kiln.from_numpy(np.ascontiguousarray(x))
    return type(x)(map(_given, x)) if isinstance(x, (list, tuple)) else x


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, kiln.Tensor):
        return [value]
    return [y for item in value for y in _tensors(item)] if isinstance(value, (tuple, list)) else []


def _same(a: Any, b: Any) -> bool:
    same = (a == b) | ((a != a) & (b != b))
    return a.shape == b.shape and a.dtype == b.dtype and bool(same.all())


class _Exchange:
    """Placeholders instead of tensors."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []

    def __call__(self, value: Any) -> Any:
        if isinstance(value, kiln.Tensor):
            self.nodes.append(placeholder(f"x{len(self.nodes)}", tuple(value.shape), value.dtype))
            self.tensors.append(value)
            return self.nodes[-1]
        return type(value)(map(self, value)) if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("op", OPS if FULL else OPS[5::14], ids=lambda op: op.name)
def test_an_op_on_placeholders_has_its_bits(op: Any) -> None:
    """The samples of an op, built on placeholders; and of the graph that its text says."""
    dtype = "int64" if op.dtypes == "integral" else "float32"
    for sample in op.samples(np.random.default_rng(3), dtype)[: None if FULL else 1]:
        args = tuple(map(_given, sample.args))
        kwargs = {k: _given(v) for k, v in sample.kwargs.items()}
        if not _tensors([*args, *kwargs.values()]):
            continue
        kiln.manual_seed(1)
        try:
            expected = _tensors(op.handle(*args, **kwargs))
        except (RuntimeError, NotImplementedError):
            continue  # of floats it is not
        given = _Exchange()
        outputs = _tensors(op.handle(*map(given, args), **{k: given(v) for k, v in kwargs.items()}))
        graph = Graph(given.nodes, outputs).verify()
        again = kiln.graph.parse(str(graph), graph.state)
        for g in (graph, again):
            kiln.manual_seed(1)
            came = _tensors(g(*given.tensors))
            assert len(came) == len(expected)
            assert all(map(_same, expected, came)), op.name


def _square() -> tuple[Any, Graph]:
    x = placeholder("x", ("n",))
    return x, Graph(x, x * x + 3 * x + 1)


def test_a_graph_runs_again_and_again_on_any_size() -> None:
    _, g = _square()
    for n in (0, 1, 5):
        x = kiln.randn(n)
        assert _same(g(x), x * x + 3 * x + 1)
    assert _same(g.run({"x": [1.0, 2.0]}), kiln.tensor([5.0, 11.0]))


def test_gradients_are_graphs_with_the_bits_of_backward() -> None:
    _, g = _square()
    x = kiln.randn(7, requires_grad=True)
    g(x).sum().backward()  # a graph inside an eager program
    y = x.detach().clone().requires_grad_()
    (y * y + 3 * y + 1).sum().backward()
    assert _same(x.grad, y.grad)
    slope = g.gradient()
    assert _same(slope(x.detach()), x.grad)
    assert slope.gradient()(x.detach()).tolist() == [2.0] * 7
    assert [n.op for n in slope.nodes] == ["add", "add"]


def test_gradients_of_a_model() -> None:
    kiln.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    x, t = placeholder("x", ("n", 3)), placeholder("t", ("n",), kiln.int64)
    loss = F.cross_entropy(model(x), t)
    g = Graph({"x": x, "t": t}, loss)
    values, targets = kiln.randn(5, 3), kiln.tensor([0, 1, 1, 0, 1])
    expected = F.cross_entropy(model(values), targets)
    expected.backward()
    assert _same(g(values, targets), expected)
    assert _same(g(x=values, t=targets), expected)
    parameters = list(model.parameters())
    grads = g.simplify().gradient(wrt=[f"constant{k}" for k in range(len(parameters))])(values, targets)
    by_tensor = {id(tensor): grad for tensor, grad in zip(g.state.values(), grads)}
    assert all(_same(p.grad, by_tensor[id(p)]) for p in parameters)
    with pytest.raises(ValueError, match="t is int64, which has no gradient"):
        g.gradient(wrt="t")


def test_simplified_graphs_keep_what_only_derivatives_see() -> None:
    """A detached factor is a constant: in gradients of gradients too."""
    x = placeholder("x", (3,))
    g = Graph(x, (x * x.detach() * x.exp()).sum())
    values = kiln.tensor([0.5, -1.0, 2.0], requires_grad=True)
    first = kiln.autograd.grad((values * values.detach() * values.exp()).sum(), values, create_graph=True)[0]
    second = kiln.autograd.grad(first.sum(), values)[0]
    assert _same(g.simplify().gradient()(values.detach()), first)
    assert _same(g.simplify().gradient().gradient()(values.detach()), second)
    assert _same(g.gradient().simplify().gradient()(values.detach()), second)


def test_parts_compute_what_they_need() -> None:
    x, y = placeholder("x", (2,)), placeholder("y", ("n",))
    double, other = 2 * x, y.exp()
    g = Graph([x, y], (double + 1, other))
    assert g.run({"x": [1.0, 2.0]}, fetch=double).tolist() == [2.0, 4.0]
    assert [v.tolist() for v in g.run({x: [1.0, 2.0]}, fetch=[double, "%2"])[:1]] == [[2.0, 4.0]]
    assert g.run({"y": [0.0, 0.0, 0.0]}, fetch=other).tolist() == [1.0] * 3
    assert g.run({"y": [0.0]}, fetch=[n.name for n in g.nodes if n.op == "exp"])[0].tolist() == [1.0]
    with pytest.raises(ValueError, match="nothing is given for the input 'y'"):
        g.run({"x": [1.0, 2.0]}, fetch=[double, other])
    with pytest.raises(KeyError, match="no input is called 'z'"):
        g.run({"z": 1.0})


def test_graphs_in_graphs_and_functions_in_graphs() -> None:
    x, g = _square()
    z = placeholder("z", (3,))
    twice = Graph(z, g(g(z)))
    v = kiln.randn(3)
    assert _same(twice(v), g(g(v)))
    f = kiln.graph.from_function(lambda a, b: g(a) + b, placeholder("p", (3,)), z)
    assert list(f.inputs) == ["a", "b"]
    assert _same(f(v, v), g(v) + v)
    assert _same(kiln.compile(lambda a: g(a) + 1)(v), g(v) + 1)
    cell = kiln.compile(lambda a: a.exp() + 1, pure=True)  # which has seen no tensor yet
    assert _same(Graph(z, cell(z))(v), v.exp() + 1)
    assert _same(kiln.vmap(lambda a: g(a))(v.expand(2, 3)), g(v).expand(2, 3))
    assert _same(kiln.graph.cond(kiln.tensor(True), lambda a: g(a), lambda a: a, (v,)), g(v))
    with pytest.raises(RuntimeError, match="x: must have 1 dims"):
        g(placeholder("w", (3, 3)))


def test_sizes_that_vary() -> None:
    n = kiln.export.Dim("n", min=2, max=640)
    x, y = placeholder("x", (n, 3)), placeholder("y", (None, 3))
    made = (
        x.reshape(-1),
        kiln.zeros(x.shape[0]),
        kiln.arange(x.shape[0]),
        x[1:],
        x.view(3, -1),
        x + y,
        x.numel(),
    )
    g = Graph([x, y], made)
    assert g.inputs["y"] == ("float32", ("y_0", 3))
    a = kiln.randn(4, 3)
    came = g(a, a)
    assert all(
        map(_same, came[:6], (a.reshape(-1), kiln.zeros(4), kiln.arange(4), a[1:], a.view(3, -1), a + a))
    )
    assert came[6] == 12
    with pytest.raises(RuntimeError, match="n == y_0 is True"):
        g(a, a[:3])
    with pytest.raises(RuntimeError, match="n must be from 2 to 640"):
        g(a[:1], a[:1])
    odd = placeholder("odd", (2 * kiln.export.Dim("k") + 1,))
    assert Graph(odd, odd.sum()).run({"odd": [1.0, 2.0, 3.0]}).item() == 6.0


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("bool(x)", "bool.. reads the value of a node .float32.n, 3.."),
        ("x.item()", "item.. reads the value"),
        ("x.tolist()", "tolist.. reads the value"),
        ("float(x.sum())", "float.. reads the value"),
        ("x if x.sum() > 0 else -x", "kiln.graph.cond"),
        ("len(x)", "has the size n read as a number by len"),
        ("[r for r in x]", "has the size n read as a number to iterate"),
        ("range(x.shape[0])", "has the size n read as a number"),
        ("x[x > 0]", "reads the value"),
        ("x.sum().backward()", "Graph.gradient"),
        ("x @ x", "mat1 and mat2 shapes cannot be multiplied"),
        ("x + kiln.ones(4)", "must match the size of tensor b .4."),
        ("kiln.ones(3).mul_(x[0])", "writes into a tensor of the program"),
        ("kiln.rand_like(w, generator=kiln.Generator())", "generator"),
    ],
)
def test_what_cannot_be_is_refused_where_it_stands(code: str, told: str) -> None:
    x, w = placeholder("x", ("n", 3)), placeholder("w", (2,))
    with pytest.raises((RuntimeError, TypeError), match=told):
        eval(code, {"x": x, "w": w, "kiln": kiln})


def test_nodes_have_what_tensors_have() -> None:
    w = placeholder("w", (2, 3))
    assert [tuple(r.shape) for r in w] == [(3,), (3,)]
    assert (len(w), w.dim(), w.numel(), w.stride(), w.T.stride(), w.size(1)) == (2, 2, 6, (3, 1), (1, 3), 3)
    assert w.half().dtype == kiln.float16 and w.to(kiln.float64).dtype == kiln.float64
    assert isinstance(w, kiln.Tensor) and w.device.type == "cpu" and not w.requires_grad
    assert repr(w.mT) == "node float32[3, 2]"
    v = w.clone()
    row = v[0]
    row[1] = 5.0
    v.mul_(2)
    w.add_(1)  # what is given stays as it is
    g = Graph(w, [v, row, w])
    a = kiln.randn(2, 3)
    b = a.clone()
    b[0, 1] = 5.0
    assert all(map(_same, g(a), (b * 2, (b * 2)[0], a + 1)))


def test_random_numbers_are_drawn_at_each_run() -> None:
    drop, x = nn.Dropout(0.5), placeholder("x", (8,))
    kiln.rand_like(x)  # no part of the graph
    g = Graph(x, [drop(x), kiln.rand_like(x), drop(x)])
    again = Graph(x, g(x))
    v = kiln.ones(8)
    kiln.manual_seed(3)
    expected = [drop(v), kiln.rand_like(v), drop(v), drop(v), kiln.rand_like(v), drop(v)]
    n = placeholder("n", ("n",))
    any_size = Graph(n, [drop(n), kiln.rand_like(n), drop(n)])
    for graph in (g, again, kiln.graph.parse(str(g)), any_size, kiln.graph.parse(str(any_size))):
        kiln.manual_seed(3)
        assert all(map(_same, [*graph(v), *graph(v)], expected))
    assert "  draws 3*n\n" in str(any_size)


def test_control_flow() -> None:
    x, n = placeholder("x", (3,)), placeholder("n", ("n", 3))
    y = kiln.graph.cond(x.sum() > 0, lambda a: a.sin() * x, lambda a: -a, (x,))
    g = Graph(x, y)
    v = kiln.tensor([1.0, 2.0, 3.0])
    assert _same(g(v), v.sin() * v) and _same(g(-v), v)
    assert _same(kiln.graph.parse(str(g))(v), g(v))
    assert _same(g.gradient()(-v), -kiln.ones(3))
    _, steps = kiln.graph.while_loop(lambda k, a: k < 5, lambda k, a: (k + 1, a * 2), (kiln.tensor(0), x))
    assert _same(Graph(x, steps)(v), v * 32)
    sums = kiln.graph.scan(lambda c, a: (c + a, c * a), kiln.zeros(3), n)
    parts = kiln.graph.map(lambda a: a.sum(), n)
    for size in (1, 4):
        w = kiln.randn(size, 3)
        carry, each = kiln.graph.scan(lambda c, a: (c + a, c * a), kiln.zeros(3), w)
        came = Graph(n, (sums, parts))(w)
        assert _same(came[0][0], carry) and _same(came[0][1], each) and _same(came[1], w.sum(1))
    for word in (">cond<", ">if it holds<", ">if not<"):
        assert word in g.draw().svg
    assert "<details" in g.draw().html


TEXT = """\
graph
  size n from 2 to 9
  input x: float32[n, 3]
  input t: int64[n]
  tensor $constant0: float32[3, 4]
  %3 = matmul(x, $constant0): float32[n, 4]
  %4 = log_softmax(%3; 1, none): float32[n, 4]
  %5 = slice(%4; 0, (1, n - 1, 1)): float32[n - 1, 4]
  %6 = mul(%5, 0.5): float32[n - 1, 4]
  return %6, t"""


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [5, None])
def test_gradients_of_scans(length: int | None, reverse: bool) -> None:
    """The bits of the loop in ordinary Python, of the first and the second order, saved and loaded too."""

    def step(state: kiln.Tensor, each: kiln.Tensor) -> tuple[kiln.Tensor, kiln.Tensor]:
        return (state * 0.5 + each).tanh(), state * each.sin()

    x = kiln.graph.placeholder("x", (length, 3))
    state, parts = kiln.graph.scan(step, kiln.zeros(3), x, reverse=reverse)
    gradient = kiln.graph.Graph(x, (parts * parts).sum() + state.sum()).gradient()
    again = kiln.graph.parse(str(gradient), gradient.state)
    second = gradient.gradient()
    for n in (5, 1) if length is None else (5,):
        given = kiln.randn(n, 3, requires_grad=True)
        state, found = kiln.zeros(3), []
        for each in reversed(given.unbind()) if reverse else given.unbind():
            state, part = step(state, each)
            found.append(part)
        parts = kiln.stack(found[::-1] if reverse else found)
        (wanted,) = kiln.autograd.grad((parts * parts).sum() + state.sum(), given, create_graph=True)
        assert gradient(given.detach()).equal(wanted.detach())
        assert again(given.detach()).equal(wanted.detach())
        (twice,) = kiln.autograd.grad(wanted.sum(), given)
        assert kiln.allclose(second(given.detach()), twice, atol=1e-5)


def test_golden_text() -> None:
    n = kiln.export.Dim("n", min=2, max=9)
    x, t, w = placeholder("x", (n, 3)), placeholder("t", (n,), kiln.int64), kiln.randn(3, 4)
    g = Graph([x, t], ((x @ w).log_softmax(1)[1:] * 0.5, t))
    lines = [line.partition("  #")[0].rstrip() for line in str(g).splitlines()]
    assert "\n".join(lines) == TEXT
    again = kiln.graph.parse(TEXT, {"constant0": w})
    assert str(again) == TEXT
    a, b = kiln.randn(4, 3), kiln.arange(4)
    assert all(map(_same, again(a, b), g(a, b)))
    with pytest.raises(ValueError, match="the graph has a tensor constant0"):
        kiln.graph.parse(TEXT)
    for wrong, told in (
        (TEXT.replace("%5, 0.5", "%9, 0.5"), "%9 is used before it is defined"),
        (TEXT.replace("float32[n - 1, 4]\n  return", "float32[n, 4]\n  return"), "float32"),
        (TEXT.replace("matmul", "nothing"), "nothing"),
        (TEXT.replace("(1, n - 1, 1)", "(1, n, 1)"), "slice"),
        (TEXT.replace("  return %6, t", ""), "ends with 'return'"),
        (TEXT.replace("$constant0: float32[3, 4]", "$constant0: float32[3, m]"), "m"),
    ):
        with pytest.raises(ValueError, match=told):
            kiln.graph.parse(wrong, {"constant0": w})(a, b)


def test_passes_say_what_they_changed(tmp_path: Any) -> None:
    x = placeholder("x", (3,))
    g = Graph(x, (x.exp() * x.exp() * 1.0).softmax(0))
    v = kiln.randn(3)
    for name in Graph.passes():
        made = g.apply(name).verify()
        assert made.before is g
        if name != "prepare":
            assert _same(made(v), g(v)), name
    told = g.simplify().changes()
    assert "-  %2 = exp(x): float32[3]" in told and "+++ after simplify" in told
    assert "softmax" not in str(g.expand())
    path = str(tmp_path / "g.kiln")
    g.save(path)
    assert [n.op for n in kiln.graph.load(path).nodes] == [n.op for n in g.nodes]
    assert _same(kiln.export.load(path)(v), g(v))


def test_the_plan_says_what_memory_is_needed() -> None:
    w = kiln.randn(16, 16)
    x = placeholder("x", ("n", 16))
    y = x
    for _ in range(4):
        y = (y @ w).softmax(-1)
    plan = Graph(x, y).plan(n=10)
    array = 10 * 16 * 4
    assert plan.outputs == array and plan.inputs == array + w.numel() * 4
    assert plan.without_reuse >= 3 * array > plan.with_reuse >= array
    assert plan.values == 8 * array
    assert "without reuse" in str(plan) and "at n = 10" in str(plan)
    assert plan.svg.startswith("<svg") and "temporary 0" in plan.svg
    with pytest.raises(ValueError, match="no size is called 'm'"):
        Graph(x, y).plan(m=3)


def test_pictures_fold_by_module(tmp_path: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)))
    g = kiln.graph.from_function(model, placeholder("x", ("n", 3)))
    assert repr(g) == "<Graph Sequential(input) of 4 nodes>"
    svg = g._repr_svg_()
    assert ">linear<" in svg and ">1.0.weight<" in svg and "float32 (n, 4)" in svg
    assert "1 Sequential" in g.draw(depth=1).svg
    g.draw(tmp_path / "g.html")
    assert "<details" in (tmp_path / "g.html").read_text()
    assert kiln.viz.graph(g).svg.startswith("<svg")


def test_state_is_shared_and_written() -> None:
    bn = nn.BatchNorm1d(3)
    g = kiln.graph.from_function(bn, placeholder("x", ("n", 3)))
    twin = nn.BatchNorm1d(3)
    for _ in range(2):
        v = kiln.randn(4, 3)
        assert _same(g(v), twin(v))
    assert _same(bn.running_var, twin.running_var) and bn.running_var.grad_fn is None
    weight = nn.Parameter(kiln.ones(3))
    x = placeholder("x", (3,))
    g = Graph(x, x * weight)
    with kiln.no_grad():
        weight.mul_(2)
    assert g(kiln.ones(3)).tolist() == [2.0] * 3
    g(kiln.ones(3)).sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [1.0] * 3


def test_inputs_may_be_any_nodes() -> None:
    x = placeholder("x", (3,))
    hidden = x.exp()
    g = Graph({"hidden": hidden}, hidden.log() + 1)
    assert [n.op for n in g.nodes] == ["log", "add"]
    with pytest.raises(ValueError, match="depend on the placeholder 'x'"):
        Graph({"hidden": hidden}, x + hidden)
    with pytest.raises(ValueError, match="is given twice"):
        Graph([x, x], x)
    with pytest.raises(TypeError, match="expected nodes"):
        Graph(kiln.ones(3), x)


def test_a_function_that_reads_is_refused_with_its_line() -> None:
    with pytest.raises(TracingError, match=r"test_placeholders.py:\d+ reads the value"):
        kiln.graph.from_function(lambda a: a if a.sum() > 0 else -a, placeholder("x", (3,)))


class _Scaled(kiln.autograd.Function):
    """Its derivative is another one than its forward has."""

    @staticmethod
    def forward(ctx: Any, x: Any, k: float) -> Any:
        ctx.save_for_backward(x)
        ctx.k = k
        return x**3 * k, x.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0] * 7 * x * x * ctx.k + grads[1], None


def test_a_function_with_a_derivative_of_its_own() -> None:
    """It is a node, whose derivative the graph's gradient and gradients through the graph have."""
    x = placeholder("x", (None, 3))
    y, z = _Scaled.apply(x * 2, 2.0)
    loss = y.sum() + z
    graph = Graph([x], [loss])
    ones, given = (
        kiln.arange(6.0).reshape(2, 3).requires_grad_(),
        kiln.arange(6.0).reshape(2, 3).requires_grad_(),
    )
    a, b = _Scaled.apply(ones * 2, 2.0)
    expected = a.sum() + b
    expected.backward()
    (came,) = graph(given)
    came.backward()
    assert kiln.equal(came, expected) and kiln.equal(given.grad, ones.grad)
    assert kiln.equal(graph.gradient(loss, x)(given.detach()), ones.grad)


def test_values_under_control_flow_are_not_iterated_over_for_ever() -> None:
    """Their sizes vary: the refusal says so."""
    value = kiln.graph.cond(kiln.tensor(True), lambda a: a.unbind(0)[0], lambda a: a[0], (kiln.ones(2, 3),))
    assert value.tolist() == [1.0] * 3
    graph = kiln.graph.graph.Graph()
    with pytest.raises(TypeError, match="first size varies.*map or scan"):
        list(graph.add_input("float32", (graph.new_symbol(), 3)))
    with pytest.raises(TypeError, match="0-d"):
        list(graph.add_input("float32", ()))


def test_running_statistics_are_state_of_a_graph() -> None:
    """Of batch and instance norms in training: read and written at each run, not when the graph is made."""
    for make, shape in (
        (lambda: nn.BatchNorm1d(3), ("n", 3)),
        (lambda: nn.BatchNorm2d(3, momentum=0.3, affine=False), (2, 3, "h", 4)),
        (lambda: nn.InstanceNorm1d(3, track_running_stats=True), ("n", 3, 5)),
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.BatchNorm1d(3)), ("n", 3)),
    ):
        model, other = make(), make()
        other.load_state_dict(model.state_dict())
        x = placeholder("x", shape)
        y = model(x) * 2
        assert all(map(kiln.equal, model.buffers(), other.buffers()))  # nothing ran
        g = Graph(x, y)
        written = [line.split()[1] for line in str(g).splitlines() if line.startswith("  write ")]
        counted = not isinstance(model, nn.InstanceNorm1d)  # whose batches are not counted
        assert len(written) == len(list(model.buffers())) - (not counted) and "$running_mean" in written
        for n in (4, 7, 2):
            a = kiln.randn(*(k if isinstance(k, int) else n for k in shape), requires_grad=True)
            b = a.detach().clone().requires_grad_()
            ours, theirs = g(a), other(b) * 2
            assert _same(ours, theirs)
            assert all(map(_same, model.buffers(), other.buffers()))
            assert {f"${k}" for k in g.state}.issuperset(written)
            kiln.autograd.backward([ours.sum(), theirs.sum()])
            assert _same(a.grad, b.grad)


def test_a_graph_has_the_writes_of_its_own_calls_alone(tmp_path: Any) -> None:
    norm = nn.BatchNorm1d(2)
    x, z = placeholder("x", (4, 2)), placeholder("z", (4, 2))
    of_x, of_z = norm(x), norm(z)
    norm.eval()
    later = norm(z)
    norm.train()
    one, both, after, evaluated = (
        Graph(z, of_z), Graph([x, z], [of_x, of_z]), Graph([x, z], [of_x, later]), Graph(z, later),
    )  # fmt: skip
    assert [str(g).count("write ") for g in (one, both, after, evaluated)] == [3, 3, 3, 0]
    a, b = kiln.randn(4, 2), kiln.randn(4, 2)
    twin = nn.BatchNorm1d(2)
    for g, given in ((one, (b,)), (both, (a, b)), (one, (a,))):
        ours = g(*given)
        theirs = [twin(t) for t in given]
        assert all(map(_same, ours if len(given) > 1 else [ours], theirs))
        assert all(map(_same, norm.buffers(), twin.buffers()))
    assert _same(evaluated(b), twin.eval()(b))
    twin.train()
    first = twin(a)
    ours = after(a, b)
    assert _same(ours[0], first) and _same(ours[1], twin.eval()(b))
    assert int(norm.num_batches_tracked) == 5
    assert kiln.equal(one.run({"z": b}, fetch=of_z), twin.train()(b))
    one.save(tmp_path / "norm.kiln")
    loaded = kiln.graph.load(tmp_path / "norm.kiln")
    assert str(loaded) and _same(loaded(a), twin(a)) and list(loaded.state) == list(one.state)
    with pytest.raises(TracingError, match="writes into a tensor of the program"):
        norm.running_mean.add_(x.sum())
    norm.momentum = None
    with pytest.raises(TracingError, match="reads a value that is another one at each run"):
        norm(x)
    assert int(norm.num_batches_tracked) == 5


def test_what_is_written_has_its_sizes(tmp_path: Any) -> None:
    """So the text of a graph with writes in place can be read."""
    x = placeholder("x", (3,))
    v = x.clone()
    v.mul_(x)
    v.copy_(x[0])
    v[0] = 1.0
    v.lerp_(x, 0.5)
    g = Graph(x, v)
    g.save(tmp_path / "g.kiln")
    a = kiln.randn(3)
    assert _same(kiln.graph.load(tmp_path / "g.kiln")(a), g(a)) and _same(kiln.graph.parse(str(g))(a), g(a))
