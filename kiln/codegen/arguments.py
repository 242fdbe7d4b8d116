"""What a kernel is called with, by name: the pass that launches it and the generator that reads it ask here.

    void kernel(void *const *ptr, const int64_t *arg, int64_t begin, int64_t end)

`ptr` holds pointers and `arg` words of 64 bits: sizes, strides in elements, numbers. A pattern names both
once, in the order they come in: that of the names, and of the keywords. Words are in groups, and a group may
consist of groups, as one for each operand:

    arguments = Arguments(
        ("source", "to"), ("scratch",), size=("rows", "columns"), stride={"source": range(2), "to": range(2)}
    )

The pass states what has these names; a missing or an unknown one is an error:

    arguments.pointers({"source": x, "to": y})
    arguments.words(size=(rows, columns), stride={"source": (s, 1), "to": (columns, 1)})

The generator asks for places: `code.argument(arguments.word("stride", "source", 0))`,
`code.operand(arguments.pointer("scratch"))`. Pointers that are `added` are not the pass's to state: the core
puts them after those of the launch (memory of the thread's own, if the launch says how much it needs).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

Name: TypeAlias = str | int
Group: TypeAlias = Iterable[Name] | Mapping[Any, Iterable[Name]]
T = TypeVar("T")


class Arguments:
    """The names of a kernel's arguments, each with its place."""

    def __init__(self, pointers: Iterable[Name], added: Iterable[Name] = (), **words: Group) -> None:
        self._given = tuple(pointers)
        self._pointer = {name: place for place, name in enumerate((*self._given, *added))}
        self._groups = words
        self._word = {path: place for place, path in enumerate(_paths(words))}
        self.count = len(self._word)  # of words

    def pointer(self, name: Name) -> int:
        """The place of a pointer in `ptr`."""
        return self._pointer[name]

    def word(self, *path: Name) -> int:
        """The place of a word in `arg`: the name of its group, its name in there."""
        return self._word[path]

    def pointers(self, given: Mapping[Any, T]) -> tuple[T, ...]:
        """The pointers of a launch, from those by name."""
        return tuple(_in_order(self._given, given))

    def words(self, **given: Any) -> tuple[Any, ...]:
        """The words of a launch. Of each group: values in order, or by their names."""
        return tuple(_flat(self._groups, given))


def _paths(group: Any) -> Iterator[tuple[Name, ...]]:
    """The full names of a group's words, in order."""
    for name in group:
        inner = _paths(group[name]) if isinstance(group, Mapping) else [()]
        yield from ((name, *path) for path in inner)


def _flat(group: Any, given: Mapping[Any, Any] | Sequence[Any]) -> list[Any]:
    """The words of a group in its order."""
    values = _in_order(list(group), given)
    if not isinstance(group, Mapping):
        return values
    return [word for name, value in zip(group, values) for word in _flat(group[name], value)]


def _in_order(names: Sequence[Name], given: Mapping[Any, T] | Sequence[T]) -> list[T]:
    """What is given for names, in their order."""
    if isinstance(given, Mapping):
        assert given.keys() == set(names), f"{list(given)} for the arguments {names}"
        return [given[name] for name in names]
    assert len(given) == len(names), f"{len(given)} values for the arguments {names}"
    return list(given)
