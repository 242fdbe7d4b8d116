"""Scripts give the bits of the functions they are made of, on every path, with their gradients."""

from __future__ import annotations

import pytest
from script_calls import arguments, assert_same, gradients
from scripted_programs import CASES

import kiln


@pytest.mark.parametrize("name", CASES)
def test_bits_on_every_path(name: str) -> None:
    function, calls = CASES[name]
    script = kiln.jit.script(function)
    for call in calls:
        eager_args, args = arguments(kiln, call), arguments(kiln, call)
        expected, came = function(*eager_args), script(*args)
        assert_same(came, expected, f"{name}{call}")
        before, after = gradients(kiln, expected, eager_args), gradients(kiln, came, args)
        for g, h in zip(before, after):
            near = 1e-2 if name == "half_precision" else 1e-6
            assert kiln.allclose(g, h, rtol=near, atol=near / 10), f"{name}{call}: {g} {h}"
        assert len(before) == len(after) or not any(g.any() for g in [*before, *after])
        with kiln.no_grad():
            assert_same(script(*arguments(kiln, call)), expected, f"{name}{call} without gradients")
    looks = {repr([getattr(x, "shape", x) for x in arguments(kiln, c)]) for c in calls}
    assert sum(map(len, script._calls.variants.values())) <= 2 * len(looks)
