"""`sym_max` and its kin, of numbers and of sizes that vary; the byte order of files that do not say it."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kiln

CASES: list[tuple[Callable[[], Any], Any]] = [
    (lambda: kiln.sym_max(1, 2.0), 2.0),
    (lambda: kiln.sym_max(3, 2.5), 3.0),
    (lambda: kiln.sym_min(True, 2), True),
    (lambda: kiln.sym_int(2.7), 2),
    (lambda: kiln.sym_int(-2.7), -2),
    (lambda: kiln.sym_float(3), 3.0),
    (lambda: kiln.sym_not(3), False),
    (lambda: kiln.sym_ite(True, 1, 2), 1),
    (lambda: kiln.sym_sum([1, 2, 3]), 6),
    (lambda: kiln.sym_sum(1, 2.5), 3.5),
    (lambda: kiln.sym_sqrt(4), 2.0),
]


@pytest.mark.parametrize(("make", "expected"), CASES)
def test_numbers(make: Callable[[], Any], expected: Any) -> None:
    came = make()
    assert came == expected and type(came) is type(expected)


def test_what_is_no_number() -> None:
    with pytest.raises(TypeError, match="sym_max: expected a number"):
        kiln.sym_max("a", 1)
    for make in (
        lambda: kiln.sym_ite(1, 1, 2),
        lambda: kiln.sym_ite(True, 1, 2.0),
    ):
        with pytest.raises(AssertionError, match="expected|type mismatch"):
            make()
    with pytest.raises(ValueError, match="math domain|nonnegative"):
        kiln.sym_sqrt(-1)


def test_sizes_that_vary() -> None:
    """In a program they are numbers that follow the sizes."""

    def f(x: Any) -> Any:
        n = kiln.sym_int(x.shape[0])
        return x.new_ones(kiln.sym_sum(n, 1)) * kiln.sym_max(n, 2)

    traced = kiln.jit.trace(f, kiln.ones(4), dynamic_shapes={"x": {0: kiln.export.Dim("n", min=2)}})
    assert traced(kiln.ones(3)).tolist() == [3.0] * 4


def test_files_that_do_not_say_their_order_of_bytes() -> None:
    """They are read in the order that was set, little-endian if none was."""
    serialization = kiln.serialization
    file = io.BytesIO()
    kiln.save(kiln.tensor([1, 256], dtype=kiln.int32), file, _disable_byteorder_record=True)
    orders = serialization.LoadEndianness
    assert serialization.get_default_load_endianness() is None
    for order, expected in ((None, [1, 256]), (orders.LITTLE, [1, 256]), (orders.BIG, [1 << 24, 1 << 16])):
        serialization.set_default_load_endianness(order)
        try:
            file.seek(0)
            assert kiln.load(file).tolist() == expected
        finally:
            serialization.set_default_load_endianness(None)
    with pytest.raises(TypeError, match="Invalid argument type in function set_default_load_endianness"):
        serialization.set_default_load_endianness("big")  # type: ignore[arg-type]


def test_native_channel_shuffle() -> None:
    x = kiln.arange(12).reshape(1, 6, 2)
    assert np.array_equal(kiln.native_channel_shuffle(x, 3)[0, :, 0], [0, 4, 8, 2, 6, 10])
