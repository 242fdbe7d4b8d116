"""What a loader and one of its workers say to each other: whole messages over a pair of sockets, with memory.

    message    (table, body, returned, lost, forgotten), pickled; both sides are the user's own program
    body       an object pickled without the memory of its tensors and arrays; None: it lies in memory too
    table      where that memory is: (number of a block, bytes, capacity of a new block or 0)

Memory is in blocks, which the side that fills them makes and numbers: a descriptor without a name, which goes
along with the message that first uses the block. The other side maps it once. A block is filled again when no
tensor on either side looks at it: touching new pages costs several times what filling them costs. `returned`
are the numbers of the other's blocks whose tensors have gone here, `lost` those that must not be filled
again, as a fork has copied their tensors, and `forgotten` one's own that are given up.
"""

from __future__ import annotations

import errno
import os
import pickle
import socket
from array import array
from collections import deque
from io import BytesIO
from typing import Any

from kiln import _core, ops
from kiln._core import Tensor
from kiln.ops.views.reinterpret import elements
from kiln.ops.views.shared import new_descriptor
from kiln.utils.data._utils.worker import SMALL

INLINE = 16 << 10  # bytes of a message; a longer body lies in memory
MOST_DESCRIPTORS = 200  # of one message; the system takes 253
MOST_ENTRIES = 1000  # of a message's table
LONGEST = 96 << 10  # more than any message has
KEPT_BLOCKS, KEPT_BYTES = 64, 256 << 20  # free ones that wait to be filled again
_FULL = (errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS)  # of all sockets, or of descriptors on their way
_SOL_RIGHTS = (socket.SOL_SOCKET, socket.SCM_RIGHTS)


class Block:
    """Memory of one side, which the other has mapped as soon as the block was sent."""

    __slots__ = ("capacity", "descriptor", "held", "memory", "number", "sent")

    def __init__(self, number: int, capacity: int) -> None:
        self.number, self.capacity = number, capacity
        self.descriptor = new_descriptor(capacity)  # until it is sent
        self.memory = _core.map_shared(self.descriptor, capacity, None)
        self.sent = 0  # times it was sent and has not been returned
        self.held = False  # by a tensor here

    def close(self) -> None:
        """Closes the descriptor; the memory stays mapped."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    __del__ = close


class Filled:
    """What a tensor over a block of this side keeps."""

    __slots__ = ("block", "channel")

    def __init__(self, channel: Channel, block: Block) -> None:
        self.channel, self.block = channel, block
        block.held = True

    def __del__(self) -> None:
        self.block.held = False
        self.channel._rest(self.block)


class Lent:
    """What a tensor over a block of the other side keeps."""

    __slots__ = ("channel", "forks", "number")

    def __init__(self, channel: Channel, number: int) -> None:
        self.channel, self.number, self.forks = channel, number, channel.forks

    def __del__(self) -> None:
        channel = self.channel
        (channel.returned if self.forks == channel.forks else channel.lost).append(self.number)


class Channel:
    """One end of it. Nothing blocks: `receive` gives None where nothing has come."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.socket = end
        self.waiting: deque[tuple[bytes, list[Block]]] = deque()  # messages the socket has no room for
        self.forks = 0  # of this process since the channel was made
        self.returned: list[int] = []
        self.lost: list[int] = []
        self._forgotten: list[int] = []
        self._own: dict[int, Block] = {}
        self._free: list[Block] = []  # the longest free first
        self._made = 0
        self._theirs: dict[int, Tensor] = {}
        self._buffer = memoryview(bytearray(LONGEST))

    def close(self) -> None:
        """Ends it: the other side reads the end of messages. Memory stays as long as tensors look at it."""
        self.socket.close()
        self.waiting.clear()

    def forget(self) -> None:
        """Gives up all memory that no tensor looks at."""
        self._own.clear()
        self._free.clear()
        self._theirs.clear()

    # ---- memory ----

    def take(self, nbytes: int) -> Tensor:
        """Memory that can be sent, of more than 0 bytes: a uint8 tensor."""
        fits = [b for b in list(self._free) if nbytes <= b.capacity <= nbytes + nbytes // 2 + INLINE]
        block = min(fits, key=lambda b: b.capacity) if fits else self._new_block(nbytes)
        if fits:
            self._free.remove(block)
        return _core.lease(block.memory, nbytes, Filled(self, block))

    def _new_block(self, nbytes: int) -> Block:
        while len(self._free) > KEPT_BLOCKS or sum(b.capacity for b in self._free) > KEPT_BYTES:
            self._forget(self._free.pop(0))
        self._made += 1
        block = self._own[self._made] = Block(self._made, -(-nbytes // 4096) * 4096)
        return block

    def _forget(self, block: Block) -> None:
        del self._own[block.number]
        self._forgotten.append(block.number)

    def _rest(self, block: Block) -> None:
        """A block may be filled again, if nobody looks at it."""
        if not block.sent and not block.held and block.number in self._own:
            self._free.append(block)

    # ---- out ----

    def send(self, value: Any) -> None:
        """Sends an object, or lets it wait where the socket is full. EOFError where nobody reads."""
        beside = _Beside(self)
        file = BytesIO()
        _Packer(file, beside).dump(value)
        whole = file.getvalue()
        body = None if len(whole) > INLINE else whole
        if body is None:
            beside.add(whole)
        blocks = beside.blocks
        fresh = [b for b, _ in blocks if b.descriptor >= 0 and not b.sent]
        table = []
        for block, nbytes in blocks:
            table.append((block.number, nbytes, block.capacity if block in fresh and not block.sent else 0))
            block.sent += 1
        message = (table, body, self._said(self.returned), self._said(self.lost), self._said(self._forgotten))
        self.waiting.append((pickle.dumps(message, 5), fresh))
        self.flush()

    @staticmethod
    def _said(numbers: list[int]) -> list[int]:
        """Takes what is to be said off a list that grows meanwhile."""
        said = numbers[:2000]
        del numbers[: len(said)]
        return said

    def flush(self) -> None:
        """Sends what waits, as far as there is room. EOFError where nobody reads."""
        while self.waiting:
            message, fresh = self.waiting[0]
            rights = array("i", [b.descriptor for b in fresh])
            try:
                self.socket.sendmsg([message], [(*_SOL_RIGHTS, rights)] if fresh else [])
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _FULL:
                    return
                raise EOFError(str(error)) from error
            self.waiting.popleft()
            for block in fresh:
                block.close()

    # ---- in ----

    def receive(self) -> tuple[Any] | None:
        """The next object, in a tuple; None where there is none yet. EOFError where none will come."""
        room = socket.CMSG_SPACE(4 * MOST_DESCRIPTORS)
        try:
            length, rights, flags, _ = self.socket.recvmsg_into([self._buffer], room, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return None
        except OSError as error:
            raise EOFError(str(error)) from error
        if not length:
            raise EOFError("nobody writes")
        descriptors = array("i")
        for level, kind, content in rights:
            if (level, kind) == _SOL_RIGHTS:
                descriptors.frombytes(content[: len(content) // 4 * 4])
        message = pickle.loads(self._buffer[:length])
        try:
            return (self._opened(message, descriptors, bool(flags & socket.MSG_CTRUNC)),)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _opened(self, message: Any, descriptors: Any, truncated: bool) -> Any:
        table, body, returned, lost, forgotten = message
        for number in returned:
            self._back(number, self._rest)
        for number in lost:
            self._back(number, self._forget)
        if truncated:
            raise RuntimeError(
                "Too many open files. Communication with the workers is no longer possible. Please increase "
                "the limit using `ulimit -n` in the shell."
            )
        fresh = iter(descriptors)
        memory = []
        for number, nbytes, capacity in table:
            if capacity:
                self._theirs[number] = _core.map_shared(next(fresh), capacity, None)
            memory.append(_core.lease(self._theirs[number], nbytes, Lent(self, number)))
        for number in forgotten:
            self._theirs.pop(number, None)
        return pickle.loads(memory.pop() if body is None else body, buffers=memory)

    def _back(self, number: int, then: Any) -> None:
        block = self._own.get(number)
        if block is not None:
            block.sent -= 1
            then(block)


class _Packer(pickle.Pickler):
    """Pickles an object, but for the memory of its tensors and arrays."""

    def __init__(self, file: BytesIO, beside: _Beside) -> None:
        super().__init__(file, 5, buffer_callback=beside.stays)
        self.beside = beside

    def reducer_override(self, value: Any) -> Any:
        """How tensors are made again; everything else goes its own way."""
        if not isinstance(value, Tensor):
            return NotImplemented
        if id(value) in self.beside.flat:
            return _itself, (pickle.PickleBuffer(value),)
        if value.requires_grad and not value.is_leaf:
            raise RuntimeError(
                "Cowardly refusing to serialize non-leaf tensor which requires_grad: gradients do not flow "
                "between processes; send x.detach()"
            )
        if type(value) is not Tensor:
            return _of_class, (type(value), value.detach(), value.requires_grad, vars(value))
        return self.beside.tensor(value)


class _Beside:
    """The memory of a message's tensors and arrays: in which blocks it is. Knows no pickler: that would be a
    circle, which keeps the blocks until it is found.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.blocks: list[tuple[Block, int]] = []
        self.fresh = 0  # of them
        self.flat: dict[int, Any] = {}  # by id: what the blocks hold, as one tensor each
        self.of_storage: dict[Any, Any] = {}  # the same, by where it was and its dtype

    def add(self, content: Any) -> None:
        """Puts bytes into a block of their own."""
        flat = self.channel.take(len(content))
        memoryview(flat)[:] = content
        self._note(flat)

    def _note(self, flat: Any) -> None:
        block = flat._shared.block
        self.fresh += block.descriptor >= 0
        self.blocks.append((block, flat.nbytes))
        self.flat[id(flat)] = flat

    def _full(self) -> bool:
        return self.fresh >= MOST_DESCRIPTORS - 1 or len(self.blocks) >= MOST_ENTRIES

    def stays(self, buffer: pickle.PickleBuffer) -> bool:
        """Whether the memory stays in the body."""
        view = buffer.raw()
        if id(view.obj) in self.flat:
            return False
        if view.nbytes < SMALL or self._full():
            return True
        self.add(view)
        return False

    def tensor(self, x: Any) -> Any:
        """How a tensor is made again."""
        about = (x.dtype.name, tuple(x.shape))
        used = x.nbytes
        if used < SMALL or self._full():
            flat = x.detach().contiguous().view(-1).view(_core.uint8) if used else b""
            return _small, (bytearray(memoryview(flat)), *about, x.requires_grad)
        return _large, (*self._memory_of(x, used), *about, x.requires_grad)

    def _memory_of(self, x: Any, used: int) -> tuple[Any, tuple[int, ...], int]:
        """A tensor's memory in a block, and how the tensor looks at it: (memory, strides, offset).

        All that is behind it where that is not much more, so that tensors of one storage still are.
        """
        found = x._shared
        here = type(found) is Filled and found.channel is self.channel
        whole = here or x._memory <= 2 * used
        x = x.detach() if whole else x.detach().contiguous()
        key = (x.data_ptr() - x.storage_offset() * x.element_size(), x.dtype)
        flat = self.of_storage.get(key) if whole else None
        if flat is None:
            content = elements(x, x.dtype) if whole else x.view(-1)
            flat = content if here else self.channel.take(content.nbytes)
            if not here:
                elements(flat, x.dtype).copy_(content)
            self._note(flat)
            if whole:
                self.of_storage[key] = flat
        return flat, x.stride(), x.storage_offset() if whole else 0


def _itself(memory: Tensor) -> Tensor:
    return memory


def _of_class(kind: Any, plain: Any, requires_grad: bool, attributes: dict[str, Any]) -> Any:
    """A tensor of a class that is more than Tensor, and what it knows."""
    made = Tensor._make_subclass(kind, plain, requires_grad)
    vars(made).update(attributes)
    return made


def _small(content: bytearray, dtype: str, sizes: tuple[int, ...], requires_grad: bool) -> Tensor:
    """A tensor whose memory came in the body."""
    kind = getattr(_core, dtype)
    made: Tensor = ops.empty(sizes, dtype=kind)
    if content:
        made = ops.frombuffer(content, dtype=kind).clone().view(sizes)
    return made.requires_grad_(requires_grad)


def _large(
    memory: Tensor,
    strides: tuple[int, ...],
    offset: int,
    dtype: str,
    sizes: tuple[int, ...],
    requires_grad: bool,
) -> Tensor:
    """A tensor over memory that came beside the body."""
    made: Tensor = elements(memory, getattr(_core, dtype)).as_strided(sizes, strides, offset).detach()
    return made.requires_grad_(requires_grad)
