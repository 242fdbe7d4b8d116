"""Programs that work on graphs, as tutorials have them: what they print beside PyTorch's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Dict, List, Optional, Tuple  # noqa: UP035

import pytest


def _fused(m: Any) -> Any:
    class Net(m.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.last = m.nn.Conv2d(1, 2, 3), m.nn.BatchNorm2d(2), m.nn.Linear(2, 2)

        def forward(self, x):  # type: ignore[no-untyped-def]
            y = m.nn.functional.adaptive_avg_pool2d(m.relu(self.norm(self.conv(x))), 1)
            return m.nn.functional.dropout(self.last(m.flatten(y, 1)), training=self.training)

    return m.fx.symbolic_trace(Net().eval())


def fusion(m: Any) -> list[Any]:
    made = _fused(m)
    modules = dict(made.named_modules())
    for node in list(made.graph.nodes):
        if node.op == "call_module" and isinstance(modules[node.target], m.nn.BatchNorm2d):
            conv = modules[node.args[0].target]
            made.conv = m.nn.utils.fuse_conv_bn_eval(conv, modules[node.target])
            node.replace_all_uses_with(node.args[0])
            made.graph.erase_node(node)
    made.recompile()
    made.delete_all_unused_submodules()
    return [made.code, str(made.graph), [name for name, _ in made.named_modules()]]


def copies(m: Any) -> list[Any]:
    made = _fused(m)
    others = [copy.deepcopy(made), copy.copy(made)]
    return [[type(made).__name__], *([type(o).__name__, o.code == made.code] for o in others)]


def scopes(m: Any) -> list[Any]:
    stacks = [n.meta.get("nn_module_stack") for n in _fused(m).graph.nodes]
    return [(type(s).__name__, [(key, value[0]) for key, value in s.items()]) for s in stacks if s]


def readable(m: Any) -> list[Any]:
    return [_fused(m).print_readable(print_output=False)]


def inserted(m: Any) -> list[Any]:
    made = _fused(m)
    for node in list(made.graph.nodes):
        if node.op == "call_function":
            with made.graph.inserting_after(node):
                new = made.graph.call_function(m.sigmoid, (node,))
            node.replace_all_uses_with(new, lambda user, new=new: user is not new)
    made.recompile()
    return [made.code]


def annotated(m: Any) -> list[Any]:
    def f(x, n=3, many=None, named=None):  # type: ignore[no-untyped-def]
        return x + n, n

    f.__annotations__ = {
        "x": m.Tensor, "n": int, "many": List[m.Tensor], "named": Optional[Dict[str, int]],  # noqa: UP006, UP045
        "return": Tuple[m.Tensor, int],  # noqa: UP006
    }  # fmt: skip
    made = m.fx.symbolic_trace(f)
    return [made.code, str(made.graph).splitlines()[0]]


def wrapped(m: Any) -> list[Any]:
    space: dict[str, Any] = {"__name__": "program", "m": m}
    exec(
        "from math import sqrt\n"
        "m.fx.wrap('sqrt')\nm.fx.wrap('len')\n"
        "@m.fx.wrap\ndef own(x, n=2): return x * n\n"
        "def f(x): return own(x, n=3) / sqrt(len(x))\n",
        space,
    )
    made = m.fx.symbolic_trace(space["f"])
    return [made.code, made(m.ones(4)).tolist()]


def rewritten(m: Any) -> list[Any]:
    F = m.nn.functional
    made = m.fx.symbolic_trace(lambda x, y: F.relu(m.add(x, y)) + F.relu(m.add(y, x)))
    found = m.fx.replace_pattern(made, lambda a, b: F.relu(m.add(a, b)), lambda a, b: F.gelu(a - b))
    other = m.fx.symbolic_trace(lambda x: F.softmax(x, -1) * F.layer_norm(x, (2,)) + F.pad(x, (1, 1))[:, 1:3])
    return [made.code, [match.anchor.name for match in found], other.code]


def errors(m: Any) -> list[Any]:
    graph = m.fx.Graph()
    x = graph.placeholder("x")
    found = []
    for act in (
        lambda: graph.create_node("call_module", 3),
        lambda: m.fx.symbolic_trace(lambda x: x.add({x: 1})),
        lambda: m.fx.symbolic_trace(lambda x: len(x)),
        lambda: graph.erase_node(x) or graph.lint() or graph.erase_node(m.fx.Graph().placeholder("y")),
    ):
        try:
            act()
        except Exception as error:
            found.append([type(error).__name__, str(error)[:60]])
    return found


@pytest.mark.parametrize(
    "program", [fusion, copies, scopes, readable, inserted, annotated, wrapped, rewritten, errors]
)
def test_a_program_prints_what_it_does_under_pytorch(
    program: Callable[[Any], list[Any]], answers: Any
) -> None:
    ours, theirs = answers.both(
        lambda m: repr(program(m)).replace("kiln", "torch").replace("_C._nn", "nn.functional")
    )
    assert ours == theirs
