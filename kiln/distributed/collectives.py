"""Collectives as steps of a board (board.py): what every rank gives, takes, adds up.

Tensors are flat and contiguous, and go by in parts that fit a piece. Values of several ranks are put together
in the order of the ranks (reduce_op.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kiln._core import Tensor
from kiln.distributed.board import Board, Call, Sizes
from kiln.distributed.links import Deadline
from kiln.distributed.reduce_op import ReduceOp, fold


class Steps:
    """The steps of one call: the first says what the call is."""

    def __init__(self, board: Board, number: int, text: str, deadline: Deadline) -> None:
        self.board, self.deadline = board, deadline
        self._call: Call | None = Call(number, text)

    def will(self, sends: dict[int, int], takes: dict[int, int], steps: int) -> None:
        """What the text does not tell: bytes to and from each rank, and the steps this rank needs."""
        assert self._call is not None
        self._call = self._call._replace(sends=sends, takes=takes, steps=steps)

    def step(self, **given: Any) -> int:
        """The next step. The most steps that any rank needs, of the first."""
        call, self._call = self._call, None
        return self.board.step(self.deadline, call, Sizes(**given))


def _room(board: Board, dtype: Any) -> int:
    return board.room // int(dtype.itemsize)


def _part(n: int, at: int, room: int) -> slice:
    return slice(min(at * room, n), min((at + 1) * room, n))


def barrier(steps: Steps) -> None:
    """Returns when every rank came."""
    steps.step()


def all_reduce(steps: Steps, x: Tensor, op: ReduceOp, to: int | None = None) -> None:
    """Every rank's x, put together, in x; with `to`, on that rank alone."""
    board, dtype, n = steps.board, x.dtype, len(x)
    size, rank, width = board.size, board.rank, dtype.itemsize
    room = _room(board, dtype)
    everybody = range(size)
    if n <= room:  # each rank adds up all of them
        board.open(dtype, n).copy_(x)
        steps.step(opened=n * width, takes_opened=dict.fromkeys(everybody, n * width))
        if to in (None, rank):
            fold(op, [x if q == rank else board.opened(q, dtype, n) for q in everybody], x)
        return
    # Each rank adds up its part of a chunk, while the next chunk is given out; in a step the sums go to all.
    chunks = -(-n // (size * room))

    def part(chunk: int, q: int) -> slice:
        return _part(n, chunk * size + q, room)

    def length(chunk: int, q: int) -> int:
        own = part(chunk, q)
        return own.stop - own.start if 0 <= chunk < chunks else 0

    for chunk in range(chunks + 1):
        if chunk < chunks:
            for q in board.peers:
                board.piece(q, dtype, length(chunk, q)).copy_(x[part(chunk, q)])
        if chunk:
            count = length(chunk - 1, rank)
            own = x[part(chunk - 1, rank)]
            values = [own if q == rank else board.given(q, dtype, count) for q in everybody]
            fold(op, values, board.open(dtype, count))
        steps.step(
            pieces={q: length(chunk, q) * width for q in board.peers if chunk < chunks},
            takes={q: length(chunk, rank) * width for q in board.peers if chunk < chunks},
            opened=length(chunk - 1, rank) * width,
            takes_opened={q: length(chunk - 1, q) * width for q in everybody if chunk},
        )
        if chunk and to in (None, rank):
            for q in everybody:
                x[part(chunk - 1, q)].copy_(board.opened(q, dtype, length(chunk - 1, q)))


def broadcast(steps: Steps, x: Tensor, source: int) -> None:
    """The source's x in every rank's."""
    board, dtype, n = steps.board, x.dtype, len(x)
    room, gives = _room(board, dtype), board.rank == source
    for at in range(max(-(-n // room), 1)):
        part = _part(n, at, room)
        count = part.stop - part.start
        if gives:
            board.open(dtype, count).copy_(x[part])
        nbytes = count * dtype.itemsize
        steps.step(opened=nbytes if gives else 0, takes_opened={} if gives else {source: nbytes})
        if not gives:
            x[part].copy_(board.opened(source, dtype, count))


def all_gather(steps: Steps, x: Tensor, outs: Sequence[Tensor]) -> None:
    """Every rank's x in outs[rank], which may be of other lengths."""
    board, dtype, width = steps.board, x.dtype, x.dtype.itemsize
    room = _room(board, dtype)
    steps.will(
        dict.fromkeys(board.peers, len(x) * width), {q: len(outs[q]) * width for q in board.peers},
        -(-len(x) // room),
    )  # fmt: skip
    at, needed = 0, 1
    while at < needed:
        parts = [_part(len(y), at, room) for y in outs]
        counts = [part.stop - part.start for part in parts]
        own = counts[board.rank]
        board.open(dtype, own).copy_(x[parts[board.rank]])
        given = {q: count * width for q, count in enumerate(counts)}
        said = steps.step(opened=own * width, takes_opened=given)
        needed = needed if at else said
        for q, y in enumerate(outs):
            y[parts[q]].copy_(board.opened(q, dtype, counts[q]))
        at += 1


def all_to_all(steps: Steps, given: Sequence[Tensor | None], outs: Sequence[Tensor | None]) -> None:
    """given[q] of this rank in outs[rank] of q; None: nothing. All of one dtype, lengths of any."""
    board = steps.board
    dtype = next(x.dtype for x in (*given, *outs) if x is not None)
    width, room = dtype.itemsize, _room(board, dtype)
    to = [0 if x is None else len(x) for x in given]
    of = [0 if y is None else len(y) for y in outs]
    if to[board.rank] != of[board.rank]:
        raise ValueError(
            f"rank {board.rank} gives itself {to[board.rank]} elements and takes {of[board.rank]}"
        )
    steps.will(
        {q: to[q] * width for q in board.peers},
        {q: of[q] * width for q in board.peers},
        max(-(-max(to) // room), -(-max(of) // room)),
    )
    at, needed = 0, 1
    while at < needed:
        sent, taken = [_part(n, at, room) for n in to], [_part(n, at, room) for n in of]
        for q, x in enumerate(given):
            if x is not None:
                board.piece(q, dtype, sent[q].stop - sent[q].start).copy_(x[sent[q]])
        said = steps.step(
            pieces={q: (s.stop - s.start) * width for q, s in enumerate(sent)},
            takes={q: (s.stop - s.start) * width for q, s in enumerate(taken)},
        )
        needed = needed if at else said
        for q, y in enumerate(outs):
            if y is not None:
                y[taken[q]].copy_(board.given(q, dtype, taken[q].stop - taken[q].start))
        at += 1


def reduce_scatter(steps: Steps, given: Sequence[Tensor], out: Tensor, op: ReduceOp) -> None:
    """given[rank] of every rank, put together, in out."""
    board, dtype, width = steps.board, out.dtype, out.dtype.itemsize
    room, everybody = _room(board, dtype), range(board.size)
    steps.will(
        {q: len(given[q]) * width for q in board.peers},
        dict.fromkeys(board.peers, len(out) * width),
        -(-max(map(len, given)) // room),
    )
    at, needed = 0, 1
    while at < needed:
        parts = [_part(len(x), at, room) for x in given]
        for q, x in enumerate(given):
            board.piece(q, dtype, parts[q].stop - parts[q].start).copy_(x[parts[q]])
        own = parts[board.rank]
        count = own.stop - own.start
        said = steps.step(
            pieces={q: (p.stop - p.start) * width for q, p in enumerate(parts)},
            takes=dict.fromkeys(everybody, count * width),
        )
        needed = needed if at else said
        fold(op, [board.given(q, dtype, count) for q in everybody], out[own])
        at += 1
