"""`DistributedDataParallel`: one module in several processes, whose gradients are averaged."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NoReturn

from kiln import ops
from kiln._core import Tensor, grad_enabled, int64
from kiln.absent import leave_out
from kiln.nn.module import Module
from kiln.nn.parallel.reducer import Reducer
from kiln.nn.ranks import Link

_CAP = 25  # MiB of a bucket


class DistributedDataParallel(Module):
    """A module in several processes: after backward every parameter's gradient is the mean of the ranks'.

    The module is `.module`, and names in `state_dict` begin with "module.". Parameters and buffers begin as
    those of rank 0, and with `broadcast_buffers` buffers are so again before the forward that follows
    one whose gradients are put together, in evaluation too.
    Gradients are added in the order of the ranks and then divided by their number, bucket by bucket of
    `bucket_cap_mb` MiB, while backward goes on. `find_unused_parameters` for modules whose outputs do not
    reach all parameters; `static_graph` where those are the same in every iteration; with
    `gradient_as_bucket_view` gradients are views of buckets. What is about devices chooses nothing.
    A deep copy is in the same group and has no communication hook.

    ValueError where no group was made; RuntimeError for ranks whose parameters differ; NotImplementedError
    for mixed precision, a mesh, and what sums gradients by other hooks.

    >>> import kiln.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> model = kiln.nn.parallel.DistributedDataParallel(kiln.nn.Linear(3, 2))
    >>> list(model.state_dict()), model(kiln.zeros(5, 3)).shape
    (['module.weight', 'module.bias'], kiln.Size([5, 2]))
    >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[Any] | None = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: Any = None,
        param_to_hook_all_reduce: Any = None,
        mixed_precision: Any = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
    ) -> None:
        super().__init__()
        for name, given in (
            ("delay_all_reduce_named_params", delay_all_reduce_named_params),
            ("param_to_hook_all_reduce", param_to_hook_all_reduce),
            ("mixed_precision", mixed_precision),
            ("device_mesh", device_mesh),
            ("skip_all_reduce_unused_params", skip_all_reduce_unused_params),
        ):
            if given is not None and given is not False:
                raise NotImplementedError(f"DistributedDataParallel: {name} is not there")
        link = Link(process_group, "DistributedDataParallel: in one process train the module itself")
        if device_ids or output_device is not None:
            raise ValueError(
                "DistributedDataParallel device_ids and output_device arguments only work with GPU modules, "
                f"but got device_ids {device_ids}, output_device {output_device}, and module parameters of "
                "the CPU."
            )
        ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        named = [(n, p) for n, p in module.named_parameters() if n not in ignored]
        trained = [(n, p) for n, p in named if p.requires_grad]
        if not trained:
            raise RuntimeError(
                "DistributedDataParallel is not needed when a module doesn't have any parameters that "
                "require a gradient."
            )
        self.module, self.process_group, self.dim = module, process_group, dim
        self.device_ids, self.output_device = None, None
        self.broadcast_buffers, self.find_unused_parameters = broadcast_buffers, find_unused_parameters
        self.gradient_as_bucket_view, self.static_graph = gradient_as_bucket_view, static_graph
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        self.parameters_to_ignore = ignored
        self._link, self._named = link, trained
        self._join: _Join | None = None
        self._cap = int((_CAP if bucket_cap_mb is None else bucket_cap_mb) * (1 << 20))
        self._comm_hook: Callable[[Any], Any] | None = None
        self._reducer: Reducer | None = None
        if link.size > 1:
            self._verify(named)
            if init_sync:
                link.broadcast_all([p for _, p in named] + self._buffers_of_all(), 0)
            self._reduce()

    def _reduce(self) -> Reducer:
        if self._reducer is None:
            finds, static = self.find_unused_parameters, self.static_graph
            self._reducer = Reducer(
                self._named, self._link, self._cap, self.gradient_as_bucket_view, static, finds
            )
        return self._reducer

    def _buffers_of_all(self) -> list[Any]:
        named = self.module.named_buffers()
        return [b for n, b in named if n not in self.parameters_to_ignore]

    def _verify(self, named: Sequence[tuple[str, Any]]) -> None:
        """RuntimeError on every rank that names a parameter which is another one somewhere."""
        own = [(n, list(p.shape), str(p.dtype), p.requires_grad) for n, p in named]
        found: list[Any] = [None] * self._link.size
        self._link.dist.all_gather_object(found, own, group=self.process_group)
        for rank, theirs in enumerate(found):
            if len(theirs) != len(found[0]):
                raise RuntimeError(
                    f"DDP expects same model across all ranks, but rank {rank} has {len(theirs)} params, "
                    f"while rank 0 has {len(found[0])} params."
                )
            for i, (one, first) in enumerate(zip(theirs, found[0], strict=True)):
                if one != first:
                    raise RuntimeError(
                        f"params[{i}] ({one[0]}) of rank {rank} with sizes {one[1]} ({one[2]}, "
                        f"requires_grad={one[3]}) appears not to match the same param of rank 0: {first[0]} "
                        f"with sizes {first[1]} ({first[2]}, requires_grad={first[3]})."
                    )

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self._reducer is None:
            return self.module(*inputs, **kwargs)
        trains = grad_enabled() and self.require_backward_grad_sync
        source = self._join.notify(trains) if self._join is not None else 0
        if trains:
            self._reducer.prepare()
        self._sync(trains, source)
        output = self.module(*inputs, **kwargs)
        if trains:
            self._reducer.expect(_tensors(output))
        return output

    def _sync(self, trains: bool, source: int) -> None:
        """What ranks give each other before a forward. A rank that evaluates alone after a step has given its
        buffers before the others' next one: they come first.
        """
        if self.will_sync_module_buffers():
            self._link.broadcast_all(self._buffers_of_all(), source)
        self.require_forward_param_sync = trains
        if trains and self._reducer is not None:
            self._reducer.follow(source)

    def will_sync_module_buffers(self) -> bool:
        """Whether the next forward gives buffers the values of rank 0."""
        return self.require_forward_param_sync and self.broadcast_buffers and len(self._buffers_of_all()) > 0

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """In it gradients are accumulated in each process alone; the next backward after it takes them along.

        The forward must be in it too.
        """
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def register_comm_hook(self, state: object, hook: Callable[[Any, Any], Any]) -> None:
        """Makes `hook(state, bucket)` what puts a bucket's gradients together, instead of sum and division.

        It gives a future of the row of gradients: what has `wait()`.
        """
        if not callable(hook):
            raise TypeError("Communication hook must be callable.")
        if self._comm_hook is not None:
            raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
        self._comm_hook = self._reduce().hook = lambda bucket: hook(state, bucket)

    def _set_static_graph(self) -> None:
        """Says that every iteration uses the same parameters."""
        self.static_graph = True
        if self._reducer is not None:
            self._reducer.static = True

    @contextmanager
    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Iterator[None]:
        """For ranks with different numbers of inputs: who has no more takes part with zeros until all end.

        At the end parameters and buffers are those of a rank that ended last. Sums are divided by the number
        of all ranks, or of those that still have inputs. `throw_on_early_termination`: RuntimeError on all
        instead.
        """
        if not enable or self._reducer is None:
            yield
            return
        by_all, throws = divide_by_initial_world_size, throw_on_early_termination
        self._join = join = _Join(self._link, self._reducer, by_all, throws)
        try:
            yield
            join.shadow(self)
            if join.last is not None:
                state = [p for _, p in self._named] + self._buffers_of_all()
                self._link.broadcast_all(state, join.last)
        finally:
            self._join = None
            self._reducer.divisor = self._link.size

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedDataParallel:
        shared = {"_link": self._link, "process_group": self.process_group}
        anew = {"_comm_hook": None, "_join": None, "_reducer": None}
        memo[id(self)] = made = type(self).__new__(type(self))
        own = {k: v for k, v in self.__dict__.items() if k not in shared | anew}
        made.__setstate__(deepcopy(own, memo))
        made.__dict__.update(shared | anew)
        if made._link.size > 1:
            made._reduce()
        return made

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "DistributedDataParallel: a module in a group of processes is not pickled: save its "
            "state_dict(), or .module"
        )


leave_out(DistributedDataParallel, "gather scatter to_kwargs", "inputs are on the one device that there is")
leave_out(
    DistributedDataParallel,
    "join_device join_hook join_process_group",
    "`join` has what ranks without inputs do",
)


class _Join:
    """Ranks with inputs and those without: before each forward all say which they are."""

    def __init__(self, link: Link, reducer: Reducer, by_all: bool, throws: bool) -> None:
        self._link, self._reducer, self._by_all, self._throws = link, reducer, by_all, throws
        self.last: int | None = None  # the rank whose parameters are the newest

    def _say(self, active: bool, trains: bool) -> tuple[list[int], bool]:
        """The ranks that have inputs, and whether they will put gradients together."""
        flags = ops.zeros(self._link.size + 1, dtype=int64)
        flags[self._link.rank] = int(active)
        flags[self._link.size] = int(trains)
        self._link.sum(flags).wait()
        *ranks, training = flags.tolist()
        found = [rank for rank, has in enumerate(ranks) if has]
        if self._throws and len(found) < self._link.size:
            raise RuntimeError("Detected at least one rank that exhausted inputs. Throwing across all ranks.")
        self.last = found[0] if found else self.last
        self._reducer.divisor = self._link.size if self._by_all else max(len(found), 1)
        return found, bool(training)

    def notify(self, trains: bool) -> int:
        """This rank has an input; the first of those that have."""
        return self._say(True, trains)[0][0]

    def shadow(self, model: DistributedDataParallel) -> None:
        """Takes part in what the others do until none has inputs."""
        while True:
            active, trains = self._say(False, False)
            if not active:
                return
            model._sync(trains, active[0])
            if trains:
                self._reducer.shadow()


def _tensors(output: Any) -> Iterator[Any]:
    """The tensors of an output, however it is put together."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict):
        for part in output.values():
            yield from _tensors(part)
    elif isinstance(output, list | tuple | set):
        for part in output:
            yield from _tensors(part)
    elif dataclasses.is_dataclass(output):
        for field in dataclasses.fields(output):
            yield from _tensors(getattr(output, field.name))
