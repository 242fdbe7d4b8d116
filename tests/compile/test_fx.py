"""kiln.fx beside torch.fx: the same graphs, source and surgery; PyTorch's answers are kept."""

from __future__ import annotations

import copy
import math
import operator
import pickle
import typing
from importlib import import_module
from typing import Any

import pytest

import kiln
from kiln import fx
from kiln.fx.passes.infra.pass_base import PassBase, PassResult
from kiln.fx.passes.infra.pass_manager import PassManager

# -- programs that are traced by both --------------------------------------------------------------------


def layers(t: Any) -> dict[str, Any]:
    """Modules and functions whose traces are compared."""

    class Net(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = t.nn.Parameter(t.ones(2))
            self.register_buffer("shift", t.ones(2))
            self.plain = t.ones(2)
            self.inner = t.nn.Sequential(t.nn.Linear(2, 2), t.nn.ReLU())

        def forward(self, x, y=3, *, k=None):
            a = self.shift + x
            b = self.scale * a
            c = t.cat([b, self.shift]).view(x.size(0), -1)
            d = self.inner(x)[:, None]
            e = t.softmax(d, 1) if self.training else d
            return {"a": a, "c": (c, e.T), "d": [self.plain / x, x.shape[0], -x, 2 - x, 2 < x, x == y]}

    def unpacks(x):
        left, right = x
        left += 1
        left *= right
        return left, x.foo.bar(1)

    def starred(x, *args, **kwargs):
        return t.add(x, args[0]) + kwargs["z"]

    def arithmetic(x):
        return x.size(0) // 2 % 3 ** x.dim() @ x | 3, x[1:, None, ...], 1e-5 * x, float("inf") * x

    def typed(x, y=2):
        return x.to(t.float16, copy=True) + y

    typed.__annotations__["y"] = int

    return {
        "module": Net(), "evaluated": Net().eval(),
        "sequential": t.nn.Sequential(t.nn.Linear(2, 2), t.nn.ReLU()),
        "unpacks": unpacks, "starred": starred, "arithmetic": arithmetic, "typed": typed,
    }  # fmt: skip


NAMES = ("module", "evaluated", "sequential", "unpacks", "starred", "arithmetic", "typed")


def fx_of(t: Any, below: str = "") -> Any:
    return import_module(f"{t.__name__}.fx{below}")


def as_torch(text: str) -> str:
    return text.replace("kiln", "torch")


@pytest.mark.parametrize("name", NAMES)
def test_graphs_and_source_are_those_of_pytorch(name: str, answers: Any) -> None:
    def shown(t: Any, name: str) -> Any:
        m = fx_of(t).symbolic_trace(layers(t)[name])
        return [as_torch(m.code), as_torch(str(m.graph)), [[n.op, n.name] for n in m.graph.nodes]]

    ours, theirs = answers.both(shown, name)
    assert ours == theirs


def test_concrete_arguments_are_checked_and_trees_flattened(answers: Any) -> None:
    def shown(t: Any) -> list[str]:
        fx = fx_of(t)

        def chosen(x, flag):
            return x + 1 if flag else x

        def tree(x, d):
            return d["a"] + d["b"][0] + x

        flagged = fx.symbolic_trace(chosen, concrete_args={"flag": True})
        treed = fx.symbolic_trace(tree, concrete_args={"d": {"a": fx.PH, "b": [fx.PH]}})
        try:
            flagged(t.ones(1), False)
            said = ""
        except AssertionError as error:
            said = str(error)
        result = treed(t.ones(1), {"a": t.ones(1), "b": [t.ones(1)]})
        return [as_torch(flagged.code), as_torch(treed.code), said, str(result.tolist())]

    ours, theirs = answers.both(shown)
    assert ours == theirs


def test_what_cannot_be_traced_raises_in_pytorchs_words(answers: Any) -> None:
    def said(t: Any) -> list[Any]:
        fx = fx_of(t)

        def branch(x):
            return x if x.sum() > 0 else -x

        programs = [
            branch, lambda x: len(x), lambda x: list(x), lambda x: not x, lambda x: int(x),
            lambda x: t.add, lambda x: range(x),
        ]  # fmt: skip
        found = []
        for program in programs:
            with pytest.raises(Exception) as raised:
                fx.symbolic_trace(program)
            found.append([type(raised.value).__name__, as_torch(str(raised.value))[:60]])
        return found

    ours, theirs = answers.both(said)
    assert [o[0] for o in ours] == [t[0] for t in theirs]
    assert ours[:4] == theirs[:4]


def test_an_error_of_control_flow_names_the_line() -> None:
    def program(x):
        if x > 0:
            return x
        return -x

    with pytest.raises(fx.TraceError, match=r"test_fx\.py:\d+: if x > 0:"):
        fx.symbolic_trace(program)


PATTERNS = {
    "chain": (lambda t: lambda x: t.relu(t.relu(t.relu(x))), lambda t: lambda x: t.relu(t.relu(x)),
              lambda t: lambda x: t.tanh(x)),
    "inside": (lambda t: lambda x: t.relu(x) + t.relu(t.neg(x)), lambda t: lambda x: t.relu(x),
               lambda t: lambda x: x.clamp(min=0)),
    "pair": (lambda t: lambda x, a, b: x + t.cat([a, b]).sum() + t.cat([b, a]).sum(),
             lambda t: lambda a, b: t.cat([a, b]).sum(), lambda t: lambda a, b: t.stack([a, b])),
    "again": (lambda t: lambda x: t.sigmoid(t.sigmoid(x)), lambda t: lambda x: t.sigmoid(x),
              lambda t: lambda x: t.exp(t.sigmoid(x))),
    "to nothing": (lambda t: lambda x: (x + 1, x + 1), lambda t: lambda x: x + 1, lambda t: lambda x: x),
    "used elsewhere": (lambda t: _shared, lambda t: lambda x: x.neg().relu(), lambda t: lambda x: x.abs()),
    "by name": (lambda t: lambda x: t.add(x, 1, alpha=2), lambda t: lambda x: t.add(x, 1),
                lambda t: lambda x: x),
}  # fmt: skip


def _shared(x):
    a = x.neg()
    return a.relu() + a.sum()


@pytest.mark.parametrize("name", list(PATTERNS))
def test_patterns_are_replaced_as_by_pytorch(name: str, answers: Any) -> None:
    def replaced(t: Any, name: str) -> Any:
        fx = fx_of(t)
        program, pattern, replacement = (make(t) for make in PATTERNS[name])
        m = fx.symbolic_trace(program)
        found = fx.replace_pattern(m, pattern, replacement)
        m.graph.lint()
        return [as_torch(m.code), str(found)]

    ours, theirs = answers.both(replaced, name)
    assert ours == theirs


def test_matches_are_filtered_and_literals_ignored() -> None:
    m = fx.symbolic_trace(lambda x: x * 2 + x * 3)
    rewrite = fx.subgraph_rewriter.replace_pattern_with_filters
    pattern, replacement = (lambda x: x * 5), (lambda x: x + x)
    assert not rewrite(m, pattern, replacement)
    assert not rewrite(m, pattern, replacement, [lambda match, graph, p: False], ignore_literals=True)
    found = rewrite(m, pattern, replacement, ignore_literals=True)
    assert [len(r.replacements) for r in found] == [1, 1] and m(kiln.ones(1)).tolist() == [4.0]


def test_split_modules_are_those_of_pytorch(answers: Any) -> None:
    def split(t: Any) -> Any:
        class Net(t.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.w = t.nn.Linear(2, 2), t.nn.Parameter(t.ones(2))

            def forward(self, x):
                return t.relu(t.relu(self.a(x)) * self.w), x.sum()

        net, names = Net(), dict[str, str]()
        traced = fx_of(t).symbolic_trace(net)
        home = {"a": 0, "relu": 0, "mul": 1}
        parts = fx_of(t, ".passes.split_module").split_module(
            traced, net, lambda n: home.get(n.name, 2), names
        )
        x = t.ones(1, 2)
        same = bool((parts(x)[0] == net(x)[0]).all())
        return [as_torch(parts.code), *[as_torch(p.code) for p in parts.children()], names, same]

    ours, theirs = answers.both(split)
    assert ours == theirs and ours[-1]


def test_shapes_of_every_node_are_known_after_a_run(answers: Any) -> None:
    def known(t: Any) -> Any:
        m = fx_of(t).symbolic_trace(lambda x: (x.sum(0).max(0), x.size(0)))
        fx_of(t, ".passes.shape_prop").ShapeProp(m).propagate(t.ones(2, 3))
        return [
            [
                n.name,
                n.meta["type"].__name__,
                as_torch(str(getattr(n.meta.get("tensor_meta"), "shape", None))),
            ]
            for n in m.graph.nodes
        ]

    ours, theirs = answers.both(known)
    assert ours == theirs


def test_graphs_are_edited_as_pytorchs_are(answers: Any) -> None:
    def edited(t: Any) -> Any:
        fx = fx_of(t)
        g = fx.Graph()
        x = g.placeholder("x", default_value=1)
        y = g.call_function(t.add, (x,), {"other": 1})
        z = g.call_method("relu", (y,))
        out = g.output({"k": z, "j": [x, slice(x, None)]})
        said = [as_torch(str(g))]
        y.insert_arg(1, 3)
        y.update_arg(0, x)
        y.update_kwarg("other", x)
        said.append([str(y.args), str(y.kwargs), str(y.all_input_nodes), str(list(x.users))])
        with pytest.raises(RuntimeError) as raised:
            g.erase_node(y)
        said.append(str(raised.value))
        with g.inserting_before(z):
            first = g.call_function(t.neg, (y,))
            second = g.call_function(t.neg, (first,))
        with g.inserting_after(y):
            g.call_function(operator.add, (y, y))
        z.replace_input_with(y, second)
        said += [as_torch(str(g)), g.eliminate_dead_code(), as_torch(str(g))]
        y.replace_all_uses_with(x)
        g.erase_node(y)
        said += [len(g.nodes), first < z, z < first, str([n.name for n in reversed(g.nodes)])]
        with pytest.raises(RuntimeError) as raised:
            other = fx.Graph()
            other.call_function(t.neg, (x,))
            other.lint()
        said += [str(raised.value)[:50], str(out), as_torch(g.python_code("self").src)]
        said.append([n.name for n in g.find_nodes(op="call_function", target=t.neg)])
        return said

    ours, theirs = answers.both(edited)
    assert ours == theirs


# -- what modules do with their graphs --------------------------------------------------------------------


def net() -> Any:
    kiln.manual_seed(0)
    return kiln.nn.Sequential(kiln.nn.Linear(3, 4), kiln.nn.BatchNorm1d(4), kiln.nn.ReLU())


def test_a_traced_module_is_the_module() -> None:
    """Results, gradients, state, training mode; copies and pickles; traced again."""
    model, x = net(), kiln.randn(5, 3)
    traced = fx.symbolic_trace(model)
    assert traced[1] is model[1] if hasattr(traced, "__getitem__") else traced.get_submodule("1") is model[1]
    assert list(traced.state_dict()) == list(model.state_dict())
    model.eval()
    traced.eval()
    expected = model(x)
    others = [traced, copy.deepcopy(traced), copy.copy(traced), pickle.loads(pickle.dumps(traced))]
    others.append(fx.symbolic_trace(traced))
    for other in others:
        assert kiln.equal(other(x), expected) and other.code == traced.code
        other.graph.lint()
    traced(x).sum().backward()
    assert model[0].weight.grad is not None
    assert type(traced).__name__ == "Sequential" and isinstance(traced, fx.GraphModule)


def test_surgery_takes_effect_when_it_is_compiled_anew() -> None:
    m = fx.symbolic_trace(lambda x: kiln.add(x, 1))
    for node in m.graph.find_nodes(op="call_function", target=kiln.add):
        node.target = kiln.mul
    assert m(kiln.ones(1) * 3).tolist() == [4.0]
    m.recompile()
    assert m(kiln.ones(1) * 3).tolist() == [3.0]
    assert m.add_submodule("a.b", kiln.nn.ReLU()) and not m.delete_submodule("a.c")
    m.delete_all_unused_submodules()
    assert not list(m.children())


def test_lines_of_the_source_may_be_changed() -> None:
    m = fx.symbolic_trace(lambda x: x + 1)
    with m.graph.on_generate_code(lambda before: lambda body: ["x = x * 10\n", *body]):
        m.recompile()
    assert m(kiln.ones(1)).tolist() == [11.0]
    m.recompile()
    assert m(kiln.ones(1)).tolist() == [2.0]


def test_leaves_are_what_the_tracer_says() -> None:
    class Whole(fx.Tracer):
        def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
            return True

    class Outer(kiln.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def forward(self, x: Any) -> Any:
            return self.inner(x) + 1

    outer = Outer()
    graph = Whole().trace(outer)
    assert [n.target for n in graph.nodes if n.op == "call_module"] == ["inner"]
    assert kiln.equal(fx.GraphModule(outer, graph)(kiln.ones(2, 3)), outer(kiln.ones(2, 3)))
    stack = fx.symbolic_trace(outer).graph.find_nodes(op="call_module")[0].meta["nn_module_stack"]
    assert [path for path, _ in stack.values()] == ["inner", "inner.0"]
    stranger = kiln.nn.Linear(3, 3)
    with pytest.raises(NameError, match="not installed as a submodule"):
        fx.symbolic_trace(lambda x: stranger(x))


def norm(x: Any, length: int) -> Any:
    return x / length if length > 1 else x  # which tracing it would refuse


@fx.wrap
def size_of(x: Any) -> int:
    return len(x)


fx.wrap("norm")


def test_wrapped_functions_stay_calls() -> None:
    m = fx.symbolic_trace(lambda x: norm(x, size_of(x)) * math.sqrt(x.size(0)))
    targets = [n.target for n in m.graph.nodes if n.op == "call_function"]
    assert targets == [size_of, norm, math.sqrt, operator.mul]
    assert m(kiln.ones(4)).tolist() == [0.5] * 4
    assert size_of([1]) == 1 and norm(2, 2) == 1  # as before
    with pytest.raises(NotImplementedError, match="top level"):
        fx.wrap("norm")


def test_an_interpreter_runs_and_a_transformer_rewrites() -> None:
    class Counts(fx.Interpreter):
        def __init__(self, module: Any) -> None:
            super().__init__(module)
            self.seen: list[str] = []

        def run_node(self, n: Any) -> Any:
            self.seen.append(n.name)
            return super().run_node(n)

    class Negated(fx.Transformer):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            return kiln.neg(super().call_function(target, args, kwargs))

    m = fx.symbolic_trace(lambda x, y=2: kiln.relu(x) * y)
    counts = Counts(m)
    assert counts.run(kiln.ones(1)).tolist() == [2.0] and counts.seen == ["x", "y", "relu", "mul", "output"]
    made = Negated(m).transform()
    assert made(kiln.ones(1)).tolist() == [2.0] and "kiln.neg" in made.code
    with pytest.raises(RuntimeError, match=r"parameter x, but one was not passed[\s\S]*executing %x"):
        fx.Interpreter(m).run()


def test_proxies_append_to_the_graph_of_their_node() -> None:
    """Decompositions are written so: functions of kiln's called with proxies outside of a trace."""
    m = fx.symbolic_trace(lambda x: kiln.relu(x))
    (node,) = m.graph.find_nodes(op="call_function", target=kiln.relu)
    with m.graph.inserting_before(node):
        proxy = fx.Proxy(node.args[0])
        node.replace_all_uses_with((kiln.where(proxy > 0, proxy, 0.0) + kiln.zeros(1)).node)
    m.graph.erase_node(node)
    m._tensor = None
    assert [n.name for n in m.graph.nodes if n.op == "call_function"] == ["gt", "where", "add"]


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda p: kiln.nn.functional.conv2d(kiln.ones(1, 1, 2, 2), p), "call_function"),
        (lambda p: kiln.cat([kiln.ones(2), p]), "call_function"),
        (lambda p: kiln.ones(2) + p, "call_method"),
        (lambda p: kiln.ones(2)[p], "call_method"),
        (lambda p: kiln.zeros(p.size(0), 2), "call_function"),
        (lambda p: kiln.linalg.norm(p), "call_function"),
        (lambda p: p.add_(1), "call_method"),
    ],
)
def test_every_kind_of_call_takes_proxies(call: Any, kind: str) -> None:
    class Root(kiln.nn.Module):
        def forward(self, p: Any) -> Any:
            return call(p)

    assert list(fx.symbolic_trace(Root()).graph.nodes)[-2].op == kind
    assert kiln.is_tensor(fx.Proxy(fx.Graph().placeholder("x"))) is False


def test_names_that_are_none_do_not_become_source() -> None:
    """A target that is no name is fetched by `getattr` or refused: the source runs nothing of its own."""
    evil = "x; print(1)"
    g = fx.Graph()
    x = g.placeholder("x")
    g.output(g.call_method(evil, (x,), {"a b": 1}))
    code = g.python_code("self").src
    assert 'getattr(x, "x; print(1)")(**{' in code and "'a b': 1" in code
    compile(code, "source", "exec")
    h = fx.Graph()
    h.output(h.get_attr('a".b\n'))
    compile(h.python_code("self").src, "source", "exec")
    k = fx.Graph()
    k.output(k.placeholder(evil))
    with pytest.raises(ValueError, match="must be a name"):
        k.python_code("self")


def test_passes_are_run_in_order_until_nothing_changes() -> None:
    class Swap(PassBase):
        def call(self, graph_module: Any) -> Any:
            found = graph_module.graph.find_nodes(op="call_function", target=kiln.sin)
            for node in found:
                node.target = kiln.cos
            return PassResult(graph_module, bool(found))

    result = PassManager([Swap()], steps=3)(fx.symbolic_trace(lambda x: kiln.sin(x)))
    assert result.modified and "kiln.cos" in result.graph_module.code


def test_pictures_need_a_package_and_say_so() -> None:
    from kiln.fx.passes.graph_drawer import FxGraphDrawer

    m = fx.symbolic_trace(lambda x: x + 1)
    try:
        import pydot  # noqa: F401
    except ImportError:
        with pytest.raises(RuntimeError, match="pydot"):
            FxGraphDrawer(m, "m")
    else:
        assert "add" in FxGraphDrawer(m, "m").get_dot_graph().to_string()


def test_tables_are_printed(capsys: Any) -> None:
    fx.symbolic_trace(lambda x: kiln.relu(x)).graph.print_tabular()
    out = capsys.readouterr().out
    assert out.startswith("opcode") and "call_function  relu" in out


class Pair(metaclass=kiln.fx.ProxyableClassMeta):
    def __init__(self, left: Any, right: Any) -> None:
        self.left, self.right = left, right

    def add(self, other: Any) -> Any:
        return Pair(self.left + other.left, self.right + other.right)


def test_objects_of_proxyable_classes_are_constants_of_the_module() -> None:
    held = kiln.ones(2)

    def f(x: Any) -> Any:
        return x.add(Pair(held, held))

    traced = kiln.fx.symbolic_trace(f)
    given = Pair(kiln.ones(2), kiln.zeros(2))
    assert kiln.equal(traced(given).left, f(given).left) and "_Pair_constant0" in traced.code


def test_writing_calls_are_refused_where_a_tracer_says_so() -> None:
    class Pure(kiln.fx.Tracer):
        check_mutable_operations = True

    def writes(x: Any) -> Any:
        y = kiln.rand_like(x)
        kiln.sigmoid(x, out=y)
        return y

    with pytest.raises(RuntimeError, match=r"Tried to trace mutable operation aten::sigmoid\.out"):
        Pure().trace(writes)
    assert kiln.typename(kiln.log_) == "kiln.log_"


def test_generic_annotations_are_written_by_their_parts() -> None:
    def f(x, y):
        return x[0], y["a"]

    f.__annotations__ = {"x": typing.List[str], "y": dict[str, int], "return": tuple[str, int]}  # noqa: UP006
    traced = kiln.fx.symbolic_trace(f)
    assert "x : typing_List[str], y : dict[str,int]) -> tuple[str,int]:" in traced.code
    assert traced(["b"], {"a": 1}) == ("b", 1)


def test_what_is_no_operation_is_gone_through() -> None:
    """Functions that only ask or help are no nodes: their own calls are."""

    def asked(x: Any) -> Any:
        return kiln.jit.annotate(object, x) + 1 if not kiln.jit.is_scripting() else x

    nodes = kiln.fx.symbolic_trace(asked).graph.nodes
    called = [str(node.target) for node in nodes if node.op == "call_function"]
    assert called and not any("is_scripting" in name or "annotate" in name for name in called)
