"""A kernel's arguments have their places by name, and a launch states each of them once."""

from __future__ import annotations

import pytest

from kiln.codegen.arguments import Arguments


def arguments() -> Arguments:
    strides = {"source": range(2), "to": range(2)}
    return Arguments(("source", "to"), ("scratch",), size=("rows", "columns"), stride=strides, number=())


def test_names_have_places_in_the_order_they_are_stated() -> None:
    found = arguments()
    assert [found.pointer(name) for name in ("source", "to", "scratch")] == [0, 1, 2]
    assert [found.word("size", name) for name in ("rows", "columns")] == [0, 1]
    assert [found.word("stride", name, d) for name in ("source", "to") for d in (0, 1)] == [2, 3, 4, 5]


def test_values_are_given_by_name_or_in_order() -> None:
    assert arguments().pointers({"to": 7, "source": 5}) == (5, 7)
    words = arguments().words(
        stride={"to": (7, 1), "source": (9, 2)}, size={"columns": 7, "rows": 5}, number=()
    )
    assert words == (5, 7, 9, 2, 7, 1)
    assert words == arguments().words(size=(5, 7), stride=((9, 2), (7, 1)), number=[])


@pytest.mark.parametrize(
    "given",
    [
        {"size": (5, 7), "stride": ((9, 2), (7, 1))},  # a group is missing
        {"size": (5,), "stride": ((9, 2), (7, 1)), "number": ()},  # a word is
        {"size": (5, 7), "stride": {"source": (9, 2)}, "number": ()},
        {"size": (5, 7), "stride": ((9, 2), (7, 1)), "number": (3,)},  # one too many
    ],
)
def test_what_is_not_stated_or_not_named_is_an_error(given: dict[str, object]) -> None:
    with pytest.raises(AssertionError):
        arguments().pointers({"source": 5})
    with pytest.raises(AssertionError):
        arguments().words(**given)
