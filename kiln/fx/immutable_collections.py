"""Lists and dicts that do not change: what the arguments of a node are kept in, so that users stay known."""

from __future__ import annotations

from typing import Any, NoReturn

from kiln.absent import hint_missing as _hint_missing

__all__ = ["immutable_dict", "immutable_list"]


def _fixed(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise TypeError(
        f"'{type(self).__name__}' object does not support mutation. A node's arguments are changed by "
        "assigning new ones:\n\n    node.args = (...)"
    )


class immutable_list(list[Any]):
    """A list that refuses changes; equal to a list of the same items.

    >>> from kiln.fx.immutable_collections import immutable_list
    >>> immutable_list([1, 2]) == [1, 2]
    True
    """

    append = clear = extend = insert = pop = remove = reverse = sort = _fixed
    __delitem__ = __setitem__ = __iadd__ = __imul__ = _fixed

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    def __reduce__(self) -> Any:
        return type(self), (tuple(self),)


class immutable_dict(dict[Any, Any]):
    """A dict that refuses changes; equal to a dict of the same items."""

    clear = pop = popitem = setdefault = update = _fixed
    __delitem__ = __setitem__ = __ior__ = _fixed

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> Any:
        return type(self), (tuple(self.items()),)


_hint_missing(__name__)
