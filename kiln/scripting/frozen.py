"""Frozen scripts: modules whose parameters and buffers are constants of their programs."""

from __future__ import annotations

import copy
from typing import Any

from kiln import _core, ops
from kiln.nn import Module
from kiln.scripting.scripted import RecursiveScriptModule
from kiln.tracing.scripts import above
from kiln.tracing.trees import build


def _constants(module: Module) -> Module:
    """A copy of a module whose parameters and buffers are mere tensors that it holds."""
    made = copy.deepcopy(module)
    for own in made.modules():
        for kind in (own._parameters, own._buffers):
            held = {name: x if x is None else x.detach() for name, x in kind.items()}
            kind.clear()
            vars(own).update(held)
    return made


def freeze(mod: Any, preserved: list[str]) -> Any:
    """A scripted module with copies of its parameters and buffers as constants; see `kiln.jit.freeze`."""
    made = RecursiveScriptModule(_constants(mod._original))
    for name in preserved:
        if not hasattr(made, name):
            raise AttributeError(f"freeze: the module has no attribute {name!r}")
    last = mod._programs["forward"].last
    if last is not None and last.refused is None:  # for such arguments, so that it can be saved
        found = last.captured
        like = [ops.zeros(tuple(x.shape), dtype=getattr(_core, x.dtype)) for x in found.inputs]
        given = [like[found.distinct.index(k)] for k in found.aliases]
        args, kwargs = build(found.in_tree, iter(given))
        calls = made._programs["forward"]
        calls.last = calls.variant(args, kwargs)
    return made


above["freeze"] = freeze
