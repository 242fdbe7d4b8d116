"""Captured functions that switch modes themselves, called in each mode: results require gradients where those
of the function do, with the same gradients and bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import kiln

MODES: dict[str, Callable[[], Any]] = {
    "grad": kiln.enable_grad,
    "no_grad": kiln.no_grad,
    "inference": kiln.inference_mode,
}


def plain(x: Any, w: Any) -> Any:
    return (x * w).sin(), x + 1


def enabled(x: Any, w: Any) -> Any:
    with kiln.enable_grad():
        a = (x * w).sin()
    return a, a * 2, x + w


def disabled(x: Any, w: Any) -> Any:
    with kiln.no_grad():
        a = (x * w).sin()
    return a, a * w


def enabled_in_disabled(x: Any, w: Any) -> Any:
    with kiln.no_grad():
        a = x * w
        with kiln.enable_grad():
            c = (a * w).cos()
        d = c * a
    return a, c, d, c * w


def disabled_in_enabled(x: Any, w: Any) -> Any:
    with kiln.enable_grad():
        a = x * w
        with kiln.no_grad():
            c = (a * w).cos()
        d = c * a
    return a, c, d


def set_by_value(x: Any, w: Any) -> Any:
    with kiln.set_grad_enabled(x.dim() == 2):
        a = (x * w).exp()
    with kiln.set_grad_enabled(x.dim() == 1):
        b = (a * w).exp()
    return a, b


def in_inference(x: Any, w: Any) -> Any:
    with kiln.inference_mode():
        a = x * w
    return a, x * 3


def out_of_inference(x: Any, w: Any) -> Any:
    with kiln.inference_mode(False):
        a = x * w
    return a, x * w


def enabled_out_of_inference(x: Any, w: Any) -> Any:
    with kiln.inference_mode(False), kiln.enable_grad():
        a = x * w
    return a, x * w


@kiln.enable_grad()
def decorated(x: Any, w: Any) -> Any:
    return (x * w).sin(), x.reshape(-1) * w.reshape(-1)


def written(x: Any, w: Any) -> Any:
    y = x * 2
    with kiln.enable_grad():
        z = w * 3
        z += y
    return y, z


def written_disabled(x: Any, w: Any) -> Any:
    y, z = x * 2, w * 3
    part = z[1:]
    with kiln.no_grad():
        y.mul_(3)
        part += 1
        z[0] = 5
    return y * z, part * w[1:]


def written_as_data(x: Any, w: Any) -> Any:
    y, z = x * 2, w * 3
    y.data.mul_(3)
    z.detach()[0] = 5
    return y * z, z.sin()


def replaced_by_copy(x: Any, w: Any) -> Any:
    y = x * 2
    v = y.t()
    with kiln.no_grad():
        y.copy_(w * 5)
        kiln.mul(w, 3, out=y)
    y = y * w
    with kiln.no_grad():
        y += x
    return y, v * v


def viewed_disabled(x: Any, w: Any) -> Any:
    y = x * 2
    with kiln.no_grad():
        first, second, copied = y.t(), y.split(2)[0], w.contiguous().view(-1) * 1
    return first, first * 2, second[0], copied, w * 3


def viewed(x: Any, w: Any) -> Any:
    return x.view(-1), w.detach()[0], (x * w)[0], w.t()


INSIDE = [
    plain, enabled, disabled, enabled_in_disabled, disabled_in_enabled, set_by_value, in_inference,
    out_of_inference, enabled_out_of_inference, decorated, written,
    written_disabled, written_as_data, replaced_by_copy, viewed_disabled, viewed,
]  # fmt: skip


class Model(kiln.nn.Module):
    def __init__(self, function: Any, w: Any) -> None:
        super().__init__()
        self.function, self.w = function, kiln.nn.Parameter(w.detach().clone())

    def forward(self, x: Any) -> Any:
        return self.function(x, self.w)


def _of_model(make: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """A way of capture of a module, as one of a function of what it is given and its parameter."""

    def way(function: Any, x: Any, w: Any) -> Any:
        with kiln.inference_mode(False):
            model = Model(function, w)
        made = make(model, x)
        own = dict(made.named_parameters())["w"]

        def call(x: Any, w: Any) -> Any:
            assert bool((w == own).all())
            return made(x)

        call.w = own  # type: ignore[attr-defined]
        return call

    return way


WAYS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "trace": lambda f, x, w: kiln.jit.trace(f, (x, w)),
    "script": lambda f, x, w: kiln.jit.script(f),
    "backend": lambda f, x, w: kiln.compile(f, backend=lambda made, examples: made, fullgraph=True),
    "dynamic": lambda f, x, w: kiln.compile(f, backend=lambda made, examples: made, dynamic=True),
    "region": lambda f, x, w: kiln.compile(f),
    "pure": lambda f, x, w: kiln.compile(f, pure=True),
    "traced module": _of_model(lambda m, x: kiln.jit.trace(m, (x,))),
    "scripted module": _of_model(lambda m, x: kiln.jit.script(m)),
    "export": _of_model(lambda m, x: kiln.export.export(m, (x,)).module()),
}


def _given() -> tuple[Any, Any]:
    kiln.manual_seed(5)
    return kiln.randn(3, 4, requires_grad=True), kiln.randn(3, 4, requires_grad=True)


def _told(function: Any, x: Any, w: Any, outside: str) -> list[Any]:
    """What a call in a mode gives: values, whether they require gradients, and these."""
    own = getattr(function, "w", w)
    with MODES[outside]():
        results = function(x, w)
    told: list[Any] = [(y.tolist(), y.requires_grad, y.is_leaf) for y in results]
    for y in results:
        if y.requires_grad:
            found = kiln.autograd.grad(y.sum(), (x, own), allow_unused=True, retain_graph=True)
            told.append([None if g is None else g.tolist() for g in found])
    return told


@pytest.mark.parametrize("made_in", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_modes_inside_and_outside(way: str, made_in: str) -> None:
    for function in INSIDE:
        x, w = _given()
        with MODES[made_in]():
            made = WAYS[way](function, x, w)
        for outside in MODES:
            expected = _told(function, x, w, outside)
            for call in range(3):
                found = _told(made, x, w, outside)
                assert found == expected, (function.__name__, outside, call)


def test_the_table_tells_modes_apart() -> None:
    x, w = _given()
    seen = {(f, mode): [y[1] for y in _told(f, x, w, mode)[:2]] for f in INSIDE for mode in MODES}
    assert seen[enabled, "no_grad"] == [True, False] and seen[disabled, "grad"] == [False, True]
    assert seen[enabled, "inference"] == [False, False]
    assert seen[out_of_inference, "inference"] == [True, False]


def test_a_program_within_a_program_has_the_mode_around_it() -> None:
    x, w = _given()
    inner = [kiln.jit.trace(f, (x, w)) for f in (plain, enabled)]

    def outer(x: Any, w: Any) -> Any:
        with kiln.no_grad():
            first = [f(x, w)[0] for f in inner]
        return (*first, *(f(x, w)[0] for f in inner))

    made = kiln.jit.trace(outer, (x, w))
    assert [y.requires_grad for y in made(x, w)] == [False, True, True, True]
    for outside in MODES:
        assert _told(made, x, w, outside) == _told(outer, x, w, outside)


def test_a_mode_that_is_left_on_is_refused() -> None:
    def leaves(x: Any, w: Any) -> Any:
        kiln.set_grad_enabled(False)
        return (x * w,)

    before = kiln.is_grad_enabled()
    x, w = _given()
    try:
        with pytest.raises(RuntimeError, match="leaves grad mode"):
            kiln.jit.trace(leaves, (x, w))
        with pytest.raises(RuntimeError, match="leaves grad mode"):
            kiln.compile(leaves, pure=True)(x, w)
    finally:
        kiln.set_grad_enabled(before)


def test_a_file_of_such_a_program_refuses_the_mode_it_does_not_hold(tmp_path: Any) -> None:
    x, w = _given()
    made = kiln.export.export(Model(enabled, w), (x,))
    kiln.export.save(made, tmp_path / "program.pt2")
    loaded = kiln.export.load(tmp_path / "program.pt2").module()
    assert [y.tolist() for y in loaded(x)] == [y.tolist() for y in made.module()(x)]
    with kiln.no_grad(), pytest.raises(RuntimeError, match="is_grad_enabled"):
        loaded(x)
    again = made.run_decompositions()
    with kiln.no_grad(), pytest.raises(RuntimeError, match="is_grad_enabled"):
        again(x)


@pytest.mark.parametrize("made_in", MODES)
def test_questions_about_modes_are_answered_as_where_the_program_is_made(made_in: str) -> None:
    def asks(x: Any) -> Any:
        first = kiln.is_inference_mode_enabled()
        with kiln.inference_mode(False):
            second = kiln.is_inference_mode_enabled()
            third = kiln.is_grad_enabled()
        with kiln.inference_mode():
            fourth = kiln.is_inference_mode_enabled()
        return x * (1 + first + 2 * second + 4 * third + 8 * fourth)

    x = kiln.ones(3)
    with MODES[made_in]():
        assert kiln.jit.trace(asks, (x,))(x).tolist() == asks(x).tolist()


def _writes_arguments(x: Any, w: Any) -> Any:
    with kiln.no_grad():
        x.mul_(3)
        w[0] = 2
    x.data.add_(1)
    return x * w, x * x


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("way", ["trace", "script", "dynamic", "region"])
def test_arguments_written_without_gradients_keep_their_history(way: str, requires_grad: bool) -> None:
    def results(call: Any, leaf: bool) -> list[Any]:
        own = _given()
        x, w = own if leaf else [t * 1 for t in own]
        found = call(x, w)
        grads = kiln.autograd.grad(sum(y.sum() for y in found), own)
        return [*(t.tolist() for t in (x, w, *found, *grads)), x.is_leaf, x.requires_grad]

    example = [t.detach().clone().requires_grad_(requires_grad) for t in _given()]
    made = WAYS[way](_writes_arguments, *example)
    for leaf in (True, False, True):
        assert results(made, leaf) == results(_writes_arguments, leaf), leaf


def test_sizes_vary_where_history_is_kept() -> None:
    x, w = _given()
    made = kiln.jit.trace(written_disabled, (x, w), dynamic_shapes=({0: kiln.export.Dim("n", min=3)},) * 2)
    for n in (3, 5):
        x, w = (kiln.randn(n, 4, requires_grad=True) for _ in "xw")
        assert _told(made, x, w, "grad") == _told(written_disabled, x, w, "grad")


@pytest.mark.parametrize("function", [written_disabled, written_as_data, viewed_disabled, viewed])
def test_a_file_keeps_what_requires_gradients(function: Any, tmp_path: Any) -> None:
    x, w = _given()
    made = kiln.export.export(Model(function, w), (x,))
    kiln.export.save(made, tmp_path / "program.pt2")
    for _ in range(2):  # the second time as it is known
        loaded = kiln.export.load(tmp_path / "program.pt2").module()
        own = dict(loaded.named_parameters())["w"]

        def call(x: Any, w: Any, loaded: Any = loaded) -> Any:
            return loaded(x)

        call.w = own  # type: ignore[attr-defined]
        for outside in ("grad", "no_grad"):
            assert _told(call, x, w, outside) == _told(function, x, w, outside)


@pytest.mark.parametrize("way", ["trace", "script", "pure"])
def test_other_memory_is_refused(way: str) -> None:
    def exchanges(x: Any, w: Any) -> Any:
        y = x * 2
        y.data = w.detach() * 3
        return y * 1, w * 2

    with pytest.raises(RuntimeError, match="gives a tensor other memory"):
        x, w = _given()
        WAYS[way](exchanges, x, w)(x, w)


@pytest.mark.parametrize("way", ["trace", "pure"])
def test_samples_of_a_batch_keep_their_history(way: str) -> None:
    x, w = _given()
    xs = kiln.stack([x, w, x + w]).detach().requires_grad_()
    views = [viewed_disabled, viewed] if way == "trace" else []  # (cells give no views of samples)
    for function in (written_disabled, written_as_data, *views):
        made = WAYS[way](function, x, w)
        results = [[y.tolist() for y in kiln.vmap(f, (0, None))(xs, w)] for f in (function, made)]
        assert results[0] == results[1]
        gradients = [
            kiln.vmap(kiln.func.grad(lambda x, f=f: sum(y.sum() for y in f(x, w))))(xs).tolist()
            for f in (function, made)
        ]
        assert gradients[0] == gradients[1], function.__name__
