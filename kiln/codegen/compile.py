"""From a pattern to object code: memory, then disk, then LLVM.

    key = H(identity of source, LLVM, target and CPU | pattern text)       see identity.py
    object_for:  in memory?  on disk, whole and ours?  else text -> verify -> LLVM -> verify -> keep

A process that finds its kernels on disk never loads LLVM. One lock serialises compilation; a fork
waits for it, so that no child inherits LLVM in the middle of its work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from kiln.codegen.cache import disk
from kiln.codegen.fork import GENERATOR, at_fork
from kiln.codegen.generate import nest_text
from kiln.codegen.identity import digest, host_identity, identity
from kiln.codegen.llvm import Machine
from kiln.codegen.nest import Nest
from kiln.codegen.target import Target, host_target
from kiln.codegen.verify import verify_object, verify_text

REMEMBERED = 1024  # objects kept in memory; the core holds the mapped kernels itself

_lock = threading.RLock()
_memory: dict[bytes, bytes] = {}
_others: dict[Target, bytes] = {}
_machines: dict[Target, Machine] = {}


def object_for(text_key: str, ir_text: Callable[[], str], target: Target | None = None) -> bytes:
    """The ELF object of the pattern `text_key`, whose LLVM text `ir_text` writes if nobody kept it.

    `target` is this host's unless given. Raises ValueError for text or an object that the verifiers
    refuse, and RuntimeError if LLVM cannot parse it.
    """
    target = host_target() if target is None else target
    key = kernel_key(text_key, target)
    found = _memory.get(key)
    if found is not None:
        return found
    found = disk().load(key)
    if found is None:
        with _lock:
            found = _memory.get(key)
            if found is None:
                found = compile_text(ir_text(), target)
                disk().store(key, found)
    if len(_memory) >= REMEMBERED:
        _memory.clear()
    _memory[key] = found
    return found


def kernel_object(nest: Nest, target: Target | None = None) -> bytes:
    """The ELF object of a nest's kernel for this host (or `target`); ValueError for an ill-formed nest."""
    target = host_target() if target is None else target
    return object_for(nest.text(), lambda: nest_text(nest, target), target)


def compile_text(text: str, target: Target) -> bytes:
    """LLVM text to a verified ELF object, past every cache."""
    verify_text(text, target)
    with _lock:
        machine = _machines.get(target)
        if machine is None:
            machine = _machines[target] = Machine(target)
        data = machine.object(text)
    verify_object(data)
    return data


def kernel_key(text_key: str, target: Target | None = None) -> bytes:
    """The cache key of a pattern on a target (this host's unless given): 32 bytes."""
    if target is None or target == host_target():
        base = host_identity()
    else:
        base = _others.get(target) or _others.setdefault(target, identity(repr(target)))
    return digest(b"kernel", base, text_key.encode())


def _after_fork() -> None:
    """The child gets a lock nobody holds."""
    global _lock
    _lock = threading.RLock()


at_fork(GENERATOR, lambda: _lock.acquire(), lambda: _lock.release(), _after_fork)
