"""What a bucket of gradients becomes: their mean, sent as they are or in 16 bits.

>>> from kiln.distributed.algorithms.ddp_comm_hooks import default_hooks
>>> model.register_comm_hook(None, default_hooks.bf16_compress_hook)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kiln.distributed as dist
from kiln._core import Tensor, bfloat16, float16
from kiln.absent import hint_missing as _hint_missing

__all__ = [
    "allreduce_hook",
    "bf16_compress_hook",
    "bf16_compress_wrapper",
    "fp16_compress_hook",
    "fp16_compress_wrapper",
]


def _mean(group: Any, row: Tensor, dtype: Any) -> Any:
    """A future of the mean over the ranks, computed in the row's dtype and given in another."""
    work: Any = dist.all_reduce(row, group=group, async_op=True)
    size = dist.get_world_size(group)
    return work.get_future().then(lambda future: future.value()[0].to(dtype).div_(size))


def allreduce_hook(process_group: Any, bucket: Any) -> Any:
    """The sum, divided: what is done without a hook."""
    return _mean(process_group, bucket.buffer(), bucket.buffer().dtype)


def fp16_compress_hook(process_group: Any, bucket: Any) -> Any:
    """The sum of what gradients are in float16, divided in their own dtype."""
    return _mean(process_group, bucket.buffer().to(float16), bucket.buffer().dtype)


def bf16_compress_hook(process_group: Any, bucket: Any) -> Any:
    """The sum of what gradients are in bfloat16, divided in their own dtype."""
    return _mean(process_group, bucket.buffer().to(bfloat16), bucket.buffer().dtype)


def _wrapper(dtype: Any) -> Callable[[Callable[[Any, Any], Any]], Callable[[Any, Any], Any]]:
    def wrap(hook: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def wrapped(state: Any, bucket: Any) -> Any:
            own = bucket.buffer().dtype
            bucket.set_buffer(bucket.buffer().to(dtype))
            return hook(state, bucket).then(lambda future: future.value().to(own))

        return wrapped

    return wrap


fp16_compress_wrapper = _wrapper(float16)
bf16_compress_wrapper = _wrapper(bfloat16)
_hint_missing(__name__)
