"""From a pattern to object code: memory, then disk, then LLVM.

    key = H(identity of source, LLVM, target and CPU | pattern text)       see identity.py
    object_for:  in memory?  on disk, whole and ours?  else text -> verify -> LLVM -> verify -> keep

A process that finds its kernels on disk never imports LLVM. One lock serialises compilation; a fork
waits for it, so that no child inherits LLVM in the middle of its work.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from kiln.codegen.cache import disk
from kiln.codegen.generate import nest_text
from kiln.codegen.identity import digest, host_identity, identity
from kiln.codegen.nest import Nest
from kiln.codegen.target import Target, host_target
from kiln.codegen.verify import verify_object, verify_text

OPT_LEVEL = 1
MEASURED_LLVM = 22
REMEMBERED = 1024  # objects kept in memory; the core holds the mapped kernels itself

_lock = threading.RLock()
_memory: dict[bytes, bytes] = {}
_others: dict[Target, bytes] = {}
_machines: dict[Target, Any] = {}


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
        binding, machine = _machine(target)
        context = binding.create_context()
        module = binding.parse_assembly(text, context)
        try:
            module.verify()
            data = bytes(machine.emit_object(module))
        finally:
            module.close()
    verify_object(data)
    return data


def _machine(target: Target) -> tuple[Any, Any]:
    """llvmlite's binding and a target machine; the first call in a process imports llvmlite."""
    import llvmlite.binding as binding

    machine = _machines.get(target)
    if machine is None:
        if not _machines:
            _prepare(binding)
        machine = _machines[target] = binding.Target.from_triple(target.triple).create_target_machine(
            cpu=target.cpu, features=target.features, opt=OPT_LEVEL, reloc="pic", codemodel="small"
        )
    return binding, machine


def _prepare(binding: Any) -> None:
    """Once per process: the targets; no loop strength reduction (40 % of the time, and nothing gained).

    The option is set for the whole LLVM library, by name, so only on the version that was measured.
    """
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    if binding.llvm_version_info[0] == MEASURED_LLVM:
        binding.set_option("kiln", "-disable-lsr")


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


os.register_at_fork(
    before=lambda: _lock.acquire(), after_in_parent=lambda: _lock.release(), after_in_child=_after_fork
)
