"""Which nodes of a graph something can run."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.fx.node import Node
from kiln.fx.passes.tools_common import CALLABLE_NODE_OPS, get_node_target

__all__ = ["OpSupports", "OperatorSupport", "OperatorSupportBase", "any_chain", "chain", "create_op_support"]


class OperatorSupportBase(abc.ABC):
    """Says of nodes whether they are supported; `submodules` has modules by dotted name."""

    @abc.abstractmethod
    def is_node_supported(self, submodules: Mapping[str, Any], node: Node) -> bool:
        """Whether this node is."""


class OperatorSupport(OperatorSupportBase):
    """Supports the functions, methods and classes of modules of a dict, by what `get_node_target` calls them.
    Their values are None, or `(for each argument the dtypes that it may have, the same by name)`; dtypes are
    those that `ShapeProp` found.
    """

    _support_dict: Mapping[str, Any]

    def __init__(self, support_dict: Mapping[str, Any] | None = None) -> None:
        self._support_dict = support_dict or {}

    def is_node_supported(self, submodules: Mapping[str, Any], node: Node) -> bool:
        """Whether this node is."""
        if node.op not in CALLABLE_NODE_OPS:
            return True
        target = get_node_target(submodules, node)
        if target not in self._support_dict:
            return False
        dtypes = self._support_dict[target]
        if dtypes is None:
            return True
        by_place, by_name = dtypes
        given = [
            *zip(by_place, node.args),
            *((kinds, node.kwargs.get(key)) for key, kinds in by_name.items()),
        ]
        return all(not isinstance(arg, Node) or _dtype_of(arg) in kinds for kinds, arg in given)


def _dtype_of(node: Node) -> Any:
    return getattr(node.meta.get("tensor_meta"), "dtype", None)


class _Asked(OperatorSupportBase):
    def __init__(self, function: Callable[[Mapping[str, Any], Node], bool]) -> None:
        self.function = function

    def is_node_supported(self, submodules: Mapping[str, Any], node: Node) -> bool:
        return self.function(submodules, node)


def create_op_support(is_node_supported: Callable[[Mapping[str, Any], Node], bool]) -> OperatorSupportBase:
    """What supports the nodes for which a function of (submodules, node) is true."""
    return _Asked(is_node_supported)


def chain(*op_support: OperatorSupportBase) -> OperatorSupportBase:
    """What supports the nodes that all of these support."""
    return _Asked(lambda modules, node: all(one.is_node_supported(modules, node) for one in op_support))


def any_chain(*op_support: OperatorSupportBase) -> OperatorSupportBase:
    """What supports the nodes that any of these supports."""
    return _Asked(lambda modules, node: any(one.is_node_supported(modules, node) for one in op_support))


class OpSupports:
    """What supports all nodes but some."""

    @classmethod
    def decline_if_input_dtype(cls, dtype: Any) -> OperatorSupportBase:
        """But those that are given a tensor of a dtype, as `ShapeProp` found. RuntimeError if it did not."""

        def supported(modules: Mapping[str, Any], node: Node) -> bool:
            for arg in node.all_input_nodes:
                if arg.op == "get_attr":
                    continue
                if "tensor_meta" not in arg.meta and "type" not in arg.meta:
                    raise RuntimeError(f"{arg}: its dtype is not known, ShapeProp finds it")
                if _dtype_of(arg) == dtype:
                    return False
            return True

        return _Asked(supported)

    @classmethod
    def decline_if_node_in_names(cls, disallow_set: set[str]) -> OperatorSupportBase:
        """But those of these names."""
        return _Asked(lambda modules, node: node.name not in disallow_set)


_hint_missing(__name__)
