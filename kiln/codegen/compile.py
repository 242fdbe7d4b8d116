"""From a pattern to object code: memory, then disk, then LLVM.

    key = H(pattern text)
    object_for:  in memory?  kept for this target (kept.py)?  else text -> verify -> LLVM -> verify -> keep

Kernels of one kind may share a *library*: functions that each carries, and that are made once, by a second
thread beside the first kernel that needs them.

A process that finds its kernels on disk never loads LLVM. One lock serialises compilation; a fork
waits for it, so that no child inherits LLVM in the middle of its work.
"""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from kiln.codegen import kept
from kiln.codegen.fork import GENERATOR, at_fork
from kiln.codegen.generate import nest_text
from kiln.codegen.identity import digest
from kiln.codegen.llvm import Machine
from kiln.codegen.nest import Nest
from kiln.codegen.target import Target, host_target
from kiln.codegen.thread import Helper
from kiln.codegen.verify import verify_object, verify_text

ROOM = 64 << 20  # bytes LLVM may take for a kernel, and its threads beside
REMEMBERED = 1024  # objects kept in memory; the core holds the mapped kernels itself

_lock = threading.RLock()
_memory: dict[tuple[bytes, Target], bytes] = {}
_machines: dict[Target, Machine] = {}


class Library(NamedTuple):
    """Functions that kernels call."""

    pattern: str  # the key of their object
    functions: tuple[str, ...]
    text: Callable[[Target], str]  # their LLVM text


def object_for(
    text_key: str,
    ir_text: Callable[[], str],
    target: Target | None = None,
    library: Library | None = None,
) -> bytes:
    """The object code of the pattern `text_key`, whose LLVM text `ir_text` writes if nobody kept it.

    `target` is this host's unless given. Raises ValueError for text or an object that the verifiers
    refuse, and RuntimeError if LLVM cannot parse it.
    """
    target = host_target() if target is None else target
    key = kernel_key(text_key)
    found = _kept(key, target)
    if found is None:
        with _lock:
            found = _memory.get((key, target))
            if found is None:
                found = compile_text(ir_text(), target, library)
                _keep(key, target, found)
    return found


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
    return object_for(nest.text(), lambda: nest_text(nest, target), target)


def compile_text(text: str, target: Target, library: Library | None = None) -> bytes:
    """LLVM text to verified object code, past every cache but the library's."""
    with _lock:
        if library is None:
            return _compiled(_machine(target), text, target)
        with _Beside(library, target) as beside:
            own = _compiled(_machine(target), text, target, calls=library.functions)
        return bundle([own, beside.object()])


def _compiled(
    machine: Machine,
    text: str,
    target: Target,
    defines: tuple[str, ...] = ("kernel",),
    calls: tuple[str, ...] = (),
) -> bytes:
    verify_text(text, target, calls)
    _expect_memory()
    data = machine.object(text)
    verify_object(data, defines, calls)
    return data


def _machine(target: Target) -> Machine:
    machine = _machines.get(target)
    if machine is None:
        machine = _machines[target] = Machine(target)
    return machine


def _expect_memory() -> None:
    """MemoryError where LLVM, which ends the process if it gets no memory, may not get enough."""
    try:
        mmap.mmap(-1, ROOM).close()
    except OSError:
        raise MemoryError(f"making a kernel: {ROOM >> 20} MiB of memory are not to be had") from None


class _Beside:
    """A library's object, being made by another thread until the block's end unless it was kept."""

    def __init__(self, library: Library, target: Target) -> None:
        self.library, self.target = library, target
        self.key = kernel_key(library.pattern)
        self.found = _kept(self.key, target)
        self.error: BaseException | None = None
        self.helper = Helper(self._make) if self.found is None else None

    def __enter__(self) -> _Beside:
        if self.helper is not None:
            _machine(self.target)  # loads LLVM
            with suppress(RuntimeError):  # no more threads: the process ends
                self.helper.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.helper is not None:
            self.helper.finish()

    def _make(self) -> None:
        try:
            text = self.library.text(self.target)
            self.found = _compiled(Machine(self.target), text, self.target, defines=self.library.functions)
            _keep(self.key, self.target, self.found)
        except BaseException as error:  # raised where it is asked for
            self.error = error

    def object(self) -> bytes:
        """The object, once the block has ended."""
        if self.found is None:
            raise self.error or RuntimeError("codegen: a library was not made")
        return self.found


def bundle(objects: list[bytes]) -> bytes:
    """Several objects that call each other, as the core's loader takes them: a mark, their number, their
    sizes in bytes (32 bits each, little-endian), then they themselves.
    """
    sizes = [len(data) for data in objects]
    return b"".join([b"KilnObjs", struct.pack(f"<{1 + len(sizes)}I", len(sizes), *sizes), *objects])


def kernel_key(text_key: str) -> bytes:
    """The key of a pattern: 32 bytes, the same on every machine."""
    return digest(b"kernel", text_key.encode())


def _after_fork() -> None:
    """The child gets a lock nobody holds."""
    global _lock
    _lock = threading.RLock()


at_fork(GENERATOR, lambda: _lock.acquire(), lambda: _lock.release(), _after_fork)
