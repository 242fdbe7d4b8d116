"""assert_close: whether tensors, numbers and containers of them agree, and where they do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kiln import _core, ops
from kiln.errors import warn
from kiln.table.callables import hide_frames as _hide_frames
from kiln.table.callables import name_helpers as _name_helpers

# dtype -> (relative, absolute); other dtypes have to be equal
TOLERANCES = {
    _core.float16: (1e-3, 1e-5),
    _core.bfloat16: (1.6e-2, 1e-5),
    _core.float32: (1.3e-6, 1e-5),
    _core.float64: (1e-7, 1e-7),
}


_OLD_TOLERANCES = {
    _core.float16: (1e-3, 1e-3),
    _core.float32: (1e-4, 1e-5),
    _core.float64: (1e-5, 1e-8),
}


class _Settings(NamedTuple):
    allow_subclasses: bool
    rtol: float | None
    atol: float | None
    equal_nan: bool
    check_dtype: bool
    check_stride: bool

    def tolerances(self, *dtypes: Any) -> tuple[float, float]:
        """The relative and the absolute tolerance for values of some dtypes."""
        if self.rtol is not None and self.atol is not None:
            return self.rtol, self.atol
        known = [TOLERANCES.get(dtype, (0.0, 0.0)) for dtype in dtypes]
        return max(r for r, _ in known), max(a for _, a in known)


def assert_close(
    actual: Any,
    expected: Any,
    *,
    allow_subclasses: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_device: bool = True,
    check_dtype: bool = True,
    check_layout: bool = True,
    check_stride: bool = False,
    msg: str | Callable[[str], str] | None = None,
) -> None:
    """Raises AssertionError unless `|actual - expected| <= atol + rtol * |expected|` everywhere.

    For tensors of one shape and dtype, arrays, numbers, None, and sequences and mappings of these. Without
    tolerances those of the dtype: 1.3e-6 and 1e-5 for float32, 1e-7 twice for float64 and Python's floats,
    1e-3 and 1e-5 for float16, 1.6e-2 and 1e-5 for bfloat16, none for integers. The message says how many
    elements differ and where most; `msg` replaces it, or makes another of it. TypeError for other things,
    ValueError for one tolerance without the other.

    >>> kiln.testing.assert_close(kiln.tensor([1.0, 2.0]), kiln.tensor([1.0, 2.0 + 1e-6]))
    """
    if (rtol is None) != (atol is None):
        missing = "rtol" if rtol is None else "atol"
        raise ValueError(f"Both 'rtol' and 'atol' must be either specified or omitted, but got no {missing}.")
    settings = _Settings(allow_subclasses, rtol, atol, equal_nan, check_dtype, check_stride)
    found = _compare(actual, expected, settings, "")
    if found is not None:
        raise AssertionError(found if msg is None else msg if isinstance(msg, str) else msg(found))


def assert_allclose(
    actual: Any,
    expected: Any,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = True,
    msg: str = "",
) -> None:
    """`assert_close` as tests of before PyTorch 1.12 call it, with a FutureWarning.

    Numbers and lists are made tensors, dtypes may differ, tolerances are wider, and NaNs are equal.

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     kiln.testing.assert_allclose(kiln.ones(2), [1, 1 + 1e-4])
    """
    warn(
        "`torch.testing.assert_allclose()` is deprecated since 1.12: use kiln.testing.assert_close()",
        FutureWarning,
    )
    actual, expected = (x if isinstance(x, _core.Tensor) else ops.tensor(x) for x in (actual, expected))
    if rtol is None and atol is None:
        known = [_OLD_TOLERANCES.get(x.dtype, (0.0, 0.0)) for x in (actual, expected)]
        rtol, atol = max(r for r, _ in known), max(a for _, a in known)
    assert_close(
        actual, expected, rtol=rtol, atol=atol, equal_nan=equal_nan, check_dtype=False, msg=msg or None
    )


def _compare(actual: Any, expected: Any, settings: _Settings, where: str) -> str | None:
    """What two things differ in, or None; `where` they are in what was given."""
    for kind, compare in _BY_KIND:
        if kind(actual, expected, settings):
            found: str | None = compare(actual, expected, settings, where)
            own = compare in (_sequences, _mappings) and found is not None and "occurred for item" in found
            return (
                found
                if found is None or own or not where
                else f"{found}\n\nThe failure occurred for item {where}"
            )
    raise TypeError(
        f"No comparison pair was able to handle inputs of type {type(actual)} and {type(expected)}."
    )


# ---- containers ----


def _is_sequence(actual: Any, expected: Any, _: _Settings) -> bool:
    return all(isinstance(x, Sequence) and not isinstance(x, (str, bytes)) for x in (actual, expected))


def _sequences(actual: Any, expected: Any, settings: _Settings, where: str) -> str | None:
    if len(actual) != len(expected):
        return f"The length of the sequences mismatch: {len(actual)} != {len(expected)}"
    pairs = enumerate(zip(actual, expected))
    return next((f for k, (a, e) in pairs if (f := _compare(a, e, settings, f"{where}[{k}]"))), None)


def _is_mapping(actual: Any, expected: Any, _: _Settings) -> bool:
    return isinstance(actual, Mapping) and isinstance(expected, Mapping)


def _mappings(actual: Any, expected: Any, settings: _Settings, where: str) -> str | None:
    if actual.keys() != expected.keys():
        missing = sorted(expected.keys() - actual.keys(), key=str)
        more = sorted(actual.keys() - expected.keys(), key=str)
        return (
            "The keys of the mappings do not match:\n"
            f"Missing keys in the actual mapping: {missing}\nAdditional keys in the actual mapping: {more}"
        )
    found = (_compare(actual[k], expected[k], settings, f"{where}[{k!r}]") for k in expected)
    return next((f for f in found if f), None)


# ---- None, bools, numbers ----


def _any_none(actual: Any, expected: Any, _: _Settings) -> bool:
    return actual is None or expected is None


def _nones(actual: Any, expected: Any, settings: _Settings, where: str) -> str | None:
    return None if actual is expected else f"None mismatch: {actual} is not {expected}"


def _are_bools(actual: Any, expected: Any, _: _Settings) -> bool:
    return isinstance(actual, bool) and isinstance(expected, bool)


def _bools(actual: Any, expected: Any, settings: _Settings, where: str) -> str | None:
    return None if actual is expected else f"Booleans mismatch: {actual} is not {expected}"


def _are_numbers(actual: Any, expected: Any, _: _Settings) -> bool:
    return all(isinstance(x, (int, float)) for x in (actual, expected))


def _numbers(actual: Any, expected: Any, settings: _Settings, where: str) -> str | None:
    if settings.check_dtype and type(actual) is not type(expected):
        return f"The (d)types do not match: {type(actual)} != {type(expected)}."
    is_float = isinstance(actual, float) or isinstance(expected, float)
    rtol, atol = settings.tolerances(_core.float64 if is_float else _core.int64)
    return _scalars(actual, expected, rtol, atol, settings.equal_nan)


def _scalars(actual: Any, expected: Any, rtol: float, atol: float, equal_nan: bool) -> str | None:
    """What two numbers differ in."""
    off = abs(actual - expected)
    close = off < float("inf") and off <= atol + rtol * abs(expected)
    if close or actual == expected or (equal_nan and actual != actual and expected != expected):
        return None
    relative = off / abs(expected) if expected else float("inf")
    how, absolutely, relatively = _allowed(rtol, atol)
    return (
        f"Scalars are not {how}!\n\nExpected {expected} but got {actual}.\n"
        f"Absolute difference: {off}{absolutely}\nRelative difference: {relative}{relatively}"
    )


def _allowed(rtol: float, atol: float) -> tuple[str, str, str]:
    """What a comparison asked for, and what its message says of the tolerances."""
    if not rtol and not atol:
        return "equal", "", ""
    return "close", f" (up to {atol} allowed)", f" (up to {rtol} allowed)"


# ---- tensors ----


def _are_arrays(actual: Any, expected: Any, _: _Settings) -> bool:
    return all(
        hasattr(x, "__array_interface__") and not isinstance(x, _core.Tensor) for x in (actual, expected)
    )


def _arrays(actual: Any, expected: Any, settings: _Settings, where: str) -> str | None:
    return _tensors(ops.tensor(actual), ops.tensor(expected), settings, where)


def _are_tensors(actual: Any, expected: Any, settings: _Settings) -> bool:
    both = isinstance(actual, _core.Tensor) and isinstance(expected, _core.Tensor)
    related = isinstance(actual, type(expected)) or isinstance(expected, type(actual))
    return both and (related if settings.allow_subclasses else type(actual) is type(expected))


def _tensors(actual: Any, expected: Any, settings: _Settings, where: str) -> str | None:
    for name, checked in (("shape", True), ("dtype", settings.check_dtype)):
        ours, theirs = getattr(actual, name), getattr(expected, name)
        if checked and ours != theirs:
            return f"The values for attribute '{name}' do not match: {ours} != {theirs}."
    if settings.check_stride and actual.stride() != expected.stride():
        return f"The values for attribute 'stride()' do not match: {actual.stride()} != {expected.stride()}."
    rtol, atol = settings.tolerances(actual.dtype, expected.dtype)
    return _elements(*_of_one_dtype(actual.detach(), expected.detach()), rtol, atol, settings.equal_nan)


def _of_one_dtype(actual: Any, expected: Any) -> tuple[Any, Any]:
    """Both as the dtype they are subtracted in."""
    dtype = _core.promote_types(actual.dtype, expected.dtype)
    dtype = dtype if dtype.is_floating_point else _core.int64
    return actual.to(dtype), expected.to(dtype)


def _elements(actual: Any, expected: Any, rtol: float, atol: float, equal_nan: bool) -> str | None:
    """What the elements of two tensors of one shape and dtype differ in."""
    matches = ops.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=equal_nan)
    if bool(matches.all()):
        return None
    if not actual.ndim:
        return _scalars(actual.item(), expected.item(), rtol, atol, equal_nan)
    off = ops.where(matches, 0, (actual - expected).abs())
    relative = ops.where(matches, 0, off / expected.abs())
    count, total = int((~matches).sum()), matches.numel()
    how, *tolerances = _allowed(rtol, atol)
    lines = [
        f"Greatest {name} difference: {_greatest(values)}{allowed}"
        for name, values, allowed in zip(("absolute", "relative"), (off, relative), tolerances)
    ]
    mismatched = f"Mismatched elements: {count} / {total} ({count / total:.1%})"
    return "\n".join([f"Tensor-likes are not {how}!\n", mismatched, *lines])


def _greatest(values: Any) -> str:
    """The greatest element and where it is."""
    flat = values.reshape(-1)
    place = int(flat.argmax())
    index = []
    for size in reversed(values.shape):
        index.append(place % size)
        place //= size
    return f"{flat.max().item()} at index {tuple(reversed(index))}"


_BY_KIND: tuple[tuple[Any, Any], ...] = (
    (_any_none, _nones),
    (_are_bools, _bools),
    (_are_numbers, _numbers),
    (_are_tensors, _tensors),
    (_are_arrays, _arrays),
    (_is_sequence, _sequences),
    (_is_mapping, _mappings),
)


_hide_frames(globals(), ("assert_allclose", "assert_close"))
_name_helpers(globals(), __name__)
