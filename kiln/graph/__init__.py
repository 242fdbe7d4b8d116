"""The graph: nodes, symbolic sizes, text form, verifier, interpreter; and control flow as calls of graphs."""

from importlib import import_module
from typing import Any

_LATER = dict.fromkeys(("cond", "map", "scan", "while_loop"), "kiln.func.control_flow")
_LATER["placeholder"] = "kiln.symbolic.definition"
_LATER.update(dict.fromkeys(("Graph", "from_function", "load", "parse"), "kiln.symbolic.graph"))

__all__ = ["Graph", "cond", "from_function", "load", "map", "parse", "placeholder", "scan", "while_loop"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'kiln.graph' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_LATER[name]), name)
    return found
