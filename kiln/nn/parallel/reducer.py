"""Gradients of several processes put together while backward still goes on.

Parameters are in buckets, each a row of memory. When the last gradient of a bucket is there, its sum over
the ranks begins, after those of the buckets before it; the end of backward waits for all. Gradients are added
in the order of the ranks and then divided: the bits of one process that accumulates them in that order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kiln import ops
from kiln._core import Tensor, int32
from kiln.autograd import no_grad
from kiln.autograd.variable import Variable

_FIRST_BUCKET = 1 << 20  # bytes: the first sum begins early


class GradBucket:
    """A part of the gradients, as a hook gets it: `buffer()` is one row of all."""

    def __init__(self, members: Sequence[int], parameters: Sequence[Any]) -> None:
        self.members = list(members)
        self._parameters = [parameters[i] for i in members]
        sizes = [p.numel() for p in self._parameters]
        first = self._parameters[0]
        self._buffer: Any = ops.zeros(sum(sizes), dtype=first.dtype)
        self._index, self._is_last = 0, False
        self.missing = 0  # gradients that are not there yet
        self.work: Any = None  # the sum under way
        self._cut()

    def _cut(self) -> None:
        self.views: list[Any] = []
        at = 0
        for p in self._parameters:
            self.views.append(self._buffer[at : at + p.numel()].view(p.shape))
            at += p.numel()

    def buffer(self) -> Tensor:
        """All gradients of the bucket in one row."""
        return self._buffer  # type: ignore[no-any-return]

    def set_buffer(self, tensor: Tensor) -> None:
        """Puts another row in its place."""
        self._buffer = tensor
        self._cut()

    def gradients(self) -> list[Tensor]:
        """The gradient of each parameter: views of the row."""
        return list(self.views)

    def parameters(self) -> list[Tensor]:
        """The parameters."""
        return list(self._parameters)

    def index(self) -> int:
        """Which bucket this is, in the order of their sums."""
        return self._index

    def is_last(self) -> bool:
        """Whether no bucket comes after it."""
        return self._is_last


class Reducer:
    """What one module's gradients are put together by. `link` has the group: its size, rank, sums."""

    def __init__(
        self, named: Sequence[tuple[str, Any]], link: Any, cap: int, as_views: bool, static: bool, finds: bool
    ) -> None:
        self.names, self.parameters = [n for n, _ in named], [p for _, p in named]
        self.link, self.cap = link, cap
        self.as_views, self.static, self.finds = as_views, static, finds
        self.hook: Callable[[GradBucket], Any] | None = None
        self.divisor = link.size
        self.expects = False  # whether the next backward is to be put together
        self.unfinished = False  # whether a backward began and not all gradients came
        self.ready: list[int] = []
        self._times = Counter[int]()  # how many gradients each parameter of a static graph gets
        self._unused: set[int] = set()
        self._order: list[int] | None = None  # in which gradients came first
        self.rebuilt = False
        self._build(range(len(named) - 1, -1, -1))
        self._places = {id(p): i for i, p in enumerate(self.parameters)}
        for i, p in enumerate(self.parameters):
            p.register_post_accumulate_grad_hook(lambda _, i=i: self._came(i))

    def _build(self, order: Sequence[int]) -> None:
        """Buckets of parameters that are next to each other in an order, of one dtype each."""
        open_: dict[Any, list[int]] = {}
        closed: list[list[int]] = []
        for i in order:
            p = self.parameters[i]
            members = open_.setdefault(p.dtype, [])
            members.append(i)
            size = sum(self.parameters[m].numel() for m in members) * p.element_size()
            if size >= (self.cap if closed else min(_FIRST_BUCKET, self.cap)):
                closed.append(open_.pop(p.dtype))
        closed += open_.values()
        self.buckets = [GradBucket(members, self.parameters) for members in closed]
        for at, bucket in enumerate(self.buckets):
            bucket._index, bucket._is_last = at, bucket is self.buckets[-1]
        self._of = {i: (b, at) for b in self.buckets for at, i in enumerate(b.members)}

    def prepare(self) -> None:
        """Before a forward whose backward is put together. RuntimeError if the last one did not end."""
        if self.unfinished:
            raise RuntimeError(self._unfinished())

    def follow(self, source: int) -> None:
        """Builds buckets anew when the order of a first backward is known."""
        if self._order is not None and not self.rebuilt:
            self.rebuild(source)

    def rebuild(self, source: int) -> None:
        """Buckets in the order in which gradients came in a first backward: of one rank for all."""
        order = ops.tensor(self._order or list(range(len(self.parameters))))
        self.link.broadcast(order, source)
        self.rebuilt = True
        self._build(order.tolist())

    def expect(self, outputs: Iterable[Any]) -> None:
        """After that forward: which parameters the outputs do not reach."""
        self.expects = True
        self.ready, self._next, self._marked = [], 0, set[int]()
        for bucket in self.buckets:
            bucket.missing, bucket.work = len(bucket.members), None
        self._delays = self.static and not self._times
        self._left = Counter(self._times)
        self._unused = self._others() if self._times else set()
        if self._delays:  # in the pass of the outputs: that of the first gradient may be one inside it
            for x in outputs:
                if x.grad_fn is not None:
                    x.register_hook(lambda _: self._begin())
        elif self.finds and not self.static:
            self._unused = set(range(len(self.parameters))) - self._reached(outputs)

    def _others(self) -> set[int]:
        """What a static graph does not use."""
        return set(range(len(self.parameters))) - set(self._times)

    def _reached(self, outputs: Iterable[Any]) -> set[int]:
        left = [x.grad_fn for x in outputs if x.grad_fn is not None]
        seen, found = set(left), set[int]()
        while left:
            node = left.pop()
            at = self._places.get(id(getattr(node, "variable", None)))
            if at is not None:
                found.add(at)
            for following, _ in node.next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    left.append(following)
        return found

    def _begin(self) -> None:
        """A backward begins."""
        if not self.expects or self.unfinished:
            return
        self.unfinished = True
        if self._delays:
            Variable._execution_engine.queue_callback(self._learn)
        for unused in sorted(self._unused, reverse=True):
            self._mark(unused)

    def _came(self, i: int) -> None:
        """The gradient of a parameter is there."""
        if not self.expects:
            return
        self._begin()
        if self._delays:
            self._times[i] += 1
            return
        self._left[i] -= 1
        if self._left[i] <= 0:
            self._mark(i)
            self.ready.append(i)

    def _mark(self, i: int) -> None:
        if i in self._marked:
            raise RuntimeError(
                "Expected to mark a variable ready only once. This error is caused by use of a module "
                "parameter outside the `forward` function, by several backward passes through one forward, "
                "or by a parameter that is used after all where it was unused before. Parameter "
                f"{self.names[i]} has been marked as ready twice."
            )
        self._marked.add(i)
        bucket, at = self._of[i]
        gradient, view = self.parameters[i].grad, bucket.views[at]
        if gradient is None:
            view.zero_()
        elif gradient is not view:
            with no_grad():
                view.copy_(gradient)
        bucket.missing -= 1
        self._launch()

    def _launch(self) -> None:
        """Begins the sums of those buckets whose turn it is and that are full.

        With the last the end of this backward will be that of the sums: all gradients are there, in
        whatever pass of the engine the first of them came.
        """
        while self._next < len(self.buckets) and not self.buckets[self._next].missing:
            self._sum(self.buckets[self._next])
            self._next += 1
            if self._next == len(self.buckets):
                Variable._execution_engine.queue_callback(self._finish)

    def _sum(self, bucket: GradBucket) -> None:
        bucket.work = self.hook(bucket) if self.hook else self.link.sum(bucket.buffer())

    def _learn(self) -> None:
        """The end of the first backward of a static graph, which says what is used and how often."""
        self._delays, self.ready, self._unused = False, list(self._times), self._others()
        for i in [*self.ready, *sorted(self._unused, reverse=True)]:
            self._mark(i)

    def _finish(self) -> None:
        """The end of backward: waits for the sums, and gives them to the parameters."""
        used = self._used_anywhere()
        for bucket in self.buckets:
            self._take(bucket)
            self._store(bucket, used)
        self.unfinished = self.expects = False
        if self._order is None and (self.static or not self.finds):
            self._order = [*self.ready, *sorted(self._unused)]

    def _used_anywhere(self) -> list[int] | None:
        """How many ranks have used each parameter; None if all do."""
        if not (self.finds or self.static):
            return None
        used = ops.ones(len(self.parameters), dtype=int32)
        for i in self._unused:
            used[i] = 0
        self.link.sum(used).wait()
        return used.tolist()  # type: ignore[no-any-return]

    def _take(self, bucket: GradBucket) -> None:
        """Waits for what was put together, and makes it the bucket's row."""
        found = bucket.work.wait()
        with no_grad():
            if self.hook is None:
                bucket.buffer().div_(self.divisor)
            else:
                bucket.set_buffer(found[0] if isinstance(found, list | tuple) else found)

    def _store(self, bucket: GradBucket, used: list[int] | None) -> None:
        """Gives the parameters that some rank has used their gradients."""
        with no_grad():
            for i, view in zip(bucket.members, bucket.views, strict=True):
                p = self.parameters[i]
                if used is not None and not used[i]:
                    continue
                if self.as_views:
                    p.grad = view
                elif p.grad is None:
                    p.grad = view.clone()
                else:
                    p.grad.copy_(view)

    def shadow(self) -> None:
        """Takes part in another rank's backward, with zeros."""
        for bucket in self.buckets:
            bucket.buffer().zero_()
            self._sum(bucket)
        if self.finds or self.static:
            self.link.sum(ops.zeros(len(self.parameters), dtype=int32)).wait()
        for bucket in self.buckets:
            self._take(bucket)
        if self._order is None and (self.static or not self.finds):
            self._order = list(range(len(self.parameters)))

    def _unfinished(self) -> str:
        missing = [i for i in range(len(self.parameters)) if i not in self._marked]
        return (
            "Expected to have finished reduction in the prior iteration before starting a new one. This "
            "error indicates that your module has parameters that were not used in producing loss. You can "
            "enable unused parameter detection by passing the keyword argument "
            "`find_unused_parameters=True` to `kiln.nn.parallel.DistributedDataParallel`, and by making sure "
            "all `forward` function outputs participate in calculating loss.\n"
            f"Parameters which did not receive grad for rank {self.link.rank}: "
            f"{', '.join(self.names[i] for i in missing)}\n"
            f"Parameter indices which did not receive grad for rank {self.link.rank}: "
            f"{' '.join(map(str, missing))}"
        )
