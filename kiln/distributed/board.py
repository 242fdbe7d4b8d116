"""Steps: in each, every rank of a group gives a piece of memory to each other rank, and one to all.

    board.piece(peer, dtype, n)    where this rank puts n elements for a peer in the coming step
    board.open(dtype, n)           where it puts n elements for all
    board.step(...)                every rank is here; in a call's first step each says what it does
    board.given(peer, dtype, n)    what a peer gave this rank in the last step
    board.opened(peer, dtype, n)   what it gave to all

A collective is a few steps with copies and sums between them, the same whatever carries the pieces. What was
given in a step can be read until the next but one begins. `room` is the most bytes of a piece.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import Any, NamedTuple

from kiln import _core, ops
from kiln._core import Tensor
from kiln.distributed.errors import DistBackendError
from kiln.distributed.links import Deadline, Links
from kiln.ops.views.reinterpret import elements
from kiln.ops.views.shared import Segment, new_descriptor

_MOST = 1 << 20  # bytes of a piece: those of a step stay in a cache
_ALL = 64 << 20  # bytes of all pieces of a group on one machine
_LEAST = 4 << 10
_SAID = Struct("<QQqqQ")  # number of the call, hash of what it is, bytes to and from the peer, steps needed
_LENGTH = Struct("<I")


class Mismatch(RuntimeError):
    """Ranks do different things."""


class Call(NamedTuple):
    """What a rank does in a collective, as others are told."""

    number: int  # of the group's calls
    text: str  # the function, dtypes, sizes: the same on every rank
    sends: Mapping[int, int] = {}  # bytes for each rank in all, where that is not told by the text
    takes: Mapping[int, int] = {}  # bytes expected from each rank
    steps: int = 1  # how many steps this rank needs


class Sizes(NamedTuple):
    """The bytes of the pieces of one step."""

    pieces: Mapping[int, int] = {}  # for each rank
    opened: int = 0  # for all
    takes: Mapping[int, int] = {}  # from each rank
    takes_opened: Mapping[int, int] = {}  # of what each gave to all


@lru_cache(maxsize=1024)
def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _unexpected(source: int, gives: int, target: int, expects: int) -> str:
    return f"rank {source} of the group gives {gives} bytes to rank {target}, which expects {expects}"


class Board:
    """Pieces of a group's ranks; each class says how they get there."""

    _memory: Tensor  # of all pieces that this process sees

    def __init__(self, rank: int, size: int, links: Any) -> None:
        self.rank, self.size, self.links = rank, size, links
        self.peers = [peer for peer in range(size) if peer != rank]
        room = _ALL // (2 * size * (size + 1))
        self.room = max(min(room, _MOST), _LEAST) & -64
        self.turn = 0  # of the two halves, the one for the coming step
        self._said = bytearray(_SAID.size * size)
        self._views: dict[tuple[int, Any], Tensor] = {}

    def _agree(self, call: Call, deadline: Deadline) -> int:
        """Tells every rank what this one does. The most steps that any needs. RuntimeError if they do
        different things.
        """
        own = _hash(call.text)
        told = {
            peer: _SAID.pack(call.number, own, call.sends.get(peer, -1), call.takes.get(peer, -1), call.steps)
            for peer in self.peers
        }
        width, said = _SAID.size, memoryview(self._said)
        self.links.exchange(told, {p: said[p * width : (p + 1) * width] for p in self.peers}, deadline)
        steps, others = call.steps, []
        for peer in self.peers:
            number, text, sends, takes, needed = _SAID.unpack_from(self._said, peer * width)
            steps = max(steps, needed)
            if (number, text) != (call.number, own):
                others.append(peer)
            elif takes != call.sends.get(peer, -1):
                raise DistBackendError(_unexpected(self.rank, call.sends[peer], peer, takes))
            elif sends != call.takes.get(peer, -1):
                raise DistBackendError(_unexpected(peer, sends, self.rank, call.takes[peer]))
        if others:
            self._differ(call, deadline)
        return steps

    def _differ(self, call: Call, deadline: Deadline) -> None:
        """Raises what every rank does, where they differ: each of them comes here."""
        own = f"call {call.number}, {call.text}".encode()
        lengths = {peer: bytearray(_LENGTH.size) for peer in self.peers}
        self.links.exchange(
            {peer: _LENGTH.pack(len(own)) for peer in self.peers},
            {peer: memoryview(x) for peer, x in lengths.items()},
            deadline,
        )
        texts = {peer: bytearray(min(_LENGTH.unpack(x)[0], 1 << 20)) for peer, x in lengths.items()}
        self.links.exchange(
            dict.fromkeys(self.peers, own), {p: memoryview(x) for p, x in texts.items()}, deadline
        )
        texts[self.rank] = bytearray(own)
        said = "; ".join(f"rank {rank}: {texts[rank].decode(errors='replace')}" for rank in sorted(texts))
        raise Mismatch(f"Detected mismatch between collectives on ranks: {said}")

    def step(self, deadline: Deadline, call: Call | None, sizes: Sizes) -> int:
        """Every rank is here, and what each put into its pieces is where it is read. The first step of a call
        says what the call is: the most steps that any rank needs come back.
        """
        steps = self._agree(call, deadline) if call else 1
        self._carry(deadline, sizes, call is not None)
        self.turn ^= 1
        return steps

    def _carry(self, deadline: Deadline, sizes: Sizes, met: bool) -> None:
        """Brings the pieces of this step to who reads them. `met`: all ranks have just met."""
        raise NotImplementedError

    def piece(self, peer: int, dtype: Any, count: int) -> Tensor:
        """Where this rank puts elements for a rank."""
        return self._of(self._own(self.turn), peer, dtype, count)

    def open(self, dtype: Any, count: int) -> Tensor:
        """Where it puts elements for all."""
        return self._of(self._own(self.turn), self.size, dtype, count)

    def given(self, peer: int, dtype: Any, count: int) -> Tensor:
        """What a rank gave this one in the last step."""
        return self._of(*self._from(peer, self.turn ^ 1), dtype, count)

    def opened(self, peer: int, dtype: Any, count: int) -> Tensor:
        """What a rank gave to all in the last step."""
        return self._of(*self._opened(peer, self.turn ^ 1), dtype, count)

    # where a half of a rank's pieces lie among all, and which of them a call means
    def _own(self, turn: int) -> int:
        raise NotImplementedError

    def _from(self, peer: int, turn: int) -> tuple[int, int]:
        raise NotImplementedError

    def _opened(self, peer: int, turn: int) -> tuple[int, int]:
        raise NotImplementedError

    def _of(self, half: int, slot: int, dtype: Any, count: int) -> Tensor:
        place = half * (self.size + 1) + slot
        key = place, dtype
        found = self._views.get(key)
        if found is None:
            whole = elements(self._memory, dtype)
            width = self.room // dtype.itemsize
            found = self._views[key] = whole[place * width : (place + 1) * width]
        return found if count == len(found) else found[:count]


class SharedBoard(Board):
    """Of ranks on one machine: all pieces lie in memory that they share.

        rank 0: half 0 | half 1 | rank 1: half 0 | ...        a half: a piece for each rank, one for all

    A rank writes a half two steps later again: each who came to the step between has read it.
    """

    def __init__(self, rank: int, size: int, links: Links, deadline: Deadline) -> None:
        super().__init__(rank, size, links)
        nbytes = 2 * size * (size + 1) * self.room
        if rank == 0:
            descriptor = new_descriptor(nbytes)
            for s in links.sockets.values():
                socket.send_fds(s, [b"m"], [descriptor])
        else:
            descriptor = _descriptor_from(links.sockets[0], deadline)
        segment = Segment(descriptor)
        self._memory = _core.map_shared(descriptor, nbytes, segment)
        self._step = bytes(1)
        self._came = bytearray(size)

    def _carry(self, deadline: Deadline, sizes: Sizes, met: bool) -> None:
        if not met:  # what is read lies there already
            came = memoryview(self._came)
            self.links.exchange(
                dict.fromkeys(self.peers, self._step), {p: came[p : p + 1] for p in self.peers}, deadline
            )

    def _own(self, turn: int) -> int:
        return 2 * self.rank + turn

    def _from(self, peer: int, turn: int) -> tuple[int, int]:
        return 2 * peer + turn, self.rank

    def _opened(self, peer: int, turn: int) -> tuple[int, int]:
        return 2 * peer + turn, self.size


def _descriptor_from(s: socket.socket, deadline: Deadline) -> int:
    s.settimeout(deadline.left() or 0.001)
    try:
        data, descriptors, _, _ = socket.recv_fds(s, 1, 1)
    except OSError as error:
        raise DistBackendError(f"init_process_group: rank 0 shared no memory ({error})") from error
    finally:
        s.setblocking(False)
    if not data or len(descriptors) != 1:
        raise DistBackendError("init_process_group: rank 0 shared no memory")
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


class SentBoard(Board):
    """Of ranks on several machines: pieces are sent over their connections.

    0, 1: what this rank gives, by half      2, 3: what came from each, by half      4, 5: what they opened
    """

    def __init__(self, rank: int, size: int, links: Any) -> None:
        super().__init__(rank, size, links)
        self._memory = ops.empty((6 * (size + 1) * self.room,), dtype=_core.uint8)
        self._bytes = memoryview(self._memory)

    def _carry(self, deadline: Deadline, sizes: Sizes, met: bool) -> None:
        turn, at, own = self.turn, self._at, self.rank
        pieces, opened, takes, takes_opened = sizes
        self.links.exchange(
            {p: at(turn, p, n) for p, n in pieces.items() if p != own},
            {p: at(2 + turn, p, n) for p, n in takes.items() if p != own},
            deadline,
        )
        self.links.exchange(
            {p: at(turn, self.size, opened) for p in self.peers if opened},
            {p: at(4 + turn, p, n) for p, n in takes_opened.items() if p != own},
            deadline,
        )
        if count := pieces.get(own):
            at(2 + turn, own, count)[:] = at(turn, own, count)
        if opened:
            at(4 + turn, own, opened)[:] = at(turn, self.size, opened)

    def _at(self, half: int, slot: int, nbytes: int) -> memoryview:
        start = (half * (self.size + 1) + slot) * self.room
        return self._bytes[start : start + nbytes]

    def _own(self, turn: int) -> int:
        return turn

    def _from(self, peer: int, turn: int) -> tuple[int, int]:
        return 2 + turn, peer

    def _opened(self, peer: int, turn: int) -> tuple[int, int]:
        return 4 + turn, peer
