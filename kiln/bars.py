"""Progress bars: tqdm's where it is installed and somebody watches, else nothing is shown.

for batch in kiln.progress(loader, "epoch 1"):
    ...
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


class Quiet(Generic[Item]):
    """What stands for a bar of tqdm's where it is missing: goes through the items, and shows nothing."""

    def __init__(
        self, iterable: Iterable[Item] | None = None, desc: str | None = None, total: Any = None
    ) -> None:
        self.iterable, self.desc = iterable, desc
        self.total = total if total is not None else _length(iterable)
        self.n: float = 0
        self.disable = True

    def __iter__(self) -> Iterator[Item]:
        for item in () if self.iterable is None else self.iterable:
            yield item
            self.n += 1

    def __len__(self) -> int:
        if self.total is None:
            raise TypeError("progress: the number of steps is not known; give total=")
        return int(self.total)

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Quiet[Item]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def update(self, n: float = 1) -> None:
        """Counts steps that were done."""
        self.n += n

    def set_description(self, desc: str | None = None, refresh: bool = True) -> None:
        """What stands before the bar."""
        self.desc = desc

    set_description_str = set_description

    def set_postfix(self, ordered_dict: Any = None, refresh: bool = True, **kwargs: Any) -> None:
        """What stands behind the bar: nothing is shown."""

    def set_postfix_str(self, s: str = "", refresh: bool = True) -> None:
        """What stands behind the bar: nothing is shown."""

    def reset(self, total: Any = None) -> None:
        """Begins anew."""
        self.n, self.total = 0, self.total if total is None else total

    def refresh(self, *args: Any, **kwargs: Any) -> None:
        """Shows the bar as it is now: nothing is shown."""

    clear = display = refresh

    @staticmethod
    def write(s: str, file: Any = None, end: str = "\n", nolock: bool = False) -> None:
        """Prints a text, where a bar would be in its way."""
        print(s, file=file, end=end)

    def close(self) -> None:
        """Ends the bar."""


def progress(
    iterable: Iterable[Item] | None = None, desc: str | None = None, total: Any = None, **options: Any
) -> Any:
    """The same items with a bar that says how far they are: of a loader, a range, anything that is gone
    through.

    Where the package tqdm is installed it is a tqdm bar (in a notebook its widget), with tqdm's `options`;
    where stderr (or `file`) is neither a terminal nor a notebook it shows nothing. Without tqdm the items
    come as they are, and what a loop asks of its bar (`set_postfix`, `update`, ...) does nothing.

    >>> bar = kiln.progress(range(3), "steps")
    >>> total = 0
    >>> for k in bar:
    ...     total += k
    ...     bar.set_postfix(total=total)
    >>> total, len(bar)
    (3, 3)
    """
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return Quiet(iterable, desc, total)
    if options.get("disable") is None:
        options["disable"] = not (_is_terminal(options.get("file") or sys.stderr) or _in_notebook())
    return tqdm(iterable, desc=desc, total=total, **options)


def _length(iterable: Any) -> int | None:
    try:
        return len(iterable)
    except TypeError:
        return None


def _is_terminal(file: Any) -> bool:
    try:
        return bool(file.isatty())
    except (AttributeError, ValueError):  # no file, or closed
        return False


def _in_notebook() -> bool:
    """Whether a notebook shows what is done: a kernel of IPython's, which has widgets."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "IPKernelApp" in getattr(shell, "config", {})
