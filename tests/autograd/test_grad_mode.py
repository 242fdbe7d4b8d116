"""The grad-mode switches and the functions of `kiln.autograd`."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest
from backend import WAYS, kiln, needs_kiln, torch

pytestmark = needs_kiln


def test_grad_modes_restore() -> None:
    x = kiln.ones(1, requires_grad=True)
    with pytest.raises(KeyError), kiln.no_grad():
        raise KeyError
    assert (x * 2).requires_grad
    mode = kiln.no_grad()
    with mode, kiln.enable_grad(), mode:
        assert not (x * 2).requires_grad
    with kiln.set_grad_enabled(False):
        assert not (x * 2).requires_grad
    kiln.set_grad_enabled(False)
    assert not (x * 2).requires_grad
    kiln.set_grad_enabled(True)
    assert (x * 2).requires_grad


def modes_now() -> list[bool]:
    return [kiln.is_grad_enabled(), kiln.is_inference_mode_enabled(), kiln.is_autocast_enabled("cpu")]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda mode: pickle.loads(pickle.dumps(mode))])
def test_modes_are_copied_with_what_holds_them(again: Any) -> None:
    off = kiln.set_grad_enabled(False)
    made = [kiln.no_grad(), kiln.enable_grad(), kiln.inference_mode(), kiln.autocast("cpu"), off]
    kiln.set_grad_enabled(True)
    for mode in made:
        with mode:
            inside = modes_now()
            copied = again(mode)
            assert modes_now() == inside  # also of the one that switches where it is made
        before = modes_now()
        with copied:
            assert type(copied) is type(mode) and modes_now() == inside
        assert modes_now() == before


def test_grad_modes_decorate() -> None:
    x = kiln.ones(1, requires_grad=True)

    @kiln.no_grad()
    def one() -> bool:
        return bool((x * 2).requires_grad)

    @kiln.no_grad
    def two() -> bool:
        return bool((x * 2).requires_grad)

    @kiln.no_grad()
    def many() -> Any:
        got = yield (x * 2).requires_grad
        while got != "stop":
            got = yield (got, (x * 2).requires_grad)
        return "end"

    assert not one() and not two() and one.__name__ == "one"
    stream = many()
    assert next(stream) is False and (x * 2).requires_grad
    assert stream.send(3) == (3, False) and (x * 2).requires_grad
    with pytest.raises(StopIteration) as end:
        stream.send("stop")
    assert end.value.value == "end"
    stream = many()
    next(stream)
    with pytest.raises(KeyError):
        stream.throw(KeyError())
    assert (x * 2).requires_grad


def test_autograd_functions() -> None:
    x = kiln.tensor([1.0, 2.0], requires_grad=True)
    z = kiln.ones(1, requires_grad=True)
    y = x * x
    (g,) = kiln.autograd.grad(y, x, kiln.tensor([1.0, 10.0]), retain_graph=True)
    assert g.tolist() == [2.0, 40.0] and x.grad is None
    assert kiln.autograd.grad(y.sum(), [x, z], allow_unused=True, retain_graph=True)[1] is None
    assert kiln.autograd.grad(y.sum(), [x, z], materialize_grads=True, retain_graph=True)[1].tolist() == [0.0]
    kiln.autograd.backward([y.sum(), (x * 3).sum()])
    assert x.grad.tolist() == [5.0, 7.0]
    (g,) = kiln.autograd.grad((x**3).sum(), x, create_graph=True)
    assert kiln.autograd.grad(g.sum(), x)[0].tolist() == [6.0, 12.0]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda x, z: kiln.autograd.grad(x * 2, x), "scalar"),
        (lambda x, z: kiln.autograd.grad((x * 2).sum(), z), "appears to not have been used"),
        (lambda x, z: kiln.autograd.grad((x * 2).sum(), kiln.ones(1)), "require grad"),
        (lambda x, z: kiln.autograd.grad(x * 2, x, kiln.ones(3)), r"shape of \(2,\)"),
        (lambda x, z: kiln.autograd.backward([x.sum()], [kiln.tensor(1.0), kiln.tensor(1.0)]), "1 gradients"),
        (lambda x, z: kiln.autograd.backward(kiln.ones(1)), "grad"),
    ],
)
def test_autograd_refuses(call: Any, match: str) -> None:
    with pytest.raises(RuntimeError, match=match):
        call(kiln.ones(2, requires_grad=True), kiln.ones(1, requires_grad=True))


# -- inference mode ----------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A result with tensors as lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def made_inside(t: Any) -> Any:
    with t.inference_mode():
        return t.ones(2)


def leaf(t: Any) -> Any:
    return t.ones(2, requires_grad=True)


def result_inside(t: Any) -> Any:
    x = leaf(t)
    with t.inference_mode():
        y = x * 2
        found = t.is_inference_mode_enabled(), t.is_grad_enabled()
    return y, y.requires_grad, y.is_inference(), y.is_leaf, x.is_inference(), found, t.is_inference(y)


def used_outside(t: Any) -> Any:
    a = made_inside(t)
    b = a * 2
    return (
        b,
        b.is_inference(),
        a.view(1, 2).is_inference(),
        a.detach().is_inference(),
        a.clone().is_inference(),
    )


def added_to_a_graph(t: Any) -> Any:
    y = leaf(t) + made_inside(t)
    return y, y.requires_grad


def copied_into(t: Any) -> Any:
    y = leaf(t) * 1
    y.copy_(made_inside(t))
    return y, y.requires_grad


def views_of_ordinary_ones(t: Any) -> Any:
    x = t.ones(2)
    with t.inference_mode():
        v = x[:1]
    v.add_(1)
    return v.is_inference(), x, x._version


def changed_inside(t: Any) -> Any:
    x, a = t.ones(2), made_inside(t)
    y = leaf(t)
    with t.inference_mode():
        x.add_(1)
        a.add_(1)
        y.add_(1)
    return x._version, y._version, a, y, y.requires_grad


def requires_grad_inside(t: Any) -> Any:
    with t.inference_mode():
        x = leaf(t)
        y = x * 2
    return x.requires_grad, x.is_leaf, y.requires_grad, y.is_leaf, y.grad_fn


def switched_off_inside(t: Any) -> Any:
    x = leaf(t)
    with t.no_grad(), t.inference_mode(False):
        one = (x * 2).requires_grad
    with t.inference_mode():
        with t.inference_mode(False):
            two = (x * 2).requires_grad, t.ones(1).is_inference()
        three = (x * 2).requires_grad
        with t.enable_grad():
            four = (x * 2).requires_grad, t.ones(1).is_inference()
    return one, two, three, four, (x * 2).requires_grad


def after_an_exception(t: Any) -> Any:
    try:
        with t.inference_mode():
            raise KeyError
    except KeyError:
        return t.is_inference_mode_enabled(), (leaf(t) * 2).requires_grad


def decorated(t: Any) -> Any:
    @t.inference_mode()
    def one(x: Any) -> Any:
        return x * 2

    @t.inference_mode
    def two(x: Any) -> Any:
        return x * 3

    @t.inference_mode(mode=False)
    def three(x: Any) -> Any:
        return x * 4

    @t.inference_mode()
    def many(x: Any) -> Any:
        while True:
            x = yield x * 2

    stream = many(leaf(t))
    first = next(stream)
    between = t.is_inference_mode_enabled()
    second = stream.send(leaf(t))
    y = [f(leaf(t)) for f in (one, two, three)]
    return (
        [v.is_inference() for v in y],
        y,
        first.is_inference(),
        between,
        second.is_inference(),
        one.__name__,
    )


def as_a_gradient(t: Any) -> Any:
    x = leaf(t)
    (x * 2).backward(made_inside(t))
    return x.grad, x.grad.is_inference()


def a_module_made_inside(t: Any) -> Any:
    with t.inference_mode():
        net = t.nn.Linear(2, 2)
        y = net(t.ones(1, 2))
    return net.weight.requires_grad, net.weight.is_inference(), y.is_inference(), y.requires_grad


def other_memory(t: Any) -> Any:
    a = made_inside(t)
    return (
        a.numpy().tolist(),
        a.data.is_inference(),
        a.contiguous().is_inference(),
        a.reshape(2, 1).is_inference(),
    )


def saved_outside(t: Any) -> Any:
    return leaf(t) * made_inside(t)


def written_outside(t: Any) -> Any:
    return made_inside(t).add_(1)


def filled_outside(t: Any) -> Any:
    return made_inside(t).zero_()


def item_written_outside(t: Any) -> Any:
    made_inside(t)[0] = 1


def out_outside(t: Any) -> Any:
    return t.add(t.ones(2), 1, out=made_inside(t))


def version_of(t: Any) -> Any:
    return made_inside(t)._version


def required_outside(t: Any) -> Any:
    return made_inside(t).requires_grad_()


def backward_inside(t: Any) -> Any:
    with t.inference_mode():
        (leaf(t) * 2).sum().backward()


NOT_HERE = "Inplace update to inference tensor outside InferenceMode is not allowed"
ALLOWED = [
    result_inside, used_outside, added_to_a_graph, copied_into, views_of_ordinary_ones, changed_inside,
    requires_grad_inside, switched_off_inside, after_an_exception, decorated, as_a_gradient,
    a_module_made_inside, other_memory,
]  # fmt: skip
REFUSED = {
    saved_outside: "Inference tensors cannot be saved for backward",
    written_outside: NOT_HERE,
    filled_outside: NOT_HERE,
    item_written_outside: NOT_HERE,
    out_outside: NOT_HERE,
    version_of: "Inference tensors do not track version counter",
    required_outside: "Setting requires_grad=True on inference tensor outside InferenceMode is not allowed",
    backward_inside: "element 0 of tensors does not require grad and does not have a grad_fn",
}


@WAYS
@pytest.mark.parametrize("program", ALLOWED, ids=lambda f: f.__name__)
def test_inference_mode(program: Any, way: Any) -> None:
    """As PyTorch, eager and recorded."""
    got = plain(way(lambda: program(kiln))())
    assert torch is None or got == plain(program(torch))


@WAYS
@pytest.mark.parametrize("program", REFUSED, ids=lambda f: f.__name__)
def test_inference_mode_refuses(program: Any, way: Any) -> None:
    """With PyTorch's words."""
    for run in (way(lambda: program(kiln)), *([] if torch is None else [lambda: program(torch)])):
        with pytest.raises(RuntimeError, match=REFUSED[program]):
            run()


def test_inference_mode_belongs_to_its_thread() -> None:
    found = []
    with kiln.inference_mode():
        thread = threading.Thread(target=lambda: found.append((kiln.ones(1) * 2).is_inference()))
        thread.start()
        thread.join()
        assert (kiln.ones(1) * 2).is_inference()
    assert found == [False] and not (kiln.ones(1) * 2).is_inference()


@pytest.mark.parametrize("name", ["no_grad", "enable_grad", "inference_mode"])
@pytest.mark.parametrize("library", [x for x in (kiln, torch) if x], ids=lambda x: x.__name__)
def test_decorated_classes(library: Any, name: str) -> None:
    """The constructor is what is decorated; a FutureWarning says that this will go."""
    with pytest.warns(FutureWarning, match="Decorating classes is deprecated"):

        @getattr(library, name)()
        class Made:
            def __init__(self) -> None:
                self.modes = library.is_grad_enabled(), library.is_inference_mode_enabled()

    assert Made().modes == (name == "enable_grad", name == "inference_mode")


def test_multithreading_switch() -> None:
    """There is one thread: the switch is taken, and can be left again."""
    for library in filter(None, (kiln, torch)):
        switch, said = library.autograd.set_multithreading_enabled, library.autograd.is_multithreading_enabled
        with switch(False):
            x = leaf(library)
            (x * 2).sum().backward()
            assert not said() and x.grad.tolist() == [2.0, 2.0]
            switch(True)
            assert said()
        assert said()
        switch(False)
        assert not said()
        switch(True)


def test_names_are_where_programs_look_for_them() -> None:
    """PyTorch's modules and the names imported from them."""
    from kiln.autograd import Variable, detect_anomaly, inference_mode, set_detect_anomaly  # noqa: F401
    from kiln.autograd.anomaly_mode import detect_anomaly as again
    from kiln.autograd.function import Function, FunctionCtx, once_differentiable  # noqa: F401
    from kiln.autograd.grad_mode import enable_grad, no_grad, set_grad_enabled  # noqa: F401
    from kiln.autograd.graph import GradientEdge, Node, save_on_cpu, saved_tensors_hooks  # noqa: F401

    assert again is detect_anomaly and kiln.no_grad is no_grad
    x = Variable(kiln.ones(2, requires_grad=True) * 2, requires_grad=True)
    assert type(x) is kiln.Tensor and x.is_leaf and x.requires_grad and isinstance(x, Variable)
    assert not Variable(x).requires_grad and not isinstance(1.0, Variable) and Variable().numel() == 0
    with pytest.raises(TypeError, match="Variable data has to be a tensor, but got float"):
        Variable(1.0)


def test_grad_outputs_of_another_dtype() -> None:
    """They are converted to the output's, as PyTorch does."""
    for library in filter(None, (kiln, torch)):
        x = leaf(library)
        (g,) = library.autograd.grad(x.sum(), x, library.tensor(2.0, dtype=library.float64))
        assert g.dtype == library.float32 and g.tolist() == [2.0, 2.0]


def test_warnings_of_backward_and_grad() -> None:
    for library in filter(None, (kiln, torch)):
        x = leaf(library)
        if library is torch:
            torch.set_warn_always(True)  # another test may have had the only one
        with pytest.warns(UserWarning, match="create_graph=True will create a reference cycle"):
            (x * x).sum().backward(create_graph=True)
        if library is torch:
            torch.set_warn_always(False)
        x.grad = None
        with pytest.warns(FutureWarning, match="only_inputs argument is deprecated"):
            library.autograd.grad((x * x).sum(), x, only_inputs=False)
        with pytest.warns(FutureWarning, match="`grad_variables` is deprecated"):
            library.autograd.backward(x * 2, grad_variables=library.ones(2))
        assert x.grad.tolist() == [2.0, 2.0]
