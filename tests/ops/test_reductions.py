"""The call forms of reductions beside PyTorch's: what each gives, or the type of what it raises."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from backend import kiln, torch

from kiln.testing.compare import close, difference, dtype_name, to_array

FUNCTIONS = ("sum", "mean", "amax", "amin", "any", "all", "nansum", "nanmean", "logsumexp", "var", "std",
             "prod", "argmax", "argmin", "max", "min", "count_nonzero", "norm")  # fmt: skip
# those that take several dims; the others take one
SEVERAL = ("sum", "mean", "amax", "amin", "any", "all", "nansum", "nanmean", "var", "std")
FORMS = ("k.{f}(x)", "k.{f}(x, 1)", "x.{f}(dim=-1)", "k.{f}(input=x, dim=0)", "k.{f}(x, dim=5)", "k.{f}(z)",
         "k.{f}(e)", "k.{f}(e, dim=0)", "k.{f}(e, dim=1)")  # fmt: skip
OF_SEVERAL = ("k.{f}(y, (0, -1))", "y.{f}([1, 2], keepdim=True)", "k.{f}(x, dim=(0, 0))",
              "k.{f}(x, axis=1)", "x.{f}(dim=0, keepdims=True)", "k.{f}(x, dim=())")  # fmt: skip
EXPRESSIONS = [
    *[form.format(f=f) for f in FUNCTIONS for form in FORMS],
    *[form.format(f=f) for f in SEVERAL for form in OF_SEVERAL],
    "k.sum(x, 1, dtype=k.float64)", "x.prod(dtype=k.int32)", "k.mean(x, dtype=k.float64)",
    "k.nansum(x, 0, dtype=k.float32)", "k.logsumexp(y, (0, 2), True)",
    "k.amax(x, 1, out=k.empty(3, dtype=x.dtype))", "k.argmin(x, 1, out=k.empty(3, dtype=k.int64))",
    "k.amin(x, 1, out=k.empty(3, dtype=k.int16))", "k.argmax(x, 1, out=k.empty(3))", "k.argmax(x, (0, 1))",
    "k.max(x, 1, out=(k.empty(3, dtype=x.dtype), k.empty(3, dtype=k.int64)))", "k.max(x, 1, out=k.empty(3))",
    "k.min(x, dim=0, keepdim=True)", "k.max(x, x * 2)", "k.min(x, other=x)",
    "k.min(x, out=k.empty((), dtype=x.dtype))", "k.max(e, 0)", "k.max(x, 1).values", "k.min(x, 1).indices",
    *[f"k.{f}({a})" for f in ("var", "std", "var_mean", "std_mean")
      for a in ("x, False", "x, 1, False, True", "x, unbiased=False", "x, dim=1, correction=2",
                "x, correction=0.5, keepdim=True", "x, 1, True, correction=1")],
    "k.var(x, 1, out=k.empty(3, dtype=k.int64))",
    *[f"k.norm({a})" for a in ("x, 3", "x, 0.5, 1", "x, -1, dim=(0, 1)", "x, float('inf'), 0, True", "x, 0",
                               "x, p='fro', dim=-1", "x, dtype=k.float64", "x, 2, 1, dtype=k.float16",
                               "e, float('inf')", "e, -2, 1", "x, None", "x, (0, 1)")],
    "k.dist(x, y[0] * 2, 3)", "k.renorm(y, 1.5, 1, 2.0)", "x.clone().renorm_(2, 0, 1.0)",
    "k.nn.functional.normalize(x)", "k.nn.functional.normalize(x, p=1, dim=(0, 1), eps=50.0)",
    "k.count_nonzero(y, (0, -1))",
    "k.aminmax(x)", "x.aminmax(dim=0, keepdim=True).max", "k.aminmax(e)", "k.aminmax(x, 1)",
    "k.aminmax(x, dim=0, out=k.empty(4))",
    "k.cov(x)", "k.cov(x[0], correction=0)", "x.corrcoef()", "k.corrcoef(y)", "k.cov(z)", "k.cov(e)",
    "k.cov(x, fweights=k.tensor([1, 2, 3, 1]), aweights=k.tensor([1.0, 2.0, 0.5, 1.0]))",
    "k.cov(x, fweights=k.tensor([1.0, 2.0, 3.0, 1.0]))", "k.cov(x, fweights=k.tensor([1, -2, 3, 1]))",
    "k.cov(x, aweights=k.tensor([1.0, 2.0]))", "k.cov(x, aweights=k.zeros(4))",
]  # fmt: skip


def outcome(lib: Any, text: str, dtype: str) -> Any:
    """What an expression gives, as a list, or the exception it raises."""

    def array(seed: int, *shape: int) -> Any:
        values = np.asarray(np.random.default_rng(seed).integers(-3, 4, shape), "float64")
        return lib.from_numpy(np.asarray(abs(values) if dtype == "uint8" else values)).to(getattr(lib, dtype))

    names = {"k": lib, "x": array(0, 3, 4), "y": array(1, 2, 3, 4), "z": array(2), "e": array(3, 0, 3)}
    try:
        result = eval(text, names)
    except Exception as error:
        return error
    return list(result) if isinstance(result, (tuple, list)) else [result]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("text", EXPRESSIONS)
def test_call_form(text: str, answers: Any) -> None:
    for dtype in ("float32", "int64", "uint8", "bool"):
        want = answers([outcome, text, dtype], partial(outcome, torch, text, dtype))
        got = outcome(kiln, text, dtype)
        if isinstance(want, Exception) or isinstance(got, Exception):
            assert type(got) is type(want), f"{dtype}: {want!r} but {got!r}"
            continue
        assert len(got) == len(want)
        for a, b in zip(got, want):
            assert (dtype_name(a.dtype), tuple(a.shape)) == (dtype_name(b.dtype), tuple(b.shape)), dtype
            to = dtype_name(a.dtype)
            assert close(to_array(a), to_array(b), to, 4.0), difference(to_array(a), to_array(b))


@pytest.mark.parametrize("shape", [(5,), (4, 3)])
def test_second_gradient_of_running_products_at_zeros(shape: tuple[int, ...], answers: Any) -> None:
    """At one zero, at two and at three in a row of factors."""
    values = np.arange(1, 1 + int(np.prod(shape)), dtype="float64").reshape(shape)
    values.reshape(-1)[[1, 3, 4]] = 0

    def gradients(lib: Any, values: Any) -> list[Any]:
        x = lib.tensor(values).requires_grad_()
        weights = lib.tensor(np.cos(values + 1))
        (first,) = lib.autograd.grad((x.cumprod(0) * weights).sum(), x, create_graph=True)
        (second,) = lib.autograd.grad((first * weights).sum(), x)
        return [to_array(first), to_array(second)]

    for got, want in zip(*answers.both(gradients, values), strict=True):
        assert close(got, want, "float64"), difference(got, want)
