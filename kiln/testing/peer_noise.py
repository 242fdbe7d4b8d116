"""The peer computing a little otherwise: what its results then do not agree on, it does not decide.

Every op that rounds sees operands, and gives results, moved by up to two units in the last place; a write in
place first copies operands that share the target's memory where the peer would let their order decide.
"""

from __future__ import annotations

import importlib
from typing import Any

# ops that move values and round nothing
EXACT = frozenset(
    "abs amax arange argmax cat clone constant_pad_nd copy detach empty empty_like eq expand fill full "
    "full_like gather ge gt index le lift_fresh lt maximum minimum ne neg new_empty new_full new_zeros ones "
    "ones_like relu scalar_tensor scatter select_backward select_scatter slice_backward slice_scatter stack "
    "threshold_backward where zero zeros zeros_like _to_copy _local_scalar_dense".split()
)


def computing_otherwise(seed: int) -> Any:
    """A context in which PyTorch computes so; seed 0: without the noise."""
    torch: Any = importlib.import_module("torch")
    base: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
    generator = torch.Generator().manual_seed(seed)

    def moved(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.is_floating_point() and x.numel():
            steps = torch.randint(-2, 3, x.shape, generator=generator)
            x.mul_(1 + torch.finfo(x.dtype).eps * steps.to(x.dtype))
        return x

    def apart(x: Any, target: Any) -> Any:
        """`x`, or its copy if it lies in target's memory at other places and neither is dense."""
        if not isinstance(x, torch.Tensor) or x is target:
            return x
        shares = x.untyped_storage().data_ptr() == target.untyped_storage().data_ptr()
        same = x.data_ptr() == target.data_ptr() and x.stride() == target.stride()
        dense = x.is_contiguous() and target.is_contiguous()
        return x.clone() if shares and not same and not dense else x

    class Otherwise(base):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func._schema.name.split("::")[1]
            rounds = seed and not func.is_view and name.rstrip("_") not in EXACT
            if name.endswith("_") and not name.startswith("_") and args:
                args = (args[0], *(apart(x, args[0]) for x in args[1:]))
            elif rounds:
                args = tuple(moved(x.clone()) if isinstance(x, torch.Tensor) else x for x in args)
            out = func(*args, **(kwargs or {}))
            if rounds:
                for x in out if isinstance(out, (tuple, list)) else (out,):
                    moved(x)
            return out

    return Otherwise()
