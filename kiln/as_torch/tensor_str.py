"""`torch._tensor_str`: the numbers of a tensor as text, for libraries that write files of them."""

from __future__ import annotations

from typing import Any

import kiln


class _Options:
    """What `set_printoptions` was told, as attributes."""

    def __getattr__(self, name: str) -> Any:
        options = dict(kiln.get_printoptions())
        if name not in options:
            raise AttributeError(name)
        return options[name]


PRINT_OPTS = _Options()


def _tensor_str(x: kiln.Tensor, indent: int) -> str:
    """The numbers between brackets, lines after the first indented."""
    text = repr(x.detach().clone())
    inner = text[len("tensor(") : text.rindex("]") + 1] if "]" in text else text[len("tensor(") : -1]
    return inner.replace("\n" + " " * len("tensor("), "\n" + " " * indent)
