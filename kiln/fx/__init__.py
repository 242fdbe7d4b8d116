"""Programs as graphs of calls, to be read and changed: modules and functions traced with proxies.

    symbolic_trace(model)      a GraphModule: the same module, its `forward` written from `graph`
    graph.nodes                placeholder get_attr call_function call_method call_module output
    m.graph...; m.recompile()  surgery

Nothing is known of shapes and values; what runs is a Python function that calls kiln's.
"""

from __future__ import annotations

from kiln.absent import hint_missing as _hint_missing
from kiln.fx import annotate as annotate
from kiln.fx import (
    graph as graph,
)
from kiln.fx import (
    graph_module as graph_module,
)
from kiln.fx import (
    immutable_collections as immutable_collections,
)
from kiln.fx import (
    interpreter as interpreter,
)
from kiln.fx import (
    node as node,
)
from kiln.fx import operator_schemas as operator_schemas
from kiln.fx import (
    passes as passes,
)
from kiln.fx import (
    proxy as proxy,
)
from kiln.fx import (
    subgraph_rewriter as subgraph_rewriter,
)
from kiln.fx import traceback as traceback
from kiln.fx._symbolic_trace import PH, ProxyableClassMeta, Tracer, symbolic_trace, wrap
from kiln.fx.graph import CodeGen, Graph
from kiln.fx.graph_module import GraphModule
from kiln.fx.interpreter import Interpreter, Transformer
from kiln.fx.node import Node, has_side_effect, map_aggregate, map_arg
from kiln.fx.proxy import Proxy, TraceError
from kiln.fx.subgraph_rewriter import replace_pattern

__all__ = [
    "PH", "CodeGen", "Graph", "GraphModule", "Interpreter", "Node", "Proxy", "ProxyableClassMeta", "Tracer",
    "Transformer", "TraceError", "has_side_effect", "map_aggregate", "map_arg", "replace_pattern",
    "symbolic_trace", "wrap",
]  # fmt: skip

_hint_missing(__name__)
