"""What decides whether a kept kernel or plan is right here: kiln's source, LLVM, the target, this machine.

    identity = H(source | LLVM | target | CPU)       32 bytes, part of every name in the cache on disk

Reading all of it takes milliseconds, so the answer is itself kept on disk, by what `stat` says of the files:
their sizes, times and inodes. Nothing here loads LLVM.
"""

from __future__ import annotations

import os
from _blake2 import blake2b
from functools import cache

from kiln import _core
from kiln.codegen import llvm
from kiln.codegen.store.cache import disk
from kiln.codegen.target import Target, host_target
from kiln.table.index import python_files

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# what shapes kernels and plans, beside the core
PARTS = (
    "graph", "scalars", "table", "ops", "passes", "codegen", "capture", "func", "batching", "tracing",
    "export",
)  # fmt: skip

_others: dict[Target, bytes] = {}


def digest(*parts: bytes) -> bytes:
    """A hash of 32 bytes; the parts' borders count."""
    total = blake2b(digest_size=32)
    for part in parts:
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return total.digest()


def identity(target: Target | None = None) -> bytes:
    """The identity for a target, this machine's own unless given."""
    if target is None or target == host_target():
        return _host()[:32]
    found = _others.get(target)
    if found is None:
        found = _others[target] = _joined(source(), target)
    return found


def host_source() -> bytes:
    """The hash of kiln's source: what a pack must be made from."""
    return _host()[32:]


def _host() -> bytes:
    return _find(os.environ.get("KILN_TARGET_FEATURES", ""))


@cache
def _find(asked: str) -> bytes:
    """The identity of this machine, then the hash of the source."""
    states = [f"{path} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns} {s.st_ino}" for path, s in source_files()]
    place = llvm.folder()
    states.append("no llvm" if place is None else f"{place} {_state(llvm.version_file(place))}")
    states.append(host_target().name)  # which says whether AMX is permitted
    key = digest(b"identity", asked.encode(), _core.cpu_identity().encode(), "\n".join(states).encode())
    found = disk().load(key)
    if found is None or len(found) != 64:
        read = source()
        found = _joined(read, host_target()) + read
        disk().store(key, found)
    return found


def _joined(source: bytes, target: Target) -> bytes:
    return digest(source, llvm.identity(), repr(target).encode(), _core.cpu_identity().encode())


def source_files(root: str = ROOT) -> list[tuple[str, os.stat_result]]:
    """Every file whose content shapes what is kept, with its state."""
    found = [(_core.__file__, os.stat(_core.__file__))]
    for part in PARTS:
        found += python_files(os.path.join(root, part))
    return sorted(found)


def source() -> bytes:
    """The content of those files."""
    parts = []
    for path, _ in source_files():
        with open(path, "rb") as file:
            parts += [path.removeprefix(ROOT).encode(), file.read()]
    return digest(*parts)


def _state(path: str) -> str:
    state = os.stat(path)
    return f"{state.st_size} {state.st_mtime_ns} {state.st_ino}"
