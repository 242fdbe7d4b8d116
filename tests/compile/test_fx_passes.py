"""Passes over graphs, as programs use them: beside PyTorch's."""

from __future__ import annotations

import importlib
import operator
import random
from collections.abc import Callable
from typing import Any, Optional, Union

import pytest
from backend import filled

import kiln
from kiln.nn import functional as F


def _part(m: Any, name: str) -> Any:
    return importlib.import_module(f"{m.__name__}.fx.{name}")


def _net(m: Any) -> Any:
    class Net(m.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = m.nn.Conv2d(1, 2, 3), m.nn.BatchNorm2d(2)
            self.drop, self.last = m.nn.Dropout(0.5), m.nn.Linear(8, 2)
            self.scale = m.nn.Parameter(m.ones(2))

        def forward(self, x):  # type: ignore[no-untyped-def]
            y = m.relu(self.norm(self.conv(x))).flatten(1)
            return self.last(self.drop(y)) * m.exp(self.scale)

    return filled(m, Net()).eval()


def _image(m: Any) -> Any:
    return m.arange(32, dtype=m.float32).reshape(2, 1, 4, 4) / 16


def _rounded(x: Any) -> Any:
    return [round(v, 3) for v in x.flatten().tolist()]


def fused(m: Any) -> list[Any]:
    optimization, net = _part(m, "experimental.optimization"), _net(m)
    before = _rounded(net(_image(m)))
    made = [
        optimization.fuse(net),
        optimization.remove_dropout(net),
        optimization.optimize_for_inference(net, {"mkldnn_layout_optimize": False}),
        optimization.fuse(m.fx.symbolic_trace(net), inplace=True, no_trace=True),
    ]
    return [(_rounded(g(_image(m))) == before, [n.name for n in g.graph.nodes]) for g in made]


def not_fused(m: Any) -> list[Any]:
    """Used twice, without statistics, in another order."""

    class Twice(m.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = m.nn.Conv2d(1, 1, 1), m.nn.BatchNorm2d(1)

        def forward(self, x):  # type: ignore[no-untyped-def]
            y = self.a(x)
            return self.b(y) + y

    free = m.nn.BatchNorm2d(2, track_running_stats=False)
    nets = [
        Twice(),
        m.nn.Sequential(m.nn.Conv2d(1, 2, 1), free),
        m.nn.Sequential(m.nn.BatchNorm2d(1), m.nn.Conv2d(1, 2, 1)),
    ]
    return [
        [n.name for n in _part(m, "experimental.optimization").fuse(net.eval()).graph.nodes] for net in nets
    ]


def extracted(m: Any) -> list[Any]:
    traced = m.fx.symbolic_trace(_net(m))
    nodes = {n.name: n for n in traced.graph.nodes}
    inner = [nodes["norm"], nodes["relu"]]
    made = _part(m, "experimental.optimization").extract_subgraph(
        traced, inner, [nodes["conv"]], [nodes["relu"]]
    )
    return [made.code, _rounded(made(m.ones(1, 2, 2, 2))[0])]


def folded(m: Any) -> list[Any]:
    net = _net(m)
    made = _part(m, "experimental.const_fold").split_const_subgraphs(net)
    calls = [n.name for n in made.graph.nodes if n.op.startswith("call")]
    inside = [n.op for n in made.const_subgraph_module.graph.nodes]
    return [calls, inside, _rounded(made(_image(m))) == _rounded(net(_image(m))), made.has_folding_been_run]


def folded_twice(m: Any) -> list[Any]:
    """Two results of the constant part, one of them used there too; random numbers are none."""

    class Net(m.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.w = m.nn.Parameter(m.arange(4.0).reshape(2, 2))

        def forward(self, x):  # type: ignore[no-untyped-def]
            a = self.w + self.w
            return x @ a * (a - 1), x + m.rand(2) * 0

    fold, net = _part(m, "experimental.const_fold").split_const_subgraphs, Net()
    made, skipped = fold(net), fold(net, skip_folding_node_fn=lambda n: n.target is operator.add)
    x = m.ones(2, 2)
    return [
        [n.name for n in g.graph.nodes if n.op == "call_function" and n.target is not operator.getitem]
        + [v.tolist() for v in g(x)]
        for g in (made, skipped)
    ]


def normalized(m: Any) -> list[Any]:
    F, schemas = m.nn.functional, _part(m, "operator_schemas")
    calls: list[Any] = [
        (F.linear, (1, 2)), (F.gelu, (1,)), (F.hardtanh, (1, -2)), (F.cross_entropy, (1, 2)),
        (F.layer_norm, (1, (2,))), (m.flatten, (1, 1)), (m.cat, ((1, 2),)),
        (F.relu, (1,)), (F.silu, (1, True)), (F.selu, (1,)), (F.celu, (1, 2)),
    ]  # fmt: skip
    found = []
    for function, args in calls:
        pair = schemas.normalize_function(function, args, {}, normalize_to_only_use_kwargs=True)
        found.append((function.__name__, pair.args, sorted(pair.kwargs)))
    net = m.nn.Sequential(m.nn.Linear(2, 2))
    pair = schemas.normalize_module(net, "0", (1,), normalize_to_only_use_kwargs=True)
    node = next(n for n in m.fx.symbolic_trace(net).graph.nodes if n.op == "call_module")
    own = node.normalized_arguments(net, normalize_to_only_use_kwargs=True)
    return [found, pair, tuple(map(str, own)), schemas.normalize_function(len, ((),))]


def types(m: Any) -> list[Any]:
    kinds = [
        int, float, bool, str, list[int], list[float], tuple[int, int], tuple[int, ...], Optional[int],  # noqa: UP045
        Union[int, str], m.Tensor, m.nn.Parameter, m.dtype, list[m.Tensor], Optional[list[int]],  # noqa: UP045
    ]  # fmt: skip
    matches = _part(m, "operator_schemas").type_matches
    plain = [k for k in kinds if "nion" not in str(k) and "Optional" not in str(k)]
    return [[bool(matches(a, b)) for b in plain] for a in kinds]


def as_operators(m: Any) -> list[Any]:
    traced = m.fx.symbolic_trace(lambda x, y: m.add(x, y) * m.sub(x, 2) - m.lt(m.div(x, 2), y))
    return [_part(m, "experimental.normalize").NormalizeOperators(traced).transform().code]


def with_names(m: Any) -> list[Any]:
    F = m.nn.functional
    traced = m.fx.symbolic_trace(lambda x, w: F.gelu(F.linear(m.flatten(x, 1), w)) + 1)
    made = _part(m, "experimental.normalize").NormalizeArgs(traced).transform()
    calls = [n for n in made.graph.nodes if n.op == "call_function"]
    return [[(len(n.args), sorted(n.kwargs)) for n in calls], _rounded(made(m.ones(1, 2), m.ones(1, 2)))]


def tagged(m: Any) -> list[Any]:
    traced = m.fx.symbolic_trace(_net(m))
    tags = {"conv": "first", "norm": "first", "relu": "first", "flatten": "second", "drop": "second"}
    for node in traced.graph.nodes:
        if node.op.startswith("call"):
            node.tag = tags.get(node.name, "third")
    made, names = _part(m, "passes.split_utils").split_by_tags(
        traced, ["first", "second", "third"], return_fqn_mapping=True
    )
    return [made.code, made.first.code, made.second.code, _rounded(made(_image(m))), sorted(names)]


def split(m: Any) -> list[Any]:
    module = _part(m, "passes.split_module")
    traced = m.fx.symbolic_trace(lambda x, y: (m.relu(x) + y).sin().cos())
    parts = {n: int(n.name in ("sin", "cos")) for n in traced.graph.nodes}
    made = [
        module.split_module_simple(traced, parts),
        module.split_module(traced, traced, parts.get, partition_affix="a"),
        module.split_module(traced, traced, parts.get, tuple_return=True, keep_original_input_name=False),
    ]
    return [(g.code, [p.code for _, p in g.named_children()]) for g in made]


def sized(m: Any) -> list[Any]:
    traced, passes = m.fx.symbolic_trace(_net(m)), _part(m, "passes.graph_manipulation")
    passes.get_size_of_all_nodes(traced, [_image(m)])
    found = [(n.name, tuple(n.size_bytes)) for n in traced.graph.nodes if n.op != "output"]
    passes.replace_target_nodes_with(traced, "call_function", m.relu, "call_function", m.sigmoid)
    return [found, [n.target is m.sigmoid for n in traced.graph.nodes], _rounded(traced(_image(m)))]


def compared(m: Any) -> list[Any]:
    same = _part(m, "passes.utils.common").compare_graphs
    graphs = [
        m.fx.symbolic_trace(f).graph
        for f in (
            lambda x, y: m.relu(x + y),
            lambda a, b: m.relu(a + b),
            lambda x, y: m.relu(x - y),
            lambda x, y: m.relu(x + y) + 1,
        )
    ]
    return [[bool(same(a, b)) for b in graphs] for a in graphs]


def items(m: Any) -> list[Any]:
    def f(x: tuple[int, float], y: list[str], z: tuple[int, ...]):  # type: ignore[no-untyped-def]
        return x[0], x[1], y[0], z[2]

    f.__annotations__ = {"x": tuple[int, float], "y": list[str], "z": tuple[int, ...]}
    traced = m.fx.symbolic_trace(f)
    _part(m, "passes.annotate_getitem_nodes").annotate_getitem_nodes(traced.graph)
    return [[n.type for n in traced.graph.nodes if n.op == "call_function"]]


def annotated(m: Any) -> list[Any]:
    back, note = _part(m, "traceback"), _part(m, "annotate").annotate
    with back.preserve_node_meta():
        with back.annotate({"stage": 1}):
            traced = m.fx.symbolic_trace(lambda x: note(m.relu(x), int) + 1)
    found = [n.meta.get("custom") for n in traced.graph.nodes if n.op == "call_function"]
    with back.preserve_node_meta():
        again = m.fx.Transformer(traced).transform()
    kept = [n.meta.get("custom") for n in again.graph.nodes if n.op == "call_function"]
    return [
        found,
        kept,
        traced.graph.find_nodes(op="call_function", target=m.relu)[0].type,
        back.has_preserved_node_meta(),
    ]


def scheduled(m: Any) -> list[Any]:
    infra, plain, order = _part(m, "passes.infra.pass_manager"), _part(m, "passes.pass_manager"), []

    def a(g):  # type: ignore[no-untyped-def]
        order.append("a")

    def b(g):  # type: ignore[no-untyped-def]
        order.append("b")

    passes = [infra.pass_result_wrapper(b), infra.pass_result_wrapper(a)]
    first = infra.PassManager(passes, [infra.this_before_that_pass_constraint(passes[1], passes[0])], steps=2)
    first(m.fx.symbolic_trace(lambda x: x))
    listed = plain.PassManager(
        [plain.inplace_wrapper(b), plain.loop_pass(plain.inplace_wrapper(a), n_iter=2)]
    )
    listed(0)
    listed.add_constraint(plain.these_before_those_pass_constraint(a, b))
    errors = []
    for act in (
        lambda: listed(0),
        lambda: infra.PassManager(passes, [lambda x, y: False])(m.nn.Module()),
        lambda: infra.PassManager(passes, [lambda x, y: False]).validate_constraints(),
        lambda: first.add_checks(lambda: None),
        lambda: plain.loop_pass(a),
    ):
        try:
            act()
        except Exception as error:
            errors.append((type(error).__name__, str(error)[:40]))
    return [order, errors]


@pytest.mark.parametrize(
    "program",
    [
        fused, not_fused, extracted, folded, folded_twice, normalized, types, as_operators, with_names,
        tagged, split, sized, compared, items, annotated, scheduled,
    ],
)  # fmt: skip
def test_a_pass_does_what_it_does_under_pytorch(program: Callable[[Any], list[Any]], answers: Any) -> None:
    ours, theirs = answers.both(
        lambda m: repr(program(m)).replace("kiln", "torch").replace("_C._nn", "nn.functional")
    )
    assert ours == theirs


def _random(m: Any, seed: int) -> tuple[Any, Any]:
    """A random graph, and which of its nodes are supported."""
    rng = random.Random(seed)
    graph = m.fx.Graph()
    values, supported = [graph.placeholder("a"), graph.placeholder("b")], set()
    for _ in range(rng.randint(3, 14)):
        function = rng.choice([m.add, m.mul, m.sub])
        node = graph.call_function(function, (rng.choice(values[-4:]), rng.choice(values[-5:])))
        if rng.random() < 0.6:
            supported.add(node.name)
        values.append(node)
    graph.output(tuple(v for v in values if not v.users))
    support = _part(m, "passes.operator_support").create_op_support(
        lambda modules, node: node.name in supported
    )
    return m.fx.GraphModule({}, graph), support


def partitioned(m: Any, seed: int) -> list[Any]:
    made, support = _random(m, seed)
    x, y = m.ones(2) * 0.5, m.ones(2) * 0.25
    before = [v.tolist() for v in made(x, y)]
    partitioner = _part(m, "passes.infra.partitioner").CapabilityBasedPartitioner(
        made, support, seed % 2 == 0
    )
    parts = partitioner.propose_partitions()
    found = [[n.name for n in part.nodes] for part in parts]
    after = partitioner.fuse_partitions(parts)
    return [
        found,
        [v.tolist() for v in after(x, y)] == before,
        after.code,
        [p.code for _, p in after.named_children()],
    ]


@pytest.mark.parametrize("seed", range(24))
def test_parts_that_are_supported_are_those_of_pytorch(seed: int, answers: Any) -> None:
    ours, theirs = answers.both(lambda m: repr(partitioned(m, seed)).replace("kiln", "torch"))
    assert ours == theirs
    assert eval(ours)[1]


def test_a_long_graph_has_parts() -> None:
    """Runs of four with one between, which keeps them apart: each pair of the two hundred is asked."""
    graph = kiln.fx.Graph()
    x = y = graph.placeholder("x")
    nodes = []
    for _ in range(1000):
        y = graph.call_function(kiln.add, (y, x))
        nodes.append(y)
    graph.output(y)
    apart = set(nodes[::5])
    support = _part(kiln, "passes.operator_support").create_op_support(lambda modules, n: n not in apart)
    made = _part(kiln, "passes.infra.partitioner").CapabilityBasedPartitioner(
        kiln.fx.GraphModule({}, graph), support
    )
    parts = [[n.name for n in part.nodes] for part in made.propose_partitions()]
    assert sorted(parts) == sorted([n.name for n in nodes[k + 1 : k + 5]] for k in range(0, 1000, 5))


def supported(m: Any) -> list[Any]:
    part = _part(m, "passes.operator_support")

    class Half(part.OperatorSupport):  # type: ignore[misc, name-defined]
        _support_dict = {}

    traced = m.fx.symbolic_trace(lambda x, y: m.relu(x) @ y + m.relu(y))
    _part(m, "passes.shape_prop").ShapeProp(traced).propagate(m.ones(2, 2), m.ones(2, 2))
    name = _part(m, "passes.tools_common").get_node_target(
        {}, next(n for n in traced.graph.nodes if "relu" in n.name)
    )
    rules = [
        part.OperatorSupport({name: (((m.float32,),), {})}),
        part.OperatorSupport({name: (((m.float64,),), {})}),
        part.OperatorSupport({name: None}),
        part.OpSupports.decline_if_input_dtype(m.float32),
        part.OpSupports.decline_if_node_in_names({"relu"}),
    ]
    rules += [part.chain(rules[2], rules[4]), part.any_chain(rules[1], rules[4])]
    return [[bool(rule.is_node_supported({}, n)) for n in traced.graph.nodes] for rule in rules]


def test_support_is_said_by_names_and_dtypes(answers: Any) -> None:
    ours, theirs = answers.both(lambda m: repr(supported(m)))
    assert ours == theirs


def test_what_is_no_operation_of_its_own_is_no_part() -> None:
    made = kiln.fx.symbolic_trace(lambda x: kiln.relu(x.view(2)) + 1)
    part = _part(kiln, "passes.infra.partitioner")
    anything = _part(kiln, "passes.operator_support").create_op_support(lambda modules, node: True)
    partitioner = part.CapabilityBasedPartitioner(made, anything, non_compute_ops=["view"])
    parts = partitioner.propose_partitions()
    assert [[n.name for n in p.nodes] for p in parts] == [["view", "relu", "add"]]
    partitioner.remove_bookend_non_compute_ops(parts)
    assert [[n.name for n in p.nodes] for p in parts] == [["relu", "add"]]


def test_a_cycle_of_parts_is_refused() -> None:
    made = kiln.fx.symbolic_trace(lambda x: kiln.relu(x.sin()) + x.sin())
    fuse = _part(kiln, "passes.utils.fuser_utils").fuse_by_partitions
    nodes = {n.name: n for n in made.graph.nodes}
    with pytest.raises(AssertionError, match="dependency cycles"):
        fuse(made, [{nodes["sin"]: None, nodes["add"]: None}])


def test_equal_calls_are_one() -> None:
    def f(x: Any) -> Any:
        return (
            kiln.sin(x) + kiln.sin(x) * kiln.add(x, 1) - kiln.add(x, True),
            kiln.rand_like(x),
            kiln.rand_like(x),
        )

    made = kiln.fx.symbolic_trace(f)
    result = _part(kiln, "passes.dialect.common.cse_pass").CSEPass()(made)
    assert result.modified
    names = [n.name for n in result.graph_module.graph.nodes if n.op == "call_function"]
    assert names.count("sin") == 1 and "sin_1" not in names
    assert sum(n.startswith("rand") for n in names) == 2
    assert (
        sum(n.target is kiln.add for n in result.graph_module.graph.nodes) == 2
    )  # 1 and True are two numbers
    x = kiln.arange(3.0)
    assert result.graph_module(x)[0].tolist() == f(x)[0].tolist()


class _Writing(kiln.nn.Module):
    """`write(module, y)` between two readings of y, which is made of a parameter alone."""

    def __init__(self, write: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.w, self.write = kiln.nn.Parameter(kiln.full((4,), -0.5), requires_grad=False), write
        self.layer, self.deep = kiln.nn.ReLU(inplace=True), kiln.nn.Sequential(kiln.nn.ReLU(inplace=True))

    def forward(self, x: Any) -> Any:
        y = self.w * 1
        before = kiln.sin(y)
        self.write(self, y)
        return x + before, kiln.sin(y)


class _Whole(kiln.fx.Tracer):
    """Submodules are calls, those with submodules of their own too."""

    def is_leaf_module(self, m: kiln.nn.Module, module_qualified_name: str) -> bool:
        return True


_WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "a method": lambda net, y: y.mul_(2),
    "out": lambda net, y: kiln.add(y, 1, out=y),
    "a function": lambda net, y: F.relu(y, inplace=True),
    "a layer": lambda net, y: net.layer(y),
    "a layer of a layer": lambda net, y: net.deep(y),
    "rows made shorter": lambda net, y: F.embedding(kiln.tensor([0, 1]), y.unsqueeze(1), max_norm=0.1),
    "statistics of a batch": lambda net, y: F.batch_norm(
        kiln.arange(12.0).reshape(3, 4), y, kiln.ones(4), training=True
    ),
    "statistics of instances": lambda net, y: F.instance_norm(
        kiln.arange(24.0).reshape(2, 4, 3), y, kiln.ones(4)
    ),
}


@pytest.mark.parametrize("write", _WRITES)
def test_what_writes_stays_where_it_is(write: str) -> None:
    """Without dead code, without equal calls, with constants folded: the module's results at each call."""
    net = _Writing(_WRITES[write])
    before, after = net(kiln.zeros(4))
    assert before.tolist() != after.tolist()
    dead, equal, fixed = (kiln.fx.GraphModule(net, _Whole().trace(net)) for _ in range(3))
    dead.graph.eliminate_dead_code()
    dead.recompile()
    made = [
        dead,
        _part(kiln, "passes.dialect.common.cse_pass").CSEPass()(equal).graph_module,
        _part(kiln, "experimental.const_fold").split_const_subgraphs(fixed),
    ]
    for g in made:
        for _ in range(3):
            assert [v.tolist() for v in g(kiln.zeros(4))] == [before.tolist(), after.tolist()]


def test_a_call_writes_as_its_arguments_say() -> None:
    """By place or by name; without them it does not, and equal ones are one."""
    graph = kiln.fx.Graph()
    x = graph.placeholder("x")
    said = [
        ((x, True), {}),
        ((x,), {"inplace": True}),
        ((x,), {}),
        ((x, False), {}),
        ((x,), {"inplace": False}),
    ]
    nodes = [graph.call_function(F.relu, args, kwargs) for args, kwargs in said]
    assert [node.is_impure() for node in nodes] == [True, True, False, False, False]
    assert not graph.call_function(kiln.add, (x, 1), {"out": None}).is_impure()
    assert not graph.call_function(F.batch_norm, (x, x, x)).is_impure()


def test_layers_that_draw_are_not_folded() -> None:
    class Net(kiln.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.drop = kiln.nn.Parameter(kiln.ones(64)), kiln.nn.Dropout(0.5)

        def forward(self, x: Any) -> Any:
            return x + self.drop(self.w)

    made = _part(kiln, "experimental.const_fold").split_const_subgraphs(Net())
    assert "drop" in [n.name for n in made.graph.nodes]
    made = _part(kiln, "experimental.const_fold").split_const_subgraphs(Net().eval())
    assert "drop" not in [n.name for n in made.graph.nodes]


class _Convolved(kiln.nn.Module):
    def __init__(self, body: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.conv, self.other, self.norm = (
            kiln.nn.Conv2d(1, 2, 1),
            kiln.nn.Conv2d(1, 2, 1),
            kiln.nn.BatchNorm2d(2),
        )
        self.norm.running_var.fill_(3.0)
        self.body = body

    def forward(self, x: Any) -> Any:
        return self.body(self, x)


@pytest.mark.parametrize(
    ("body", "norms"),
    [
        (lambda net, x: net.norm(net.conv(x)), 0),
        (lambda net, x: net.norm(net.conv(x)) + net.norm(net.other(x)), 0),
        (lambda net, x: net.norm(net.norm(net.conv(x))), 0),
        (lambda net, x: net.norm(net.conv(x)) + net.conv(x), 1),
        (lambda net, x: net.norm(net.conv(x)) + net.norm(net.conv(x * 2)), 2),
        (lambda net, x: net.norm(net.conv(x)) + x * net.conv.weight.sum(), 1),
    ],
)
def test_a_convolution_with_another_use_stays(body: Any, norms: int) -> None:
    """Called once more, or its weights read; a norm may be called again."""
    net, x = filled(kiln, _Convolved(body)).eval(), kiln.arange(4.0).reshape(1, 1, 2, 2)
    made = _part(kiln, "experimental.optimization").fuse(net)
    assert sum(node.target == "norm" for node in made.graph.nodes) == norms
    assert _rounded(made(x)) == _rounded(net(x))


def test_nodes_of_a_pattern_have_names() -> None:
    def pattern(x: Any, w: Any) -> Any:
        y = kiln.matmul(x, w)
        z = kiln.relu(y)
        return z, {"product": y, "positive": z}

    matcher = _part(kiln, "passes.utils.matcher_with_name_node_map_utils").SubgraphMatcherWithNameNodeMap
    made = kiln.fx.symbolic_trace(lambda a, b: kiln.relu(kiln.matmul(a, b)) + kiln.relu(kiln.matmul(b, a)))
    found = matcher(kiln.fx.symbolic_trace(pattern)).match(made.graph)
    names = [{key: node.name for key, node in one.name_node_map.items()} for one in found]
    assert names == [
        {"product": "matmul", "positive": "relu"},
        {"product": "matmul_1", "positive": "relu_1"},
    ]


def test_mistakes_are_named() -> None:
    made = kiln.fx.symbolic_trace(lambda x: kiln.relu(x) + 1)
    with pytest.raises(AssertionError, match="Node relu has no tag"):
        _part(kiln, "passes.split_utils").split_by_tags(made, ["a"])
    for node in made.graph.nodes:
        node.tag = {"relu": "b", "add": "a"}.get(node.name)
    with pytest.raises(AssertionError, match="add of a uses relu of b, a later part"):
        _part(kiln, "passes.split_utils").split_by_tags(made, ["a", "b"])
    with pytest.raises(RuntimeError, match="no tensor metadata"):
        _part(kiln, "passes.graph_manipulation").get_size_of_all_nodes(made)
    with pytest.raises(RuntimeError, match="did not have that target"):
        _part(kiln, "operator_schemas").normalize_module(made, "none", ())
    with pytest.raises(RuntimeError, match="is not a dict"):
        _part(kiln, "experimental.optimization").optimize_for_inference(made, {"mkldnn_layout_optimize": 1})
    with pytest.raises(AssertionError, match="must return a dict"):
        _part(kiln, "passes.utils.matcher_with_name_node_map_utils").SubgraphMatcherWithNameNodeMap(made)
