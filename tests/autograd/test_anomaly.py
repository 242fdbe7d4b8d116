"""Anomaly mode: what fails in backward is told with where its op was called; NaN is found where it arose."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
from backend import WAYS, kiln, needs_kiln, torch

pytestmark = [needs_kiln, pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")]
LIBRARIES = [library for library in (kiln, torch) if library is not None]


def told(run: Any, error: Any, match: str) -> str:
    """The warnings of a run that must raise."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(error, match=match):
            run()
    texts = [str(w.message) for w in caught]
    return "\n".join(t for t in texts if not t.startswith("Anomaly Detection has been"))


def failing(t: Any) -> Any:
    class Fails(t.autograd.Function):  # type: ignore[name-defined,misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            raise KeyError("in backward")

    return Fails


def the_line_that_matters(x: Any) -> Any:
    return x.sqrt() * 0


@pytest.mark.parametrize("library", LIBRARIES, ids=["kiln", "torch"][: len(LIBRARIES)])
class TestAsPytorch:
    """The same programs on both."""

    def test_nan(self, library: Any) -> None:
        def run() -> None:
            with library.autograd.detect_anomaly():
                x = library.zeros(2, requires_grad=True)
                the_line_that_matters(x).sum().backward()

        text = told(run, RuntimeError, "Function 'SqrtBackward0' returned nan values in its 0th output")
        assert "Error detected in SqrtBackward0. Traceback of forward call that caused the error" in text
        assert "in the_line_that_matters" in text and "x.sqrt() * 0" in text and "in run" in text

    def test_an_error(self, library: Any) -> None:
        def run() -> None:
            with library.autograd.detect_anomaly():
                failing(library).apply(library.ones(1, requires_grad=True)).sum().backward()

        text = told(run, KeyError, "in backward")
        assert "Error detected in FailsBackward. Traceback of forward call" in text and "in run" in text

    def test_an_error_in_a_hook(self, library: Any) -> None:
        def fail(g: Any) -> None:
            raise KeyError("in a hook")

        def run() -> None:
            with library.autograd.detect_anomaly():
                y = library.ones(1, requires_grad=True).exp()
                y.register_hook(fail)
                y.sum().backward()

        assert "Error detected in ExpBackward0" in told(run, KeyError, "in a hook")

    def test_forward_outside(self, library: Any) -> None:
        y = the_line_that_matters(library.zeros(1, requires_grad=True)).sum()

        def run() -> None:
            with library.autograd.detect_anomaly():
                y.backward()

        assert "No forward pass information available" in told(run, RuntimeError, "returned nan values")

    def test_without_looking_for_nan(self, library: Any) -> None:
        with library.autograd.detect_anomaly(check_nan=False):
            assert library.is_anomaly_enabled() and not library.is_anomaly_check_nan_enabled()
            x = library.zeros(2, requires_grad=True)
            the_line_that_matters(x).sum().backward()
        assert str(x.grad.tolist()) == "[nan, nan]"

    def test_modes_are_restored(self, library: Any) -> None:
        def state() -> tuple[bool, bool]:
            return library.is_anomaly_enabled(), library.is_anomaly_check_nan_enabled()

        assert state() == (False, True)
        with pytest.raises(KeyError), library.autograd.detect_anomaly():
            raise KeyError
        assert state() == (False, True)
        with library.autograd.detect_anomaly(check_nan=False):
            with library.autograd.set_detect_anomaly(False):
                assert state() == (False, True)
            assert state() == (True, False)
        library.autograd.set_detect_anomaly(True)
        try:
            assert state() == (True, True)
        finally:
            library.autograd.set_detect_anomaly(False)
        assert state() == (False, True)

    def test_it_says_that_it_is_slow(self, library: Any) -> None:
        with pytest.warns(UserWarning, match="Anomaly Detection has been enabled"):
            library.autograd.detect_anomaly()

    def test_nodes_made_by_backward_name_what_made_them(self, library: Any) -> None:
        def run() -> None:
            with library.autograd.detect_anomaly():
                x = library.zeros(1, requires_grad=True)
                (g,) = library.autograd.grad((x**1.5).sum(), x, create_graph=True)
                library.autograd.grad(g.sum() * 0, x)

        text = told(run, RuntimeError, "returned nan values")
        assert "Previous calculation was induced by PowBackward0" in text
        assert "Traceback of forward call that induced the previous calculation" in text

    def test_metadata(self, library: Any) -> None:
        with library.autograd.detect_anomaly():
            y = library.ones(1, requires_grad=True).exp()
        lines = y.grad_fn.metadata["traceback_"]
        assert any("test_anomaly.py" in line for line in lines)


# -- of kiln alone -----------------------------------------------------------------------------------------


def makes_nan(x: Any) -> Any:
    return (x - 1).log()


def reads_nan(y: Any) -> Any:
    return y * y


def test_nan_is_found_where_it_arose() -> None:
    """A value that a derivative reads was NaN: the line that computed it is in the message."""
    with pytest.raises(RuntimeError) as caught, kiln.autograd.detect_anomaly():
        warnings.simplefilter("ignore")
        x = kiln.zeros(1, requires_grad=True)
        reads_nan(makes_nan(x)).sum().backward()
    line = makes_nan.__code__.co_firstlineno + 1
    assert "Function 'MulBackward0' returned nan values in its 0th output." in str(caught.value)
    assert f"LogBackward0 at {__file__}:{line}" in str(caught.value)


def test_nan_that_was_given() -> None:
    with pytest.raises(RuntimeError, match="was given to MulBackward0 at"), kiln.autograd.detect_anomaly():
        warnings.simplefilter("ignore")
        x = kiln.tensor([float("nan")], requires_grad=True)
        (x * x).sum().backward()


@WAYS
def test_nothing_is_recorded(way: Any) -> None:
    """In a region ops run on their lines, before, in and after anomaly mode alike."""
    from kiln import _core

    seen = []

    def program(x: Any, check: bool) -> Any:
        y = x.exp()
        with kiln.autograd.set_detect_anomaly(check):
            seen.append(_core.recording())
            z = y.sqrt()
            z.sum().backward()
        return z * 2

    run = way(program)
    for check in (False, True, True, False):
        x = kiln.ones(3, requires_grad=True)
        y = run(x, check)
        assert abs(x.grad[0].item() - 0.8243606) < 1e-6 and abs(y[0].item() - 3.2974424) < 1e-6
    assert seen[1:3] == [False, False]


@WAYS
def test_nan_in_a_region(way: Any) -> None:
    def program(x: Any) -> Any:
        the_line_that_matters(x).sum().backward()

    run = way(program)
    run(kiln.zeros(2, requires_grad=True))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Function 'SqrtBackward0' returned nan values"):
            with kiln.autograd.detect_anomaly():
                run(kiln.zeros(2, requires_grad=True))
    run(kiln.zeros(2, requires_grad=True))


def test_it_holds_in_all_threads() -> None:
    """As in PyTorch the mode is the process's."""
    found = []
    with kiln.autograd.detect_anomaly():
        thread = threading.Thread(target=lambda: found.append(kiln.is_anomaly_enabled()))
        thread.start()
        thread.join()
    assert found == [True]
