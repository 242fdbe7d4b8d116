"""How a composite rounds to a dtype that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import kiln
import kiln.nn.functional as F
from kiln import Tensor

ASKED: dict[str, Callable[..., Tensor]] = {
    "softmax": lambda x, **asked: kiln.softmax(x, 1, **asked),
    "log_softmax": lambda x, **asked: kiln.log_softmax(x, 1, **asked),
    "softmin": lambda x, **asked: F.softmin(x, 1, **asked),
    "mean": lambda x, **asked: kiln.mean(x, 1, **asked),
    "nanmean": lambda x, **asked: kiln.nanmean(x, 1, **asked),
}
BY_DEFAULT: dict[str, Callable[[Tensor], Tensor]] = {
    "logsumexp": lambda x: kiln.logsumexp(x, 1),
    "cov": kiln.cov,
}
LOW = pytest.mark.parametrize("dtype", [kiln.float16, kiln.bfloat16], ids=str)


def drawn() -> Tensor:
    """Numbers that neither dtype holds."""
    return kiln.tensor(np.random.default_rng(0).uniform(-3, 3, (40, 50)).astype("float32"))


@LOW
@pytest.mark.parametrize("name", ASKED)
def test_a_dtype_asked_for_is_rounded_to_at_both_ends_alone(name: str, dtype: kiln.dtype) -> None:
    """The operand is rounded to it, what lies between is float32, and so is no result between rounded."""
    f, x = ASKED[name], drawn()
    expected = f(x.to(dtype).float()).to(dtype)
    for call in (f, kiln.compile(f, wait=True)):
        found = call(x, dtype=dtype)
        assert found.dtype == dtype and (found == expected).all()


@pytest.fixture
def default(dtype: kiln.dtype) -> Iterator[None]:
    """The default float dtype, which integers become."""
    kiln.set_default_dtype(dtype)
    yield
    kiln.set_default_dtype(kiln.float32)


@LOW
@pytest.mark.parametrize("name", BY_DEFAULT)
@pytest.mark.usefixtures("default")
def test_integers_are_rounded_to_the_default_dtype_alike(name: str, dtype: kiln.dtype) -> None:
    f, x = BY_DEFAULT[name], (drawn() * 1000).long()
    expected = f(x.to(dtype).float()).to(dtype)
    assert (f(x) == expected).all()
