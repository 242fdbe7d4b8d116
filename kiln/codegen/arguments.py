"""What a kernel is called with, by name: the pass that launches it and the generator that reads it ask here.

    void kernel(void *const *ptr, const int64_t *arg, int64_t begin, int64_t end)

`ptr` holds pointers and `arg` words of 64 bits: sizes, strides in elements, numbers. A pattern names both
once, in order; names that belong together are a group:

    arguments = Arguments(
        pointers=("source", "to"),
        words={"size": ("rows", "columns"), "stride": {"source": range(2), "to": range(2)}},
        added=("scratch",),
    )

The pass states values under these names; a missing or an unknown one is an error:

    arguments.arrange(size=(rows, columns), stride={"source": (s, 1), "to": (columns, 1)})

The generator asks for places: `code.argument(arguments.word("stride", "source", 0))`,
`code.operand(arguments.pointer("scratch"))`. Pointers that are `added` are not the pass's to state: the core
puts them after those of the launch (memory of the thread's own, if the launch says how much it needs).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, Union

Name: TypeAlias = str | int
Group: TypeAlias = Union[Iterable[Name], Mapping[Name, "Group"]]


class Arguments:
    """The names of a kernel's arguments, each with its place."""

    def __init__(
        self, pointers: Iterable[Name], words: Mapping[Name, Group], added: Iterable[Name] = ()
    ) -> None:
        self.pointers = tuple(pointers)
        self._pointer = {name: place for place, name in enumerate((*self.pointers, *added))}
        self._words = words
        self._word = {path: place for place, path in enumerate(_paths(words))}

    def pointer(self, name: Name) -> int:
        """The place of a pointer in `ptr`."""
        return self._pointer[name]

    def word(self, *path: Name) -> int:
        """The place of a word in `arg`: the name of its group, its name in there."""
        return self._word[path]

    def arrange(self, **given: Any) -> tuple[Any, ...]:
        """The words of a launch. Of each group: values in order, or by their names."""
        return tuple(_arranged(self._words, given))


def _paths(group: Group) -> Iterator[tuple[Name, ...]]:
    """The full names of a group's words, in order."""
    for name in group:
        inner = _paths(group[name]) if isinstance(group, Mapping) else [()]
        yield from ((name, *path) for path in inner)


def _arranged(group: Group, given: Mapping[Any, Any] | Sequence[Any]) -> list[Any]:
    """The words of a group in its order."""
    names = list(group)
    if isinstance(given, Mapping):
        assert given.keys() == set(names), f"{list(given)} for the arguments {names}"
        given = [given[name] for name in names]
    assert len(given) == len(names), f"{len(given)} values for the arguments {names}"
    if not isinstance(group, Mapping):
        return list(given)
    return [word for name, part in zip(names, given) for word in _arranged(group[name], part)]
