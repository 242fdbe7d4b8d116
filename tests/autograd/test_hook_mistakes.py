"""What hooks and nodes refuse, what hooks may return, and what is kiln's alone: cycles, threads, titles."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
from backend import kiln, needs_kiln, torch

pytestmark = needs_kiln


def ones(t: Any, *shape: int) -> Any:
    return t.ones(*(shape or (2,)), requires_grad=True)


def plain(value: Any) -> Any:
    """A result with tensors as lists."""
    if hasattr(value, "tolist"):
        return value.detach().tolist()
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


# -- mistakes ----------------------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[Any, str]] = {
    "hook on a constant": (lambda t: t.ones(2).register_hook(print), "doesn't require gradient"),
    "post hook on a constant": (
        lambda t: t.ones(2).register_post_accumulate_grad_hook(print),
        "doesn't require gradient",
    ),
    "post hook on a result": (
        lambda t: (ones(t) * 2).register_post_accumulate_grad_hook(print),
        "cannot be registered on non-leaf tensors",
    ),
    "retain_grad of a constant": (lambda t: t.ones(2).retain_grad(), "requires_grad=False"),
    "backward of no inputs": (lambda t: ones(t).sum().backward(inputs=[]), "cannot be empty"),
    "grad of no inputs": (lambda t: t.autograd.grad(ones(t).sum(), []), "cannot be empty"),
    "grad of a constant": (
        lambda t: t.autograd.grad(ones(t).sum(), t.ones(2)),
        "One of the differentiated Tensors does not require grad",
    ),
    "grad of what was not used": (
        lambda t: t.autograd.grad(ones(t).sum(), ones(t)),
        "appears to not have been used in the graph",
    ),
    "both unused": (
        lambda t: t.autograd.grad(ones(t).sum(), ones(t), materialize_grads=True, allow_unused=False),
        "Expected allow_unused to be True",
    ),
    "shape of a gradient": (lambda t: (ones(t) * 2).backward(t.ones(3)), "Mismatch in shape: grad_output"),
    "not a gradient": (lambda t: ones(t).sum().backward("text"), "gradients can be either Tensors or None"),
    "own grad": (lambda t: setattr(x := ones(t), "grad", x), "can't assign Variable as its own grad"),
    "grad of another shape": (
        lambda t: setattr(ones(t), "grad", t.ones(3)),
        "attempting to assign a gradient of size",
    ),
    "grad of another dtype": (
        lambda t: setattr(ones(t), "grad", t.ones(2, dtype=t.float64)),
        "attempting to assign a gradient with dtype",
    ),
    "data without gradients": (
        lambda t: setattr(ones(t), "data", t.ones(2, dtype=t.int64)),
        "data set to a tensor that requires gradients must be floating point",
    ),
    "results in an optimizer": (
        lambda t: t.optim.SGD([ones(t) * 2], lr=0.1),
        "can't optimize a non-leaf Tensor",
    ),
    "not a scalar": (lambda t: (ones(t) * 2).backward(), "only for scalar outputs"),
    "edge of a constant": (
        lambda t: t.autograd.graph.get_gradient_edge(t.ones(2)),
        "does not require gradients",
    ),
    "edge that is not a scalar": (
        lambda t: t.autograd.grad(t.autograd.graph.get_gradient_edge(ones(t) * 2), ones(t)),
        "only for scalar outputs",
    ),
    "mode of several": (
        lambda t: t.autograd.graph.register_multi_grad_hook((ones(t),), print, mode="some"),
        "Expects mode to be one of",
    ),
    "unknown attribute": (lambda t: (ones(t) * 2).grad_fn.nothing, "has no attribute 'nothing'"),
    "hooks disabled": (lambda t: nested(t, disabled_first=True), "not here"),
    "disabled inside hooks": (lambda t: nested(t, disabled_first=False), "not here"),
    "pack writes": (lambda t: packed(t, lambda x: x.detach().mul_(2), lambda x: x), "in place"),
    "unpack gives text": (lambda t: packed(t, lambda x: x, lambda x: "text"), "expected to be a Tensor"),
    "allowed twice": (lambda t: allowed_twice(t), "contexts cannot be nested"),
    "allowed no more": (lambda t: after_the_context(t), "outside of the 'allow_mutation_on_saved_tensors'"),
}


def allowed_twice(t: Any) -> None:
    allow = t.autograd.graph.allow_mutation_on_saved_tensors
    with allow(), allow():
        pass


def nested(t: Any, disabled_first: bool) -> None:
    graph = t.autograd.graph
    off, on = graph.disable_saved_tensors_hooks("not here"), graph.save_on_cpu()
    first, second = (off, on) if disabled_first else (on, off)
    with first, second:
        pass


def packed(t: Any, pack: Any, unpack: Any) -> None:
    with t.autograd.graph.saved_tensors_hooks(pack, unpack):
        x = ones(t)
        (x * x.detach()).sum().backward()


def after_the_context(t: Any) -> None:
    with t.autograd.graph.allow_mutation_on_saved_tensors():
        y = (ones(t) ** 2).sum()
    y.backward()


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    """Each raises what PyTorch raises, with its key phrase."""
    program, phrase = MISTAKES[name]
    kinds: list[type] = []
    for library in filter(None, (torch, kiln)):
        with pytest.raises(Exception, match=phrase) as caught:
            program(library)
        assert caught.type in kinds or not kinds
        kinds.append(caught.type)


RESULTS = [
    "tensor",
    "1 tensor",
    "2 tensors",
    "2 nones",
    "1 none",
    "number",
    "1 number",
    "long",
    "2 long",
    "list",
]


def result(t: Any, name: str) -> Any:
    """What a hook may return, wrong or right."""
    one, long = t.ones(2), t.ones(3)
    return {
        "tensor": one, "1 tensor": (one,), "2 tensors": (one, one), "2 nones": (None, None),
        "1 none": (None,), "number": 3, "1 number": (3,), "long": long, "2 long": (long, long),
        "list": [one, one], "double": one.double(),
    }[name]  # fmt: skip


@pytest.mark.parametrize("returned", [*RESULTS, "double"])
@pytest.mark.parametrize("kind", ["tensor", "before", "after", "accumulated"])
def test_what_hooks_return(kind: str, returned: str, answers: Any) -> None:
    """Taken, or refused with PyTorch's words."""

    def program(t: Any) -> Any:
        x, z = ones(t), ones(t)
        y = x * z
        register = {
            "tensor": y.register_hook,
            "before": y.grad_fn.register_prehook,
            "after": y.grad_fn.register_hook,
            "accumulated": x.register_post_accumulate_grad_hook,
        }[kind]
        register(lambda *given: result(t, returned))
        try:
            y.sum().backward()
        except (RuntimeError, TypeError) as error:
            return type(error).__name__, str(error).partition(";")[0].partition(":")[0].partition(" (was")[0]
        return plain((x.grad, z.grad))

    assert program(kiln) == answers([program, result], lambda: program(torch))


# -- of kiln alone -----------------------------------------------------------------------------------------


def test_all_of_several_in_grad() -> None:
    """PyTorch refuses leaves here."""
    log: list[Any] = []
    a, b = ones(kiln, 1), ones(kiln, 1)
    c, d = a * b, a * b
    kiln.autograd.graph.register_multi_grad_hook((a, b, c, d), lambda g: log.append(plain(g)))
    kiln.autograd.grad(d.sum(), b)
    assert log == [[None, [1.0], None, [1.0]]]


def test_a_hook_is_called_for_a_leaf_behind_a_function_only_if_asked_for() -> None:
    """A user's function gives all its gradients; those nobody asked for go nowhere."""

    class Product(kiln.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, z: Any) -> Any:
            return x * z

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g, g * 2

    x, z = ones(kiln), ones(kiln)
    z.register_hook(lambda g: pytest.fail("not asked for"))
    Product.apply(x, z).sum().backward(inputs=[x])
    assert x.grad.tolist() == [1.0, 1.0] and z.grad is None


@pytest.mark.parametrize("what", ["hook", "prehook", "metadata", "post accumulate", "leaf's node"])
def test_cycles_are_collected(what: str) -> None:
    """A hook, or metadata, that holds what it hangs on does not keep it alive."""

    class Mark:
        pass

    def make() -> Any:
        mark = Mark()
        x = ones(kiln)
        y = x * 2
        if what == "post accumulate":
            x.register_post_accumulate_grad_hook(lambda p: (x, mark))
        elif what == "leaf's node":
            y.grad_fn.next_functions[0][0].register_hook(lambda gi, go: (x, mark))
        elif what == "metadata":
            y.grad_fn.metadata["held"] = (y, mark)
        elif what == "hook":
            y.grad_fn.register_hook(lambda gi, go: (y, mark))
        else:
            y.grad_fn.register_prehook(lambda go: (y, mark))
        return weakref.ref(mark)

    mark = make()
    gc.collect()
    assert mark() is None


def test_backward_from_a_hook_of_a_pass_with_a_batch() -> None:
    """The inner pass has one gradient: its hooks get that. Nothing is retained of a batch."""
    shapes: list[Any] = []
    w, x = ones(kiln, 3, 2), ones(kiln)
    inner, y = w * 1, x * 2
    inner.register_hook(lambda g: shapes.append(tuple(g.shape)))
    loss = (inner * inner).sum()
    y.register_hook(lambda g: loss.backward())
    y.retain_grad()
    (found,) = kiln.autograd.grad(y * y, x, kiln.eye(2), is_grads_batched=True)
    assert found.tolist() == [[8.0, 0.0], [0.0, 8.0]]
    assert shapes == [(3, 2)] and w.grad.tolist() == [[2.0, 2.0]] * 3 and y.grad is None


def test_an_unpack_hook_that_ends_the_graph() -> None:
    """Reading what a node saved runs backward, which drops it."""
    x = ones(kiln)

    def unpack(kept: list[Any]) -> Any:
        if not ended:
            ended.append(True)
            loss.backward()
        return kept[0]

    ended: list[bool] = []
    with kiln.autograd.graph.saved_tensors_hooks(lambda t: [t.clone()], unpack):
        y = x.exp()
    loss = y.sum()
    assert y.grad_fn._saved_result.tolist() == y.tolist()
    assert ended and x.grad.tolist() == y.tolist()


def test_a_leaf_s_node_and_new_memory() -> None:
    """`.data =` keeps the leaf, its node and hooks; a leaf that is gone is no variable any more."""
    x, log = ones(kiln), []
    x.register_post_accumulate_grad_hook(lambda p: log.append(p is x))
    x.data = kiln.zeros(2)
    node = (x * 2).grad_fn.next_functions[0][0]
    assert node.variable is x
    (x * 2).sum().backward()
    assert log == [True]
    lost = (ones(kiln) + 1).grad_fn.next_functions[0][0]
    gc.collect()
    assert lost.variable is None


def test_modes_of_saved_hooks_belong_to_their_thread() -> None:
    found = []

    def other() -> None:
        with kiln.autograd.graph.save_on_cpu():
            found.append("set")

    with kiln.autograd.graph.disable_saved_tensors_hooks("not here"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert found == ["set"]


TITLES: dict[str, Any] = {
    "AddBackward0": lambda t, x: x + x,
    "SubBackward0": lambda t, x: x - x,
    "MulBackward0": lambda t, x: x * 2,
    "DivBackward0": lambda t, x: x / 2,
    "NegBackward0": lambda t, x: -x,
    "PowBackward0": lambda t, x: x**2,
    "SumBackward0": lambda t, x: x.sum(),
    "SumBackward1": lambda t, x: x.sum(1),
    "MeanBackward0": lambda t, x: x.mean(),
    "MeanBackward1": lambda t, x: x.mean(1),
    "ViewBackward0": lambda t, x: x.view(6),
    "Log1PBackward0": lambda t, x: x.log1p(),
    "CatBackward0": lambda t, x: t.cat([x, x]),
    "ToCopyBackward0": lambda t, x: x.double(),
    "ExpBackward0": lambda t, x: x.exp(),
    "ReluBackward0": lambda t, x: x.relu(),
    "SoftmaxBackward0": lambda t, x: x.softmax(1),
    "CloneBackward0": lambda t, x: x.clone(),
    "SliceBackward0": lambda t, x: x[:, 1:],
    "TanhBackward0": lambda t, x: x.tanh(),
    "IndexBackward0": lambda t, x: x[[0, 1]],
}


@pytest.mark.parametrize("title", TITLES)
def test_titles(title: str) -> None:
    """PyTorch's names of nodes, for the ops that are the same; one type each."""
    for library in filter(None, (torch, kiln)):
        x = ones(library, 2, 3)
        y = TITLES[title](library, x)
        assert (y.grad_fn.name(), type(y.grad_fn).__name__) == (title, title)
        assert type((y * 1).grad_fn.next_functions[0][0]) is type(y.grad_fn)
