"""What ran, as a graph of kiln's own operations: `make_fx`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.fx.graph_module import GraphModule
from kiln.late import later
from kiln.table.callables import name_helpers as _name_helpers

__all__ = ["get_proxy_mode", "make_fx"]

_recorded = later("kiln.export.recorded", "recorded")
_MODES = ("real", "fake", "symbolic")


def make_fx(
    f: Callable[..., Any],
    decomposition_table: dict[Any, Any] | None = None,
    tracing_mode: str = "real",
    _allow_non_fake_inputs: bool = False,
    *,
    pre_dispatch: bool = False,
    **more: Any,
) -> Callable[..., GraphModule]:
    """A function of `f`'s arguments that gives what `f` does with tensors as a `GraphModule`: calls of kiln's
    operations, whatever functions and modules they stand in. Parameters and other tensors that it meets are
    attributes; what it writes in place is written at the end.

    `tracing_mode`: "symbolic" leaves the sizes of arguments open, as far as `f` allows. With
    `decomposition_table` NotImplementedError. TracingError for what a graph would not do again.

    >>> import kiln
    >>> g = make_fx(lambda x: kiln.nn.functional.relu(x) * 2)(kiln.ones(2))
    >>> [str(node) for node in g.graph.nodes]
    ['x_1', 'relu', 'mul', 'output']
    """
    if tracing_mode not in _MODES:
        raise AssertionError(f'tracing_mode must be one of "real", "fake", or "symbolic", got {tracing_mode}')
    if decomposition_table:
        raise NotImplementedError(
            "make_fx: decomposition_table: operations are kiln's own; "
            "kiln.export.export(...).run_decompositions() gives a program of primitives"
        )

    @functools.wraps(f)
    def traced(*args: Any) -> GraphModule:
        made: GraphModule = _recorded(f, args, tracing_mode == "symbolic")
        return made

    return traced


def get_proxy_mode() -> None:
    """None: what follows a function is no mode."""


_name_helpers(globals(), __name__)
_hint_missing(__name__)
