"""NumPy's arrays and numbers beside tensors: operators, keys, copies."""

from __future__ import annotations

import copy
import operator
from typing import Any

import numpy as np
import pytest

import kiln

BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "eq", "ne", "lt", "le", "gt", "ge"]


def as_array(x: Any) -> np.ndarray:
    assert isinstance(x, kiln.Tensor)
    return x.numpy()


@pytest.mark.parametrize("name", BINARY)
def test_an_array_beside_a_tensor_is_a_tensor(name: str) -> None:
    function = getattr(operator, name)
    a, b = np.array([1.5, 2.0, 7.0]), np.array([2.0, 2.0, 3.0])
    x, y = kiln.tensor(a), kiln.tensor(b)
    for result in (function(x, b), function(a, y)):
        assert np.array_equal(as_array(result), function(x, y).numpy())
    # the array's dtype and dims count, also those of size 1
    assert function(x.float(), b[:1]).dtype == function(x.float(), y[:1]).dtype
    assert function(kiln.tensor(3.0), b[:1]).shape == (1,)


def test_a_matrix_product_with_an_array() -> None:
    a = np.arange(6.0).reshape(2, 3)
    assert np.array_equal(as_array(kiln.tensor(a) @ a.T), a @ a.T)
    assert np.array_equal(as_array(a @ kiln.tensor(a.T)), a @ a.T)


@pytest.mark.parametrize("number", [np.float64(2), np.float32(2), np.int64(2), np.sqrt(4.0)])
def test_a_numpy_number_before_a_tensor_keeps_dtype_and_history(number: Any) -> None:
    x = kiln.ones(2, requires_grad=True)
    y = number * x + np.ones(2, np.float32)
    assert y.dtype == kiln.float32
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 2.0]
    assert (number ** kiln.ones(2)).tolist() == [2.0, 2.0] and (number - kiln.ones(2)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("lib", ["kiln", "torch"])
def test_a_tensor_that_requires_grad_where_nothing_is_recorded(lib: str) -> None:
    f = pytest.importorskip(lib)
    x = f.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="Can't call numpy"):
        x.numpy()
    with f.no_grad():
        x.numpy()[0] = 5
        assert np.asarray(x).tolist() == [5.0, 1.0]
    assert x.requires_grad and x.tolist() == [5.0, 1.0]


def test_in_place_with_an_array() -> None:
    x = alias = kiln.ones(2)
    x += np.ones(2)
    x *= np.array([1, 3])
    assert x is alias and x.tolist() == [2.0, 6.0]


def test_what_an_operator_cannot_take() -> None:
    x = kiln.ones(2)
    for other, error in (
        (2**70, OverflowError),
        ("text", TypeError),
        (None, TypeError),
        (np.array(["a"]), Exception),
    ):
        for function in (operator.add, operator.iadd):
            with pytest.raises(error):
                function(x, other)
    assert x.tolist() == [1.0, 1.0]
    assert (x == "text") is False and (x != None) is True  # noqa: E711


def test_a_recorded_array_is_read_at_its_line() -> None:
    @kiln.compile
    def function(x: Any) -> Any:
        a = np.array([1.0, 2.0], np.float32)
        y = x * a
        a[:] = 9
        return y

    for _ in range(4):
        assert function(kiln.ones(2)).tolist() == [1.0, 2.0]


def test_arrays_as_keys() -> None:
    a = np.arange(12.0).reshape(3, 4)
    x = kiln.tensor(a)
    for index in (np.array([2, 0]), np.array([[1, 1], [0, -1]])):
        assert np.array_equal(x[index].numpy(), a[index])
        assert np.array_equal(x[:, index].numpy(), a[:, index])
    assert x[np.int64(1), np.int32(2)].item() == 6.0
    x[a > 5] = 0
    assert x.sum().item() == 15.0
    with pytest.raises(IndexError):
        x[np.array([3])]
    with pytest.raises(IndexError):
        x[np.array([0.5])]


@pytest.mark.parametrize("kind", [kiln.tensor, lambda v: kiln.nn.Parameter(kiln.tensor(v))])
def test_a_shallow_copy_shares_memory(kind: Any) -> None:
    x = kind([1.0, 2.0])
    y = copy.copy(x)
    assert y is not x and type(y) is type(x) and y.requires_grad == x.requires_grad and y.is_leaf
    y.data.zero_()
    assert x.tolist() == [0.0, 0.0]
    assert copy.copy(kiln.ones(2, requires_grad=True) * 2).is_leaf


def test_equal_and_allclose() -> None:
    torch = pytest.importorskip("torch")
    inf, nan = np.inf, np.nan
    rows = [[1.0, 2.0], [1.0, 2.0 + 1e-6], [1.0, 2.1], [1.0, inf], [1.0, -inf], [1.0, nan], [1e30, 2.0]]
    for a in rows:
        for b in rows:
            for options in ({}, {"rtol": 0.2}, {"atol": 0.2, "rtol": 0.0}, {"equal_nan": True}):
                ours, theirs = (
                    lib.allclose(lib.tensor(a), lib.tensor(b), **options) for lib in (kiln, torch)
                )
                assert ours is theirs, (a, b, options)
            assert kiln.equal(kiln.tensor(a), kiln.tensor(b)) is torch.equal(torch.tensor(a), torch.tensor(b))
    assert kiln.allclose(kiln.tensor([1, 2]), kiln.tensor([1, 2])) and not kiln.equal(
        kiln.ones(2), kiln.ones(1)
    )
    with pytest.raises(RuntimeError, match="dtype"):
        kiln.allclose(kiln.ones(1), kiln.ones(1).double())


def test_a_program_that_asks_for_cuda_runs_on_the_cpu() -> None:
    device = kiln.device("cuda" if kiln.cuda.is_available() else "cpu")
    x = kiln.ones(2, device=device).to(device)
    assert x.cpu() is x and x.device == device and kiln.cuda.device_count() == 0


class Foreign:
    """An array of another library, as NumPy sees one."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.values


def test_an_array_of_another_library() -> None:
    foreign = Foreign([[1, 2], [3, 4]])
    copied, shared = kiln.tensor(foreign), kiln.as_tensor(foreign)
    foreign.values[0, 0] = 9
    assert copied.tolist() == [[1, 2], [3, 4]] and shared.tolist() == [[9, 2], [3, 4]]
    assert kiln.tensor(foreign, dtype=kiln.float32).dtype == kiln.float32


def test_bfloat16_is_not_taken_for_integers() -> None:
    """NumPy has no bfloat16, and its bits under another dtype's name would be other numbers."""
    x = kiln.ones(2, dtype=kiln.bfloat16)
    for ask in (np.asarray, np.array, memoryview, kiln.Tensor.numpy):
        with pytest.raises((TypeError, BufferError), match="bfloat16; use"):
            ask(x)
    assert np.asarray(x.view(kiln.int16)).tolist() == [0x3F80, 0x3F80]


@pytest.mark.parametrize("dtype", ["complex64", "float8", complex, str, np.float32, object(), 3])
def test_no_such_dtype(dtype: Any) -> None:
    for call in (lambda: kiln.zeros(2, dtype=dtype), lambda: kiln.ones(2).to(dtype=dtype)):
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize("name", ["complex64", "cfloat", "fft", "view_as_complex"])
def test_complex_numbers_are_absent_and_it_says_so(name: str) -> None:
    with pytest.raises(AttributeError, match="has no complex numbers"):
        getattr(kiln, name)
    assert name not in dir(kiln)
