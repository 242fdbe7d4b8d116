"""What pure cells ask of tensors and modes that is no value: a condition of the way they went, or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

import kiln
from kiln import nn

BODIES = {
    "x * 2 if x.is_contiguous() else x * 3": "checked",
    "x * x.stride(0)": "checked",
    "x * (1 + x.storage_offset())": "checked",
    "x * (1 + x[1].storage_offset())": "checked",
    "x * 2 if x._base is None else x * 3": "checked",
    "x * 2 if x.t()._is_view() and x._is_view() else x * 3": "checked",
    "x * 2 if x.is_shared() else x * 3": "checked",
    "x * 2 if x.is_inference() else x * 3": "checked",
    "x * 2 if x.requires_grad else x * 3": "checked",
    "x * 2 if x.is_leaf else x * 3": "checked",
    "x * 2 if x.grad is None else x * 3": "checked",
    "x * 2 if x.grad_fn is None else x * 3": "checked",
    "x * (1 + x.output_nr)": "checked",
    "x * 2 if x.retains_grad else x * 3": "checked",
    "x * (1 + x.data_ptr() % 64)": "refused",
    "x * (1 + x._version)": "refused",
    "x * (1 + x[0]._version)": "refused",
    "x * x.untyped_storage().nbytes()": "refused",
    "(lambda z: z.add_(1) * (1 + z._version))(x * y)": "checked",
    "x * 2 if kiln.is_grad_enabled() else x * 3": "checked",
    "x * 2 if kiln.is_autocast_enabled('cpu') else x * 3": "checked",
    "x * 2 if kiln.get_default_dtype() is kiln.float32 else x * 3": "checked",
    "x * 2 if kiln.are_deterministic_algorithms_enabled() else x * 3": "checked",
    "x * kiln.get_num_threads()": "checked",
    "x * 2 if kiln.is_anomaly_enabled() else x * 3": "checked",
    "x * 2 if x is y else x * 3": "checked",
    "x * 2 if type(x) is kiln.Tensor else x * 3": "checked",
    "x * getattr(x, 'scale', 1.0)": "checked",
    "x * (x.scale if hasattr(x, 'scale') else 3)": "checked",
    "x * 2 if 'scale' in vars(x) else x * 3": "checked",
    "x * sum(v for v in vars(x).values() if isinstance(v, float))": "checked",
    "x * (1 + len(getattr(x, 'items', ())))": "checked",
    "x * getattr(x, 'other', y)": "checked",
    "x * (2 if hasattr(W, 'scale') else 5)": "checked",
    "x * y + W.scale if hasattr(W, 'scale') else x * W": "checked",
    "x * 2 if W.grad is None else x * W.grad": "checked",
}
W = nn.Parameter(kiln.ones(3, 3))


def _given(k: int) -> Any:
    return (kiln.arange(9.0).reshape(3, 3) * (k + 1)).clone()


def _calls() -> Iterator[tuple[tuple[Any, Any], AbstractContextManager[Any]]]:
    """Arguments that look alike, but for what may be asked; modes; a parameter that is marked meanwhile."""
    none: AbstractContextManager[Any] = nullcontext()
    y = _given(1)
    for _ in range(3):
        yield (_given(2), y), none
    yield (_given(2).t(), y), none
    yield (kiln.arange(12.0)[3:].view(3, 3), y), none
    yield (kiln.arange(18.0).view(2, 3, 3)[1], y), none
    yield (y, y), none
    yield (nn.Parameter(_given(2)), y), none
    grown = _given(2).requires_grad_()
    yield (grown, y), none
    grown.grad = kiln.ones(3, 3)
    yield (grown, y), none
    for k in range(2):
        made = _given(2).requires_grad_() * 1
        if k:
            made.retain_grad()
        yield (made, y), none
    for k in range(2):
        yield ((kiln.stack([_given(2), _given(3)]).requires_grad_() * 1).unbind(0)[k].clone(), y), none
        yield ((kiln.stack([_given(2), _given(3)]).requires_grad_() * 1).unbind(0)[k], y), none
    for scale in (5.0, 6.0, 5.0):
        marked = _given(2)
        marked.scale = scale
        yield (marked, y), none
        marked.scale += 1
        yield (marked, y), none
    for _ in range(2):
        marked = _given(2)
        marked.other = y + 1
        yield (marked, y), none
    listed = _given(2)
    listed.items = [1]
    for _ in range(3):
        yield (listed, y), none
        listed.items.append(2)
    yield (_given(2), y), none
    yield (_given(2)[:], y), none
    yield (_given(2).share_memory_(), y), none
    with kiln.inference_mode():
        inferred = _given(2)
    yield (inferred, y), none
    for mode in (kiln.no_grad(), kiln.inference_mode(), kiln.autocast("cpu")):
        yield (_given(2), y), mode
    yield (_given(2), y), kiln.autograd.detect_anomaly()
    threads = kiln.get_num_threads()
    kiln.use_deterministic_algorithms(True)
    kiln.set_num_threads(threads % 2 + 1)
    W.scale = 2.0
    yield (_given(2), y), none
    kiln.use_deterministic_algorithms(False)
    kiln.set_num_threads(threads)
    W.scale = 3.0
    W.grad = kiln.ones(3, 3) * 2
    yield (_given(2), y), none
    del W.scale
    W.grad = None
    yield (_given(2), y), none


@pytest.fixture
def switched() -> Iterator[None]:
    threads = kiln.get_num_threads()
    yield
    kiln.use_deterministic_algorithms(False)
    kiln.set_num_threads(threads)
    W.grad = None
    vars(W).pop("scale", None)


def _function(body: str) -> Callable[..., Any]:
    scope = {"kiln": kiln, "nn": nn, "W": W}
    exec(f"def f(x, y):\n    return {body}", scope)
    return scope["f"]  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:Anomaly")
@pytest.mark.parametrize("body", BODIES)
def test_what_is_asked_is_seen_at_every_call(body: str, switched: None) -> None:
    f = _function(body)
    pure = kiln.compile(f, pure=True)
    if BODIES[body] == "refused":
        with pytest.raises(kiln.compiler.PurityError, match="asks"):
            pure(_given(0), _given(1))
        return
    for k, (given, mode) in enumerate(_calls()):
        with mode:
            try:
                expected = f(*given)
            except RuntimeError as error:
                with pytest.raises(type(error)):
                    pure(*given)
                continue
            came = pure(*given)
        assert came.dtype == expected.dtype and kiln.equal(came, expected), k


def test_cells_that_ask_nothing_are_run_by_the_core() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.LSTM(4, 2))
    pure = kiln.compile(lambda x: model(x)[0].softmax(-1) * x.shape[0], pure=True)
    x = kiln.randn(5, 3, requires_grad=True)
    for _ in range(5):
        pure(x)
    assert not [v.conditions for found in pure._cell.variants.values() for v in found if v.conditions]
    with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'nothing'"):
        kiln.compile(lambda x: x.nothing, pure=True)(x)


def _marks_argument(x: Any) -> Any:
    x.seen = getattr(x, "seen", 0) + 1
    return x * 2


def _marks_result(x: Any) -> Any:
    y = x * 2
    y.scale = 3
    return y


def _forgets(x: Any) -> Any:
    del x.scale
    return x * 2


def _marks_between(x: Any) -> Any:
    y, x.t().scale = x * 2, 3
    y.scale = x
    return y * y.scale


@pytest.mark.parametrize("way", ["pure", "trace", "script"])
def test_attributes_that_tensors_are_given_are_refused_or_seen(way: str) -> None:
    """Those of arguments and results are refused: an op gives none."""

    def made(f: Any) -> Any:
        if way == "trace":
            return kiln.jit.trace(f, (marked(),))
        return kiln.compile(f, pure=True) if way == "pure" else kiln.jit.script(f)

    def marked() -> Any:
        x = _given(2)
        x.scale = 2.0
        return x

    for f in (_marks_argument, _marks_result, _forgets):
        with pytest.raises(RuntimeError, match="attribute"):
            made(f)(marked())
    g = made(_marks_between)
    for _ in range(3):
        assert kiln.equal(g(marked()), _marks_between(marked()))


def _has(x: Any) -> Any:
    return x * (3 if hasattr(x, "scale") else 4)


def _gets(x: Any) -> Any:
    return x * getattr(x, "scale", 4)


@pytest.mark.parametrize("function", [_has, _gets])
@pytest.mark.parametrize("has", [True, False])
def test_scripts_and_traces_are_of_the_attributes_that_they_ask_for(function: Any, has: bool) -> None:
    x, other = _given(2), _given(2)
    (x if has else other).scale = 3
    for made in (kiln.jit.trace(function, (x,)), kiln.jit.script(function)):
        assert kiln.equal(made(x), x * (3 if has else 4))
        with pytest.raises(RuntimeError, match=r"must have (scale 3|no attribute scale)"):
            made(other)


def test_the_class_of_tensors_stays_as_it_is() -> None:
    names = set(vars(kiln.Tensor))

    def f(x: Any) -> Any:
        assert vars(kiln.Tensor).keys() == names
        return x * getattr(x, "scale", 4)

    assert kiln.equal(kiln.compile(f, pure=True)(_given(2)), _given(2) * 4)
