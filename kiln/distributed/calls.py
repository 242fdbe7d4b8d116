"""The calls of a group under PyTorch's names: each checks its arguments, says in a text what every rank has
to do alike, and hands flat tensors to the collective (collectives.py).

Tensors are written where they are. What they are views of, and those that are not contiguous, are written
through a copy. Nothing here is recorded for gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from kiln import _core, ops
from kiln._core import Tensor
from kiln.autograd import inference_mode
from kiln.distributed import collectives
from kiln.distributed.collectives import Steps
from kiln.distributed.mail import ANY, Receipt
from kiln.distributed.process_group import ProcessGroup, Work
from kiln.distributed.reduce_op import ReduceOp, check
from kiln.distributed.world import group_of


class _Flat:
    """A tensor's elements in a row, as a collective reads or writes them."""

    def __init__(self, x: Tensor) -> None:
        self.tensor = x.detach()
        self._loan = _lent(self.tensor)  # what was put off is done now, on this thread
        self.row = (self.tensor if x.is_contiguous() else self.tensor.contiguous()).reshape(-1)
        if not x.is_contiguous():
            self.row.data_ptr()

    def back(self) -> None:
        """To the tensor, once the row is written."""
        if not self.tensor.is_contiguous():
            with inference_mode():
                self.tensor.copy_(self.row.view(self.tensor.shape))
        self._loan = None


def _lent(x: Tensor) -> Any:
    """Holds memory that others write, so that recordings know of it, as long as it is held."""
    if x.dtype is _core.bfloat16:  # of which no buffer tells
        return x.data_ptr()
    return memoryview(x)


def _tensor(x: Any, argument: str) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError(
            f"Invalid function argument. Expected parameter `{argument}` of type torch.Tensor\n             "
            f"but got {type(x)} instead."
        )
    return x


def _tensors(given: Any, argument: str) -> list[Tensor]:
    if not isinstance(given, (list, tuple)) or not all(isinstance(x, Tensor) for x in given):
        raise TypeError(
            f"Invalid function argument. Expected parameter `{argument}` of type List[torch.Tensor]\n"
            f"             but got {type(given)} with elements of type "
            f"{[type(x) for x in given] if isinstance(given, (list, tuple)) else None}."
        )
    return list(given)


def _one_dtype(name: str, tensors: Sequence[Tensor]) -> Any:
    dtypes = {x.dtype for x in tensors}
    if len(dtypes) > 1:
        raise ValueError(
            f"{name}: Invalid usage of tensors with different dtypes, found {sorted(map(str, dtypes))}"
        )
    return tensors[0].dtype


def _like(x: Tensor) -> str:
    return f"{x.dtype.name} {list(x.shape)}"


def _place(found: ProcessGroup, of_program: int | None, of_group: int | None, name: str, what: str) -> int:
    """The rank in the group of a source or target that is told in one of two ways."""
    if of_program is not None and of_group is not None:
        raise ValueError(f"{name}: Can't specify both group_{what} and {what}")
    if of_group is not None:
        if not 0 <= of_group < found.size():
            raise ValueError(f"{name}: the group has no rank {of_group}")
        return of_group
    return found.number(0 if of_program is None else of_program, name)


def _run(
    found: ProcessGroup,
    text: str,
    work: Callable[[Steps], Any],
    asynchronous: bool,
    written: Sequence[_Flat],
    result: Any,
) -> Work | None:
    def whole(steps: Steps) -> None:
        work(steps)
        for x in written:
            x.back()

    return found.run(text, whole, asynchronous, result)


# ---- collectives ----


def broadcast(
    tensor: Tensor, src: int | None = None, group: Any = None, async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:  # fmt: skip
    """Gives every rank's tensor the elements of the source's. A Work with `async_op`."""
    x = _tensor(tensor, "tensor")
    if (found := group_of(group, "broadcast")) is None:
        return None
    source = _place(found, src, group_src, "broadcast", "src")
    flat = _Flat(x)
    text = f"broadcast from rank {found.ranks[source]} of {_like(x)}"
    return _run(found, text, lambda s: collectives.broadcast(s, flat.row, source), async_op, [flat], x)


def all_reduce(
    tensor: Tensor, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """Puts the tensors of all ranks together, into every rank's, in the order of the ranks. A Work with
    `async_op`.
    """
    x = _tensor(tensor, "tensor")
    if (found := group_of(group, "all_reduce")) is None:
        return None
    check("all_reduce", op, x.dtype)
    flat = _Flat(x)
    text = f"all_reduce ({op.name}) of {_like(x)}"
    return _run(found, text, lambda s: collectives.all_reduce(s, flat.row, op), async_op, [flat], x)


def all_reduce_coalesced(
    tensors: list[Tensor], op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """`all_reduce` of every tensor of a list, as one call."""
    xs = _tensors(tensors, "tensors")
    if (found := group_of(group, "all_reduce_coalesced")) is None:
        return None
    dtype = _one_dtype("all_reduce_coalesced", xs)
    check("all_reduce_coalesced", op, dtype)
    row = ops.cat([x.detach().reshape(-1) for x in xs])
    sizes = [x.numel() for x in xs]

    def work(steps: Steps) -> None:
        collectives.all_reduce(steps, row, op)
        for x, part in zip(xs, row.split(sizes)):
            x.detach().copy_(part.view(x.shape))

    text = f"all_reduce_coalesced ({op.name}) of {', '.join(map(_like, xs))}"
    row.data_ptr()
    return _run(found, text, work, async_op, [], xs)


def reduce(
    tensor: Tensor, dst: int | None = None, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:  # fmt: skip
    """As `all_reduce`, into the tensor of the rank `dst` alone."""
    x = _tensor(tensor, "tensor")
    if (found := group_of(group, "reduce")) is None:
        return None
    check("reduce", op, x.dtype)
    to = _place(found, dst, group_dst, "reduce", "dst")
    flat = _Flat(x)
    text = f"reduce ({op.name}) to rank {found.ranks[to]} of {_like(x)}"
    written = [flat] if found.rank() == to else []
    return _run(found, text, lambda s: collectives.all_reduce(s, flat.row, op, to), async_op, written, x)


def all_gather(
    tensor_list: list[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False
) -> Work | None:
    """Gathers the tensors of all ranks in a list on every rank; their sizes may differ from rank to rank."""
    outs = _tensors(tensor_list, "tensor_list")
    x = _tensor(tensor, "tensor")
    if (found := group_of(group, "all_gather")) is None:
        return None
    if len(outs) != found.size():
        raise ValueError(
            f"all_gather: tensor_list has {len(outs)} tensors for a group of {found.size()} ranks"
        )
    _one_dtype("all_gather", [*outs, x])
    if outs[found.rank()].numel() != x.numel():
        raise ValueError(
            f"all_gather: this rank's own tensor has {x.numel()} elements, its place in tensor_list "
            f"{outs[found.rank()].numel()}"
        )
    flat, flats = _Flat(x), [_Flat(y) for y in outs]
    text = f"all_gather of {x.dtype.name}"
    rows = [y.row for y in flats]
    return _run(found, text, lambda s: collectives.all_gather(s, flat.row, rows), async_op, flats, outs)


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: Any = None, async_op: bool = False
) -> Work | None:
    """As `all_gather` of tensors of one size, into one tensor that has them one after the other."""
    out = _tensor(output_tensor, "output_tensor")
    x = _tensor(input_tensor, "input_tensor")
    if (found := group_of(group, "all_gather_into_tensor")) is None:
        return None
    _one_dtype("all_gather_into_tensor", [out, x])
    if out.numel() != x.numel() * found.size():
        raise ValueError("output tensor size must be equal to world_size times input tensor size")
    flat, into = _Flat(x), _Flat(out)
    rows = list(into.row.view(found.size(), -1).unbind(0)) if x.numel() else [flat.row] * found.size()
    text = f"all_gather_into_tensor of {_like(x)}"
    return _run(found, text, lambda s: collectives.all_gather(s, flat.row, rows), async_op, [into], out)


def gather(
    tensor: Tensor, gather_list: list[Tensor] | None = None, dst: int | None = None, group: Any = None,
    async_op: bool = False, group_dst: int | None = None,
) -> Work | None:  # fmt: skip
    """Gathers the tensors of all ranks in a list on the rank `dst`."""
    x = _tensor(tensor, "tensor")
    if (found := group_of(group, "gather")) is None:
        return None
    to = _place(found, dst, group_dst, "gather", "dst")
    outs = _tensors(gather_list or [], "gather_list")
    if found.rank() != to and outs:
        raise ValueError("Argument ``gather_list`` must NOT be specified on non-destination ranks.")
    if found.rank() == to:
        _expect_lengths("gather", "gather_list", outs, found, x)
    flat, flats = _Flat(x), [_Flat(y) for y in outs]
    given = [flat.row if q == to else None for q in range(found.size())]
    rows: list[Tensor | None] = [*(y.row for y in flats)] or [None] * found.size()
    text = f"gather to rank {found.ranks[to]} of {x.dtype.name}"
    return _run(found, text, lambda s: collectives.all_to_all(s, given, rows), async_op, flats, outs)


def _expect_lengths(name: str, argument: str, given: list[Tensor], found: ProcessGroup, own: Tensor) -> None:
    if len(given) != found.size():
        raise ValueError(
            f"{name}: {argument} has {len(given)} tensors for a group of {found.size()} ranks; one for each "
            "is needed"
        )
    _one_dtype(name, [*given, own])
    if given[found.rank()].numel() != own.numel():
        raise ValueError(
            f"{name}: this rank's own tensor has {own.numel()} elements, its place in {argument} "
            f"{given[found.rank()].numel()}"
        )


def scatter(
    tensor: Tensor, scatter_list: list[Tensor] | None = None, src: int | None = None, group: Any = None,
    async_op: bool = False, group_src: int | None = None,
) -> Work | None:  # fmt: skip
    """Gives every rank one tensor of the list that the rank `src` has."""
    out = _tensor(tensor, "tensor")
    if (found := group_of(group, "scatter")) is None:
        return None
    source = _place(found, src, group_src, "scatter", "src")
    xs = _tensors(scatter_list or [], "scatter_list")
    if found.rank() != source and xs:
        raise ValueError("Argument ``scatter_list`` must NOT be specified on non-source ranks.")
    if found.rank() == source:
        _expect_lengths("scatter", "scatter_list", xs, found, out)
    into, flats = _Flat(out), [_Flat(x) for x in xs]
    given: list[Tensor | None] = [*(x.row for x in flats)] or [None] * found.size()
    rows = [into.row if q == source else None for q in range(found.size())]
    text = f"scatter from rank {found.ranks[source]} of {out.dtype.name}"
    return _run(found, text, lambda s: collectives.all_to_all(s, given, rows), async_op, [into], out)


def reduce_scatter(
    output: Tensor, input_list: list[Tensor], op: Any = ReduceOp.SUM, group: Any = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """Puts the tensors of all ranks' lists together, place by place; each rank gets that of its number."""
    out = _tensor(output, "output")
    xs = _tensors(input_list, "input_list")
    if (found := group_of(group, "reduce_scatter")) is None:
        return None
    check("reduce_scatter", op, out.dtype)
    _expect_lengths("reduce_scatter", "input_list", xs, found, out)
    into, flats = _Flat(out), [_Flat(x) for x in xs]
    rows = [x.row for x in flats]
    text = f"reduce_scatter ({op.name}) of {out.dtype.name}"
    return _run(
        found, text, lambda s: collectives.reduce_scatter(s, rows, into.row, op), async_op, [into], out
    )


def reduce_scatter_tensor(
    output: Tensor, input: Tensor, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """As `reduce_scatter` of one tensor, cut into as many parts as there are ranks."""
    out = _tensor(output, "output")
    x = _tensor(input, "input")
    if (found := group_of(group, "reduce_scatter_tensor")) is None:
        return None
    check("reduce_scatter_tensor", op, out.dtype)
    _one_dtype("reduce_scatter_tensor", [out, x])
    if x.numel() != out.numel() * found.size():
        raise ValueError("input tensor must be the same size as output size times world size")
    into, flat = _Flat(out), _Flat(x)
    rows = list(flat.row.view(found.size(), -1).unbind(0)) if out.numel() else [into.row] * found.size()
    text = f"reduce_scatter_tensor ({op.name}) of {_like(out)}"
    return _run(
        found, text, lambda s: collectives.reduce_scatter(s, rows, into.row, op), async_op, [into], out
    )


def all_to_all(
    output_tensor_list: list[Tensor], input_tensor_list: list[Tensor], group: Any = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """Gives each rank one tensor of this rank's list, and gets one of each rank's; sizes are any."""
    outs = _tensors(output_tensor_list, "output_tensor_list")
    xs = _tensors(input_tensor_list, "input_tensor_list")
    if (found := group_of(group, "all_to_all")) is None:
        return None
    for argument, given in (("output_tensor_list", outs), ("input_tensor_list", xs)):
        if len(given) != found.size():
            raise ValueError(
                f"all_to_all: {argument} has {len(given)} tensors for a group of {found.size()} ranks"
            )
    dtype = _one_dtype("all_to_all", [*outs, *xs])
    flats, into = [_Flat(x) for x in xs], [_Flat(y) for y in outs]
    given, rows = [x.row for x in flats], [y.row for y in into]
    text = f"all_to_all of {dtype.name}"
    return _run(found, text, lambda s: collectives.all_to_all(s, given, rows), async_op, into, outs)


def all_to_all_single(
    output: Tensor, input: Tensor, output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None, group: Any = None, async_op: bool = False,
) -> Work | None:  # fmt: skip
    """As `all_to_all` of one tensor, cut along its first dim: into equal parts unless sizes are given."""
    out = _tensor(output, "output")
    x = _tensor(input, "input")
    if (found := group_of(group, "all_to_all_single")) is None:
        return None
    dtype = _one_dtype("all_to_all_single", [out, x])
    into, flat = _Flat(out), _Flat(x)
    rows = _cut("output", into.row, out, output_split_sizes, found.size())
    given = _cut("input", flat.row, x, input_split_sizes, found.size())
    text = f"all_to_all_single of {dtype.name}"
    return _run(found, text, lambda s: collectives.all_to_all(s, given, rows), async_op, [into], out)


def _cut(which: str, row: Tensor, x: Tensor, sizes: Sequence[int] | None, parts: int) -> list[Tensor]:
    """The elements of each part of a tensor's first dim."""
    length = x.shape[0] if x.ndim else 1
    if not sizes:
        if length % parts:
            raise RuntimeError(
                f"Tensor's dim 0 does not divide equally across group size ({which}: {length})"
            )
        sizes = [length // parts] * parts
    if len(sizes) != parts:
        raise RuntimeError(f"Number of tensor splits not equal to group size ({which}: {len(sizes)})")
    if sum(sizes) != length or min(sizes) < 0:
        raise RuntimeError(f"Split sizes doesn't match total dim 0 size ({which}: {list(sizes)} of {length})")
    each = row.numel() // length if length else 0
    return list(row.split([n * each for n in sizes]))


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Work | None:
    """Waits until every rank of the group is here."""
    if (found := group_of(group, "barrier")) is None:
        return None
    return found.run("barrier", collectives.barrier, async_op)


def monitored_barrier(
    group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """`barrier`, with a timeout of its own; DistBackendError names the ranks that did not come in time."""
    if (found := group_of(group, "monitored_barrier")) is not None:
        found.run("monitored_barrier", collectives.barrier, False, timeout=timeout)


# ---- from rank to rank ----


def isend(
    tensor: Tensor, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
) -> Work | None:
    """Sends a tensor to a rank; it must stay as it is until that is done."""
    x = _tensor(tensor, "tensor")
    if (found := group_of(group, "isend")) is None:
        return None
    if dst is None and group_dst is None:
        raise ValueError("isend: destination rank is not specified")
    to = _place(found, dst, group_dst, "isend", "dst")
    if to == found.rank():
        raise ValueError("Invalid destination rank: destination rank should not be the same as the rank of "
                         "the current process.")  # fmt: skip
    found.expect_usable("isend")
    handle, flat = Work(x), _Flat(x)

    def done(error: Exception | None, *_: int) -> None:
        del held[:]
        handle._complete(error)

    held = [flat]
    found.mail.send(to, tag, x.dtype.name, _bytes(flat.row), done)
    return handle


def irecv(
    tensor: Tensor, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
) -> Work | None:
    """Receives a tensor from a rank, any unless given."""
    x = _tensor(tensor, "tensor")
    if (found := group_of(group, "irecv")) is None:
        return None
    source = ANY if src is None and group_src is None else _place(found, src, group_src, "irecv", "src")
    if source == found.rank():
        raise ValueError("Invalid source rank: source rank should not be the same as the rank of the current "
                         "process.")  # fmt: skip
    found.expect_usable("irecv")
    handle, flat = Work(x), _Flat(x)

    def done(error: Exception | None, sender: int = -1) -> None:
        if error is None:
            handle._source = found.ranks[sender]
            try:
                flat.back()
            except Exception as failed:
                error = failed
        handle._complete(error)

    receipt = Receipt(source, tag, x.dtype.name, _bytes(flat.row), done)
    handle._cancel = lambda: found.mail.cancel(receipt)
    found.mail.receive(receipt)
    return handle


def _bytes(row: Tensor) -> memoryview:
    whole: Any = row.view(_core.uint8)
    return memoryview(whole) if row.numel() else memoryview(bytearray())


def send(
    tensor: Tensor, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
) -> None:
    """Sends a tensor to a rank; returns when the tensor may be changed."""
    _wait(isend(tensor, dst, group, tag, group_dst), group)


def recv(
    tensor: Tensor, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
) -> int:
    """Receives a tensor from a rank, any unless given: the rank that sent it, -1 outside the group."""
    return _wait(irecv(tensor, src, group, tag, group_src), group)


def _wait(handle: Work | None, given: Any) -> int:
    if handle is None:
        return -1
    found = group_of(given, "recv")
    try:
        handle.wait(found.timeout if found else None)
    except BaseException:
        handle._cancel()
        raise
    return handle.source_rank()


class P2POp:
    """A send or receive of `batch_isend_irecv`: `isend` or `irecv`, and its arguments."""

    def __init__(
        self, op: Any, tensor: Tensor, peer: int | None = None, group: Any = None, tag: int = 0,
        group_peer: int | None = None,
    ) -> None:  # fmt: skip
        if op not in (isend, irecv):
            raise ValueError(
                "Invalid ``op``. Expected ``op`` to be of type ``torch.distributed.isend`` or "
                "``torch.distributed.irecv``."
            )
        self.op, self.tensor, self.group, self.tag = op, _tensor(tensor, "tensor"), group, tag
        self.peer, self.group_peer = peer, group_peer


def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[Work]:
    """Makes all sends and receives of a list at once."""
    if not p2p_op_list or not all(isinstance(op, P2POp) for op in p2p_op_list):
        raise ValueError("Invalid ``p2p_op_list``. Each op is expected to to be of type ``P2POp``.")
    made = [op.op(op.tensor, op.peer, op.group, op.tag, op.group_peer) for op in p2p_op_list]
    return [work for work in made if work is not None]
