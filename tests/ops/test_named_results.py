"""Results of several tensors: named tuples whose classes `kiln.return_types` has."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from backend import needs_kiln, needs_torch, torch

import kiln

pytestmark = needs_kiln


@needs_torch
def test_they_have_pytorchs_names_and_fields() -> None:
    theirs: dict[str, Any] = vars(torch.return_types)
    for name in kiln.return_types.__all__:
        assert getattr(kiln.return_types, name)._fields == theirs[name].__match_args__
    missing = {name for name in torch.return_types.__all__ if not hasattr(kiln.return_types, name)}
    functions = {name for name in missing if not name.endswith("_out")}
    assert functions == {"pytree_register_structseq", "all_return_types", "linalg_eig"}


def test_they_are_told_copied_and_pickled() -> None:
    x = kiln.arange(6.0).view(2, 3)
    found = x.max(1)
    assert isinstance(found, kiln.return_types.max) and not isinstance(x.min(1), kiln.return_types.max)
    for again in (copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert type(again) is type(found) and all(map(kiln.equal, again, found))


def test_they_are_made_of_a_sequence_as_pytorchs_are() -> None:
    kind = kiln.return_types.max
    assert kind((1, 2)) == kind([1, 2], {}) == kind(1, 2) == (1, 2)
    assert kind((1, 2), (3, 4)) == ((1, 2), (3, 4))
    with pytest.raises(TypeError, match=r"max\(\) takes a 2-sequence \(3-sequence given\)"):
        kind((1, 2, 3))
