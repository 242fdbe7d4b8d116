"""Shapes and dtypes of every node, found by running the program once."""

from __future__ import annotations

import traceback
from typing import Any, NamedTuple

from kiln import _core
from kiln.absent import hint_missing as _hint_missing
from kiln.fx.interpreter import Interpreter
from kiln.fx.node import Node, map_aggregate
from kiln.layout import channels_last, channels_last_3d, contiguous_format

__all__ = ["ShapeProp", "TensorMetadata"]


class TensorMetadata(NamedTuple):
    """What is known of a tensor without its values."""

    shape: Any
    dtype: Any
    requires_grad: bool
    stride: tuple[int, ...]
    memory_format: Any
    is_quantized: bool
    qparams: dict[str, Any]


def _extract_tensor_metadata(result: Any, include_contiguity: bool = True) -> TensorMetadata:
    """That of a tensor."""
    formats = (contiguous_format, channels_last, channels_last_3d)
    ranks = {channels_last: 4, channels_last_3d: 5}
    held = None
    if include_contiguity:
        fits = [f for f in formats if ranks.get(f, result.ndim) == result.ndim]
        held = next((f for f in fits if result.is_contiguous(memory_format=f)), None)
    return TensorMetadata(
        result.shape, result.dtype, bool(result.requires_grad), tuple(result.stride()), held, False, {}
    )


class ShapeProp(Interpreter):
    """Runs a traced module and keeps in each node's `meta` the class of its result ("type") and, of tensors,
    shape, dtype and strides ("tensor_meta").

    >>> import kiln
    >>> from kiln.fx.passes.shape_prop import ShapeProp
    >>> m = kiln.fx.symbolic_trace(kiln.nn.Linear(3, 2))
    >>> _ = ShapeProp(m).propagate(kiln.ones(4, 3))
    >>> m.graph.output_node().meta["tensor_meta"].shape
    kiln.Size([4, 2])
    """

    def run_node(self, n: Node) -> Any:
        """The node's value, of which it keeps the metadata. RuntimeError with the node if it fails."""
        try:
            result = super().run_node(n)
        except Exception as error:
            traceback.print_exc()
            raise RuntimeError(f"ShapeProp error for: node={n.format_node()} with meta={n.meta}") from error
        tensors = False

        def known(value: Any) -> Any:
            nonlocal tensors
            if not isinstance(value, _core.Tensor):
                return value
            tensors = True
            return _extract_tensor_metadata(value)

        meta = map_aggregate(result, known)
        if tensors:
            n.meta["tensor_meta"] = meta
        n.meta["type"] = type(result)
        return result

    def propagate(self, *args: Any) -> Any:
        """What the module gives for these arguments."""
        return super().run(*args)


_hint_missing(__name__)
