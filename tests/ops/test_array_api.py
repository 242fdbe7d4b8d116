"""The Array API standard 2024.12: every name with its arguments, values and dtypes beside NumPy's."""

from __future__ import annotations

import builtins
import inspect
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import kiln

xp = kiln.ones(1).__array_namespace__()

# The standard's functions and their arguments.
NAMES = """
(x, /): abs acos acosh asin asinh atan atanh bitwise_invert ceil cos cosh exp expm1 floor isfinite isinf
    isnan log log10 log1p log2 logical_not negative positive reciprocal round sign signbit sin sinh sqrt
    square tan tanh trunc conj real matrix_transpose nonzero unique_all unique_counts unique_inverse
    unique_values linalg.det linalg.eigh linalg.eigvalsh linalg.inv linalg.matrix_transpose linalg.slogdet
    linalg.svdvals
(x1, x2, /): add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign
    divide equal floor_divide greater greater_equal hypot less less_equal logaddexp logical_and logical_or
    logical_xor maximum minimum multiply nextafter not_equal pow remainder subtract matmul linalg.matmul
    linalg.outer linalg.solve
(x, /, min=None, max=None): clip
(start, /, stop=None, step=1, *, dtype=None, device=None): arange
(obj, /, *, dtype=None, device=None, copy=None): asarray
(shape, *, dtype=None, device=None): empty ones zeros
(x, /, *, dtype=None, device=None): empty_like ones_like zeros_like
(shape, fill_value, *, dtype=None, device=None): full
(x, /, fill_value, *, dtype=None, device=None): full_like
(n_rows, n_cols=None, /, *, k=0, dtype=None, device=None): eye
(start, stop, /, num, *, dtype=None, device=None, endpoint=True): linspace
(*arrays, indexing='xy'): meshgrid
(x, /, *, device=None, copy=None): from_dlpack
(x, /, *, k=0): tril triu
(x, dtype, /, *, copy=True, device=None): astype
(from_, to, /): can_cast
(type, /): finfo iinfo
(dtype, kind): isdtype
(*arrays_and_dtypes): result_type
(*arrays): broadcast_arrays
(x, /, shape): broadcast_to
(arrays, /, *, axis=0): concat stack
(x, /, axis): expand_dims squeeze
(x, /, *, axis=None): flip
(x, source, destination, /): moveaxis
(x, /, axes): permute_dims
(x, repeats, /, *, axis=None): repeat
(x, /, shape, *, copy=None): reshape
(x, /, shift, *, axis=None): roll
(x, repetitions, /): tile
(x, /, *, axis=0): unstack
(x, /, *, axis=None, keepdims=False): all any argmax argmin count_nonzero max mean min
(x, /, *, axis=None, dtype=None, keepdims=False): prod sum
(x, /, *, axis=None, correction=0.0, keepdims=False): std var
(x, /, *, axis=None, dtype=None, include_initial=False): cumulative_prod cumulative_sum
(x, /, *, axis=-1, n=1, prepend=None, append=None): diff
(x, indices, /, *, axis=None): take
(x, indices, /, *, axis=-1): take_along_axis
(x1, x2, /, *, side='left', sorter=None): searchsorted
(condition, x1, x2, /): where
(x, /, *, axis=-1, descending=False, stable=True): argsort sort
(x1, x2, /, *, axes=2): tensordot linalg.tensordot
(x1, x2, /, *, axis=-1): vecdot linalg.vecdot linalg.cross
(x, /, *, upper=False): linalg.cholesky
(x, /, *, offset=0): linalg.diagonal
(x, /, *, keepdims=False, ord='fro'): linalg.matrix_norm
(x, n, /): linalg.matrix_power
(x, /, *, rtol=None): linalg.matrix_rank linalg.pinv
(x, /, *, mode='reduced'): linalg.qr
(x, /, *, full_matrices=True): linalg.svd
(x, /, *, offset=0, dtype=None): linalg.trace
(x, /, *, axis=None, keepdims=False, ord=2): linalg.vector_norm
"""
SIGNATURES = {
    name: signature
    for line in NAMES.strip().replace("\n    ", " ").split("\n")
    for signature, names in [line.rsplit(":", 1)]
    for name in names.split()
}


def found(name: str, of: Any = xp) -> Any:
    for part in name.split("."):
        of = getattr(of, part)
    return of


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments(name: str) -> None:
    """Every function of the standard, with the names, kinds and defaults of its parameters."""
    function = found(name)
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(function).parameters.values()]
    assert str(inspect.Signature(parameters)) == SIGNATURES[name]
    assert function.__name__ == name.rpartition(".")[2] and function.__doc__


def test_nothing_else_is_public() -> None:
    """What the modules define is what the standard has, and what it has of complex numbers is absent."""
    top = {n for n in dir(xp) if inspect.isfunction(getattr(xp, n)) and n not in ("message", "describe")}
    assert top - {"check_version"} == {n for n in SIGNATURES if "." not in n}
    for name in ("imag", "complex64", "complex128", "fft", "uint16", "uint32", "uint64", "no_such_name"):
        with pytest.raises(AttributeError):
            getattr(xp, name)
    assert not hasattr(xp.linalg, "eig")


def test_constants_and_versions() -> None:
    assert xp.__array_api_version__ == "2024.12" and xp.newaxis is None and xp is kiln.array_api
    assert (xp.e, xp.pi, xp.inf) == (np.e, np.pi, np.inf) and np.isnan(xp.nan)
    x = kiln.nn.Parameter(kiln.ones(1))
    assert x.__array_namespace__(api_version="2022.12") is x.__array_namespace__() is xp
    for version in ("2019.01", 2024):
        with pytest.raises(ValueError, match=r"2024\.12"):
            x.__array_namespace__(api_version=version)
    code = "import sys, kiln; assert 'kiln.array_api' not in sys.modules; print(kiln.array_api.pi)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == str(np.pi), done.stderr


def test_inspection() -> None:
    info = xp.__array_namespace_info__()
    assert info.capabilities() == {
        "boolean indexing": True,
        "data-dependent shapes": True,
        "max dimensions": 64,
    }
    assert info.devices() == [info.default_device()] == [kiln.ones(1).device]
    assert xp.zeros(2, device=info.default_device()).to_device("cpu").device == info.default_device()
    assert info.default_dtypes()["real floating"] == kiln.get_default_dtype() == xp.asarray(1.5).dtype
    assert info.default_dtypes()["integral"] == xp.asarray(1).dtype
    assert info.default_dtypes()["indexing"] == xp.argmax(kiln.ones(2)).dtype
    numeric = {n: getattr(kiln, n) for n in "int8 int16 int32 int64 uint8 float32 float64".split()}
    assert info.dtypes() == {**numeric, "bool": kiln.bool}
    assert info.dtypes(kind="numeric") == numeric and info.dtypes(kind="complex floating") == {}
    assert info.dtypes(kind=("bool", "unsigned integer")) == {"bool": kiln.bool, "uint8": kiln.uint8}
    for call in (info.dtypes, info.default_dtypes, lambda device: xp.zeros(2, device=device)):
        with pytest.raises(RuntimeError, match="cuda"):
            call(device="cuda")


# -- values beside NumPy's ------------------------------------------------------------------------------

FLOATS = "float32 float64"
INTEGERS = "int8 int64 uint8"
REAL = f"float32 {INTEGERS}"
ALL = f"{REAL} bool"
# dtypes: expressions of x (2, 3), y (3), v (5), z (0-d), s (2, 3, 3)
CASES = {
    FLOATS: """
xp.acos(x / 9) | xp.acosh(xp.abs(x) + 1) | xp.asin(x / 9) | xp.asinh(x) | xp.atan(x) | xp.atanh(x / 9)
xp.cos(x)
xp.cosh(x) | xp.exp(x) | xp.expm1(x) | xp.log(x * x + 1) | xp.log10(x * x + 1) | xp.log1p(x * x)
xp.log2(x * x + 1)
xp.reciprocal(x + 0.5) | xp.sin(x) | xp.sinh(x) | xp.sqrt(xp.abs(x)) | xp.tan(x) | xp.tanh(x) | xp.atan2(x, y)
xp.copysign(x, -y) | xp.copysign(x, -2.0) | xp.hypot(x, y) | xp.logaddexp(x, y) | xp.nextafter(x, y)
xp.divide(x, y)
xp.nextafter(x, 100) | xp.sign(special) | xp.signbit(special[1:]) | xp.isnan(special) | xp.isinf(special)
xp.isfinite(special) | xp.maximum(special, 0) | xp.minimum(special, special[1]) | xp.clip(special, 0, 1)
xp.clip(x, 0.5, None) | xp.round(x * 1.25) | xp.trunc(x * 1.3) | xp.floor(x * 1.3) | xp.ceil(x * 1.3)
xp.mean(x) | xp.mean(x, axis=0) | xp.mean(x, axis=(0, 1), keepdims=True) | xp.mean(x, axis=()) | xp.mean(z)
xp.std(x) | xp.std(x, axis=1, correction=1.0) | xp.std(x, axis=(-1,), correction=0.5, keepdims=True)
xp.std(x, axis=())
xp.var(x) | xp.var(x, axis=(1, 0)) | xp.var(x, correction=1, keepdims=True) | xp.std(z)
xp.var(x[:, :0], axis=0)
xp.max(special) | xp.min(special) | xp.sum(special[3:]) | xp.sort(special[2:]) | xp.argsort(special[2:])
xp.linalg.vector_norm(x) | xp.linalg.vector_norm(x, axis=0, ord=1)
xp.linalg.vector_norm(x, axis=-1, ord=xp.inf)
xp.linalg.vector_norm(y, keepdims=True) | xp.linalg.vector_norm(x, axis=1, ord=0) | xp.linalg.matrix_norm(s)
xp.linalg.matrix_norm(x, ord=1) | xp.linalg.matrix_norm(x, ord="nuc")
xp.linalg.matrix_norm(s, ord=-2, keepdims=True)
xp.linalg.matrix_norm(x, ord=-xp.inf) | xp.linalg.det(s) | xp.linalg.inv(s) | xp.linalg.slogdet(s)
xp.linalg.solve(s, y) | xp.linalg.solve(s, s) | xp.linalg.solve(s[0], s)
xp.linalg.solve(s, xp.reshape(y, (3, 1)))
xp.linalg.solve(s[0, :2, :2], x[:, :2]) | xp.linalg.cholesky(xp.matmul(s, s.mT)) | xp.linalg.svdvals(s)
xp.linalg.cholesky(xp.matmul(s, s.mT), upper=True) | xp.linalg.pinv(x) | xp.linalg.pinv(x, rtol=0.9)
xp.linalg.matrix_rank(s) | xp.linalg.matrix_rank(x, rtol=0.9) | xp.linalg.matrix_power(s, 3)
xp.linalg.matrix_power(s, -1)
xp.linalg.eigvalsh(s + s.mT) | xp.linalg.eigh(s + s.mT).eigenvalues | xp.linalg.svd(x, full_matrices=False).S
xp.linalg.svd(x).Vh.shape | xp.linalg.svd(x, full_matrices=False).U.shape | xp.abs(xp.linalg.qr(x).R)
xp.linalg.qr(x, mode="complete").Q.shape | xp.linalg.cross(x, y) | xp.unique_counts(special).counts
xp.linspace(0, 1, 5, dtype=t) | xp.linspace(0, 1, num=5, dtype=t, endpoint=False)
xp.linspace(2, -1, 0, dtype=t)
xp.astype(x, xp.int16) | xp.searchsorted(xp.sort(v), v + 0.5) | xp.arange(0, 1, 0.25, dtype=t)
xp.pow(xp.abs(x), 0.5)
xp.add(z, x) | xp.divide(1, y) | xp.remainder(x, y) | xp.floor_divide(x, y) | xp.cumulative_sum(special[2:])
xp.arange(3, 0, dtype=t) | xp.asarray([1.5, 2], dtype=t) | xp.finfo(t).eps | xp.finfo(t).max
xp.finfo(t).smallest_normal
""",
    INTEGERS: """
xp.bitwise_and(x, y) | xp.bitwise_or(x, 1) | xp.bitwise_xor(2, y) | xp.bitwise_invert(x)
xp.bitwise_left_shift(y, 2)
xp.bitwise_right_shift(x, 1) | xp.bitwise_left_shift(1, y) | xp.floor(x) | xp.ceil(x) | xp.trunc(x)
xp.round(x)
xp.astype(x, xp.float32) | xp.take(v, x[0, :1] * 0) | xp.repeat(v, xp.abs(v)) | xp.iinfo(t).max
xp.iinfo(t).min
xp.floor_divide(x, y) | xp.remainder(x, y) | xp.pow(x, 2) | xp.isfinite(x) | xp.isnan(x) | xp.isinf(x)
xp.signbit(y)
""",
    REAL: """
xp.abs(x) | xp.negative(y) | xp.positive(x) | xp.square(x) | xp.sign(x) | xp.conj(x) | xp.real(x)
xp.add(x, y)
xp.subtract(x, y) | xp.multiply(x, 3) | xp.add(2, y) | xp.maximum(x, y) | xp.minimum(x, 2) | xp.maximum(1, x)
xp.less(x, y) | xp.less_equal(x, 2) | xp.greater(2, y) | xp.greater_equal(x, y) | xp.clip(x, 1, 3)
xp.clip(x, y, None)
xp.clip(x, max=y) | xp.clip(x) | xp.sum(x) | xp.sum(x, axis=0) | xp.sum(x, axis=(0, -1), keepdims=True)
xp.sum(x, axis=())
xp.sum(x, dtype=xp.float64) | xp.sum(z) | xp.sum(x[:0], axis=0) | xp.prod(x)
xp.prod(x, axis=1, keepdims=True)
xp.prod(x, axis=()) | xp.prod(x[:0]) | xp.prod(x, axis=(0, 1), dtype=t) | xp.max(x)
xp.max(x, axis=(0, 1), keepdims=True)
xp.max(x, axis=()) | xp.min(x, axis=1) | xp.min(x[:, :0], axis=0) | xp.argmax(x)
xp.argmax(x, axis=1, keepdims=True)
xp.argmin(x, axis=-2) | xp.argmin(x, keepdims=True) | xp.cumulative_sum(v) | xp.cumulative_sum(x, axis=1)
xp.cumulative_sum(x, axis=-2, include_initial=True) | xp.cumulative_sum(x, axis=0, dtype=xp.float64)
xp.cumulative_prod(v, include_initial=True) | xp.cumulative_prod(x, axis=1, dtype=t) | xp.diff(v)
xp.diff(x, n=2)
xp.diff(x, axis=0, prepend=x) | xp.diff(v, append=v[:1], n=2) | xp.diff(v, n=0) | xp.sort(x)
xp.sort(x, axis=0)
xp.argsort(x) | xp.argsort(v) | xp.argsort(x, axis=0, stable=False) | xp.searchsorted(xp.sort(v), x)
xp.searchsorted(v, x, side="right", sorter=xp.argsort(v)) | xp.searchsorted(xp.sort(v), z)
xp.matmul(x, s[0])
xp.matmul(s, y) | xp.matmul(x, s) | xp.matmul(y, y) | xp.vecdot(x, y) | xp.vecdot(x, x, axis=-2)
xp.tensordot(x, s[0], axes=1)
xp.tensordot(s, s, axes=([1, 2], [2, 1])) | xp.tensordot(y, y, axes=0)
xp.linalg.outer(y, y) | xp.linalg.trace(s) | xp.linalg.trace(s, offset=1, dtype=xp.float64)
xp.linalg.cross(s, y)
xp.linalg.tensordot(x, x) | xp.linalg.matmul(s, s) | xp.linalg.vecdot(x, y) | xp.linalg.cross(s, s, axis=-2)
xp.arange(4, dtype=t) | xp.arange(1, 8, 3, dtype=t) | xp.eye(3, dtype=t) | xp.eye(2, 4, k=1, dtype=t)
xp.eye(3, 2, k=-5, dtype=t)
""",
    ALL: """
xp.equal(x, y) | xp.not_equal(x, y) | xp.logical_and(x > 1, y > 1) | xp.logical_or(x > 1, y > 1)
xp.logical_xor(x > 1, y > 1) | xp.logical_not(x > 1) | xp.all(x) | xp.all(x, axis=1)
xp.all(x, axis=(), keepdims=True)
xp.all(x[:0]) | xp.any(x, axis=(0, 1), keepdims=True) | xp.any(x, axis=0) | xp.any(x[:0], axis=0) | xp.any(z)
xp.count_nonzero(x) | xp.count_nonzero(x, axis=1, keepdims=True) | xp.count_nonzero(x, axis=())
xp.nonzero(x)
xp.astype(x, xp.bool) | xp.astype(x, t) | xp.zeros((2, 0), dtype=t) | xp.ones(3, dtype=t)
xp.full((2,), 1, dtype=t)
xp.full(2, True, dtype=t) | xp.zeros_like(x) | xp.ones_like(x, dtype=xp.int16) | xp.full_like(x, 1)
xp.empty((2, 3), dtype=t).shape
xp.empty_like(x).shape | xp.asarray(x) | xp.asarray(x, copy=True) | xp.asarray(x, dtype=xp.float64)
xp.tril(s) | xp.triu(s, k=1)
xp.tril(x, k=-1) | xp.meshgrid(y, v) | xp.meshgrid(y, v, z, indexing="ij") | xp.meshgrid(y)
xp.broadcast_arrays(x, y, z)
xp.broadcast_to(y, (4, 2, 3)) | xp.broadcast_to(z, (0,)) | xp.concat([x, x], axis=1)
xp.concat((x, s[0]), axis=-2)
xp.concat([x, s], axis=None) | xp.expand_dims(x, 1) | xp.expand_dims(x, axis=-1) | xp.expand_dims(z, -1)
xp.flip(x)
xp.flip(x, axis=0) | xp.flip(x, axis=(-1, 0)) | xp.flip(z) | xp.moveaxis(s, 0, -1)
xp.moveaxis(s, (0, 1), (2, 0))
xp.permute_dims(s, (2, 0, 1)) | xp.permute_dims(x, axes=(1, 0)) | xp.permute_dims(z, ())
xp.repeat(x, 2) | xp.repeat(x, 2, axis=1)
xp.repeat(x, xp.asarray([2, 0]), axis=0) | xp.repeat(x, 0) | xp.reshape(x, (3, -1))
xp.reshape(x, shape=(6,), copy=True)
xp.reshape(x, (1, 6), copy=False) | xp.reshape(z, (1, 1)) | xp.roll(x, 1)
xp.roll(x, (1, -1), axis=(0, 1)) | xp.roll(x, 4, axis=1)
xp.roll(x, 1, axis=(0, 1)) | xp.squeeze(x[:1], 0) | xp.squeeze(x[:1, :1], axis=(0, -1))
xp.stack([x, x], axis=-1)
xp.stack((y, y)) | xp.tile(x, (2,)) | xp.tile(y, (2, 1, 2)) | xp.tile(x, ()) | xp.unstack(x)
xp.unstack(s, axis=-1)
xp.take(v, xp.asarray([0, -1, 0])) | xp.take(x, xp.asarray([1, 1], dtype=xp.int8), axis=0)
xp.take(x, xp.asarray([2, 0]), axis=-1)
xp.take_along_axis(x, xp.asarray([[0], [-1]])) | xp.take_along_axis(x, xp.asarray([[1, 0, -1]]), axis=0)
xp.where(x > 1, x, y) | xp.where(y > 1, x, z) | xp.unique_all(x) | xp.unique_inverse(v)
xp.unique_counts(v) | xp.sort(xp.unique_values(x))
xp.matrix_transpose(s) | xp.linalg.matrix_transpose(x) | xp.linalg.diagonal(s)
xp.linalg.diagonal(x, offset=-1) | x.mT | x.T
x[x > 1] | x[..., xp.newaxis, 0] | x[xp.asarray([1, 0]), 0] | x.ndim | x.shape | xp.from_dlpack(x)
xp.from_dlpack(x, copy=True)
""",
}  # fmt: skip
TABLE = [
    (line, dtype)
    for dtypes, cases in CASES.items()
    for line in cases.strip().split("\n")
    for dtype in dtypes.split()
]


def arrays(of: Any, dtype: str) -> dict[str, Any]:
    """The arrays that expressions speak of, with equal elements and, if the dtype has them, negative ones."""
    signed = 1 if dtype in ("uint8", "bool") else -1
    data = {
        "x": np.array([[3, 0, 2], [2 * signed, 5, 3]]),
        "y": np.array([1, 3, 2]),
        "v": np.array([2, 1 * signed, 2, 0, 3]),
        "z": np.array(2),
        "s": np.array([[[4, 1, 0], [1, 3, 2], [0, 1, 5]], [[2, 1, 1], [0, 3, 1], [1, 1, 4]]]),
        "special": np.array([np.nan, -0.0, 0.0, 1.5, -2.5, np.inf] if "float" in dtype else [1]),
    }
    made = {name: of.asarray(a.astype(dtype)) for name, a in data.items()}
    return {**made, "xp": of, "t": getattr(of, dtype)}


def same(actual: Any, expected: Any, case: str) -> None:
    """Arrays of one shape, dtype and value, numbers, or sequences of such under the same names."""
    if isinstance(expected, (tuple, list)):
        assert isinstance(actual, (tuple, list)), case
        assert getattr(actual, "_fields", ()) == getattr(expected, "_fields", ()), case
        assert len(actual) == len(expected), case
        for a, b in zip(actual, expected):
            same(a, b, case)
        return
    if not isinstance(actual, kiln.Tensor):
        assert actual == expected, case
        return
    expected = np.asarray(expected)
    wanted = "int64" if expected.dtype == np.uint64 else str(expected.dtype)
    assert (actual.dtype.name, tuple(actual.shape)) == (wanted, expected.shape), case
    tolerance = 3e-6 if wanted == "float32" else 1e-13
    np.testing.assert_allclose(np.asarray(actual), expected, tolerance, tolerance, err_msg=case)


def result(case: str, of: Any, dtype: str) -> Any:
    """What an expression gives, or the type of its exception."""
    try:
        return eval(case, arrays(of, dtype))
    except (ValueError, ZeroDivisionError, RuntimeError) as error:
        return type(error)


@pytest.mark.parametrize(("line", "dtype"), TABLE)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_values(line: str, dtype: str) -> None:
    """Every function on every kind of dtype gives NumPy's values, shapes and dtypes."""
    for case in line.split(" | "):
        same(result(case, xp, dtype), result(case, np, dtype), case)


def test_promotion() -> None:
    """0-d arrays count as any other, Python numbers give way; float16 and bfloat16 are floats too."""
    wide, narrow = kiln.tensor(2, dtype=kiln.int64), kiln.ones(3, dtype=kiln.int8)
    for name in ("add", "maximum", "bitwise_or", "pow", "floor_divide"):
        assert getattr(xp, name)(narrow, wide).dtype == kiln.int64
        assert getattr(xp, name)(narrow, 2).dtype == getattr(xp, name)(2, narrow).dtype == kiln.int8
    assert xp.where(narrow > 0, narrow, wide).dtype == xp.concat([narrow, narrow.long()]).dtype == kiln.int64
    assert xp.result_type(xp.uint8, narrow) == kiln.int16 and xp.result_type(narrow, 1.5) == kiln.float32
    assert (
        xp.result_type(xp.bool, True) == kiln.bool
        and xp.result_type(xp.float32, kiln.tensor(1.0).double(), 1) == kiln.float64
    )
    table = {"bool": "bool", "int8": "int8 int16 int32 int64", "uint8": "uint8 int16 int32 int64",
             "int64": "int64", "float32": "float32 float64",
             "float16": "float16 float32 float64"}  # fmt: skip
    for name, wider in table.items():
        dtypes = {**xp.__array_namespace_info__().dtypes(), "float16": kiln.float16}
        assert {n for n, t in dtypes.items() if xp.can_cast(dtypes[name], t)} == set(wider.split())
        assert xp.can_cast(kiln.ones(1, dtype=dtypes[name]), dtypes[name])
    assert xp.isdtype(kiln.bfloat16, "real floating") and not xp.isdtype(kiln.bool, "numeric")
    assert xp.isdtype(kiln.int8, ("bool", kiln.int8)) and xp.isdtype(kiln.uint8, kind="integral")
    assert xp.finfo(kiln.ones(1)).dtype is kiln.float32 and xp.iinfo(narrow).dtype is kiln.int8


def test_memory_is_shared_as_asked() -> None:
    x = kiln.arange(6.0)
    assert xp.asarray(x) is x and xp.astype(x, kiln.float32, copy=False) is x
    for made in (
        xp.asarray(x, copy=True),
        xp.astype(x, kiln.float32),
        xp.reshape(x, (2, 3), copy=True),
        xp.clip(x),
    ):
        assert made.data_ptr() != x.data_ptr() and made.numel() == 6
    assert xp.reshape(x, (2, 3), copy=False).data_ptr() == x.data_ptr()
    array = np.arange(3.0)
    assert xp.asarray(array, copy=False).data_ptr() == array.ctypes.data == xp.from_dlpack(array).data_ptr()
    leaf = kiln.ones(3, requires_grad=True)
    xp.sum(xp.take(xp.multiply(leaf, 3), xp.asarray([0, 0]))).backward()
    assert leaf.grad.tolist() == [6.0, 0.0, 0.0]


X = "kiln.ones(2, 3)"
WRONG = f"""
ValueError: reshape({X}.T, (6,), copy=False) | asarray([1], copy=False)
ValueError: asarray({X}, dtype=xp.int8, copy=False)
ValueError: squeeze({X}, 0) | cumulative_sum({X}) | take({X}, xp.asarray([0])) | nonzero(xp.asarray(1))
ValueError: result_type(1, 2)
ValueError: isdtype(xp.int8, "float") | max(xp.zeros((0,))) | min({X}[:0], axis=0)
ValueError: argmax(xp.zeros((2, 0)), axis=1)
ValueError: searchsorted({X}, {X}) | searchsorted({X}[0], {X}, side="up") | sum({X}, axis=(0, -2))
ValueError: vecdot({X}, {X}, axis=0)
ValueError: concat([{X}, {X}[0]]) | linalg.cross({X}, {X}[:, :1]) | linalg.qr({X}, mode="r")
ValueError: linalg.matrix_rank({X}[0])
ValueError: meshgrid({X}) | meshgrid({X}[0], indexing="yx") | take_along_axis({X}, xp.asarray([0]))
ValueError: cumulative_prod(xp.asarray(1))
IndexError: expand_dims({X}, 3) | expand_dims({X}, -4) | sum({X}, axis=2) | sort({X}, axis=-3)
IndexError: take({X}, xp.asarray([3]), axis=1)
IndexError: flip({X}, axis=2) | unstack({X}, axis=2) | all(xp.asarray(1), axis=0) | stack([{X}], axis=-4)
IndexError: roll({X}, 1, axis=2)
TypeError: add(1, 2) | sin([1.0]) | sum([1, 2]) | take({X}, {X}[0], axis=1) | isdtype("int8", "bool")
TypeError: can_cast(1, xp.int8)
TypeError: clip(xp.asarray([1]), 0.5) | result_type("int8") | sum({X}, axis=0.5) | sin(x={X})
TypeError: sum({X}, 0) | finfo(xp.int8)
RuntimeError: add({X}, xp.ones((2, 2))) | broadcast_to({X}, (2, 2)) | matmul({X}, {X})
RuntimeError: zeros(2, device="cuda")
RuntimeError: linalg.inv({X}) | linalg.solve(xp.zeros((2, 2)), xp.ones((2,)))
"""
MISTAKES = [
    (call, error)
    for error, calls in (line.split(": ", 1) for line in WRONG.strip().split("\n"))
    for call in calls.split(" | ")
]


@pytest.mark.parametrize(("call", "error"), MISTAKES)
def test_mistakes(call: str, error: str) -> None:
    """What the standard does not allow is an exception with a message."""
    with pytest.raises(getattr(builtins, error), match=r"\w"):
        eval(f"xp.{call}", {"xp": xp, "kiln": kiln})
