"""From a pattern to object code: memory, then disk, then LLVM.

    key = SHA-256(generator's source | LLVM | target | CPU | pattern text)
    object_for:  in memory?  on disk, whole and ours?  else text -> verify -> LLVM -> verify -> keep

A process that finds its kernels on disk never loads LLVM. One lock serialises compilation; a fork
waits for it, so that no child inherits LLVM in the middle of its work.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from typing import Any

from kiln.codegen.cache import DiskCache, cache_directory
from kiln.codegen.generate import nest_text
from kiln.codegen.llvm import Machine
from kiln.codegen.llvm import identity as llvm_identity
from kiln.codegen.nest import Nest
from kiln.codegen.target import Target, cpu_identity, host_target
from kiln.codegen.verify import verify_object, verify_text

REMEMBERED = 1024  # objects kept in memory; the core holds the mapped kernels itself

_lock = threading.RLock()
_memory: dict[bytes, bytes] = {}
_disk: DiskCache = DiskCache(None)
_bases: dict[Target, Any] = {}
_machines: dict[Target, Machine] = {}


def object_for(text_key: str, ir_text: Callable[[], str], target: Target | None = None) -> bytes:
    """The ELF object of the pattern `text_key`, whose LLVM text `ir_text` writes if nobody kept it.

    `target` is this host's unless given. Raises ValueError for text or an object that the verifiers
    refuse, and RuntimeError if LLVM cannot parse it.
    """
    target = host_target() if target is None else target
    key = _key(text_key, target)
    found = _memory.get(key)
    if found is not None:
        return found
    disk = _disk_cache()
    found = disk.load(key)
    if found is None:
        with _lock:
            found = _memory.get(key)
            if found is None:
                found = compile_text(ir_text(), target)
                disk.store(key, found)
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


# -- keys ---------------------------------------------------------------------------------------------


def _key(text_key: str, target: Target) -> bytes:
    """The cache key of a pattern on a target: 32 bytes."""
    base = _bases.get(target)
    if base is None:
        base = hashlib.sha256()
        for part in (generator_source(), llvm_identity(), repr(target).encode(), cpu_identity().encode()):
            base.update(hashlib.sha256(part).digest())
        _bases[target] = base
    digest = base.copy()
    digest.update(text_key.encode())
    return bytes(digest.digest())


def generator_source() -> bytes:
    """The source of everything that shapes a kernel: this folder and the scalar language."""
    folder = os.path.dirname(os.path.abspath(__file__))
    paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".py")]
    parts = []
    for path in [*paths, os.path.join(os.path.dirname(folder), "ops", "scalar.py")]:
        with open(path, "rb") as file:
            parts.append(file.read())
    return b"\0".join(parts)


def _disk_cache() -> DiskCache:
    """The disk cache of the directory that the environment names now."""
    global _disk
    path = cache_directory()
    if path != _disk.path:
        _disk = DiskCache(path)
    return _disk


def _after_fork() -> None:
    """The child gets a lock nobody holds."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(
    before=lambda: _lock.acquire(), after_in_parent=lambda: _lock.release(), after_in_child=_after_fork
)
