"""What layers and samplers ask of the program's other processes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from kiln import ops
from kiln._core import Tensor
from kiln.autograd import Function, no_grad


def _groups() -> Any:
    """`kiln.distributed`, in a program that has made a group: so it has imported it. None in others."""
    dist: Any = sys.modules.get("kiln.distributed")
    return dist if dist is not None and dist.is_initialized() else None


class Link:
    """The group of ranks that something works in: that of all ranks unless given. ValueError, with what to do
    instead, where the program made none.
    """

    def __init__(self, group: Any, instead: str) -> None:
        self.dist = _groups()
        if self.dist is None:
            raise ValueError(
                "Default process group has not been initialized, please make sure to call "
                f"init_process_group. {instead}"
            )
        self.group = group
        self.size, self.rank = self.dist.get_world_size(group), self.dist.get_rank(group)

    def sum(self, x: Tensor) -> Any:
        """Begins to add a tensor's values of all ranks, in their order; `wait()` of what it gives ends it."""
        return self.dist.all_reduce(x, self.dist.ReduceOp.SUM, group=self.group, async_op=True)

    def broadcast(self, x: Tensor, source: int) -> None:
        """Gives a tensor the values of one rank."""
        self.dist.broadcast(x, group=self.group, group_src=source)

    def broadcast_all(self, tensors: Sequence[Any], source: int) -> None:
        """The same for several tensors: one message for each dtype."""
        rows: dict[Any, list[Any]] = {}
        for x in tensors:
            rows.setdefault(x.dtype, []).append(x.detach())
        with no_grad():
            for members in rows.values():
                row = ops.cat([x.reshape(-1) for x in members])
                self.broadcast(row, source)
                for x, part in zip(members, row.split([x.numel() for x in members]), strict=True):
                    x.copy_(part.view(x.shape))


def is_several() -> bool:
    """Whether the program has made a group of several ranks."""
    dist = _groups()
    return dist is not None and dist.get_world_size() > 1


class SumOfRanks(Function):
    """A tensor's values of all ranks, added: `SumOfRanks.apply(x, link)`. What comes back is added likewise,
    as every rank's x is in every rank's sum.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, link: Link) -> Tensor:
        ctx.link = link
        total = x.clone()
        link.sum(total).wait()
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        total = grad.clone()
        ctx.link.sum(total).wait()
        return total, None
