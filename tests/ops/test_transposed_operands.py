"""Operands whose neighbours lie along the last dim but one, large enough to be read by squares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from backend import kiln

SHAPES = ((16, 256), (255, 17), (70, 65), (2, 33, 130), (64, 15), (300, 300))
OPS: dict[str, Any] = {
    "copy": lambda x, y: x.contiguous(),
    "exp": lambda x, y: x.exp(),
    "beside one in order": lambda x, y: x * 2 + y,
    "beside one column": lambda x, y: x - y[..., :1],
    "with itself in order": lambda x, y: kiln.where(x > 0, x, y),
    "into a result in turn": lambda x, y: kiln.add(x, y, out=kiln.empty_like(x).mT.contiguous().mT),
}


@pytest.mark.parametrize("name", OPS)
def test_same_bits_as_in_order(name: str) -> None:
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        for dtype in ("float32", "float64", "bfloat16", "int8"):
            transposed = kiln.from_numpy(rng.integers(-90, 90, shape) / 8).to(getattr(kiln, dtype)).mT
            y = kiln.from_numpy(rng.integers(-90, 90, transposed.shape) / 8).to(getattr(kiln, dtype))
            straight = kiln.from_numpy(transposed.double().numpy().copy()).to(getattr(kiln, dtype))
            assert straight.is_contiguous() and not transposed.is_contiguous()
            for x in (transposed, transposed[..., 1:], transposed[..., ::2]):
                same = straight[..., 1:] if x.shape[-1] == shape[-2] - 1 else straight
                same = straight[..., ::2] if x.stride(-1) == 2 * transposed.stride(-1) else same
                other = y[..., : x.shape[-1]]
                got, want = OPS[name](x, other), OPS[name](same.contiguous(), other)
                assert got.dtype == want.dtype and got.tolist() == want.tolist(), (shape, dtype)
