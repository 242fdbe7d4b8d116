"""Where an entry is looked for: in the user's cache, whose names say for which machine, then in the pack.

An entry is a kernel's object or an answer of `kiln.capture.service`. Its key says what it is, on any machine.
"""

from __future__ import annotations

from kiln.codegen.store import pack
from kiln.codegen.store.cache import disk
from kiln.codegen.store.identity import digest, identity
from kiln.codegen.target import Target, host_target


def load(key: bytes, target: Target | None = None) -> bytes | None:
    """The entry of a key for a target (this host's unless given), or None."""
    found = disk().load(name(key, target))
    if found is None and (target is None or target == host_target()):
        found = pack.load(key)
    return found


def store(key: bytes, entry: bytes, target: Target | None = None) -> bool:
    """Keeps an entry in the user's cache; False where that was not possible."""
    return disk().store(name(key, target), entry)


def name(key: bytes, target: Target | None = None) -> bytes:
    """What the entry of a key is called in the user's cache; those of one identity begin alike."""
    return identity(target)[:8] + digest(b"entry", identity(target), key)[8:]
