"""The graph: nodes, symbolic sizes, text form, verifier, interpreter; and control flow as calls of graphs."""

from typing import Any

_LATER = dict.fromkeys(("cond", "map", "scan", "while_loop"), "kiln.capture.control")


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'kiln.graph' has no attribute {name!r}")
    from importlib import import_module

    globals()[name] = found = getattr(import_module(_LATER[name]), name)
    return found
