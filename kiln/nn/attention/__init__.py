"""Which way attention is computed: `sdpa_kernel`, as in torch.nn.attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from kiln.backends import cuda
from kiln.backends.cuda import SDPAParams as SDPAParams
from kiln.errors import describe, message
from kiln.ops.nn.attention.functions import FUSED


class SDPBackend(Enum):
    """Ways of computing scaled_dot_product_attention. MATH has all scores in memory; the others are one
    kernel that has not.

    >>> kiln.nn.attention.SDPBackend.MATH.name
    'MATH'
    """

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


_FLAGS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "math": SDPBackend.MATH,
    "mem_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}  # of backends.cuda


@contextmanager
def sdpa_kernel(
    backends: SDPBackend | list[SDPBackend], set_priority: bool = False
) -> Iterator[dict[None, None]]:
    """Within the block attention is computed by one of `backends`: by the kernel unless MATH is the only
    one, or the first and `set_priority`. Both give the same bits. AssertionError for what is no SDPBackend.

    >>> from kiln.nn.attention import SDPBackend, sdpa_kernel
    >>> x = kiln.ones(2, 2)
    >>> with sdpa_kernel(SDPBackend.MATH):
    ...     kiln.nn.functional.scaled_dot_product_attention(x, x, x)
    tensor([[1., 1.],
            [1., 1.]])
    """
    asked = [backends] if isinstance(backends, SDPBackend) else backends
    if not isinstance(asked, list) or not all(isinstance(x, SDPBackend) for x in asked):
        raise AssertionError(message("sdpa_kernel", "an SDPBackend or a list of them", describe(backends)))
    first = asked[:1] if set_priority else asked
    token = FUSED.set(any(backend is not SDPBackend.MATH for backend in first))
    flags = {name: backend in asked for name, backend in _FLAGS.items()}
    try:
        with cuda.attention_flags(**flags):
            yield {}
    finally:
        FUSED.reset(token)
