"""What traced programs ask of tensors and modes that is no value: refused, or checked at each call."""

from __future__ import annotations

import functools
import inspect
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import kiln
from kiln import nn

# body of a function of x and y -> whether a trace of it is refused, or has conditions
ASKED = {
    "x * 2 if x.is_contiguous() else x * 3": "checked",
    "x * x.stride(0)": "checked",
    "x * (2 if x.stride() == (3, 1) else 3)": "checked",
    "x * (1 + x.storage_offset())": "checked",
    "x * (1 + x[1].storage_offset())": "checked",
    "x * 2 if x.t().is_contiguous() else x * 3": "checked",
    "x * 2 if x.is_contiguous(memory_format=kiln.contiguous_format) else x * 3": "checked",
    "x * 2 if x._base is None else x * 3": "checked",
    "x * 2 if x._is_view() else x * 3": "checked",
    "x * 2 if x.is_shared() else x * 3": "checked",
    "x * 2 if x.is_inference() else x * 3": "checked",
    "x * 2 if kiln.is_inference(x) else x * 3": "checked",
    "x * 2 if (x * 2).is_inference() else x * 3": "checked",
    "x * (1 + x.data_ptr() % 64)": "refused",
    "x * (1 + (x * 2).data_ptr() % 4096)": "refused",
    "x * (1 + x._version)": "refused",
    "x * 2 if x.requires_grad else x * 3": "refused",
    "x * 2 if (x * y).requires_grad else x * 3": "refused",
    "x * 2 if x.is_leaf else x * 3": "refused",
    "x * 2 if (x + 1).is_leaf else x * 3": "refused",
    "x * 2 if x.grad is None else x * 3": "refused",
    "x * 2 if x.grad_fn is None else x * 3": "refused",
    "x * 2 if (x * 2).grad_fn is None else x * 3": "refused",
    "x * (1 + x.output_nr)": "refused",
    "x * 2 if x.retains_grad else x * 3": "refused",
    "x * 2 if kiln.is_grad_enabled() else x * 3": "checked",
    "x * 2 if kiln.is_inference_mode_enabled() else x * 3": "checked",
    "x * 2 if kiln.is_autocast_enabled('cpu') else x * 3": "checked",
    "x * 2 if kiln.get_autocast_dtype('cpu') is kiln.bfloat16 else x * 3": "checked",
    "x * 2 if kiln.get_default_dtype() is kiln.float32 else x * 3": "checked",
    "x * 2 if kiln.are_deterministic_algorithms_enabled() else x * 3": "checked",
    "x * kiln.get_num_threads()": "checked",
    "x * 2 if kiln.is_anomaly_enabled() else x * 3": "checked",
    "x * 2 if x is y else x * 3": "checked",
    "x * 2 if id(x) == id(y) else x * 3": "checked",
    "x * len({x: 1, y: 2})": "checked",
    "x * 2 if any(z is y for z in [x]) else x * 3": "checked",
    "x * 2 if isinstance(x, nn.Parameter) else x * 3": "checked",
    "x * 2 if type(x) is kiln.Tensor else x * 3": "checked",
    "x * len(type(x).__name__)": "checked",
    "x * len(x.__class__.__name__)": "checked",
    "x * getattr(x, 'scale', 1.0)": "checked",
    "x * (2 if hasattr(x, 'scale') else 3)": "checked",
    "x * sys.getrefcount(x)": "refused",
    "x * len(inspect.stack(0))": "refused",
    "x * (1 + id(x) % 9973)": "refused",
    "x * (1 + hash(x) % 9973)": "refused",
    "x * (kiln.initial_seed() % 7)": "refused",
    "x * int(kiln.get_rng_state()[0])": "refused",
}
CLEAN = [
    "x.contiguous() * 2 + y.contiguous()",
    "(x @ y).is_contiguous() and x * 2",
    "x * 2 if (x * y).stride() == (3, 1) else x * 3",
    "x.t().reshape(-1) + y.view(-1)",
    "nn.functional.dropout(x, 0.5, training=False) + y",
    "nn.functional.layer_norm(x, (3,)) + y",
    "x.clone(memory_format=kiln.preserve_format) + y",
    "x * 2 if isinstance(x, kiln.Tensor) else y",
    "x * 2 if not isinstance(x, (list, tuple, dict)) else y",
    "x * y if x is not None and y is not x.T else x",
    "x * (2 if x.dtype is kiln.float32 and x.device.type == 'cpu' and x.ndim == 2 else 3)",
    "x * (2 if x.detach().requires_grad else 3) + y",
    "(lambda z: z.add_(1) * (1 + z._version))(x * y)",
    "kiln.cat([x, y]).detach() * 2",
    "(x * 2).detach().is_leaf and x + y",
    "x * (2 if kiln.argsort(y).requires_grad else 3)",
]


def _function(body: str) -> Callable[..., Any]:
    scope = {"kiln": kiln, "nn": nn, "sys": sys, "inspect": inspect}
    exec(f"def f(x, y):\n    return {body}", scope)
    return scope["f"]  # type: ignore[no-any-return]


def _given(k: int) -> Any:
    return (kiln.arange(9.0).reshape(3, 3) * (k + 1)).clone()


def _calls() -> Iterator[tuple[tuple[Any, Any], AbstractContextManager[Any]]]:
    """Arguments of one look, that differ in all that may be asked; and modes to call in."""
    none: AbstractContextManager[Any] = nullcontext()
    y = _given(1)
    yield (_given(2), y), none
    yield (_given(2).t(), y), none
    yield (kiln.arange(12.0)[3:].view(3, 3), y), none
    yield (kiln.arange(3.0).expand(3, 3), y), none
    yield (y, y), none
    yield (nn.Parameter(_given(2)), y), none
    grown = _given(2).requires_grad_()
    grown.grad = kiln.ones(3, 3)
    yield (grown, y), none
    kept = _given(2).requires_grad_() * 1
    kept.retain_grad()
    yield (kept, y), none
    yield ((_given(2).requires_grad_() * 1).unbind(0)[1].expand(3, 3).clone(), y), none
    marked = _given(2)
    marked.scale = 5.0
    yield (marked, y), none
    yield (_given(2).add_(1), y), none
    yield (_given(2)[:], y), none
    yield (_given(2).share_memory_(), y), none
    with kiln.inference_mode():
        inferred = _given(2)
    yield (inferred, y), none
    for mode in (
        kiln.no_grad(),
        kiln.inference_mode(),
        kiln.autocast("cpu"),
        kiln.autocast("cpu", kiln.float16),
    ):
        yield (_given(2), y), mode
    yield (_given(2), y), kiln.autograd.detect_anomaly()


@pytest.fixture
def switched() -> Iterator[None]:
    """Switches of the whole process otherwise than where programs are traced."""
    threads = kiln.get_num_threads()
    yield
    kiln.use_deterministic_algorithms(False)
    kiln.set_default_dtype(kiln.float32)
    kiln.set_num_threads(threads)


def _outcome(f: Callable[..., Any], given: tuple[Any, Any], mode: AbstractContextManager[Any]) -> Any:
    with mode:
        return f(*given)


@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:Anomaly")
@pytest.mark.parametrize("on_data", ["refuse", "check"])
@pytest.mark.parametrize("body", ASKED)
def test_what_is_asked_is_never_kept_silently(body: str, on_data: str, switched: None) -> None:
    """A trace is refused, or a call where the answer is another one raises, and says what was asked for."""
    f = _function(body)
    refused = False
    try:
        traced = kiln.jit.trace(f, (_given(0), _given(1)), on_data=on_data)
    except RuntimeError as error:
        refused = True
        assert "asks" in str(error) or "reads" in str(error) or "run twice" in str(error)
    if refused or on_data == "refuse":
        assert refused == (ASKED[body] == "refused")
    if refused:
        return
    right = raised = 0
    calls = list(_calls())
    for given, mode in calls:
        expected = _outcome(f, given, mode)
        try:
            came = _outcome(traced, given, mode)
        except RuntimeError as error:
            raised += 1
            assert "asks for it" in str(error)
            continue
        right += 1
        assert came.dtype == expected.dtype and kiln.equal(came, expected), body
    kiln.use_deterministic_algorithms(True)
    kiln.set_num_threads(kiln.get_num_threads() % 2 + 1)
    kiln.set_default_dtype(kiln.float64)
    given = (_given(2).float(), _given(1).float())
    expected = f(*given)
    try:
        assert kiln.equal(traced(*given), expected)
        right += 1
    except RuntimeError:
        raised += 1
    assert right and raised


@pytest.mark.parametrize("body", CLEAN)
def test_what_does_not_matter_is_no_condition(body: str) -> None:
    """A program whose answers no call changes has no condition, and takes every call."""
    f = _function(body)
    traced = kiln.jit.trace(f, (_given(0), _given(1)))
    assert not traced.captured.checks
    for given, mode in _calls():
        if isinstance(mode, type(nullcontext())):
            came, expected = traced(*given), f(*given)
            assert kiln.equal(came, expected) and came.requires_grad == expected.requires_grad


def test_the_order_of_keyword_arguments_counts_where_it_is_asked() -> None:
    """And only there."""

    def folded(x: Any, **rest: Any) -> Any:
        return functools.reduce(lambda a, b: a * 2 + b, rest.values(), x)

    def named(x: Any, **rest: Any) -> Any:
        return x * rest["a"] - rest["b"]

    a, b, x = _given(0), _given(1), _given(2)
    traced = [kiln.jit.trace(f, (x,), example_kwarg_inputs={"a": a, "b": b}) for f in (folded, named)]
    for f, g in zip((folded, named), traced):
        assert kiln.equal(g(x, a=b, b=a), f(x, a=b, b=a))
    assert kiln.equal(traced[1](x, b=b, a=a), named(x, a=a, b=b))
    with pytest.raises(TypeError, match="another order of keys"):
        traced[0](x, b=b, a=a)


def test_conditions_are_kept_in_files_and_shown(tmp_path: Path) -> None:
    """A program that was loaded checks them, and they are among what is printed of it."""

    class Asking(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            if x is y or not x.is_contiguous() or not kiln.is_grad_enabled():
                return x + y
            return x * y

    program = kiln.export.export(Asking(), (_given(0), _given(1)))
    told = str(program)
    assert "x: must be contiguous" in told and "is_grad_enabled() must be True" in told
    kiln.export.save(program, tmp_path / "asking.kiln")
    for _ in range(2):  # read, and found among what was read
        loaded = kiln.export.load(tmp_path / "asking.kiln").module()
        assert kiln.equal(loaded(_given(1), _given(2)), _given(1) * _given(2))
        with pytest.raises(RuntimeError, match="x must be contiguous, as in the example .*asks for it"):
            loaded(_given(1).t(), _given(2))
        with pytest.raises(RuntimeError, match="another tensor than each"):
            loaded(*[_given(1)] * 2)
        with (
            kiln.no_grad(),
            pytest.raises(RuntimeError, match=r"is_grad_enabled\(\) is True, here it is False"),
        ):
            loaded(_given(1), _given(2))


def test_a_program_inside_another_hands_its_conditions_on() -> None:
    """What the inner one assumes of an argument of the outer one, the outer one checks."""
    inner = kiln.jit.trace(_function("x * 2 if x.is_contiguous() else x * 3"), (_given(0), _given(1)))
    outer = kiln.jit.trace(lambda x, y: inner(x, y) + 1, (_given(0), _given(1)))
    whole = kiln.jit.trace(lambda x, y: inner(x @ y, y) + 1, (_given(0), _given(1)))
    x, y = _given(2), _given(1)
    assert kiln.equal(outer(x, y), x * 2 + 1) and kiln.equal(whole(x.t(), y), (x.t() @ y) * 2 + 1)
    with pytest.raises(RuntimeError, match="x must be contiguous"):
        outer(x.t(), y)


def test_an_answer_is_that_of_where_the_function_is_followed() -> None:
    """A model that is exported without gradients is told that they are off."""
    f = _function("x * 2 if kiln.is_grad_enabled() else x * 3")
    with kiln.no_grad():
        traced = kiln.jit.trace(f, (_given(0), _given(1)))
        assert kiln.equal(traced(_given(2), _given(1)), _given(2) * 3)
    with pytest.raises(RuntimeError, match="is False, here it is True"):
        traced(_given(2), _given(1))


def test_an_example_that_lies_otherwise_is_refused_where_that_is_asked() -> None:
    """A trace answers for tensors in order."""
    f = _function("x * 2 if x.is_contiguous() else x * 3")
    with pytest.raises(RuntimeError, match="asks is_contiguous.*lie in order.*clone"):
        kiln.jit.trace(f, (_given(0).t(), _given(1)))
    g = _function("x.t() @ y")
    assert kiln.equal(
        kiln.jit.trace(g, (_given(0).t(), _given(1)))(_given(2).t(), _given(1)), _given(2) @ _given(1)
    )


def test_parameters_are_parameters_while_a_module_is_followed() -> None:
    """And arguments keep their types and attributes."""

    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(kiln.ones(3))
            self.w.scale = 3.0

        def forward(self, x: Any) -> Any:
            return x * (2 if isinstance(self.w, nn.Parameter) else 5) * self.w.scale

    module = Asking()
    assert kiln.equal(kiln.jit.trace(module, kiln.ones(3))(kiln.ones(3)), module(kiln.ones(3)))
    marked = _given(0)
    marked.scale = 5.0
    traced = kiln.jit.trace(_function("x * getattr(x, 'scale', 1.0)"), (marked, _given(1)))
    assert kiln.equal(traced(marked, _given(1)), marked * 5)
    with pytest.raises(RuntimeError, match="x must have scale 5.0"):
        traced(_given(0), _given(1))


@pytest.mark.parametrize("made_in", ["float32", "autocast"])
def test_autocast_casts_the_ops_of_a_program(made_in: str) -> None:
    """A program under autocast gives what the module gives there; made there, its casts are its own."""
    kiln.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    x = kiln.randn(2, 3)
    with kiln.autocast("cpu") if made_in == "autocast" else nullcontext():
        traced = kiln.jit.trace(model, x)
    for _ in range(3):
        if made_in == "float32":
            assert kiln.equal(traced(x), model(x))
        with kiln.autocast("cpu"):
            came, expected = traced(x), model(x)
            assert came.dtype == expected.dtype == kiln.bfloat16 and kiln.equal(came, expected)
            with kiln.no_grad():
                assert not traced(x).requires_grad
        gradients = []
        for y in (came, expected):
            y.float().sum().backward()
            gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
            model.zero_grad()
        assert all(map(kiln.equal, *gradients))


def test_kwargs_and_operators_that_compare_identity() -> None:
    """`operator.is_` is an `is`."""
    traced = kiln.jit.trace(lambda x, y: x + y if operator.is_(x, y) else x - y, (_given(0), _given(1)))
    with pytest.raises(RuntimeError, match="another tensor"):
        traced(*[_given(0)] * 2)


def _modes_told(x: Any, own: Any) -> tuple[Any, list[bool]]:
    told = [kiln.is_grad_enabled(), kiln.is_inference_mode_enabled()]
    with own():
        told += [kiln.is_grad_enabled(), kiln.is_inference_mode_enabled()]
        with kiln.enable_grad():
            told += [kiln.is_grad_enabled(), kiln.is_autocast_enabled("cpu")]
            with kiln.no_grad(), kiln.autocast("cpu"):
                told += [kiln.is_grad_enabled(), kiln.is_autocast_enabled("cpu")]
        told.append(kiln.is_grad_enabled())
    return x * 2 if told[-1] else x * 3, told


_MODES = [
    nullcontext,
    kiln.no_grad,
    kiln.enable_grad,
    kiln.inference_mode,
    lambda: kiln.set_grad_enabled(False),
]


@pytest.mark.parametrize("around", range(len(_MODES)))
def test_a_program_is_told_the_modes_that_it_switches_itself(around: int) -> None:
    """As in eager, in each way of following it."""
    x = _given(1)
    for own in _MODES:

        def f(x: Any, own: Any = own) -> Any:
            return _modes_told(x, own)

        made: dict[str, Any] = {
            "trace": lambda f=f: kiln.jit.trace(f, (x,)),
            "export": lambda f=f: kiln.export.export(f, (x,)),
            "script": lambda f=f: kiln.jit.script(f),
            "pure": lambda f=f: kiln.compile(f, pure=True),
            "compile": lambda f=f: kiln.compile(f),
            "backend": lambda f=f: kiln.compile(f, backend=lambda gm, _: gm),
            "graph": lambda f=f: kiln.graph.from_function(f, kiln.graph.placeholder("x", (3, 3))),
        }
        with _MODES[around]():
            expected = f(x)
            for name, make in made.items():
                came = make()(x)
                assert came[1] == expected[1] and kiln.equal(came[0], expected[0]), (name, around, own)


def test_what_a_program_switches_itself_is_no_condition() -> None:
    def f(x: Any) -> Any:
        with kiln.enable_grad():
            x = x * 2 if kiln.is_grad_enabled() else x * 3
        with kiln.no_grad(), kiln.inference_mode():
            return x * 5 if kiln.is_grad_enabled() or not kiln.is_inference_mode_enabled() else x * 7

    def g(x: Any) -> Any:
        x = f(x)
        return x * 2 if kiln.is_grad_enabled() else x * 3

    for modes in ((nullcontext, kiln.no_grad), (kiln.no_grad, nullcontext)):
        with modes[0]():
            free, bound = kiln.jit.trace(f, (_given(0),)), kiln.jit.trace(g, (_given(0),))
            assert kiln.equal(bound(_given(1)), g(_given(1)))
        with modes[1]():
            assert kiln.equal(free(_given(1)), f(_given(1)))
            with pytest.raises(RuntimeError, match="was made where is_grad_enabled"):
                bound(_given(1))
