"""Hooks on tensors and nodes, edges, and what nodes show: the same program in PyTorch and in kiln, eager and
recorded, must give the same.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest
from backend import WAYS, eager, kiln, needs_kiln, torch

pytestmark = needs_kiln


def ones(t: Any, *shape: int) -> Any:
    return t.ones(*(shape or (2,)), requires_grad=True)


def plain(value: Any) -> Any:
    """A result without tensors: nested lists, None, strings, numbers."""
    if hasattr(value, "tolist"):
        return value.detach().tolist()
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def outcome(t: Any, program: Any, way: Any = eager) -> Any:
    """What a program returns, or the name and first words of what it raises."""
    try:
        return plain(way(lambda: program(t))())
    except Exception as error:
        return type(error).__name__


# -- programs: each takes the library and returns what is to be equal ---------------------------------------


def order_at_a_leaf(t: Any) -> Any:
    """Tensor hook, node's pre-hook, accumulation, what waits for it, node's hook: whatever came first."""
    x, log = ones(t), []
    y = x * 3
    node = y.grad_fn.next_functions[0][0]
    node.register_hook(lambda gi, go: log.append(("after", gi, go, x.grad)))
    node.register_prehook(lambda go: log.append(("before", go, x.grad is None)))
    x.register_post_accumulate_grad_hook(lambda p: log.append(("accumulated", p is x, p.grad)))
    x.register_hook(lambda g: log.append(("tensor", g)))
    y.sum().backward()
    return log


def order_at_a_node(t: Any) -> Any:
    x, log = ones(t), []
    y = x * x
    y.retain_grad()
    y.grad_fn.register_hook(lambda gi, go: log.append(("after", gi, go)))
    y.grad_fn.register_prehook(lambda go: log.append(("before", go, y.grad)))
    y.register_hook(lambda g: log.append(("one", y.grad is None)) or g * 2)
    y.register_hook(lambda g: log.append(("two", g)) or g + 1)
    (y * 5).sum().backward()
    return log, x.grad, y.grad


def a_leaf_does_not_wait_for_the_rest(t: Any) -> Any:
    """A leaf with hooks accumulates when all that leads to it was passed, not at the end."""
    x, w, log = ones(t), ones(t), []
    a = x * 2
    a.register_hook(lambda g: log.append("a"))
    b = a * w
    w.register_post_accumulate_grad_hook(lambda p: log.append("w"))
    x.register_post_accumulate_grad_hook(lambda p: log.append("x"))
    b.sum().backward()
    return log


def a_leaf_s_hook_writes_what_another_leaf_has(t: Any) -> Any:
    """Leaves have their gradients in order: one that has its own before the hook keeps it."""
    found = []
    programs = (
        lambda a, b: a + b,
        lambda a, b: (a + b) * 3 + a,
        lambda a, b: a * 2 + (a + b),
        lambda a, b: (a + b) + (b + a),
    )
    for program in programs:
        for hooked in (0, 1):
            leaves, seed = (ones(t), ones(t)), t.ones(2)
            leaves[hooked].register_hook(lambda g: (g.mul_(10), None)[1])
            program(*leaves).backward(seed)
            found.append([hooked, leaves[0].grad, leaves[1].grad, seed])
    return found


def a_leaf_s_hook_sees_the_leaves_before_it(t: Any) -> Any:
    a, b, c, log = ones(t), ones(t), ones(t), []
    b.register_post_accumulate_grad_hook(lambda p: log.append([x.grad for x in (a, b, c)]))
    ((a + b) * c).sum().backward()
    ((a + b) * c + a).sum().backward()
    return log, a.grad, b.grad, c.grad


def a_leaf_used_twice(t: Any) -> Any:
    x, log = ones(t), []
    x.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.clone()))
    (x * 2 + x * x * 3).sum().backward()
    (x * 2).sum().backward()
    return log


def a_hook_that_returns_its_tensor(t: Any) -> Any:
    """As in-place methods do."""
    x = ones(t)
    x.register_post_accumulate_grad_hook(lambda p: p.sub_(p.grad))
    (x * 3).sum().backward()
    return x


def an_optimizer_in_backward(t: Any) -> Any:
    """Each parameter is updated, and its gradient dropped, as soon as it is there."""
    ws = [ones(t) for _ in range(3)]

    def update(p: Any) -> None:
        with t.no_grad():
            p.sub_(p.grad, alpha=0.1)
        p.grad = None

    for w in ws:
        w.register_post_accumulate_grad_hook(update)
    for _ in range(3):
        y = t.ones(2)
        for w in ws:
            y = y * w + 1
        y.sum().backward()
    return ws, [w.grad for w in ws]


def accumulated_is_not_called_by_grad(t: Any) -> Any:
    x, log = ones(t), []
    x.register_post_accumulate_grad_hook(lambda p: log.append(p))
    x.register_hook(lambda g: g * 2)
    found = t.autograd.grad((x * 3).sum(), x)
    return found, log, x.grad


def hooks_change_gradients(t: Any) -> Any:
    x, z = ones(t), ones(t)
    y = x * z
    y.grad_fn.register_prehook(lambda go: (go[0] * 2,))
    y.grad_fn.register_prehook(lambda go: (go[0] + 1,))
    y.grad_fn.register_hook(lambda gi, go: (gi[0] * 10, None))
    y.sum().backward()
    return x.grad, z.grad


def hooks_of_a_node_of_a_broadcast(t: Any) -> Any:
    """They see what goes on: summed to the operand's shape, in its dtype."""
    x, z, log = ones(t, 3, 2), ones(t, 1), []
    y = x * z
    y.grad_fn.register_hook(lambda gi, go: log.append((gi, go)))
    y.sum().backward()
    return log


def removed(t: Any) -> Any:
    x, log = ones(t), []
    y = x * 2
    handles = [
        x.register_hook(lambda g: log.append(1)),
        x.register_post_accumulate_grad_hook(lambda p: log.append(2)),
        y.grad_fn.register_hook(lambda gi, go: log.append(3)),
        y.grad_fn.register_prehook(lambda go: log.append(4)),
    ]
    handles[0].remove()
    handles[2].remove()
    handles[2].remove()
    y.sum().backward(retain_graph=True)
    first = list(log)
    with handles[1], handles[3]:
        pass
    y.sum().backward()
    return first, log


def removed_in_a_hook(t: Any) -> Any:
    x, log = ones(t), []
    handles: list[Any] = []

    def once(g: Any) -> None:
        log.append("once")
        handles[0].remove()

    handles.append(x.register_hook(once))
    x.register_hook(lambda g: log.append("always"))
    (x * 2).sum().backward()
    (x * 2).sum().backward()
    return log


def in_place_hooks_stay(t: Any) -> Any:
    """What was registered before a write is about the value before it; retain_grad goes with the tensor."""
    x, log = ones(t), []
    y = x * 1
    y.register_hook(lambda g: log.append(("before", g)))
    y.retain_grad()
    y.mul_(3)
    y.register_hook(lambda g: log.append(("after", g)))
    (y * 2).sum().backward()
    return log, y.grad, x.grad


def in_place_on_a_view_hooks_stay(t: Any) -> Any:
    x, log = ones(t, 4), []
    y = x * 1
    y.retain_grad()
    y.register_hook(lambda g: log.append(("base", g)))
    view = y[:2]
    view.mul_(5)
    view.register_hook(lambda g: log.append(("written", g)))
    (y * 2 + view.sum()).sum().backward()
    return sorted(name for name, _ in log), y.grad, x.grad


def captured_gradients_are_hooked(t: Any) -> Any:
    x, log = ones(t), []
    y = x * 3
    y.register_hook(lambda g: g * 2)
    y.grad_fn.register_prehook(lambda go: log.append("before"))
    y.grad_fn.register_hook(lambda gi, go: log.append("after"))
    return t.autograd.grad(y.sum(), y), log


def nodes_are_passed_only_for_inputs(t: Any) -> Any:
    x, z, log = ones(t), ones(t), []
    a, b = x * 2, z * 2
    a.grad_fn.register_hook(lambda gi, go: log.append("a"))
    b.grad_fn.register_hook(lambda gi, go: log.append("b"))
    z.register_hook(lambda g: log.append("z"))
    (a * b).sum().backward(inputs=[x])
    return log, x.grad, z.grad


def a_user_s_function_is_passed_only_for_inputs(t: Any) -> Any:
    log = []

    class Twice(t.autograd.Function):  # type: ignore[name-defined,misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            log.append("passed")
            return g * 2

    x = ones(t)
    y = Twice.apply(x)
    found = t.autograd.grad((y * 3).sum(), y, retain_graph=True)
    return found, log, t.autograd.grad((y * 3).sum(), x), log


def backward_with_inputs_that_are_no_leaves(t: Any) -> Any:
    x = ones(t)
    y = x * 2
    (y * 3).sum().backward(inputs=[y])
    return y.grad, x.grad, y.retains_grad


def duplicates(t: Any) -> Any:
    x = ones(t)
    (x * 3).sum().backward(inputs=[x, x])
    return t.autograd.grad((x * x).sum(), [x, x]), x.grad


def roots_of_one_node(t: Any) -> Any:
    """A node is passed once, however many of its results, or of one result's copies, backward begins at."""
    log: list[Any] = []

    class Two(t.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x, x

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any) -> Any:
            (x,) = ctx.saved_tensors
            log.append((g, h))
            return g * 2 * x + h

    x, three = ones(t), t.full((2,), 3.0)
    square, same = Two.apply(x)
    found = [t.autograd.grad((same, square), x, (three, three * 2))]
    (square,) = Two.apply(x)[:1]
    found += t.autograd.grad((square, square), x, (three, three))
    square, same = Two.apply(x)
    t.autograd.backward([(square * 2).sum(), square, same], [None, three, three])
    return found, x.grad, log


def a_dict_of_inputs(t: Any) -> Any:
    x, z = ones(t), ones(t)
    found = t.autograd.grad((x * 2 + z).sum(), {"x": x, "z": z})
    (x * 2).sum().backward(inputs={"x": x})
    return list(found), list(found.values()), x.grad


def edges(t: Any) -> Any:
    edge_of = t.autograd.graph.get_gradient_edge
    x = ones(t)
    y = x * 2
    z = (y * y).sum()
    one = t.autograd.grad(z, edge_of(y), retain_graph=True)
    two = t.autograd.grad(edge_of(z), [edge_of(x), x], retain_graph=True)
    three = t.autograd.grad(edge_of(y), x, t.ones(2), retain_graph=True)
    t.autograd.backward(edge_of(z), inputs=[edge_of(x)])
    return one, two, three, x.grad, edge_of(y).output_nr, edge_of(y).node is y.grad_fn


def an_edge_outlives_its_tensor(t: Any) -> Any:
    x = ones(t)
    edge = t.autograd.graph.get_gradient_edge(x * 2)
    return t.autograd.grad(edge, x, t.ones(2))


def edges_of_results(t: Any) -> Any:
    x = t.tensor([[1.0, 5.0], [7.0, 2.0]], requires_grad=True)
    low, high = t.unbind(x * 2)
    edge = t.autograd.graph.get_gradient_edge(high)
    return t.autograd.grad((low * high).sum(), edge), t.autograd.grad(edge, x, t.ones(2), allow_unused=True)


def all_of_several(t: Any) -> Any:
    log = []
    a, b = ones(t, 1), ones(t, 1)
    c, d = a * b, a * b
    handle = t.autograd.graph.register_multi_grad_hook((a, b, c, d), lambda g: log.append(list(g)))
    c.sum().backward(retain_graph=True)
    c.sum().backward(inputs=(a,), retain_graph=True)
    (c + d).sum().backward(retain_graph=True)
    handle.remove()
    c.sum().backward()
    return log


def any_of_several(t: Any) -> Any:
    log = []
    a, b = ones(t, 1), ones(t, 1)
    c, d = a * 2, b * 3
    with t.autograd.graph.register_multi_grad_hook(
        (a, b, c, d, t.ones(1)), lambda g: log.append(g), mode="any"
    ):
        d.sum().backward(retain_graph=True)
        c.sum().backward(retain_graph=True)
    d.sum().backward()
    return log


def metadata(t: Any) -> Any:
    y = ones(t) * 2
    y.grad_fn.metadata["note"] = 3
    gc.collect()
    return (
        y.grad_fn.metadata["note"],
        y.grad_fn is y.grad_fn,
        y.sum().grad_fn.next_functions[0][0] is y.grad_fn,
    )


def walk(t: Any) -> Any:
    x, w = ones(t), ones(t)
    y = (x * w + t.exp(x)).sum()
    titles, stack = [], [y.grad_fn]
    while stack:
        node = stack.pop()
        titles.append((type(node).__name__, isinstance(node, t.autograd.graph.Node)))
        stack += [n for n, _ in node.next_functions if n is not None]
        if hasattr(node, "variable"):
            titles[-1] += ("x" if node.variable is x else "w",)
    return titles


def saved_values(t: Any) -> Any:
    x, w = t.tensor([1.0, 2.0], requires_grad=True), t.tensor([3.0, 4.0], requires_grad=True)
    y = t.exp(x * w)
    z = y.sum()
    found = [
        y.grad_fn._saved_result is not None,
        (x * w).grad_fn._saved_self is x,
        (x * w).grad_fn._saved_other,
    ]
    z.backward()
    try:
        y.grad_fn._saved_result  # noqa: B018
    except RuntimeError as error:
        found.append("second time" in str(error))
    return found, hasattr(z.grad_fn, "_saved_nonsense")


def a_context_s_attributes(t: Any) -> Any:
    class Scale(t.autograd.Function):  # type: ignore[name-defined,misc]
        @staticmethod
        def forward(ctx: Any, x: Any, by: float) -> Any:
            ctx.by = by
            ctx.save_for_backward(x)
            return x * by

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.by, None

    x = ones(t)
    y = Scale.apply(x, 3.0)
    node = y.grad_fn
    found = node.by, node.saved_tensors, node.needs_input_grad, node.name(), type(node).__name__
    log = []
    node.register_hook(lambda gi, go: log.append((gi[0], go)))
    node.register_prehook(lambda go: (go[0] * 2,))
    y.sum().backward()
    return found, log, x.grad, hasattr(node, "nothing")


def create_graph_hooks(t: Any) -> Any:
    """Hooks of a differentiable pass are part of what is differentiated."""
    x = ones(t)
    y = x**3
    y.register_hook(lambda g: g * x)
    (g,) = t.autograd.grad(y.sum(), x, create_graph=True)
    return g, t.autograd.grad(g.sum(), x)


def a_hook_that_raises_is_the_last(t: Any) -> Any:
    x, log = ones(t), []

    def fail(g: Any) -> None:
        raise KeyError("hook")

    y = x * 2
    y.register_hook(fail)
    y.register_hook(lambda g: log.append(1))
    try:
        y.sum().backward()
    except KeyError:
        log.append("raised")
    return log, x.grad


def hooks_packed(t: Any) -> Any:
    log = []

    def pack(x: Any) -> Any:
        log.append(("pack", tuple(x.shape), x.requires_grad and False))
        return x * 2

    x = ones(t)
    with t.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept / 2):
        y = (x.exp() * x).sum()
    y.backward()
    return x.grad, len(log)


def saved_on_the_cpu(t: Any) -> Any:
    x = ones(t)
    with t.autograd.graph.save_on_cpu():
        y = (x * x * x).sum()
    with t.autograd.graph.save_on_cpu(pin_memory=True):
        z = (x * x).exp().sum()
    (y + z).backward()
    return x.grad


def mutation_allowed(t: Any) -> Any:
    graph = t.autograd.graph
    with graph.allow_mutation_on_saved_tensors() as context:
        a = ones(t)
        b = a.clone()
        out = (b**2).sum()
        b.sin_()
        out.backward(retain_graph=True)
        found = a.grad.clone()
        context.clear()
        c = a.clone()
        again = (c * c).sum()
        c.zero_()
        again.backward()
    return found, a.grad


def versions(t: Any) -> Any:
    x = ones(t)
    y = x * 1
    z = y * y
    t.autograd.graph.increment_version(y)
    t.autograd.graph.increment_version([y, y])
    try:
        z.sum().backward()
    except RuntimeError as error:
        return y._version, "modified by an inplace operation" in str(error)
    return "nothing"


def a_backward_inside_a_hook(t: Any) -> Any:
    x, w, log = ones(t), ones(t), []

    def inner(g: Any) -> None:
        with t.enable_grad():
            (w * w + x).sum().backward()

    w.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.clone()))
    y = x * w
    y.register_hook(inner)
    y.sum().backward()
    return x.grad, w.grad, log


def numbers_of_results(t: Any) -> Any:
    a, b = t.unbind(ones(t, 2, 2))
    values, places = (ones(t, 2, 2) * 1).max(1)
    return a.output_nr * 0, values.output_nr, places.requires_grad, t.ones(2).output_nr, b.requires_grad


PROGRAMS = [f for f in list(globals().values()) if getattr(f, "__module__", "") == __name__][3:]


@WAYS
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_as_pytorch(program: Any, way: Any, answers: Any) -> None:
    """Eager, and recorded."""
    expected = answers(program, lambda: outcome(torch, program))
    assert not isinstance(expected, str), expected
    assert outcome(kiln, program, way) == expected
