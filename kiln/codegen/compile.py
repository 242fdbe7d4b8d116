"""From a pattern to object code: memory, then disk, then LLVM.

    key = H(pattern text)
    object_for:  in memory?  kept for this target (kept.py)?  else parts -> verify -> LLVM -> verify -> keep

A kernel is an object or several, its *parts*. Those that kernels share are kept by themselves too. What has
to be made is made by two threads.

A process that finds its kernels on disk never loads LLVM. One lock serialises compilation; a fork
waits for it, so that no child inherits LLVM in the middle of its work. Who makes a kernel imports what writes
its text: who waits for the lock, or for the other thread, first gives back what Ctrl-C left of an import.
"""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from kiln import _core
from kiln.codegen.fork import GENERATOR, at_fork
from kiln.codegen.llvm import Machine, load
from kiln.codegen.nests.generate import nest_text
from kiln.codegen.nests.nest import Nest
from kiln.codegen.store import kept
from kiln.codegen.store.identity import digest
from kiln.codegen.target import Target, host_target
from kiln.codegen.thread import STACK, Helper
from kiln.codegen.verify import verify_object, verify_text
from kiln.late import free_imports

# Bytes of address space there must be before LLVM works: for a thread's kernel, for each byte of its text,
# and for another thread (its stack, and the arena that the C library sets up for what it allocates).
ROOM, ROOM_OF_TEXT, ROOM_OF_THREAD = 64 << 20, 64, STACK + (64 << 20)
REMEMBERED = 1024  # objects kept in memory; the core holds the mapped kernels itself

MARK = b"KilnObjs"  # of several objects in one

_lock = threading.RLock()
_memory: dict[tuple[bytes, Target], bytes] = {}
# By target, whether it is quick, and the end of the parts where its thread begins.
_machines: dict[tuple[Target, bool, int], Machine] = {}


class Part(NamedTuple):
    """Functions of a kernel that are compiled together; they may call those of its other parts."""

    functions: tuple[str, ...]
    text: Callable[[], str]  # their LLVM text
    quick: bool = False  # compiled in a quarter of the time, for code that is not hot
    shared: str = ""  # what they are, if other kernels have them too


def object_for(text_key: str, parts: Callable[[], Sequence[Part]], target: Target | None = None) -> bytes:
    """The object code of the pattern `text_key`, made of its `parts` if nobody kept it.

    `target` is this host's unless given. Raises ValueError for text or an object that the verifiers
    refuse, and RuntimeError if LLVM cannot parse it.
    """
    return objects_for([(text_key, parts)], host_target() if target is None else target)[0]


def objects_for(kernels: Sequence[tuple[str, Callable[[], Sequence[Part]]]], target: Target) -> list[bytes]:
    """The same of several patterns: what nobody kept is made together."""
    keys = [kernel_key(text) for text, _ in kernels]
    found = {key: kept for key in keys if (kept := _kept(key, target)) is not None}
    if len(found) < len({*keys}):
        free_imports()
        with _lock:
            found.update({key: _memory[key, target] for key in keys if (key, target) in _memory})
            left = {key: parts for key, (_, parts) in zip(keys, kernels) if key not in found}
            for key, made in zip(left, compile_kernels([parts() for parts in left.values()], target)):
                _keep(key, target, made)
                found[key] = made
    return [found[key] for key in keys]


def _kept(key: bytes, target: Target) -> bytes | None:
    """What memory or the disk holds."""
    found = _memory.get((key, target))
    if found is None:
        found = kept.load(key, target)
        if found is not None:
            _remember(key, target, found)
    return found


def _keep(key: bytes, target: Target, made: bytes) -> None:
    kept.store(key, made, target)
    _remember(key, target, made)


def _remember(key: bytes, target: Target, found: bytes) -> None:
    if len(_memory) >= REMEMBERED:
        _memory.clear()
    _memory[key, target] = found


def kernel_object(nest: Nest, target: Target | None = None) -> bytes:
    """The ELF object of a nest's kernel for this host (or `target`); ValueError for an ill-formed nest."""
    target = host_target() if target is None else target
    return object_for(nest.text(), lambda: [whole(nest_text(nest, target))], target)


def whole(text: str) -> Part:
    """A kernel of one part."""
    return Part(("kernel",), lambda: text)


def compile_text(text: str, target: Target) -> bytes:
    """LLVM text to verified object code, past every cache."""
    return compile_parts([whole(text)], target)


def compile_parts(parts: Sequence[Part], target: Target) -> bytes:
    """A kernel's parts to verified object code, past every cache but that of shared parts.

    What takes longest stands last: the other thread begins there.
    """
    return compile_kernels([parts], target)[0]


def compile_kernels(kernels: Sequence[Sequence[Part]], target: Target) -> list[bytes]:
    """The same of several kernels."""
    free_imports()
    with _lock:
        work = _Work(kernels, target)
        work.run()
    made = [[work.made[_name(n, part)] for part in parts] for n, parts in enumerate(kernels)]
    return [objects[0] if len(objects) == 1 else bundle(objects) for objects in made]


_Name: TypeAlias = tuple[int, tuple[str, ...]] | str  # of a part: its kernel and functions, or what is shared


def _name(n: int, part: Part) -> _Name:
    """The name of a part of kernel n."""
    return part.shared or (n, part.functions)


class _Work:
    """The parts of some kernels, by their names; those that nobody kept are made."""

    def __init__(self, kernels: Sequence[Sequence[Part]], target: Target) -> None:
        self.target = target
        self.left: list[tuple[_Name, Part, tuple[str, ...]]] = []  # with the functions of their kernels
        self.made: dict[_Name, bytes] = {}
        self.error: BaseException | None = None
        self.room = ROOM  # what must be there for all threads that work
        asked: set[_Name] = set()
        for n, parts in enumerate(kernels):
            names = tuple(name for part in parts for name in part.functions)
            for part in parts:
                name = _name(n, part)
                found = _kept(kernel_key(part.shared), target) if part.shared else None
                if found is not None:
                    self.made[name] = found
                elif name not in asked:
                    self.left.append((name, part, names))
                asked.add(name)

    def run(self) -> None:
        """Makes what is missing, with another thread if that is more than one part."""
        helper = Helper(lambda: self._make(-1))
        if self.left:
            _expect_memory(self.room)
            load(self.target)
        if len(self.left) > 1:
            try:
                self.room = 2 * ROOM + ROOM_OF_THREAD
                _expect_memory(self.room)
                helper.start()
            except (RuntimeError, MemoryError):  # no other thread now: this one makes them all
                self.room = ROOM
        try:
            self._make(0)
        finally:  # no other kernel is made while this thread works, even if Ctrl-C comes
            _core.call_whole(helper.finish)
        if self.error is not None:
            raise self.error

    def _make(self, end: int) -> None:
        """Makes parts from one end of those that are left."""
        while self.error is None:
            try:
                name, part, names = self.left.pop(end)
            except IndexError:
                return
            try:
                self.made[name] = self._object(part, names, end)
            except BaseException as error:  # raised by `run`
                self.error = error

    def _object(self, part: Part, names: tuple[str, ...], end: int) -> bytes:
        text, target = part.text(), self.target
        verify_text(text, target, names)
        _expect_memory(self.room + ROOM_OF_TEXT * len(text))
        machine = _machines.get((target, part.quick, end))
        if machine is None:
            machine = _machines[target, part.quick, end] = Machine(target, part.quick)
        data = machine.object(text)
        verify_object(data, part.functions, names)
        if part.shared:
            _keep(kernel_key(part.shared), target, data)
        return data


def _expect_memory(room: int) -> None:
    """MemoryError where LLVM, which ends the process if it gets no memory, may not get enough."""
    try:
        mmap.mmap(-1, room).close()
    except OSError:
        raise MemoryError(f"making a kernel: {room >> 20} MiB of memory are not to be had") from None


def bundle(objects: Sequence[bytes]) -> bytes:
    """Several objects that call each other, as the core's loader takes them: a mark, their number, their
    sizes in bytes (32 bits each, little-endian), then they themselves.
    """
    sizes = [len(data) for data in objects]
    return b"".join([MARK, struct.pack(f"<{1 + len(sizes)}I", len(sizes), *sizes), *objects])


def unbundled(data: bytes) -> list[bytes]:
    """The objects of a kernel, of one or of several."""
    if not data.startswith(MARK):
        return [data]
    (count,) = struct.unpack_from("<I", data, len(MARK))
    sizes = struct.unpack_from(f"<{count}I", data, len(MARK) + 4)
    at, found = len(MARK) + 4 + 4 * count, []
    for size in sizes:
        found.append(data[at : at + size])
        at += size
    return found


def kernel_key(text_key: str) -> bytes:
    """The key of a pattern: 32 bytes, the same on every machine."""
    return digest(b"kernel", text_key.encode())


_forking: set[int] = set()  # threads that fork; those of them hold the lock that did not hold it before


def _before_fork() -> None:
    """Takes the lock, once however often it is called."""
    if not _lock._is_owned():  # type: ignore[attr-defined]
        free_imports()
        _forking.add(threading.get_ident())
        _lock.acquire()


def _in_parent() -> None:
    """Gives it back, if it was taken for the fork."""
    if threading.get_ident() in _forking:
        if _lock._is_owned():  # type: ignore[attr-defined]
            _lock.release()
        _forking.discard(threading.get_ident())


def _in_child() -> None:
    """The child gets a lock nobody holds."""
    global _lock
    _lock = threading.RLock()
    _forking.clear()


at_fork(GENERATOR, _before_fork, _in_parent, _in_child)
