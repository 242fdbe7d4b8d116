"""The framework under test: `from backend import kiln`, or PyTorch in its place (KILN_TEST_BACKEND=torch)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kiln.testing.backend import load, peer
from kiln.testing.compare import first_difference, freeze

kiln = load()
torch = peer()

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch, the tests' peer, is not installed")
needs_kiln = pytest.mark.skipif(not kiln.is_kiln, reason="the stand-in has no recorder")


def eager(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` itself: the first of the two ways of running."""
    return fn


def recorded(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` as a recorded region: the second way of running, by its program from the first call on."""
    result: Callable[..., Any] = kiln.compile(fn, wait=True)
    return result


WAYS = pytest.mark.parametrize("way", [eager, recorded], ids=["eager", "recorded"])


@contextlib.contextmanager
def where_supported() -> Iterator[None]:
    """Skips the rest of a test, with kiln's own sentence, where kiln says that something is not supported."""
    try:
        yield
    except NotImplementedError as error:
        pytest.skip(f"not supported: {error}")


def needs(*names: str) -> pytest.MarkDecorator:
    """Skips a test while kiln lacks one of `names` (dotted), as contract 1 allows: what is missing is
    absent.
    """

    def missing(name: str) -> bool:
        try:
            functools.reduce(getattr, name.split("."), kiln)
        except (AttributeError, ImportError):
            return True
        return False

    absent = [n for n in names if missing(n)]
    return pytest.mark.skipif(bool(absent), reason=f"kiln has no {', '.join(absent)}")


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    """What a call gave: its frozen result, or the name of what it raised (NotImplementedError passes
    through).
    """
    try:
        return freeze(fn(*args))
    except NotImplementedError:
        raise
    except Exception as error:
        return {"raised": type(error).__name__}


def check_same(
    fn: Callable[..., Any], make: Callable[[], tuple[Any, ...]], calls: int = 3, raises: str | None = None
) -> Any:
    """Run `fn` eagerly and recorded, `calls` times on fresh arguments: same bits in results and in the
    arguments.

    `raises` names the exception that both must end in. Returns the last frozen result.
    """
    compiled, last = kiln.compile(fn), None
    for call in range(calls):
        args, others = make(), make()
        expected = [outcome(fn, *args), freeze(args)]
        got = [outcome(compiled, *others), freeze(others)]
        assert (found := first_difference(expected, got, exact=True)) is None, f"call {call + 1}: {found}"
        last = expected[0]
        came = last.get("raised") if isinstance(last, dict) else None
        assert came == raises, f"call {call + 1}: raised {came}, expected {raises}"
    return last


def filled(lib: Any, module: Any, seed: int = 0, scale: float = 0.5) -> Any:
    """The module with draws of NumPy's in its parameters: the same in kiln and in PyTorch."""
    rng = np.random.default_rng(seed)
    with lib.no_grad():
        for p in module.parameters():
            p.copy_(lib.tensor(rng.normal(size=tuple(p.shape)) * scale))
    return module


def tensor(*values: float, grad: bool = False) -> Any:
    """A 1-d float32 tensor."""
    return kiln.tensor(list(values), dtype=kiln.float32, requires_grad=grad)


def normal(*shape: int, seed: int = 0) -> Any:
    """A float32 tensor of normal draws; equal arguments give equal values. Its memory is its own: NumPy's is
    copied at every recorded read, and never written by a program.
    """
    return kiln.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32)).clone()


def values(x: Any) -> list[Any]:
    """A tensor as nested lists."""
    return x.detach().tolist()
