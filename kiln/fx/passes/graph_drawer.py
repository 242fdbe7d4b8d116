"""Pictures of traced programs, by Graphviz' Python package `pydot`."""

from __future__ import annotations

from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.fx import names
from kiln.fx.graph_module import GraphModule

__all__ = ["FxGraphDrawer"]

_COLORS = {
    "placeholder": "AliceBlue", "get_attr": "LightGrey", "output": "PowderBlue", "call_module": "Gold1",
    "call_function": "PaleGreen", "call_method": "PeachPuff",
}  # fmt: skip


class FxGraphDrawer:
    """A traced module as a graph of pydot's: a box for each node. ImportError without that package.

    `get_dot_graph()` gives what `write_svg(file)` and `write_png(file)` draw.
    """

    def __init__(
        self, graph_module: GraphModule, name: str, ignore_getattr: bool = False, **more: Any
    ) -> None:
        self._name = name
        self._dot_graphs = {name: self._drawn(graph_module, name, ignore_getattr)}
        for path, module in graph_module.named_children():
            if isinstance(module, GraphModule):
                below = f"{name}_{path}"
                self._dot_graphs[below] = self._drawn(module, below, ignore_getattr)

    def get_dot_graph(self, submod_name: str | None = None) -> Any:
        """The graph of the module, or of one of its submodules."""
        return self._dot_graphs[self._name if submod_name is None else submod_name]

    def get_main_dot_graph(self) -> Any:
        """The graph of the module."""
        return self._dot_graphs[self._name]

    def get_all_dot_graphs(self) -> dict[str, Any]:
        """All graphs by name."""
        return self._dot_graphs

    def _drawn(self, module: GraphModule, name: str, ignore_getattr: bool) -> Any:
        try:
            import pydot  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError:
            raise RuntimeError(
                "FXGraphDrawer requires the pydot package to be installed. Please install pydot through your "
                "favorite Python package manager; module.graph.print_tabular() needs none"
            ) from None
        drawn = pydot.Dot(name, rankdir="TB")
        for node in module.graph.nodes:
            if ignore_getattr and node.op == "get_attr":
                continue
            label = f"{{name=%{node.name}|op_code={node.op}\\n|target={names.shown_name(node.target)}\\n"
            meta = node.meta.get("tensor_meta")
            if hasattr(meta, "shape"):
                label += f"|dtype={meta.dtype}\\n|shape={tuple(meta.shape)}\\n"
            style = {"shape": "record", "style": '"filled,rounded"', "fillcolor": _COLORS[node.op]}
            drawn.add_node(pydot.Node(node.name, label=f'"{label}}}"', **style))
        for node in module.graph.nodes:
            if ignore_getattr and node.op == "get_attr":
                continue
            for user in node.users:
                drawn.add_edge(pydot.Edge(node.name, user.name))
        return drawn


_hint_missing(__name__)
